package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
)

// PlanOptions steer Plan.
type PlanOptions struct {
	Tune TuneOptions
	// Cards are the cards to judge, in the order wanted.
	Cards []gpus.Card
	// Prices are the user's own, by card name; may be nil.
	Prices gpus.Prices
}

// MinCapacity is the smallest device that works, in bytes for the allocator.
type MinCapacity struct {
	// Bound is the most bytes that live at once.
	Bound int64 `json:"bound"`
	// Baseline and Best are the smallest capacities at which the job completes
	// with the present and with the best setting; one granule less fails.
	Baseline int64  `json:"baseline"`
	Best     int64  `json:"best"`
	BestConf string `json:"best_conf"`
	// BaselineSafe and BestSafe are the smallest capacities found at which the
	// job completes under every address order sampled.
	BaselineSafe int64 `json:"baseline_safe"`
	BestSafe     int64 `json:"best_safe"`
}

// CardVerdict says whether one card does.
type CardVerdict struct {
	Name string `json:"name"`
	// Capacity is the card's bytes as CUDA reports them (0 = unknown), Usable
	// what an allocator gets of it at least.
	Capacity int64        `json:"capacity"`
	Usable   int64        `json:"usable"`
	Verdict  gpus.Verdict `json:"verdict"`
	// Conf is the setting the verdict is for: the present one where that fits,
	// else the one that comes nearer.
	Conf string `json:"conf"`
	// ReservedPeak and NumAllocRetries are those of a run on this card.
	ReservedPeak    int64 `json:"reserved_peak"`
	NumAllocRetries int64 `json:"num_alloc_retries"`
	// Headroom is Usable less the smallest capacity that works.
	Headroom int64 `json:"headroom"`
	// WithBaseline is the verdict for the present setting.
	WithBaseline gpus.Verdict `json:"with_baseline"`
	Reason       string       `json:"reason"`
	// Price is the user's own, null when not given.
	Price     *float64 `json:"price,omitempty"`
	PriceUnit string   `json:"price_unit,omitempty"`
}

// Planning is the answer of Plan.
type Planning struct {
	MinCapacity MinCapacity   `json:"min_capacity"`
	GPUs        []CardVerdict `json:"gpus"`
	Baseline    string        `json:"baseline_conf"`
	Notes       []string      `json:"notes"`
}

// Plan finds the smallest capacity at which all jobs complete, one after the
// other, with the present and with the best setting, and judges cards by it.
// A capacity that works is simulated, never assumed from another.
func Plan(ctx context.Context, jobs []Case, opts PlanOptions) (*Planning, error) {
	if len(jobs) == 0 {
		return nil, fmt.Errorf("plan: no trace")
	}
	p := &capacityPlan{opts: opts}
	for _, j := range jobs {
		// The question is about other devices than the recorded one.
		j = j.on(sim.Machine{})
		if j.Trace.Meta.Fraction > 0 && j.Trace.Meta.Fraction < 1 {
			p.notes = append(p.notes, fmt.Sprintf("%s sets a memory fraction of %v; the plan assumes that the program drops it.", j.Trace.Source, j.Trace.Meta.Fraction))
		}
		if name := j.Trace.Meta.DeviceName; name != "" {
			p.notes = append(p.notes, fmt.Sprintf("%s was recorded on %s; libraries may choose other workspaces on another card.", j.Trace.Source, name))
		}
		p.notes = append(p.notes, j.Trace.Notes...)
		p.notes = append(p.notes, caveats(j.Trace)...)
		if j.Recovered != nil {
			p.notes = append(p.notes, j.Recovered.Inferred...)
		}
		p.jobs = append(p.jobs, j)
	}
	tuneJobs := slices.Clone(p.jobs)
	// The search is without a limit. What loses there may need least memory:
	// the list of the best must be whole.
	tuneOpts := opts.Tune
	tuneOpts.Whole = true
	tuning, err := Tune(ctx, tuneJobs, tuneOpts)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := &Planning{GPUs: []CardVerdict{}, Baseline: tuning.Baseline.Conf}
	for _, j := range p.jobs {
		out.MinCapacity.Bound = max(out.MinCapacity.Bound, sim.Need(j.Trace))
	}
	version := opts.Tune.Version
	if version == (conf.Version{}) {
		version = conf.Latest
	}
	baseline := &setting{conf: tuning.Baseline.Conf, spec: tuning.Baseline.spec}
	if err := p.measure(ctx, baseline); err != nil {
		return nil, err
	}
	settings := []*setting{baseline}
	least := baseline.min
	for _, c := range p.contenders(tuning, version) {
		if err := p.measure(ctx, c); errors.Is(err, errNever) {
			continue
		} else if err != nil {
			return nil, err
		}
		settings = append(settings, c)
		least = min(least, c.min)
	}
	// Among settings that need about as little, the simplest.
	tolerance := opts.Tune.Tolerance
	if tolerance <= 0 {
		tolerance = DefaultTolerance
	}
	best := baseline
	for _, c := range settings {
		near, bestNear := float64(c.min) <= float64(least)*(1+tolerance), float64(best.min) <= float64(least)*(1+tolerance)
		if near && (!bestNear || best != baseline && c.options < best.options) {
			best = c
		}
	}
	for _, s := range []*setting{baseline, best} {
		if err := p.measureSafe(ctx, s); err != nil {
			return nil, err
		}
	}
	out.MinCapacity.Baseline, out.MinCapacity.BaselineSafe = baseline.min, baseline.safe
	out.MinCapacity.Best, out.MinCapacity.BestSafe, out.MinCapacity.BestConf = best.min, best.safe, best.conf
	for _, card := range opts.Cards {
		v, err := p.judge(ctx, card, baseline, best)
		if err != nil {
			return nil, err
		}
		out.GPUs = append(out.GPUs, v)
	}
	out.Notes = append([]string{}, p.notes...)
	return out, nil
}

type capacityPlan struct {
	jobs  []Case
	opts  PlanOptions
	notes []string
	// changed are the same jobs with changed traces; made when first needed.
	changed []*capacityPlan
}

// setting is a configuration with the smallest capacities it needs.
type setting struct {
	conf      string
	spec      *policies.Spec
	options   int
	peak      int64 // reserved on an unlimited device
	min, safe int64
}

// contenders are the settings whose smallest capacity is worth measuring: the
// best few of the search and plain expandable segments.
func (p *capacityPlan) contenders(t *Tuning, v conf.Version) []*setting {
	const most = 6
	var out []*setting
	seen := map[string]bool{t.Baseline.Conf: true}
	for i := range t.Candidates {
		c := &t.Candidates[i]
		if len(out) < most && c.Completed && !c.last() && !c.Stopped && !seen[c.Conf] {
			seen[c.Conf] = true
			out = append(out, &setting{conf: c.Conf, spec: c.spec, options: c.Options})
		}
	}
	if spec, err := torch.Expandable(v); err == nil && !seen[spec.Options] {
		out = append(out, &setting{conf: spec.Options, spec: spec, options: 1})
	}
	return out
}

// run runs all jobs at a capacity and reports whether they complete.
func (p *capacityPlan) run(ctx context.Context, r *sim.Runner, s *setting, capacity int64, order uint64) (bool, []*sim.Result, error) {
	var results []*sim.Result
	for _, j := range p.jobs {
		cfg := j.Config()
		cfg.Policy, cfg.Capacity, cfg.StopAtOOM, cfg.Brief = s.spec, capacity, capacity > 0, true
		if order > 0 {
			cfg.Addresses, cfg.Seed = sim.AddressesRandom, order
		}
		res, err := r.Run(ctx, j.Trace, cfg)
		if err != nil {
			return false, nil, err
		}
		results = append(results, res)
		// A request that failed in the recording must be served, too.
		if !res.Completed || res.Stats.NumOOMs > 0 {
			return false, results, nil
		}
	}
	return true, results, nil
}

// errNever is what measure returns for a setting under which no device is
// large enough.
var errNever = errors.New("an allocation fails on a device of any size; the setting itself limits it (a memory fraction?)")

// measure finds the smallest capacity that works: by halving, then by looking
// below, because a smaller device can work where a larger one fails.
func (p *capacityPlan) measure(ctx context.Context, s *setting) error {
	var runner sim.Runner
	ok, results, err := p.run(ctx, &runner, s, 0, 0)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%s under %s: %w", p.jobs[len(results)-1].Trace.Source, s.spec, errNever)
	}
	bound := int64(0)
	for i, res := range results {
		s.peak = max(s.peak, res.Stats.ReservedBytes[policies.All].Peak)
		bound = max(bound, sim.Need(p.jobs[i].Trace))
	}
	lo, hi := max(bound/sim.Granule*sim.Granule-sim.Granule, 0), (s.peak+sim.Granule-1)/sim.Granule*sim.Granule
	works := func(capacity int64) (bool, error) {
		ok, _, err := p.run(ctx, &runner, s, capacity, 0)
		return ok, err
	}
	if s.min, err = smallest(lo, hi, works); err != nil {
		return err
	}
	const probes = 16
	for again := true; again; {
		again = false
		for k := int64(1); k <= probes; k++ {
			c := lo + (s.min-lo)/sim.Granule*k/(probes+1)*sim.Granule
			if c <= lo || c >= s.min {
				continue
			}
			ok, err := works(c)
			if err != nil {
				return err
			}
			if ok {
				if s.min, err = smallest(lo, c, works); err != nil {
					return err
				}
				again = true
				break
			}
		}
	}
	return nil
}

// smallest halves between a capacity that fails and one that works until they
// are one granule apart.
func smallest(fails, worksAt int64, works func(int64) (bool, error)) (int64, error) {
	for worksAt-fails > sim.Granule {
		mid := fails + (worksAt-fails)/2/sim.Granule*sim.Granule
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

// measureSafe finds the smallest capacity from min on that works under every
// address order sampled.
func (p *capacityPlan) measureSafe(ctx context.Context, s *setting) error {
	all := func(capacity int64) (bool, error) {
		results := make([]bool, sim.SpanOrders)
		err := parallel(ctx, p.opts.Tune.Workers, len(results), nil, func(ctx context.Context, r *sim.Runner, k int) error {
			ok, _, err := p.run(ctx, r, s, capacity, uint64(k+1))
			results[k] = ok
			return err
		})
		return !slices.Contains(results, false), err
	}
	var runner sim.Runner
	_, results, err := p.run(ctx, &runner, s, s.min, 0)
	if err != nil {
		return err
	}
	var mallocs int64
	for _, res := range results {
		mallocs += res.Driver.Mallocs
	}
	ok := mallocs == 0 // no address for the driver to choose
	if !ok {
		if ok, err = all(s.min); err != nil {
			return err
		}
	}
	if ok {
		s.safe = s.min
		return nil
	}
	// A capacity of the largest peak of any order works for all of them.
	top := s.min
	for _, j := range p.jobs {
		cfg := j.Config()
		cfg.Policy = s.spec
		span, err := sim.SampleSpan(ctx, j.Trace, cfg, p.opts.Tune.Workers)
		if err != nil {
			return err
		}
		top = max(top, (span.ReservedPeak[1]+sim.Granule-1)/sim.Granule*sim.Granule)
	}
	s.safe, err = smallest(s.min, top, all)
	return err
}

// fragile is the number of changed traces (robust.go) that fail on a card; it
// is tried only where the headroom is small.
func (p *capacityPlan) fragile(ctx context.Context, s *setting, a gpus.Assessment) (int, error) {
	if a.Headroom > s.safe/5 {
		return 0, nil
	}
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
		ok, _, err := p.changed[k].run(ctx, r, s, a.Usable, 0)
		failed[k] = !ok
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

// judge gives the verdict for one card: the present setting if that fits, else
// the best one.
func (p *capacityPlan) judge(ctx context.Context, card gpus.Card, baseline, best *setting) (CardVerdict, error) {
	v := CardVerdict{Name: card.Name, Capacity: card.Total, Conf: baseline.conf}
	if price, ok := p.opts.Prices[card.Name]; ok {
		v.Price, v.PriceUnit = &price.Amount, price.Unit
	}
	s := baseline
	a := card.Assess(baseline.safe)
	v.WithBaseline = a.Verdict
	// Where the present setting does not fit for certain, what counts is how
	// near the best one comes.
	if better := card.Assess(best.safe); a.Verdict != gpus.Fits &&
		(rank(better.Verdict) < rank(a.Verdict) || rank(better.Verdict) == rank(a.Verdict) && better.Headroom > a.Headroom) {
		s, a = best, better
	}
	fragile := -1 // changed traces that fail here; -1 = not tried
	if a.Verdict == gpus.Fits {
		var err error
		if fragile, err = p.fragile(ctx, s, a); err != nil {
			return v, err
		}
		if better := card.Assess(best.safe); fragile > 0 && s == baseline && better.Verdict == gpus.Fits {
			n, err := p.fragile(ctx, best, better)
			if err != nil {
				return v, err
			}
			if n < fragile {
				s, a, fragile = best, better, n
			}
		}
	}
	v.Conf, v.Usable, v.Verdict, v.Headroom, v.Reason = s.conf, a.Usable, a.Verdict, a.Headroom, a.Reason
	if fragile > 0 {
		v.Verdict = gpus.Tight
		v.Reason = fmt.Sprintf("fits as recorded, but if sizes change by up to 5 %%, it fails in %d of %d runs", fragile, ChangedTraces)
	}
	if v.Usable <= 0 || a.Verdict == gpus.No || a.Verdict == gpus.Unknown {
		v.ReservedPeak = s.peak
		return v, nil
	}
	var runner sim.Runner
	ok, results, err := p.run(ctx, &runner, s, v.Usable, 0)
	if err != nil {
		return v, err
	}
	for _, res := range results {
		v.ReservedPeak = max(v.ReservedPeak, res.Stats.ReservedBytes[policies.All].Peak)
		v.NumAllocRetries += res.Stats.NumAllocRetries
	}
	if !ok && v.Verdict == gpus.Fits {
		// More memory does not always help; believe the run.
		v.Verdict = gpus.Tight
		v.Reason = "works on a smaller device, but not at this card's exact size: the order of releases decides"
	}
	return v, nil
}

func rank(v gpus.Verdict) int {
	switch v {
	case gpus.Fits:
		return 0
	case gpus.Tight:
		return 1
	case gpus.Unknown:
		return 3
	}
	return 2
}
