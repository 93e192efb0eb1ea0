package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/sim"
)

// PlanOptions steer Plan.
type PlanOptions struct {
	Tune TuneOptions
	// Cards are the cards to judge, in the order wanted.
	Cards []gpus.Card
	// Prices are the user's own, by card name; may be nil.
	Prices gpus.Prices
	// Besides is what a process takes of a card besides its allocator and the
	// context that the catalogue knows, such as NCCL's buffers.
	Besides []gpus.Share
}

// MinCapacity is the smallest device that works, in bytes for the allocator.
// It is a capacity: the device refuses what exceeds it. A limit of the
// allocator's own of the same bytes can behave otherwise; see MinLimit.
type MinCapacity struct {
	// Bound is the most bytes that must live at once.
	Bound int64 `json:"bound"`
	// Baseline and Best are the smallest capacities at which the job completes
	// with the present and with the best setting; one granule less fails.
	Baseline int64  `json:"baseline"`
	Best     int64  `json:"best"`
	BestConf string `json:"best_conf"`
	// BaselineSafe and BestSafe are the smallest capacities from which every
	// larger one works, under every address order sampled.
	BaselineSafe int64 `json:"baseline_safe"`
	BestSafe     int64 `json:"best_safe"`
	// AtLeast reports that the evidence holds a part of what the jobs need, so
	// that every figure is the least.
	AtLeast bool `json:"at_least"`
}

// MinLimit is the smallest memory limit (memory fraction × the device's total)
// under which a job completes that sets one, on a device with room for it.
type MinLimit struct {
	// Baseline and Best are bytes; one granule less fails.
	Baseline int64  `json:"baseline"`
	Best     int64  `json:"best"`
	BestConf string `json:"best_conf"`
	// BaselineFraction and BestFraction are arguments of
	// set_per_process_memory_fraction on the recorded device that were run and
	// work.
	BaselineFraction float64 `json:"baseline_fraction"`
	BestFraction     float64 `json:"best_fraction"`
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
	// Headroom is Usable less the capacity that the verdict goes by: the safe
	// one, or the smallest that works where this very size does. HeadroomHigh
	// is the same of the most that the card can give.
	Headroom     int64 `json:"headroom"`
	HeadroomHigh int64 `json:"headroom_high"`
	// WithBaseline is the verdict for the present setting.
	WithBaseline gpus.Verdict `json:"with_baseline"`
	Reason       string       `json:"reason"`
	// Price is the user's own, null when not given.
	Price     *float64 `json:"price,omitempty"`
	PriceUnit string   `json:"price_unit,omitempty"`
}

// Planning is the answer of Plan.
type Planning struct {
	MinCapacity MinCapacity `json:"min_capacity"`
	// MinLimit is null unless a job sets a memory fraction.
	MinLimit *MinLimit     `json:"min_limit"`
	Evidence Evidence      `json:"evidence"`
	Besides  []gpus.Share  `json:"besides"`
	GPUs     []CardVerdict `json:"gpus"`
	Baseline string        `json:"baseline_conf"`
	Notes    []string      `json:"notes"`
}

// Plan finds the smallest capacity at which all jobs complete, one after the
// other, with the present and with the best setting, and judges cards by it.
// A capacity that works is simulated, never assumed from another. Where the
// evidence does not carry a verdict, the verdict is gpus.Undecidable.
func Plan(ctx context.Context, jobs []Case, opts PlanOptions) (*Planning, error) {
	if len(jobs) == 0 {
		return nil, fmt.Errorf("plan: no trace")
	}
	p := newCapacityPlan(jobs, opts)
	// The search is without a limit. What loses there may need least memory:
	// the list of the best must be whole.
	unlimited := opts.Tune
	unlimited.Whole = true
	tuning, err := Tune(ctx, p.jobs, unlimited)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := &Planning{GPUs: []CardVerdict{}, Baseline: tuning.Baseline.Conf, Evidence: evidenceOf(jobs), Besides: append([]gpus.Share{}, opts.Besides...)}
	out.Notes = planNotes(jobs)
	f := &fitting{capacityPlan: p, evidence: &out.Evidence, atSize: make(map[size]*setting)}
	for i := range p.jobs {
		out.MinCapacity.Bound = max(out.MinCapacity.Bound, p.jobs[i].Need())
		f.known = max(f.known, p.jobs[i].Known().Reserved)
		f.counted = f.counted || p.jobs[i].Known().Free
	}
	f.need = out.MinCapacity.Bound
	f.baseline = &setting{conf: tuning.Baseline.Conf, spec: tuning.Baseline.spec}
	if err := p.measure(ctx, f.baseline); err != nil {
		return nil, err
	}
	if err := p.measureLeast(ctx, f.baseline); err != nil {
		return nil, err
	}
	if f.best, err = f.least(ctx, tuning); err != nil {
		return nil, err
	}
	if !f.best.leastFound {
		if err := p.measureLeast(ctx, f.best); err != nil {
			return nil, err
		}
	}
	for _, s := range []*setting{f.baseline, f.best} {
		if err := p.measureSafe(ctx, s); err != nil {
			return nil, err
		}
	}
	if err := f.safer(ctx); err != nil {
		return nil, err
	}
	m := &out.MinCapacity
	m.Baseline, m.BaselineSafe = f.baseline.min, f.baseline.safe
	m.AtLeast = !out.Evidence.Complete() || slices.ContainsFunc(p.jobs, func(j Case) bool { return endsInOOM(j.Trace) })
	m.Best, m.BestSafe, m.BestConf = f.best.min, f.best.safe, f.best.conf
	if out.MinLimit, err = f.limits(ctx, jobs); err != nil {
		return nil, err
	}
	for _, card := range opts.Cards {
		v, err := f.judge(ctx, card.With(opts.Besides))
		if err != nil {
			return nil, err
		}
		out.GPUs = append(out.GPUs, v)
	}
	return out, nil
}

// planNotes say what a plan takes for granted.
func planNotes(jobs []Case) []string {
	notes := []string{}
	for i := range jobs {
		j := &jobs[i]
		if f := j.Trace.Meta.Fraction; f > 0 && f < 1 {
			notes = append(notes, fmt.Sprintf("%s sets a memory fraction of %v; cards are judged as if the program dropped it.", j.Trace.Source, f))
		}
		if name := j.Trace.Meta.DeviceName; name != "" {
			notes = append(notes, fmt.Sprintf("%s was recorded on %s; libraries may choose other workspaces on another card.", j.Trace.Source, name))
		}
		notes = append(notes, j.Trace.Notes...)
		notes = append(notes, caveats(j)...)
		if j.Recovered != nil {
			notes = append(notes, j.Recovered.Inferred...)
		}
	}
	return notes
}

// fitting judges devices by settings.
type fitting struct {
	*capacityPlan
	evidence       *Evidence
	need           int64 // must live at once
	known          int64 // reserved by the recorded processes at their peaks
	counted        bool  // known is what the processes themselves count, and nothing bounded them
	baseline, best *setting
	expandable     *setting // plain expandable segments, if they were measured
	// atSize is the setting found by a search for devices of one size; nil =
	// searched, and none works.
	atSize map[size]*setting
}

// least finds the setting that needs least: among the best of the search on an
// unlimited device, then by searching for devices one granule smaller as long
// as that finds one. So no search for a smaller device finds another.
func (f *fitting) least(ctx context.Context, tuning *Tuning) (*setting, error) {
	settings := []*setting{f.baseline}
	least := f.baseline.min
	for _, c := range f.contenders(tuning) {
		if err := f.measure(ctx, c); errors.Is(err, errNever) {
			continue
		} else if err != nil {
			return nil, err
		}
		settings = append(settings, c)
		if c.known {
			f.expandable = c
		}
	}
	// The one that seems to need least may need less still.
	first := slices.MinFunc(settings, func(a, b *setting) int { return cmp.Compare(a.min, b.min) })
	if err := f.measureLeast(ctx, first); err != nil {
		return nil, err
	}
	least = min(least, first.min)
	const rounds = 4
	for range rounds {
		s, err := f.search(ctx, least-sim.Granule, false, false)
		if err != nil {
			return nil, err
		}
		if s == nil {
			break
		}
		settings = append(settings, s)
		least = min(least, s.min)
	}
	// Among settings that need about as little, the simplest.
	tolerance := f.opts.Tune.Tolerance
	if tolerance <= 0 {
		tolerance = DefaultTolerance
	}
	best := f.baseline
	for _, c := range settings {
		near, bestNear := float64(c.min) <= float64(least)*(1+tolerance), float64(best.min) <= float64(least)*(1+tolerance)
		if near && (!bestNear || best != f.baseline && c.options < best.options) {
			best = c
		}
	}
	return best, nil
}

// A size is that of a device which may have no expandable segments.
type size struct {
	capacity     int64
	noExpandable bool
}

// safer makes plain expandable segments the best setting where that is safe on
// smaller devices than the one that needs least: verdicts go by safe, and with
// expandable segments the driver has no addresses to choose.
func (f *fitting) safer(ctx context.Context) error {
	e := f.expandable
	if e == nil || e == f.best || e.min >= min(f.best.safe, f.baseline.safe) {
		return nil
	}
	if err := f.measureLeast(ctx, e); err != nil {
		return err
	}
	if err := f.measureSafe(ctx, e); err != nil {
		return err
	}
	if e.safe < f.best.safe && e.safe < f.baseline.safe {
		f.best = e
	}
	return nil
}

// search looks for a setting under which the jobs complete on a device of
// capacity bytes, as tune does for that device; nil if it finds none. The device
// may have no expandable segments. For a size that nobody asked about, the
// search of a long trace is kept short.
func (f *fitting) search(ctx context.Context, capacity int64, noExpandable, asked bool) (*setting, error) {
	if capacity < f.need || capacity <= 0 {
		return nil, nil
	}
	at := size{capacity, noExpandable}
	if s, done := f.atSize[at]; done {
		return s, nil
	}
	opts := f.opts.Tune
	opts.NoExpandable = opts.NoExpandable || noExpandable
	jobs := slices.Clone(f.jobs)
	for i := range jobs {
		jobs[i].Machine = sim.On(capacity, 0)
	}
	if !asked {
		opts.Budget = f.budget()
	}
	t, err := Tune(ctx, jobs, opts)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.atSize[at] = nil
	b := &t.Best
	if !b.Completed || b.NumOOMs > 0 || b.last() || b.spec == nil {
		return nil, nil
	}
	s := &setting{conf: b.Conf, spec: b.spec, options: b.Options}
	if err := f.measure(ctx, s); errors.Is(err, errNever) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	// It works here, whatever lies between.
	s.min = min(s.min, up(capacity))
	f.atSize[at] = s
	return s, nil
}

// shortSearch is what a search for a size that nobody asked about may take, in
// events simulated by its candidates.
const shortSearch = 10e6

// budget is the number of settings of such a search.
func (f *fitting) budget() int {
	events := 1
	for i := range f.jobs {
		events += len(f.jobs[i].Trace.Events)
	}
	most := f.opts.Tune.Budget
	if most <= 0 {
		most = DefaultBudget
	}
	return max(min(shortSearch/events, most), min(most, 24))
}

// contenders are the settings whose smallest capacity is worth measuring: the
// best few of the search and plain expandable segments.
func (f *fitting) contenders(t *Tuning) []*setting {
	const most = 6
	var out []*setting
	seen := map[string]bool{t.Baseline.Conf: true}
	for i := range t.Candidates {
		c := &t.Candidates[i]
		if (len(out) < most || c.plainExpandable()) && c.Completed && !c.last() && !c.Stopped && !seen[c.Conf] {
			seen[c.Conf] = true
			out = append(out, &setting{conf: c.Conf, spec: c.spec, options: c.Options, known: c.plainExpandable()})
		}
	}
	return out
}

// limits measures the smallest memory limits, where a job sets one.
func (f *fitting) limits(ctx context.Context, jobs []Case) (*MinLimit, error) {
	var total int64
	for i := range jobs {
		if fr := jobs[i].Trace.Meta.Fraction; fr > 0 && fr < 1 && jobs[i].Trace.Meta.DeviceTotal > 0 {
			total = jobs[i].Trace.Meta.DeviceTotal
		}
	}
	if total == 0 || !f.evidence.Complete() {
		return nil, nil // a fraction of what is not known is no advice
	}
	var runner sim.Runner
	works := func(s *setting, m sim.Machine) (bool, error) {
		for i := range f.jobs {
			cfg := f.jobs[i].On(s.spec, m)
			cfg.StopAtOOM, cfg.Brief = true, true
			res, err := runner.Run(ctx, f.jobs[i].Trace, cfg)
			if err != nil || !res.Completed || res.Stats.NumOOMs > 0 {
				return false, err
			}
		}
		return true, nil
	}
	out := &MinLimit{BestConf: f.best.conf}
	for _, x := range []struct {
		s        *setting
		limit    *int64
		fraction *float64
	}{{f.baseline, &out.Baseline, &out.BaselineFraction}, {f.best, &out.Best, &out.BestFraction}} {
		var err error
		fails := max(down(f.need)-sim.Granule, 0)
		*x.limit, err = smallest(fails, up(x.s.peak), func(limit int64) (bool, error) {
			return works(x.s, sim.Machine{Total: total, Limit: limit})
		})
		if err != nil {
			return nil, err
		}
		// Rounded up to what people type, and run.
		for digits := 4; digits <= 17; digits++ {
			scale := math.Pow10(digits)
			fr := math.Ceil(float64(*x.limit)/float64(total)*scale) / scale
			if fr >= 1 {
				fr = 1
			}
			ok, err := works(x.s, sim.Machine{Total: total, Fraction: fr})
			if err != nil {
				return nil, err
			}
			if ok {
				*x.fraction = fr
				break
			}
		}
	}
	return out, nil
}

// standing is how one setting does on one card.
type cardFit struct {
	s  *setting
	a  gpus.Assessment
	by int64 // the capacity that the assessment goes by
}

// assess judges a card under a setting. It goes by the safe size; where that is
// more than the card gives for certain, by a run at exactly what it gives.
func (f *fitting) assess(ctx context.Context, card gpus.Card, s *setting) (cardFit, error) {
	c := cardFit{s, card.Assess(s.safe), s.safe}
	if c.a.Verdict == gpus.Unknown || s.safe <= c.a.Usable {
		return c, nil
	}
	if s.min <= c.a.Usable {
		var runner sim.Runner
		o, err := f.run(ctx, &runner, s, c.a.Usable, 0)
		if err != nil {
			return c, err
		}
		if o.works {
			c.by = s.min
			c.a.Verdict, c.a.Headroom = gpus.Tight, c.a.Usable-s.min
			c.a.Reason = fmt.Sprintf("works at exactly %s as recorded, but not at every size up to %s or not wherever the driver places segments",
				bytesize.Format(c.a.Usable), bytesize.FormatUp(s.safe))
		}
	}
	return c, nil
}

// better reports that c is the better answer.
func (c cardFit) better(o cardFit) bool {
	if x, y := rank(c.a.Verdict), rank(o.a.Verdict); x != y {
		return x < y
	}
	return c.a.Headroom > o.a.Headroom
}

// runsOn reports whether a card has what a setting needs.
func (f *fitting) runsOn(card gpus.Card, s *setting) bool {
	return card.Expandable() || !strings.Contains(s.conf, "expandable_segments:True")
}

// judge gives the verdict for one card: the present setting if that fits, else
// the best one, else what a search for this card finds.
func (f *fitting) judge(ctx context.Context, card gpus.Card) (CardVerdict, error) {
	v := CardVerdict{Name: card.Name, Capacity: card.Total, Conf: f.baseline.conf, ReservedPeak: f.baseline.peak}
	if price, ok := f.opts.Prices[card.Name]; ok {
		v.Price, v.PriceUnit = &price.Amount, price.Unit
	}
	now, err := f.assess(ctx, card, f.baseline)
	if err != nil {
		return v, err
	}
	v.WithBaseline = now.a.Verdict
	c := now
	if c.a.Verdict != gpus.Fits && c.a.Verdict != gpus.Unknown && f.best != f.baseline && f.runsOn(card, f.best) {
		other, err := f.assess(ctx, card, f.best)
		if err != nil {
			return v, err
		}
		if other.better(c) {
			c = other
		}
	}
	if usable := c.a.Usable; c.a.Verdict != gpus.Unknown && c.by > usable && usable >= f.need {
		s, err := f.search(ctx, usable, !card.Expandable(), len(f.opts.Cards) == 1)
		if err != nil {
			return v, err
		}
		if s != nil {
			if s.safe == 0 {
				if err := f.measureSafe(ctx, s); err != nil {
					return v, err
				}
			}
			found, err := f.assess(ctx, card, s)
			if err != nil {
				return v, err
			}
			if found.better(c) {
				c = found
			}
		}
	}
	fragile := -1 // changed traces that fail here; -1 = not tried
	if c.a.Verdict == gpus.Fits && c.a.Headroom <= c.s.safe/5 {
		if fragile, err = f.fragile(ctx, c.s, c.a.Usable); err != nil {
			return v, err
		}
		if fragile > 0 && c.s == f.baseline && f.best != f.baseline && f.runsOn(card, f.best) {
			other, err := f.assess(ctx, card, f.best)
			if err != nil {
				return v, err
			}
			if other.a.Verdict == gpus.Fits {
				n, err := f.fragile(ctx, f.best, other.a.Usable)
				if err != nil {
					return v, err
				}
				if n < fragile {
					c, fragile = other, n
				}
			}
		}
	}
	v.Conf, v.Usable, v.Verdict, v.Reason = c.s.conf, c.a.Usable, c.a.Verdict, c.a.Reason
	v.Headroom, v.HeadroomHigh = c.a.Headroom, c.a.UsableHigh-c.by
	if fragile > 0 {
		v.Verdict = gpus.Tight
		v.Reason = "fits as recorded, but " + failing(fragile)
	}
	v.ReservedPeak = c.s.peak
	if v.Usable > 0 && v.Verdict != gpus.No && v.Verdict != gpus.Unknown {
		var runner sim.Runner
		o, err := f.run(ctx, &runner, c.s, v.Usable, 0)
		if err != nil {
			return v, err
		}
		v.ReservedPeak = 0
		for _, res := range o.results {
			v.ReservedPeak = max(v.ReservedPeak, res.Stats.ReservedBytes[policies.All].Peak)
			v.NumAllocRetries += res.Stats.NumAllocRetries
		}
	}
	f.doubt(&v, c, card)
	return v, nil
}

// doubt takes back a verdict that the evidence does not carry. What must live
// at once is proof that a card is too small. The counters of the recorded
// process are proof that the recorded setting fits where all that it ever
// reserved does.
func (f *fitting) doubt(v *CardVerdict, c cardFit, card gpus.Card) {
	if v.Verdict == gpus.Fits && slices.ContainsFunc(f.jobs, func(j Case) bool { return endsInOOM(j.Trace) }) {
		v.Verdict = gpus.Tight
		v.Reason = "what is recorded fits, but the recording ends with an OOM: what the program would have needed after it is not in it"
	}
	if f.evidence.Complete() || v.Verdict == gpus.Unknown || f.need > c.a.UsableHigh {
		return
	}
	undecidable := func() {
		v.Verdict, v.WithBaseline, v.Reason = gpus.Undecidable, gpus.Undecidable, f.evidence.undecided()
	}
	for i := range f.jobs {
		j := &f.jobs[i]
		if n, grows := j.iterationsLeft(c.a.Usable); grows {
			undecidable()
			if v.Usable > f.need {
				v.Reason += fmt.Sprintf(" This card lasts for about %s more.", plural.Of(n, "iteration"))
			}
			return
		}
	}
	if a := card.Assess(f.known); f.counted && c.s == f.baseline && a.Headroom >= 0 {
		v.Verdict, v.WithBaseline, v.Headroom, v.HeadroomHigh = a.Verdict, a.Verdict, a.Headroom, a.UsableHigh-f.known
		v.ReservedPeak = max(v.ReservedPeak, f.known)
		v.Reason = fmt.Sprintf("by the process's own counters, which say that it reserved %s: %s", bytesize.Format(f.known), a.Reason)
		return
	}
	undecidable()
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
