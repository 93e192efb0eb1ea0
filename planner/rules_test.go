package planner

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
)

// thousands makes rapid look at more worlds than it does by itself: the small
// ones here take microseconds each.
func thousands(t *testing.T, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if f.Value.String() != f.DefValue || testing.Short() {
		return
	}
	if err := flag.Set("rapid.checks", fmt.Sprint(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { flag.Set("rapid.checks", f.DefValue) })
}

// world draws a program of up to twelve requests.
func world(t *rapid.T) *traces.Trace {
	sizes := []int64{512, mib, 3 * mib, 9 * mib, 11 * mib, 14 * mib, 20 * mib, 25 * mib, 30 * mib, 37 * mib}
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	var live []traces.BlockID
	now := int64(0)
	for range rapid.IntRange(1, 12).Draw(t, "requests") {
		for len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "free") == 0 {
			now++
			k := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			b.Free(now, live[k])
			live = slices.Delete(live, k, k+1)
		}
		now++
		live = append(live, b.Alloc(now, rapid.SampledFrom(sizes).Draw(t, "size"), s, 0))
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Source = "world"
	return tr
}

func parsed(t testing.TB, policy string) *policies.Spec {
	t.Helper()
	spec, err := policies.Parse(policy)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// serves reports whether a device of so many bytes serves the whole trace.
func serves(t interface{ Fatal(...any) }, r *sim.Runner, tr *traces.Trace, spec *policies.Spec, capacity int64, order uint64) bool {
	cfg := sim.Config{Policy: spec, Machine: sim.Machine{Capacity: capacity}}
	if order > 0 {
		cfg.Addresses, cfg.Seed = sim.AddressesRandom, order
	}
	res, err := r.Run(context.Background(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return res.Completed && res.Stats.NumOOMs == 0
}

// TestSmallestOfSmallWorlds tries every device there is, by granules: the one
// that is found is the first that works. Memory does not always help: in some
// worlds a smaller device works where a larger one fails. Where none works up
// to the peak of a run without a limit, one larger than that is found by halving.
func TestSmallestOfSmallWorlds(t *testing.T) {
	thousands(t, 2000)
	specs := worldPolicies(t)
	var r sim.Runner
	worlds, uneven := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tr := world(t)
		spec := rapid.SampledFrom(specs).Draw(t, "policy")
		s := &setting{spec: spec}
		p := newCapacityPlan([]Case{{Trace: tr, Policy: spec}}, PlanOptions{})
		if err := p.measure(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		if err := p.measureLeast(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		var works []bool // by granules
		for c := int64(0); c <= max(s.peak, s.min)+sim.Granule; c += sim.Granule {
			works = append(works, c > 0 && serves(t, &r, tr, spec, c, 0))
		}
		first := int64(slices.Index(works, true))
		if above := s.min > up(s.peak); above && first*sim.Granule <= s.peak || !above && s.min != first*sim.Granule || !works[s.min/sim.Granule] || works[s.min/sim.Granule-1] {
			t.Fatalf("%d MiB are said to be the smallest, %d work: %v", s.min/mib, first*sim.Granule/mib, works)
		}
		worlds++
		if slices.Contains(works[first:], false) {
			uneven++
		}
	})
	t.Logf("in %d of %d worlds a device fails where a smaller one works", uneven, worlds)
}

func worldPolicies(t *testing.T) []*policies.Spec {
	var specs []*policies.Spec
	for _, s := range []string{"torch", "torch:expandable_segments:True", "torch:max_split_size_mb:21", "torch:roundup_power2_divisions:2"} {
		specs = append(specs, parsed(t, s))
	}
	return specs
}

// safeByForce tries every device up to top under every order sampled, and
// returns the least from which all of them work.
func safeByForce(t interface{ Fatal(...any) }, tr *traces.Trace, spec *policies.Spec, top int64) int64 {
	var r sim.Runner
	safe := int64(sim.Granule)
	for order := range uint64(sim.SpanOrders + 1) {
		for c := top; c >= safe; c -= sim.Granule {
			if !serves(t, &r, tr, spec, c, order) {
				safe = c + sim.Granule
				break
			}
		}
	}
	return safe
}

// TestSafeOfSmallWorlds: what is called safe is the least from which all
// devices work, under every order sampled.
func TestSafeOfSmallWorlds(t *testing.T) {
	thousands(t, 300)
	specs := worldPolicies(t)
	rapid.Check(t, func(t *rapid.T) {
		tr := world(t)
		spec := rapid.SampledFrom(specs).Draw(t, "policy")
		least, safe, err := SmallestCapacity(context.Background(), []Case{{Trace: tr, Policy: spec}}, spec, 1)
		if err != nil {
			t.Fatal(err)
		}
		if want := safeByForce(t, tr, spec, max(safe, least)+20*sim.Granule); safe != want {
			t.Fatalf("%d MiB are said to be safe, %d are", safe/mib, want/mib)
		}
	})
}

// TestSafeWhereMoreIsLess: two small worlds, found among many, in which a
// device fails although a smaller one works: the first whatever the driver
// does, the second under some of the orders in which it may give addresses.
func TestSafeWhereMoreIsLess(t *testing.T) {
	for _, c := range []struct {
		policy string
		steps  []int64 // MiB to allocate; 0 = 512 B; -k = free the k-th block, from 1
		least  int64   // MiB
	}{
		{"torch:expandable_segments:True", []int64{3, 37, 14, 0, -2, -4, 3, 37, 3, -1, 1}, 62},
		{"torch", []int64{1, 37, -2, -1, 1, 25, 37, -5, 25, -3, 3, -4, 20, 0, 14, 14}, 92},
	} {
		b := traces.NewBuilder(0)
		s := b.Stream(0)
		var ids []traces.BlockID
		for i, n := range c.steps {
			if n < 0 {
				b.Free(int64(i), ids[-n-1])
			} else {
				ids = append(ids, b.Alloc(int64(i), max(n*mib, 512), s, 0))
			}
		}
		tr, _, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		spec := parsed(t, c.policy)
		least, safe, err := SmallestCapacity(context.Background(), []Case{{Trace: tr, Policy: spec}}, spec, 1)
		if err != nil || least != c.least*mib {
			t.Fatalf("%s: %d MiB, %v; want %d", c.policy, least/mib, err, c.least)
		}
		if want := safeByForce(t, tr, spec, 200*mib); safe != want || safe == least {
			t.Errorf("%s: from %d MiB on it is said to be safe, from %d it is", c.policy, safe/mib, want/mib)
		}
	}
}

// TestLooksBelow: for this program, found among small worlds, 108 MiB work and
// 106 do not, but 98 do: what must be given back there makes room for the
// 37 MiB of the end.
func TestLooksBelow(t *testing.T) {
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	alloc := func(size int64) traces.BlockID { return b.Alloc(int64(b.Len()), size*mib, s, 0) }
	free := func(id traces.BlockID) { b.Free(int64(b.Len()), id) }
	first, _, third := alloc(37), alloc(30), alloc(30)
	free(first)
	fourth := alloc(1)
	alloc(9)
	free(third)
	free(fourth)
	for _, size := range []int64{1, 37, 3} {
		alloc(size)
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	spec := parsed(t, "torch")
	var r sim.Runner
	for capacity, want := range map[int64]bool{108: true, 106: false, 98: true, 96: false} {
		if got := serves(t, &r, tr, spec, capacity*mib, 0); got != want {
			t.Fatalf("%d MiB serve it: %v", capacity, got)
		}
	}
	least, _, err := SmallestCapacity(context.Background(), []Case{{Trace: tr, Policy: spec}}, spec, 1)
	if err != nil || least != 98*mib {
		t.Errorf("%d MiB, %v; want 98", least/mib, err)
	}
}

// TestAddressesRunOut: expandable segments reserve addresses by the device's
// size. On a device as large as the peak of a run without a limit this program
// fails; what is called smallest must work all the same.
func TestAddressesRunOut(t *testing.T) {
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	now := int64(0)
	alloc := func(size int64) traces.BlockID { now++; return b.Alloc(now, size, s, 0) }
	free := func(ids ...traces.BlockID) {
		for _, id := range ids {
			now++
			b.Free(now, id)
		}
	}
	a := alloc(37 * mib)
	c := alloc(9 * mib)
	free(a)
	alloc(3 * mib)
	free(c)
	alloc(30 * mib)
	alloc(20 * mib)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	spec := parsed(t, "torch:expandable_segments:True")
	whole, err := sim.Run(context.Background(), tr, sim.Config{Policy: spec})
	if err != nil {
		t.Fatal(err)
	}
	var r sim.Runner
	peak := whole.Stats.ReservedBytes[policies.All].Peak
	if serves(t, &r, tr, spec, peak, 0) {
		t.Fatalf("%d MiB serve it", peak/mib)
	}
	least, _, err := SmallestCapacity(context.Background(), []Case{{Trace: tr, Policy: spec}}, spec, 1)
	if err != nil || !serves(t, &r, tr, spec, least, 0) {
		t.Errorf("%d MiB are said to be the smallest and fail (%v)", least/mib, err)
	}
}

// TestSmallest tries every threshold.
func TestSmallest(t *testing.T) {
	for n := int64(1); n <= 9; n++ {
		for at := int64(1); at <= n; at++ {
			got, err := smallest(0, n*sim.Granule, func(c int64) (bool, error) {
				if c%sim.Granule != 0 || c <= 0 || c >= n*sim.Granule {
					t.Errorf("%d is tried", c)
				}
				return c >= at*sim.Granule, nil
			})
			if err != nil || got != at*sim.Granule {
				t.Errorf("of %d granules: %d, want %d (%v)", n, got/sim.Granule, at, err)
			}
		}
	}
}

// TestChangedTraces: sizes above a page move by up to 5 %, equal ones together;
// neighbouring frees change places in some; nothing else changes.
func TestChangedTraces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := world(t)
		tr.Events = append(tr.Events, traces.Event{Kind: traces.OOM, ID: traces.BlockID(tr.NumBlocks), Size: 50 * mib})
		tr.NumBlocks++
		before := slices.Clone(tr.Events)
		c := perturb(tr, rapid.Uint64Range(0, 7).Draw(t, "seed"))
		if !slices.Equal(before, tr.Events) {
			t.Fatal("the trace itself is changed")
		}
		to := make(map[int64]int64)
		for i, e := range tr.Events {
			n := c.Events[i]
			if n.Kind != e.Kind || n.TimeUS != e.TimeUS {
				t.Fatalf("event %d is %+v, was %+v", i, n, e)
			}
			if e.Kind == traces.Free {
				continue
			}
			if n.ID != e.ID {
				t.Fatalf("event %d is about another block", i)
			}
			if was, seen := to[e.Size]; seen && was != n.Size {
				t.Fatalf("%d bytes become %d and %d", e.Size, was, n.Size)
			}
			to[e.Size] = n.Size
			if e.Size <= 4096 && n.Size != e.Size || math.Abs(float64(n.Size)/float64(e.Size)-1) > 0.05 {
				t.Fatalf("%d bytes become %d", e.Size, n.Size)
			}
		}
		// Every run of frees frees the same blocks.
		for i := 0; i < len(tr.Events); {
			j := i
			for j < len(tr.Events) && tr.Events[j].Kind == traces.Free {
				j++
			}
			ids := func(es []traces.Event) (out []traces.BlockID) {
				for _, e := range es {
					out = append(out, e.ID)
				}
				slices.Sort(out)
				return out
			}
			if !slices.Equal(ids(tr.Events[i:j]), ids(c.Events[i:j])) {
				t.Fatalf("frees %d to %d: %v, were %v", i, j, c.Events[i:j], tr.Events[i:j])
			}
			i = j + 1
		}
	})
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	x, y := b.Alloc(0, 30*mib, s, 0), b.Alloc(1, 40*mib, s, 0)
	b.Free(2, x)
	b.Free(3, y)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	swapped := 0
	sizes := make(map[int64]bool)
	for k := range uint64(ChangedTraces) {
		c := perturb(tr, k)
		if c.Events[2].ID == y && c.Events[3].ID == x {
			swapped++
		}
		sizes[c.Events[0].Size] = true
	}
	if swapped == 0 || swapped == ChangedTraces || len(sizes) < ChangedTraces {
		t.Errorf("of %d changed traces %d free in another order, with %d sizes", ChangedTraces, swapped, len(sizes))
	}
}

// one is a plan for a program of one tensor, which really needs as much under
// both settings, with the sizes in MiB that the caller says: the least that
// works, and the safe one.
func one(t *testing.T, tensor int64, now, best [2]int64) *fitting {
	t.Helper()
	b := traces.NewBuilder(0)
	b.Alloc(0, tensor*mib, b.Stream(0), 0)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	spec := parsed(t, "torch")
	return &fitting{
		capacityPlan: newCapacityPlan([]Case{{Trace: tr, Policy: spec}}, PlanOptions{Tune: TuneOptions{Workers: 1}}),
		evidence:     &Evidence{}, need: 1 << 50, // no device is worth a search
		baseline: &setting{conf: "now", spec: spec, min: now[0] * mib, safe: now[1] * mib, peak: 99 * mib},
		best:     &setting{conf: "best", spec: spec, min: best[0] * mib, safe: best[1] * mib, peak: 98 * mib},
	}
}

func card(n int64) gpus.Card {
	return gpus.Card{Name: fmt.Sprint(n / mib), Total: n, Low: n, High: n, Confidence: gpus.Measured}
}

// TestJudge: which of two settings a card is judged by, and what it says.
func TestJudge(t *testing.T) {
	unknown, shared := gpus.Card{Name: "unknown"}, card(200*mib)
	shared.MemoryKind = "unified"
	for _, c := range []struct {
		name         string
		now, best    [2]int64 // MiB
		card         gpus.Card
		conf         string
		verdict      gpus.Verdict
		headroom     int64 // MiB
		baselineSays gpus.Verdict
	}{
		{"both fit", [2]int64{60, 60}, [2]int64{50, 50}, card(100 * mib), "now", gpus.Fits, 40, gpus.Fits},
		{"the best fits", [2]int64{60, 60}, [2]int64{50, 50}, card(55 * mib), "best", gpus.Fits, 5, gpus.No},
		{"neither fits", [2]int64{60, 60}, [2]int64{50, 50}, card(45 * mib), "best", gpus.No, -5, gpus.No},
		{"both need the same", [2]int64{60, 60}, [2]int64{60, 60}, card(55 * mib), "now", gpus.No, -5, gpus.No},
		{"unknown", [2]int64{60, 60}, [2]int64{50, 50}, unknown, "now", gpus.Unknown, 0, gpus.Unknown},
		{"shared with the host", [2]int64{60, 60}, [2]int64{50, 50}, shared, "best", gpus.Tight, 150, gpus.Tight},
		// Not safe, but a run at exactly this size works.
		{"works here", [2]int64{42, 60}, [2]int64{44, 60}, card(50 * mib), "now", gpus.Tight, 8, gpus.Tight},
		{"works here, better under the best", [2]int64{46, 60}, [2]int64{44, 60}, card(50 * mib), "best", gpus.Tight, 6, gpus.Tight},
		{"does not work here", [2]int64{30, 60}, [2]int64{30, 60}, card(38 * mib), "now", gpus.No, -22, gpus.No},
	} {
		v, err := one(t, 40, c.now, c.best).judge(context.Background(), c.card)
		if err != nil {
			t.Fatal(err)
		}
		if v.Conf != c.conf || v.Verdict != c.verdict || v.Headroom != c.headroom*mib || v.WithBaseline != c.baselineSays || v.Price != nil {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
	f := one(t, 40, [2]int64{60, 60}, [2]int64{50, 50})
	f.opts.Prices = gpus.Prices{"100": {Amount: 1.5, Unit: "USD/h"}}
	if v, err := f.judge(context.Background(), card(100*mib)); err != nil || v.Price == nil || *v.Price != 1.5 || v.PriceUnit != "USD/h" || v.ReservedPeak != 40*mib {
		t.Errorf("%+v, %v", v, err)
	}
	// On a card that is too small the peak is that without a limit.
	if v, err := f.judge(context.Background(), card(10*mib)); err != nil || v.ReservedPeak != f.best.peak {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestOneChangedTraceIsEnough: the changed traces of one tensor of 400 MiB need
// what its changed size rounds up to. On a card between the largest need and
// the next one of them fails, and that makes it tight; on the largest, none.
func TestOneChangedTraceIsEnough(t *testing.T) {
	f := one(t, 400, [2]int64{400, 400}, [2]int64{400, 400})
	var needs []int64
	for k := range uint64(ChangedTraces) {
		needs = append(needs, up(perturb(f.jobs[0].Trace, k).Events[0].Size))
	}
	slices.Sort(needs)
	if needs[6] == needs[7] {
		t.Fatalf("two need most: %v", needs)
	}
	for i, need := range needs {
		for _, size := range []int64{need - sim.Granule, need} {
			fail := 0
			for _, n := range needs {
				if n > size {
					fail++
				}
			}
			if n, err := f.fragile(context.Background(), f.baseline, size); err != nil || n != fail {
				t.Errorf("%d MiB: %d fail, want %d of %v (%v)", size/mib, n, fail, needs, err)
			}
			if size < 400*mib {
				continue
			}
			v, err := f.judge(context.Background(), card(size))
			if err != nil {
				t.Fatal(err)
			}
			want := gpus.Fits
			if fail > 0 {
				want = gpus.Tight
			}
			if v.Verdict != want || fail > 0 && !strings.Contains(v.Reason, fmt.Sprintf("fails in %d of %d runs", fail, ChangedTraces)) {
				t.Errorf("%d: %d MiB: %s, %q; %d of %v need more", i, size/mib, v.Verdict, v.Reason, fail, needs)
			}
		}
	}
	// With more than a fifth to spare they are not tried.
	f.baseline.safe, f.baseline.min = 300*mib, 300*mib
	if v, err := f.judge(context.Background(), card(needs[7]-sim.Granule)); err != nil || v.Verdict != gpus.Fits {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestRobustnessOfRuns by hand.
func TestRobustnessOfRuns(t *testing.T) {
	r := newRobustness([]changedRun{{true, 5}, {false, 9}, {true, 3}, {true, 4}})
	if *r != (Robustness{Runs: 4, Completed: 3, ReservedPeak: [2]int64{3, 9}}) {
		t.Errorf("%+v", *r)
	}
}

// TestUpper: the peak to plan with is the highest of those seen.
func TestUpper(t *testing.T) {
	c := Candidate{ReservedPeak: 10}
	if c.Upper() != 10 {
		t.Errorf("%d", c.Upper())
	}
	c.Span = &sim.Span{ReservedPeak: [2]int64{8, 12}}
	if c.Upper() != 12 {
		t.Errorf("%d with other orders", c.Upper())
	}
	c.Robustness = &Robustness{ReservedPeak: [2]int64{9, 13}}
	if c.Upper() != 13 {
		t.Errorf("%d with other sizes", c.Upper())
	}
	c.Robustness.ReservedPeak[1] = 5
	if c.Upper() != 12 {
		t.Errorf("%d with smaller sizes", c.Upper())
	}
}

// TestRanked puts two candidates side by side that differ in one thing.
func TestRanked(t *testing.T) {
	tn := searching(t, "")
	us := tn.jobs[0].Trace.Duration() / 50 // a stall that nobody notices
	base := func() *Candidate {
		return &Candidate{Conf: "b", Completed: true, ReservedPeak: 1000, Options: 3, config: conf.Default(conf.Latest)}
	}
	for _, c := range []struct {
		name          string
		better, worse func(c *Candidate)
	}{
		{"completes", func(c *Candidate) { c.ReservedPeak = 5000 }, func(c *Candidate) { c.Completed = false }},
		{"completes under all orders", func(c *Candidate) { c.ReservedPeak = 5000 }, func(c *Candidate) { c.Span = &sim.Span{ReservedPeak: [2]int64{1, 1}} }},
		{"serves more", func(c *Candidate) { c.ReservedPeak = 5000 }, func(c *Candidate) { c.NumOOMs = 1 }},
		{"was run to its end", func(c *Candidate) { c.ReservedPeak = 5000 }, func(c *Candidate) { c.Stopped = true }},
		{"sets no limit of its own", func(c *Candidate) { c.ReservedPeak = 5000 }, func(c *Candidate) { c.Limits = true }},
		{"is no approximation", func(c *Candidate) { c.ReservedPeak = 5000 }, func(c *Candidate) { c.Approximate = true }},
		{"takes less by more than 2 %", func(c *Candidate) {}, func(c *Candidate) { c.ReservedPeak = 1021 }},
		{"is simpler, within 2 %", func(c *Candidate) { c.ReservedPeak = 1020 }, func(c *Candidate) { c.Options = 4 }},
		{"takes less by more than 2 % for each option more", func(c *Candidate) { c.Options = 5 }, func(c *Candidate) { c.ReservedPeak = 1041 }},
		{"sets less, for less than 2 % each", func(c *Candidate) { c.ReservedPeak = 1040 }, func(c *Candidate) { c.Options = 5 }},
		{"is quicker by more than is noticed, within 2 %", func(c *Candidate) { c.ReservedPeak, c.Options = 1020, 4 }, func(c *Candidate) { c.Driver.StallUS = us + 1 }},
		{"is simpler, as quick as makes no difference", func(c *Candidate) { c.Driver.StallUS = us }, func(c *Candidate) { c.Options = 4 }},
		{"takes less, as simple", func(c *Candidate) {}, func(c *Candidate) { c.ReservedPeak = 1001 }},
		{"takes less at worst", func(c *Candidate) { c.ReservedPeak = 1040 },
			func(c *Candidate) { c.Robustness = &Robustness{ReservedPeak: [2]int64{0, 5000}} }},
	} {
		better, worse := base(), base()
		better.Conf = "z" // the last resort would be against it
		c.better(better)
		c.worse(worse)
		now := &Candidate{Conf: "now"} // fails
		for _, cands := range [][]*Candidate{{now, better, worse}, {now, worse, better}} {
			list := (&tuner{jobs: tn.jobs, opts: TuneOptions{Tolerance: 0.02}, cands: cands}).ranked()
			if list[0] != better {
				t.Errorf("%s: %+v comes before %+v", c.name, *list[0], *list[1])
			}
		}
	}
}

// TestRankedKeepsWhatIsSet: among equals the present setting stays.
func TestRankedKeepsWhatIsSet(t *testing.T) {
	tn := searching(t, "")
	now, other := &Candidate{Conf: "now", Completed: true, ReservedPeak: 1020}, &Candidate{Conf: "", Completed: true, ReservedPeak: 1000}
	if list := (&tuner{jobs: tn.jobs, opts: TuneOptions{Tolerance: 0.02}, cands: []*Candidate{now, other}}).ranked(); list[0] != now {
		t.Errorf("%+v comes first", *list[0])
	}
	now.ReservedPeak = 1021
	if list := (&tuner{jobs: tn.jobs, opts: TuneOptions{Tolerance: 0.02}, cands: []*Candidate{now, other}}).ranked(); list[0] != other {
		t.Errorf("%+v comes first", *list[0])
	}
}

// TestParetoOfSmallWorlds compares every candidate with every other.
func TestParetoOfSmallWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*Candidate
		for i := range rapid.IntRange(0, 9).Draw(t, "candidates") {
			c := &Candidate{Conf: fmt.Sprint(i), Completed: rapid.IntRange(0, 3).Draw(t, "completes") > 0, Stopped: rapid.IntRange(0, 3).Draw(t, "stopped") == 0,
				ReservedPeak: rapid.Int64Range(1, 5).Draw(t, "peak"), Options: i}
			c.Driver.StallUS = rapid.Int64Range(0, 4).Draw(t, "stall")
			list = append(list, c)
		}
		whole := func(c *Candidate) bool { return c.Completed && !c.Stopped }
		var want []string // as points: equal ones once
		for _, c := range list {
			beaten := slices.ContainsFunc(list, func(o *Candidate) bool {
				return whole(o) && o.ReservedPeak <= c.ReservedPeak && o.Driver.StallUS <= c.Driver.StallUS && (o.ReservedPeak < c.ReservedPeak || o.Driver.StallUS < c.Driver.StallUS)
			})
			if p := fmt.Sprint(c.ReservedPeak, c.Driver.StallUS); whole(c) && !beaten && !slices.Contains(want, p) {
				want = append(want, p)
			}
		}
		var got []string
		front := pareto(list)
		for _, c := range front {
			got = append(got, fmt.Sprint(c.ReservedPeak, c.Driver.StallUS))
		}
		if !slices.IsSortedFunc(front, func(a, b Candidate) int { return cmp.Compare(a.ReservedPeak, b.ReservedPeak) }) {
			t.Fatalf("the front %v is not by peak", got)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("front %v, want %v", got, want)
		}
	})
}

// TestSumOfTraces: the largest peaks, and all calls, of several traces.
func TestSumOfTraces(t *testing.T) {
	result := func(reserved, allocated, retries, ooms int64, completed bool) *sim.Result {
		r := &sim.Result{Policy: parsed(t, "torch"), Completed: completed}
		r.Stats.ReservedBytes[policies.All].Peak, r.Stats.AllocatedBytes[policies.All].Peak = reserved, allocated
		r.Stats.NumAllocRetries, r.Stats.NumOOMs = retries, ooms
		r.Driver.Mallocs, r.Driver.StallUS = 10, 100
		return r
	}
	c := Candidate{perTrace: []*sim.Result{result(80, 60, 1, 0, true), result(70, 65, 2, 1, true)}}
	c.sum([]int{0, 1})
	if c.ReservedPeak != 80 || c.AllocatedPeak != 65 || c.NumAllocRetries != 3 || c.NumOOMs != 1 || c.Driver.Mallocs != 20 || c.Driver.StallUS != 200 || !c.Completed || c.Utilization != 65.0/80 {
		t.Errorf("%+v", c)
	}
	// Two worlds of one trace, and a trace of one: the worst of the worlds counts.
	c = Candidate{perTrace: []*sim.Result{result(80, 60, 1, 0, true), result(90, 50, 4, 1, true), result(70, 65, 2, 0, true)}}
	c.sum([]int{0, 0, 1})
	if c.ReservedPeak != 90 || c.AllocatedPeak != 65 || c.NumAllocRetries != 6 || c.NumOOMs != 1 || c.Driver.Mallocs != 20 || c.Driver.StallUS != 200 {
		t.Errorf("two worlds and one: %+v", c)
	}
	c = Candidate{perTrace: []*sim.Result{result(1, 1, 0, 0, true), result(1, 1, 0, 0, false)}}
	if c.sum([]int{0, 1}); c.Completed {
		t.Error("completes although one of its traces does not")
	}
}

// TestRoomOfSeveral: one setting must do for all jobs, in the room of the one
// that has least; a job without a bound has none to add.
func TestRoomOfSeveral(t *testing.T) {
	b := traces.NewBuilder(0)
	b.Alloc(0, mib, b.Stream(0), 0)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		machines []sim.Machine
		want     int64 // MiB
	}{
		{[]sim.Machine{{}, {}}, 0},
		{[]sim.Machine{{Capacity: 80 * mib}, {Capacity: 60 * mib}, {}}, 60},
		{[]sim.Machine{{Capacity: 60 * mib}, {Capacity: 80 * mib}}, 60},
		{[]sim.Machine{{Capacity: 60 * mib, Limit: 50 * mib}, {Capacity: 80 * mib}}, 50},
		{[]sim.Machine{{Capacity: 60 * mib}, {Total: 80 * mib, Fraction: 0.5}}, 40},
	} {
		tn := &tuner{seen: make(map[conf.Config]bool)}
		for _, m := range c.machines {
			tn.jobs = append(tn.jobs, Case{Trace: tr, Policy: parsed(t, "torch"), Machine: m})
		}
		if err := tn.prepare(); err != nil || tn.room != c.want*mib {
			t.Errorf("%+v: %d MiB, %v; want %d", c.machines, tn.room/mib, err, c.want)
		}
	}
}

// TestTight: at most a hundredth of the room is left at worst.
func TestTight(t *testing.T) {
	for _, c := range []struct {
		room, peak int64
		want       bool
	}{{1000, 990, true}, {1000, 989, false}, {1000, 1000, true}, {0, 990, false}} {
		if got := (&tuner{room: c.room}).tight(&Candidate{ReservedPeak: c.peak}); (got != "") != c.want {
			t.Errorf("%d of %d: %q", c.peak, c.room, got)
		}
	}
}

// TestCaveats: what a recording that failed does not show.
func TestCaveats(t *testing.T) {
	build := func(end func(b *traces.Builder, s uint16)) *traces.Trace {
		b := traces.NewBuilder(0)
		s := b.Stream(0)
		x := b.Alloc(0, 10*mib, s, 0)
		b.OOM(1, 90*mib, s, 0)
		b.Free(2, x)
		end(b, s)
		tr, _, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		tr.Source = "job"
		return tr
	}
	died := build(func(*traces.Builder, uint16) {})
	went := build(func(b *traces.Builder, s uint16) { b.Alloc(3, mib, s, 0) })
	if got := caveats(&Case{Trace: died}); len(got) != 1 || !strings.Contains(got[0], "ends with an OOM") {
		t.Errorf("it gave up: %q", got)
	}
	if got := caveats(&Case{Trace: went}); len(got) != 1 || !strings.Contains(got[0], "1 request failed") {
		t.Errorf("it went on: %q", got)
	}
	went.Events = slices.DeleteFunc(went.Events, func(e traces.Event) bool { return e.Kind == traces.OOM })
	if got := caveats(&Case{Trace: went}); len(got) != 0 {
		t.Errorf("nothing failed: %q", got)
	}
	went.Start, went.Recorded = &traces.State{}, &traces.Recorded{Stats: map[string]int64{"allocated_bytes.all.peak": 50 * mib}}
	if got := caveats(&Case{Trace: went}); len(got) != 1 || !strings.Contains(got[0], "starts late") {
		t.Errorf("it started late: %q", got)
	}
}

// TestAlertsByHand: figures of a run that is written down here.
func TestAlertsByHand(t *testing.T) {
	r := &sim.Result{Machine: sim.Machine{Capacity: 200 * mib, Limit: 100 * mib}, AtPeak: &sim.Fragmentation{Reserved: 80 * mib, ReservedUnallocated: 20 * mib, External: 0.25}}
	r.Stats.ReservedBytes[policies.All].Peak, r.Stats.AllocatedBytes[policies.All].Peak = 80*mib, 60*mib
	r.Stats.NumOOMs, r.Stats.NumAllocRetries, r.Driver.StallUS = 2, 3, 1500
	for expr, fires := range map[string]bool{
		"capacity_used==80%": true, "capacity_used>79%": true, "capacity_used<=0.8": true, "utilization==75%": true, "utilization>0.75": false,
		"fragmentation==25%": true, "external_fragmentation<26%": true, "ooms!=2": false, "ooms >= 2": true, "retries<3": false, "retries<=3": true,
		"reserved_peak==80MiB": true, "allocated_peak>60MiB": false, "stall_us>1499": true, "stall_us>=1500.5": false,
	} {
		alerts, err := ParseAlerts([]string{expr})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(Check(alerts, r)) == 1; got != fires {
			t.Errorf("%s fires: %v", expr, got)
		}
	}
	// What a run does not have fires nothing, whatever is asked of it.
	bare := &sim.Result{}
	for _, expr := range []string{"capacity_used<1%", "capacity_used>=0%", "fragmentation>=0%", "external_fragmentation>=0%"} {
		alerts, err := ParseAlerts([]string{expr})
		if err != nil {
			t.Fatal(err)
		}
		if len(Check(alerts, bare)) > 0 {
			t.Errorf("%s fires for a run without it", expr)
		}
	}
}
