package planner_test

import (
	"slices"
	"testing"

	"allocsim/planner"
	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/policies/torch/conf"
	"allocsim/traces"
)

// TestCompare: three blocks of 6 MiB share a segment of 20 MiB under PyTorch's
// defaults; the driver itself gives each its own 6 MiB.
func TestCompare(t *testing.T) {
	const mib = 1 << 20
	b := traces.NewBuilder(0)
	for range 3 {
		b.Alloc(0, 6*mib, 0, 0)
	}
	b.OOM(1, 4*mib, 0, 0)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	c, err := planner.NewCase(t.Context(), tr, planner.Choice{})
	if err != nil {
		t.Fatal(err)
	}
	direct, err := policies.Parse("direct")
	if err != nil {
		t.Fatal(err)
	}
	var steps []int64
	cmp, err := planner.Compare(t.Context(), c, []*policies.Spec{direct, c.Policy}, func(done, total int64) { steps = append(steps, done, total) })
	if err != nil {
		t.Fatal(err)
	}
	if cmp.Bound != 22*mib {
		t.Errorf("bound %d, want 22 MiB: what lived and the request that failed", cmp.Bound)
	}
	var peaks []int64
	for _, d := range cmp.Results {
		peaks = append(peaks, d.Stats["reserved_bytes.all.peak"])
		if d.Bound != cmp.Bound {
			t.Errorf("%s has the bound %d", d.Policy, d.Bound)
		}
	}
	// The 4 MiB succeed here and need a segment more: 20 + 20, 18 + 4.
	if want := []int64{22 * mib, 40 * mib}; !slices.Equal(peaks, want) {
		t.Errorf("peaks %d, want %d", peaks, want)
	}
	if want := []int64{1, 2, 2, 2}; !slices.Equal(steps, want) {
		t.Errorf("progress %d, want %d", steps, want)
	}
	for v, want := range map[conf.Version][]string{conf.Latest: {"torch", "torch:expandable_segments:True"}, {Major: 1, Minor: 10}: {"torch"}} {
		var got []string
		for _, s := range planner.Compared(c, v) {
			got = append(got, s.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("PyTorch %s compares %q, want %q", v, got, want)
		}
	}
}
