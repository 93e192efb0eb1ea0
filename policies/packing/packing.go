// Package packing places buffers with full knowledge of the future: every
// buffer's size and lifetime is given, and each gets one fixed offset such
// that no two that live at the same time overlap. It answers what perfect
// placement would have needed, and so how much of an allocator's reserved
// memory is the allocator's own doing.
//
// [Bound] is the most bytes live at once: no placement can need less. [Pack]
// looks for a placement close to it, in three stages:
//
//  1. a portfolio of greedy orders (by size, area, lifetime, time, …), each
//     placed by first fit or best fit (order.go, fit.go, skyline.go);
//  2. improvement of the best of them by reordering what sticks out
//     (improve.go);
//  3. for small problems an exact search that either finds a placement within
//     a capacity or proves that there is none (exact.go), in the style of
//     MiniMalloc (Moffitt, ASPLOS 2023).
//
// Work is counted in steps, not time, so that the same input gives the same
// placement on any machine and with any number of workers.
//
// [NewPlanned] turns a placement into an allocator that serves the i-th request
// at the plan's i-th offset, so that a plan can be run and measured like any
// other policy.
package packing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Buffer is something to place. Its identity is its index in the slice given to
// [Pack].
type Buffer struct {
	// ID is the caller's name for the buffer, used in messages only.
	ID int64
	// Lower and Upper bound the lifetime [Lower, Upper) in any unit of time;
	// Lower < Upper.
	Lower, Upper int64
	// Size is bytes, > 0.
	Size int64
	// Alignment is what the offset must be a multiple of; 0 means 1.
	Alignment int64
	// Gaps are times in which the buffer needs less than its size, ascending
	// and disjoint, inside the lifetime.
	Gaps []Gap
}

// Gap is a time [Lower, Upper) in which a buffer occupies only the bytes
// [WindowLower, WindowUpper) of itself; none when the two are equal.
type Gap struct {
	Lower, Upper             int64
	WindowLower, WindowUpper int64
}

// Options say how hard [Pack] tries. The zero value minimises the height with
// the default budget.
type Options struct {
	// Capacity is the bytes to fit in: Pack stops at the first placement that
	// fits or when it has proved that there is none. 0 = as low as possible.
	Capacity int64
	// Budget is the work to spend, in steps of about 10 ns (one look at a free
	// gap, or one buffer touched by the search). The first heuristics run in
	// any case. 0 = [DefaultBudget], or [SmallBudget] up to [Small] buffers;
	// < 0 = no more than these.
	Budget int64
	// Seed chooses the random part of the improvement.
	Seed uint64
	// Workers is how many goroutines may work at once; it does not change the
	// result. 0 or 1 = one.
	Workers int
}

// DefaultBudget is about one second of one core. A problem of at most Small
// buffers has SmallBudget: there the exact search often ends, and the hard
// instances of its kind take up to a few hundred million steps.
const (
	DefaultBudget = 100_000_000
	SmallBudget   = 500_000_000
	Small         = 1000
)

// Placement is a solution.
type Placement struct {
	// Offsets holds each buffer's offset in bytes, by index.
	Offsets []int64
	// Height is the highest end of any buffer: the memory that is needed.
	Height int64
	// Bound is the most bytes live at once.
	Bound int64
	// LowerBound is what is proved to be needed: Bound, or more where the exact
	// search has ruled out smaller heights. No placement is lower.
	LowerBound int64
	// Heuristic names what found the placement, such as "size/first-fit".
	Heuristic string
	// Steps is the work done.
	Steps int64
}

// Optimal reports whether no placement can be lower.
func (p *Placement) Optimal() bool { return p.Height == p.LowerBound }

// Verdict answers "does it fit?".
type Verdict uint8

// The verdicts.
const (
	Unknown    Verdict = iota // no placement found, none ruled out
	Fits                      // the placement fits
	DoesNotFit                // proved that no placement fits
)

// String is for messages.
func (v Verdict) String() string {
	return [...]string{"unknown", "fits", "does not fit"}[v]
}

// Verdict says whether the buffers fit in capacity bytes, as far as p shows.
func (p *Placement) Verdict(capacity int64) Verdict {
	switch {
	case p.Height <= capacity:
		return Fits
	case p.LowerBound > capacity:
		return DoesNotFit
	}
	return Unknown
}

// Bound is the most bytes live at once, 0 without buffers. The buffers must be
// valid as for [Pack]; others are skipped.
func Bound(buffers []Buffer) int64 {
	type edge struct {
		time  int64
		delta int64
	}
	edges := make([]edge, 0, 2*len(buffers))
	add := func(lower, upper, bytes int64) {
		if lower < upper && bytes > 0 {
			edges = append(edges, edge{lower, bytes}, edge{upper, -bytes})
		}
	}
	for i := range buffers {
		b := &buffers[i]
		if b.check() != nil {
			continue
		}
		b.spans(func(lower, upper, w0, w1 int64) { add(lower, upper, w1-w0) })
	}
	// Frees come first among equal times: lifetimes are half-open.
	slices.SortFunc(edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.delta, b.delta))
	})
	var live, most int64
	for _, e := range edges {
		live += e.delta
		most = max(most, live)
	}
	return most
}

// spans calls f for the maximal times with one window of the buffer.
func (b *Buffer) spans(f func(lower, upper, w0, w1 int64)) {
	at := b.Lower
	for _, g := range b.Gaps {
		if at < g.Lower {
			f(at, g.Lower, 0, b.Size)
		}
		if g.WindowLower < g.WindowUpper {
			f(g.Lower, g.Upper, g.WindowLower, g.WindowUpper)
		}
		at = g.Upper
	}
	if at < b.Upper {
		f(at, b.Upper, 0, b.Size)
	}
}

func (b *Buffer) check() error {
	switch {
	case b.Lower >= b.Upper:
		return fmt.Errorf("lives from %d to %d: the end must be after the start", b.Lower, b.Upper)
	case b.Size <= 0:
		return fmt.Errorf("has size %d: it must be positive", b.Size)
	case b.Alignment < 0:
		return fmt.Errorf("has alignment %d: it must be positive", b.Alignment)
	}
	at := b.Lower
	for _, g := range b.Gaps {
		switch {
		case g.Lower < at || g.Lower >= g.Upper || g.Upper > b.Upper:
			return fmt.Errorf("has the gap %d to %d: gaps must ascend inside the lifetime %d to %d", g.Lower, g.Upper, b.Lower, b.Upper)
		case g.WindowLower < 0 || g.WindowLower > g.WindowUpper || g.WindowUpper > b.Size:
			return fmt.Errorf("has the gap window %d to %d: it must lie within its %d bytes", g.WindowLower, g.WindowUpper, b.Size)
		}
		at = g.Upper
	}
	return nil
}

// MaxBytes is the most that all sizes, each rounded up to its alignment, may
// add up to.
const MaxBytes = 1 << 60

// Check returns the first reason why [Pack] would refuse the buffers.
func Check(buffers []Buffer) error {
	if len(buffers) > math.MaxInt32/4 {
		return fmt.Errorf("%d buffers are too many", len(buffers))
	}
	var sum int64
	for i := range buffers {
		b := &buffers[i]
		if err := b.check(); err != nil {
			return fmt.Errorf("buffer %d %w", b.ID, err)
		}
		if b.Size > MaxBytes || b.Alignment > MaxBytes || sum > MaxBytes {
			return errTooBig
		}
		sum += b.Size + max(b.Alignment, 1) - 1
	}
	if sum > MaxBytes {
		return errTooBig
	}
	return nil
}

var errTooBig = errors.New("the buffers' sizes and alignments add up to more than 2^60 bytes")

// Verify checks a placement on its own, without anything that made it: one
// offset for each buffer, none negative or misaligned, no end above capacity
// (0 = any), no two buffers in the same bytes at the same time. The error names
// the first offenders.
func Verify(buffers []Buffer, offsets []int64, capacity int64) error {
	if len(offsets) != len(buffers) {
		return fmt.Errorf("%d offsets for %d buffers", len(offsets), len(buffers))
	}
	type piece struct {
		lower, upper int64 // time
		lo, hi       int64 // bytes
		index        int
	}
	pieces := make([]piece, 0, len(buffers))
	for i := range buffers {
		b, o := &buffers[i], offsets[i]
		switch {
		case o < 0:
			return fmt.Errorf("buffer %d has the negative offset %d", b.ID, o)
		case b.Alignment > 1 && o%b.Alignment != 0:
			return fmt.Errorf("buffer %d at offset %d is not aligned to %d", b.ID, o, b.Alignment)
		case o > math.MaxInt64-b.Size || capacity > 0 && o+b.Size > capacity:
			return fmt.Errorf("buffer %d of %d bytes at offset %d ends above the capacity of %d bytes", b.ID, b.Size, o, capacity)
		}
		b.spans(func(lower, upper, w0, w1 int64) {
			pieces = append(pieces, piece{lower, upper, o + w0, o + w1, i})
		})
	}
	starts := make([]int32, len(pieces))
	for i := range starts {
		starts[i] = int32(i)
	}
	ends := slices.Clone(starts)
	slices.SortStableFunc(starts, func(a, b int32) int { return cmp.Compare(pieces[a].lower, pieces[b].lower) })
	slices.SortStableFunc(ends, func(a, b int32) int { return cmp.Compare(pieces[a].upper, pieces[b].upper) })
	var live []int32 // pieces by address
	find := func(lo int64) int {
		i, _ := slices.BinarySearchFunc(live, lo, func(p int32, lo int64) int { return cmp.Compare(pieces[p].lo, lo) })
		return i
	}
	next := 0
	for _, s := range starts {
		p := &pieces[s]
		for ; pieces[ends[next]].upper <= p.lower; next++ {
			i := find(pieces[ends[next]].lo)
			live = slices.Delete(live, i, i+1)
		}
		i := find(p.lo)
		var other *piece
		if i < len(live) && pieces[live[i]].lo < p.hi {
			other = &pieces[live[i]]
		} else if i > 0 && pieces[live[i-1]].hi > p.lo {
			other = &pieces[live[i-1]]
		}
		if other != nil {
			return fmt.Errorf("buffers %d and %d overlap: bytes %d to %d and %d to %d, both live at time %d",
				buffers[other.index].ID, buffers[p.index].ID, other.lo, other.hi, p.lo, p.hi, p.lower)
		}
		live = slices.Insert(live, i, s)
	}
	return nil
}

// Pack places the buffers (see the package comment for how). The placement is
// always valid; with Options.Capacity it may be higher than asked, and
// [Placement.Verdict] tells whether a fit was ruled out. The error is that of
// [Check], or ctx's when it ends first; then the placement is the best so far,
// without Offsets if there is none yet.
func Pack(ctx context.Context, buffers []Buffer, opt Options) (Placement, error) {
	if err := Check(buffers); err != nil {
		return Placement{}, err
	}
	p := newProblem(buffers)
	r := &run{p: p, opt: opt, budget: opt.Budget}
	switch {
	case r.budget != 0:
	case len(buffers) <= Small:
		r.budget = SmallBudget
	default:
		r.budget = DefaultBudget
	}
	r.best = Placement{Bound: p.bound, LowerBound: p.bound, Height: math.MaxInt64}
	if len(buffers) == 0 {
		r.best.Height = 0
		return r.best, ctx.Err()
	}
	if err := r.all(ctx); err != nil {
		return r.best, fmt.Errorf("packing %d buffers: %w", len(buffers), err)
	}
	return r.best, nil
}

// run is the state of one Pack.
type run struct {
	p      *problem
	opt    Options
	budget int64 // steps
	best   Placement
	order  []int32 // that made best by first fit; nil if something else did
}

// target is the height at which the work is done.
func (r *run) target() int64 { return max(r.best.LowerBound, r.opt.Capacity) }

// done reports that nothing better is wanted or that the question is answered.
func (r *run) done() bool {
	return r.best.Height <= r.target() || r.opt.Capacity > 0 && r.best.LowerBound > r.opt.Capacity
}

func (r *run) offer(name string, offsets []int64, height int64) {
	if height < r.best.Height {
		r.best.Offsets, r.best.Height, r.best.Heuristic = offsets, height, name
	}
}
