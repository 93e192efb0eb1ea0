package planner

import (
	"context"

	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
)

// Comparison is a case under several policies side by side.
type Comparison struct {
	// Bound is the most bytes that must live at once, with the requests that
	// failed in the recording: no placement needs less.
	Bound int64 `json:"bound"`
	// Results are the runs, in the order of the policies: of the explanations
	// that a recording leaves open, the one that needs most.
	Results []*sim.Document `json:"results"`
	// Evidence is what the comparison stands on.
	Evidence Evidence `json:"evidence"`
}

// Compared are the policies that a comparison has by itself: the present one
// and, where release v has them, PyTorch's expandable segments.
func Compared(c *Case, v conf.Version) []*policies.Spec {
	specs := []*policies.Spec{c.Policy}
	if spec, err := torch.Expandable(v); err == nil { // else an old PyTorch
		specs = append(specs, spec)
	}
	return specs
}

// Compare runs a case under each of the policies. progress, if not nil, is told
// how many of them are done.
func Compare(ctx context.Context, c *Case, specs []*policies.Spec, progress func(done, total int64)) (*Comparison, error) {
	out := &Comparison{Bound: c.Need(), Results: []*sim.Document{}, Evidence: c.Evidence()}
	for i, spec := range specs {
		under := *c
		under.Policy = spec
		run, err := Replay(ctx, &under, true)
		if err != nil {
			return nil, err
		}
		doc := run.Result.Document()
		doc.Bound = out.Bound
		if c.Recovered != nil {
			doc.Notes = append(doc.Notes, c.Recovered.Inferred...)
		}
		if d := Differ(run.Worlds); d != "" {
			doc.Notes = append(doc.Notes, spec.String()+": "+d+" This is the one that needs most.")
		}
		out.Results = append(out.Results, doc)
		if progress != nil {
			progress(int64(i+1), int64(len(specs)))
		}
	}
	return out, nil
}
