package sim_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces/formats/formatstest"
)

func samePolicy(a, b *policies.Spec) bool { return a == b }

// TestGiveUp: what GiveUp is told only grows and ends at the result; to be
// asked changes nothing, and an answer ends the run.
func TestGiveUp(t *testing.T) {
	ctx := context.Background()
	tr := formatstest.Load(t, "../testdata/recordings/gnn__default.pickle.zst")
	for _, policy := range []string{"torch", "torch:expandable_segments:True", "torch:max_split_size_mb:64", "stream", "cupy", "rmm-pool"} {
		spec, err := policies.Parse(policy)
		if err != nil {
			t.Fatal(err)
		}
		cfg := sim.Config{Policy: spec, Machine: sim.Machine{Capacity: sim.Bound(tr) * 11 / 10}}
		want, err := sim.Run(ctx, tr, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var seen []sim.Progress
		cfg.GiveUp = func(p sim.Progress) bool {
			seen = append(seen, p)
			return false
		}
		got, err := sim.Run(ctx, tr, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(samePolicy)); diff != "" {
			t.Errorf("%s, when asked (-not asked +asked):\n%s", policy, diff)
		}
		seen = append(seen, got.Progress())
		for k := range seen[1:] {
			p, q := seen[k], seen[k+1]
			if q.ReservedPeak < p.ReservedPeak || q.NumOOMs < p.NumOOMs || p.Failed && !q.Failed || q.Driver.StallUS < p.Driver.StallUS ||
				q.Driver.Mallocs < p.Driver.Mallocs || q.Driver.Frees < p.Driver.Frees || q.Driver.Maps < p.Driver.Maps || q.Driver.Unmaps < p.Driver.Unmaps {
				t.Errorf("%s: %+v after %+v", policy, q, p)
			}
		}
		n := len(seen) / 2
		asked := 0
		cfg.GiveUp = func(sim.Progress) bool {
			asked++
			return asked > n
		}
		if got, err = sim.Run(ctx, tr, cfg); err != nil {
			t.Fatal(err)
		}
		if !got.Stopped || asked != n+1 || got.Events == 0 || got.Events >= len(tr.Events) || got.Progress() != seen[n] {
			t.Errorf("%s: gave up at question %d of %d: stopped %v after %d events with %+v, want %+v", policy, asked, n+1, got.Stopped, got.Events, got.Progress(), seen[n])
		}
	}
}

// TestBrief: OOMs that are not described are still counted, and nothing else
// changes.
func TestBrief(t *testing.T) {
	tr := formatstest.Load(t, "../testdata/recordings/gnn__default.pickle.zst")
	spec, err := policies.Parse("torch")
	if err != nil {
		t.Fatal(err)
	}
	cfg := sim.Config{Policy: spec, Machine: sim.Machine{Capacity: sim.Bound(tr)}}
	want, err := sim.Run(context.Background(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Brief = true
	got, err := sim.Run(context.Background(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(want.OOMs) == 0 || len(got.OOMs) != 0 {
		t.Errorf("%d OOMs described, %d when brief", len(want.OOMs), len(got.OOMs))
	}
	want.OOMs, got.OOMs = nil, nil
	if diff := cmp.Diff(want, got, cmp.Comparer(samePolicy)); diff != "" {
		t.Errorf("(-described +brief):\n%s", diff)
	}
}
