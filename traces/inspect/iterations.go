package inspect

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strings"

	"allocsim/traces"
)

// Iterations are the repeating parts of a program, such as training steps.
type Iterations struct {
	// Bounds are indices of Trace.Events, ascending: iteration i is the events
	// from Bounds[i] up to Bounds[i+1]. Fewer than two when the program does
	// not repeat or the trace is too short to tell.
	Bounds []int
	// From says how they were found: the name of the program's own marks, or
	// "pattern of requests".
	From string
	// Marked tells the program's own marks from a guess by the pattern.
	Marked bool
}

// Count is the number of whole iterations.
func (it *Iterations) Count() int { return max(0, len(it.Bounds)-1) }

// at is the iteration that event i belongs to: -1 before the first bound, and
// Count() after the last.
func (it *Iterations) at(i int) int { return sort.SearchInts(it.Bounds, i+1) - 1 }

// FindIterations finds the iterations of a program: from its own marks
// (annotations of PyTorch's profiler steps and optimizers, or ones that are
// named so), else from the pattern of its requests. Where PyTorch has marked
// even one step, the pattern is not asked: what repeats more often than steps
// are layers.
func FindIterations(t *traces.Trace) Iterations {
	if it := fromAnnotations(t); it.Marked {
		return it
	}
	return fromPattern(t)
}

// stepName matches names that programs give to iterations.
var stepName = regexp.MustCompile(`(?i)(^|[^a-z])(step|iter|iteration|batch)s?([^a-z]|$)`)

func fromAnnotations(t *traces.Trace) Iterations {
	starts := make(map[string][]int64)
	for _, a := range t.Annotations {
		if a.End {
			continue
		}
		name := strings.TrimRight(a.Name, "0123456789")
		starts[name] = append(starts[name], a.TimeUS)
	}
	// PyTorch's own marks come first, then the program's; among equals the one
	// that occurs least marks the outermost loop.
	rank := func(name string) int {
		switch {
		case strings.HasPrefix(name, "ProfilerStep"):
			return 0
		case strings.HasPrefix(name, "Optimizer.step#"):
			return 1
		case strings.HasPrefix(name, "Optimizer.zero_grad#"):
			return 2
		case stepName.MatchString(name):
			return 3
		}
		return 4
	}
	best := ""
	for name, s := range starts {
		if r := rank(name); r == 4 || r == 3 && len(s) < 2 {
			continue
		}
		if best == "" || cmp.Or(
			cmp.Compare(rank(name), rank(best)),
			cmp.Compare(len(s), len(starts[best])),
			cmp.Compare(name, best)) < 0 {
			best = name
		}
	}
	if best == "" {
		return Iterations{}
	}
	it := Iterations{From: strings.TrimRight(best, "# _-"), Marked: true}
	for _, us := range starts[best] {
		i := t.StartEvents + sort.Search(len(t.Events)-t.StartEvents, func(i int) bool { return t.Events[t.StartEvents+i].TimeUS >= us })
		// Marks outside the trace, or without a request in between, bound
		// nothing.
		if i == len(t.Events) || len(it.Bounds) > 0 && i == it.Bounds[len(it.Bounds)-1] || i == t.StartEvents && us < t.Events[i].TimeUS && len(it.Bounds) == 0 && t.StartEvents > 0 {
			continue
		}
		it.Bounds = append(it.Bounds, i)
	}
	return it
}

const (
	// minBounds is how often a place must occur to count as repeating.
	minBounds = 4
	// gram is how many successive requests make a place recognisable.
	gram = 5
	// maxSpread is the largest coefficient of variation of the distances
	// between occurrences of a place: sequence lengths may vary, but something
	// that occurs several times in one iteration is no bound.
	maxSpread = 0.5
	// minCover is the share of the requests that the iterations must cover.
	minCover = 0.4
)

// fromPattern finds places in the sequence of requests (a place is a run of
// gram successive sizes and streams) that recur at regular distances over most
// of the trace. The number of occurrences that most places agree on is the
// number of bounds.
func fromPattern(t *traces.Trace) Iterations {
	type occurrence struct {
		hash  uint64
		index int32 // into allocs
	}
	var allocs []int32 // events
	for i, e := range t.Events[t.StartEvents:] {
		if e.Kind == traces.Alloc {
			allocs = append(allocs, int32(t.StartEvents+i))
		}
	}
	if len(allocs) < minBounds*2 || len(allocs) > math.MaxInt32 {
		return Iterations{}
	}
	key := func(i int32) uint64 {
		e := &t.Events[i]
		return mix(uint64(e.Size) ^ uint64(e.Stream)<<48 ^ uint64(e.Pool)<<40)
	}
	grams := make([]occurrence, 0, len(allocs))
	for i := range allocs {
		if i+gram > len(allocs) {
			break
		}
		h := uint64(0)
		distinct := false
		for _, a := range allocs[i : i+gram] {
			h = mix(h ^ key(a))
			distinct = distinct || key(a) != key(allocs[i])
		}
		if distinct {
			grams = append(grams, occurrence{h, int32(i)})
		}
	}
	slices.SortFunc(grams, func(x, y occurrence) int {
		return cmp.Or(cmp.Compare(x.hash, y.hash), cmp.Compare(x.index, y.index))
	})
	type place struct {
		first, n int // into grams
		spread   float64
	}
	places := make(map[int][]place) // by number of occurrences
	for i := 0; i < len(grams); {
		j := i + 1
		for j < len(grams) && grams[j].hash == grams[i].hash {
			j++
		}
		if n := j - i; n >= minBounds {
			span := float64(grams[j-1].index - grams[i].index)
			mean := span / float64(n-1)
			square := 0.0
			for k := i + 1; k < j; k++ {
				d := float64(grams[k].index-grams[k-1].index) - mean
				square += d * d
			}
			spread := math.Sqrt(square/float64(n-1)) / mean
			if spread <= maxSpread && span >= minCover*float64(len(allocs)) {
				places[n] = append(places[n], place{i, n, spread})
			}
		}
		i = j
	}
	best := 0
	for n, p := range places {
		if best == 0 || cmp.Or(cmp.Compare(len(p), len(places[best])), cmp.Compare(best, n)) > 0 {
			best = n
		}
	}
	if best == 0 {
		return Iterations{}
	}
	// The most regular place; the first one among equals.
	anchor := slices.MinFunc(places[best], func(x, y place) int {
		return cmp.Or(cmp.Compare(x.spread, y.spread), cmp.Compare(grams[x.first].index, grams[y.first].index))
	})
	it := Iterations{From: "pattern of requests"}
	for _, o := range grams[anchor.first : anchor.first+anchor.n] {
		it.Bounds = append(it.Bounds, int(allocs[o.index]))
	}
	if !works(t, &it) {
		return Iterations{}
	}
	return it
}

// maxHeld is for how many iterations a program may hold what it made.
const maxHeld = YoungIterations + 1

// works tells the outermost loop of a program from layers that repeat within
// it, and from the building of a model out of equal layers:
//   - most iterations allocate something that they free themselves, which
//     building does not;
//   - few free what is older than a few iterations, as every layer of a
//     backward pass does;
//   - the loop goes on to the end, but for an evaluation or so.
func works(t *traces.Trace, it *Iterations) bool {
	born := make([]int32, t.NumBlocks) // iteration + 1; 0 = before the loop
	own, older := 0, 0
	n := it.Count()
	for i := range it.Bounds[n] {
		e := &t.Events[i]
		if e.Kind == traces.Alloc {
			born[e.ID] = int32(it.at(i) + 1)
		}
	}
	for k := range n {
		var freesOwn, freesOlder bool
		for _, e := range t.Events[it.Bounds[k]:it.Bounds[k+1]] {
			if e.Kind == traces.Free || e.Kind == traces.FreeRequested {
				freesOwn = freesOwn || born[e.ID] == int32(k+1)
				freesOlder = freesOlder || born[e.ID] == 0 || int(born[e.ID]) < k+1-maxHeld
			}
		}
		if freesOwn {
			own++
		}
		if freesOlder && k >= WarmIterations {
			older++
		}
	}
	loop := it.Bounds[n] - it.Bounds[0]
	return 2*own >= n && 4*older <= n && len(t.Events)-it.Bounds[n] <= max(loop/2, 2*loop/n)
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// String describes the iterations for people.
func (it *Iterations) String() string {
	if it.Count() == 0 {
		return "no iterations found"
	}
	return fmt.Sprintf("%d iterations (by %s)", it.Count(), it.From)
}
