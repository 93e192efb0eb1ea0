package scale

import (
	"math"
	"math/bits"
	"slices"
)

// Law is how an allocation's requested size depends on the varied quantity.
type Law uint8

// The laws. Exact ones hold to the byte in every recording.
const (
	Constant     Law = iota
	Proportional     // s = a·x
	Square           // s = a·x², for lengths only
	Affine           // s = a·x + b through three recordings or more, or a·(x+c) with whole a and c
	Quadratic        // s = a·x² + b·x + c with whole, non-negative coefficients
	Reduction        // a buffer whose size PyTorch's code determines
	Saturated        // grew, and no longer does
	Line             // a·x + b through two recordings only
	Root             // √s is a straight line, for lengths (image sizes, padded tiles)
	Steep            // grew faster than in proportion: proportional from the nearest
	Kept             // does not grow with the value: kept from the nearest
	Alone            // the reference alone has it
	numLaws
)

var lawNames = [numLaws]string{"constant", "proportional", "square", "affine", "quadratic", "reduction", "saturated", "line", "root", "steep", "kept", "unmatched"}

// String is the law's name in output.
func (l Law) String() string { return lawNames[min(l, numLaws-1)] }

// Exact reports whether the law leaves no doubt within the recordings.
func (l Law) Exact() bool { return l <= Saturated }

// fit is the predicted size of one allocation.
type fit struct {
	size int64 // bytes, ≥ 1; 0 = the allocation does not happen
	law  Law
	// low and high are the factors by which the size is varied for the bar;
	// both 1 when it is certain.
	low, high float64
	// jump says that the recorded sizes shrink or grow faster than they should
	// somewhere.
	jump bool
	// group is the same for all allocations that are varied together.
	group uint32
}

func (f *fit) certain() bool { return f.low == 1 && f.high == 1 }

// point is a recorded size.
type point struct{ x, s int64 }

// The factors of uncertain sizes, from spec/scaling.md section 3.5.
const (
	lineLow, lineHigh = 0.95, 1.25
	jumpLow, jumpHigh = 0.80, 1.50
	rootSpread        = 0.04 // per unit of |ln(x/nearest)|
	// steepest is the growth, in units of proportional growth, up to which a
	// straight line is believed.
	steepest = 1.1
	// tinyUnmatched is the size up to which an allocation without partner is
	// taken to be constant, in bytes.
	tinyUnmatched = 4096
)

// fitSizes fits the sizes recorded at two or more values, ascending, and
// evaluates them at x. short says that the allocation is scratch or a
// temporary, length that sizes may be quadratic in x.
func fitSizes(ps []point, x int64, short, length bool) fit {
	if s, law, ok := exactLaw(ps, x, length); ok {
		f := sure(s, law)
		if short && law == Affine {
			// Libraries' scratch: a straight line until another algorithm is
			// chosen.
			f.low, f.high = lineLow, lineHigh
		}
		return f
	}
	// Only the two points nearest to x matter from here on: those around it,
	// or the last or first two.
	i := 0
	for i < len(ps)-2 && ps[i+1].x < x {
		i++
	}
	p, q := ps[i], ps[i+1]
	near := q
	if math.Abs(math.Log(float64(p.x)/float64(x))) < math.Abs(math.Log(float64(q.x)/float64(x))) {
		near = p
	}
	if len(ps) > 2 {
		if s, law, ok := exactLaw([]point{p, q}, x, length); ok {
			if law == Constant && x > q.x {
				law = Saturated
			}
			return sure(s, law)
		}
	}
	xf := float64(x)
	rel := float64(q.x) / float64(p.x)
	growth := float64(q.s) / float64(p.s)
	line := func() int64 {
		t := float64(x-p.x) / float64(q.x-p.x)
		return int64(math.Round(float64(p.s) + t*(float64(q.s)-float64(p.s))))
	}
	between := p.x < x && x < q.x
	if between && (q.s < p.s || growth > rel*steepest && !length) {
		// A jump somewhere between: anything from one end to the other.
		s := max(line(), 1)
		return fit{size: s, law: Line, low: float64(min(p.s, q.s)) / float64(s), high: float64(max(p.s, q.s)) / float64(s)}
	}
	switch exponent := math.Log(growth) / math.Log(rel); {
	case length && exponent >= 1.5 && exponent <= 2.4:
		a, b := math.Sqrt(float64(p.s)), math.Sqrt(float64(q.s))
		r := a + (b-a)*(xf-float64(p.x))/float64(q.x-p.x)
		d := rootSpread * math.Abs(math.Log(xf/float64(near.x)))
		if r < 1 {
			r = 1
		}
		return fit{size: max(int64(math.Round(r*r)), 1), law: Root, low: 1 - d, high: 1 + d}
	case q.s >= p.s && growth <= rel*steepest:
		s := line()
		if s < 1 { // slightly steeper, below the recordings
			s = scaled(near, x)
		}
		f := sure(s, Line)
		if short || growth > rel {
			f.low, f.high = lineLow, lineHigh
		}
		return f
	case q.s > p.s:
		f := sure(scaled(near, x), Steep)
		f.low, f.high = jumpLow, jumpHigh
		return f
	default:
		f := sure(near.s, Kept)
		f.low, f.high = jumpLow, jumpHigh
		return f
	}
}

// grows reports that a law is one of steep growth.
func (l Law) grows() bool { return l == Square || l == Quadratic }

// jumps reports whether sizes shrink or grow much faster than in proportion
// from one point to the next.
func jumps(ps []point) bool {
	for i, q := range ps[1:] {
		p := ps[i]
		if q.s < p.s || float64(q.s)*float64(p.x) > steepest*float64(p.s)*float64(q.x) {
			return true
		}
	}
	return false
}

func sure(size int64, law Law) fit { return fit{size: max(size, 1), law: law, low: 1, high: 1} }

// scaled is p's size in proportion to x, rounded to the nearest byte.
func scaled(p point, x int64) int64 { return max(mulDiv(p.s, x, p.x), 1) }

// mulDiv is a·b/c rounded to nearest, saturating at MaxInt64; all positive.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(c/2), 0)
	hi += carry
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}

// exactLaw evaluates the law that holds to the byte at all points.
func exactLaw(ps []point, x int64, length bool) (int64, Law, bool) {
	constant, proportional, square := true, true, length
	p := ps[0]
	for _, q := range ps[1:] {
		constant = constant && q.s == p.s
		proportional = proportional && timesEqual(q.s, p.x, p.s, q.x)
		square = square && ratio{from: p.x, to: q.x}.square(p.s, q.s)
	}
	last := ps[len(ps)-1]
	switch {
	case constant:
		return p.s, Constant, true
	case proportional:
		return scaled(last, x), Proportional, true
	case square:
		s := float64(last.s) * (float64(x) / float64(last.x)) * (float64(x) / float64(last.x))
		return int64(math.Round(s)), Square, true
	case len(ps) < 3:
		return shifted(p, last, x)
	}
	q := ps[1]
	affine := true
	for _, r := range ps[2:] {
		// (r.s-p.s)·(q.x-p.x) == (q.s-p.s)·(r.x-p.x), for sizes that grow.
		affine = affine && q.s > p.s && r.s > p.s && timesEqual(r.s-p.s, q.x-p.x, q.s-p.s, r.x-p.x)
	}
	if affine {
		if x < p.x {
			if s := p.s - mulDiv(last.s-p.s, p.x-x, last.x-p.x); s > 0 {
				return s, Affine, true
			}
			return 0, 0, false
		}
		return p.s + mulDiv(last.s-p.s, x-p.x, last.x-p.x), Affine, true
	}
	if length {
		if s, ok := quadratic(ps, x); ok {
			return s, Quadratic, true
		}
	}
	return 0, 0, false
}

// The range of c in a·(x+c): one token less (the next-token loss) to a prefix
// of image tokens more.
const minShift, maxShift = -8, 1024

// shifted evaluates a·(x+c) through two points if a and c are whole, as for a
// tensor over the tokens of a sequence and a few more. Two points do not prove
// it, but a chance hit needs two divisions without remainder.
func shifted(p, q point, x int64) (int64, Law, bool) {
	dx, ds := q.x-p.x, q.s-p.s
	if ds <= 0 || ds%dx != 0 {
		return 0, 0, false
	}
	a := ds / dx
	if p.s%a != 0 {
		return 0, 0, false
	}
	c := p.s/a - p.x
	if c < minShift || c > maxShift || x+c <= 0 || a > math.MaxInt64/(x+c) {
		return 0, 0, false
	}
	return a * (x + c), Affine, true
}

// quadratic evaluates the parabola through the first three points if its
// coefficients are whole and not negative and all points lie on it.
func quadratic(ps []point, x int64) (int64, bool) {
	const most = 1 << 20 // keeps every product below in 63 bits
	if ps[len(ps)-1].x > most || x > most || ps[len(ps)-1].s > 1<<40 {
		return 0, false
	}
	p, q, r := ps[0], ps[1], ps[2]
	d1n, d1d := q.s-p.s, q.x-p.x
	d2n, d2d := r.s-q.s, r.x-q.x
	if d1n%d1d != 0 || d2n%d2d != 0 || (d2n/d2d-d1n/d1d)%(r.x-p.x) != 0 {
		return 0, false
	}
	a := (d2n/d2d - d1n/d1d) / (r.x - p.x)
	b := d1n/d1d - a*(p.x+q.x)
	c := p.s - a*p.x*p.x - b*p.x
	if a <= 0 || b < 0 || c < 0 {
		return 0, false
	}
	at := func(x int64) int64 { return (a*x+b)*x + c }
	for _, s := range ps[3:] {
		if at(s.x) != s.s {
			return 0, false
		}
	}
	if float64(a)*float64(x)*float64(x)+float64(b)*float64(x)+float64(c) > 1<<60 {
		return 0, false
	}
	return at(x), true
}

// fitAll predicts the size of every allocation of program ref at value x.
func (m *Model) fitAll(ref int, x int64) []fit {
	p := m.programs[ref]
	fits := make([]fit, len(p.allocs))
	if x == p.value {
		for a := range fits {
			fits[a] = sure(p.allocs[a].size, Constant)
		}
		return fits
	}
	red := m.reductions(ref, x)

	// Equal tuples of sizes get equal fits: a chain of interned pairs numbers
	// the tuples.
	type link struct {
		prev uint32
		size int64
	}
	chain := make(map[link]uint32)
	intern := func(prev uint32, size int64) uint32 {
		l := link{prev, size}
		id, ok := chain[l]
		if !ok {
			id = uint32(len(chain) + 1)
			chain[l] = id
		}
		return id
	}
	known := make(map[uint32]fit)
	ps := make([]point, 0, len(m.programs))
	for a := range p.allocs {
		alloc := &p.allocs[a]
		group := intern(0, alloc.size)
		for k := range m.programs {
			size := int64(-1)
			if k != ref {
				if b := m.partner[ref][k][a]; b >= 0 {
					size = m.programs[k].allocs[b].size
				}
			}
			group = intern(group, size)
		}
		if alloc.short() {
			group = intern(group, -2)
		}
		if f, ok := red[int32(a)]; ok {
			f.group = intern(group, -3)
			fits[a] = f
			continue
		}
		f, ok := known[group]
		if !ok {
			ps = ps[:0]
			for k, o := range m.programs {
				if k == ref {
					ps = append(ps, point{p.value, alloc.size})
				} else if b := m.partner[ref][k][a]; b >= 0 {
					ps = append(ps, point{o.value, o.allocs[b].size})
				}
			}
			f = m.fitPoints(ps, x, alloc.short())
			f.group = group
			known[group] = f
		}
		fits[a] = f
	}
	return fits
}

func (m *Model) fitPoints(ps []point, x int64, short bool) fit {
	if len(ps) > 1 {
		f := fitSizes(ps, x, short, m.opt.length())
		f.jump = f.law != Root && !f.law.grows() && jumps(ps)
		return f
	}
	s := ps[0].s
	if s <= tinyUnmatched || x == ps[0].x {
		return sure(s, Alone)
	}
	f := sure(scaled(ps[0], x), Alone)
	constant := float64(s) / float64(f.size)
	f.low, f.high = min(constant, 1), max(constant, 1)
	return f
}

// reductions predicts the reduction buffers of program ref at value x, by
// allocation. Semaphores are there too where the buffer vanishes.
func (m *Model) reductions(ref int, x int64) map[int32]fit {
	p := m.programs[ref]
	out := make(map[int32]fit)
	var votes map[int64]int // bytes per unit of x, of proportional allocations
	type key struct {
		size, sem int64
		others    string
	}
	known := make(map[key]fit)
	for a := range len(p.allocs) - 1 {
		r, ok := p.reductionAt(int32(a))
		if !ok {
			continue
		}
		type at struct {
			x int64
			r reduction
		}
		points := []at{{p.value, r}}
		k := key{size: p.allocs[a].size, sem: p.allocs[a+1].size}
		var others []byte
		for o, q := range m.programs {
			if o == ref {
				continue
			}
			b, c := m.partner[ref][o][a], m.partner[ref][o][a+1]
			switch {
			case b < 0 && c < 0:
				points = append(points, at{q.value, reduction{by: r.by}})
				others = append(others, 0)
			case b >= 0:
				if s, ok := q.reductionAt(b); ok && s.columns == r.columns {
					points = append(points, at{q.value, s})
					others = append(others, 1, byte(s.blocks), byte(s.blocks>>8), byte(s.blocks>>16))
				} else {
					others = append(others, 2)
				}
			default:
				others = append(others, 2)
			}
		}
		k.others = string(others)
		f, seen := known[k]
		if !seen {
			if votes == nil {
				votes = m.proportionalBytes(ref)
			}
			xs := make([]int64, len(points))
			rs := make([]reduction, len(points))
			for i, pt := range points {
				xs[i], rs[i] = pt.x, pt.r
			}
			f, ok = fitReduction(xs, rs, x, m.grid.cap(r), votes)
			if !ok {
				f = fit{size: -1}
			}
			known[k] = f
		}
		if f.size < 0 {
			continue
		}
		out[int32(a)] = f
		if f.size == 0 {
			out[int32(a)+1] = f
		}
	}
	return out
}

// reductionAt recognises a buffer with its semaphores at allocation a.
func (p *program) reductionAt(a int32) (reduction, bool) {
	if int(a)+1 >= len(p.allocs) {
		return reduction{}, false
	}
	buffer, sem := &p.allocs[a], &p.allocs[a+1]
	if buffer.life < 1 || buffer.life > 2 || !sem.short() || buffer.stream != sem.stream || buffer.pool != sem.pool {
		return reduction{}, false
	}
	return reductionOf(buffer.size, sem.size)
}

// proportionalBytes counts the allocations of program ref that are
// proportional between all recordings, by bytes per unit of the value.
func (m *Model) proportionalBytes(ref int) map[int64]int {
	p := m.programs[ref]
	votes := make(map[int64]int)
	for a := range p.allocs {
		s := p.allocs[a].size
		if s%p.value != 0 {
			continue
		}
		ok := true
		for k, q := range m.programs {
			if k == ref {
				continue
			}
			b := m.partner[ref][k][a]
			ok = ok && b >= 0 && timesEqual(s, q.value, q.allocs[b].size, p.value)
		}
		if ok {
			votes[s/p.value]++
		}
	}
	return votes
}

// fitReduction predicts a reduction's buffer at x from the buffers rs recorded
// at xs (the first one exists; blocks 0 = none was there). limit is the most
// blocks the GPU calls for, 0 if unknown. votes are the proportional
// allocations by bytes per unit of x: the matrix that is reduced is one of
// them, and its bytes tell the rows. ok is false when the buffers do not
// follow the rule.
func fitReduction(xs []int64, rs []reduction, x, limit int64, votes map[int64]int) (fit, bool) {
	r := rs[0]
	lo, hi, ok := rowsPerValue(xs, rs, limit)
	guessed := limit == 0
	if !ok && guessed {
		// The GPU is unknown, but a buffer that stopped growing tells.
		for _, s := range rs {
			limit = max(limit, s.blocks)
		}
		lo, hi, ok = rowsPerValue(xs, rs, limit)
		guessed = false
	}
	if !ok {
		return fit{}, false
	}
	k, sureOfRows := rowsFor(r.columns, lo, hi, votes)
	rows := func(k float64) int64 { return int64(math.Ceil(k * float64(x))) }
	blocks := r.blocksFor(rows(k), limit)
	f := fit{size: r.unit * blocks, law: Reduction, low: 1, high: 1}
	if blocks == 0 {
		return f, true
	}
	if !sureOfRows {
		least, most := max(r.blocksFor(rows(lo), limit), 1), r.blocksFor(rows(hi), limit)
		f.low, f.high = float64(least)/float64(blocks), float64(max(most, least))/float64(blocks)
	}
	if guessed && blocks > r.blocks {
		f.low = min(f.low, float64(r.blocks)/float64(blocks))
	}
	return f, true
}

// rowsFor chooses the rows per unit of the value within [lo, hi]: the number
// that a recorded matrix of so many columns and elements of 1, 2, 4 or 8 bytes
// has, or else the roundest whole number. sure says that it is of the first
// kind or the only one.
func rowsFor(columns int64, lo, hi float64, votes map[int64]int) (k float64, sure bool) {
	const most = 1 << 40
	first, last := int64(math.Ceil(lo)), int64(math.Floor(min(hi, most)))
	count := make(map[int64]int)
	for bytes, n := range votes {
		for _, size := range []int64{2, 4, 1, 8} {
			if bytes%(columns*size) == 0 {
				if k := bytes / (columns * size); k >= first && k <= last {
					count[k] += n
				}
			}
		}
	}
	if len(count) > 0 {
		ks := make([]int64, 0, len(count))
		for k := range count {
			ks = append(ks, k)
		}
		slices.Sort(ks)
		best := ks[0]
		for _, k := range ks[1:] {
			if count[k] > count[best] || count[k] == count[best] && bits.TrailingZeros64(uint64(k)) > bits.TrailingZeros64(uint64(best)) {
				best = k
			}
		}
		return float64(best), true
	}
	if first > last {
		return hi, lo == hi
	}
	for shift := 62; shift >= 0; shift-- {
		if k := last >> shift << shift; k >= first && k > 0 {
			return float64(k), first == last
		}
	}
	return float64(last), first == last
}
