// Package report writes what allocsim found out about one trace or several as
// a single HTML file: verdict and cure first, then the cards that fit, memory
// over time and over addresses, tables, notes on what is not known, and a
// glossary.
//
// The file needs no network and no other file. Everything but interaction
// (zooming, hovering, switching settings, sorting, copying) works without
// JavaScript: figures are SVG drawn by package plots. Text from traces is
// escaped by html/template and encoding/json.
package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg"

	"allocsim/internal/plural"
	"allocsim/internal/text"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/planner/words"
	"allocsim/plots"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces/inspect"
)

// Input is one trace.
type Input struct {
	// Name is what the report calls it, SHA256 the hash of its file in hex.
	Name, SHA256 string
	Job          planner.Case
}

// Options steer a report. The zero value is right for most.
type Options struct {
	// Command and Version say how the report was made.
	Command, Version string
	// PyTorch is the release whose settings may be used; zero = the latest.
	PyTorch conf.Version
	// Cards are the cards to judge.
	Cards []gpus.Card
	// Thorough searches as the tune and plan commands do, however long the
	// traces are. Otherwise a report of long traces keeps its search short and
	// says so.
	Thorough bool
	// Workers ≤ 0 means one a processor; the report does not depend on it.
	Workers int
	// Progress, if not nil, is told how many simulations are done.
	Progress func(done, total int64)
}

const (
	// usual is the number of events up to which the search is as that of the
	// tune and plan commands.
	usual = 60_000
	// effort is how many events a search kept short may simulate.
	effort = 30_000_000
	// runsOfFinalist are the runs for the range of one setting.
	runsOfFinalist = sim.SpanOrders + planner.ChangedTraces + 1
)

// Result is what a report says, for those who made it.
type Result struct {
	Tuning *planner.Tuning
	// Notes are those shown.
	Notes []string
}

// Write makes the report of the inputs. The error says what is wrong with an
// input or that ctx has ended.
func Write(ctx context.Context, w io.Writer, inputs []Input, o Options) (*Result, error) {
	if len(inputs) == 0 {
		return nil, fmt.Errorf("report: no trace")
	}
	b := &builder{ctx: ctx, inputs: inputs, o: o}
	for _, in := range inputs {
		b.jobs = append(b.jobs, in.Job)
		b.events += len(in.Job.Trace.Events)
	}
	p, err := b.page()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := page.Execute(&out, p); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return nil, err
	}
	return &Result{Tuning: b.tuning, Notes: p.Notes}, nil
}

type builder struct {
	ctx    context.Context
	inputs []Input
	jobs   []planner.Case
	events int // of all traces
	o      Options
	tuning *planner.Tuning
	notes  []string
}

// run is one trace under one policy.
type run struct {
	Name    string
	Limit   int64
	result  *sim.Result
	byEvent *plots.Memory
	byTime  *plots.Memory
	frags   *plots.Fragments
	layout  *plots.Layout // by event
	sizes   *plots.SizeRecorder
}

// view is the page's data; see page.html.
type view struct {
	Title, Command, Version string
	Sources                 []source
	Verdict                 verdict
	Fit                     *fit
	Pareto                  template.HTML
	Candidates              *table
	Traces                  []traceView
	Notes                   []string
	Glossary                [][2]string
	CSS                     template.CSS
	JS                      template.JS
}

type source struct {
	Name, SHA256 string
	Facts        [][2]string
}

type verdict struct {
	words.Advice
	Wrong    []string
	Before   *table
	Warnings []string
}

type fit struct {
	Lead   string
	Need   *table // nil where no capacity was simulated
	More   []string
	Figure template.HTML
	Table  *table
}

type traceView struct {
	ID, Name      string
	Several       bool
	Runs          []runView
	Timeline, Map template.HTML
	Fragmentation template.HTML
	Sizes         template.HTML
	Data          template.JS
	Clock         bool
	Nothing       string // says why there are no figures
	Shown         string // says when not every block is described
	Tables        []*table
}

type runView struct {
	Index  int
	Name   string
	Figure string // its figures in one sentence
	First  bool
}

func (b *builder) page() (*view, error) {
	if err := b.tune(); err != nil {
		return nil, err
	}
	v := &view{
		Title: "GPU memory of " + b.inputs[0].Name, Command: b.o.Command, Version: b.o.Version,
		Glossary: glossary, CSS: template.CSS(style), JS: template.JS(script),
	}
	if n := len(b.inputs); n > 1 {
		v.Title = fmt.Sprintf("GPU memory of %d traces", n)
	}
	for i := range b.inputs {
		tv, src, err := b.trace(i)
		if err != nil {
			return nil, err
		}
		v.Traces = append(v.Traces, *tv)
		v.Sources = append(v.Sources, *src)
	}
	var err error
	if v.Verdict, err = b.verdict(); err != nil {
		return nil, err
	}
	if v.Fit, err = b.fit(); err != nil {
		return nil, err
	}
	if len(b.tuning.Candidates) > 1 {
		if v.Pareto, err = figure(plots.ParetoOf(b.label(), b.tuning), 10, 5.2); err != nil && !errors.Is(err, plots.ErrNothing) {
			return nil, err
		}
	}
	v.Candidates = candidates(b.tuning)
	b.notes = append(b.notes, b.tuning.Notes...)
	seen := make(map[string]bool)
	for _, n := range b.notes {
		if !seen[n] {
			seen[n] = true
			v.Notes = append(v.Notes, n)
		}
	}
	return v, nil
}

// label names the inputs in figures about all of them.
func (b *builder) label() string {
	if len(b.inputs) == 1 {
		return b.inputs[0].Name
	}
	return fmt.Sprintf("%s and %d more", b.inputs[0].Name, len(b.inputs)-1)
}

// short reports that the search is kept short.
func (b *builder) short() bool { return !b.o.Thorough && b.events > usual }

func (b *builder) tune() error {
	// Whole, unless that takes long: the figure of the settings shows them all.
	opts := planner.TuneOptions{Version: b.o.PyTorch, Workers: b.o.Workers, Progress: b.o.Progress, Whole: !b.short()}
	if b.short() {
		runs := effort / max(b.events, 1)
		opts.Finalists = runs/2/runsOfFinalist - 1
		if opts.Finalists <= 0 {
			opts.Finalists = -1
		}
		opts.Budget = max(runs-max(opts.Finalists+1, 0)*runsOfFinalist, 24)
		b.notes = append(b.notes, fmt.Sprintf("The traces are long, so the search was kept to at most %d settings; allocsim tune, or allocsim report --thorough, searches on.", opts.Budget))
	}
	t, err := planner.Tune(b.ctx, b.jobs, opts)
	if err != nil {
		return err
	}
	if err := b.ctx.Err(); err != nil {
		return err
	}
	b.tuning = t
	return nil
}

// policies are the settings shown: the present one, the best, PyTorch's
// defaults and expandable segments.
func (b *builder) policies(i int) ([]string, []*policies.Spec, error) {
	v := b.o.PyTorch
	if v == (conf.Version{}) {
		v = conf.Latest
	}
	var names []string
	var specs []*policies.Spec
	seen := make(map[string]bool)
	add := func(what string, s *policies.Spec) {
		if seen[s.String()] {
			return
		}
		seen[s.String()] = true
		name := s.Label()
		if what != "" {
			name = what + ": " + name
		}
		names = append(names, name)
		specs = append(specs, s)
	}
	add("now", b.jobs[i].Policy)
	if best := b.tuning.Best.Spec(); best != nil {
		add("best", best)
	}
	plain, err := torch.Spec(conf.Default(v), v)
	if err != nil {
		return nil, nil, err
	}
	add("", plain)
	if s, err := torch.Expandable(v); err == nil { // else an old PyTorch
		add("", s)
	}
	return names, specs, nil
}

// trace simulates one input under the settings shown and draws it.
func (b *builder) trace(i int) (*traceView, *source, error) {
	in, tr := b.inputs[i], b.jobs[i].Trace
	names, specs, err := b.policies(i)
	if err != nil {
		return nil, nil, err
	}
	b.notes = append(b.notes, tr.Notes...)
	if r := b.jobs[i].Recovered; r != nil {
		b.notes = append(b.notes, r.Inferred...)
	}
	const columns = 4096
	runs := make([]*run, len(specs))
	err = parallel(b.ctx, b.o.Workers, len(specs), func(ctx context.Context, k int) error {
		cfg := b.jobs[i].On(specs[k], b.jobs[i].Machine)
		byEvent := plots.NewRecorder(tr, plots.ByEvent, min(columns, max(len(tr.Events), 1)))
		byTime := plots.NewRecorder(tr, plots.ByTime, columns)
		space := plots.NewSpaceRecorder(tr, specs[k], plots.ByEvent, columns, true)
		space.Curves(tr, plots.ByTime)
		observers := []sim.Observer{byEvent, byTime, space}
		r := &run{Name: names[k]}
		if k == 0 {
			r.sizes = plots.NewSizeRecorder()
			observers = append(observers, r.sizes)
		}
		res, err := sim.Run(ctx, tr, cfg, observers...)
		if err != nil {
			return err
		}
		r.result, r.byEvent, r.byTime, r.frags, r.layout = res, byEvent.Memory(), byTime.Memory(), space.Fragments(), space.Layout()
		r.Limit = res.Room()
		runs[k] = r
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	sum := inspect.Summarize(tr)
	tv := &traceView{ID: fmt.Sprintf("t%d", i), Name: in.Name, Several: len(b.inputs) > 1, Clock: tr.Duration() > 0}
	if err := b.figures(tv, runs, i); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", in.Name, err)
	}
	if tv.Timeline == "" {
		var limit int64
		for _, r := range runs {
			limit = max(limit, r.Limit)
		}
		tv.Nothing = "Every allocation fails in " + size(limit) + ", so there is nothing to draw."
	}
	for k, r := range runs {
		b.notes = append(b.notes, r.result.Policy.Notes...)
		tv.Runs = append(tv.Runs, runView{Index: k, Name: r.Name, Figure: sentence(r), First: k == 0})
	}
	// A report of one trace has room for this many blocks in every setting.
	most := 60_000 / len(b.inputs)
	data, shown, all, err := encode(tr, runs, sim.Bound(tr), most)
	if err != nil {
		return nil, nil, err
	}
	tv.Data = data
	if shown < all {
		tv.Shown = fmt.Sprintf("The zoomable map has the %s blocks of the largest size × lifetime of %s; the rest shows as free space in it.", text.Count(shown), text.Count(all))
	}
	tv.Tables = b.tables(tv.ID, i, runs, &sum)
	return tv, b.source(i, &sum), nil
}

// figures draws the pictures that need no JavaScript.
func (b *builder) figures(tv *traceView, runs []*run, i int) error {
	tr := b.jobs[i].Trace
	timeline := &plots.Timeline{Source: tv.Name, Bound: sim.Bound(tr)}
	addresses := &plots.Map{Source: tv.Name}
	frag := &plots.Fragmentation{Source: tv.Name}
	for k, r := range runs {
		timeline.Runs = append(timeline.Runs, plots.Run{Name: r.Name, Memory: r.byTime, Limit: r.Limit})
		if k < 2 {
			addresses.Runs = append(addresses.Runs, plots.MapRun{Name: r.Name, Layout: r.layout.ByTime(tr)})
			frag.Runs = append(frag.Runs, plots.FragmentationRun{Name: r.Name, Fragments: r.frags})
		}
	}
	marks := plots.SizeMarks(runs[0].result.Policy)
	sizes := &plots.Sizes{Source: tv.Name, Policy: runs[0].Name, Bins: runs[0].sizes.Bins(), Marks: marks}
	height := 4.4
	if len(runs) > 1 {
		height = 4.2 * float64((len(runs)+1)/2)
	}
	draws := []struct {
		to *template.HTML
		f  plots.Figure
		h  vg.Length
	}{{&tv.Timeline, timeline, vg.Length(height)}, {&tv.Map, addresses, 4.6}, {&tv.Fragmentation, frag, 4.8}, {&tv.Sizes, sizes, 4.6}}
	return parallel(b.ctx, b.o.Workers, len(draws), func(_ context.Context, k int) (err error) {
		*draws[k].to, err = figure(draws[k].f, 10, draws[k].h)
		if errors.Is(err, plots.ErrNothing) {
			return nil // every allocation of the runs it shows fails
		}
		return err
	})
}

// figure draws a figure as inline SVG of w × h inches.
func figure(f plots.Figure, w, h vg.Length) (template.HTML, error) {
	var out bytes.Buffer
	if err := plots.Render(&out, f, plots.Options{Format: plots.SVG, Width: w * vg.Inch, Height: h * vg.Inch}); err != nil {
		return "", err
	}
	// Inline SVG has no XML declaration; the page is the background.
	s := out.String()
	if i := strings.Index(s, "<svg "); i >= 0 {
		s = s[i:]
	}
	if i := strings.Index(s, "<path "); i >= 0 {
		if j := strings.Index(s[i:], "/>"); j >= 0 && strings.Contains(s[i:i+j], "fill:#FFFFFF") {
			s = s[:i] + s[i+j+2:]
		}
	}
	return template.HTML(s), nil // plots escapes its texts
}

// fit judges the cards: by simulating each for traces of usual length, else by
// the peak on an unlimited device.
func (b *builder) fit() (*fit, error) {
	if len(b.o.Cards) == 0 {
		return nil, nil
	}
	f := &fit{}
	var shown plots.Fit
	if b.short() {
		shown = b.fitByPeak(f)
	} else {
		var err error
		if shown, err = b.fitByPlan(f); err != nil {
			return nil, err
		}
	}
	shown.Source = b.label()
	shown.Cards = plots.FitCards(b.o.Cards, shown.Needs, 14)
	if rows := len(shown.Cards); rows > 0 {
		var err error
		if f.Figure, err = figure(&shown, 10, vg.Length(1.9+0.24*float64(rows))); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// fitByPeak judges the cards by the peaks that the search has found.
func (b *builder) fitByPeak(f *fit) plots.Fit {
	t := b.tuning
	needs := []int64{t.Baseline.Upper()}
	settings := []string{"now: " + words.OrDefault(t.Baseline.Conf)}
	if !t.Baseline.Completed || t.Baseline.NumOOMs > 0 {
		// What failed is missing from the peak.
		needs[0] = 0
		for _, j := range b.jobs {
			needs[0] = max(needs[0], sim.Need(j.Trace))
		}
		f.Lead = "The program ran out of memory, so this is the least that it needs: what was live and the request that failed."
	} else {
		if t.Best.Conf != t.Baseline.Conf {
			needs = append(needs, t.Best.Upper())
			settings = append(settings, "best: "+words.OrDefault(t.Best.Conf))
		}
		f.Lead = "Judged by the reserved peak on an unlimited device. A smaller card may do, because the allocator returns what it caches before it gives up: allocsim plan simulates every card."
	}
	if why := words.Undecided(&t.Evidence); why != "" {
		f.Lead = why + " " + f.Lead
	}
	var cards []planner.CardVerdict
	for _, c := range b.o.Cards {
		v, need, setting := c.Assess(needs[0]), needs[0], t.Baseline.Conf
		if len(needs) > 1 && v.Verdict != gpus.Fits {
			if better := c.Assess(needs[1]); better.Headroom > v.Headroom {
				v, need, setting = better, needs[1], t.Best.Conf
			}
		}
		if !t.Evidence.Complete() && v.Verdict != gpus.No && v.Verdict != gpus.Unknown {
			v.Verdict = gpus.Undecidable
		}
		cards = append(cards, planner.CardVerdict{Name: c.Name, Usable: v.Usable, Verdict: v.Verdict, Conf: setting, Headroom: v.Headroom, HeadroomHigh: v.UsableHigh - need})
	}
	f.Table = cardTable(cards, t.Baseline.Conf, t.Best.Conf)
	for _, r := range f.Table.Rows {
		r[4] = cell{} // no card was simulated
	}
	return plots.Fit{Settings: settings, Needs: needs}
}

// fitByPlan judges the cards as the plan command does.
func (b *builder) fitByPlan(f *fit) (plots.Fit, error) {
	opts := planner.PlanOptions{Cards: b.o.Cards}
	opts.Tune.Version, opts.Tune.Workers = b.o.PyTorch, b.o.Workers
	if !b.o.Thorough {
		opts.Tune.Budget = max(min(effort/max(b.events, 1), 300), 24)
	}
	plan, err := planner.Plan(b.ctx, b.jobs, opts)
	if err != nil {
		return plots.Fit{}, err
	}
	m := plan.MinCapacity
	shown := plots.Fit{Settings: []string{"now: " + words.OrDefault(b.tuning.Baseline.Conf)}, Needs: []int64{m.BaselineSafe}}
	if m.BestConf != plan.Baseline {
		shown.Settings = append(shown.Settings, "best: "+words.OrDefault(m.BestConf))
		shown.Needs = append(shown.Needs, m.BestSafe)
	}
	f.Lead = "Every card was simulated. The CUDA context and libraries come on top of what the allocator needs, and are taken off the usable memory of each card."
	if why := words.Undecided(&plan.Evidence); why != "" {
		f.Lead = why + " " + f.Lead
	}
	f.Need = &table{ID: "need", Caption: "Smallest capacity that works", Heads: []head{{"", false}, {"for the allocator", true}, {"safe", true}, {"setting", false}}, Note: words.Safe()}
	for _, c := range words.Capacities(plan) {
		f.Need.add(words.Text(c.What), words.Text(c.Allocator), words.Text(c.Safe), words.Text(c.Setting))
	}
	f.More = words.Besides(plan)
	f.Table = cardTable(plan.GPUs, plan.Baseline, m.BestConf)
	b.notes = append(b.notes, plan.Notes...)
	return shown, nil
}

// verdict says what is wrong and what cures it.
func (b *builder) verdict() (verdict, error) {
	t := b.tuning
	v := verdict{Advice: words.Advise(t), Warnings: slices.Clone(t.Warnings), Before: beforeAfter(t)}
	for i := range b.jobs {
		prefix := ""
		if len(b.jobs) > 1 {
			prefix = b.inputs[i].Name + ": "
		}
		cfg := b.jobs[i].Config()
		cfg.Detail = true
		res, err := sim.Run(b.ctx, b.jobs[i].Trace, cfg)
		if err != nil {
			return v, err
		}
		v.Wrong = append(v.Wrong, prefix+wrong(res, sim.Bound(b.jobs[i].Trace), planner.IsPart(b.jobs[i].Trace)))
	}
	return v, nil
}

// wrong describes what a run suffers from, in numbers.
func wrong(r *sim.Result, bound int64, part bool) string {
	if len(r.OOMs) > 0 {
		o := &r.OOMs[0]
		cause := map[sim.Cause]string{
			sim.CauseCapacity:      "The device is too small for it",
			sim.CauseLimit:         "The allocator's own memory limit is too low for it",
			sim.CauseFragmentation: "The memory is there, but in pieces (fragmentation)",
		}[o.Cause]
		text := fmt.Sprintf("At %s a request of %s fails, with %s reserved, %s of it allocated, and a largest free block of %s. %s.",
			text.Duration(o.TimeUS), size(o.Requested), size(o.Reserved), size(o.Allocated), size(o.LargestFree), cause)
		if o.Reason != "" {
			text += " " + o.Reason
		}
		return text
	}
	peak := r.Stats.ReservedBytes[policies.All].Peak
	s := fmt.Sprintf("At its peak it reserves %s, though never more than %s live at once", size(peak), size(bound))
	if part {
		s = fmt.Sprintf("In the part recorded it reserves up to %s, and up to %s live at once", size(peak), size(bound))
	} else if bound > 0 && peak > bound {
		s += fmt.Sprintf(" (%.0f %% more than needed)", 100*float64(peak-bound)/float64(bound))
	}
	s += "."
	if f := r.AtPeak; f != nil && f.ReservedUnallocated > 0 {
		s += fmt.Sprintf(" At that moment %s of the reserved memory are not allocated; the largest free block is %s.", size(f.ReservedUnallocated), size(f.LargestFree))
	}
	if n := r.Stats.NumAllocRetries; n > 0 {
		s += fmt.Sprintf(" It has to flush its cache %s to go on, which stalls the program.", plural.Of(n, "time"))
	}
	return s
}

func sentence(r *run) string {
	s := &r.result.Stats
	txt := fmt.Sprintf("peak reserved %s, peak allocated %s, %s in driver calls", size(s.ReservedBytes[policies.All].Peak), size(s.AllocatedBytes[policies.All].Peak), text.Duration(r.result.Driver.StallUS))
	if s.NumAllocRetries > 0 {
		txt += fmt.Sprintf(", %s %s", text.Count(int(s.NumAllocRetries)), plural.Noun(s.NumAllocRetries, "retry", "retries"))
	}
	if s.NumOOMs > 0 {
		txt += fmt.Sprintf(", %s out of memory", text.Count(int(s.NumOOMs)))
	}
	return txt
}
