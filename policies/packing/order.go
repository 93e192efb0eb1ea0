package packing

import (
	"cmp"
	"context"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// key is a quantity to order buffers by, largest first unless it says
// otherwise.
type key uint8

const (
	bySize       key = iota // bytes
	byWidth                 // lifetime
	byArea                  // bytes × lifetime
	byLower                 // start, earliest first
	byTotal                 // most bytes live at once during the lifetime
	byOverlaps              // number of buffers that live at the same time at some point
	bySizeClass             // power of two of the bytes
	byWidthClass            // power of two of the lifetime
)

// heuristic is one greedy rule.
type heuristic struct {
	name string
	keys []key // the first that differs decides, then the index
	rule fit
	// skyline uses the lowest-first rule of skyline.go instead of fit.
	skyline bool
}

// heuristics is the portfolio, best prospects first; the first runs under any
// budget. Where the orders come from: size and its best fit are TFLite's
// arena planner; size and lifetime with their tie-breaks are XLA's spatial and
// temporal GlobalDecreasingSizeBestFit; conflicts is TVM's
// greedy_by_conflicts; lowest-first and the contention order are MiniMalloc's;
// the classes keep buffers of one kind together and in time order.
var heuristics = []heuristic{
	{name: "size-class/first-fit", keys: []key{bySizeClass, byLower, bySize}},
	{name: "lifetime-class/first-fit", keys: []key{byWidthClass, byLower, bySize}},
	{name: "size/first-fit", keys: []key{bySize, byWidth, byLower}},
	{name: "lifetime/first-fit", keys: []key{byWidth, bySize, byLower}},
	{name: "area/first-fit", keys: []key{byArea, byLower}},
	{name: "contention/first-fit", keys: []key{byTotal, byArea, byWidth}},
	{name: "conflicts/first-fit", keys: []key{byOverlaps, bySize, byLower}},
	{name: "start/first-fit", keys: []key{byLower, bySize}},
	{name: "contention/lowest-first", keys: []key{byTotal, byArea, byWidth}, skyline: true},
	{name: "lifetime/lowest-first", keys: []key{byWidth, byArea, byTotal}, skyline: true},
	{name: "size/lowest-first", keys: []key{bySize, byWidth}, skyline: true},
	{name: "size/best-fit", keys: []key{bySize, byWidth, byLower}, rule: bestFit},
	{name: "lifetime/best-fit", keys: []key{byWidth, bySize, byLower}, rule: bestFit},
	{name: "lifetime-class/best-fit", keys: []key{byWidthClass, byLower, bySize}, rule: bestFit},
	{name: "size-class/best-fit", keys: []key{bySizeClass, byLower, bySize}, rule: bestFit},
	{name: "area/best-fit", keys: []key{byArea, byLower}, rule: bestFit},
	{name: "contention/best-fit", keys: []key{byTotal, byArea, byWidth}, rule: bestFit},
	{name: "start/best-fit", keys: []key{byLower, bySize}, rule: bestFit},
}

// order sorts the buffers by keys.
func (p *problem) order(keys ...key) []int32 {
	values := make([][]float64, len(keys))
	for i, k := range keys {
		values[i] = p.values(k)
	}
	order := make([]int32, p.n)
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		for _, v := range values {
			if v[a] != v[b] {
				return cmp.Compare(v[b], v[a])
			}
		}
		return cmp.Compare(a, b)
	})
	return order
}

// values gives each buffer's value of the key, larger first.
func (p *problem) values(k key) []float64 {
	v := make([]float64, p.n)
	var starts, ends []int32 // by section: pieces that start before, end at or before
	var most *maxima
	switch k {
	case byOverlaps:
		starts, ends = make([]int32, len(p.live)+1), make([]int32, len(p.live)+1)
		for i := range p.n {
			if p.lo[i] < p.hi[i] {
				starts[p.lo[i]+1]++
				ends[p.hi[i]]++
			}
		}
		for s := range p.live {
			starts[s+1] += starts[s]
			ends[s+1] += ends[s]
		}
	case byTotal:
		most = newMaxima(p.live)
	}
	for i := range v {
		switch k {
		case bySize:
			v[i] = float64(p.size[i])
		case byWidth:
			v[i] = float64(p.width[i])
		case byArea:
			v[i] = float64(p.size[i]) * float64(p.width[i])
		case byLower:
			v[i] = -float64(p.lo[i])
		case byTotal:
			v[i] = float64(most.over(p.lo[i], p.hi[i]))
		case byOverlaps:
			v[i] = float64(starts[p.hi[i]] - ends[p.lo[i]])
		case bySizeClass:
			v[i] = float64(bits.Len64(uint64(p.size[i])))
		case byWidthClass:
			v[i] = float64(bits.Len64(uint64(p.width[i])))
		}
	}
	return v
}

// maxima answers the maximum over a range in O(log n).
type maxima struct {
	n int32
	v []int64
}

func newMaxima(x []int64) *maxima {
	n := len(x)
	m := &maxima{int32(n), make([]int64, 2*n)}
	copy(m.v[n:], x)
	for i := n - 1; i > 0; i-- {
		m.v[i] = max(m.v[2*i], m.v[2*i+1])
	}
	return m
}

func (m *maxima) over(l, r int32) int64 {
	var most int64
	for l, r = l+m.n, r+m.n; l < r; l, r = l/2, r/2 {
		if l&1 == 1 {
			most = max(most, m.v[l])
			l++
		}
		if r&1 == 1 {
			r--
			most = max(most, m.v[r])
		}
	}
	return most
}

// wave is how many attempts are made before their outcomes are compared. It is
// fixed so that the outcome does not depend on the number of workers.
const wave = 4

// attempt is one try at a whole placement.
type attempt struct {
	offsets []int64
	height  int64
	ok      bool
	steps   int64
	fitter  *fitter // the worker's
}

// tries keeps the memory of the attempts of a wave and of its workers.
type tries struct {
	attempts [wave]attempt
	fitters  [wave]*fitter
}

// together runs f for the first n attempts, on up to opt.Workers goroutines.
// Each gives up after most steps.
func (r *run) together(ctx context.Context, t *tries, n int, most int64, f func(i int, a *attempt)) error {
	err := parallel(ctx, n, r.opt.Workers, func(worker, i int) bool {
		a := &t.attempts[i]
		if t.fitters[worker] == nil {
			t.fitters[worker] = newFitter(r.p)
		}
		a.fitter = t.fitters[worker]
		if a.offsets == nil {
			a.offsets = make([]int64, r.p.n)
		}
		a.fitter.ctx, a.fitter.steps, a.fitter.most = ctx, 0, most
		f(i, a)
		a.steps = a.fitter.steps
		return true
	})
	for i := range n {
		r.best.Steps += t.attempts[i].steps
	}
	return err
}

// parallel calls f for 0 to n-1 with the number of a worker. Once f has
// returned false for some i, what comes after i may be left out. The error is
// ctx's.
func parallel(ctx context.Context, n, workers int, f func(worker, i int) bool) error {
	var g sync.WaitGroup
	var next, stop atomic.Int64
	stop.Store(int64(n))
	for w := range min(max(workers, 1), n) {
		g.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= stop.Load() || ctx.Err() != nil {
					return
				}
				if !f(w, int(i)) {
					for old := stop.Load(); i < old && !stop.CompareAndSwap(old, i); old = stop.Load() {
					}
				}
			}
		})
	}
	g.Wait()
	return ctx.Err()
}

// portfolio runs the greedy heuristics, on half of the budget.
func (r *run) portfolio(ctx context.Context) error {
	p := r.p
	var t tries
	for at := 0; at < len(heuristics) && (at == 0 || !r.done()); {
		n, most := min(wave, len(heuristics)-at), (r.budget/2-r.best.Steps)/2
		if at == 0 {
			n, most = 1, math.MaxInt64
		} else if most <= 0 {
			break
		}
		limit := r.best.Height - 1
		err := r.together(ctx, &t, n, most, func(i int, a *attempt) {
			h := heuristics[at+i]
			order := p.order(h.keys...)
			if h.skyline {
				a.height, a.ok = p.lowestFirst(order, limit, a.offsets, a.fitter)
			} else {
				a.height, a.ok = a.fitter.place(order, h.rule, limit, a.offsets)
			}
		})
		if err != nil {
			return err
		}
		for i := range n {
			if a := &t.attempts[i]; a.ok && a.height < r.best.Height {
				h := heuristics[at+i]
				r.offer(h.name, slices.Clone(a.offsets), a.height)
				r.order = nil
				if !h.skyline && h.rule == firstFit {
					r.order = p.order(h.keys...)
				}
			}
		}
		at += n
	}
	return nil
}
