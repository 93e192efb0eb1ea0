package planner

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"allocsim/traces"
)

// Robustness says how a configuration holds up when the trace itself changes:
// every size by up to 5 % and the order of frees that nothing separates.
type Robustness struct {
	// Runs is the number of changed traces; Completed how many completed.
	Runs      int `json:"runs"`
	Completed int `json:"completed"`
	// ReservedPeak is the range, in bytes.
	ReservedPeak [2]int64 `json:"reserved_peak"`
}

// ChangedTraces is how many changed traces a Robustness rests on.
const ChangedTraces = 8

// changedTraces are the jobs' traces with one set of changes. They are made when
// the first run asks for them and dropped with the last, so that a search has
// as many copies of a trace as workers and not one for each set.
type changedTraces struct {
	once   sync.Once
	traces []*traces.Trace
	runs   atomic.Int64 // still to come
}

// take returns the changed traces of set k.
func (c *changedTraces) take(t *tuner, k int) []*traces.Trace {
	c.once.Do(func() {
		for i := range t.jobs {
			c.traces = append(c.traces, perturb(t.jobs[i].Trace, uint64(k)))
		}
	})
	return c.traces
}

// done ends one run.
func (c *changedTraces) done() {
	if c.runs.Add(-1) == 0 {
		c.traces = nil
	}
}

// changedRun is the outcome of all jobs on one set of changed traces.
type changedRun struct {
	completed bool
	peak      int64
}

func newRobustness(runs []changedRun) *Robustness {
	r := &Robustness{Runs: len(runs), ReservedPeak: [2]int64{runs[0].peak, runs[0].peak}}
	for _, o := range runs {
		if o.completed {
			r.Completed++
		}
		r.ReservedPeak[0], r.ReservedPeak[1] = min(r.ReservedPeak[0], o.peak), max(r.ReservedPeak[1], o.peak)
	}
	return r
}

// perturb returns a copy of a trace in which each distinct size above a page
// is changed by up to 5 % (equal sizes stay equal: they are the same tensor
// shape) and neighbouring frees change places.
func perturb(tr *traces.Trace, seed uint64) *traces.Trace {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b9))
	c := *tr
	c.Events = make([]traces.Event, len(tr.Events))
	copy(c.Events, tr.Events)
	scale := make(map[int64]int64)
	for i := range c.Events {
		e := &c.Events[i]
		if e.Kind == traces.Alloc || e.Kind == traces.OOM {
			if e.Size <= 4096 {
				continue
			}
			n, ok := scale[e.Size]
			if !ok {
				n = max(int64(float64(e.Size)*(0.95+0.1*rng.Float64())), 1)
				scale[e.Size] = n
			}
			e.Size = n
			continue
		}
		// A run of immediate frees is in an order that the program did not
		// choose on purpose; times stay where they are.
		if i > 0 && e.Kind == traces.Free && c.Events[i-1].Kind == traces.Free && rng.IntN(2) == 0 {
			p := &c.Events[i-1]
			e.ID, p.ID = p.ID, e.ID
			e.Stream, p.Stream = p.Stream, e.Stream
			e.Pool, p.Pool = p.Pool, e.Pool
		}
	}
	return &c
}
