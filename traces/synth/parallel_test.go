package synth

import (
	"context"
	"slices"
	"testing"

	"allocsim/traces"
	"allocsim/traces/synth/internal/eager"
)

// sizesOf runs a program and lists its requests.
func sizesOf(t *testing.T, program func(e *eager.Engine)) []int64 {
	t.Helper()
	e := eager.New(context.Background(), eager.H200, 0)
	tr, err := e.Run(func() error { program(e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	var out []int64
	for _, ev := range tr.Events {
		if ev.Kind == traces.Alloc {
			out = append(out, ev.Size)
		}
	}
	return out
}

// TestBuckets packs gradients by hand as torch 2.11's
// compute_bucket_assignment_by_size does: from the last parameter on, a first
// bucket closed at 1 MiB, then buckets closed at 25 MiB.
func TestBuckets(t *testing.T) {
	const kib = 256 // fp32 elements
	got := sizesOf(t, func(e *eager.Engine) {
		var ps []*eager.Tensor
		for _, n := range []int64{3 * 1024, 30 * 1024, 20 * 1024, 700, 400} {
			ps = append(ps, e.Param(eager.F32, n*kib))
		}
		(&ddp{e: e, params: ps}).build()
	})
	want := []int64{(400 + 700) << 10, 50 << 20, 3 << 20}
	if !slices.Equal(got[5:], want) {
		t.Errorf("buckets %v, want %v", got[5:], want)
	}
}

// TestClipNorm counts the partial norms of two gradients, the larger of which
// has 2.5 chunks of 65,536 elements: 2 × 3 fp32 values.
func TestClipNorm(t *testing.T) {
	got := sizesOf(t, func(e *eager.Engine) {
		var ps []*eager.Tensor
		for _, n := range []int64{160 << 10, 10} {
			p := e.Param(eager.F32, n)
			p.Grad = e.Buffer(eager.F32, n)
			ps = append(ps, p)
		}
		newOptimizer(e, SGD, ps).clipNorm()
	})
	if want := []int64{24, 4, 4, 8, 4, 4, 4, 4, 4, 4}; !slices.Equal(got[4:], want) {
		t.Errorf("requests %v, want %v", got[4:], want)
	}
}

// TestTensorParallel takes every number of ranks that divides the heads, also
// more ranks than key-value heads as long as one divides the other.
func TestTensorParallel(t *testing.T) {
	m := Model{Name: "m", Family: "llama", Hidden: 96, Layers: 2, Heads: 12, KVHeads: 4, Intermediate: 192, Vocab: 100, Positions: 64}
	for tp, legal := range map[int]bool{1: true, 2: true, 3: false, 4: true, 5: false, 8: false, 12: true} {
		o := Options{TP: tp, Seq: 32, Batch: 2}
		_, err := Run(context.Background(), m, o)
		if (err == nil) != legal {
			t.Errorf("tp %d: %v", tp, err)
		}
	}
}
