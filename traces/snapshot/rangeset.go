package snapshot

// rangeSet is a set of disjoint address ranges in address order, each with a
// number. It is a list of sorted chunks, each of which is searched in two steps,
// and a change moves at most one chunk.
//
// Programs use the same addresses again and again. So a range that was vacated
// keeps its place without being in the set, for the next one at its address; no
// such place is ever inside a range.
type rangeSet struct {
	chunks []*rangeChunk
	firsts []uint64 // lower bound of each chunk's addresses; the first is 0
	// hints remember, by a hash of the address, where locate found it: chunk
	// times rangeChunkLen and index. One may be out of date, so it is checked.
	// There is only one as long as there is one chunk.
	hints  []uint32
	n      int // ranges
	vacant int // places without one
}

const hintBits = 12

const rangeChunkLen = 64

// noAddr fills the unused places of rangeChunk.addr. Ranges begin below it, and
// so are the addresses that are looked up; exact also takes noAddr itself.
const noAddr = 1 << 63

type rangeChunk struct {
	n    int
	addr [rangeChunkLen]uint64
	end  [rangeChunkLen]uint64 // 0 = vacant
	val  [rangeChunkLen]uint32
}

func newRangeSet() *rangeSet {
	return &rangeSet{chunks: []*rangeChunk{newRangeChunk()}, firsts: []uint64{0}, hints: make([]uint32, 1)}
}

func newRangeChunk() *rangeChunk {
	c := new(rangeChunk)
	for i := range c.addr {
		c.addr[i] = noAddr
	}
	return c
}

// pos is a place in the set: the range at chunk c, index i.
type pos struct{ c, i int }

// locate returns the chunk that addr belongs to and the place in it of the last
// range that starts at or below addr, -1 if there is none.
func (s *rangeSet) locate(addr uint64) pos {
	h := s.hint(addr)
	k, i := int(*h/rangeChunkLen), uint64(*h%rangeChunkLen)
	if k < len(s.firsts) && s.firsts[k] <= addr && (k+1 == len(s.firsts) || addr < s.firsts[k+1]) {
		if c := s.chunks[k]; c.addr[i] <= addr && (i+1 == rangeChunkLen || addr < c.addr[i+1]) {
			return pos{k, int(i)}
		}
	} else {
		k = s.chunkOf(addr)
	}
	// Of the 64 addresses, first count those at or below addr among each
	// eighth, then among the eight that are left. Both counts do without
	// branches, whose outcomes would be random, and without a chain of loads.
	a := &s.chunks[k].addr
	const m = rangeChunkLen - 1
	i = 8 * (below(a[8], addr) + below(a[16], addr) + below(a[24], addr) + below(a[32], addr) +
		below(a[40], addr) + below(a[48], addr) + below(a[56], addr))
	i += below(a[(i+1)&m], addr) + below(a[(i+2)&m], addr) + below(a[(i+3)&m], addr) + below(a[(i+4)&m], addr) +
		below(a[(i+5)&m], addr) + below(a[(i+6)&m], addr) + below(a[(i+7)&m], addr)
	i += below(a[i&m], addr)
	*h = uint32(k*rangeChunkLen + int(max(i, 1)-1))
	return pos{k, int(i) - 1}
}

func (s *rangeSet) hint(addr uint64) *uint32 {
	return &s.hints[addr*0x9E3779B97F4A7C15>>(64-hintBits)&uint64(len(s.hints)-1)]
}

// below is 1 if a ≤ b and 0 if not, for numbers up to 1<<63.
func below(a, b uint64) uint64 { return (a - b - 1) >> 63 }

// chunkOf returns the chunk that addr belongs to.
func (s *rangeSet) chunkOf(addr uint64) int {
	// The search halves a span with a conditional move instead of a branch:
	// the outcomes are random, and mispredictions would cost the most.
	lo := 0
	for n := len(s.firsts); n > 1; {
		half := n >> 1
		if t := lo + half; s.firsts[t] <= addr {
			lo = t
		}
		n -= half
	}
	return lo
}

// find returns the place of the last range that starts at or below addr; it is
// not valid if there is none. Like next, it is for sets that nothing was vacated
// in.
func (s *rangeSet) find(addr uint64) pos {
	p := s.locate(addr)
	if p.i < 0 && p.c > 0 {
		return s.prev(pos{p.c, 0})
	}
	return p
}

func (s *rangeSet) valid(p pos) bool { return p.i >= 0 && p.c < len(s.chunks) && p.i < s.chunks[p.c].n }

func (s *rangeSet) prev(p pos) pos {
	p.i--
	for p.i < 0 && p.c > 0 {
		p.c--
		p.i = s.chunks[p.c].n - 1
	}
	return p
}

func (s *rangeSet) next(p pos) pos {
	p.i++
	for p.c < len(s.chunks)-1 && p.i >= s.chunks[p.c].n {
		p.c++
		p.i = 0
	}
	return p
}

func (s *rangeSet) get(p pos) (addr, end uint64, val uint32) {
	c := s.chunks[p.c]
	return c.addr[p.i], c.end[p.i], c.val[p.i]
}

// exact returns the range that starts at addr.
func (s *rangeSet) exact(addr uint64) (pos, bool) {
	p := s.find(addr)
	return p, s.valid(p) && s.chunks[p.c].addr[p.i] == addr && s.chunks[p.c].end[p.i] != 0
}

// overlap returns a range that shares bytes with [addr, end).
func (s *rangeSet) overlap(addr, end uint64) (pos, bool) {
	p := s.find(addr)
	if s.valid(p) && s.chunks[p.c].end[p.i] > addr {
		return p, true
	}
	if n := s.clear(p, end); s.valid(n) && s.chunks[n.c].addr[n.i] < end {
		return n, true
	}
	return pos{}, false
}

// clear removes the vacant places behind p and below end, up to the first range
// there, and returns the place that then follows p.
func (s *rangeSet) clear(p pos, end uint64) pos {
	for {
		n := s.next(p)
		if !s.valid(n) || s.chunks[n.c].addr[n.i] >= end || s.chunks[n.c].end[n.i] != 0 {
			return n
		}
		s.removePlace(n)
		s.vacant--
		if n.c != p.c {
			s.dropEmpty(n.c)
		}
	}
}

// insert adds [addr, end). If it would overlap, it changes nothing and returns
// the place of the range in the way.
func (s *rangeSet) insert(addr, end uint64, val uint32) (pos, bool) {
	p := s.locate(addr)
	q := p
	if p.i < 0 && p.c > 0 {
		q = s.prev(pos{p.c, 0})
	}
	if s.valid(q) && s.chunks[q.c].end[q.i] > addr {
		return q, false
	}
	if n := s.clear(p, end); s.valid(n) && s.chunks[n.c].addr[n.i] < end {
		return n, false
	}
	s.n++
	c := s.chunks[p.c]
	if p.i >= 0 && c.addr[p.i] == addr {
		c.end[p.i], c.val[p.i] = end, val
		s.vacant--
		return p, true
	}
	if c.n == rangeChunkLen {
		const half = rangeChunkLen / 2
		d := newRangeChunk()
		d.n = copy(d.addr[:], c.addr[half:])
		copy(d.end[:], c.end[half:])
		copy(d.val[:], c.val[half:])
		c.n = half
		for i := range half {
			c.addr[half+i] = noAddr
		}
		if len(s.hints) == 1 {
			s.hints = make([]uint32, 1<<hintBits)
		}
		s.chunks = append(s.chunks, nil)
		copy(s.chunks[p.c+2:], s.chunks[p.c+1:])
		s.chunks[p.c+1] = d
		s.firsts = append(s.firsts, 0)
		copy(s.firsts[p.c+2:], s.firsts[p.c+1:])
		s.firsts[p.c+1] = d.addr[0]
		if p.i >= half {
			p = pos{p.c + 1, p.i - half}
			c = d
		}
	}
	i := p.i + 1
	copy(c.addr[i+1:c.n+1], c.addr[i:c.n])
	copy(c.end[i+1:c.n+1], c.end[i:c.n])
	copy(c.val[i+1:c.n+1], c.val[i:c.n])
	c.addr[i], c.end[i], c.val[i] = addr, end, val
	c.n++
	*s.hint(addr) = uint32(p.c*rangeChunkLen + i)
	return pos{p.c, i}, true
}

// vacate takes the range at p out of the set and leaves its place. All places
// are void afterwards.
func (s *rangeSet) vacate(p pos) {
	s.chunks[p.c].end[p.i] = 0
	s.n--
	if s.vacant++; s.vacant > s.n+1024 {
		s.compact()
	}
}

// compact removes all vacant places and joins chunks of which little is left.
func (s *rangeSet) compact() {
	kept := 0
	for k, c := range s.chunks {
		n := 0
		for i := range c.n {
			if c.end[i] != 0 {
				c.addr[n], c.end[n], c.val[n] = c.addr[i], c.end[i], c.val[i]
				n++
			}
		}
		for i := n; i < c.n; i++ {
			c.addr[i] = noAddr
		}
		c.n = n
		if kept > 0 {
			if d := s.chunks[kept-1]; d.n+n <= rangeChunkLen*3/4 {
				copy(d.addr[d.n:], c.addr[:n])
				copy(d.end[d.n:], c.end[:n])
				copy(d.val[d.n:], c.val[:n])
				d.n += n
				continue
			}
		}
		s.chunks[kept], s.firsts[kept] = c, s.firsts[k]
		kept++
	}
	clear(s.chunks[kept:])
	s.chunks, s.firsts = s.chunks[:kept], s.firsts[:kept]
	s.vacant = 0
}

// remove takes the range at p out of the set.
func (s *rangeSet) remove(p pos) {
	s.removePlace(p)
	s.dropEmpty(p.c)
	s.n--
}

// dropEmpty removes chunk k if nothing is left in it.
func (s *rangeSet) dropEmpty(k int) {
	if s.chunks[k].n == 0 && k > 0 {
		s.chunks = append(s.chunks[:k], s.chunks[k+1:]...)
		s.firsts = append(s.firsts[:k], s.firsts[k+1:]...)
	}
}

func (s *rangeSet) removePlace(p pos) {
	c := s.chunks[p.c]
	copy(c.addr[p.i:], c.addr[p.i+1:c.n])
	copy(c.end[p.i:], c.end[p.i+1:c.n])
	copy(c.val[p.i:], c.val[p.i+1:c.n])
	c.n--
	c.addr[c.n] = noAddr
}

// len counts the ranges.
func (s *rangeSet) len() int { return s.n }

// each calls f in address order.
func (s *rangeSet) each(f func(addr, end uint64, val uint32)) {
	for _, c := range s.chunks {
		for i := range c.n {
			if c.end[i] != 0 {
				f(c.addr[i], c.end[i], c.val[i])
			}
		}
	}
}
