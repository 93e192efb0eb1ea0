package packing

// skyline is the upper edge of what is placed, by section: a segment tree with
// range maximum and raising to a value that is at least the maximum of the
// range.
type skyline struct {
	leaves int32
	most   []int64 // maximum below the node
	all    []int64 // value to which the whole node has been raised
}

func newSkyline(sections int) *skyline {
	leaves := int32(1)
	for int(leaves) < sections {
		leaves *= 2
	}
	return &skyline{leaves, make([]int64, 2*leaves), make([]int64, 2*leaves)}
}

// height is the maximum over sections [l, r).
func (s *skyline) height(l, r int32) int64 {
	var h int64
	l, r = l+s.leaves, r+s.leaves
	for v := l / 2; v > 0; v /= 2 {
		h = max(h, s.all[v])
	}
	for v := (r - 1) / 2; v > 0; v /= 2 {
		h = max(h, s.all[v])
	}
	for ; l < r; l, r = l/2, r/2 {
		if l&1 == 1 {
			h = max(h, s.most[l])
			l++
		}
		if r&1 == 1 {
			r--
			h = max(h, s.most[r])
		}
	}
	return h
}

// raise lifts sections [l, r) to at least h. Values only grow, so that the
// value of a section is the maximum over its ancestors.
func (s *skyline) raise(l, r int32, h int64) {
	l, r = l+s.leaves, r+s.leaves
	up := func(v int32) {
		for v /= 2; v > 0 && s.most[v] < h; v /= 2 {
			s.most[v] = h
		}
	}
	for x, y := l, r; x < y; x, y = x/2, y/2 {
		if x&1 == 1 {
			s.all[x] = max(s.all[x], h)
			s.most[x] = max(s.most[x], h)
			up(x)
			x++
		}
		if y&1 == 1 {
			y--
			s.all[y] = max(s.all[y], h)
			s.most[y] = max(s.most[y], h)
			up(y)
		}
	}
}

// waiting is a buffer with the last known edge below it.
type waiting struct {
	offset int64
	rank   int32
}

// queue is a heap of waiting buffers, lowest and then earliest in order first.
type queue []waiting

func (a waiting) before(b waiting) bool {
	return a.offset < b.offset || a.offset == b.offset && a.rank < b.rank
}

// sink restores the heap after its first element has grown.
func (q queue) sink() {
	if len(q) == 0 {
		return
	}
	w, i := q[0], 0
	for {
		c := 2*i + 1
		if c >= len(q) {
			break
		}
		if c+1 < len(q) && q[c+1].before(q[c]) {
			c++
		}
		if !q[c].before(w) {
			break
		}
		q[i] = q[c]
		i = c
	}
	q[i] = w
}

// lowestFirst always places next the buffer that can go lowest on the skyline,
// the earliest in order among equals: the first descent of the exact search.
// Like [fitter.place] it gives up above limit
// or f.most. Gaps in time are not used.
func (p *problem) lowestFirst(order []int32, limit int64, offsets []int64, f *fitter) (height int64, ok bool) {
	s := newSkyline(len(p.live))
	q := make(queue, 0, len(order)) // equal offsets in order: a heap
	for rank := range order {
		q = append(q, waiting{0, int32(rank)})
	}
	for len(q) > 0 {
		f.steps += 20
		b := order[q[0].rank]
		o := alignUp(s.height(p.lo[b], p.hi[b]), p.align[b])
		if o > q[0].offset {
			q[0].offset = o
			q.sink()
			continue
		}
		if o+p.size[b] > limit || f.over(len(q)) {
			return 0, false
		}
		offsets[b] = o
		height = max(height, o+p.size[b])
		s.raise(p.lo[b], p.hi[b], o+p.size[b])
		q[0] = q[len(q)-1]
		q = q[:len(q)-1]
		q.sink()
	}
	return height, true
}
