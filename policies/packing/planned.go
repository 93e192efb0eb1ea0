package packing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

// Name is the registered name.
const Name = "packing"

// Granularity is the multiple of bytes to which GPU allocators round sizes and
// align blocks.
const Granularity = 512

// Registration makes the policy known as "packing". Placement needs the whole
// run at once, so the Spec that Parse returns makes no policies; the one that
// its Prepare returns does.
var Registration = policies.Registration{
	Name:    Name,
	Aliases: []string{"offline", "optimal", "minimalloc"},
	Doc:     "offline placement with full knowledge of the trace: what perfect placement would need",
	Options: "budget= (steps of about 10 ns, 0 = only the first heuristic; 500000000 up to 1,000 requests, " +
		"100000000 above), seed=0, round=512 (multiple to which sizes are rounded up; 1 = as asked for)",
	Parse: func(text string) (*policies.Spec, error) {
		c, normal, err := parse(text)
		if err != nil {
			return nil, err
		}
		s := &policies.Spec{
			Name:    Name,
			Options: normal,
			Config:  c,
			Notes:   []string{"Offline placement: it knows every allocation and free in advance, which no allocator in a program can."},
			Sizes: func(size int64) (block, segment int64) {
				return (size + c.round - 1) / c.round * c.round, 0
			},
			New: func(policies.Env) (policies.Policy, error) { return nil, ErrNoPlan },
		}
		s.Prepare = func(ctx context.Context, run *policies.Future) (*policies.Spec, error) { return c.prepare(ctx, s, run) }
		return s, nil
	},
}

// ErrNoPlan is what a Spec of the registration returns from New before it has
// been prepared.
var ErrNoPlan = errors.New("packing needs the whole trace in advance, so it cannot serve requests one by one")

// config is the options of the policy.
type config struct {
	Options
	round int64 // bytes
}

func parse(text string) (config, string, error) {
	s := options.Parse(text, "budget", "seed", "round")
	budget, seed, round := int64(-1), int64(0), int64(Granularity)
	s.Int("budget", &budget, 0, 1<<50)
	s.Int("seed", &seed, 0, 1<<62)
	s.Size("round", &round, 1)
	if err := s.Err(); err != nil {
		return config{}, "", err
	}
	switch budget {
	case -1:
		budget = 0 // Pack's own
	case 0:
		budget = -1
	}
	return config{Options{Budget: budget, Seed: uint64(seed)}, round}, s.Normal(), nil
}

// prepare packs a run as low as it can; where that is more than the run may
// take, it looks once more, for any placement within that room.
func (c config) prepare(ctx context.Context, spec *policies.Spec, run *policies.Future) (*policies.Spec, error) {
	buffers := Buffers(run, c.round)
	best, err := Pack(ctx, buffers, c.Options)
	if err != nil {
		return nil, err
	}
	if run.Room > 0 && best.Verdict(run.Room) == Unknown {
		o := c.Options
		o.Capacity = run.Room
		again, err := Pack(ctx, buffers, o)
		if err != nil {
			return nil, err
		}
		lower := max(best.LowerBound, again.LowerBound)
		if again.Height < best.Height {
			best = again
		}
		best.LowerBound = lower
	}
	done := Planned(spec, NewPlan(buffers, best))
	done.Notes = slices.Concat(spec.Notes, best.notes(run.Room))
	return done, nil
}

// notes say what is proved about a placement that was to fit in room bytes (0 =
// any).
func (p *Placement) notes(room int64) []string {
	size := func(n int64) string {
		if n < bytesize.KiB {
			return fmt.Sprintf("%d bytes", n)
		}
		return fmt.Sprintf("%s (%d bytes)", bytesize.Format(n), n)
	}
	var notes []string
	switch {
	case room <= 0 || p.Height == 0:
	case p.Verdict(room) == DoesNotFit:
		notes = append(notes, fmt.Sprintf("No placement fits in %s: that is proved.", size(room)))
	case p.Verdict(room) == Unknown:
		notes = append(notes, fmt.Sprintf("No placement within %s was found, and none was ruled out; a larger budget= may decide it.", size(room)))
	}
	switch {
	case p.Height == 0:
	case p.Optimal():
		notes = append(notes, fmt.Sprintf("The placement takes %s, and no other takes less: that is proved.", size(p.Height)))
	default:
		notes = append(notes, fmt.Sprintf("The placement takes %s. It is proved that none takes less than %s; what lies between is open.", size(p.Height), size(p.LowerBound)))
	}
	return notes
}

// Buffers are the requests of a run: sizes are rounded up to a multiple of
// round and aligned to it. Time is the run's in µs if that tells the order of
// its calls, given that lifetimes are half-open; else it is the number of calls
// so far.
func Buffers(run *policies.Future, round int64) []Buffer {
	ordered := ordered(run)
	buffers := make([]Buffer, len(run.Lifetimes))
	for i, l := range run.Lifetimes {
		b := Buffer{ID: int64(i), Lower: l.Malloc, Upper: l.Free, Size: (l.Size + round - 1) / round * round, Alignment: round}
		if ordered {
			b.Lower, b.Upper = l.MallocUS, l.FreeUS
		}
		buffers[i] = b
	}
	return buffers
}

// ordered reports whether the times alone tell the order of frees and Mallocs:
// no free comes after a Malloc of the same µs, and none goes back.
func ordered(run *policies.Future) bool {
	at, malloc := make([]int64, run.Calls+1), make([]bool, run.Calls+1)
	for _, l := range run.Lifetimes {
		at[l.Malloc], at[l.Free] = l.MallocUS, l.FreeUS
		malloc[l.Malloc] = true
	}
	now, last := int64(math.MinInt64), int64(math.MinInt64) // time of the last call and of the last Malloc
	for k, t := range at[:run.Calls] {
		if t < now || t == last && !malloc[k] {
			return false
		}
		now = t
		if malloc[k] {
			last = t
		}
	}
	return true
}

// Plan is a placement made for a run: the i-th request gets Sizes[i] bytes at
// Offsets[i] of one segment of Height bytes. A negative offset stands for a
// request that is not to be served.
type Plan struct {
	Offsets, Sizes []int64
	Height         int64
}

// NewPlan is the plan of a placement of the buffers.
func NewPlan(buffers []Buffer, p Placement) Plan {
	sizes := make([]int64, len(buffers))
	for i := range buffers {
		sizes[i] = buffers[i].Size
	}
	return Plan{Offsets: p.Offsets, Sizes: sizes, Height: p.Height}
}

// Planned completes a Spec of the registration: its policies follow the plan.
func Planned(spec *policies.Spec, plan Plan) *policies.Spec {
	s := *spec
	s.Prepare = nil
	s.New = func(env policies.Env) (policies.Policy, error) { return NewPlanned(env, plan) }
	return &s
}

// NewPlanned returns a policy that serves the i-th Malloc from the plan's i-th
// place, in one segment that it takes at the first request. Where the limit or
// the device has no room for the plan's height, the segment is as large as
// they allow, and requests whose place lies beyond it are out of memory. So is
// a request that the plan has no place for: beyond its end, larger than
// planned, or while the place is still in use.
func NewPlanned(env policies.Env, plan Plan) (policies.Policy, error) {
	if len(plan.Sizes) != len(plan.Offsets) {
		return nil, fmt.Errorf("the plan has %d offsets and %d sizes", len(plan.Offsets), len(plan.Sizes))
	}
	for i, o := range plan.Offsets {
		if s := plan.Sizes[i]; o >= 0 && (s <= 0 || o > plan.Height-s) {
			return nil, fmt.Errorf("the plan's request %d, %d bytes at %d, does not lie within its height of %d bytes", i, s, o, plan.Height)
		}
	}
	p := &planned{plan: plan}
	p.Init(env.Device, env.Limit, p.release)
	return p, nil
}

// planned follows a plan.
type planned struct {
	heap.Heap
	plan    Plan
	next    int // request
	segment int32
	live    []int32 // blocks in use, by address
}

var (
	errPlanEnd  = fmt.Errorf("the plan has no more requests: %w", policies.ErrOutOfMemory)
	errPlanNone = fmt.Errorf("the plan has no place for the request: %w", policies.ErrOutOfMemory)
	errPlanSize = fmt.Errorf("the request is larger than planned: %w", policies.ErrOutOfMemory)
	errPlanUsed = fmt.Errorf("the planned place is still in use: %w", policies.ErrOutOfMemory)
	errPlanRoom = fmt.Errorf("the planned place lies beyond the memory that could be had: %w", policies.ErrOutOfMemory)
)

// Malloc implements policies.Policy.
func (p *planned) Malloc(r policies.Request) (policies.Block, error) {
	i := p.next
	if r.Size > 0 {
		p.next++
	}
	if err := p.Check(r); err != nil {
		return policies.Block{}, err
	}
	fail := func(err error) (policies.Block, error) {
		if heap.IsOOM(err) {
			size := r.Size
			if i < len(p.plan.Sizes) {
				size = max(size, p.plan.Sizes[i])
			}
			err = p.OutOfMemory(r, size, p.Refuse(p.shortage(err)))
		}
		return policies.Block{}, err
	}
	switch {
	case i >= len(p.plan.Offsets):
		return fail(errPlanEnd)
	case p.plan.Offsets[i] < 0:
		return fail(errPlanNone)
	case r.Size > p.plan.Sizes[i]:
		return fail(errPlanSize)
	}
	if p.segment == 0 {
		if err := p.take(); err != nil {
			return fail(err)
		}
	}
	seg, offset, size := &p.Segs[p.segment], p.plan.Offsets[i], p.plan.Sizes[i]
	if offset > seg.Size-size {
		return fail(errPlanRoom)
	}
	addr := seg.Addr + uint64(offset)
	// The block in use before addr, if any, is followed by the free one that
	// must hold the place.
	at := p.find(addr)
	b := seg.First
	if at > 0 {
		b = p.Blocks[p.live[at-1]].Next
	}
	blk := &p.Blocks[b]
	if b == 0 || blk.State != heap.Free || blk.Addr > addr || addr+uint64(size) > blk.Addr+uint64(blk.Size) {
		return fail(errPlanUsed)
	}
	p.UncountFree(b)
	if blk.Addr < addr {
		p.CountFree(p.Carve(b, int64(addr-blk.Addr)))
	}
	if p.Blocks[b].Size > size {
		p.CountFree(p.Split(b, size))
	}
	p.live = slices.Insert(p.live, at, b)
	return p.Take(b, r), nil
}

// shortage explains a failure. A plan moves nothing, so no free piece helps.
func (p *planned) shortage(err error) policies.Shortage {
	s := policies.Shortage{Wanted: p.plan.Height, Final: true, Err: err}
	if p.Limit > 0 && p.Limit < p.plan.Height && (p.segment == 0 || p.Segs[p.segment].Size == p.Limit) {
		s.Limit = p.Limit
	}
	switch err {
	case errPlanEnd, errPlanNone, errPlanSize:
		s.Reason = "The plan has no place for the request."
	case errPlanUsed:
		s.Reason = "The place that was planned for the request is still in use."
	default:
		s.Reason = fmt.Sprintf("The placement as a whole takes %s.", bytesize.Format(p.plan.Height))
	}
	return s
}

// find is the place of an address in live.
func (p *planned) find(addr uint64) int {
	i, _ := slices.BinarySearchFunc(p.live, addr, func(b int32, addr uint64) int {
		return cmp.Compare(p.Blocks[b].Addr, addr)
	})
	return i
}

// take gets the segment: as much of the plan's height as can be had.
func (p *planned) take() error {
	size := p.plan.Height
	if p.Limit > 0 {
		size = min(size, p.Limit)
	}
	b, err := p.Grow(size, 0)
	if heap.IsOOM(err) {
		free, _ := p.Device.MemInfo()
		size = min(size, free)
		if size <= 0 {
			return err
		}
		if heap.Round(size, page) > free {
			// Less is free than the pages of a cudaMalloc would take: the
			// capacity is no real device's but the target of the placement.
			b, err = p.mapped(size)
		} else if less := size &^ (page - 1); less > 0 {
			b, err = p.Grow(less, 0)
		}
	}
	if err != nil {
		return err
	}
	p.segment = p.Blocks[b].Seg
	return nil
}

// page is the granule of cudaMalloc, in bytes.
const page = 2 << 20

// mapped takes a segment of exactly size bytes.
func (p *planned) mapped(size int64) (int32, error) {
	addr, err := p.Device.Reserve(size)
	if err != nil {
		return 0, err
	}
	if err := p.Device.Map(addr, size, size); err != nil {
		return 0, err
	}
	return p.AddSegment(addr, size, 0, true), nil
}

// release takes back a block whose free has completed.
func (p *planned) release(b int32) error {
	i := p.find(p.Blocks[b].Addr)
	p.live = slices.Delete(p.live, i, i+1)
	if n := p.Blocks[b].Next; n != 0 && p.Blocks[n].State == heap.Free {
		p.UncountFree(n)
		p.Join(b)
	}
	if v := p.Blocks[b].Prev; v != 0 && p.Blocks[v].State == heap.Free {
		p.UncountFree(v)
		p.Join(v)
		b = v
	}
	p.CountFree(b)
	return nil
}

// EmptyCache implements policies.Policy: the segment goes back when nothing is
// in it.
func (p *planned) EmptyCache() error {
	if p.segment == 0 || len(p.live) > 0 {
		return nil
	}
	if seg := p.Segs[p.segment]; seg.Mapped {
		if err := p.Device.Unmap(seg.Addr, seg.Size, seg.Size); err != nil {
			return err
		}
		if err := p.Device.Release(seg.Addr, seg.Size); err != nil {
			return err
		}
		p.RemoveSegment(p.segment)
	} else if err := p.Shrink(p.segment); err != nil {
		return err
	}
	p.segment = 0
	return nil
}
