// Package scale predicts the memory of a size nobody ran from recordings of
// the same program at other sizes.
//
// A straight line through recorded peaks is wrong by up to 60 %, because the
// moment of the peak changes with the size: at a small batch it is the
// optimizer's step, at a large one the activations. What hardly changes is the
// stream of requests. So the recordings are aligned, allocation by allocation
// ([Fit]); each allocation's requested size is fitted by an exact law (most are
// constant or proportional to the byte); the requests for the new size are
// written out as a trace of their own ([Model.Generate]); and that trace is
// run through the allocator like any recording ([Model.Predict]). What no law
// explains, chiefly the scratch of convolution libraries, is varied over
// several runs, which gives the bar.
//
// There is no fallback: when the recordings do not look like one program at
// several sizes, the answer is a [Refusal] that says why.
package scale

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"allocsim/planner/gpus"
	"allocsim/traces"
)

// Input is a recording of the program at one value of the varied quantity.
type Input struct {
	Value int64 // such as the batch size; > 0
	Trace *traces.Trace
}

// Options adjust a Fit. The zero Options are right for a batch size on a known
// GPU.
type Options struct {
	// Vary names the varied quantity, as in --vary. "batch" and its like are
	// counts; anything else may be a length, in which sizes can be quadratic.
	Vary string
	// SMs and ThreadsPerSM are the recorded GPU's (cudaDeviceProp's
	// multiProcessorCount and maxThreadsPerMultiProcessor); 0 = looked up by
	// the device name in the recordings. They decide how large the buffers of
	// reductions grow.
	SMs, ThreadsPerSM int
	// Step is what values must be a multiple of in the search for the largest;
	// 0 = 1.
	Step int64
	// Workers is the most goroutines used; 0 = GOMAXPROCS. Results do not
	// depend on it.
	Workers int
}

// length reports whether sizes may go with the square of the quantity.
func (o Options) length() bool {
	v := strings.ToLower(o.Vary)
	for _, count := range []string{"batch", "bs", "bsz", "sample", "user", "request", "micro"} {
		if v == count || strings.HasPrefix(v, count+"_") || strings.HasPrefix(v, "batch") || strings.HasPrefix(v, "micro") || v == count+"s" {
			return false
		}
	}
	return v != ""
}

// Refusal is the error when the recordings cannot answer.
type Refusal struct{ Reason string }

func (r *Refusal) Error() string { return "cannot extrapolate: " + r.Reason }

func refuse(format string, args ...any) error {
	return &Refusal{Reason: fmt.Sprintf(format, args...)}
}

// longestRun is the most allocations in a row that may exist in only one of
// two recordings. Same-structure pairs were seen to have up to 16; programs
// that repeat a step more often, 233 and more (spec/scaling.md section 5). In
// small programs a step is shorter: there, more than shortRun and a tenth of
// the shorter recording is too much.
const (
	longestRun = 64
	shortRun   = 8
)

// leastVarying is the share of allocations, or of bytes, whose size must differ
// between recordings at two values. Two runs at one value differ in fewer, such
// as the scratch of libraries; real pairs, in a tenth and more.
const leastVarying = 0.005

// Pair says how well two recordings align.
type Pair struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Aligned is the share of the larger list's allocations that have a
	// partner, 0 to 1.
	Aligned float64 `json:"aligned"`
	// Unmatched is the number without, on either side, and LongestRun the most
	// of them in a row.
	UnmatchedFrom int `json:"unmatched_from"`
	UnmatchedTo   int `json:"unmatched_to"`
	LongestRun    int `json:"longest_run"`
}

// Model is a set of aligned recordings. It is immutable and may be used by
// several goroutines.
type Model struct {
	opt      Options
	programs []*program // ascending by value
	// partner[i][k][a] is the allocation of program k that goes with
	// allocation a of program i, or -1.
	partner [][][]int32
	pairs   []Pair
	grid    grid
	notes   []string
}

// Fit aligns two or more recordings of one program. A *Refusal says that they
// are not that: different numbers of steps, an OOM, a missing beginning.
func Fit(ctx context.Context, inputs []Input, opt Options) (*Model, error) {
	if len(inputs) < 2 {
		return nil, errors.New("at least two recordings at different values are needed")
	}
	withSites := true
	for _, in := range inputs {
		if in.Trace == nil {
			return nil, errors.New("an input without a trace")
		}
		if in.Value <= 0 {
			return nil, fmt.Errorf("%s: the value must be positive, not %d", in.Trace.Source, in.Value)
		}
		withSites = withSites && in.Trace.Stacks != nil
	}
	sorted := slices.Clone(inputs)
	slices.SortStableFunc(sorted, func(a, b Input) int {
		if a.Value < b.Value {
			return -1
		}
		return int(min(a.Value-b.Value, 1))
	})
	m := &Model{opt: opt}
	known := &sites{ids: make(map[traces.Frame]uint32)}
	for i, in := range sorted {
		if i > 0 && in.Value == sorted[i-1].Value {
			return nil, fmt.Errorf("two recordings at %d: %s and %s; each value may occur once", in.Value, sorted[i-1].Trace.Source, in.Trace.Source)
		}
		p, err := reduce(in, known, withSites)
		if err != nil {
			return nil, err
		}
		m.programs = append(m.programs, p)
	}
	m.compareMeta()
	m.grid = gridOf(opt, m.programs)

	k := len(m.programs)
	m.partner = make([][][]int32, k)
	for i := range m.partner {
		m.partner[i] = make([][]int32, k)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(opt.workers())
	for i := range k {
		for j := i + 1; j < k; j++ {
			g.Go(func() error {
				a, b := m.programs[i], m.programs[j]
				pairs, err := align(gctx, a.allocs, b.allocs, ratio{a.value, b.value, opt.length()})
				if err != nil {
					return err
				}
				m.partner[i][j], m.partner[j][i] = pairs, invert(pairs, len(b.allocs))
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i := range k {
		for j := i + 1; j < k; j++ {
			p := m.pair(i, j)
			m.pairs = append(m.pairs, p)
			shorter := min(len(m.programs[i].allocs), len(m.programs[j].allocs))
			if p.LongestRun > longestRun || p.LongestRun > shortRun && 10*p.LongestRun > shorter {
				return nil, refuse("%d allocations in a row exist in only one of the recordings at %d and %d: the value seems to change how often something runs (steps, micro-batches, generated tokens) or the programs differ",
					p.LongestRun, p.From, p.To)
			}
		}
	}
	for i := 1; i < k; i++ {
		if !m.varies(i-1, i) {
			return nil, refuse("among the allocations that are matched between the recordings at %d and %d, none varies in size; record one program at different values",
				m.programs[i-1].value, m.programs[i].value)
		}
	}
	return m, nil
}

// varies reports whether the value makes a difference between two recordings:
// in leastVarying of the allocations or of their bytes.
func (m *Model) varies(i, j int) bool {
	a, b := m.programs[i].allocs, m.programs[j].allocs
	var n, matched int
	var bytes, all float64
	for x, y := range m.partner[i][j] {
		if y < 0 {
			continue
		}
		matched++
		all += float64(b[y].size)
		if a[x].size != b[y].size {
			n++
			bytes += float64(b[y].size)
		}
	}
	return float64(n) > leastVarying*float64(matched) || bytes > leastVarying*all
}

func (o Options) workers() int {
	if o.Workers > 0 {
		return o.Workers
	}
	return runtime.GOMAXPROCS(0)
}

func invert(pairs []int32, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = -1
	}
	for i, j := range pairs {
		if j >= 0 {
			out[j] = int32(i)
		}
	}
	return out
}

func (m *Model) pair(i, j int) Pair {
	p := Pair{From: m.programs[i].value, To: m.programs[j].value}
	count := func(pairs []int32) (unmatched int) {
		run := 0
		for _, q := range pairs {
			if q >= 0 {
				run = 0
				continue
			}
			unmatched++
			run++
			p.LongestRun = max(p.LongestRun, run)
		}
		return unmatched
	}
	p.UnmatchedFrom, p.UnmatchedTo = count(m.partner[i][j]), count(m.partner[j][i])
	matched := len(m.partner[i][j]) - p.UnmatchedFrom
	p.Aligned = float64(matched) / float64(max(len(m.partner[i][j]), len(m.partner[j][i])))
	return p
}

// compareMeta notes what should not differ between the recordings.
func (m *Model) compareMeta() {
	first := m.programs[0].trace
	for _, p := range m.programs[1:] {
		t := p.trace
		differ := func(what, a, b string) {
			if a != b && a != "" && b != "" {
				m.notes = append(m.notes, fmt.Sprintf("The recordings differ in %s (%s at %d, %s at %d): library scratch may differ too.", what, a, m.programs[0].value, b, p.value))
			}
		}
		differ("PyTorch version", first.Meta.Torch, t.Meta.Torch)
		if first.Meta.ConfKnown && t.Meta.ConfKnown && first.Meta.Conf != t.Meta.Conf {
			m.notes = append(m.notes, fmt.Sprintf("The recordings were made with different configurations (%q at %d, %q at %d); the prediction uses one for all.", first.Meta.Conf, m.programs[0].value, t.Meta.Conf, p.value))
		}
		differ("device", first.Meta.DeviceName, t.Meta.DeviceName)
	}
	for i := 1; i < len(m.programs); i++ {
		a, b := m.programs[i-1].value, m.programs[i].value
		if len(m.programs) == 2 && float64(b) < 1.2*float64(a) {
			m.notes = append(m.notes, fmt.Sprintf("The recordings at %d and %d are too close to tell slopes from rounding; record values at least 1.5 times apart.", a, b))
		}
	}
}

// Pairs says how well each two recordings align, by ascending values.
func (m *Model) Pairs() []Pair { return slices.Clone(m.pairs) }

// Aligned is the smallest share of matched allocations over all pairs.
func (m *Model) Aligned() float64 {
	share := 1.0
	for _, p := range m.pairs {
		share = min(share, p.Aligned)
	}
	return share
}

// Values are the recorded values, ascending.
func (m *Model) Values() []int64 {
	vs := make([]int64, len(m.programs))
	for i, p := range m.programs {
		vs[i] = p.value
	}
	return vs
}

// Notes are caveats about the recordings themselves.
func (m *Model) Notes() []string { return slices.Clone(m.notes) }

// reference is the recording whose order of requests a value gets: the nearest
// in log distance, the larger of two equally near. Between two recordings it is
// the larger if only that one has buffers of reductions that the value needs
// too.
func (m *Model) reference(value int64) int {
	best, distance := 0, math.Inf(1)
	for i, p := range m.programs {
		d := math.Abs(math.Log(float64(p.value) / float64(value)))
		if d <= distance*(1+1e-12) {
			best, distance = i, d
		}
	}
	if next := best + 1; m.programs[best].value < value && next < len(m.programs) {
		for a, f := range m.reductions(next, value) {
			if f.size > 0 && m.partner[next][best][a] < 0 {
				return next
			}
		}
	}
	return best
}

// gpuOf looks the recorded device up.
func gpuOf(programs []*program) (gpus.Card, bool) {
	for _, p := range programs {
		if name := p.trace.Meta.DeviceName; name != "" {
			if c, err := gpus.Find(name); err == nil {
				return c, true
			}
		}
	}
	return gpus.Card{}, false
}
