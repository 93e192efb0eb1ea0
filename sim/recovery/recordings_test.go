package recovery_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"allocsim/policies"
	_ "allocsim/policies/all"
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
	for _, dir := range []string{"fuzz", "workloads", "scale", "leak", "ring"} {
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

// TestWithoutSidecar withholds what the sidecar says: empty_cache calls and
// limit must be inferred so that every event still matches.
func TestWithoutSidecar(t *testing.T) {
	undecidable := []string{
		// An empty_cache call stands directly in front of an allocation that
		// collects garbage, which no rule tells apart.
		"unet_resolutions__tightmssgc",
		// A graph's pool ends at a call that is itself unknown.
		"h200_graphs__default",
	}
	for _, f := range recordings(t) {
		name := strings.TrimSuffix(filepath.Base(f), ".pickle.zst")
		if slices.Contains(undecidable, name) {
			continue
		}
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
			if d := rec.Check.FirstDivergence; d != nil {
				t.Fatalf("%+v\ninferred: %q", *d, rec.Inferred)
			}
			// A limit that only a targeted release met leaves no counter, so one
			// may be found where none of these counted.
			st := tr.Recorded.Stats
			if met := known.Limit > 0 && st["num_ooms"]+st["num_alloc_retries"] > 0; met && rec.Limit == 0 {
				t.Error("the limit was met, but none is inferred")
			}
			if rec.Limit > 0 && (rec.LimitLow > known.Limit || known.Limit > rec.LimitHigh) {
				t.Errorf("the limit %d is outside the bracket %d … %d", known.Limit, rec.LimitLow, rec.LimitHigh)
			}
			for _, key := range []string{"num_ooms", "reserved_bytes.all.peak", "allocated_bytes.all.peak"} {
				for _, m := range rec.Check.StatsMismatched {
					if m.Key == key {
						t.Errorf("%s: recorded %d, simulated %d", key, m.Recorded, m.Simulated)
					}
				}
			}
		})
	}
}

// withhold returns a trace as it would be without its sidecar (statistics are
// kept, to compare with).
func withhold(tr *traces.Trace) *traces.Trace {
	c := *tr
	c.Meta.Sidecar, c.Meta.Fraction = false, 0
	c.Events = nil
	r := *tr.Recorded
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
