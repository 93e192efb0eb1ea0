package planner

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

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
	worlds := c.Worlds()
	if c.AsRecorded() {
		// Every explanation fits the recorded run; there is only one of that.
		worlds = []Case{*c}
	}
	for _, w := range worlds {
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

// Differ says, in one sentence, in what the explanations of a recording give
// different answers; empty if they agree.
func Differ(worlds []World) string {
	if len(worlds) < 2 {
		return ""
	}
	var parts []string
	peak := spanOf(worlds, func(w World) int64 { return w.ReservedPeak })
	if peak[0] != peak[1] {
		parts = append(parts, fmt.Sprintf("reserved peak %s to %s", bytesize.Format(peak[0]), bytesize.Format(peak[1])))
	}
	for _, x := range []struct {
		what string
		of   func(World) int64
	}{
		{"retries", func(w World) int64 { return w.NumAllocRetries }},
		{"OOMs", func(w World) int64 { return w.NumOOMs }},
	} {
		if n := spanOf(worlds, x.of); n[0] != n[1] {
			parts = append(parts, fmt.Sprintf("%d to %d %s", n[0], n[1], x.what))
		}
	}
	completed := 0
	for _, w := range worlds {
		if w.Completed {
			completed++
		}
	}
	if completed > 0 && completed < len(worlds) {
		parts = append(parts, fmt.Sprintf("it completes under %d of them", completed))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("The recording fits %d explanations, and they differ here: %s.", len(worlds), strings.Join(parts, ", "))
}

// spanOf is the least and the most of a figure.
func spanOf(worlds []World, of func(World) int64) [2]int64 {
	span := [2]int64{of(worlds[0]), of(worlds[0])}
	for _, w := range worlds[1:] {
		span = [2]int64{min(span[0], of(w)), max(span[1], of(w))}
	}
	return span
}
