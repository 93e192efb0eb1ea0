package recovery_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats/formatstest"
)

// recordings lists the bundled recordings and, where they are beside the
// checkout, all others.
func recordings(t testing.TB) []string {
	files, err := filepath.Glob("../../testdata/recordings/*.pickle.zst")
	if err != nil || len(files) == 0 {
		t.Fatalf("no bundled recordings: %v", err)
	}
	for _, dir := range []string{"fuzz", "workloads", "scale", "leak", "ring", "turn2", "elastic"} {
		more, _ := filepath.Glob("../../../shared/recordings/" + dir + "/*.pickle.zst")
		files = append(files, more...)
	}
	slices.Sort(files)
	return files
}

// TestExact demands of every recording that each address, segment event, OOM,
// final block and statistic follows from its requests.
func TestExact(t *testing.T) {
	for _, f := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".pickle.zst"), func(t *testing.T) {
			tr := formatstest.Load(t, f)
			res, err := recovery.Check(context.Background(), tr, recovery.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !res.Exact {
				t.Fatalf("not exact: %d of %d addresses, %d of %d segment events, first difference %+v, statistics %+v",
					res.AddressesMatched, res.Allocs, res.SegmentEventsMatched, res.SegmentEvents, res.FirstDivergence, res.StatsMismatched)
			}
			if res.AddressesMatched != res.Allocs || res.SegmentEventsMatched != res.SegmentEvents || res.OOMsMatched != res.OOMs || res.FinalBlocksMatched != res.FinalBlocks {
				t.Errorf("called exact although not everything matched: %+v", *res)
			}
			if tr.Meta.Sidecar && tr.Start == nil && res.StatsCompared != 122 {
				t.Errorf("%d statistics compared, want all 122", res.StatsCompared)
			}
		})
	}
}

// TestDriverModel runs recordings of random traffic, where nothing but the
// allocator calls cudaMalloc, without any recorded address: with the driver
// model's addresses every statistic must still be equal.
func TestDriverModel(t *testing.T) {
	for _, f := range recordings(t) {
		if !strings.HasPrefix(filepath.Base(f), "fuzz") {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(f), ".pickle.zst"), func(t *testing.T) {
			rec, err := recovery.Recover(context.Background(), formatstest.Load(t, f), recovery.Options{})
			if err != nil {
				t.Fatal(err)
			}
			res, err := sim.Run(context.Background(), rec.Trace, rec.Config())
			if err != nil {
				t.Fatal(err)
			}
			flat := res.Stats.Flat()
			for key, want := range rec.Trace.Recorded.Stats {
				if got := flat[key]; got != want {
					t.Errorf("%s: recorded %d, simulated %d", key, want, got)
				}
			}
		})
	}
}

// TestPinned repeats recordings with their own segment addresses: every
// statistic must be that of the real run.
func TestPinned(t *testing.T) {
	for _, f := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".pickle.zst"), func(t *testing.T) {
			rec, err := recovery.Recover(context.Background(), formatstest.Load(t, f), recovery.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if rec.Trace.Start != nil {
				return // what came before the recording is unknown
			}
			cfg := rec.Config()
			cfg.Pin = true
			res, err := sim.Run(context.Background(), rec.Trace, cfg)
			if err != nil {
				t.Fatal(err)
			}
			flat := res.Stats.Flat()
			for key, want := range rec.Trace.Recorded.Stats {
				if got := flat[key]; got != want {
					t.Errorf("%s: recorded %d, simulated %d", key, want, got)
				}
			}
		})
	}
}

// TestWithoutSidecar withholds what the sidecar says. The explanations must fit
// every event, and the truth must be one of them: the same kind of bound, with
// the recorded one in its bracket, or none where it was never met.
func TestWithoutSidecar(t *testing.T) {
	for _, f := range recordings(t) {
		name := strings.TrimSuffix(filepath.Base(f), ".pickle.zst")
		t.Run(name, func(t *testing.T) {
			tr := formatstest.Load(t, f)
			if !tr.Meta.Sidecar {
				return
			}
			known, err := recovery.Recover(context.Background(), tr, recovery.Options{})
			if err != nil {
				t.Fatal(err)
			}
			rec, err := recovery.Recover(context.Background(), withhold(tr), recovery.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if d := rec.Check.FirstDivergence; d != nil || !rec.Exact || rec.Doubt != "" {
				t.Fatalf("%+v\ninferred: %q", *d, rec.Inferred)
			}
			if !slices.ContainsFunc(rec.Explanations, func(e recovery.Explanation) bool { return fits(e, known) }) {
				t.Errorf("the truth is %+v, the explanations are %q", known.Explanations[0].Machine, says(rec))
			}
			// Each explanation follows every event: it is one.
			for _, e := range rec.Explanations {
				r := *rec.Trace.Recorded
				r.Stats = nil
				c := *e.Trace
				c.Recorded = &r
				c.Recorded.Driver = e.Trace.Recorded.Driver
				c.Meta.Sidecar, c.Meta.Fraction = true, 0
				res, err := recovery.Check(context.Background(), &c, recovery.Options{Limit: e.Machine.Limit, Capacity: e.Machine.Capacity})
				if err != nil || res.FirstDivergence != nil {
					t.Errorf("%s: %v %+v", e.Says, err, res)
				}
			}
		})
	}
}

func says(rec *recovery.Recovered) (all []string) {
	for _, e := range rec.Explanations {
		all = append(all, e.Says)
	}
	return all
}

// fits reports that an explanation is the truth.
func fits(e recovery.Explanation, known *recovery.Recovered) bool {
	truth := known.Explanations[0]
	met := known.Trace.Recorded.Stats["num_ooms"]+known.Trace.Recorded.Stats["num_alloc_retries"] > 0
	switch {
	case truth.Kind == recovery.KindNone:
		return !e.Limited()
	case truth.Kind == recovery.KindCard:
		return e.Kind == recovery.KindCard && e.Low <= truth.Machine.Capacity && truth.Machine.Capacity <= e.High
	case !met && !e.Limited():
		return e.Low <= truth.Machine.Limit
	}
	return e.Kind == recovery.KindFraction && e.Low <= truth.Machine.Limit && truth.Machine.Limit <= e.High
}

// withhold returns a trace as it would be without its sidecar.
func withhold(tr *traces.Trace) *traces.Trace {
	c := *tr
	c.Meta.Sidecar, c.Meta.Fraction, c.Meta.DeviceTotal, c.Meta.Torch = false, 0, 0, ""
	c.Events = nil
	r := *tr.Recorded
	r.Stats = nil
	r.Driver = slices.Clone(tr.Recorded.Driver)
	removed, next := 0, 0
	for i, e := range tr.Events {
		for next < len(r.Driver) && int(r.Driver[next].Before) <= i {
			r.Driver[next].Before -= uint32(removed)
			next++
		}
		if e.Kind == traces.EmptyCache {
			removed++
			continue
		}
		c.Events = append(c.Events, e)
	}
	for ; next < len(r.Driver); next++ {
		r.Driver[next].Before -= uint32(removed)
	}
	c.Recorded = &r
	return &c
}

// TestWhatIf predicts other configurations of a program from its default
// recording alone. These have no ties that depend on other users of the
// driver, so the peak must be right to the byte.
func TestWhatIf(t *testing.T) {
	base, err := recovery.Recover(context.Background(), formatstest.Load(t, "../../testdata/recordings/gnn__default.pickle.zst"), recovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gnn__exp", "gnn__mss128"} {
		target, err := recovery.Recover(context.Background(), formatstest.Load(t, "../../testdata/recordings/"+name+".pickle.zst"), recovery.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cfg := target.Config()
		res, err := sim.Run(context.Background(), base.Trace, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := res.Stats.ReservedBytes[policies.All].Peak, target.Trace.Recorded.Stats["reserved_bytes.all.peak"]; got != want {
			t.Errorf("%s: reserved peak %d, want %d", name, got, want)
		}
	}
}

// TestTrueFlags: what a user knows of the run and says never makes the replay
// worse; half of what the allocator held is contradicted as a capacity.
func TestTrueFlags(t *testing.T) {
	for _, f := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".pickle.zst"), func(t *testing.T) {
			tr := formatstest.Load(t, f)
			if !tr.Meta.Sidecar {
				return
			}
			m := tr.Meta
			bare := withhold(tr)
			for _, o := range []recovery.Options{
				{Conf: m.Conf, ConfSet: true},
				{Version: conf.Version{Major: 2, Minor: 11}},
				{Fraction: m.Fraction},
				{Capacity: m.DeviceTotal},
				{Total: m.DeviceTotal},
				{Fraction: m.Fraction, Capacity: m.DeviceTotal},
				{Fraction: m.Fraction, Total: m.DeviceTotal, Conf: m.Conf, ConfSet: true},
			} {
				rec, err := recovery.Recover(context.Background(), bare, o)
				if err != nil || !rec.Exact || len(rec.Check.Contradicted) > 0 {
					t.Errorf("%+v: %v %+v", o, err, rec.Check.FirstDivergence)
				}
			}
			known, err := recovery.Recover(context.Background(), tr, recovery.Options{})
			if err != nil {
				t.Fatal(err)
			}
			half := known.Trace.Recorded.Stats["reserved_bytes.all.peak"] / 2
			if half == 0 || tr.Start != nil {
				return
			}
			rec, err := recovery.Recover(context.Background(), bare, recovery.Options{Capacity: half})
			if err != nil || rec.Exact || len(rec.Check.Contradicted) == 0 || rec.Check.FirstDivergence == nil {
				t.Errorf("a capacity of %d bytes is not contradicted: %v", half, err)
			}
		})
	}
}
