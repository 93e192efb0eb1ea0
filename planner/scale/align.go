package scale

import (
	"context"
	"math/bits"
)

// The alignment is a global one: it maximises the sum of the scores of the
// pairs it makes, in order, less a cost for every allocation without a
// partner. Scores are in thousandths so that they are the same on every
// machine. They were chosen for spec/scaling.md section 3.2.
const (
	scoreExact    = 3000 // equal or exactly proportional
	scoreSquare   = 2500 // exactly the square, for lengths
	scoreWhole    = 2000 // in between, with a whole slope
	scoreBetween  = 1000 // in between
	scoreSteep    = 300  // steeper than proportional, at most the square
	scoreMismatch = -700 // cheaper than two gaps: the same place with another algorithm
	scoreLife     = 500  // equal lifetimes, less half of it for each doubling between them
	gapScore      = -1000
	never         = -1 << 30 // pairs that are not allowed

	// bandSlack is the allocations by which the alignment may stray from the
	// straight diagonal beyond the difference in length.
	bandSlack = 400
	// maxCells bounds the direction matrix of one piece, in bytes, and maxPiece
	// its length, so that sums of scores fit 32 bits.
	maxCells = 1 << 27
	maxPiece = 1 << 16
	// maxTable bounds the table of scores by class, in entries.
	maxTable = 1 << 24
)

// ratio is the exact relation of two values of the varied quantity, from < to.
type ratio struct {
	from, to int64
	length   bool // squares can occur
}

// timesEqual reports a·b == c·d for non-negative numbers.
func timesEqual(a, b, c, d int64) bool {
	h1, l1 := bits.Mul64(uint64(a), uint64(b))
	h2, l2 := bits.Mul64(uint64(c), uint64(d))
	return h1 == h2 && l1 == l2
}

// timesLess reports a·b < c·d for non-negative numbers.
func timesLess(a, b, c, d int64) bool {
	h1, l1 := bits.Mul64(uint64(a), uint64(b))
	h2, l2 := bits.Mul64(uint64(c), uint64(d))
	return h1 < h2 || h1 == h2 && l1 < l2
}

// square reports s2·from² == s1·to². Values whose squares overflow have none.
func (r ratio) square(s1, s2 int64) bool {
	const root = 1 << 31
	return r.from < root && r.to < root && timesEqual(s2, r.from*r.from, s1, r.to*r.to)
}

// score rates the sizes s1 at from and s2 at to.
func (r ratio) score(s1, s2 int64) int32 {
	switch {
	case s1 == s2 || timesEqual(s2, r.from, s1, r.to):
		return scoreExact
	case r.length && r.square(s1, s2):
		return scoreSquare
	case s2 > s1 && timesLess(s2, r.from, s1, r.to):
		if (s2-s1)%(r.to-r.from) == 0 {
			return scoreWhole
		}
		return scoreBetween
	case s2 > s1 && float64(s2)*float64(r.from)*float64(r.from) <= float64(s1)*float64(r.to)*float64(r.to):
		return scoreSteep
	}
	return scoreMismatch
}

// class is what the score of an allocation depends on.
type class struct {
	size         int64
	site         uint32
	stream, pool uint16
	life         uint8
}

func (a *alloc) class() class {
	c := class{size: a.size, site: a.site, stream: a.stream, pool: a.pool, life: foreverLife}
	if a.life != forever {
		c.life = uint8(bits.Len32(uint32(max(a.life, 1))))
	}
	return c
}

// foreverLife is the life of what is never freed; other lives are binary
// logarithms of the number of allocations meanwhile.
const foreverLife = 40

func (r ratio) scoreClasses(a, b class) int32 {
	if a.stream != b.stream || a.pool != b.pool || a.site != b.site {
		return never
	}
	// A gradient is not the scratch buffer that happens to have its size.
	d := int32(max(a.life, b.life) - min(a.life, b.life))
	s := r.score(a.size, b.size) + scoreLife - d*scoreLife/2
	// Large allocations matter more: a tenth for every doubling above 512.
	return s * int32(10+max(bits.Len64(uint64(max(a.size, b.size)))-10, 0)) / 10
}

// classes numbers the classes of allocations.
func classes(allocs []alloc) (ids []int32, list []class) {
	known := make(map[class]int32)
	ids = make([]int32, len(allocs))
	for i := range allocs {
		c := allocs[i].class()
		id, ok := known[c]
		if !ok {
			id = int32(len(list))
			known[c] = id
			list = append(list, c)
		}
		ids[i] = id
	}
	return ids, list
}

// aligner aligns two lists of allocations.
type aligner struct {
	r        ratio
	a, b     []int32 // classes
	ca, cb   []class
	table    []int32 // score by class pair, 0 = not yet known; nil when too large
	dirs     []uint8
	row, old []int32
}

// align pairs a, recorded at r.from, with b, recorded at r.to: for every
// allocation of a the index of its partner in b, or -1. Partners ascend.
func align(ctx context.Context, a, b []alloc, r ratio) ([]int32, error) {
	al := &aligner{r: r}
	al.a, al.ca = classes(a)
	al.b, al.cb = classes(b)
	if len(al.ca)*len(al.cb) <= maxTable {
		al.table = make([]int32, len(al.ca)*len(al.cb))
	}
	pairs := make([]int32, len(a))
	for i := range pairs {
		pairs[i] = -1
	}
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		n, m := len(a)-i, len(b)-j
		half := band(n, m)
		final := n*(2*half+1) <= maxCells && n <= maxPiece
		if !final {
			// Too large for one piece: align a window and keep its first half,
			// far from the end that was cut at will.
			half = min(half, 1<<12)
			n = min(n, maxPiece, maxCells/(2*half+1))
			m = min(m, n+half)
		}
		piece, err := al.piece(ctx, i, n, j, m, half, final)
		if err != nil {
			return nil, err
		}
		keep := n
		if !final {
			keep = n / 2
		}
		next := j
		for k, p := range piece[:keep] {
			if p >= 0 {
				pairs[i+k] = int32(j) + p
				next = j + int(p) + 1
			}
		}
		i, j = i+keep, next
	}
	return pairs, nil
}

// band is the half width of the diagonal band for n against m allocations.
func band(n, m int) int { return max(n-m, m-n) + bandSlack }

// The directions of the alignment's path.
const (
	dirPair = iota + 1
	dirSkipA
	dirSkipB
)

// piece aligns a[i0:i0+n] with b[j0:j0+m] within half of the diagonal. Unless
// final, what is left over of b at the end costs nothing.
func (al *aligner) piece(ctx context.Context, i0, n, j0, m, half int, final bool) ([]int32, error) {
	width := 2*half + 1
	if cap(al.dirs) < (n+1)*width {
		al.dirs = make([]uint8, (n+1)*width)
	}
	dirs := al.dirs[:(n+1)*width]
	if cap(al.row) < m+1 {
		al.row, al.old = make([]int32, m+1), make([]int32, m+1)
	}
	row, old := al.row[:m+1], al.old[:m+1]
	slope := m
	if !final {
		slope = n // the end is open: go straight
	}
	// Row i covers columns lo(i)…hi(i).
	lo := func(i int) int { return min(max(center(i, n, slope)-half, 0), m) }
	hi := func(i int) int { return min(center(i, n, slope)+half, m) }
	for j := 0; j <= hi(0); j++ {
		row[j] = int32(j) * gapScore
		dirs[j] = dirSkipB
	}
	for i := 1; i <= n; i++ {
		if i&1023 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		row, old = old, row
		l, h := lo(i), hi(i)
		oldLo, oldHi := lo(i-1), hi(i-1)
		d := dirs[i*width : (i+1)*width]
		class := al.a[i0+i-1]
		var scores []int32
		if al.table != nil {
			scores = al.table[int(class)*len(al.cb):][:len(al.cb)]
		}
		left := int32(never)
		for j := l; j <= h; j++ {
			best, dir := int32(2*never), uint8(0)
			if j > oldLo && j-1 <= oldHi {
				var s int32
				other := al.b[j0+j-1]
				if scores != nil {
					s = scores[other]
				}
				if s == 0 {
					s = al.r.scoreClasses(al.ca[class], al.cb[other])
					if scores != nil {
						scores[other] = s
					}
				}
				if s != never {
					best, dir = old[j-1]+s, dirPair
				}
			}
			if j >= oldLo && j <= oldHi {
				if s := old[j] + gapScore; s > best {
					best, dir = s, dirSkipA
				}
			}
			if j > l {
				if s := left + gapScore; s > best {
					best, dir = s, dirSkipB
				}
			}
			row[j], left = best, best
			d[j-l] = dir
		}
	}
	j := m
	if !final {
		for k := lo(n); k <= hi(n); k++ {
			if k == lo(n) || row[k] > row[j] {
				j = k
			}
		}
	}
	pairs := make([]int32, n)
	for i := range pairs {
		pairs[i] = -1
	}
	for i := n; i > 0; {
		switch dirs[i*width+j-lo(i)] {
		case dirPair:
			i, j = i-1, j-1
			pairs[i] = int32(j)
		case dirSkipA:
			i--
		case dirSkipB:
			j--
		}
	}
	return pairs, nil
}

// center is the column of the straight diagonal in row i.
func center(i, n, m int) int { return int(int64(i) * int64(m) / int64(n)) }
