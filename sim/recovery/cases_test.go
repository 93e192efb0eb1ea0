package recovery_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats/formatstest"
)

const mib = 1 << 20

func recovered(t *testing.T, file string, opts recovery.Options) *recovery.Recovered {
	t.Helper()
	rec, err := recovery.Recover(context.Background(), formatstest.Load(t, file), opts)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func calls(tr *traces.Trace) (n int) {
	for _, e := range tr.Events {
		if e.Kind == traces.EmptyCache {
			n++
		}
	}
	return n
}

// whatIf is reserved peak in MiB, retries and OOMs in the first world under
// another configuration.
func whatIf(t *testing.T, rec *recovery.Recovered, text string) [3]int64 {
	t.Helper()
	spec, err := torch.Parse(text, conf.Latest)
	if err != nil {
		t.Fatal(err)
	}
	res, err := sim.Run(context.Background(), rec.Trace, sim.Config{Policy: spec, Machine: rec.Machine()})
	if err != nil {
		t.Fatal(err)
	}
	return [3]int64{res.Stats.ReservedBytes[policies.All].Peak / mib, res.Stats.NumAllocRetries, res.Stats.NumOOMs}
}

func kinds(rec *recovery.Recovered) map[string]bool {
	m := make(map[string]bool)
	for _, e := range rec.Explanations {
		m[e.Kind] = true
	}
	return m
}

// TestCases holds recoveries to programs whose empty_cache calls and limits are
// known because they were made so.
func TestCases(t *testing.T) {
	const gc, round = "garbage_collection_threshold:0.6", "roundup_power2_divisions:2"
	for _, c := range []struct {
		file  string
		calls int
		first string // the kind of the first world
		bound int64  // MiB, inside its bracket; 0 = none
		conf  string
		want  [3]int64
	}{
		// 500 MiB kept, 4 x 100 freed, one empty_cache, 64: before the burst the
		// request would have been a cache hit, so no flush was.
		{"n1", 1, recovery.KindNone, 0, round, [3]int64{1024, 0, 0}},
		// The same with growing sizes, three times.
		{"n3g", 3, recovery.KindNone, 0, round, [3]int64{1024, 0, 0}},
		// A limit of 1000 MiB, four flushes.
		{"real_limit", 0, recovery.KindCard, 1000, "", [3]int64{980, 4, 0}},
		// Garbage collection under 1000 and 1200 MiB; the program calls no
		// empty_cache.
		{"gc_1000", 0, recovery.KindFraction, 1000, "", [3]int64{990, 3, 0}},
		{"gc_1200", 0, recovery.KindFraction, 1200, "", [3]int64{1152, 2, 0}},
		// A full card of 1000 MiB without a fraction: nothing is ever collected.
		{"card_full", 0, recovery.KindCard, 1000, gc, [3]int64{990, 3, 0}},
		{"../../../traces/snapshot/testdata/empty_frames", 12, recovery.KindNone, 0, round, [3]int64{1984, 0, 0}},
	} {
		rec := recovered(t, "testdata/"+c.file+".pickle", recovery.Options{})
		e := rec.Explanations[0]
		if !rec.Exact || calls(rec.Trace) != c.calls || e.Kind != c.first {
			t.Errorf("%s: exact %v, %d calls, %s first", c.file, rec.Exact, calls(rec.Trace), e.Kind)
		}
		if c.bound > 0 && (c.bound*mib < e.Low || e.High < c.bound*mib) {
			t.Errorf("%s: %d MiB is not in %d … %d", c.file, c.bound, e.Low, e.High)
		}
		got := whatIf(t, rec, c.conf)
		if c.file[0] == '.' {
			got[0] = c.want[0] // only completion is known
		}
		if got != c.want {
			t.Errorf("%s: under %q %v, want %v", c.file, c.conf, got, c.want)
		}
	}
}

// TestAllWorlds: what fits equally well is said equally.
func TestAllWorlds(t *testing.T) {
	rec := recovered(t, "testdata/card_full.pickle", recovery.Options{})
	if k := kinds(rec); !k[recovery.KindCard] || !k[recovery.KindFraction] || !k[recovery.KindNone] {
		t.Errorf("a flush can be that of a card, a fraction or a call: %v", k)
	}
	if open := strings.Join(rec.Open, " "); !strings.Contains(open, "memory fraction or full card, the recording cannot tell") {
		t.Errorf("open: %q", rec.Open)
	}
	for assume, kind := range map[string]string{recovery.AssumeFraction: recovery.KindFraction, recovery.AssumeCapacity: recovery.KindCard, recovery.AssumeNone: recovery.KindNone} {
		rec := recovered(t, "testdata/card_full.pickle", recovery.Options{Assume: assume})
		if k := kinds(rec); !rec.Exact || !k[kind] || len(k) != 1 {
			t.Errorf("assume %s: exact %v, %v", assume, rec.Exact, k)
		}
	}
	// Collections release what was not used for long; no call does that.
	if k := kinds(recovered(t, "testdata/n1.pickle", recovery.Options{})); len(k) != 1 {
		t.Errorf("n1 has the worlds %v", k)
	}
	if _, err := recovery.Recover(context.Background(), formatstest.Load(t, "testdata/n1.pickle"), recovery.Options{Assume: "wish"}); err == nil {
		t.Error("any word can be assumed")
	}
}

// TestFlags: a true flag leaves the replay exact and decides, a false one is
// contradicted.
func TestFlags(t *testing.T) {
	const file = "testdata/real_limit.pickle" // a limit of 1000 MiB: 0.1220703125 of 8 GiB
	for _, o := range []recovery.Options{
		{Fraction: 0.1220703125, Capacity: 8192 * mib},
		{Fraction: 0.1220703125, Total: 8192 * mib},
		{Limit: 1000 * mib},
	} {
		rec := recovered(t, file, o)
		if e := rec.Explanations[0]; !rec.Exact || len(rec.Explanations) != 1 || !e.Known || e.Machine.Limit != 1000*mib || calls(rec.Trace) != 0 || len(rec.Check.Contradicted) != 0 {
			t.Errorf("%+v: exact %v, %+v", o, rec.Exact, e)
		}
	}
	for _, o := range []recovery.Options{{Fraction: 0.1220703125}, {Capacity: 8192 * mib}, {Capacity: 1000 * mib}, {Total: 8192 * mib}, {Version: conf.Version{Major: 2, Minor: 11}}, {ConfSet: true}} {
		if rec := recovered(t, file, o); !rec.Exact {
			t.Errorf("%+v: not exact", o)
		}
	}
	if rec := recovered(t, file, recovery.Options{Capacity: 1000 * mib}); rec.Explanations[0].Kind != recovery.KindCard || len(rec.Explanations) != 1 {
		t.Errorf("a card of 1000 MiB explains every flush: %q", says(rec))
	}
	if rec := recovered(t, file, recovery.Options{Fraction: 0.1220703125}); rec.Explanations[0].Kind != recovery.KindFraction {
		t.Errorf("a fraction was given: %q", says(rec))
	}
	for _, o := range []recovery.Options{{Fraction: 0.01, Capacity: 8192 * mib}, {Limit: 900 * mib}, {Capacity: 900 * mib}} {
		rec := recovered(t, file, o)
		if rec.Exact || rec.Doubt == "" || rec.Check.FirstDivergence == nil || len(rec.Check.Contradicted) == 0 {
			t.Errorf("%+v is not contradicted", o)
		}
	}
	if rec := recovered(t, file, recovery.Options{ConfSet: true, Conf: "expandable_segments:True"}); rec.Exact {
		t.Error("the segments are no expandable ones")
	}
}

// TestOtherBackend names the rule of blocks that CUDA's allocator cannot make.
func TestOtherBackend(t *testing.T) {
	rec := recovered(t, "testdata/npu_measured.pickle", recovery.Options{})
	if rec.Exact || !strings.Contains(rec.Doubt, "NPU") {
		t.Errorf("exact %v, %q", rec.Exact, rec.Doubt)
	}
	if rec := recovered(t, "testdata/n1.pickle", recovery.Options{ConfSet: true, Conf: "expandable_segments:True"}); strings.Contains(rec.Doubt, "NPU") || rec.Doubt == "" {
		t.Errorf("a CUDA recording: %q", rec.Doubt)
	}
}

// TestRelease: the fields of a file bound the release whose rules are used.
func TestRelease(t *testing.T) {
	rec := recovered(t, "testdata/n1.pickle", recovery.Options{})
	if (rec.Since != conf.Version{Major: 2, Minor: 10}) || (rec.Before != conf.Version{Major: 2, Minor: 12}) || rec.Version != conf.Latest {
		t.Errorf("since %v, before %v, rules of %v", rec.Since, rec.Before, rec.Version)
	}
	tr := formatstest.Load(t, "testdata/n1.pickle")
	tr.Meta.TorchSince, tr.Meta.TorchBefore = "2.1", "2.2"
	old, err := recovery.Recover(context.Background(), tr, recovery.Options{})
	if err != nil || (old.Version != conf.Version{Major: 2, Minor: 1}) {
		t.Errorf("rules of %v, %v", old.Version, err)
	}
	// An option that no release known here has.
	tr = formatstest.Load(t, "testdata/n1.pickle")
	tr.Meta.Conf, tr.Meta.ConfKnown = "warp_drive:True,max_split_size_mb:512", true
	odd, err := recovery.Recover(context.Background(), tr, recovery.Options{})
	if err != nil || odd.Conf.MaxSplitSize != 512*mib || !strings.Contains(strings.Join(odd.Inferred, " "), "warp_drive") {
		t.Errorf("%v %+v", err, odd)
	}
}

// TestPortable: what was found out survives a format without segment events.
func TestPortable(t *testing.T) {
	rec := recovered(t, "testdata/real_limit.pickle", recovery.Options{})
	tr := rec.Portable()
	tr.Recorded = nil
	again, err := recovery.Recover(context.Background(), tr, recovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := whatIf(t, again, "roundup_power2_divisions:2"), whatIf(t, rec, "roundup_power2_divisions:2"); got != want {
		t.Errorf("%v, from the recording %v", got, want)
	}
	if k := kinds(again); !k[recovery.KindCard] || !k[recovery.KindFraction] {
		t.Errorf("worlds %q", says(again))
	}
}

// TestUnmet: a bound that was never met leaves no trace.
func TestUnmet(t *testing.T) {
	rec := recovered(t, "testdata/n1.pickle", recovery.Options{})
	e, ok := rec.Unmet()
	if !ok || e.Machine.Limit != 900*mib || rec.Explanations[0].High != math.MaxInt64 {
		t.Errorf("%v %+v", ok, e)
	}
	if _, ok := recovered(t, "testdata/real_limit.pickle", recovery.Options{}).Unmet(); ok {
		t.Error("a bound was met")
	}
	worlds, err := rec.Sample(context.Background(), 40)
	if err != nil || len(worlds) != 40 {
		t.Fatal(err)
	}
	// Every drawn world leaves the same recording.
	for _, w := range worlds {
		c := *w.Trace
		c.Meta.Sidecar, c.Meta.DeviceTotal = true, 1<<40
		res, err := recovery.Check(context.Background(), &c, recovery.Options{Limit: w.Machine.Limit, Capacity: w.Machine.Capacity})
		if err != nil || !res.Exact {
			t.Errorf("%s %v %+v", w.Says, err, res)
		}
	}
}

// TestCallers: every release of this program names empty_cache in its call
// stack, so no bound was met, even where no replay could tell.
func TestCallers(t *testing.T) {
	rec := recovered(t, "../../traces/snapshot/testdata/empty_frames.pickle", recovery.Options{})
	if k := kinds(rec); !rec.Exact || len(k) != 1 || !k[recovery.KindNone] || calls(rec.Trace) != 12 {
		t.Errorf("exact %v, %q", rec.Exact, says(rec))
	}
	// The releases of real_limit, had they named the call or the request.
	for caller, want := range map[traces.Caller]string{traces.CallerEmptyCache: recovery.KindNone, traces.CallerRequest: recovery.KindCard} {
		tr := formatstest.Load(t, "testdata/real_limit.pickle")
		for i := range tr.Recorded.Driver {
			if d := &tr.Recorded.Driver[i]; d.Action == traces.SegmentFree {
				d.Caller = caller
			}
		}
		rec, err := recovery.Recover(context.Background(), tr, recovery.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if k := kinds(rec); !rec.Exact || !k[want] || k[recovery.KindNone] != (want == recovery.KindNone) {
			t.Errorf("caller %d: exact %v, %q", caller, rec.Exact, says(rec))
		}
	}
}

// TestNamedCall: a call that is named stands in the trace even where a flush at
// the known limit would explain its releases.
func TestNamedCall(t *testing.T) {
	tr := formatstest.Load(t, "testdata/real_limit.pickle")
	first := -1
	for i := range tr.Recorded.Driver {
		d := &tr.Recorded.Driver[i]
		if d.Action == traces.SegmentFree && (first < 0 || int(d.Before) == first) {
			first = int(d.Before)
			d.Caller = traces.CallerEmptyCache
		}
	}
	rec, err := recovery.Recover(context.Background(), tr, recovery.Options{Limit: 1000 * mib})
	if err != nil || !rec.Exact || calls(rec.Trace) != 1 {
		t.Errorf("%v, exact %v, %d calls", err, rec.Exact, calls(rec.Trace))
	}
}

// TestBrackets: inside its bracket every bound follows the recording, outside
// none does.
func TestBrackets(t *testing.T) {
	for _, file := range []string{"real_limit", "card_full", "gc_1000", "gc_1200"} {
		tr := formatstest.Load(t, "testdata/"+file+".pickle")
		rec, err := recovery.Recover(context.Background(), tr, recovery.Options{})
		if err != nil {
			t.Fatal(err)
		}
		e := rec.Explanations[0]
		exact := func(bound int64) bool {
			c := *e.Trace
			c.Meta.Sidecar = true // no call is to be inferred
			c.Recorded = &traces.Recorded{Addr: e.Trace.Recorded.Addr, Driver: e.Trace.Recorded.Driver, Final: e.Trace.Recorded.Final}
			o := recovery.Options{Limit: bound}
			if e.Kind == recovery.KindCard {
				o = recovery.Options{Capacity: bound}
			}
			r, err := recovery.Recover(context.Background(), &c, o)
			if err != nil {
				t.Fatal(err)
			}
			return r.Exact && calls(r.Trace) == calls(e.Trace)
		}
		for k := range int64(9) {
			if at := e.Low + (e.High-e.Low)*k/8; !exact(at) {
				t.Errorf("%s: %d in %d … %d does not follow the recording", file, at, e.Low, e.High)
			}
		}
		if exact(e.Low-1) || exact(e.High+1) {
			t.Errorf("%s: a bound outside %d … %d follows the recording as well", file, e.Low, e.High)
		}
	}
}

// TestSums: a device was full only if what was held and what was free add up to
// the same at each request that failed.
func TestSums(t *testing.T) {
	load := func() *traces.Trace {
		tr := formatstest.Load(t, "../../testdata/recordings/h200_full__default.pickle.zst")
		return withhold(tr)
	}
	rec, err := recovery.Recover(context.Background(), load(), recovery.Options{})
	if err != nil || !rec.Exact || rec.Explanations[0].Kind != recovery.KindCard {
		t.Fatalf("%v %q", err, says(rec))
	}
	tr := load()
	r := *tr.Recorded
	r.OOMDeviceFree = append([]int64(nil), r.OOMDeviceFree...)
	r.OOMDeviceFree[0] += 64 * mib
	tr.Recorded = &r
	rec, err = recovery.Recover(context.Background(), tr, recovery.Options{})
	if err != nil || !strings.Contains(strings.Join(rec.Inferred, " "), "capacity for this allocator changed") {
		t.Errorf("%v %q", err, rec.Inferred)
	}
}
