package plots_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/plots"
	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
)

// sawtooth frees two of three blocks of each segment and asks for one that fits
// none of the holes: expandable segments need less for it.
func sawtooth(t *testing.T) *traces.Trace {
	t.Helper()
	const mib = 1 << 20
	b := traces.NewBuilder(0)
	var ids []traces.BlockID
	for range 24 { // three to a segment of 20 MiB
		ids = append(ids, b.Alloc(1, 6*mib, 0, 0))
	}
	for k, id := range ids {
		if k%3 != 0 {
			b.Free(10, id)
		}
	}
	b.Free(20, b.Alloc(11, 90*mib, 0, 0))
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Source = "sawtooth"
	return tr
}

func subject(t *testing.T, choice planner.Choice) plots.Subject {
	t.Helper()
	c, err := planner.NewCase(t.Context(), sawtooth(t), choice)
	if err != nil {
		t.Fatal(err)
	}
	return plots.Subject{
		Case: c, Source: "sawtooth", Version: conf.Latest, Rows: 4,
		Cards: []gpus.Card{{Name: "a card", Total: 1 << 30, Low: 1 << 30, High: 1 << 30, Confidence: gpus.Measured}},
	}
}

// TestFitIsThePlan: the figure of cards names the settings and capacities that
// plan names, on whatever machine the case is.
func TestFitIsThePlan(t *testing.T) {
	var figures []*plots.Fit
	for _, choice := range []planner.Choice{{}, {Device: &sim.Machine{Capacity: 1 << 30, Total: 1 << 30}}, {Device: &sim.Machine{Capacity: 230 << 20, Total: 1 << 30}}} {
		s := subject(t, choice)
		d, err := plots.Draw(t.Context(), "fit", s)
		if err != nil {
			t.Fatal(err)
		}
		fig := d.Figure.(*plots.Fit)
		plan, err := planner.Plan(t.Context(), []planner.Case{*s.Case}, planner.PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m := plan.MinCapacity
		if m.BestConf == plan.Baseline {
			t.Fatal("the present setting is best; the test shows nothing")
		}
		if want := []int64{m.BaselineSafe, m.BestSafe}; !slices.Equal(fig.Needs, want) {
			t.Errorf("needs %v, want the plan's %v", fig.Needs, want)
		}
		figures = append(figures, fig)
	}
	for _, fig := range figures[1:] {
		if d := cmp.Diff(figures[0], fig); d != "" {
			t.Errorf("another figure on another machine: %s", d)
		}
	}
}

// TestDrawRuns: which runs each kind of figure shows.
func TestDrawRuns(t *testing.T) {
	spec := func(name string) *policies.Spec {
		s, err := policies.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, kind := range plots.Kinds() {
		s := subject(t, planner.Choice{})
		want := []string{"torch"}
		switch kind {
		case "compare":
			want = []string{"torch", "torch:expandable_segments:True", "cupy", "rmm-pool", "direct"}
		case "fit":
			plan, err := planner.Plan(t.Context(), []planner.Case{*s.Case}, planner.PlanOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, "torch:"+plan.MinCapacity.BestConf)
		case "pareto":
			want = nil
		}
		d, err := plots.Draw(t.Context(), kind, s)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if !slices.Equal(d.Runs, want) {
			t.Errorf("%s shows %q, want %q", kind, d.Runs, want)
		}
		s.Specs = []*policies.Spec{spec("bfc"), spec("direct"), spec("bfc")}
		d, err = plots.Draw(t.Context(), kind, s)
		switch kind {
		case "sizes":
			if !errors.Is(err, plots.ErrOneRun) {
				t.Errorf("sizes of two: %v", err)
			}
		case "pareto":
			if !errors.Is(err, plots.ErrAllRuns) {
				t.Errorf("pareto of two: %v", err)
			}
		default:
			if err != nil || !slices.Equal(d.Runs, []string{"bfc", "direct"}) {
				t.Errorf("%s shows %v, %v, want bfc, direct", kind, d, err)
			}
		}
	}
	if _, err := plots.Draw(t.Context(), "pie", subject(t, planner.Choice{})); err == nil {
		t.Error("a pie is drawn")
	}
}
