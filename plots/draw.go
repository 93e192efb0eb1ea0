package plots

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"allocsim/internal/bytesize"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
)

// ErrOneRun is Draw's error for a figure that has room for one run and is given
// several; ErrAllRuns that of a figure whose runs are those of a search.
var (
	ErrOneRun  = errors.New("this figure shows one allocator")
	ErrAllRuns = errors.New("this figure shows every setting of a search")
)

// Subject is what a figure is about.
type Subject struct {
	// Case is the question; Source names its trace.
	Case   *planner.Case
	Source string
	// Specs are the policies to show, in order; none = the present one and
	// what the kind of figure compares it with.
	Specs []*policies.Spec
	// Best adds the setting that planner.Tune finds.
	Best bool
	// Version is the PyTorch release whose settings may be used.
	Version conf.Version
	Axis    Axis
	// Cards are those of the kind fit, Rows how many rows of them are shown.
	Cards []gpus.Card
	Rows  int
	// Progress, if not nil, is told how many of how many runs are done, and of
	// what: "searching" or "simulating".
	Progress func(what string, done, total int64)
}

// Drawn is a figure and what it shows.
type Drawn struct {
	Figure Figure
	// Runs are the policies shown, Notes what they and the search say.
	Runs, Notes []string

	room int64 // of the run that may take most; 0 = none or not simulated
}

// kinds are the kinds of figure and how their data are made.
var kinds = map[string]func(*drawing) (Figure, error){
	"timeline":      (*drawing).timeline,
	"map":           (*drawing).addresses,
	"fragmentation": (*drawing).fragmentation,
	"sizes":         (*drawing).sizes,
	"compare":       (*drawing).compare,
	"pareto":        (*drawing).pareto,
	"fit":           (*drawing).fit,
}

// Kinds are the kinds of figure that Draw makes, in alphabetical order.
func Kinds() []string {
	var names []string
	for k := range kinds {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

// Draw simulates what a kind of figure shows of a subject. The error says that
// the kind is unknown, that it cannot show these runs (ErrOneRun, ErrAllRuns) or
// that ctx has ended. A figure without data fails in Render; Nothing says why.
func Draw(ctx context.Context, kind string, s Subject) (*Drawn, error) {
	draw, ok := kinds[kind]
	if !ok {
		return nil, fmt.Errorf("unknown kind of figure %q", kind)
	}
	d := &drawing{Subject: s, ctx: ctx, out: new(Drawn)}
	var err error
	if d.out.Figure, err = draw(d); err != nil {
		return nil, err
	}
	return d.out, nil
}

// Nothing says why a figure of a case has no data.
func (d *Drawn) Nothing(c *planner.Case) error {
	if sim.Need(c.Trace) == 0 {
		return fmt.Errorf("%w: the trace has no allocations", ErrNothing)
	}
	room := d.room
	if room == 0 { // as the recording ran
		room = c.Machine.Room()
	}
	return fmt.Errorf("every allocation fails in %s, so there is nothing to draw", bytesize.Format(room))
}

// drawing is a figure in the making.
type drawing struct {
	Subject
	ctx    context.Context
	out    *Drawn
	tuning *planner.Tuning
}

func (d *drawing) progress(what string) func(done, total int64) {
	if d.Progress == nil {
		return nil
	}
	return func(done, total int64) { d.Progress(what, done, total) }
}

// specs are the runs to show: those given, else the present policy and more;
// then the best.
func (d *drawing) specs(more ...*policies.Spec) ([]*policies.Spec, error) {
	list := d.Specs
	if len(list) == 0 {
		list = append([]*policies.Spec{d.Case.Policy}, more...)
	}
	if d.Best {
		t, err := d.tune(false)
		if err != nil {
			return nil, err
		}
		if best := t.Best.Spec(); best != nil {
			list = append(slices.Clip(list), best)
		}
	}
	return d.show(list), nil
}

// show takes down the policies that are shown, each once.
func (d *drawing) show(list []*policies.Spec) []*policies.Spec {
	var out []*policies.Spec
	seen := make(map[string]bool)
	for _, s := range list {
		if n := s.Label(); !seen[n] {
			seen[n] = true
			out = append(out, s)
			d.out.Runs = append(d.out.Runs, s.String())
			d.out.Notes = append(d.out.Notes, s.Notes...)
		}
	}
	return out
}

// tune searches for the best setting, once; whole simulates to their end also
// the settings that cannot win, to be drawn.
func (d *drawing) tune(whole bool) (*planner.Tuning, error) {
	if d.tuning != nil {
		return d.tuning, nil
	}
	t, err := planner.Tune(d.ctx, []planner.Case{*d.Case}, planner.TuneOptions{Version: d.Version, Whole: whole, Progress: d.progress("searching")})
	if err != nil {
		return nil, err
	}
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	d.tuning = t
	return t, nil
}

// simulate runs the case under a policy with observers.
func (d *drawing) simulate(s *policies.Spec, obs ...sim.Observer) (*sim.Result, error) {
	res, err := sim.Run(d.ctx, d.Case.Trace, d.Case.On(s, d.Case.Machine), obs...)
	if err == nil {
		d.out.room = max(d.out.room, res.Room())
	}
	return res, err
}

func (d *drawing) timeline() (Figure, error) {
	specs, err := d.specs()
	if err != nil {
		return nil, err
	}
	fig := &Timeline{Source: d.Source}
	if len(specs) > 1 {
		fig.Bound = sim.Bound(d.Case.Trace)
	}
	for _, s := range specs {
		r := NewRecorder(d.Case.Trace, d.Axis, Columns)
		res, err := d.simulate(s, r)
		if err != nil {
			return nil, err
		}
		fig.Runs = append(fig.Runs, Run{Name: s.Label(), Memory: r.Memory(), Limit: res.Room()})
	}
	return fig, nil
}

func (d *drawing) addresses() (Figure, error) {
	specs, err := d.specs()
	if err != nil {
		return nil, err
	}
	fig := &Map{Source: d.Source}
	for _, s := range specs {
		r := NewSpaceRecorder(d.Case.Trace, s, d.Axis, 1, true)
		if _, err := d.simulate(s, r); err != nil {
			return nil, err
		}
		fig.Runs = append(fig.Runs, MapRun{Name: s.Label(), Layout: r.Layout()})
	}
	return fig, nil
}

func (d *drawing) fragmentation() (Figure, error) {
	specs, err := d.specs()
	if err != nil {
		return nil, err
	}
	fig := &Fragmentation{Source: d.Source}
	for _, s := range specs {
		r := NewSpaceRecorder(d.Case.Trace, s, d.Axis, Columns, false)
		if _, err := d.simulate(s, r); err != nil {
			return nil, err
		}
		fig.Runs = append(fig.Runs, FragmentationRun{Name: s.Label(), Fragments: r.Fragments()})
	}
	return fig, nil
}

func (d *drawing) sizes() (Figure, error) {
	specs, err := d.specs()
	if err != nil {
		return nil, err
	}
	if len(specs) > 1 {
		return nil, ErrOneRun
	}
	r := NewSizeRecorder()
	if _, err := d.simulate(specs[0], r); err != nil {
		return nil, err
	}
	return &Sizes{Source: d.Source, Policy: specs[0].Label(), Bins: r.Bins(), Marks: SizeMarks(specs[0])}, nil
}

func (d *drawing) compare() (Figure, error) {
	var more []*policies.Spec
	if s, err := torch.Expandable(d.Version); err == nil { // else an old PyTorch
		more = append(more, s)
	}
	for _, name := range []string{"cupy", "rmm-pool", "direct"} {
		s, err := policies.Parse(name)
		if err != nil {
			return nil, err
		}
		more = append(more, s)
	}
	specs, err := d.specs(more...)
	if err != nil {
		return nil, err
	}
	// As the compare command has it: with the requests that failed.
	fig := &Compare{Source: d.Source, Bound: d.Case.Need()}
	report := d.progress("simulating")
	for i, s := range specs {
		res, err := d.simulate(s)
		if err != nil {
			return nil, err
		}
		o := OutcomeOf(s.Label(), res)
		if res.Completed {
			span, err := sim.SampleSpan(d.ctx, d.Case.Trace, d.Case.On(s, d.Case.Machine), sim.SpanOrders, 0)
			if err != nil {
				return nil, err
			}
			o.Low, o.High = span.ReservedPeak[0], span.ReservedPeak[1]
		}
		fig.Limit = max(fig.Limit, res.Room())
		fig.Outcomes = append(fig.Outcomes, o)
		if report != nil {
			report(int64(i+1), int64(len(specs)))
		}
	}
	return fig, nil
}

func (d *drawing) pareto() (Figure, error) {
	if len(d.Specs) > 0 {
		return nil, ErrAllRuns
	}
	t, err := d.tune(true)
	if err != nil {
		return nil, err
	}
	d.out.Notes = append(d.out.Notes, t.Notes...)
	return ParetoOf(d.Source, t), nil
}

// fit judges cards by the capacities that planner.Plan finds: with the present
// setting and with the one that needs least, which is not always the one that
// planner.Tune finds for the present machine.
func (d *drawing) fit() (Figure, error) {
	cases := []planner.Case{*d.Case}
	fig := &Fit{Source: d.Source}
	add := func(name string, safe int64) {
		fig.Settings, fig.Needs = append(fig.Settings, name), append(fig.Needs, safe)
	}
	if len(d.Specs) == 0 {
		plan, err := planner.Plan(d.ctx, cases, planner.PlanOptions{Tune: planner.TuneOptions{Version: d.Version, Progress: d.progress("searching")}})
		if err != nil {
			return nil, err
		}
		m := plan.MinCapacity
		list := []string{plan.Baseline}
		needs := []int64{m.BaselineSafe}
		if m.BestConf != plan.Baseline {
			list, needs = append(list, m.BestConf), append(needs, m.BestSafe)
		}
		for i, c := range list {
			s, err := planner.ParsePolicy("torch:"+c, d.Version)
			if err != nil {
				return nil, err
			}
			d.show([]*policies.Spec{s})
			add(s.Label(), needs[i])
		}
	} else {
		specs, err := d.specs()
		if err != nil {
			return nil, err
		}
		for _, s := range specs {
			_, safe, err := planner.SmallestCapacity(d.ctx, cases, s, 0)
			if err != nil {
				return nil, err
			}
			add(s.Label(), safe)
		}
	}
	fig.Cards = FitCards(d.Cards, fig.Needs, d.Rows)
	if len(fig.Cards) == 0 {
		return nil, errors.New("the catalogue knows the memory of none of these cards")
	}
	return fig, nil
}
