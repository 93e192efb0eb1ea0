package sim

import (
	"context"
	"fmt"

	"allocsim/policies"
	"allocsim/traces"
)

// prepared is a policy choice completed for a trace.
type prepared struct {
	trace *traces.Trace
	asked string // what it was made from
	spec  *policies.Spec
}

// prepare completes a policy that must know the whole trace before it can serve
// the first request; others stay as they are. The result is kept for the next
// run of the same trace.
func (r *Runner) prepare(ctx context.Context, tr *traces.Trace, spec *policies.Spec) (*policies.Spec, error) {
	if spec == nil || spec.Prepare == nil {
		return spec, nil
	}
	if r.prepared.trace == tr && r.prepared.asked == spec.String() {
		return r.prepared.spec, nil
	}
	done, err := spec.Prepare(ctx, futureOf(tr))
	if err != nil {
		return nil, fmt.Errorf("%s: prepare %s: %w", tr.Source, spec, err)
	}
	r.prepared = prepared{tr, spec.String(), done}
	return done, nil
}

// futureOf is the calls that a run of the trace makes if every request is
// served.
func futureOf(tr *traces.Trace) *policies.Future {
	run := &policies.Future{}
	index := make([]int, tr.NumBlocks)
	malloc := func(size int64) int {
		run.Lifetimes = append(run.Lifetimes, policies.Lifetime{Size: size, Malloc: run.Calls, Free: -1})
		run.Calls++
		return len(run.Lifetimes) - 1
	}
	free := func(i int) {
		run.Lifetimes[i].Free = run.Calls
		run.Calls++
	}
	for i := range tr.Events {
		switch e := &tr.Events[i]; e.Kind {
		case traces.Alloc:
			index[e.ID] = malloc(e.Size)
		case traces.OOM:
			// The run gives such a block back at once.
			free(malloc(e.Size))
		case traces.Free, traces.FreeCompleted:
			free(index[e.ID])
		}
	}
	for i := range run.Lifetimes {
		if l := &run.Lifetimes[i]; l.Free < 0 {
			l.Free = run.Calls
		}
	}
	return run
}
