package planner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/traces/inspect"
)

// answer turns the search into advice.
func (t *tuner) answer(ctx context.Context) *Tuning {
	out := &Tuning{
		Bound: t.need, Room: bytesize.OrNone(t.room), Searched: len(t.cands),
		Depends: []string{}, Evidence: evidenceOf(t.jobs), Candidates: []Candidate{}, Pareto: []Candidate{}, PerTrace: []TraceFigures{}, Warnings: []string{}, Notes: []string{},
	}
	if len(t.cands) == 0 {
		out.Verdict = NoSettingFound
		out.Reason = "Stopped before the baseline was simulated."
		return out
	}
	baseline := t.cands[0]
	list := t.ranked()
	best := list[0]
	switch {
	case ctx.Err() == nil:
	case best.Span == nil && !best.last():
		out.Notes = append(out.Notes, "Stopped early: this is the best so far. It has not been tried under other orders and sizes and may not be reliable.")
	default:
		out.Notes = append(out.Notes, "Stopped early: this is the best so far.")
	}
	out.Candidates = distinct(list)
	out.Pareto = pareto(list)
	out.Baseline, out.Best = *baseline, *best
	out.Iterations = t.iterations()
	for i := range t.jobs {
		if i < len(baseline.perTrace) && i < len(best.perTrace) {
			now, then := figures(baseline.perTrace[i]), figures(best.perTrace[i])
			then.Conf = best.Conf
			f := TraceFigures{Source: t.jobs[i].Trace.Source, Bound: t.jobs[i].Need(), Baseline: now, Best: then}
			if t.first(i) {
				out.PerTrace = append(out.PerTrace, f)
			} else {
				out.PerTrace[len(out.PerTrace)-1].worst(f)
			}
		} else if t.first(i) {
			out.PerTrace = append(out.PerTrace, TraceFigures{Source: t.jobs[i].Trace.Source, Bound: t.jobs[i].Need()})
		}
		if !t.first(i) {
			continue
		}
		out.Notes = append(out.Notes, t.jobs[i].Trace.Notes...)
		if rec := t.jobs[i].Recovered; rec != nil {
			out.Notes = append(out.Notes, rec.Inferred...)
		}
	}
	out.Modelled = t.modelled
	if t.open() && t.roomHigh > t.room {
		out.RoomHigh = t.roomHigh
	}
	if t.open() {
		out.Evidence.open()
		for _, c := range []*Candidate{baseline, best} {
			var worlds []World
			for i, r := range c.perTrace {
				worlds = append(worlds, NewWorld(&t.jobs[i], r))
			}
			if d := Differ(worlds); d != "" && len(t.jobs) == len(worlds) && t.of[len(t.of)-1] == 0 {
				out.Notes = append(out.Notes, name(c)+": "+d+" The figures are the worst of them.")
			}
		}
	}
	t.verdict(out, baseline, best)
	for i := range t.jobs {
		if t.first(i) {
			out.Notes = append(out.Notes, caveats(&t.jobs[i])...)
		}
	}
	for i := range t.jobs[1:] {
		j := &t.jobs[i+1]
		if j.Conf == nil && j.Recovered != nil && j.Recovered.Conf != t.base {
			out.Notes = append(out.Notes, fmt.Sprintf("%s was recorded under another configuration than %s; the present setting is the one of %[2]s for all.", j.Trace.Source, t.jobs[0].Trace.Source))
		}
	}
	if len(t.cands) >= t.opts.Budget {
		out.Notes = append(out.Notes, fmt.Sprintf("The search ended at its budget of %d settings; a larger one may find more.", t.opts.Budget))
	}
	out.Warnings = append(out.Warnings, t.warnings()...)
	if out.Export != "" {
		out.Depends = append(out.Depends, t.depends(best)...)
		if w := t.tight(best); w != "" {
			out.Warnings = append(out.Warnings, w)
		}
	}
	return out
}

// worst takes in another world of the same recording: of each setting the
// figures of the one that needs more.
func (f *TraceFigures) worst(o TraceFigures) {
	f.Bound = max(f.Bound, o.Bound)
	for _, x := range []struct{ c, with *Candidate }{{&f.Baseline, &o.Baseline}, {&f.Best, &o.Best}} {
		if cmp.Or(boolFirst(!x.with.Completed, !x.c.Completed), -cmp.Compare(x.with.NumOOMs, x.c.NumOOMs), -cmp.Compare(x.with.ReservedPeak, x.c.ReservedPeak)) < 0 {
			*x.c = *x.with
		}
	}
}

// tight says that what a setting takes at worst is nearly all there is.
func (t *tuner) tight(c *Candidate) string {
	rest := t.room - c.Upper()
	if t.room == 0 || rest > t.room/100 {
		return ""
	}
	if rest <= 0 {
		return fmt.Sprintf("Tight: at worst all of the %s that the allocator may take, in %d runs with other orders and sizes. Other changes may need more.",
			bytesize.Format(t.room), sim.SpanOrders+ChangedTraces)
	}
	return fmt.Sprintf("Tight: at worst %s of the %s that the allocator may take, in %d runs with other orders and sizes. Other changes may need more.",
		bytesize.Format(c.Upper()), bytesize.Format(t.room), sim.SpanOrders+ChangedTraces)
}

// depends says what else must hold for a setting to have its effect.
func (t *tuner) depends(c *Candidate) []string {
	var out []string
	if c.config.GCThreshold > 0 && c.config.PerProcessMemoryFraction >= 1 {
		out = append(out, "garbage_collection_threshold works only below a memory fraction: keep set_per_process_memory_fraction as it is in the program. On a card that is simply full it does nothing.")
	}
	var needs conf.Version
	for _, o := range conf.Check(c.config, t.version).Options {
		if v, err := conf.ParseVersion(o.Since); err == nil && v.Compare(needs) > 0 {
			needs = v
		}
	}
	for i := range t.jobs {
		if v, err := conf.ParseVersion(t.jobs[i].Trace.Meta.Torch); err == nil && v.Compare(needs) < 0 || err != nil && needs.Compare(conf.Version{Major: 2, Minor: 6}) > 0 {
			return append(out, fmt.Sprintf("This setting needs PyTorch %s or later; an older release refuses it.", needs))
		}
	}
	return out
}

// iterations counts the iterations of all traces.
func (t *tuner) iterations() int {
	if t.iters < 0 {
		t.iters = 0
		for i := range t.jobs {
			if t.first(i) {
				it := inspect.FindIterations(t.jobs[i].Trace)
				t.iters += it.Count()
			}
		}
	}
	return t.iters
}

// verdict fills in Export, Verdict and Reason.
func (t *tuner) verdict(out *Tuning, baseline, best *Candidate) {
	size := bytesize.Format
	keep := func(v Verdict, format string, args ...any) {
		out.Verdict, out.Reason, out.Best = v, fmt.Sprintf(format, args...), *baseline
	}
	export := func(v Verdict, reason string) {
		out.Verdict, out.Reason = v, reason
		out.Export = "export PYTORCH_CUDA_ALLOC_CONF=" + shellWord(best.Conf)
		if best.Conf == "" {
			out.Export = "unset PYTORCH_CUDA_ALLOC_CONF"
		}
	}
	switch {
	case t.room > 0 && t.need > t.room:
		out.Short = t.need - t.room
		keep(CannotFit, "No allocator setting can help: %s live at once%s, %s more than the %s that the allocator may take.",
			size(t.need), withFailed(t), size(out.Short), size(t.room))
	case t.part:
		out.Verdict, out.Reason = Undecidable, t.undecided(out, baseline, best)
	case !best.Completed:
		where := "here"
		if t.room > 0 {
			where = "in " + size(t.room)
		}
		keep(NoSettingFound, "None of the %d settings tried completes %s, although only %s live at once; %s fails least (%d OOMs). Free memory at the peak or use less of it.",
			len(t.cands), where, size(t.need), name(best), best.NumOOMs)
	case best.NumOOMs > 0:
		keep(NoSettingFound, "With each %s, requests that failed in the recording fail here, too: %d with %s, the fewest. With them %s would live at once.",
			t.tried(), best.NumOOMs, name(best), size(t.need))
		if t.room > 0 {
			out.Reason += fmt.Sprintf(" The allocator may take %s.", size(t.room))
		}
	case best.last() && best != baseline:
		what := "an approximation of the driver's own pool"
		if best.Limits {
			what = "a limit of its own, which the program would meet soon above it"
		}
		keep(NoSettingFound, "Of the %d settings tried only %s completes, and that is %s. %s live at once.", len(t.cands), name(best), what, size(t.need))
	case !best.completes() && (best == baseline || baseline.Completed && baseline.NumOOMs == 0):
		keep(Tight, "The present setting completes as recorded, but not wherever the driver places segments (%s at worst), and nothing found is reliable. %s live at once; leave more room than %s.",
			size(baseline.Upper()), size(t.bound), size(t.room))
	case !best.completes():
		export(Tight, fmt.Sprintf("%s completes as recorded, where the present setting does not, but not wherever the driver places segments (%s at worst); nothing found is reliable. %s live at once.",
			name(best), size(best.Upper()), size(t.bound)))
	case best == baseline && !best.robust():
		keep(NothingBetter, "Nothing tried is better than what is set, but that is fragile: if sizes change by up to 5 %%, it completes in %d of %d runs. Leave more room than %s.",
			best.Robustness.Completed, best.Robustness.Runs, size(t.room))
	case best == baseline && t.room > 0:
		keep(NothingBetter, "Keep what is set: it completes in %s, and none of the %d settings tried leaves clearly more room or makes it wait clearly less. It reserves %s; %s live at once.",
			size(t.room), len(t.cands), size(baseline.ReservedPeak), size(t.bound))
	case best == baseline:
		keep(NothingBetter, "Keep what is set: none of the %d settings tried lowers the reserved peak of %s by more than %.0f %% for each option without other cost; %s live at once.",
			len(t.cands), size(baseline.ReservedPeak), 100*t.opts.Tolerance, size(t.bound))
	default:
		export(Improved, t.why(baseline, best))
	}
	if t.open() && t.of[len(t.of)-1] == 0 {
		out.Reason = fmt.Sprintf("The recording fits %d explanations; each figure is that of the one that needs most. %s", len(t.jobs), out.Reason)
	}
	if d := out.Evidence.Doubt; d != "" {
		out.Reason = d + " " + out.Reason
	}
	if g := t.growth(); g != "" {
		out.Reason = g + " No setting cures that. " + out.Reason
		if t.room > 0 && out.Verdict != CannotFit && out.Verdict != NoSettingFound {
			out.Verdict, out.Export = Undecidable, ""
		}
	}
}

// undecided is the reason where the beginning of a recording is missing: what
// was simulated holds for the part that is there.
func (t *tuner) undecided(out *Tuning, baseline, best *Candidate) string {
	size := bytesize.Format
	text := out.Evidence.undecided() + fmt.Sprintf(" In the part recorded, the present setting reserves %s", size(baseline.ReservedPeak))
	if baseline.NumOOMs > 0 {
		text += fmt.Sprintf(" and fails %s", plural.Of(int(baseline.NumOOMs), "time"))
	}
	if best != baseline {
		text += fmt.Sprintf("; %s reserves at least %s", name(best), size(best.ReservedPeak))
		if best.NumOOMs > 0 {
			text += fmt.Sprintf(" and fails %s", plural.Of(int(best.NumOOMs), "time"))
		}
	}
	return text + "."
}

// growth says that a job's memory grows; empty if none does.
func (t *tuner) growth() string {
	for i := range t.jobs {
		if g := t.jobs[i].growth(); g != "" {
			return g
		}
	}
	return ""
}

// tried names the settings of which none serves all requests under all orders.
func (t *tuner) tried() string {
	if slices.ContainsFunc(t.cands, func(c *Candidate) bool { return c.Completed && c.NumOOMs == 0 && !c.last() }) {
		return "setting that was found to be reliable"
	}
	return fmt.Sprintf("of the %d settings tried", len(t.cands))
}

// withFailed explains a need above the bound.
func withFailed(t *tuner) string {
	if t.need > t.bound {
		return " (with the requests that failed in the recording)"
	}
	return ""
}

// shellWord quotes a configuration string where a shell would read more into
// it: '>' opens a file, brackets are patterns.
func shellWord(s string) string {
	if strings.ContainsAny(s, "[]<>*?|&;()$`\"'\\ \t") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

func name(c *Candidate) string {
	if c.Conf == "" {
		return "PyTorch's default"
	}
	return c.Conf
}

// why is one sentence with the numbers that decided, and one on the cost.
func (t *tuner) why(baseline, best *Candidate) string {
	size := bytesize.Format
	s := name(best)
	switch {
	case !baseline.Completed:
		s += fmt.Sprintf(" completes, where the present setting runs out of memory %s; it reserves %s", plural.Of(baseline.NumOOMs, "time"), size(best.ReservedPeak))
	case best.NumOOMs < baseline.NumOOMs:
		s += fmt.Sprintf(" serves what the present setting cannot (requests that fail: %d now, %d then); it reserves %s", baseline.NumOOMs, best.NumOOMs, size(best.ReservedPeak))
	case !baseline.robust() && best.changedRuns() > baseline.changedRuns():
		s += fmt.Sprintf(" completes in %d of %d runs with sizes changed by up to 5 %%, the present setting in %d; it reserves %s",
			best.Robustness.Completed, best.Robustness.Runs, baseline.Robustness.Completed, size(best.ReservedPeak))
	case !baseline.completes():
		s += fmt.Sprintf(" completes however the driver places segments, where the present setting does not; it reserves %s", size(best.ReservedPeak))
	case t.close(baseline) && !t.close(best):
		s += fmt.Sprintf(" leaves more room: it reserves %s at worst, the present setting %s", size(best.Upper()), size(baseline.Upper()))
	case t.room > 0 && best.NumAllocRetries < baseline.NumAllocRetries && t.cost(baseline) > t.slack(t.cost(best)):
		s += fmt.Sprintf(" waits less: %s instead of %d; it reserves %s",
			plural.Noun(best.NumAllocRetries, "1 cache flush", fmt.Sprintf("%d cache flushes", best.NumAllocRetries)), baseline.NumAllocRetries, size(best.ReservedPeak))
	case best.Upper() < baseline.Upper() && float64(best.ReservedPeak) > 0.995*float64(baseline.ReservedPeak):
		s += fmt.Sprintf(" reserves at most %s instead of %s, however the driver places segments and if sizes change by up to 5 %%; as recorded it reserves %s (now: %s)",
			size(best.Upper()), size(baseline.Upper()), size(best.ReservedPeak), size(baseline.ReservedPeak))
	case best.Upper() < baseline.Upper():
		s += fmt.Sprintf(" reserves %s instead of %s (%.0f %% less)", size(best.ReservedPeak), size(baseline.ReservedPeak),
			100*(1-float64(best.ReservedPeak)/float64(baseline.ReservedPeak)))
	default:
		s += fmt.Sprintf(" reserves as much as the present setting (%s)", size(best.ReservedPeak))
	}
	if t.bound > 0 {
		s += fmt.Sprintf(", %.0f %% above the %s that live at once", 100*(float64(best.ReservedPeak)/float64(t.bound)-1), size(t.bound))
	}
	if best.Span != nil && best.Span.ReservedPeak[1] > best.ReservedPeak {
		s += fmt.Sprintf(", and up to %s depending on how the driver places segments", size(best.Span.ReservedPeak[1]))
	}
	d := best.Driver.StallUS - baseline.Driver.StallUS
	if r := best.Robustness; r != nil && float64(r.ReservedPeak[1]) > 1.15*float64(best.ReservedPeak) {
		s += fmt.Sprintf("; if sizes change by up to 5 %% it reserves up to %s, so leave room for that", size(r.ReservedPeak[1]))
	}
	switch {
	case baseline.NumOOMs > best.NumOOMs:
		// What fails has no cost to compare with.
		d = best.Driver.StallUS
		s += fmt.Sprintf(". Its driver calls take about %.1f ms over the trace", float64(d)/1000)
	case d > 0:
		s += fmt.Sprintf(". It costs about %.1f ms more in driver calls over the trace", float64(d)/1000)
	case d < 0:
		s += fmt.Sprintf(". It also saves about %.1f ms of driver calls over the trace", float64(-d)/1000)
	default:
		s += ". It costs no time"
	}
	if n := t.iterations(); n > 0 && d > 0 {
		s += fmt.Sprintf(" (%.2f ms an iteration)", float64(d)/1000/float64(n))
	}
	s += "."
	if r := best.NumAllocRetries; r > 0 {
		s += fmt.Sprintf(" %s until the GPU has done what is queued, which is not in these ms.", plural.Noun(r, "Its cache flush also waits", fmt.Sprintf("Each of its %d cache flushes also waits", r)))
	}
	return s
}

// warnings name what is wrong with the present setting.
func (t *tuner) warnings() []string {
	var out []string
	for _, w := range conf.Check(t.base, t.version).Warnings {
		out = append(out, w.Message)
	}
	if t.base.GCThreshold > 0 && !slices.ContainsFunc(t.machines, func(m sim.Machine) bool { return m.Limit > 0 }) {
		out = append(out, "garbage_collection_threshold does nothing here: it needs a memory limit (set_per_process_memory_fraction below 1).")
	}
	return out
}

// caveats say where a recording shows less than its program needs.
func caveats(c *Case) []string {
	tr := c.Trace
	var out []string
	failed := 0
	for i := range tr.Events {
		if tr.Events[i].Kind == traces.OOM {
			failed++
		}
	}
	switch {
	case failed == 0:
	case endsInOOM(tr):
		out = append(out, fmt.Sprintf("%s ends with an OOM: what the program would have needed after it is not in the recording, so these figures are the least.", tr.Source))
	default:
		out = append(out, fmt.Sprintf("In %s, %s failed; to be served here. What the program would have done then is not in the recording.", tr.Source, plural.Of(failed, "request")))
	}
	if IsPart(tr) {
		if k := c.Known(); k.Allocated > sim.Bound(tr) {
			out = append(out, fmt.Sprintf("%s starts late: up to %s were allocated before or after the part recorded, %s in it. These figures hold for that part only.",
				tr.Source, bytesize.Format(k.Allocated), bytesize.Format(sim.Bound(tr))))
		}
	}
	return out
}

// endsInOOM reports that nothing is allocated after the last OOM of a
// recording: the program gave up.
func endsInOOM(tr *traces.Trace) bool {
	for i := len(tr.Events) - 1; i >= 0; i-- {
		switch tr.Events[i].Kind {
		case traces.OOM:
			return true
		case traces.Alloc:
			return false
		}
	}
	return false
}

// distinct drops candidates that take and cost what one with no more options
// does.
func distinct(list []*Candidate) []Candidate {
	type outcome struct {
		peak, retries, ooms int64
		driver              sim.DriverDocument
		stopped             bool // by then; the whole would differ
	}
	fewest := make(map[outcome]int)
	of := func(c *Candidate) outcome {
		return outcome{c.ReservedPeak, c.NumAllocRetries, c.NumOOMs, c.Driver, c.Stopped}
	}
	for _, c := range list {
		if n, seen := fewest[of(c)]; !seen || c.Options < n {
			fewest[of(c)] = c.Options
		}
	}
	out := []Candidate{}
	seen := make(map[outcome]bool)
	for i, c := range list {
		if i == 0 || c.plainExpandable() || c.Options == fewest[of(c)] && !seen[of(c)] {
			seen[of(c)] = true
			out = append(out, *c)
			out[len(out)-1].Known = c.plainExpandable()
		}
	}
	return out
}

// pareto is the front of reserved peak against stall among candidates that
// complete, lowest peak first.
func pareto(list []*Candidate) []Candidate {
	var done []*Candidate
	for _, c := range list {
		if c.Completed && !c.Stopped {
			done = append(done, c)
		}
	}
	slices.SortStableFunc(done, func(a, b *Candidate) int {
		return cmp.Or(cmp.Compare(a.ReservedPeak, b.ReservedPeak), cmp.Compare(a.Driver.StallUS, b.Driver.StallUS),
			cmp.Compare(a.Options, b.Options), compareConfs(a, b))
	})
	out := []Candidate{}
	stall := int64(math.MaxInt64)
	for _, c := range done {
		if c.Driver.StallUS < stall {
			stall = c.Driver.StallUS
			out = append(out, *c)
		}
	}
	return out
}
