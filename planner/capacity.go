package planner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"allocsim/internal/plural"
	"allocsim/policies"
	"allocsim/sim"
)

// This file finds the device sizes on which a setting works. More memory can
// fail where less works: that is how an allocator with a cache is. So two
// sizes are of interest: needs, the least that works, and safe, the least from
// which every larger one works, whatever addresses the driver gives.
//
// Neither is found by trying sizes at a venture. A run says by itself on which
// other sizes it would have gone the same way (sim.Result.Alike), so that a
// walk from range to range meets every size at which anything changes.

// setting is a configuration with the device sizes that it works on.
type setting struct {
	conf    string
	spec    *policies.Spec
	options int
	known   bool  // plain expandable segments
	peak    int64 // reserved on an unlimited device
	// min is the least size that works, safe the least from which all work;
	// bytes, multiples of sim.Granule.
	min, safe int64
	// leastFound reports that every size below min was covered, down to the
	// bound; else only that one granule less fails.
	leastFound bool
}

// Effort that one walk over sizes may take, in events simulated. A walk that
// ends before it is through errs on the safe side: safe is then where it got.
const (
	leastEffort = 20e6
	safeEffort  = 60e6
)

// errNever is what measure returns for a setting under which no device is
// large enough.
var errNever = errors.New("an allocation fails on a device of any size; the setting itself limits it (a memory fraction?)")

// outcome is what became of all jobs on a device of one size: whether they
// complete, and the range of sizes that give the same.
type outcome struct {
	works   bool
	alike   [2]int64
	results []*sim.Result
	events  int64
}

// run runs all jobs one after the other on a device of capacity bytes (0 =
// unlimited) and in an order of driver addresses (0 = the driver model's).
// A request that failed in the recording must be served, too. The results end
// with that of the first job that fails.
func (p *capacityPlan) run(ctx context.Context, r *sim.Runner, s *setting, capacity int64, order uint64) (outcome, error) {
	o := outcome{works: true, alike: [2]int64{0, math.MaxInt64}}
	for i := range p.jobs {
		j := &p.jobs[i]
		cfg := j.On(s.spec, sim.On(capacity, 0))
		cfg.StopAtOOM, cfg.Brief = capacity > 0, true
		if order > 0 {
			cfg = cfg.Order(order)
		}
		res, err := r.Run(ctx, j.Trace, cfg)
		if err != nil {
			return o, err
		}
		o.results = append(o.results, res)
		o.events += int64(res.Events)
		o.alike[0], o.alike[1] = max(o.alike[0], res.Alike[0]), min(o.alike[1], res.Alike[1])
		if !res.Completed || res.Stats.NumOOMs > 0 {
			// The jobs before it do not matter: this one fails alone.
			o.works, o.alike = false, res.Alike
			break
		}
	}
	if s.spec.LimitOf == nil {
		// Other allocators than PyTorch's ask how large the device is.
		o.alike = [2]int64{capacity, capacity + 1}
	}
	return o, nil
}

// up and down round bytes to granules.
func up(n int64) int64   { return (n + sim.Granule - 1) / sim.Granule * sim.Granule }
func down(n int64) int64 { return n / sim.Granule * sim.Granule }

// measure finds the peak on an unlimited device and a size that works where one
// granule less fails.
func (p *capacityPlan) measure(ctx context.Context, s *setting) error {
	var runner sim.Runner
	top, err := p.run(ctx, &runner, s, 0, 0)
	if err != nil {
		return err
	}
	if !top.works {
		return fmt.Errorf("%s under %s: %w", p.jobs[len(top.results)-1].Trace.Source, s.spec, errNever)
	}
	for _, res := range top.results {
		s.peak = max(s.peak, res.Stats.ReservedBytes[policies.All].Peak)
	}
	fails := max(p.least()-sim.Granule, 0)
	hi, err := p.enough(ctx, &runner, s, max(up(s.peak), fails+sim.Granule), 0)
	if err != nil {
		return err
	}
	s.min, err = smallest(fails, hi, func(c int64) (bool, error) {
		o, err := p.run(ctx, &runner, s, c, 0)
		return o.works, err
	})
	return err
}

// least is the smallest size on which anything could work.
func (p *capacityPlan) least() int64 {
	var need int64
	for i := range p.jobs {
		// What the process's own counters say may exceed the part recorded.
		need = max(need, p.jobs[i].Need())
	}
	return max(up(need), sim.Granule)
}

// measureLeast lowers the size that measure found to the least that works: it
// walks up from the bound, range by range, as a smaller device can work where a
// larger one fails.
func (p *capacityPlan) measureLeast(ctx context.Context, s *setting) error {
	var runner sim.Runner
	effort := int64(leastEffort)
	for c := p.least(); c < s.min; {
		o, err := p.run(ctx, &runner, s, c, 0)
		if err != nil {
			return err
		}
		if o.works {
			s.min = c
			break
		}
		if effort -= o.events; effort < 0 {
			return nil
		}
		c = max(up(min(o.alike[1], s.min)), c+sim.Granule)
	}
	s.leastFound = true
	return nil
}

// maxDoublings bounds the devices that enough tries: none is that large.
const maxDoublings = 20

// enough is a size of peak bytes or more that works. The peak of an unlimited
// run is one, but for this: expandable segments reserve addresses by the
// device's size, and where one has no more of them they go on in another.
func (p *capacityPlan) enough(ctx context.Context, r *sim.Runner, s *setting, peak int64, order uint64) (int64, error) {
	for range maxDoublings {
		o, err := p.run(ctx, r, s, peak, order)
		if err != nil || o.works {
			return peak, err
		}
		peak *= 2
	}
	return 0, fmt.Errorf("%s under %s: %w", p.jobs[0].Trace.Source, s.spec, errNever)
}

// smallest halves between a capacity that fails and one that works until they
// are one granule apart.
func smallest(fails, worksAt int64, works func(int64) (bool, error)) (int64, error) {
	for worksAt-fails > sim.Granule {
		mid := fails + down((worksAt-fails)/2)
		ok, err := works(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			worksAt = mid
		} else {
			fails = mid
		}
	}
	return worksAt, nil
}

// measureSafe finds the least size from which every larger one works under
// every order of addresses: for each order it walks down from a size that
// changes nothing any more, range by range, to the first that fails or to what
// another order already forbids.
func (p *capacityPlan) measureSafe(ctx context.Context, s *setting) error {
	var runner sim.Runner
	s.safe = s.min
	walked, free, err := p.walkDown(ctx, &runner, s, 0, s.safe, safeEffort/8)
	if err != nil {
		return err
	}
	s.safe = max(s.safe, walked)
	if !free {
		return nil // no address for the driver to choose
	}
	lows := make([]int64, sim.SpanOrders)
	err = parallel(ctx, p.opts.Tune.Workers, len(lows), nil, func(ctx context.Context, r *sim.Runner, k int) error {
		var err error
		lows[k], _, err = p.walkDown(ctx, r, s, uint64(k+1), s.safe, safeEffort/sim.SpanOrders)
		return err
	})
	if err != nil {
		return err
	}
	s.safe = max(s.safe, slices.Max(lows))
	return nil
}

// walkDown returns the least size, not below floor, from which every larger
// one works in an order of addresses; and whether that order chose any.
func (p *capacityPlan) walkDown(ctx context.Context, r *sim.Runner, s *setting, order uint64, floor, effort int64) (safe int64, free bool, err error) {
	o, err := p.run(ctx, r, s, 0, order)
	if err != nil {
		return 0, false, err
	}
	safe = floor
	maps := false // addresses matter
	for _, res := range o.results {
		safe = max(safe, up(res.Stats.ReservedBytes[policies.All].Peak))
		free = free || res.Driver.Mallocs > 0
		maps = maps || res.Driver.Maps > 0
	}
	if maps {
		if safe, err = p.enough(ctx, r, s, safe, order); err != nil {
			return 0, false, err
		}
	}
	for safe > floor {
		o, err := p.run(ctx, r, s, safe-sim.Granule, order)
		if err != nil || !o.works {
			return safe, free, err
		}
		safe = max(min(up(o.alike[0]), safe-sim.Granule), floor)
		if effort -= o.events; effort < 0 {
			return safe, free, nil
		}
	}
	return safe, free, nil
}

// fragile is the number of changed traces (robust.go) that fail on a device of
// capacity bytes.
func (p *capacityPlan) fragile(ctx context.Context, s *setting, capacity int64) (int, error) {
	if p.changed == nil {
		for k := range ChangedTraces {
			jobs := slices.Clone(p.jobs)
			for i := range jobs {
				jobs[i].Trace = perturb(jobs[i].Trace, uint64(k))
			}
			p.changed = append(p.changed, &capacityPlan{jobs: jobs, opts: p.opts})
		}
	}
	failed := make([]bool, len(p.changed))
	err := parallel(ctx, p.opts.Tune.Workers, len(failed), nil, func(ctx context.Context, r *sim.Runner, k int) error {
		o, err := p.changed[k].run(ctx, r, s, capacity, 0)
		failed[k] = !o.works
		return err
	})
	n := 0
	for _, f := range failed {
		if f {
			n++
		}
	}
	return n, err
}

// SmallestCapacity is the least capacity, in bytes and multiples of
// sim.Granule, on which the jobs complete one after the other under a policy
// (one granule less fails), and the least from which every larger one works
// under every address order sampled. workers ≤ 0 means one a processor; the
// result does not depend on it.
func SmallestCapacity(ctx context.Context, jobs []Case, spec *policies.Spec, workers int) (least, safe int64, err error) {
	p := newCapacityPlan(jobs, PlanOptions{Tune: TuneOptions{Workers: workers}})
	s := &setting{spec: spec}
	if err := p.measure(ctx, s); err != nil {
		return 0, 0, err
	}
	if err := p.measureLeast(ctx, s); err != nil {
		return 0, 0, err
	}
	if err := p.measureSafe(ctx, s); err != nil {
		return 0, 0, err
	}
	return s.min, s.safe, nil
}

// capacityPlan asks about device sizes; the jobs' own machines do not matter.
type capacityPlan struct {
	jobs []Case
	opts PlanOptions
	// changed are the same jobs with changed traces; made when first needed.
	changed []*capacityPlan
}

func newCapacityPlan(jobs []Case, opts PlanOptions) *capacityPlan {
	p := &capacityPlan{opts: opts}
	for _, j := range jobs {
		j.Machine = sim.Machine{}
		p.jobs = append(p.jobs, j.Worlds()...)
	}
	return p
}

// failing says how many of the changed traces fail.
func failing(n int) string {
	return fmt.Sprintf("if sizes change by up to 5 %%, it fails in %d of %s", n, plural.Of(ChangedTraces, "run"))
}
