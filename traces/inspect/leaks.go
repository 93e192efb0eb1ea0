package inspect

import (
	"cmp"
	"fmt"
	"slices"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/traces"
)

// Leak is memory that grows by iteration.
type Leak struct {
	// BytesPerIteration is the requested bytes that each iteration leaves
	// behind, on average.
	BytesPerIteration int64 `json:"bytes_per_iteration"`
	// SinceUS is when the first of them was allocated, in µs since the start
	// of the trace.
	SinceUS int64 `json:"since_us"`
	// Where is the call site, or the size of the requests.
	Where string `json:"where"`
	// ProjectedOOMUS is when all leaks together will have used up the
	// capacity, in µs since the start of the trace, if the program goes on as
	// it did, or when it was used up; 0 without a capacity.
	ProjectedOOMUS int64 `json:"projected_oom_us,omitempty"`
	// Iterations is how many of those judged left something behind, Blocks how
	// many allocations they left.
	Iterations int `json:"iterations"`
	Blocks     int `json:"blocks"`
}

// LeakReport is the result of FindLeaks.
type LeakReport struct {
	Leaks []Leak
	// Iterations are those by which growth was judged.
	Iterations Iterations
	// Judged is how many of them are evidence: all but the first
	// WarmIterations, which make what stays for good, and the last
	// YoungIterations, whose memory the next ones may still free.
	Judged int
	// IterationsLeft is how many more iterations the capacity will last, if
	// there are leaks. UsedUpUS is when it was used up already, in µs since the
	// start of the trace; -1 = it was not.
	IterationsLeft int
	UsedUpUS       int64
	// Note says why nothing could be judged, or what the judgement rests on
	// when that is a guess; empty otherwise.
	Note string
}

// The last iterations may hold what the next ones still free (prefetched
// batches, the last output), the first one makes what stays for good
// (optimizer states): neither is evidence.
const (
	YoungIterations = 2
	WarmIterations  = 1
)

const (
	// minLeaking is how many iterations must have left something behind.
	minLeaking = 4
	// minJudged is how many iterations there must be to judge at all.
	minJudged = minLeaking + YoungIterations + WarmIterations
	// minGuessed is the least growth in bytes per iteration that is reported
	// when the iterations are a guess: the tokens of a text that is being
	// generated are kept too, until it is done.
	minGuessed = 4 << 10
)

// FindLeaks finds what every iteration (or every third, say) leaves behind: at
// the last bound of the iterations (see FindIterations), which blocks of which
// call site or size live, and in which iteration each was allocated. In a
// program without a leak these are the iterations around the first and the
// last; a leak has some from iterations all along, up to the end. capacity is
// the bytes available to the allocator, for the projection; 0 = unknown.
func FindLeaks(t *traces.Trace, capacity int64) LeakReport {
	r := LeakReport{Iterations: FindIterations(t), UsedUpUS: -1}
	it := &r.Iterations
	if r.Note = tooFew(it); r.Note != "" {
		return r
	}
	end := aliveAtEnd(t, it, capacity)
	r.UsedUpUS = end.usedUpUS
	judged := it.Count() - YoungIterations
	r.Judged = judged - WarmIterations
	if !it.Marked && !breathes(t, it) && !trains(t, it, end.live) {
		// What repeats only adds: so do layers whose outputs wait for the
		// backward pass, as when memory runs out in the first forward pass.
		r.Note = "Every part of the trace that repeats only adds memory; without marks of the program this may be layers as well as a leak, so none is reported."
		return r
	}
	var total float64 // bytes per iteration
	report := func(g *remainder, from int, where string) {
		l, per := g.leak(t, from)
		if !it.Marked && per < minGuessed {
			return
		}
		l.Where = where
		total += per
		r.Leaks = append(r.Leaks, l)
	}
	// What no group explains may be a leak of sizes that differ each time.
	rest := newRemainder(judged)
	for _, g := range remainders(t, it, end, judged) {
		if from, ok := leaking(g.blocks); ok {
			report(g, from, g.where(t))
		} else if g.site == "" {
			rest.merge(g)
		}
	}
	if from, ok := leaking(rest.blocks); ok && every(rest.blocks[from:]) {
		report(rest, from, fmt.Sprintf("requests of varying size, %s to %s", bytesize.Format(rest.lo), bytesize.Format(rest.hi)))
	}
	if !it.Marked && len(r.Leaks) > 0 {
		r.Note = "The iterations are a guess by the pattern of requests. If what repeats are the layers of a single pass, this is no leak."
	}
	if capacity > 0 && total > 0 {
		r.project(t, float64(capacity-end.peak), total)
	}
	slices.SortStableFunc(r.Leaks, func(x, y Leak) int { return cmp.Compare(y.BytesPerIteration, x.BytesPerIteration) })
	return r
}

// tooFew says why the iterations are too few to judge leaks by; empty when they
// are not.
func tooFew(it *Iterations) string {
	switch n := it.Count(); {
	case n >= minJudged:
		return ""
	case n > 0:
		return fmt.Sprintf("Leaks are judged by iteration, and the trace has only %d; record at least %d.", n, minJudged)
	case it.Marked:
		return fmt.Sprintf("Leaks are judged by iteration, and the trace has no whole one (by %s); record at least %d.", it.From, minJudged)
	}
	return "Leaks are judged by iteration, and the trace shows none: neither marks of the program nor a repeating pattern of requests."
}

// alive is what lives at the last bound of the iterations.
type alive struct {
	live     *traces.Live // up to there
	birth    []int32      // by block: the event that made it; -1 = it does not live
	peak     int64        // the most requested bytes in the last whole iteration
	usedUpUS int64        // when requested bytes first exceeded the capacity; -1 = never
}

func aliveAtEnd(t *traces.Trace, it *Iterations, capacity int64) alive {
	a := alive{live: t.Live(), birth: make([]int32, t.NumBlocks), usedUpUS: -1}
	for i := range a.birth {
		a.birth[i] = -1
	}
	n := it.Count()
	for i := range it.Bounds[n] {
		e := &t.Events[i]
		a.live.See(e)
		switch e.Kind {
		case traces.Alloc:
			a.birth[e.ID] = int32(i)
			if capacity > 0 && a.live.Allocated > capacity && a.usedUpUS < 0 {
				a.usedUpUS = e.TimeUS
			}
		case traces.Free, traces.FreeRequested:
			a.birth[e.ID] = -1
		}
		if i >= it.Bounds[n-1] {
			a.peak = max(a.peak, a.live.Allocated)
		}
	}
	return a
}

// A remainder is what iterations left behind at one call site or, without call
// sites, of one size and stream.
type remainder struct {
	place
	bytes  []int64 // by iteration judged
	blocks []int   // the same
	first  int32   // event of the first block; -1 = none yet
	lo, hi int64   // sizes
}

type place struct {
	site   string
	size   int64
	stream uint16
}

func newRemainder(judged int) *remainder {
	return &remainder{bytes: make([]int64, judged), blocks: make([]int, judged), first: -1}
}

// cover widens what is known of the blocks.
func (g *remainder) cover(first int32, lo, hi int64) {
	if g.first < 0 {
		g.first, g.lo, g.hi = first, lo, hi
	}
	g.first, g.lo, g.hi = min(g.first, first), min(g.lo, lo), max(g.hi, hi)
}

// add counts a block that the given iteration made. What came before the loop
// has warmed up is no evidence, but the beginning if later ones are.
func (g *remainder) add(birth int32, size int64, iteration int) {
	if iteration < WarmIterations {
		if g.first < 0 {
			g.cover(birth, size, size)
		}
		g.first = min(g.first, birth)
		return
	}
	g.cover(birth, size, size)
	g.bytes[iteration] += size
	g.blocks[iteration]++
}

// merge adds another remainder, if there is evidence in it.
func (g *remainder) merge(o *remainder) {
	if !slices.ContainsFunc(o.blocks, func(n int) bool { return n > 0 }) {
		return
	}
	g.cover(o.first, o.lo, o.hi)
	for j := range g.blocks {
		g.bytes[j] += o.bytes[j]
		g.blocks[j] += o.blocks[j]
	}
}

// where names the place for people.
func (g *remainder) where(t *traces.Trace) string {
	if g.site != "" {
		return g.site
	}
	where := fmt.Sprintf("requests of %d B (%s)", g.size, bytesize.Format(g.size))
	if t.Stacks != nil {
		where += " without a call site"
	}
	if s := t.Streams[g.stream]; s != 0 {
		where += fmt.Sprintf(" on stream %#x", s)
	}
	return where
}

// leak is the growth since iteration from, without a place, and its bytes per
// iteration.
func (g *remainder) leak(t *traces.Trace, from int) (l Leak, per float64) {
	l.SinceUS = t.Events[g.first].TimeUS
	var sum int64
	for j, n := range g.blocks[from:] {
		sum += g.bytes[from+j]
		l.Blocks += n
		if n > 0 {
			l.Iterations++
		}
	}
	per = float64(sum) / float64(len(g.blocks)-from)
	l.BytesPerIteration = max(1, int64(per+0.5))
	return l, per
}

// remainders groups what lives at the end by place, in the order of block ids,
// which is that of the first allocations. The youngest iterations are no
// evidence.
func remainders(t *traces.Trace, it *Iterations, end alive, judged int) []*remainder {
	sites := newSiteNames(t)
	at := make(map[place]*remainder)
	var order []*remainder
	for id, birth := range end.birth {
		if birth < 0 {
			continue
		}
		iteration := it.at(int(birth))
		if iteration >= judged {
			continue
		}
		p := place{site: sites.of(traces.BlockID(id))}
		if p.site == "" {
			if iteration < 0 {
				continue // parameters may have any size
			}
			e := &t.Events[birth]
			p.size, p.stream = e.Size, e.Stream
		}
		g := at[p]
		if g == nil {
			g = newRemainder(judged)
			g.place = p
			at[p] = g
			order = append(order, g)
		}
		g.add(birth, end.live.Size(traces.BlockID(id)), iteration)
	}
	return order
}

// project says when leaks of so many bytes per iteration in all use up the free
// bytes, if the program goes on as in the iterations seen.
func (r *LeakReport) project(t *traces.Trace, free, total float64) {
	it := &r.Iterations
	n := it.Count()
	last := t.Events[it.Bounds[n]].TimeUS
	perIteration := float64(last-t.Events[it.Bounds[0]].TimeUS) / float64(n)
	left := max(0, free/total)
	r.IterationsLeft = int(min(left, 1<<52))
	at := float64(last) + left*perIteration
	if r.UsedUpUS >= 0 {
		at = float64(r.UsedUpUS)
	}
	for i := range r.Leaks {
		r.Leaks[i].ProjectedOOMUS = int64(min(at, 1<<62))
	}
}

// breathes reports whether within the middle iteration live memory falls, from
// its highest, by at least as much as it grows over the iteration: as it does
// when a forward pass is followed by a backward pass, or an inference by the
// next.
func breathes(t *traces.Trace, it *Iterations) bool {
	live := t.Live()
	see := func(from, to int) (peak int64) {
		peak = live.Allocated
		for i := from; i < to; i++ {
			live.See(&t.Events[i])
			peak = max(peak, live.Allocated)
		}
		return peak
	}
	see(0, it.Bounds[0])
	var fell, grew []int64
	for k := range it.Count() {
		before := live.Allocated
		peak := see(it.Bounds[k], it.Bounds[k+1])
		fell, grew = append(fell, peak-live.Allocated), append(grew, live.Allocated-before)
	}
	slices.Sort(fell)
	slices.Sort(grew)
	return fell[len(fell)/2] >= grew[len(grew)/2]
}

// trains reports whether the middle iteration makes a block for a good part of
// those that lived before the loop, size by size: the gradients of the
// parameters. A layer makes few of them.
func trains(t *traces.Trace, it *Iterations, live *traces.Live) bool {
	old := make(map[int64]int)
	for _, e := range t.Events[:it.Bounds[0]] {
		switch e.Kind {
		case traces.Alloc:
			old[e.Size]++
		case traces.Free, traces.FreeRequested:
			old[live.Size(e.ID)]--
		}
	}
	total, matched := 0, 0
	for _, n := range old {
		total += n
	}
	k := it.Count() / 2
	for _, e := range t.Events[it.Bounds[k]:it.Bounds[k+1]] {
		if e.Kind == traces.Alloc && old[e.Size] > 0 {
			old[e.Size]--
			matched++
		}
	}
	return total >= minJudged && float64(matched) >= minGradients*float64(total)
}

// minGradients allows for optimizer states among what lived before, and is well
// above the share of one layer in minJudged.
const minGradients = 0.3

// leaking judges, from how many blocks each iteration left behind, whether they
// do so regularly and to the end; from is the first of them.
func leaking(blocks []int) (from int, ok bool) {
	var at []int
	for j, n := range blocks {
		if n > 0 {
			at = append(at, j)
		}
	}
	if len(at) < minLeaking {
		return 0, false
	}
	gaps := make([]int, len(at)-1)
	for i := range gaps {
		gaps[i] = at[i+1] - at[i]
	}
	sorted := slices.Sorted(slices.Values(gaps))
	median := sorted[len(sorted)/2]
	if sorted[len(sorted)-1] > 2*median || len(blocks)-1-at[len(at)-1] > 2*median {
		return 0, false
	}
	return at[0], true
}

// every reports that no iteration is empty.
func every(blocks []int) bool { return !slices.Contains(blocks, 0) }

// String is one line for people.
func (l Leak) String() string {
	return fmt.Sprintf("%s per iteration at %s (%s)", bytesize.Format(l.BytesPerIteration), l.Where, plural.Of(l.Blocks, "block"))
}
