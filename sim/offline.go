package sim

import (
	"context"
	"fmt"

	"allocsim/policies"
	"allocsim/policies/packing"
	"allocsim/traces"
)

// plan completes the policy packing, which must see the whole trace before it
// can serve the first request; other policies stay as they are. The plan is
// kept for the next run of the same trace.
func (r *Runner) plan(ctx context.Context, tr *traces.Trace, spec *policies.Spec) (*policies.Spec, error) {
	if spec == nil || spec.Name != packing.Name {
		return spec, nil
	}
	if r.planFor == tr && r.planOptions == spec.Options {
		return r.planned, nil
	}
	opts, err := packing.ParseOptions(spec.Options)
	if err != nil {
		return nil, err
	}
	var log packing.Log
	index := make([]int, tr.NumBlocks)
	for i := range tr.Events {
		switch e := &tr.Events[i]; e.Kind {
		case traces.Alloc:
			index[e.ID] = log.Malloc(e.Size)
		case traces.OOM:
			// The run gives such a block back at once.
			log.Free(log.Malloc(e.Size))
		case traces.Free, traces.FreeCompleted:
			log.Free(index[e.ID])
		}
	}
	buffers := log.Buffers()
	placement, err := packing.Pack(ctx, buffers, opts)
	if err != nil {
		return nil, fmt.Errorf("%s: pack: %w", tr.Source, err)
	}
	planned := packing.Planned(spec, packing.NewPlan(buffers, placement))
	r.planFor, r.planOptions, r.planned = tr, spec.Options, planned
	return planned, nil
}
