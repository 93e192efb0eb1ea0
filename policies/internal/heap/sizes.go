package heap

import "math/bits"

// Sizes is a set of free blocks of one Heap in the order (size, address): best
// fit with the lowest address among equals. A block is in at most one set.
//
// Blocks are binned by size, 16 bins to a power of two, and each bin is a
// treap. Its nodes are in a table beside that of the blocks, with the keys, so
// that a search touches little memory; the priority of a node is a hash of its
// index, so the shape, and with it the time, depends on nothing but the blocks
// in the set. All operations take O(log n) expected time and no memory.
//
// The set keeps the heap's inactive-split statistics: free blocks that are not
// all of their segment.
type Sizes struct {
	// Uncounted leaves the statistics alone.
	Uncounted bool

	h     *Heap
	n     int
	words [14]uint64 // which bins are not empty
	roots [numBins]int32
}

// Sizes are at least 256 bytes and below 2^63, so a size in units of 256 bytes
// has at most 55 bits.
const numBins = 832

// NewSizes returns an empty set for blocks of h.
func NewSizes(h *Heap) *Sizes { return &Sizes{h: h} }

// Len is the number of blocks in the set.
func (s *Sizes) Len() int { return s.n }

func bin(size int64) uint {
	x := uint64(size) >> 8
	if x < 16 {
		return uint(x)
	}
	l := uint(bits.Len64(x))
	return (l-4)*16 + uint(x>>(l-5))&15
}

func priority(b int32) uint32 { return uint32(b) * 2654435769 }

// node is a block's place in the tree of its bin.
type node struct {
	size        int64
	addr        uint64
	left, right int32
}

func (a *node) before(b *node) bool {
	return a.size < b.size || a.size == b.size && a.addr < b.addr
}

// Insert adds block b, in state Free.
func (s *Sizes) Insert(b int32) {
	if !s.Uncounted {
		s.h.CountFree(b)
	}
	blk, nodes := &s.h.Blocks[b], s.h.nodes
	x := &nodes[b]
	x.size, x.addr = blk.Size, blk.Addr
	i := bin(x.size)
	s.words[i>>6] |= 1 << (i & 63)
	s.n++
	link, p := &s.roots[i], priority(b)
	for *link != 0 && priority(*link) >= p {
		if t := &nodes[*link]; x.before(t) {
			link = &t.left
		} else {
			link = &t.right
		}
	}
	t := *link
	*link = b
	l, r := &x.left, &x.right
	for t != 0 {
		if n := &nodes[t]; n.before(x) {
			*l = t
			l = &n.right
			t = n.right
		} else {
			*r = t
			r = &n.left
			t = n.left
		}
	}
	*l, *r = 0, 0
}

// Remove takes block b, which is in the set and has the size and address that
// it had when it was inserted, out of it.
func (s *Sizes) Remove(b int32) {
	if !s.Uncounted {
		s.h.UncountFree(b)
	}
	nodes := s.h.nodes
	x := &nodes[b]
	i := bin(x.size)
	link := &s.roots[i]
	for *link != b {
		if t := &nodes[*link]; x.before(t) {
			link = &t.left
		} else {
			link = &t.right
		}
	}
	l, r := x.left, x.right
	for l != 0 && r != 0 {
		if priority(l) >= priority(r) {
			*link = l
			link = &nodes[l].right
			l = *link
		} else {
			*link = r
			link = &nodes[r].left
			r = *link
		}
	}
	*link = l | r
	if s.roots[i] == 0 {
		s.words[i>>6] &^= 1 << (i & 63)
	}
	s.n--
}

// Find returns the smallest block of at least size bytes, the lowest address
// among equals; 0 if there is none.
func (s *Sizes) Find(size int64) int32 {
	nodes := s.h.nodes
	i := bin(size)
	var best int32
	for t := s.roots[i]; t != 0; {
		if n := &nodes[t]; n.size >= size {
			best, t = t, n.left
		} else {
			t = n.right
		}
	}
	if best != 0 {
		return best
	}
	w := i >> 6
	m := s.words[w] & (^uint64(0) << (i & 63) << 1)
	for m == 0 {
		if w++; w >= uint(len(s.words)) {
			return 0
		}
		m = s.words[w]
	}
	t := s.roots[w<<6+uint(bits.TrailingZeros64(m))]
	for nodes[t].left != 0 {
		t = nodes[t].left
	}
	return t
}

// Max returns a largest block, the highest address among equals; 0 if the set
// is empty.
func (s *Sizes) Max() int32 {
	for w := len(s.words) - 1; w >= 0; w-- {
		if m := s.words[w]; m != 0 {
			t := s.roots[w<<6+63-bits.LeadingZeros64(m)]
			for s.h.nodes[t].right != 0 {
				t = s.h.nodes[t].right
			}
			return t
		}
	}
	return 0
}

// Append appends the blocks in ascending (size, address) order to buf.
func (s *Sizes) Append(buf []int32) []int32 {
	for _, root := range s.roots {
		buf = s.appendTree(buf, root)
	}
	return buf
}

func (s *Sizes) appendTree(buf []int32, t int32) []int32 {
	if t == 0 {
		return buf
	}
	buf = s.appendTree(buf, s.h.nodes[t].left)
	buf = append(buf, t)
	return s.appendTree(buf, s.h.nodes[t].right)
}
