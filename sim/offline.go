package sim

import (
	"context"
	"fmt"
	"math"

	"allocsim/policies"
	"allocsim/traces"
)

// prepared is a policy choice completed for a trace.
type prepared struct {
	trace *traces.Trace
	asked string // what it was made from
	room  int64
	spec  *policies.Spec
}

// prepare completes a policy that must know the whole trace before it can serve
// the first request; others stay as they are. The result is kept for the next
// run of the same trace.
func (r *Runner) prepare(ctx context.Context, tr *traces.Trace, cfg Config) (*policies.Spec, error) {
	spec := cfg.Policy
	if spec == nil || spec.Prepare == nil {
		return spec, nil
	}
	machine, err := cfg.Resolve(spec, tr.Meta.DeviceTotal)
	if err != nil {
		return nil, err
	}
	if cfg.Device != nil {
		if free, _ := cfg.Device.MemInfo(); free < math.MaxInt64 {
			machine.Capacity = free
		}
	}
	room := machine.Room()
	if p := r.prepared; p.trace == tr && p.asked == spec.String() && p.room == room {
		return p.spec, nil
	}
	run := futureOf(tr)
	run.Room = room
	done, err := spec.Prepare(ctx, run)
	if err != nil {
		return nil, fmt.Errorf("%s: prepare %s: %w", tr.Source, spec, err)
	}
	r.prepared = prepared{tr, spec.String(), room, done}
	return done, nil
}

// futureOf is the calls that a run of the trace makes if every request is
// served.
func futureOf(tr *traces.Trace) *policies.Future {
	run := &policies.Future{}
	index := make([]int, tr.NumBlocks)
	malloc := func(e *traces.Event) int {
		run.Lifetimes = append(run.Lifetimes, policies.Lifetime{Size: e.Size, Malloc: run.Calls, Free: -1, MallocUS: e.TimeUS})
		run.Calls++
		return len(run.Lifetimes) - 1
	}
	free := func(i int, e *traces.Event) {
		run.Lifetimes[i].Free, run.Lifetimes[i].FreeUS = run.Calls, e.TimeUS
		run.Calls++
	}
	var last int64
	for i := range tr.Events {
		switch e := &tr.Events[i]; e.Kind {
		case traces.Alloc:
			index[e.ID], last = malloc(e), e.TimeUS
		case traces.OOM:
			// The run gives such a block back at once.
			free(malloc(e), e)
			last = e.TimeUS
		case traces.Free, traces.FreeCompleted:
			free(index[e.ID], e)
			last = e.TimeUS
		}
	}
	for i := range run.Lifetimes {
		if l := &run.Lifetimes[i]; l.Free < 0 {
			l.Free, l.FreeUS = run.Calls, last+1
		}
	}
	return run
}
