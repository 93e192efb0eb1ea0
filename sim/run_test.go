package sim_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
)

// unwarmed hides that a policy is a policies.Warmer.
type unwarmed struct{ policies.Policy }

// warmed counts the hints that a policy gets.
type warmed struct {
	*torch.Policy
	hints *int
}

func (w warmed) Warm(next []policies.Handle) {
	*w.hints += len(next)
	w.Policy.Warm(next)
}

// TestHintsChangeNothing replays a trace with so many live blocks that the
// policy gets hints about the frees to come, and once without them.
func TestHintsChangeNothing(t *testing.T) {
	tr := churn(150_000, 50_000)
	spec, err := torch.Parse("", conf.Latest)
	if err != nil {
		t.Fatal(err)
	}
	hints := 0
	run := func(wrap func(policies.Policy) policies.Policy) (policies.Stats, sim.Driver) {
		s := *spec
		s.New = func(env policies.Env) (policies.Policy, error) {
			p, err := spec.New(env)
			return wrap(p), err
		}
		res, err := sim.Run(context.Background(), tr, sim.Config{Policy: &s})
		if err != nil {
			t.Fatal(err)
		}
		return res.Stats, res.Driver
	}
	with, driver := run(func(p policies.Policy) policies.Policy { return warmed{p.(*torch.Policy), &hints} })
	without, driver2 := run(func(p policies.Policy) policies.Policy { return unwarmed{p} })
	if d := cmp.Diff(without, with) + cmp.Diff(driver2, driver); d != "" {
		t.Errorf("hints change the result (-without +with):\n%s", d)
	}
	if hints == 0 {
		t.Errorf("no hint was given")
	}
}
