package planner_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats/formatstest"
	"allocsim/traces/snapshot/snapshottest"
)

// cutCase is a bundled recording of which only the last n entries are left; its
// sidecar, if wanted, still has the process's own counters.
func cutCase(t *testing.T, name string, n int, sidecar bool) planner.Case {
	t.Helper()
	root := filepath.Join("..", "testdata", "recordings", name)
	data, _ := snapshottest.Cut(formatstest.Load(t, root+".pickle.zst"), n)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cut.pickle"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if sidecar {
		side, err := os.ReadFile(root + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cut.json"), side, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := planner.NewCase(context.Background(), formatstest.Load(t, filepath.Join(dir, "cut.pickle")), planner.Choice{})
	if err != nil {
		t.Fatal(err)
	}
	return *c
}

// TestPartOfARun: gnn reserves 12.87 GiB in all and has 5.45 GiB live at once.
// Of a cut recording nothing is said that this contradicts, and what its
// process counted decides where it can.
func TestPartOfARun(t *testing.T) {
	ctx := context.Background()
	device := func(gib float64) gpus.Card {
		n := int64(gib * (1 << 30))
		return gpus.Card{Name: "a device", Total: n, Low: n, High: n, Confidence: gpus.Measured}
	}
	verdict := func(c planner.Case, gib float64) gpus.Verdict {
		t.Helper()
		p, err := planner.Plan(ctx, []planner.Case{c}, planner.PlanOptions{Cards: []gpus.Card{device(gib)}, Tune: planner.TuneOptions{Budget: 24}})
		if err != nil {
			t.Fatal(err)
		}
		if p.Evidence.Complete() || p.Evidence.Level != planner.LevelPart {
			t.Errorf("the plan of a part stands on %+v", p.Evidence)
		}
		return p.GPUs[0].Verdict
	}
	bare, counted := cutCase(t, "gnn__default", 300, false), cutCase(t, "gnn__default", 300, true)
	for _, x := range []struct {
		name string
		c    planner.Case
		gib  float64
		want gpus.Verdict
	}{
		{"nothing is known of the peak", bare, 40, gpus.Undecidable},
		{"the process counted less", counted, 13, gpus.Fits},
		{"between what lived and what was reserved", counted, 8, gpus.Undecidable},
		{"less than lived at once", counted, 5, gpus.No},
	} {
		if got := verdict(x.c, x.gib); got != x.want {
			t.Errorf("%s, %v GiB: %s, want %s", x.name, x.gib, got, x.want)
		}
	}
	tuned, err := planner.Tune(ctx, []planner.Case{counted}, planner.TuneOptions{Budget: 24})
	if err != nil {
		t.Fatal(err)
	}
	if tuned.Verdict != planner.Undecidable || tuned.Export != "" || !strings.Contains(tuned.Reason, "12.87 GiB") || tuned.Evidence.Record == "" {
		t.Errorf("tune: %s, %q, %q", tuned.Verdict, tuned.Export, tuned.Reason)
	}
	// Its counters do not prove that a request that failed would be served.
	if c := cutCase(t, "fuzz0105", 10, true); verdict(c, 2.34375) == gpus.Fits {
		t.Error("a process that met its limit counts as one that had all it wanted")
	}
}

// TestStartsAsRecorded: under the recorded policy a part of a run begins with
// the layout that was there; under another it is made afresh.
func TestStartsAsRecorded(t *testing.T) {
	c := cutCase(t, "gnn__default", 300, true)
	held := sim.SummarizeState(c.Trace.Start).Reserved
	res, err := planner.Replay(context.Background(), &c, false)
	if err != nil {
		t.Fatal(err)
	}
	if peak := res.Result.Stats.ReservedBytes[policies.All].Peak; peak < held || !c.AsRecorded() {
		t.Errorf("reserves %d, the recorded layout holds %d", peak, held)
	}
	if cfg := c.On(c.Policy, sim.On(held-1, 0)); cfg.FromStart {
		t.Error("a device that is smaller than the layout begins with it")
	}
	other, err := policies.Parse("torch:expandable_segments:True")
	if err != nil {
		t.Fatal(err)
	}
	if cfg := c.On(other, c.Machine); cfg.FromStart || cfg.Pin {
		t.Error("another policy begins with the recorded one's layout")
	}
}

// TestGrowth: a job that leaks fits no card for good, and no setting cures it.
func TestGrowth(t *testing.T) {
	ctx := context.Background()
	c, err := planner.NewCase(ctx, formatstest.Load(t, "../testdata/recordings/leak_outputs__leakpy.pickle.zst"), planner.Choice{})
	if err != nil {
		t.Fatal(err)
	}
	n := int64(8 << 30)
	p, err := planner.Plan(ctx, []planner.Case{*c}, planner.PlanOptions{
		Cards: []gpus.Card{{Name: "a device", Total: n, Low: n, High: n, Confidence: gpus.Measured}}, Tune: planner.TuneOptions{Budget: 24},
	})
	if err != nil {
		t.Fatal(err)
	}
	if g := p.GPUs[0]; g.Verdict != gpus.Undecidable || !strings.Contains(g.Reason, "338.54 MiB an iteration") {
		t.Errorf("%s: %s", g.Verdict, g.Reason)
	}
	tuned, err := planner.Tune(ctx, []planner.Case{*c}, planner.TuneOptions{Budget: 24})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(tuned.Reason, "Memory grows by 338.54 MiB an iteration") {
		t.Errorf("tune: %q", tuned.Reason)
	}
}

// TestWorlds: of two explanations the answer is the one that needs more, and
// that they differ is said. By hand: 300 MiB are freed and the cache emptied in
// one world only, so that in the other 300 and 200 MiB are held together.
func TestWorlds(t *testing.T) {
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	b.Free(1, b.Alloc(0, 300*mib, s, 0))
	b.Free(4, b.Alloc(3, 320*mib, s, 0))
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	c := worlds(t, tr, traces.WithEmptyCaches(tr, []int{2}))
	c.Machine.Capacity = 1 << 30
	run, err := planner.Replay(context.Background(), &c, false)
	if err != nil {
		t.Fatal(err)
	}
	if peak := run.Result.Stats.ReservedBytes[policies.All].Peak; len(run.Worlds) != 2 || peak != 620*mib {
		t.Errorf("%d worlds, %d MiB; want 2, 620", len(run.Worlds), peak/mib)
	}
	if d := planner.Differ(run.Worlds); !strings.Contains(d, "320 MiB to 620 MiB") {
		t.Errorf("differ: %q", d)
	}
	tuned, err := planner.Tune(context.Background(), []planner.Case{c}, planner.TuneOptions{Budget: 24, Finalists: -1})
	if err != nil {
		t.Fatal(err)
	}
	if b := tuned.Baseline; b.ReservedPeak != 620*mib || len(tuned.PerTrace) != 1 || tuned.Evidence.Level != planner.LevelAssumed {
		t.Errorf("tune: %d MiB, %d traces, %s", b.ReservedPeak/mib, len(tuned.PerTrace), tuned.Evidence.Level)
	}
}

// worlds is a case that fits two explanations.
func worlds(t *testing.T, a, b *traces.Trace) planner.Case {
	t.Helper()
	rec, err := recovery.Recover(context.Background(), a, recovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rec.Explanations = []recovery.Explanation{
		{Trace: a, Kind: recovery.KindNone, Says: "The cache is never emptied."},
		{Trace: b, Kind: recovery.KindNone, Says: "It is emptied."},
	}
	return planner.Recorded(rec)
}
