package planner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
)

// TuneOptions steer Tune. The zero value is right for most.
type TuneOptions struct {
	// Version is the PyTorch release whose options may be used.
	Version conf.Version
	// Budget is the most configurations simulated; 0 = DefaultBudget.
	Budget int
	// Tolerance is the share by which reserved peaks count as equal; 0 =
	// DefaultTolerance.
	Tolerance float64
	// Finalists is how many settings besides the baseline are also run under
	// other address orders and on changed traces: about 50 runs each; 0 = the
	// best of each kind, < 0 = not even the baseline.
	Finalists int
	// Workers ≤ 0 means one a processor; the result does not depend on it.
	Workers int
	// Whole also runs candidates to their end that are worse in everything than
	// another of their family. The answer is the same without; the list of
	// candidates has fewer whole ones.
	Whole bool
	// NoExpandable leaves expandable segments out, for a device that has no
	// virtual-memory calls (Tegra: PyTorch ends there with an error).
	NoExpandable bool
	// Progress, if not nil, is told how many simulations are done.
	Progress func(done, total int64)
}

// Defaults of TuneOptions.
const (
	DefaultBudget    = 1000
	DefaultTolerance = 0.02
)

// Candidate is one configuration with what it does. With several traces the
// figures are those of the worst: the largest peaks, the longest stall.
type Candidate struct {
	Conf            string             `json:"conf"`
	Completed       bool               `json:"completed"`
	ReservedPeak    int64              `json:"reserved_peak"`
	AllocatedPeak   int64              `json:"allocated_peak"`
	NumAllocRetries int64              `json:"num_alloc_retries"`
	NumOOMs         int64              `json:"num_ooms"`
	Driver          sim.DriverDocument `json:"driver"`
	Utilization     float64            `json:"utilization"`
	// Options is the number of options set; each entry of a rounding list
	// counts.
	Options int `json:"options"`
	// Limits reports that the setting makes a memory limit of its own. It is
	// listed, and named if nothing else completes, but not proposed: the peak is low because
	// the program would fail soon above it.
	Limits bool `json:"limits,omitempty"`
	// Known marks plain expandable segments, the setting that people know: it
	// is always compared and listed.
	Known bool `json:"-"`
	// Stopped reports that the run was ended early because it could no longer
	// win: ReservedPeak is then only what it had reached, and the other
	// figures are those of the part that ran.
	Stopped bool `json:"stopped,omitempty"`
	// Approximate marks a policy that is a fitted rule.
	Approximate bool `json:"approximate,omitempty"`
	// Span is the range over address orders, for finalists (sim.Span).
	Span *sim.Span `json:"span,omitempty"`
	// Robustness is the range over changed traces, for finalists.
	Robustness *Robustness `json:"robustness,omitempty"`

	config   conf.Config
	plain    bool // sets no option of the search but perhaps expandable segments
	spec     *policies.Spec
	ceiling  int64 // of reserved bytes: the run ends above it; 0 = none
	perTrace []*sim.Result
	// lostTo is the candidate that ended this one's run, lostAs and lostWith
	// what kind the two were then and how many options this one had.
	lostTo   *Candidate
	lostAs   kind
	lostWith int
	// doubted: not sampled, when all that were sampled turned out unreliable.
	doubted bool
}

// Spec is the candidate's policy choice; nil for a candidate that was not
// simulated, such as one read from JSON.
func (c *Candidate) Spec() *policies.Spec { return c.spec }

// TraceFigures is what one trace does under baseline and winner.
type TraceFigures struct {
	Source   string    `json:"source"`
	Bound    int64     `json:"bound"`
	Baseline Candidate `json:"baseline"`
	Best     Candidate `json:"best"`
}

// Verdict is what a search has come to.
type Verdict string

// The verdicts of Tune.
const (
	// Improved: another setting than the present one is better.
	Improved Verdict = "improved"
	// NothingBetter: what is set now is as good as anything tried.
	NothingBetter Verdict = "nothing-better"
	// CannotFit: more lives at once than the allocator may take.
	CannotFit Verdict = "cannot-fit"
	// NoSettingFound: nothing tried completes reliably, though it might fit.
	NoSettingFound Verdict = "no-setting-found"
	// Tight: a setting completes as recorded, but not wherever the driver
	// places segments.
	Tight Verdict = "tight"
	// Undecidable: the recording does not hold what would show whether a
	// setting works.
	Undecidable Verdict = "undecidable"
)

// Negative reports that the answer to "is there a setting that works?" is not
// yes.
func (v Verdict) Negative() bool { return v == CannotFit || v == NoSettingFound || v == Undecidable }

// Tuning is the answer of Tune; its JSON form is that of the `tune` command.
type Tuning struct {
	Baseline Candidate `json:"baseline"`
	Best     Candidate `json:"best"`
	// Export is the shell line that applies the winner; empty when doing
	// nothing is best.
	Export string `json:"export"`
	// Depends says what else must hold for Export to have its effect, such as
	// a memory fraction that the program sets or a release of PyTorch.
	Depends []string `json:"depends"`
	// Evidence is what the answer stands on.
	Evidence Evidence `json:"evidence"`
	// Modelled is the present setting as the model sees it, where Baseline is
	// the recorded run: the difference is the model's own error. Null
	// otherwise.
	Modelled *Modelled `json:"now_modelled"`
	// Bound is the most bytes that must live at once, the requests that failed
	// in the recording included (Case.Need), the worst of the traces.
	Bound int64 `json:"bound"`
	// Searched counts the configurations simulated.
	Searched   int         `json:"searched"`
	Candidates []Candidate `json:"candidates"`
	// Pareto is the front of reserved peak against stall.
	Pareto  []Candidate `json:"pareto"`
	Reason  string      `json:"reason"`
	Verdict Verdict     `json:"verdict"`
	// Short is how many bytes are missing when Verdict is CannotFit.
	Short int64 `json:"short,omitempty"`
	// Room is the bytes the allocator may take; 0 = unlimited.
	Room bytesize.OrNone `json:"room"`
	// RoomHigh is the most that it may take by any explanation of the
	// recording, where they differ; 0 = Room holds, or one has no limit.
	RoomHigh int64 `json:"room_high,omitempty"`
	// Iterations is the number of iterations the traces mark, for figures per
	// iteration; 0 = unknown.
	Iterations int            `json:"iterations,omitempty"`
	PerTrace   []TraceFigures `json:"per_trace"`
	Warnings   []string       `json:"warnings"`
	Notes      []string       `json:"notes"`
	ElapsedMS  int64          `json:"elapsed_ms"`
}

// Modelled is a run with modelled addresses.
type Modelled struct {
	ReservedPeak    int64 `json:"reserved_peak"`
	NumAllocRetries int64 `json:"num_alloc_retries"`
	NumOOMs         int64 `json:"num_ooms"`
}

// Tune searches the settable options for the configuration that serves all
// jobs best: it must complete every one; then the reserved peak decides, then
// the time in driver calls, then simplicity (spec of the order: docs/planning.md).
// When ctx ends during the search, the best so far is returned with a note.
func Tune(ctx context.Context, jobs []Case, opts TuneOptions) (*Tuning, error) {
	started := time.Now()
	t := &tuner{opts: opts, seen: make(map[conf.Config]bool), byEffect: make(map[effect]*Candidate), iters: -1}
	t.jobs, t.of = worldsOf(jobs)
	if err := t.prepare(); err != nil {
		return nil, err
	}
	if err := t.search(ctx); err != nil && ctx.Err() == nil {
		return nil, err
	}
	out := t.answer(ctx)
	out.ElapsedMS = time.Since(started).Milliseconds()
	return out, nil
}

type tuner struct {
	jobs    []Case
	opts    TuneOptions
	version conf.Version
	space   *space
	base    conf.Config
	cands   []*Candidate
	seen    map[conf.Config]bool
	// byEffect finds a candidate that does the same to these traces.
	byEffect map[effect]*Candidate
	ceiling  int64 // runs end when they reserve more; 0 = never
	bound    int64
	need     int64         // bound with the requests that failed in the recording
	machines []sim.Machine // of the jobs, as they are now
	room     int64         // 0 = unlimited
	roomHigh int64         // the most of any machine
	done     int64
	// of is the case that each of jobs is a world of: a recording that fits
	// several explanations is among jobs once for each.
	of       []int
	part     bool // the beginning of a job's recording is missing
	modelled *Modelled
	iters    int // iterations of all traces; -1 = not counted yet
	total    int64
}

func (t *tuner) prepare() error {
	if len(t.jobs) == 0 {
		return fmt.Errorf("tune: no trace")
	}
	if t.opts.Budget <= 0 {
		t.opts.Budget = DefaultBudget
	}
	if t.opts.Tolerance <= 0 {
		t.opts.Tolerance = DefaultTolerance
	}
	t.version = t.opts.Version
	if t.version == (conf.Version{}) {
		t.version = conf.Latest
	}
	t.base = conf.Default(t.version)
	first := &t.jobs[0]
	if first.Recovered != nil {
		t.base = first.Recovered.Conf
	}
	if first.Conf != nil {
		t.base = *first.Conf
	}
	spec, err := torch.Spec(t.base, t.version)
	if err != nil {
		return err
	}
	limited := true
	for i := range t.jobs {
		j := &t.jobs[i]
		if len(j.Trace.Events) == 0 {
			return fmt.Errorf("tune: %s has no requests", j.Trace.Source)
		}
		t.bound = max(t.bound, sim.Bound(j.Trace))
		t.need = max(t.need, j.Need())
		t.part = t.part || IsPart(j.Trace)
		m, err := j.resolved(spec)
		if err != nil {
			return err
		}
		if room := m.Room(); room > 0 && (t.room == 0 || room < t.room) {
			t.room = room
		}
		t.roomHigh = max(t.roomHigh, m.Room())
		limited = limited && m.Limit > 0 && j.limitKnown()
		t.machines = append(t.machines, m)
	}
	t.space = newSpace(t.jobs, t.base, t.version)
	t.space.noExpandable = t.opts.NoExpandable
	t.space.collect = limited
	return nil
}

// fractions are limits a little above what the jobs have live, as shares of
// the device: they trade flushes for a lower peak.
func (t *tuner) fractions(baseline *Candidate) []float64 {
	var out []float64
	total := int64(0)
	for i := range t.jobs {
		if m := t.jobs[i].Machine; m.Limit > 0 || m.Fraction > 0 {
			return nil // the program sets its own limit, which overrides
		}
		n := cmp.Or(t.jobs[i].Machine.Total, t.jobs[i].Machine.Capacity, t.jobs[i].Trace.Meta.DeviceTotal)
		if n == 0 || total != 0 && n != total {
			return nil
		}
		total = n
	}
	for _, slack := range []float64{1.02, 1.1, 1.25} {
		f := math.Ceil(float64(t.need)*slack/float64(total)*1000) / 1000
		if f > 0 && f < 1 && f*float64(total) < float64(baseline.ReservedPeak) && !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// search simulates the baseline, a coarse grid, and the neighbours of the best
// until nothing improves or the budget is spent.
func (t *tuner) search(ctx context.Context) error {
	if err := t.evaluate(ctx, []conf.Config{t.base}, true); err != nil {
		return err
	}
	baseline := t.cands[0]
	if err := t.model(ctx); err != nil {
		return err
	}
	t.space.fractions = t.fractions(baseline)
	if t.room > 0 && t.need > t.room {
		return nil // no setting can help
	}
	if baseline.Completed && baseline.NumOOMs == 0 {
		// Nothing that reserves more than the baseline can win, as nothing can
		// fail less often.
		t.ceiling = baseline.ReservedPeak
	}
	if err := t.evaluate(ctx, t.space.coarse(), false); err != nil {
		return err
	}
	if err := t.async(ctx); err != nil {
		return err
	}
	const rounds, beam = 6, 5
	expanded := make(map[conf.Config]bool)
	for range rounds {
		var next []conf.Config
		leaders, err := t.leaders(ctx, beam)
		if err != nil {
			return err
		}
		for _, c := range leaders {
			if !expanded[c.config] {
				expanded[c.config] = true
				next = append(next, t.space.neighbours(c.config)...)
			}
		}
		if len(next) == 0 || len(t.cands) >= t.opts.Budget {
			break
		}
		// What is clearly worse than the best so far cannot win either.
		if best := t.ranked()[0]; best.Completed && best.NumOOMs == 0 && !best.last() {
			t.ceiling = min(t.ceilingOrMax(), int64(float64(best.ReservedPeak)*(1+2*t.opts.Tolerance)))
		}
		if err := t.evaluate(ctx, next, false); err != nil {
			return err
		}
	}
	return t.finalists(ctx)
}

// model runs the present setting as other settings are run, with modelled
// addresses, where the baseline is the recorded run.
func (t *tuner) model(ctx context.Context) error {
	if !slices.ContainsFunc(t.jobs, func(j Case) bool { return j.AsRecorded() }) {
		return nil
	}
	m := new(Modelled)
	for i := range t.jobs {
		cfg := t.config(i, t.cands[0])
		cfg.Pin = false
		res, err := sim.Run(ctx, t.jobs[i].Trace, cfg)
		if err != nil {
			return err
		}
		m.ReservedPeak = max(m.ReservedPeak, res.Stats.ReservedBytes[policies.All].Peak)
		if t.first(i) {
			m.NumAllocRetries += res.Stats.NumAllocRetries
			m.NumOOMs += res.Stats.NumOOMs
		}
	}
	t.modelled = m
	return nil
}

func (t *tuner) ceilingOrMax() int64 {
	if t.ceiling == 0 {
		return math.MaxInt64
	}
	return t.ceiling
}

// evaluate simulates configurations that have not been simulated yet, within
// the budget, under the present ceiling.
func (t *tuner) evaluate(ctx context.Context, list []conf.Config, baseline bool) error {
	var batch []*Candidate
	for _, c := range list {
		if t.seen[c] || len(t.cands)+len(batch) >= t.opts.Budget {
			continue
		}
		spec, err := torch.Spec(c, t.version)
		if err != nil {
			if baseline {
				return err
			}
			continue
		}
		t.seen[c] = true
		cand := &Candidate{
			Conf: c.Format(t.version), Options: optionCount(c, t.version), config: c, spec: spec, ceiling: t.ceiling,
			Approximate: c.Backend == conf.CudaMallocAsync,
			Limits:      c.PerProcessMemoryFraction < t.base.PerProcessMemoryFraction,
			plain:       t.space.isPlain(c),
		}
		// What does the same as a candidate that sets less has nothing to add;
		// the other way round it takes over.
		e := t.space.effectOf(c, spec)
		if same := t.byEffect[e]; same != nil {
			if cand.Options < same.Options && same != t.cands[0] {
				same.Conf, same.Options, same.config, same.spec, same.plain = cand.Conf, cand.Options, c, spec, cand.plain
			}
			continue
		}
		t.byEffect[e] = cand
		batch = append(batch, cand)
	}
	// Those that set less first: they can rule out the others.
	slices.SortStableFunc(batch, func(a, b *Candidate) int { return cmp.Compare(a.Options, b.Options) })
	fresh := len(batch)
	batch = append(batch, t.reopened()...)
	err := t.simulateAll(ctx, batch, t.opts.Whole)
	for _, c := range batch[:fresh] {
		if c.perTrace != nil {
			t.cands = append(t.cands, c)
		}
	}
	return err
}

// reopened returns the lost candidates for which the reason may have gone: a
// simpler configuration with the same effect has taken over the loser, or the
// candidate that it lost to and with that its kind.
func (t *tuner) reopened() []*Candidate {
	var list []*Candidate
	for _, c := range t.cands {
		if y := c.lostTo; y != nil && (c.Options != c.lostWith || y.kind() != c.lostAs) {
			list = append(list, c)
		}
	}
	return list
}

// lookBack is how many places in a batch lie between a candidate and the last
// of the same batch that may rule it out. A fixed number makes what is ruled
// out independent of the number of workers; it is also the number of workers
// that never wait for one another.
const lookBack = 32

// simulateAll runs candidates up to their ceilings and, unless all are wanted
// whole, until they are lost.
func (t *tuner) simulateAll(ctx context.Context, batch []*Candidate, whole bool) error {
	t.total += int64(len(batch))
	known := make(map[kind]*rivals)
	for _, c := range t.cands {
		if k := c.kind(); c.wasWhole() {
			if known[k] == nil {
				known[k] = new(rivals)
			}
			known[k].add(c)
		}
	}
	kinds := make([]kind, len(batch))
	done := make([]chan struct{}, len(batch))
	for k, c := range batch {
		kinds[k], done[k] = c.kind(), make(chan struct{})
	}
	return parallel(ctx, t.opts.Workers, len(batch), t.tick, func(ctx context.Context, r *sim.Runner, k int) error {
		defer close(done[k])
		var against rivals
		if whole {
			return t.simulate(ctx, r, batch[k], &against)
		}
		if known := known[kinds[k]]; known != nil {
			against = rivals{slices.Clip(known.completed), slices.Clip(known.failed), known.fewest}
		}
		for j := range max(k-lookBack+1, 0) {
			<-done[j]
			if kinds[j] == kinds[k] && batch[j].wasWhole() {
				against.add(batch[j])
			}
		}
		return t.simulate(ctx, r, batch[k], &against)
	})
}

func (t *tuner) tick() {
	t.done++
	if t.opts.Progress != nil {
		t.opts.Progress(t.done, t.total)
	}
}

// simulate runs a candidate on all traces as long as it can still win: against
// a ceiling of reserved bytes and against candidates that have been run.
func (t *tuner) simulate(ctx context.Context, r *sim.Runner, c *Candidate, against *rivals) error {
	var results []*sim.Result
	var before standing // after the traces already run
	c.lostTo, c.lostAs, c.lostWith = nil, c.kind(), c.Options
	for i := range t.jobs {
		cfg := t.config(i, c)
		cfg.MaxReserved = c.ceiling
		if !against.none() && !t.open() {
			cfg.GiveUp = func(p sim.Progress) bool {
				c.lostTo = against.beats(c, before.and(p))
				return c.lostTo != nil
			}
		}
		res, err := r.Run(ctx, t.jobs[i].Trace, cfg)
		if err != nil {
			return err
		}
		results = append(results, res)
		if res.Stopped {
			break
		}
		before = before.and(res.Progress())
	}
	*c = Candidate{
		Conf: c.Conf, Options: c.Options, Limits: c.Limits, Approximate: c.Approximate,
		config: c.config, plain: c.plain, spec: c.spec, ceiling: c.ceiling, perTrace: results, lostTo: c.lostTo, lostAs: c.lostAs, lostWith: c.lostWith,
	}
	c.sum(t.of)
	return nil
}

// open reports that a recording fits several explanations.
func (t *tuner) open() bool { return len(t.of) > 0 && t.of[len(t.of)-1] < len(t.of)-1 }

// first reports that a job is the first world of its case.
func (t *tuner) first(job int) bool { return job == 0 || job >= len(t.of) || t.of[job] != t.of[job-1] }

// sum makes the candidate's figures from those of its traces: of the worlds of
// one case (of names the case of each trace) the worst.
func (c *Candidate) sum(of []int) {
	c.Completed = true
	var worst Candidate // of the worlds of the present case
	add := func() {
		c.NumAllocRetries += worst.NumAllocRetries
		c.NumOOMs += worst.NumOOMs
		c.Driver.Mallocs += worst.Driver.Mallocs
		c.Driver.Frees += worst.Driver.Frees
		c.Driver.Maps += worst.Driver.Maps
		c.Driver.Unmaps += worst.Driver.Unmaps
		c.Driver.StallUS += worst.Driver.StallUS
		worst = Candidate{}
	}
	for i, res := range c.perTrace {
		f := figures(res)
		if i > 0 && (i >= len(of) || of[i] != of[i-1]) {
			add()
		}
		c.Completed = c.Completed && f.Completed
		c.Stopped = c.Stopped || res.Stopped
		c.ReservedPeak = max(c.ReservedPeak, f.ReservedPeak)
		c.AllocatedPeak = max(c.AllocatedPeak, f.AllocatedPeak)
		worst.NumAllocRetries = max(worst.NumAllocRetries, f.NumAllocRetries)
		worst.NumOOMs = max(worst.NumOOMs, f.NumOOMs)
		worst.Driver.Mallocs = max(worst.Driver.Mallocs, f.Driver.Mallocs)
		worst.Driver.Frees = max(worst.Driver.Frees, f.Driver.Frees)
		worst.Driver.Maps = max(worst.Driver.Maps, f.Driver.Maps)
		worst.Driver.Unmaps = max(worst.Driver.Unmaps, f.Driver.Unmaps)
		worst.Driver.StallUS = max(worst.Driver.StallUS, f.Driver.StallUS)
	}
	add()
	if c.ReservedPeak > 0 {
		c.Utilization = float64(c.AllocatedPeak) / float64(c.ReservedPeak)
	}
}

// figures are a candidate's figures for one result.
func figures(res *sim.Result) Candidate {
	return Candidate{
		Conf: res.Policy.Options, Completed: res.Completed && !res.Stopped,
		ReservedPeak:    res.Stats.ReservedBytes[policies.All].Peak,
		AllocatedPeak:   res.Stats.AllocatedBytes[policies.All].Peak,
		NumAllocRetries: res.Stats.NumAllocRetries, NumOOMs: res.Stats.NumOOMs,
		Driver: res.Driver.Document(), Utilization: res.Utilization(), Stopped: res.Stopped,
	}
}

// async simulates backend:cudaMallocAsync, a labelled approximation.
func (t *tuner) async(ctx context.Context) error {
	c := t.space.plain()
	c.Backend = conf.CudaMallocAsync
	// It has no MemPool (pytorch#192464): the program would not run.
	if !conf.Check(c, t.version).OK || slices.ContainsFunc(t.jobs, memPools) {
		return nil
	}
	return t.evaluate(ctx, []conf.Config{c}, false)
}

// memPools reports whether a job allocates in a torch.cuda.MemPool: its ids
// have a zero first, those of a graph's own pool a zero second.
func memPools(j Case) bool {
	pools := j.Trace.Pools
	return slices.ContainsFunc(j.Trace.Events, func(e traces.Event) bool {
		return e.Kind == traces.Alloc && e.Pool != 0 && pools[e.Pool][0] == 0
	})
}
