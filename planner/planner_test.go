package planner_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"allocsim/planner"
	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats"
)

const mib = 1 << 20

func job(t testing.TB, name string) planner.Case {
	t.Helper()
	file, err := formats.Open(context.Background(), "../testdata/recordings/"+name+".pickle.zst", formats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := file.Device(-1)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := recovery.Recover(context.Background(), tr, recovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return planner.Recorded(rec)
}

func tune(t testing.TB, o planner.TuneOptions, jobs ...planner.Case) *planner.Tuning {
	t.Helper()
	res, err := planner.Tune(context.Background(), jobs, o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestTuneGNN: real runs of this program took 13,180 MiB by default, 9,318 MiB
// with expandable segments and 64,934 MiB with the popular
// max_split_size_mb:64.
func TestTuneGNN(t *testing.T) {
	j := job(t, "gnn__default")
	res := tune(t, planner.TuneOptions{}, j)
	if got := res.Baseline.ReservedPeak; got != 13180*mib {
		t.Errorf("baseline reserves %d MiB, want 13180", got/mib)
	}
	if got := res.Best.ReservedPeak; got > 9318*mib {
		t.Errorf("best reserves %d MiB, want at most 9318", got/mib)
	}
	if strings.ReplaceAll(res.Export, "'", "") != "export PYTORCH_CUDA_ALLOC_CONF="+res.Best.Conf || res.Best.Conf == "" {
		t.Errorf("export line %q for %q", res.Export, res.Best.Conf)
	}
	for _, c := range res.Candidates {
		if strings.Contains(c.Conf, "max_split_size_mb:64,") && c.Completed && c.ReservedPeak < 64934*mib {
			t.Errorf("%s reserves %d MiB; the real run took 64934", c.Conf, c.ReservedPeak/mib)
		}
	}
	if res.Searched > planner.DefaultBudget {
		t.Errorf("%d configurations simulated, budget %d", res.Searched, planner.DefaultBudget)
	}
	// What is set already is not recommended.
	spec, err := torch.Parse(res.Best.Conf, conf.Latest)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := conf.Parse(res.Best.Conf, conf.Latest)
	set := *j.Recovered
	set.Conf, set.Policy = c, spec
	j.Recovered, j.Policy = &set, spec
	if again := tune(t, planner.TuneOptions{}, j); again.Export == res.Export {
		t.Errorf("recommends %q, which is set", again.Export)
	}
}

// TestTuneFrom: the search compares with the configuration that is set now,
// not with the recorded one.
func TestTuneFrom(t *testing.T) {
	j := job(t, "gnn__default")
	c, _ := conf.Parse("max_split_size_mb:64", conf.Latest)
	j.Conf = &c
	res := tune(t, planner.TuneOptions{Budget: 30}, j)
	if b := res.Baseline; b.Conf != "max_split_size_mb:64" || b.ReservedPeak != 64934*mib {
		t.Errorf("baseline %q reserves %d MiB, want max_split_size_mb:64 and 64934", b.Conf, b.ReservedPeak/mib)
	}
}

// TestTuneOfDifferentConfigurations: one of several recordings gives the
// baseline, and the answer says so.
func TestTuneOfDifferentConfigurations(t *testing.T) {
	res := tune(t, planner.TuneOptions{Budget: 30}, job(t, "gnn__default"), job(t, "gnn__mss128"))
	if res.Baseline.Conf != "" || !strings.Contains(strings.Join(res.Notes, "\n"), "another configuration") {
		t.Errorf("baseline %q, notes %q", res.Baseline.Conf, res.Notes)
	}
	res = tune(t, planner.TuneOptions{Budget: 30}, job(t, "gnn__default"), job(t, "gnn__default"))
	if strings.Contains(strings.Join(res.Notes, "\n"), "another configuration") {
		t.Errorf("notes of equal configurations: %q", res.Notes)
	}
}

// TestTuneIndependentOfWorkers: the answer is the same, byte for byte, runs
// that ended early included.
func TestTuneIndependentOfWorkers(t *testing.T) {
	tight := job(t, "gnn__default")
	tight.Machine.Capacity = sim.Bound(tight.Trace) * 105 / 100
	for _, j := range []planner.Case{job(t, "unet_resolutions__default"), tight} {
		var want string
		for _, workers := range []int{1, 2, 5, 50} {
			res := tune(t, planner.TuneOptions{Workers: workers, Budget: 200}, j)
			res.ElapsedMS = 0
			got := document(t, res)
			if want == "" {
				want = got
			} else if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %d workers (-1 +n):\n%s", j.Trace.Source, workers, diff)
			}
		}
	}
}

func TestTuneCannotFit(t *testing.T) {
	j := job(t, "gnn__default")
	j.Machine.Capacity = 5 << 30
	res := tune(t, planner.TuneOptions{}, j)
	if res.Verdict != planner.CannotFit || res.Export != "" || res.Short != sim.Bound(j.Trace)-5<<30 {
		t.Errorf("verdict %q, export %q, short %d", res.Verdict, res.Export, res.Short)
	}
}

// TestTuneCures: in 6,300 MiB the defaults run out of memory; something does
// not.
func TestTuneCures(t *testing.T) {
	j := job(t, "gnn__default")
	j.Machine.Capacity, j.Machine.Total = 6300*mib, 6300*mib
	res := tune(t, planner.TuneOptions{}, j)
	if res.Baseline.Completed || !res.Best.Completed || res.Export == "" {
		t.Errorf("baseline completes: %v, best completes: %v, export %q", res.Baseline.Completed, res.Best.Completed, res.Export)
	}
}

// TestTuneAnswerIsSampled: where none of the first finalists is reliable, no
// setting wins because it was not tried under other orders.
func TestTuneAnswerIsSampled(t *testing.T) {
	for _, c := range []struct {
		name     string
		capacity int64
	}{{"fuzz0021", 311427072}, {"fuzz0021", 300 << 20}, {"gnn__tight", 6 << 30}} {
		j := job(t, c.name)
		j.Machine.Capacity, j.Machine.Limit = c.capacity, 0
		r := tune(t, planner.TuneOptions{}, j)
		if r.Verdict == planner.Improved && r.Best.Span == nil && !r.Best.Approximate && !r.Best.Limits {
			t.Errorf("%s in %d bytes: the winner %q was not sampled", c.name, c.capacity, r.Best.Conf)
		}
	}
}

// TestTuneServesRecordedOOM: the baseline repeats a random trace with the OOM
// that it has; a setting that reserves more serves it.
func TestTuneServesRecordedOOM(t *testing.T) {
	file, err := formats.Open(context.Background(), "testdata/recorded-oom.csv.gz", formats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := file.Device(-1)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := torch.Parse("", conf.Latest)
	if err != nil {
		t.Fatal(err)
	}
	r := tune(t, planner.TuneOptions{}, planner.Case{Trace: tr, Policy: spec, Machine: sim.Machine{Capacity: 412405270}})
	if r.Baseline.NumOOMs != 1 || !r.Baseline.Completed || r.Baseline.ReservedPeak >= r.Best.ReservedPeak {
		t.Fatalf("baseline: %d OOMs, completes: %v, reserves %d", r.Baseline.NumOOMs, r.Baseline.Completed, r.Baseline.ReservedPeak)
	}
	if r.Best.NumOOMs != 0 || r.Best.Span == nil || !r.Best.Span.CompletedAll {
		t.Errorf("%q: %d OOMs, %+v", r.Best.Conf, r.Best.NumOOMs, r.Best.Span)
	}
}

// TestTuneVersions: options that a release lacks are left out.
func TestTuneVersions(t *testing.T) {
	res := tune(t, planner.TuneOptions{Version: conf.Version{Major: 2, Minor: 0}, Budget: 300}, job(t, "gnn__default"))
	for _, c := range res.Candidates {
		for _, key := range []string{"expandable_segments", "large_segment_size_mb", "max_non_split_rounding_mb", "per_process_memory_fraction"} {
			if strings.Contains(c.Conf, key) {
				t.Errorf("PyTorch 2.0 has no %s: %s", key, c.Conf)
			}
		}
	}
}

// TestTuneSeveral: the worst trace decides, and each is shown.
func TestTuneSeveral(t *testing.T) {
	res := tune(t, planner.TuneOptions{Budget: 150}, job(t, "gnn__default"), job(t, "unet_resolutions__default"))
	if len(res.PerTrace) != 2 {
		t.Fatalf("%d traces shown, want 2", len(res.PerTrace))
	}
	for i, p := range res.PerTrace {
		if p.Best.ReservedPeak > res.Best.ReservedPeak || p.Best.ReservedPeak == 0 {
			t.Errorf("trace %d reserves %d, the worst is said to be %d", i, p.Best.ReservedPeak, res.Best.ReservedPeak)
		}
	}
}

func TestTuneStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	j := job(t, "gnn__default")
	n := 0
	res, err := planner.Tune(ctx, []planner.Case{j}, planner.TuneOptions{Workers: 1, Progress: func(done, _ int64) {
		if n++; n == 40 {
			cancel()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if res.Searched == 0 || res.Searched > 60 || len(res.Notes) == 0 || !strings.Contains(strings.Join(res.Notes, " "), "best so far") {
		t.Errorf("%d searched, notes %q", res.Searched, res.Notes)
	}
}

// small makes a trace of a program whose sizes change from step to step.
func small(seed uint64) *traces.Trace {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	us := int64(0)
	for range 12 {
		var live []traces.BlockID
		for range 6 + rng.IntN(6) {
			us++
			size := (1 + rng.Int64N(30)) * (3*mib + rng.Int64N(mib))
			live = append(live, b.Alloc(us, size, s, 0))
			if len(live) > 3 && rng.IntN(3) == 0 {
				k := rng.IntN(len(live))
				b.Free(us, live[k])
				live = append(live[:k], live[k+1:]...)
			}
		}
		keep := rng.IntN(3)
		for i, id := range live {
			if i != keep || rng.IntN(2) == 0 {
				b.Free(us, id)
			}
		}
	}
	tr, _, err := b.Build()
	if err != nil {
		panic(err)
	}
	return tr
}

// TestTuneAgainstExhaustive holds the search against every combination of
// every option's values, on small traces and a recording, without a limit and
// so near the bound that most combinations fail.
func TestTuneAgainstExhaustive(t *testing.T) {
	if testing.Short() {
		t.Skip("compares results of thousands of runs, which the race detector slows down tenfold")
	}
	spec, err := torch.Parse("", conf.Latest)
	if err != nil {
		t.Fatal(err)
	}
	hold := func(name string, j planner.Case, share float64) {
		j.Machine.Capacity = int64(share * float64(sim.Bound(j.Trace)))
		res := tune(t, planner.TuneOptions{Budget: 3000}, j)
		found, completes := int64(math.MaxInt64), false
		for _, c := range append(res.Candidates, res.Baseline) {
			if c.Completed && !c.Approximate && !c.Limits {
				found, completes = min(found, c.ReservedPeak), true
			}
		}
		best, bestConf, n, served := int64(math.MaxInt64), "", 0, 0
		var r sim.Runner
		for _, c := range grid(j.Trace) {
			cfg := j.Config()
			if cfg.Policy, err = torch.Spec(c, conf.Latest); err != nil {
				t.Fatal(err)
			}
			out, err := r.Run(context.Background(), j.Trace, cfg)
			if err != nil {
				t.Fatal(err)
			}
			n++
			if !out.Completed {
				continue
			}
			served++
			if p := out.Stats.ReservedBytes[policies.All].Peak; p < best {
				best, bestConf = p, c.String()
			}
		}
		switch {
		case served > 0 && !completes:
			t.Errorf("%s in %d bytes: %d of %d combinations complete, the search finds none", name, j.Machine.Capacity, served, n)
		case served > 0 && float64(found) > float64(best)*(1+planner.DefaultTolerance):
			t.Errorf("%s in %d bytes: the search finds %d MiB, the best of %d combinations is %d MiB with %q", name, j.Machine.Capacity, found/mib, n, best/mib, bestConf)
		}
	}
	for seed := range uint64(6) {
		hold(fmt.Sprintf("small trace %d", seed), planner.Case{Trace: small(seed), Policy: spec}, 0)
	}
	for seed := range uint64(8) {
		for _, share := range []float64{0, 1.04, 1.1} {
			hold(fmt.Sprintf("trace %d", seed), planner.Case{Trace: steady(seed, 60), Policy: spec}, share)
		}
	}
	for _, share := range []float64{0, 1.03} {
		hold("gnn", job(t, "gnn__default"), share)
	}
}

func grid(tr *traces.Trace) []conf.Config {
	sizes := map[int64]bool{conf.Unlimited: true}
	for _, e := range tr.Events {
		if n := (e.Size + mib - 1) / mib * mib; e.Kind == traces.Alloc && n > 20*mib {
			sizes[n] = true
		}
	}
	var out []conf.Config
	for _, divisions := range []int64{0, 2, 4, 8, 16} {
		for _, large := range []int64{12, 16, 20, 32, 64, 128} {
			c := conf.Default(conf.Latest)
			for i := range c.Roundup {
				c.Roundup[i] = divisions
			}
			c.LargeSegmentSize, c.MaxNonSplitRounding = large*mib, large*mib
			e := c
			e.ExpandableSegments = true
			out = append(out, e)
			for split := range sizes {
				if split < c.LargeSegmentSize {
					continue
				}
				for _, slack := range []int64{0, 64, 256, 1024} {
					n := c
					n.MaxSplitSize = split
					n.MaxNonSplitRounding = max(slack*mib, c.LargeSegmentSize)
					out = append(out, n)
					if split == conf.Unlimited {
						break
					}
				}
			}
		}
	}
	return out
}

// TestPlanMinimum: the smallest capacity works, one granule less does not.
func TestPlanMinimum(t *testing.T) {
	j := job(t, "gnn__default")
	res, err := planner.Plan(context.Background(), []planner.Case{j}, planner.PlanOptions{Tune: planner.TuneOptions{Budget: 150}})
	if err != nil {
		t.Fatal(err)
	}
	m := res.MinCapacity
	if m.Bound > m.Best || m.Best > m.Baseline || m.Baseline > m.BaselineSafe || m.Best > m.BestSafe {
		t.Errorf("bound %d, best %d (safe %d), baseline %d (safe %d)", m.Bound, m.Best, m.BestSafe, m.Baseline, m.BaselineSafe)
	}
	for _, c := range []struct {
		conf     string
		capacity int64
	}{{"", m.Baseline}, {m.BestConf, m.Best}} {
		spec, err := torch.Parse(c.conf, conf.Latest)
		if err != nil {
			t.Fatal(err)
		}
		for _, less := range []int64{0, sim.Granule} {
			out, err := sim.Run(context.Background(), j.Trace, sim.Config{Policy: spec, Machine: sim.Machine{Capacity: c.capacity - less}})
			if err != nil {
				t.Fatal(err)
			}
			if out.Completed != (less == 0) {
				t.Errorf("%q at %d bytes less %d: completes %v", c.conf, c.capacity, less, out.Completed)
			}
		}
	}
}

func TestColocate(t *testing.T) {
	a, b := job(t, "gnn__default"), job(t, "unet_resolutions__default")
	alone := func(j planner.Case) int64 {
		res, err := sim.Run(context.Background(), j.Trace, sim.Config{Policy: j.Policy})
		if err != nil {
			t.Fatal(err)
		}
		return res.Stats.ReservedBytes[policies.All].Peak
	}
	for _, worst := range []bool{false, true} {
		res, err := planner.Colocate(context.Background(), []planner.Case{a, b}, planner.ColocateOptions{WorstCase: worst, Overhead: 600 * mib})
		if err != nil {
			t.Fatal(err)
		}
		sum := alone(a) + alone(b) + 2*600*mib
		if !res.Fits || res.SumOfPeaks != sum || res.UsedPeak > sum || res.UsedPeak <= alone(a) {
			t.Errorf("worst case %v: %+v, want a sum of %d", worst, *res, sum)
		}
	}
	res, err := planner.Colocate(context.Background(), []planner.Case{a, b}, planner.ColocateOptions{WorstCase: true, Capacity: 6 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if res.Fits || res.UsedPeak > 6<<30 {
		t.Errorf("6 GiB for both: %+v", *res)
	}
}

func TestAlerts(t *testing.T) {
	j := job(t, "gnn__default")
	cfg := j.Config()
	cfg.Detail = true
	res, err := sim.Run(context.Background(), j.Trace, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for expr, fires := range map[string]bool{
		"utilization>90%": false, "utilization<0.5": true, "fragmentation>30%": true, "ooms>0": false, "ooms==0": true,
		"retries>=1": false, "reserved_peak>12GiB": true, "reserved_peak<=13180MiB": true, "capacity_used>1%": false,
	} {
		alerts, err := planner.ParseAlerts([]string{expr})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(planner.Check(alerts, res)) == 1; got != fires {
			t.Errorf("%s fires: %v", expr, got)
		}
	}
	for _, bad := range []string{"", "ooms", "ooms>", "speed>1", "ooms=>1", "reserved_peak>1XB", "ooms>nan", "utilization>x%"} {
		if _, err := planner.ParseAlerts([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
