package torch_test

import (
	"slices"
	"testing"

	"allocsim/policies"
	"allocsim/policies/policytest"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
)

// TestAsyncByImport: a program that imports this package and registers nothing
// can use PyTorch's other backend.
func TestAsyncByImport(t *testing.T) {
	if r := policies.Registered(); len(r) > 0 {
		t.Fatalf("%d allocators are registered in this test, which is to have none", len(r))
	}
	spec, err := torch.Parse("backend:cudaMallocAsync", conf.Latest)
	if err != nil {
		t.Fatal(err)
	}
	if got := spec.String(); got != "stream:limit-counts=used" {
		t.Errorf("it is %s", got)
	}
	p, err := spec.New(policies.Env{Device: policytest.NewDevice(0)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Malloc(policies.Request{Size: 1}); err != nil {
		t.Error(err)
	}
	if got := p.Stats().ReservedBytes[policies.All].Current; got != 32<<20 {
		t.Errorf("a byte reserves %d bytes; a chunk is 32 MiB", got)
	}
}

// TestSpecAnswers: what a choice tells without a run, against the rules of
// CUDACachingAllocator.h and the chunk of cudaMallocAsync.
func TestSpecAnswers(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		conf, label    string
		version        conf.Version
		size           int64
		block, segment int64
		small, large   int64 // pages
		steps          []int64
	}{
		{"", "PyTorch's defaults", conf.Latest, 1, 512, 2 * mib, 2 * mib, 20 * mib, []int64{512, mib, 10 * mib}},
		{"", "PyTorch's defaults", conf.Version{Major: 2, Minor: 1}, mib + 1, mib + 512, 20 * mib, 2 * mib, 20 * mib, []int64{512, mib, 10 * mib}},
		{"large_segment_size_mb:40,max_split_size_mb:64", "large_segment_size_mb:40,max_split_size_mb:64", conf.Latest,
			5 * mib, 5 * mib, 40 * mib, 2 * mib, 40 * mib, []int64{512, mib, 10 * mib, 64 * mib}},
		{"roundup_power2_divisions:4", "roundup_power2_divisions:4", conf.Latest, 9 * mib, 10 * mib, 10 * mib, 2 * mib, 20 * mib, []int64{512, mib, 10 * mib, 1}},
		{"backend:cudaMallocAsync", "stream:limit-counts=used", conf.Latest, 33 * mib, 33 * mib, 64 * mib, 32 * mib, 32 * mib, nil},
	} {
		spec, err := torch.Parse(c.conf, c.version)
		if err != nil {
			t.Fatal(err)
		}
		if got := spec.Label(); got != c.label {
			t.Errorf("%q: label %q, want %q", c.conf, got, c.label)
		}
		if b, s := spec.Sizes(c.size); b != c.block || s != c.segment {
			t.Errorf("%q: %d bytes take a block of %d and a segment of %d, want %d and %d", c.conf, c.size, b, s, c.block, c.segment)
		}
		if s, l := spec.Page(true), spec.Page(false); s != c.small || l != c.large {
			t.Errorf("%q: pages of %d and %d, want %d and %d", c.conf, s, l, c.small, c.large)
		}
		if got := spec.LimitOf(0.5, 3); got != 1 {
			t.Errorf("%q: half of 3 bytes is a limit of %d", c.conf, got)
		}
		var steps []int64
		if spec.Steps != nil {
			for _, s := range spec.Steps() {
				steps = append(steps, s.At)
			}
		}
		if !slices.Equal(steps, c.steps) {
			t.Errorf("%q: rules change at %d, want %d", c.conf, steps, c.steps)
		}
		// The value is that of the string, without a second reading.
		want, _ := conf.Parse(c.conf, c.version)
		if got, v, ok := torch.ConfigOf(spec); !ok || got != want || v != c.version {
			t.Errorf("%q: configuration %+v of %v, %v", c.conf, got, v, ok)
		}
	}
	if _, _, ok := torch.ConfigOf(&policies.Spec{Name: "torch"}); ok {
		t.Error("a choice that this package did not make has a configuration")
	}
	if _, err := torch.Expandable(conf.Version{Major: 1, Minor: 13}); err == nil {
		t.Error("PyTorch 1.13 has no expandable segments")
	}
	if s, err := torch.Expandable(conf.Latest); err != nil || s.String() != "torch:expandable_segments:True" {
		t.Errorf("%v, %v", s, err)
	}
}
