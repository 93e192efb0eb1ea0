package planner

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
)

// Worlds are the case under each explanation of its recording that the question
// leaves open: one case if the recording tells, or if what the user chose makes
// them the same. An answer must hold in all of them.
func (c Case) Worlds() []Case {
	if c.Recovered == nil || len(c.Recovered.Explanations) < 2 {
		return []Case{c}
	}
	asRecorded := c.Machine == c.Recovered.Machine()
	var out []Case
	for _, e := range c.Recovered.Explanations {
		w := c
		rec := *c.Recovered
		rec.Trace, rec.Explanations = e.Trace, []recovery.Explanation{e}
		rec.Limit, rec.Capacity = e.Machine.Limit, e.Machine.Capacity
		w.Trace, w.Recovered = e.Trace, &rec
		if asRecorded {
			w.Machine = rec.Machine()
		}
		if !slices.ContainsFunc(out, func(o Case) bool { return o.Machine == w.Machine && sameRequests(o.Trace, w.Trace) }) {
			out = append(out, w)
		}
	}
	return out
}

// sameRequests reports that two readings of a recording ask the same.
func sameRequests(a, b *traces.Trace) bool {
	return a == b || slices.Equal(a.Events, b.Events)
}

// worldsOf are the worlds of several cases, all of which must be served, with
// the index of the case that each belongs to.
func worldsOf(cases []Case) (worlds []Case, of []int) {
	for i, c := range cases {
		for _, w := range c.Worlds() {
			worlds, of = append(worlds, w), append(of, i)
		}
	}
	return worlds, of
}

// says is the explanation that a world rests on; empty for the only one.
func (c *Case) says() string {
	if c.Recovered == nil || len(c.Recovered.Explanations) != 1 {
		return ""
	}
	return c.Recovered.Explanations[0].Says
}

// World is how a run goes under one explanation of the recording.
type World struct {
	Says            string `json:"says"`
	Completed       bool   `json:"completed"`
	ReservedPeak    int64  `json:"reserved_peak"`
	NumAllocRetries int64  `json:"num_alloc_retries"`
	NumOOMs         int64  `json:"num_ooms"`
}

// NewWorld describes the run of a case.
func NewWorld(c *Case, r *sim.Result) World {
	return World{
		Says: c.says(), Completed: r.Completed, ReservedPeak: r.Stats.ReservedBytes[policies.All].Peak,
		NumAllocRetries: r.Stats.NumAllocRetries, NumOOMs: r.Stats.NumOOMs,
	}
}

// Replayed is a run of a case under every explanation of its recording.
type Replayed struct {
	// Result is the run that needs most: one that fails, else the highest peak.
	Result *sim.Result
	// Case is the world that it ran in; Worlds are all, first the most
	// plausible.
	Case   Case
	Worlds []World
}

// Replay runs a case as it is, under every explanation of its recording. With
// detail, the result describes the fragmentation at its peak.
func Replay(ctx context.Context, c *Case, detail bool) (*Replayed, error) {
	out := new(Replayed)
	for _, w := range c.Worlds() {
		cfg := w.Config()
		cfg.Detail = detail
		res, err := sim.Run(ctx, w.Trace, cfg)
		if err != nil {
			return nil, err
		}
		out.Worlds = append(out.Worlds, NewWorld(&w, res))
		if out.Result == nil || worse(res, out.Result) {
			out.Result, out.Case = res, w
		}
	}
	return out, nil
}

// worse reports that run a is the more cautious answer than b.
func worse(a, b *sim.Result) bool {
	return cmp.Or(
		boolFirst(!a.Completed, !b.Completed),
		-cmp.Compare(a.Stats.NumOOMs, b.Stats.NumOOMs),
		-cmp.Compare(a.Stats.ReservedBytes[policies.All].Peak, b.Stats.ReservedBytes[policies.All].Peak),
	) < 0
}

// Differ says, in one sentence, that the explanations of a recording give
// different answers; empty if they agree.
func Differ(worlds []World) string {
	if len(worlds) < 2 {
		return ""
	}
	low, high := worlds[0], worlds[0]
	same := true
	for _, w := range worlds[1:] {
		o := w
		o.Says = worlds[0].Says
		same = same && o == worlds[0]
		if w.ReservedPeak < low.ReservedPeak {
			low = w
		}
		if w.ReservedPeak > high.ReservedPeak || w.NumOOMs > high.NumOOMs {
			high = w
		}
	}
	if same {
		return ""
	}
	return fmt.Sprintf("The recording fits %d explanations, and they differ here: reserved peak %s to %s, %d to %d OOMs.",
		len(worlds), bytesize.Format(low.ReservedPeak), bytesize.Format(high.ReservedPeak), least(worlds), most(worlds))
}

func least(worlds []World) int64 {
	n := worlds[0].NumOOMs
	for _, w := range worlds {
		n = min(n, w.NumOOMs)
	}
	return n
}

func most(worlds []World) int64 {
	var n int64
	for _, w := range worlds {
		n = max(n, w.NumOOMs)
	}
	return n
}
