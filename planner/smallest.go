package planner

import (
	"context"

	"allocsim/policies"
	"allocsim/sim"
)

// SmallestCapacity is the least capacity, in bytes and multiples of sim.Granule,
// on which the jobs complete one after the other under a policy (one sim.Granule
// less fails), and the least found on which they complete under every address
// order sampled. workers ≤ 0 means one a processor; the result does not depend
// on it.
func SmallestCapacity(ctx context.Context, jobs []Case, spec *policies.Spec, workers int) (least, safe int64, err error) {
	p := &capacityPlan{opts: PlanOptions{Tune: TuneOptions{Workers: workers}}}
	for _, j := range jobs {
		// The question is about other devices than the recorded one.
		j = j.on(sim.Machine{})
		p.jobs = append(p.jobs, j)
	}
	s := &setting{spec: spec}
	if err := p.measure(ctx, s); err != nil {
		return 0, 0, err
	}
	if err := p.measureSafe(ctx, s); err != nil {
		return 0, 0, err
	}
	return s.min, s.safe, nil
}
