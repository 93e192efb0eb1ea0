package packing

import (
	"cmp"
	"slices"
)

// problem is the form in which buffers are packed. Time is cut into sections:
// a section is the set of pieces live at one moment, and a new one starts at
// the first allocation after a free. Two pieces overlap in time exactly when
// they share a section, because whatever is live when the later of them starts
// is still live when the run of allocations it belongs to ends.
type problem struct {
	n         int
	size      []int64
	align     []int64
	width     []int64 // lifetime in the caller's unit
	spans     []span  // grouped by buffer
	first     []int32 // buffer i has spans[first[i]:first[i+1]]
	lo, hi    []int32 // sections [lo, hi) of the whole buffer
	live      []int64 // bytes live, by section
	bound     int64   // the most of live
	hasGaps   bool
	hasAligns bool
}

// span is a piece of a buffer with one window over sections [lo, hi).
type span struct {
	lo, hi int32
	w0, w1 int64
}

func newProblem(buffers []Buffer) *problem {
	n := len(buffers)
	p := &problem{
		n: n, size: make([]int64, n), align: make([]int64, n), width: make([]int64, n),
		spans: make([]span, 0, n), first: make([]int32, n+1), lo: make([]int32, n), hi: make([]int32, n),
	}
	lower := make([]int64, 0, n)
	upper := make([]int64, 0, n)
	for i := range buffers {
		b := &buffers[i]
		p.size[i], p.align[i], p.width[i] = b.Size, max(b.Alignment, 1), b.Upper-b.Lower
		p.hasGaps = p.hasGaps || len(b.Gaps) > 0
		p.hasAligns = p.hasAligns || b.Alignment > 1
		b.spans(func(l, u, w0, w1 int64) {
			p.spans = append(p.spans, span{w0: w0, w1: w1})
			lower = append(lower, l)
			upper = append(upper, u)
		})
		p.first[i+1] = int32(len(p.spans))
		p.bound = max(p.bound, b.Size)
	}
	byTime := func(time []int64) []int32 {
		order := make([]int32, len(time))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortFunc(order, func(a, b int32) int { return cmp.Or(cmp.Compare(time[a], time[b]), cmp.Compare(a, b)) })
		return order
	}
	starts, ends := byTime(lower), byTime(upper)
	var live int64
	fresh := true // the next start opens a section
	next := 0
	free := func(s int32) {
		p.spans[s].hi = int32(len(p.live))
		live -= p.spans[s].w1 - p.spans[s].w0
		fresh = true
	}
	for _, s := range starts {
		for ; upper[ends[next]] <= lower[s]; next++ {
			free(ends[next])
		}
		if fresh {
			p.live = append(p.live, live)
			fresh = false
		}
		k := len(p.live) - 1
		p.spans[s].lo = int32(k)
		live += p.spans[s].w1 - p.spans[s].w0
		p.live[k] = live
		p.bound = max(p.bound, live)
	}
	for ; next < len(ends); next++ {
		free(ends[next])
	}
	for i := range n {
		sp := p.spans[p.first[i]:p.first[i+1]]
		if len(sp) > 0 {
			p.lo[i], p.hi[i] = sp[0].lo, sp[len(sp)-1].hi
		}
	}
	return p
}

func alignUp(x, a int64) int64 {
	if a <= 1 {
		return x
	}
	if r := x % a; r > 0 {
		return x + a - r
	}
	return x
}
