package sim

import (
	"context"
	"errors"
	"slices"
	"testing"

	"allocsim/policies"
	"allocsim/policies/direct"
	"allocsim/policies/packing"
	"allocsim/traces"
)

// TestPrepare: a policy that must know the run is told every call that it will
// get, once a trace and choice.
func TestPrepare(t *testing.T) {
	b := traces.NewBuilder(0)
	a := b.Alloc(0, 100, 0, 0)
	c := b.Alloc(1, 200, 0, 0)
	b.Free(2, a)
	b.OOM(3, 300, 0, 0)
	b.FreeRequested(4, c)
	b.FreeCompleted(6, c)
	b.Alloc(8, 400, 0, 0)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	want := []policies.Lifetime{
		{Size: 100, Malloc: 0, Free: 2, MallocUS: 0, FreeUS: 2}, {Size: 200, Malloc: 1, Free: 5, MallocUS: 1, FreeUS: 6},
		{Size: 300, Malloc: 3, Free: 4, MallocUS: 3, FreeUS: 3}, {Size: 400, Malloc: 6, Free: 7, MallocUS: 8, FreeUS: 9},
	}

	base, err := direct.Registration.Parse("")
	if err != nil {
		t.Fatal(err)
	}
	var rooms []int64
	spec := &policies.Spec{Name: "seer", New: func(policies.Env) (policies.Policy, error) { return nil, errors.New("not prepared") }}
	spec.Prepare = func(_ context.Context, run *policies.Future) (*policies.Spec, error) {
		rooms = append(rooms, run.Room)
		if run.Calls != 7 || !slices.Equal(run.Lifetimes, want) {
			t.Errorf("%d calls, %v; want 7, %v", run.Calls, run.Lifetimes, want)
		}
		return base, nil
	}
	var r Runner
	for range 2 {
		res, err := r.Run(context.Background(), tr, Config{Policy: spec, Detail: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Stats.AllocatedBytes[policies.All].Peak; got != 512+512 {
			t.Errorf("peak of %d bytes", got)
		}
	}
	// Anew for another room, whoever limits it.
	for _, m := range []Machine{{Capacity: 8 << 20}, {Capacity: 8 << 20, Limit: 6 << 20}, {Capacity: 8 << 20, Fraction: 0.5}} {
		if _, err := r.Run(context.Background(), tr, Config{Policy: spec, Machine: m}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int64{0, 8 << 20, 6 << 20, 4 << 20}; !slices.Equal(rooms, want) {
		t.Errorf("prepared for rooms of %d bytes, want %d", rooms, want)
	}
	bad := *spec
	bad.Name = "other"
	bad.Prepare = func(context.Context, *policies.Future) (*policies.Spec, error) { return nil, errors.New("cannot") }
	if _, err := r.Run(context.Background(), tr, Config{Policy: &bad}); err == nil {
		t.Error("a failed preparation is not reported")
	}
}

// TestPrepareOrder: what lived at the start of a cut recording may come in any
// order, but not for a policy that was told of the order.
func TestPrepareOrder(t *testing.T) {
	b := traces.NewBuilder(0)
	for i := range int64(4) {
		b.Alloc(0, (i+1)<<20, 0, 0)
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.StartEvents = 4
	spec, err := packing.Registration.Parse("")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Policy: spec}
	for k := range uint64(8) {
		res, err := Run(context.Background(), tr, cfg.Order(k+1))
		if err != nil {
			t.Fatal(err)
		}
		if !res.Completed {
			t.Errorf("order %d: %+v", k+1, res.OOMs)
		}
	}
	span, err := SampleSpan(context.Background(), tr, cfg, SpanOrders, 2)
	if err != nil {
		t.Fatal(err)
	}
	if want := [2]int64{10 << 20, 10 << 20}; span.ReservedPeak != want || !span.CompletedAll {
		t.Errorf("span %+v, want %d", span, want)
	}
}
