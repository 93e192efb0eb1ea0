package torch

import (
	"cmp"
	"math/bits"
	"slices"
)

// freeSet holds the free, mapped blocks of one stream in one pool and answers
// "smallest block ≥ size, lowest address first" (spec pytorch-allocator A2.6).
//
// Sizes are multiples of 512, and a handful of distinct sizes is common, so
// the set is a two-level bitmap over size classes (64 per power of two, exact
// up to 64 KiB). A class has room for one size; where it holds several, the
// larger ones are in a list beside it. The blocks of one size form a pairing
// heap by address, threaded through the blocks themselves. Look-up is a few
// bit operations; insertion of a size that is present is one comparison;
// nothing allocates once the classes exist. Block 0 ends every chain: it has no
// child and no sibling, and what is written to its other links means nothing.
type freeSet struct {
	groups uint64                     // bit g: group g is not empty
	subs   [groupCount]uint64         // bit c of entry g: class c of group g is not empty
	slots  [groupCount]*[64]sizeClass // made when a group is first used
	more   [][]sizeClass              // larger sizes of classes, descending; entry 0 is not used
}

// sizeClass is all free blocks of one size; in freeSet.slots of the smallest
// size of a class.
type sizeClass struct {
	size int64
	root uint32 // block with the lowest address; 0 = none
	more uint32 // list in freeSet.more with the other sizes of the class; 0 = none yet
}

// groupCount covers sizes up to 2^63 in units of 512 bytes; it is a power of
// two, so that masking an index proves it to be in range.
const groupCount = 64

// classOf returns the class of a size: group 0 holds sizes below 64 units
// exactly, group g ≥ 1 the sizes [2^(g+5), 2^(g+6)) units in 64 equal parts.
func classOf(size int64) (group, class uint) {
	u := uint64(size) >> 9
	g := uint(bits.Len64(u|63)) - 6
	return g, uint(u>>((g-(g+63)>>6)%64)) % 64 // the shift is 0 for group 0, g-1 for others
}

// find returns the first block in (size, address) order whose size is at least
// size; 0 if there is none. Where it is what pop takes, the class is returned,
// too, with its group and number in the group; else nil.
func (s *freeSet) find(size int64) (i uint32, e *sizeClass, group, class uint) {
	g, c := classOf(size)
	m := s.subs[g%groupCount] >> (c % 64) << (c % 64)
	if m == 0 {
		m = s.groups >> 1 >> (g % 64) << 1 << (g % 64)
		if m == 0 {
			return 0, nil, 0, 0
		}
		g = uint(bits.TrailingZeros64(m))
		m = s.subs[g%groupCount]
	}
	c = uint(bits.TrailingZeros64(m))
	e = &s.slots[g%groupCount][c%64]
	if e.size < size {
		return s.findInClass(e, size)
	}
	return e.root, e, g, c
}

// findInClass is find where the class of size itself is not empty, but its
// smallest size is too small.
func (s *freeSet) findInClass(e *sizeClass, size int64) (i uint32, _ *sizeClass, group, class uint) {
	list := s.others(e)
	if k := atLeast(list, size); k >= 0 {
		return list[k].root, nil, 0, 0
	}
	g, c := classOf(size)
	if c++; c == 64 {
		g, c = g+1, 0
	}
	return s.find(smallestOf(g, c))
}

// smallestOf is the smallest size of a class.
func smallestOf(g, c uint) int64 {
	if g == 0 {
		return int64(c) << 9
	}
	return int64(64+c) << (g - 1) << 9
}

// lowerBound returns the first block in (size, address) order whose size is
// at least size; 0 if there is none.
func (s *freeSet) lowerBound(size int64) uint32 {
	i, _, _, _ := s.find(size)
	return i
}

// atLeast returns the index of the smallest size ≥ size in a descending list;
// -1 if there is none.
func atLeast(list []sizeClass, size int64) int {
	k, found := slices.BinarySearchFunc(list, size, descending)
	if found {
		return k
	}
	return k - 1
}

func descending(e sizeClass, size int64) int {
	switch {
	case e.size > size:
		return -1
	case e.size < size:
		return 1
	}
	return 0
}

// reset empties the set and keeps its tables.
func (s *freeSet) reset() {
	for m := s.groups; m != 0; m &= m - 1 {
		slots := s.slots[bits.TrailingZeros64(m)]
		for c := range slots {
			slots[c].root = 0
		}
	}
	for k := range s.more {
		s.more[k] = s.more[k][:0]
	}
	s.groups = 0
	clear(s.subs[:])
}

// insert adds block i.
func (s *freeSet) insert(blocks []block, i uint32) {
	b := &blocks[i]
	g, c := classOf(b.size)
	slots := s.slots[g%groupCount]
	if slots == nil {
		s.slots[g%groupCount] = new([64]sizeClass)
		s.insert(blocks, i)
		return
	}
	b.child = 0
	e := &slots[c%64]
	switch {
	case e.root == 0:
		e.size, e.root = b.size, i
		s.subs[g%groupCount] |= 1 << (c % 64)
		s.groups |= 1 << (g % 64)
	case e.size == b.size:
		e.root = meld(blocks, e.root, i)
	default:
		s.insertOther(blocks, e, i)
	}
}

// insertOther adds a block to a class that holds another size.
func (s *freeSet) insertOther(blocks []block, e *sizeClass, i uint32) {
	if e.more == 0 {
		if len(s.more) == 0 {
			s.more = append(s.more, nil)
		}
		e.more = uint32(len(s.more))
		s.more = append(s.more, nil)
	}
	size := blocks[i].size
	list := &s.more[e.more]
	if size < e.size {
		*list = append(*list, sizeClass{size: e.size, root: e.root})
		e.size, e.root = size, i
		return
	}
	k, found := slices.BinarySearchFunc(*list, size, descending)
	if !found {
		*list = slices.Insert(*list, k, sizeClass{size: size, root: i})
		return
	}
	(*list)[k].root = meld(blocks, (*list)[k].root, i)
}

// others are the sizes of a class beside the smallest, descending.
func (s *freeSet) others(e *sizeClass) []sizeClass {
	if e.more == 0 {
		return nil
	}
	return s.more[e.more]
}

// remove takes block i, which must be in the set, out of it.
func (s *freeSet) remove(blocks []block, i uint32) {
	g, c := classOf(blocks[i].size)
	if e := &s.slots[g%groupCount][c%64]; e.root == i {
		s.pop(blocks, e, g, c)
	} else {
		s.removeInner(blocks, i)
	}
}

// removeInner takes a block out of the set that is not what pop would take.
func (s *freeSet) removeInner(blocks []block, i uint32) {
	b := &blocks[i]
	g, c := classOf(b.size)
	e := &s.slots[g%groupCount][c%64]
	if e.size == b.size {
		e.root = withoutInner(blocks, e.root, i)
		return
	}
	list := &s.more[e.more]
	k, _ := slices.BinarySearchFunc(*list, b.size, descending)
	if r := &(*list)[k].root; *r != i {
		*r = withoutInner(blocks, *r, i)
	} else if *r = mergePairs(blocks, b.child); *r == 0 {
		*list = slices.Delete(*list, k, k+1)
	}
}

// pop takes the block with the lowest address of the smallest size of class c
// of group g, which is e, out of the set.
func (s *freeSet) pop(blocks []block, e *sizeClass, g, c uint) {
	root := blocks[e.root].child
	if blocks[root].sibling != 0 {
		root = mergePairs(blocks, root)
	}
	e.root = root
	if e.more != 0 && root == 0 && s.promote(e) {
		return
	}
	// Whether the class, and the group, is empty now cannot be predicted: no
	// branches.
	m := s.subs[g%groupCount] &^ (isZero(uint64(root)) << (c % 64))
	s.subs[g%groupCount] = m
	s.groups &^= isZero(m) << (g % 64)
}

// isZero is 1 for 0, else 0.
func isZero(x uint64) uint64 { return ^(x | -x) >> 63 }

// promote makes the next size of a class its smallest; false if there is none.
func (s *freeSet) promote(e *sizeClass) bool {
	list := s.more[e.more]
	last := len(list) - 1
	if last < 0 {
		return false
	}
	e.size, e.root = list[last].size, list[last].root
	s.more[e.more] = list[:last]
	return true
}

// next returns the block behind i in (size, address) order; 0 at the end.
func (s *freeSet) next(blocks []block, i uint32) uint32 {
	b := &blocks[i]
	g, c := classOf(b.size)
	e := &s.slots[g%groupCount][c%64]
	root := e.root
	if e.size != b.size {
		list := s.others(e)
		root = list[atLeast(list, b.size)].root
	}
	if n := lowestAbove(blocks, root, b.addr); n != 0 {
		return n
	}
	return s.lowerBound(b.size + 1)
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
	add := func(e *sizeClass) {
		if e.size < minSize {
			return
		}
		from := len(buf)
		buf = appendHeap(buf, blocks, e.root, keep)
		slices.SortFunc(buf[from:], func(x, y uint32) int { return cmp.Compare(blocks[x].addr, blocks[y].addr) })
	}
	g0, c0 := classOf(minSize)
	for gm := s.groups >> g0 << g0; gm != 0; gm &= gm - 1 {
		g := uint(bits.TrailingZeros64(gm))
		m := s.subs[g]
		if g == g0 {
			m = m >> c0 << c0
		}
		for ; m != 0; m &= m - 1 {
			e := &s.slots[g][bits.TrailingZeros64(m)]
			add(e)
			list := s.others(e)
			for k := range list {
				add(&list[len(list)-1-k])
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

// meld joins two heaps and returns the new root. What a root has as parent and
// sibling means nothing.
func meld(blocks []block, x, y uint32) uint32 {
	// x becomes the one with the lower address, without a branch: which of the
	// two it is cannot be predicted.
	_, isLower := bits.Sub64(blocks[y].addr, blocks[x].addr, 0)
	d := (x ^ y) & -uint32(isLower)
	x, y = x^d, y^d
	px, py := &blocks[x], &blocks[y]
	first := px.child
	px.child = y
	py.parent, py.sibling = x, first
	blocks[first].parent = y // of block 0 if there is none, where it means nothing
	return x
}

// withoutInner removes block i, which is not the root, from a heap and returns
// the new root.
func withoutInner(blocks []block, root, i uint32) uint32 {
	b := &blocks[i]
	if p := &blocks[b.parent]; p.child == i {
		p.child = b.sibling
	} else {
		p.sibling = b.sibling
	}
	if b.sibling != 0 {
		blocks[b.sibling].parent = b.parent
	}
	if b.child != 0 {
		root = meld(blocks, root, mergePairs(blocks, b.child))
	}
	return root
}

// mergePairs joins a list of sibling heaps: pairs from the left, then the
// pairs from the right. The result of an empty list is 0.
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
	for done != 0 {
		next := blocks[done].sibling
		root = meld(blocks, root, done)
		done = next
	}
	return root
}
