package packing

import (
	"context"
	"slices"
)

// interval is the bytes [lo, hi).
type interval struct{ lo, hi int64 }

// intervals is a union of bytes: ascending, disjoint, not touching.
type intervals []interval

// add puts [lo, hi) into the union.
func (s intervals) add(lo, hi int64) intervals {
	// Most additions extend the end: the packing grows upwards.
	n := len(s)
	if n == 0 || s[n-1].hi < lo {
		return append(s, interval{lo, hi})
	}
	i := s.after(0, lo-1) // first that touches or lies above
	j := i
	for j < n && s[j].lo <= hi {
		j++
	}
	if i == j {
		return slices.Insert(s, i, interval{lo, hi})
	}
	s[i] = interval{min(lo, s[i].lo), max(hi, s[j-1].hi)}
	if j > i+1 {
		s = slices.Delete(s, i+1, j)
	}
	return s
}

// after returns the first index ≥ k whose interval ends above x.
func (s intervals) after(k int, x int64) int {
	step := 1
	for k < len(s) && s[k].hi <= x {
		// Gallop, then close in.
		if k+step < len(s) && s[k+step].hi <= x {
			k += step
			step *= 2
			continue
		}
		if step == 1 {
			return k + 1
		}
		k++
		step = 1
	}
	return k
}

// fitter knows the bytes taken at every moment and finds free ones. It is a
// segment tree over the sections whose nodes hold unions of bytes: cover is
// what is taken throughout the node's sections by a piece that does not cover
// the parent's, touch is what is taken somewhere below. A search looks at the
// touch and cover of the O(log n) nodes that make up its sections and the cover
// of their ancestors. Because packed bytes merge into long intervals, these
// unions stay short even with 10⁵ buffers.
type fitter struct {
	p      *problem
	leaves int32
	cover  []intervals // by node; the root is 1
	touch  []intervals
	probes []probe
	steps  int64 // done
	most   int64 // steps after which to give up
	ctx    context.Context
}

// over reports that the i-th buffer must not be placed any more.
func (f *fitter) over(i int) bool {
	return f.steps > f.most || i%4096 == 4095 && f.ctx.Err() != nil
}

// probe is a union that the bytes [offset+w0, offset+w1) must avoid; k is the
// first interval that may still matter.
type probe struct {
	set    intervals
	w0, w1 int64
	k      int
}

func newFitter(p *problem) *fitter {
	leaves := int32(1)
	for int(leaves) < len(p.live) {
		leaves *= 2
	}
	return &fitter{p: p, leaves: leaves, cover: make([]intervals, 2*leaves), touch: make([]intervals, 2*leaves)}
}

// reset empties the fitter and keeps its memory.
func (f *fitter) reset() {
	for i := range f.cover {
		f.cover[i] = f.cover[i][:0]
		f.touch[i] = f.touch[i][:0]
	}
}

// take marks buffer b as placed at offset.
func (f *fitter) take(b int32, offset int64) {
	f.steps += 16
	for _, s := range f.p.spans[f.p.first[b]:f.p.first[b+1]] {
		lo, hi := offset+s.w0, offset+s.w1
		l, r := s.lo+f.leaves, s.hi+f.leaves
		for x, y := l, r; x < y; x, y = x/2, y/2 {
			if x&1 == 1 {
				f.cover[x] = f.cover[x].add(lo, hi)
				x++
			}
			if y&1 == 1 {
				y--
				f.cover[y] = f.cover[y].add(lo, hi)
			}
		}
		f.ancestors(l, r, func(v int32) { f.touch[v] = f.touch[v].add(lo, hi) })
	}
}

// ancestors visits the nodes of which the leaves [l, r) are only a part.
func (f *fitter) ancestors(l, r int32, visit func(int32)) {
	for i := 1; f.leaves>>(i-1) > 1; i++ {
		left, right := l>>i, (r-1)>>i
		a := left<<i != l || left == right && r != (left+1)<<i
		if a {
			visit(left)
		}
		if right != left && (right+1)<<i != r {
			visit(right)
		}
	}
}

// collect gathers the probes of buffer b.
func (f *fitter) collect(b int32) {
	f.probes = f.probes[:0]
	for _, s := range f.p.spans[f.p.first[b]:f.p.first[b+1]] {
		add := func(set intervals) {
			if len(set) > 0 {
				f.probes = append(f.probes, probe{set: set, w0: s.w0, w1: s.w1})
			}
		}
		l, r := s.lo+f.leaves, s.hi+f.leaves
		f.ancestors(l, r, func(v int32) { add(f.cover[v]) })
		for x, y := l, r; x < y; x, y = x/2, y/2 {
			if x&1 == 1 {
				add(f.cover[x])
				add(f.touch[x])
				x++
			}
			if y&1 == 1 {
				y--
				add(f.cover[y])
				add(f.touch[y])
			}
		}
	}
}

// next is the lowest free offset ≥ offset for the collected buffer.
func (f *fitter) next(offset, align int64) int64 {
	offset = alignUp(offset, align)
	n := len(f.probes)
	f.steps += int64(n)
	for i, clear := 0, 0; clear < n; i++ {
		if i == n {
			i = 0
			f.steps += int64(n)
		}
		q := &f.probes[i]
		q.k = q.set.after(q.k, offset+q.w0)
		if q.k < len(q.set) && q.set[q.k].lo < offset+q.w1 {
			offset = alignUp(q.set[q.k].hi-q.w0, align)
			clear = 0
		} else {
			clear++
		}
	}
	return offset
}

// room is how far above offset, which next returned, the buffer could be
// raised without meeting anything, and whether anything is there at all.
func (f *fitter) room(offset int64) (int64, bool) {
	slack, bounded := int64(0), false
	for i := range f.probes {
		q := &f.probes[i]
		if q.k < len(q.set) {
			if s := q.set[q.k].lo - (offset + q.w1); !bounded || s < slack {
				slack, bounded = s, true
			}
		}
	}
	f.steps += int64(len(f.probes))
	return slack, bounded
}

// fit is a rule for choosing among the free places.
type fit uint8

const (
	firstFit fit = iota // the lowest
	bestFit             // the one that leaves the least above it; the top only if no other
)

// place puts the buffers in the given order and returns the height. It gives
// up, with ok false, when a buffer would end above limit or the work exceeds
// f.most.
func (f *fitter) place(order []int32, rule fit, limit int64, offsets []int64) (height int64, ok bool) {
	f.reset()
	p := f.p
	for i, b := range order {
		f.collect(b)
		o := f.next(0, p.align[b])
		if rule == bestFit {
			best, least := int64(-1), int64(0)
			for {
				slack, bounded := f.room(o)
				if !bounded {
					if best < 0 {
						best = o
					}
					break
				}
				if best < 0 || slack < least {
					best, least = o, slack
					if slack == 0 {
						break
					}
				}
				o = f.next(o+slack+1, p.align[b])
			}
			o = best
		}
		if o+p.size[b] > limit || f.over(i) {
			return 0, false
		}
		offsets[b] = o
		height = max(height, o+p.size[b])
		f.take(b, o)
	}
	return height, true
}
