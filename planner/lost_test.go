package planner

import (
	"context"
	"slices"
	"testing"

	_ "allocsim/policies/all"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
)

// searching is a search in a device that has room for a small block and one of
// 30 MiB, for a program that asks for two of these, 300 times.
func searching(t *testing.T, options ...string) *tuner {
	t.Helper()
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	for us := range int64(300) {
		for _, id := range []traces.BlockID{b.Alloc(us, 3*mib, s, 0), b.Alloc(us, 30*mib, s, 0), b.Alloc(us, 30*mib, s, 0)} {
			b.Free(us, id)
		}
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := torch.Parse("", conf.Latest)
	if err != nil {
		t.Fatal(err)
	}
	tn := &tuner{
		jobs: []Case{{Trace: tr, Policy: spec, Machine: sim.Machine{Capacity: 64 * mib}}},
		seen: make(map[conf.Config]bool), byEffect: make(map[effect]*Candidate), iters: -1,
	}
	if err := tn.prepare(); err != nil {
		t.Fatal(err)
	}
	for _, o := range options {
		c, _ := conf.Parse(o, conf.Latest)
		if err := tn.evaluate(context.Background(), []conf.Config{c}, false); err != nil {
			t.Fatal(err)
		}
	}
	if len(tn.cands) != len(options) {
		t.Fatalf("%d candidates, want %d", len(tn.cands), len(options))
	}
	return tn
}

// TestLostSimplest: a lost candidate that may be the simplest of its family is
// run to its end before the leaders are named, and one that may not stays as
// it is.
func TestLostSimplest(t *testing.T) {
	for _, c := range []struct {
		options int
		peak    int64
		whole   bool
	}{
		{2, 50 * mib, true},
		{2, 60 * mib, false}, // above the best's by more than the tolerance
		{5, 50 * mib, false}, // sets more than the best
	} {
		tn := searching(t, "", "large_segment_size_mb:24", "large_segment_size_mb:28", "large_segment_size_mb:32")
		best, simple, x := tn.cands[1], tn.cands[2], tn.cands[3]
		best.NumOOMs, best.ReservedPeak, best.Options = 1, 50*mib, 4
		simple.NumOOMs, simple.ReservedPeak, simple.Options = 2, 90*mib, 1 // too high to count
		events := len(tn.jobs[0].Trace.Events)
		x.NumOOMs, x.ReservedPeak, x.Options = 2, c.peak, c.options
		x.Stopped, x.lostTo, x.lostAs, x.lostWith = true, best, best.kind(), c.options
		list, err := tn.leaders(context.Background(), 5)
		if err != nil {
			t.Fatal(err)
		}
		if x.wasWhole() != c.whole || c.whole && (x.perTrace[0].Events != events || x.lostTo != nil || x.NumOOMs != 300) {
			t.Errorf("%+v: run to its end: %v, %d OOMs", c, x.wasWhole(), x.NumOOMs)
		}
		if !slices.Contains(list, best) || slices.Contains(list, x) && !x.wasWhole() {
			t.Errorf("%+v: leaders %v", c, list)
		}
	}
}

// TestLostReopened: a lost candidate is run again when a simpler configuration
// takes it over, or takes over the one that it lost to and so leaves its
// family; else it stays as it is.
func TestLostReopened(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(x, y *Candidate)
		again  bool
	}{
		{"nothing", func(x, y *Candidate) {}, false},
		{"the winner gets simpler", func(x, y *Candidate) { y.Options-- }, false},
		{"the loser gets simpler", func(x, y *Candidate) { x.Options-- }, true},
		{"the winner leaves the family", func(x, y *Candidate) { y.config.LargeSegmentSize = 20 * mib }, true},
	} {
		tn := searching(t, "", "large_segment_size_mb:24", "large_segment_size_mb:28")
		y, x := tn.cands[1], tn.cands[2]
		x.Options, y.Options = 3, 2
		x.Stopped, x.NumOOMs, x.lostTo, x.lostAs, x.lostWith = true, 2, y, y.kind(), x.Options
		y.NumOOMs = 1000 // does not win again
		c.change(x, y)
		if err := tn.evaluate(context.Background(), nil, false); err != nil {
			t.Fatal(err)
		}
		if x.wasWhole() != c.again {
			t.Errorf("%s: run again: %v", c.what, x.wasWhole())
		}
	}
}

// TestLostCeiling: a candidate that is run again has the ceiling of its own
// round, not a later one that it was never meant for.
func TestLostCeiling(t *testing.T) {
	tn := searching(t, "")
	tn.ceiling = 1
	c := tn.cands[0]
	if err := tn.simulateAll(context.Background(), []*Candidate{c}, true); err != nil {
		t.Fatal(err)
	}
	if c.Stopped || c.ReservedPeak == 0 {
		t.Errorf("ended at a ceiling of %d", tn.ceiling)
	}
}
