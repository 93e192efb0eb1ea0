package recovery

import (
	"context"
	"fmt"
	"math/rand/v2"

	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

// Sample draws n worlds, the same ones each time, that differ from the
// explanations by nothing that a recording could show: a bound anywhere in its
// bracket, a bound that was never met, and empty_cache calls at moments at which
// they release nothing. Under another configuration all three may matter. The
// error is that of a replay, or ctx's.
func (r *Recovered) Sample(ctx context.Context, n int) ([]Explanation, error) {
	if !r.Exact {
		return nil, fmt.Errorf("%s: no explanation fits the recording, so none can be varied", r.Trace.Source)
	}
	quiet := make(map[*traces.Trace][]int)
	rng := rand.New(rand.NewPCG(1, 16))
	var out []Explanation
	for k := range n {
		e := r.Explanations[k%len(r.Explanations)]
		places, seen := quiet[e.Trace]
		if !seen {
			var err error
			if places, err = r.quiet(ctx, e); err != nil {
				return nil, err
			}
			quiet[e.Trace] = places
		}
		// None, all, or a share of the calls that leave no trace.
		share := [...]float64{0, 1, 0.5, 0.1, 0.02}[k%5]
		var calls []int
		for _, at := range places {
			if rng.Float64() < share {
				calls = append(calls, at)
			}
		}
		e.Trace = traces.WithEmptyCaches(e.Trace, calls)
		at := rng.Float64()
		switch {
		case e.Known:
		case e.Limited():
			high := min(e.High, 2*e.Low)
			e = e.At(e.Low + int64(at*float64(high-e.Low)))
		case k%2 == 1:
			// A bound from the least that was not met up to twice that.
			e.Kind, e.Machine.Limit = KindFraction, e.Low+int64(at*at*float64(e.Low))
			e.Says = e.sentence(e.Machine.Limit)
		}
		out = append(out, e)
	}
	return out, nil
}

// quiet are the requests in front of which an empty_cache call releases nothing
// in a world under the recorded configuration: no free waits, and no segment is
// wholly free.
func (r *Recovered) quiet(ctx context.Context, e Explanation) ([]int, error) {
	var runner sim.Runner
	c := &comparison{tr: e.Trace, rec: e.Trace.Recorded, out: &CheckResult{}}
	machine, err := e.Machine.Resolve(r.Policy, e.Trace.Meta.DeviceTotal)
	if err != nil {
		return nil, err
	}
	cfg := sim.Config{Policy: r.Policy, Machine: e.Machine}
	cfg.Device = &recordedDevice{Device: sim.NewDevice(sim.DeviceConfig{Capacity: machine.Capacity, Total: machine.Total}), c: c}
	run, err := runner.Start(e.Trace, cfg, c)
	if err != nil {
		return nil, err
	}
	c.run = run
	from := 0
	if restored, err := run.Restore(); err != nil {
		return nil, err
	} else if restored {
		from = e.Trace.StartEvents
	}
	var places []int
	for k := from; k < len(e.Trace.Events); k++ {
		if e.Trace.Events[k].Kind == traces.Alloc && k >= e.Trace.StartEvents && nothingToRelease(run.Policy(), r.Conf.ExpandableSegments) {
			places = append(places, k)
		}
		if err := run.Run(ctx, k, k+1); err != nil {
			return nil, err
		}
	}
	return places, nil
}

func nothingToRelease(p policies.Policy, expandable bool) bool {
	st := p.Stats()
	if st.ActiveBytes[policies.All].Current != st.AllocatedBytes[policies.All].Current {
		return false
	}
	if !expandable {
		return st.ReservedBytes[policies.All].Current == st.ActiveBytes[policies.All].Current+st.InactiveSplitBytes[policies.All].Current
	}
	for _, s := range p.Segments(nil) {
		for _, b := range s.Blocks {
			if b.State == traces.Inactive && b.Returnable > 0 {
				return false
			}
		}
	}
	return true
}
