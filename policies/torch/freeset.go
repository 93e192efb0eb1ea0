package torch

import (
	"math/bits"
	"slices"
)

// freeSet holds the free, mapped blocks of one stream in one pool and answers
// "smallest block ≥ size, lowest address first" (spec pytorch-allocator A2.6).
//
// Sizes are multiples of 512, and a handful of distinct sizes is common, so
// the set is a two-level bitmap over size classes (64 per power of two, exact
// up to 64 KiB) whose buckets list the distinct sizes they hold, ascending;
// the blocks of one size form a pairing heap by address, threaded through the
// blocks themselves. Look-up is a few bit operations; insertion of a size that
// is present is one comparison; nothing allocates once the buckets exist.
type freeSet struct {
	groups  uint64               // bit g: group g is not empty
	subs    [groupCount]uint64   // bit s of entry g: bucket s of group g is not empty
	buckets [groupCount][]bucket // 64 buckets, made when a group is first used
	len     int                  // number of blocks
}

// bucket lists the distinct sizes of a size class, ascending.
type bucket []sizeClass

// sizeClass is all free blocks of one size.
type sizeClass struct {
	size int64
	root uint32 // block with the lowest address
}

// groupCount covers sizes up to 2^63 in units of 512 bytes.
const groupCount = 64 - 9 - 5

// classOf returns the bucket for a size: group 0 holds sizes below 64 units
// exactly, group g ≥ 1 the sizes [2^(g+5), 2^(g+6)) units in 64 equal parts.
func classOf(size int64) (group, sub int) {
	u := uint64(size) >> 9
	if u < 64 {
		return 0, int(u)
	}
	l := bits.Len64(u) - 1
	return l - 5, int(u>>(uint(l)-6)) & 63
}

// place is where a block's size class is: removing the block needs no search.
type place struct {
	group, sub uint8
	class      int32 // index in the bucket
}

// lowerBound returns the first block in (size, address) order whose size is
// at least size, with its place; 0 if there is none.
func (s *freeSet) lowerBound(size int64) (uint32, place) {
	g, c := classOf(size)
	if s.subs[g]>>uint(c)&1 != 0 {
		for k, e := range s.buckets[g][c] {
			if e.size >= size {
				return e.root, place{uint8(g), uint8(c), int32(k)}
			}
		}
	}
	return s.firstAfter(g, c)
}

// firstAfter returns the first block of the first non-empty bucket behind
// bucket c of group g; 0 if there is none.
func (s *freeSet) firstAfter(g, c int) (uint32, place) {
	m := s.subs[g] &^ (uint64(1)<<uint(c+1) - 1)
	if m == 0 {
		gm := s.groups &^ (uint64(1)<<uint(g+1) - 1)
		if gm == 0 {
			return 0, place{}
		}
		g = bits.TrailingZeros64(gm)
		m = s.subs[g]
	}
	c = bits.TrailingZeros64(m)
	return s.buckets[g][c][0].root, place{group: uint8(g), sub: uint8(c)}
}

// reset empties the set and keeps its buckets.
func (s *freeSet) reset() {
	for g := range s.buckets {
		for c := range s.buckets[g] {
			s.buckets[g][c] = s.buckets[g][c][:0]
		}
	}
	s.groups, s.len = 0, 0
	clear(s.subs[:])
}

// insert adds block i.
func (s *freeSet) insert(blocks []block, i uint32) {
	b := &blocks[i]
	b.child, b.sibling, b.parent = 0, 0, 0
	s.len++
	g, c := classOf(b.size)
	if s.buckets[g] == nil {
		s.buckets[g] = make([]bucket, 64)
	}
	bk := &s.buckets[g][c]
	if len(*bk) == 0 {
		s.subs[g] |= 1 << uint(c)
		s.groups |= 1 << uint(g)
		*bk = append(*bk, sizeClass{b.size, i})
		return
	}
	at := len(*bk)
	for k := range *bk {
		e := &(*bk)[k]
		if e.size >= b.size {
			if e.size == b.size {
				e.root = meld(blocks, e.root, i)
				return
			}
			at = k
			break
		}
	}
	*bk = slices.Insert(*bk, at, sizeClass{b.size, i})
}

// remove takes block i, which must be in the set, out of it.
func (s *freeSet) remove(blocks []block, i uint32) {
	size := blocks[i].size
	g, c := classOf(size)
	bk := s.buckets[g][c]
	k := 0
	for bk[k].size != size {
		k++
	}
	s.removeAt(blocks, i, place{uint8(g), uint8(c), int32(k)})
}

// removeAt takes block i, whose size class is at a place, out of the set.
func (s *freeSet) removeAt(blocks []block, i uint32, at place) {
	b := &blocks[i]
	s.len--
	bk := &s.buckets[at.group][at.sub]
	e := &(*bk)[at.class]
	if e.root == i {
		switch {
		case b.child != 0:
			e.root = mergePairs(blocks, b.child)
		case len(*bk) == 1:
			*bk = (*bk)[:0]
			if s.subs[at.group] &^= 1 << at.sub; s.subs[at.group] == 0 {
				s.groups &^= 1 << at.group
			}
		default:
			*bk = slices.Delete(*bk, int(at.class), int(at.class)+1)
		}
		return
	}
	if p := &blocks[b.parent]; p.child == i {
		p.child = b.sibling
	} else {
		p.sibling = b.sibling
	}
	if b.sibling != 0 {
		blocks[b.sibling].parent = b.parent
	}
	if b.child != 0 {
		e.root = meld(blocks, e.root, mergePairs(blocks, b.child))
	}
}

// next returns the block behind i in (size, address) order; 0 at the end.
func (s *freeSet) next(blocks []block, i uint32) uint32 {
	b := &blocks[i]
	g, c := classOf(b.size)
	bk := s.buckets[g][c]
	for k, e := range bk {
		if e.size == b.size {
			if n := lowestAbove(blocks, e.root, b.addr); n != 0 {
				return n
			}
			if k+1 < len(bk) {
				return bk[k+1].root
			}
			break
		}
	}
	n, _ := s.firstAfter(g, c)
	return n
}

// lowestAbove returns the block with the lowest address above addr in the heap
// of root; 0 if there is none. Blocks above addr cut off their subtrees, so
// only the part of the heap at or below addr is visited.
func lowestAbove(blocks []block, root uint32, addr uint64) uint32 {
	if blocks[root].addr > addr {
		return root
	}
	var best uint32
	for i := blocks[root].child; i != 0; i = blocks[i].sibling {
		if n := lowestAbove(blocks, i, addr); n != 0 && (best == 0 || blocks[n].addr < blocks[best].addr) {
			best = n
		}
	}
	return best
}

// appendSorted appends the blocks of at least minSize bytes for which keep
// holds, in (size, address) order.
func (s *freeSet) appendSorted(buf []uint32, blocks []block, minSize int64, keep func(*block) bool) []uint32 {
	g0, c0 := classOf(minSize)
	for gm := s.groups &^ (uint64(1)<<uint(g0) - 1); gm != 0; gm &= gm - 1 {
		g := bits.TrailingZeros64(gm)
		m := s.subs[g]
		if g == g0 {
			m &^= uint64(1)<<uint(c0) - 1
		}
		for ; m != 0; m &= m - 1 {
			for _, e := range s.buckets[g][bits.TrailingZeros64(m)] {
				if e.size < minSize {
					continue
				}
				from := len(buf)
				buf = appendHeap(buf, blocks, e.root, keep)
				slices.SortFunc(buf[from:], func(x, y uint32) int {
					if blocks[x].addr < blocks[y].addr {
						return -1
					}
					return 1
				})
			}
		}
	}
	return buf
}

func appendHeap(buf []uint32, blocks []block, root uint32, keep func(*block) bool) []uint32 {
	// The output doubles as the work list: children of what has been visited
	// are pushed behind it. Blocks that are not kept are squeezed out last.
	from := len(buf)
	buf = append(buf, root)
	for k := from; k < len(buf); k++ {
		for i := blocks[buf[k]].child; i != 0; i = blocks[i].sibling {
			buf = append(buf, i)
		}
	}
	to := from
	for _, i := range buf[from:] {
		if keep(&blocks[i]) {
			buf[to] = i
			to++
		}
	}
	return buf[:to]
}

// meld joins two heaps and returns the new root.
func meld(blocks []block, x, y uint32) uint32 {
	if blocks[y].addr < blocks[x].addr {
		x, y = y, x
	}
	px, py := &blocks[x], &blocks[y]
	py.sibling = px.child
	if px.child != 0 {
		blocks[px.child].parent = y
	}
	py.parent = x
	px.child = y
	px.sibling = 0
	return x
}

// mergePairs joins a list of sibling heaps: pairs from the left, then the
// pairs from the right.
func mergePairs(blocks []block, first uint32) uint32 {
	var done uint32 // pairs, linked by sibling, last pair first
	for first != 0 {
		x := first
		y := blocks[x].sibling
		if y == 0 {
			blocks[x].sibling = done
			done = x
			break
		}
		first = blocks[y].sibling
		x = meld(blocks, x, y)
		blocks[x].sibling = done
		done = x
	}
	root := done
	done = blocks[root].sibling
	blocks[root].sibling = 0
	for done != 0 {
		nextPair := blocks[done].sibling
		blocks[done].sibling = 0
		root = meld(blocks, root, done)
		done = nextPair
	}
	blocks[root].parent = 0
	return root
}
