package packing

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// The exact search decides whether the buffers of one component fit in a
// capacity. It follows the published ideas of MiniMalloc (M. D. Moffitt,
// ASPLOS 2023; github.com/google/minimalloc at 9f5cf810) with some of its own.
//
// Among all placements within the capacity consider one with the least sum of
// offsets, and put its buffers in sequence by (offset, rank), where rank is any
// order; independent parts are ranked anew when they split off. In such a
// placement every buffer sits as low as those before it in the sequence allow:
// on the highest of them that it overlaps in time, or at 0. So it is enough to try sequences: a node of the search has some buffers
// placed, knows for each other buffer the lowest offset left to it (low), and
// tries each of them next, at low. If the whole search fails, no placement
// exists. Branches that cannot lead to a least-sum placement are cut:
//
//   - sequence: a buffer whose (low, rank) is before the last one placed is
//     "passed": it must be raised by something that is still to come;
//   - dominance: nothing may be placed at or above low+size of another waiting
//     buffer that it could have been slid under, and a passed buffer for which
//     no waiting buffer can come low enough to raise it is hopeless;
//   - hatless: if nothing waiting overlaps the buffer tried, the buffers that
//     would come after it need not be tried when it fails;
//   - twins: of waiting buffers with the same sections and size only the first
//     is tried;
//   - section bound: the waiting buffers of a section must be stacked, each not
//     below its low, so their stack ends no lower than when they are taken in
//     order of low (a one-machine schedule with release times);
//   - decomposition: once no waiting buffer crosses between two sections, both
//     sides are independent; one failure fails the node;
//   - memory: what remains to be done depends only on the waiting buffers,
//     their lows and which of them are passed. Such states of components that
//     failed are remembered by a 128-bit hash.
type search struct {
	n        int
	capacity int64
	size     []int64
	align    []int64
	lo, hi   []int32
	sections [][]int32 // buffers by section
	overlaps [][]int32 // buffers that share a section, by buffer
	twin     []int32   // the previous buffer of the same kind, or -1

	taste taste
	score []float64
	rank  []int32

	offset []int64 // placed offset or -1
	low    []int64
	floor  []int64 // by section: no waiting buffer can be lower
	total  []int64 // by section: bytes waiting
	cuts   []int32 // by section: waiting buffers that cross into the next

	placed  []int32  // in sequence
	trail   []change // undo of low
	floors  []change // undo of floor
	stamp   []int32  // by section
	stamps  int32
	scratch []release
	arena   []int32 // of the lists of the nodes on the way

	failed map[hash]struct{}
	ctx    context.Context
	steps  int64
	most   int64
	nodes  int64
}

type change struct {
	index int32
	old   int64
}

// release is the waiting bytes of a section that cannot start below low.
type release struct{ low, size int64 }

type hash struct{ a, b uint64 }

// outcome is how a search ended.
type outcome uint8

const (
	outOfSteps outcome = iota
	found
	impossible
)

// maxFailed bounds the memory of failed states to about 100 MB.
const maxFailed = 1 << 21

// newSearch prepares the search for buffers that live in sections [0, m) and
// have one span each.
func newSearch(p *problem) *search {
	n, m := p.n, len(p.live)
	s := &search{
		n: n, size: p.size, align: p.align, lo: p.lo, hi: p.hi,
		sections: make([][]int32, m), overlaps: make([][]int32, n), twin: make([]int32, n),
	}
	for b := range int32(n) {
		for k := s.lo[b]; k < s.hi[b]; k++ {
			s.sections[k] = append(s.sections[k], b)
		}
	}
	for b := range int32(n) {
		for c := range int32(n) {
			if b != c && s.lo[b] < s.hi[c] && s.lo[c] < s.hi[b] {
				s.overlaps[b] = append(s.overlaps[b], c)
			}
		}
	}
	type kind struct {
		lo, hi      int32
		size, align int64
	}
	last := make(map[kind]int32)
	for b := range int32(n) {
		k := kind{s.lo[b], s.hi[b], s.size[b], s.align[b]}
		s.twin[b] = -1
		if t, ok := last[k]; ok {
			s.twin[b] = t
		}
		last[k] = b
	}
	s.state()
	return s
}

// state makes the parts of a search that change.
func (s *search) state() {
	n, m := s.n, len(s.sections)
	s.score, s.rank = make([]float64, n), make([]int32, n)
	s.offset, s.low = make([]int64, n), make([]int64, n)
	s.floor, s.total, s.cuts, s.stamp = make([]int64, m), make([]int64, m), make([]int32, m), make([]int32, m)
}

// clone is a search for the same buffers that can run at the same time.
func (s *search) clone() *search {
	c := &search{
		n: s.n, size: s.size, align: s.align, lo: s.lo, hi: s.hi,
		sections: s.sections, overlaps: s.overlaps, twin: s.twin,
	}
	c.state()
	return c
}

// taste is an order of preference among buffers that can go equally low: by
// falling sum of the weighted logarithms of what the names say, plus base.
type taste struct {
	// total weighs the most bytes waiting in any of the buffer's sections.
	total float64
	// base is by buffer.
	base []float64
}

// run searches with the given taste, for at most most steps.
func (s *search) run(ctx context.Context, capacity int64, t taste, most int64) outcome {
	s.ctx, s.capacity, s.taste, s.most, s.steps, s.nodes = ctx, capacity, t, most, 0, 0
	s.failed = make(map[hash]struct{})
	all := make([]int32, s.n)
	for b := range all {
		all[b] = int32(b)
		s.rank[b], s.offset[b], s.low[b] = 0, -1, 0
	}
	s.placed, s.trail, s.floors = s.placed[:0], s.trail[:0], s.floors[:0]
	clear(s.floor)
	clear(s.total)
	clear(s.cuts)
	for b := range s.n {
		for k := s.lo[b]; k < s.hi[b]; k++ {
			s.total[k] += s.size[b]
			if k+1 < s.hi[b] {
				s.cuts[k]++
			}
		}
	}
	for _, t := range s.total {
		if t > capacity {
			return impossible
		}
	}
	return s.split(all, 0, int32(len(s.floor)), 0, -1)
}

// split solves the waiting buffers of sections [a, z), each independent stretch
// on its own. The last buffer placed had (last, rank).
func (s *search) split(waiting []int32, a, z int32, last int64, rank int32) outcome {
	mark := len(s.arena)
	defer func() { s.arena = s.arena[:mark] }()
	for from := a; from < z; {
		to := from
		for to < z-1 && s.cuts[to] > 0 {
			to++
		}
		to++
		part := len(s.arena)
		for _, b := range waiting {
			if s.offset[b] < 0 && s.lo[b] >= from && s.hi[b] <= to {
				s.arena = append(s.arena, b)
			}
		}
		if w := s.arena[part:len(s.arena):len(s.arena)]; len(w) > 0 {
			r := found
			if to-from < z-a || last == 0 && rank < 0 {
				r = s.part(w, from, to, last)
			} else {
				r = s.node(w, from, to, last, rank)
			}
			if r != found {
				return r
			}
		}
		from = to
	}
	return found
}

// part solves an independent part with ranks that suit it.
func (s *search) part(waiting []int32, a, z int32, last int64) outcome {
	for _, b := range waiting {
		s.arena = append(s.arena, s.rank[b])
		var most int64
		for _, t := range s.total[s.lo[b]:s.hi[b]] {
			most = max(most, t)
		}
		s.score[b] = s.taste.total*math.Log(float64(most)) + s.taste.base[b]
		s.steps += int64(s.hi[b]-s.lo[b]) / 8
	}
	old := s.arena[len(s.arena)-len(waiting) : len(s.arena) : len(s.arena)]
	s.arena = append(s.arena, waiting...)
	order := s.arena[len(s.arena)-len(waiting) : len(s.arena) : len(s.arena)]
	slices.SortFunc(order, func(x, y int32) int {
		return cmp.Or(cmp.Compare(s.score[y], s.score[x]), cmp.Compare(x, y))
	})
	for r, b := range order {
		s.rank[b] = int32(r)
	}
	r := s.node(waiting, a, z, last, -1)
	for i, b := range waiting {
		s.rank[b] = old[i]
	}
	return r
}

// passed reports that b may no longer be placed at its low.
func (s *search) passed(b int32, last int64, rank int32) bool {
	return s.low[b] < last || s.low[b] == last && s.rank[b] < rank
}

// node places one of the waiting buffers of a component and goes on.
func (s *search) node(waiting []int32, a, z int32, last int64, rank int32) outcome {
	s.nodes++
	s.steps += int64(len(waiting))
	if s.steps > s.most || s.nodes%1024 == 0 && s.ctx.Err() != nil {
		return outOfSteps
	}
	var h hash
	lid := int64(math.MaxInt64) // nothing may be placed at or above
	for _, b := range waiting {
		lid = min(lid, s.low[b]+s.size[b])
	}
	mark := len(s.arena)
	defer func() { s.arena = s.arena[:mark] }()
	for _, b := range waiting {
		passed := s.passed(b, last, rank)
		if passed {
			if !s.raisable(b, last) {
				return impossible
			}
		} else if s.low[b] < lid && (s.twin[b] < 0 || s.offset[s.twin[b]] >= 0) {
			s.arena = append(s.arena, b)
		}
		h.add(b, s.low[b], passed)
	}
	tries := s.arena[mark:len(s.arena):len(s.arena)]
	if _, ok := s.failed[h]; ok {
		return impossible
	}
	slices.SortFunc(tries, func(x, y int32) int {
		if s.low[x] != s.low[y] {
			if s.low[x] < s.low[y] {
				return -1
			}
			return 1
		}
		return int(s.rank[x] - s.rank[y])
	})
	for _, b := range tries {
		m := marks{len(s.placed), len(s.trail), len(s.floors)}
		hat, ok := s.put(b, a, z)
		r := impossible
		if ok {
			r = s.split(waiting, a, z, s.offset[b], s.rank[b])
		}
		if r == found {
			return found
		}
		s.undo(m)
		if r == outOfSteps {
			return r
		}
		if !hat {
			break
		}
	}
	if len(s.failed) < maxFailed {
		s.failed[h] = struct{}{}
	}
	return impossible
}

// raisable reports that some waiting buffer may still come under the passed
// buffer b so that b cannot be slid down to its low.
func (s *search) raisable(b int32, last int64) bool {
	top := s.low[b] + s.size[b]
	for i, q := range s.overlaps[b] {
		if s.offset[q] < 0 && max(s.low[q], last) < top {
			s.steps += int64(i) / 4
			return true
		}
	}
	s.steps += int64(len(s.overlaps[b])) / 4
	return false
}

// put places b at its low and draws the consequences. hat reports that a
// waiting buffer overlaps it; ok is false when the capacity can no longer do.
// The caller undoes it in either case.
func (s *search) put(b, a, z int32) (hat, ok bool) {
	o := s.low[b]
	top := o + s.size[b]
	s.offset[b] = o
	s.placed = append(s.placed, b)
	s.stamps++
	for k := s.lo[b]; k < s.hi[b]; k++ {
		s.total[k] -= s.size[b]
		s.stamp[k] = s.stamps
		if k+1 < s.hi[b] {
			s.cuts[k]--
		}
	}
	from, to := s.lo[b], s.hi[b]
	for _, q := range s.overlaps[b] {
		if s.offset[q] >= 0 {
			continue
		}
		hat = true
		if s.low[q] >= top {
			continue
		}
		s.trail = append(s.trail, change{q, s.low[q]})
		s.low[q] = alignUp(top, s.align[q])
		for k := s.lo[q]; k < s.hi[q]; k++ {
			s.stamp[k] = s.stamps
		}
		from, to = min(from, s.lo[q]), max(to, s.hi[q])
	}
	s.steps += int64(len(s.overlaps[b])) / 2
	for k := a; k < z; k++ {
		if s.total[k] > 0 && (max(s.floor[k], o)+s.total[k] > s.capacity || s.stamp[k] == s.stamps && !s.fits(k, o)) {
			return hat, false
		}
	}
	for k := from; k < to; k++ {
		if s.stamp[k] == s.stamps && s.total[k] > 0 && !s.stacks(k, o) {
			return hat, false
		}
	}
	return hat, true
}

// fits reports whether the waiting buffers of section k can still be stacked
// within the capacity when none may be below last: a quick answer that is too
// hopeful where their lows differ.
func (s *search) fits(k int32, last int64) bool {
	lowest := int64(math.MaxInt64)
	for _, q := range s.sections[k] {
		if s.offset[q] < 0 {
			lowest = min(lowest, s.low[q])
		}
	}
	lowest = max(lowest, last)
	s.steps += int64(len(s.sections[k])) / 8
	if lowest > s.floor[k] {
		s.floors = append(s.floors, change{k, s.floor[k]})
		s.floor[k] = lowest
	}
	return lowest+s.total[k] <= s.capacity
}

// stacks is fits with the exact height of the stack.
func (s *search) stacks(k int32, last int64) bool {
	w := s.scratch[:0] // by low; one for each
	for _, q := range s.sections[k] {
		if s.offset[q] >= 0 {
			continue
		}
		l := max(s.low[q], last)
		i := len(w)
		for i > 0 && w[i-1].low > l {
			i--
		}
		if i > 0 && w[i-1].low == l {
			w[i-1].size += s.size[q]
		} else {
			w = slices.Insert(w, i, release{l, s.size[q]})
		}
	}
	s.scratch = w
	s.steps += int64(len(s.sections[k])) / 2
	var end int64
	for _, x := range w {
		end = max(end, x.low) + x.size
	}
	return end <= s.capacity
}

// marks is a state to return to.
type marks struct{ placed, trail, floors int }

// undo takes back every put since the marks were made, those of independent
// parts that have been solved included.
func (s *search) undo(m marks) {
	for ; len(s.trail) > m.trail; s.trail = s.trail[:len(s.trail)-1] {
		c := s.trail[len(s.trail)-1]
		s.low[c.index] = c.old
	}
	for ; len(s.floors) > m.floors; s.floors = s.floors[:len(s.floors)-1] {
		c := s.floors[len(s.floors)-1]
		s.floor[c.index] = c.old
	}
	for ; len(s.placed) > m.placed; s.placed = s.placed[:len(s.placed)-1] {
		b := s.placed[len(s.placed)-1]
		s.offset[b] = -1
		for k := s.lo[b]; k < s.hi[b]; k++ {
			s.total[k] += s.size[b]
			if k+1 < s.hi[b] {
				s.cuts[k]++
			}
		}
	}
}

// add puts a waiting buffer into the state's hash, in any order.
func (h *hash) add(b int32, low int64, passed bool) {
	word := uint64(b) << 1
	if passed {
		word |= 1
	}
	x := mix(word, uint64(low))
	h.a += x
	h.b += mix(x, 0x9e3779b97f4a7c15)
}

// mix is a hash of two words (the finaliser of splitmix64 over both).
func mix(x, y uint64) uint64 {
	z := x*0xbf58476d1ce4e5b9 + y
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z ^= y * 0x94d049bb133111eb
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
