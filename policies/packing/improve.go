package packing

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// all runs the stages until the answer is known or the budget is spent.
func (r *run) all(ctx context.Context) error {
	if err := r.portfolio(ctx); err != nil || r.done() {
		return err
	}
	// The exact search gets what it needs where it can be expected to end.
	if err := r.exact(ctx); err != nil || r.done() {
		return err
	}
	return r.reorder(ctx)
}

// left is the rest of the budget in steps.
func (r *run) left() int64 { return r.budget - r.best.Steps }

// grain is what every height of a least-sum placement is a multiple of: offsets
// are sums of sizes, rounded up to alignments. 1 with gaps.
func (p *problem) grain() int64 {
	if p.hasGaps {
		return 1
	}
	gcd := func(a, b int64) int64 {
		for b != 0 {
			a, b = b, a%b
		}
		return a
	}
	var g int64
	for i := range p.n {
		g = gcd(g, p.size[i])
		if p.align[i] > 1 {
			g = gcd(g, p.align[i])
		}
	}
	return max(g, 1)
}

// maxOverlaps is the most pairs of overlapping buffers for which the exact
// search is tried: its nodes cost time in proportion to them.
const maxOverlaps = 4_000_000

// component is a stretch of sections that no buffer leaves, with its buffers.
type component struct {
	p       *problem
	buffers []int32
	height  int64 // of the best placement
	descent int64 // about the steps of a search that never turns back, twice
	search  []*search
}

// components cuts the problem at the moments when nothing is live.
func (r *run) components() []*component {
	p := r.p
	crosses := make([]bool, len(p.live))
	reach := int32(0)
	byStart := make([]int32, p.n)
	for i := range byStart {
		byStart[i] = int32(i)
	}
	slices.SortStableFunc(byStart, func(a, b int32) int { return cmp.Compare(p.lo[a], p.lo[b]) })
	for _, b := range byStart {
		for reach = max(reach, p.lo[b]+1); reach < p.hi[b]; reach++ {
			crosses[reach] = true
		}
	}
	var cs []*component
	var c *component
	from := int32(-1)
	for _, b := range byStart {
		for s := from + 1; s <= p.lo[b]; s++ {
			if !crosses[s] {
				c = &component{}
				cs = append(cs, c)
			}
			from = s
		}
		c.buffers = append(c.buffers, b)
		c.height = max(c.height, r.best.Offsets[b]+p.size[b])
	}
	return cs
}

// prepare makes the component's own problem. It reports false if that is not
// one for the exact search.
func (c *component) prepare(p *problem) bool {
	if c.p != nil {
		return true
	}
	slices.Sort(c.buffers)
	from, to := int32(math.MaxInt32), int32(0)
	var pairs int64
	for _, b := range c.buffers {
		if s := p.spans[p.first[b]:p.first[b+1]]; len(s) != 1 || s[0].w0 != 0 || s[0].w1 != p.size[b] {
			return false // gaps
		}
		from, to = min(from, p.lo[b]), max(to, p.hi[b])
	}
	q := &problem{n: len(c.buffers), live: p.live[from:to]}
	started := make([]int64, to-from+1)
	for _, b := range c.buffers {
		started[p.lo[b]-from]++
		started[p.hi[b]-from]--
	}
	var live int64
	for i, d := range started {
		if d > 0 {
			pairs += d * (2*live + d)
		}
		live += d
		started[i] = live
	}
	if pairs > maxOverlaps {
		return false
	}
	for _, b := range c.buffers {
		q.size = append(q.size, p.size[b])
		q.align = append(q.align, p.align[b])
		q.width = append(q.width, p.width[b])
		q.lo = append(q.lo, p.lo[b]-from)
		q.hi = append(q.hi, p.hi[b]-from)
	}
	c.p = q
	c.descent = 50 * (pairs + int64(q.n))
	return true
}

// tastes are MiniMalloc's preorderings, by their letters there: T the most
// bytes of a section, W lifetime, A area. The weights make the logarithms
// compare one after the other.
var tastes = []struct {
	name               string
	total, width, size float64
}{
	{"TWA", 1e10, 1e5 + 1, 1},
	{"TAW", 1e10, 1e5 + 1, 1e5},
	{"WAT", 1, 1e10 + 1e5, 1e5},
}

// taste is the i-th order of preference: first the fixed ones, then random
// weights with some noise.
func (r *run) taste(p *problem, i int) (string, taste) {
	base := make([]float64, p.n)
	if i < len(tastes) {
		t := tastes[i]
		for b := range base {
			base[b] = t.width*math.Log(float64(p.width[b])) + t.size*math.Log(float64(p.size[b]))
		}
		return "exact/" + t.name, taste{t.total, base}
	}
	rng := rand.New(rand.NewPCG(r.opt.Seed, uint64(i)))
	total := rng.Float64() * [...]float64{1, 10, 100}[i%3]
	width, size, noise := rng.Float64(), rng.Float64(), 0.3*rng.Float64()*rng.Float64()
	for b := range base {
		base[b] = width*math.Log(float64(p.width[b])) + size*math.Log(float64(p.size[b])) + noise*rng.NormFloat64()
	}
	return fmt.Sprintf("exact/random-%d", i), taste{total, base}
}

// fit looks for a placement of c in capacity by searches with different
// tastes, each given more steps in every round, as the time to a solution
// varies by orders of magnitude between them. most bounds the steps of all.
func (r *run) fit(ctx context.Context, c *component, capacity, most int64) (outcome, string, error) {
	if len(c.search) == 0 {
		c.search = append(c.search, newSearch(c.p))
	}
	for len(c.search) < min(wave, max(r.opt.Workers, 1)) {
		c.search = append(c.search, c.search[0].clone())
	}
	end := r.best.Steps + most
	next := len(tastes)
	for limit := c.descent; ; limit *= 2 {
		var results [wave]struct {
			outcome outcome
			name    string
			steps   int64
			offsets []int64
		}
		n := int(min((end-r.best.Steps)/limit, wave))
		if n < 1 {
			return outOfSteps, "", nil
		}
		random := next
		next++
		err := parallel(ctx, n, len(c.search), func(worker, i int) bool {
			s, res := c.search[worker], &results[i]
			which := i
			if i == wave-1 {
				which = random
			}
			var t taste
			res.name, t = r.taste(c.p, which)
			res.outcome = s.run(ctx, capacity, t, limit)
			res.steps = s.steps
			if res.outcome == found {
				res.offsets = slices.Clone(s.offset)
			}
			return res.outcome == outOfSteps
		})
		if err != nil {
			return outOfSteps, "", err
		}
		for i := range results {
			res := &results[i]
			r.best.Steps += res.steps
			switch res.outcome {
			case impossible:
				return impossible, res.name, nil
			case found:
				c.height = 0
				offsets := slices.Clone(r.best.Offsets)
				for k, b := range c.buffers {
					offsets[b] = res.offsets[k]
					c.height = max(c.height, offsets[b]+r.p.size[b])
				}
				r.best.Offsets = offsets
				return found, res.name, nil
			}
		}
	}
}

// exact narrows the height from both sides with the exact search, component by
// component.
func (r *run) exact(ctx context.Context) error {
	g := r.p.grain()
	r.best.LowerBound = alignUp(r.best.LowerBound, g)
	cs := r.components()
	height := func() (h int64) {
		for _, c := range cs {
			h = max(h, c.height)
		}
		return h
	}
	// The first attempt is for the best that is possible, or for the capacity;
	// then the distance between the height and the highest target that was not
	// reached is halved. A quarter of the budget is left for reordering.
	reserve := r.left() / 4
	missed := int64(-1)
	for target := r.target(); !r.done() && r.left() > reserve; {
		result := found
		for _, c := range cs {
			if c.height <= target || result != found {
				continue
			}
			if !c.prepare(r.p) {
				return nil
			}
			most := r.left() - reserve
			if r.opt.Capacity == 0 {
				most /= 2
			}
			var name string
			var err error
			if result, name, err = r.fit(ctx, c, target, most); err != nil {
				return err
			}
			if h := height(); h < r.best.Height {
				r.best.Height, r.best.Heuristic, r.order = h, name, nil
			}
		}
		if result == impossible {
			r.best.LowerBound = alignUp(target+1, g)
		}
		if result != found {
			missed = target
		}
		if r.opt.Capacity > 0 && missed >= 0 {
			return nil
		}
		missed = max(missed, r.best.LowerBound-g)
		target = missed + alignUp((r.best.Height-missed+1)/2, g)
		if target >= r.best.Height {
			return nil
		}
	}
	return nil
}

// reorder improves on the best placement so far: half of its attempts are first
// fit by random classes of size and lifetime, the others move what sticks out
// of the best placement forward in its order (squeaky wheel optimisation).
func (r *run) reorder(ctx context.Context) error {
	p := r.p
	start := p.values(byLower)
	size, width := make([]float64, p.n), make([]float64, p.n)
	for b := range p.n {
		size[b], width[b] = math.Log2(float64(p.size[b])), math.Log2(float64(p.width[b]))
	}
	var t tries
	var keys [wave][]float64 // by buffer, ascending
	// best are the keys of the best placement by first fit. Any placement can
	// serve: first fit in the order of its offsets puts nothing higher.
	order := r.order
	if order == nil {
		order = make([]int32, p.n)
		for b := range order {
			order[b] = int32(b)
		}
		slices.SortFunc(order, func(x, y int32) int {
			return cmp.Or(cmp.Compare(r.best.Offsets[x], r.best.Offsets[y]), cmp.Compare(x, y))
		})
	}
	best := make([]float64, p.n)
	for rank, b := range order {
		best[b] = float64(rank)
	}
	bestOffsets, bestHeight := slices.Clone(r.best.Offsets), r.best.Height
	for round := uint64(0); !r.done() && r.left() > 0; round++ {
		target, limit := r.best.LowerBound, bestHeight
		err := r.together(ctx, &t, wave, max(r.left()/2, 1), func(i int, a *attempt) {
			rng := rand.New(rand.NewPCG(r.opt.Seed, round*wave+uint64(i)+1<<32))
			key := keys[i]
			if key == nil {
				key = make([]float64, p.n)
				keys[i] = key
			}
			if i%2 == 0 {
				grain, phase := math.Exp(3*rng.Float64()-1.5), rng.Float64()
				tilt := 0.0
				if rng.IntN(2) == 0 {
					tilt = rng.Float64() - 0.5
				}
				for b := range key {
					// The start, a number of a section, decides within a class.
					key[b] = -math.Floor((size[b]+tilt*width[b])*grain+phase)*(1<<32) - start[b]
				}
			} else {
				// Positions are ranks: what ends above a line between the
				// target and the height moves to a random place before.
				line := target + int64(rng.Float64()*float64(bestHeight-target))
				for b := range key {
					key[b] = best[b]
					if bestOffsets[b]+p.size[b] > line {
						key[b] *= rng.Float64()
					}
				}
			}
			order := make([]int32, p.n)
			for b := range order {
				order[b] = int32(b)
			}
			slices.SortFunc(order, func(x, y int32) int {
				return cmp.Or(cmp.Compare(key[x], key[y]), cmp.Compare(x, y))
			})
			for rank, b := range order {
				key[b] = float64(rank)
			}
			a.fitter.steps += 10 * int64(p.n)
			a.height, a.ok = a.fitter.place(order, firstFit, limit, a.offsets)
		})
		if err != nil {
			return err
		}
		for i := range t.attempts {
			if a := &t.attempts[i]; a.ok && a.height <= bestHeight {
				bestHeight = a.height
				best, keys[i] = keys[i], best
				bestOffsets, a.offsets = a.offsets, bestOffsets
				if a.height < r.best.Height {
					r.offer("reordered", slices.Clone(bestOffsets), a.height)
				}
			}
		}
	}
	return nil
}
