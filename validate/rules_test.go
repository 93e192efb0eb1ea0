package validate

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

// TestVerdictByHand: 1,000 bytes of reserved peak are predicted, and what is
// measured is off by so much.
func TestVerdictByHand(t *testing.T) {
	base := Figures{ReservedPeak: 1000, AllocatedPeak: 800, Segments: 10, OOMs: 2}
	base.fragment() // 0.2
	with := func(change func(f *Figures)) Figures {
		f := base
		change(&f)
		f.fragment()
		return f
	}
	none := func(*Figures) {}
	oneByOne := func(r *Report) { r.mismatch("block", "entry 1", "a", "b") }
	for _, c := range []struct {
		name      string
		measured  func(f *Figures)
		tolerance float64
		slack     int64
		engine    string
		change    func(r *Report)
		fails     []string
		deviation Deviation
	}{
		{"the same", none, 0, 0, EngineSim, nil, nil, Deviation{}},
		// 20 of 1,000 are 2 %; a fifth of 1,020 more is free: 0.2 to 220/1,020.
		{"2 % more", func(f *Figures) { f.ReservedPeak = 1020 }, 0, 0, EngineSim, nil, []string{"reserved_peak", "fragmentation"}, Deviation{ReservedPeak: 2, Fragmentation: 100 * (220.0/1020 - 0.2)}},
		{"2 % more, 2 % allowed", func(f *Figures) { f.ReservedPeak = 1020 }, 2, 0, EngineSim, nil, nil, Deviation{ReservedPeak: 2, Fragmentation: 100 * (220.0/1020 - 0.2)}},
		{"2 % less, 1.9 % allowed", func(f *Figures) { f.ReservedPeak = 980 }, 1.9, 0, EngineSim, nil, []string{"reserved_peak"}, Deviation{ReservedPeak: -2, Fragmentation: 100 * (180.0/980 - 0.2)}},
		{"20 bytes of slack", func(f *Figures) { f.ReservedPeak = 1020 }, 0, 20, EngineSim, nil, nil, Deviation{ReservedPeak: 2, Fragmentation: 100 * (220.0/1020 - 0.2)}},
		{"19 bytes of slack", func(f *Figures) { f.ReservedPeak = 1020 }, 0, 19, EngineSim, nil, []string{"reserved_peak"}, Deviation{ReservedPeak: 2, Fragmentation: 100 * (220.0/1020 - 0.2)}},
		{"slack is for reserved bytes only", func(f *Figures) { f.AllocatedPeak = 801 }, 0, 20, EngineSim, nil, []string{"allocated_peak"}, Deviation{AllocatedPeak: 0.125, Fragmentation: -0.1}},
		{"a segment more", func(f *Figures) { f.Segments = 11 }, 5, 0, EngineSim, nil, []string{"segments"}, Deviation{Segments: 10}},
		{"no failed request", func(f *Figures) { f.OOMs = 0 }, 50, 0, EngineSim, nil, []string{"ooms"}, Deviation{OOMs: -100}},
		{"an event differs", none, 0, 0, EngineTorch, oneByOne, []string{checkOneByOne}, Deviation{}},
		{"an event differs, figures are allowed to", none, 1, 0, EngineTorch, oneByOne, nil, Deviation{}},
		{"an event differs on a card, where the driver decides ties", none, 0, 0, EngineCUDA, oneByOne, nil, Deviation{}},
		{"explained by addresses", func(f *Figures) { f.ReservedPeak = 1020 }, 0, 0, EngineCUDA, func(r *Report) { f := r.Measured; r.AtRealAddresses = &f }, nil, Deviation{ReservedPeak: 2, Fragmentation: 100 * (220.0/1020 - 0.2)}},
		{"explained by addresses, but it is PyTorch", func(f *Figures) { f.ReservedPeak = 1020 }, 0, 0, EngineTorch, func(r *Report) { f := r.Measured; r.AtRealAddresses = &f }, []string{"reserved_peak", "fragmentation"}, Deviation{ReservedPeak: 2, Fragmentation: 100 * (220.0/1020 - 0.2)}},
	} {
		r := &Report{Engine: c.engine, Predicted: base, Measured: with(c.measured), Tolerance: c.tolerance}
		if c.change != nil {
			c.change(r)
		}
		r.judge(c.slack)
		var fails []string
		for _, check := range r.Checks() {
			if !check.Pass {
				fails = append(fails, check.Name)
				if check.Why == "" {
					t.Errorf("%s: %s does not say why", c.name, check.Name)
				}
			}
		}
		near := func(a, b float64) bool { return max(a-b, b-a) < 1e-9 }
		d, w := r.Deviation, c.deviation
		if !slices.Equal(fails, c.fails) || r.Pass != (len(c.fails) == 0) {
			t.Errorf("%s: passes %v, %v fail; want %v", c.name, r.Pass, fails, c.fails)
		}
		if !near(d.ReservedPeak, w.ReservedPeak) || !near(d.AllocatedPeak, w.AllocatedPeak) || !near(d.Segments, w.Segments) || !near(d.Fragmentation, w.Fragmentation) || !near(d.OOMs, w.OOMs) {
			t.Errorf("%s: off by %+v, want %+v", c.name, d, w)
		}
	}
	if f := (Figures{AllocatedPeak: 0}); func() bool { f.fragment(); return f.Fragmentation != 0 }() {
		t.Error("nothing is fragmented")
	}
}

// A history of segments and the blocks in them, as offsets, so that it can be
// put anywhere.
type history struct {
	steps []step
	sizes []int64 // of segments
}

type step struct {
	action  policies.Action
	segment int
	offset  int64
	size    int64
	stream  uint16
}

func drawHistory(t *rapid.T) history {
	var h history
	var live []int
	segment := func(action policies.Action, i int) {
		h.steps = append(h.steps, step{action, i, 0, h.sizes[i], uint16(i % 2)})
	}
	for range rapid.IntRange(1, 20).Draw(t, "steps") {
		switch k := rapid.IntRange(0, 3).Draw(t, "step"); {
		case k == 0 || len(live) == 0:
			h.sizes = append(h.sizes, rapid.SampledFrom([]int64{2 * mib, 20 * mib, 30 * mib}).Draw(t, "size"))
			live = append(live, len(h.sizes)-1)
			segment(policies.ActionSegmentAlloc, len(h.sizes)-1)
		case k == 1:
			i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			segment(policies.ActionSegmentFree, live[i])
			live = slices.Delete(live, i, i+1)
		default:
			i := live[rapid.IntRange(0, len(live)-1).Draw(t, "where")]
			action := rapid.SampledFrom([]policies.Action{policies.ActionAlloc, policies.ActionFreeRequested}).Draw(t, "what")
			h.steps = append(h.steps, step{action, i, 512 * rapid.Int64Range(0, 2000).Draw(t, "offset"), 512, uint16(i % 2)})
		}
	}
	return h
}

// put places the segments as a driver with the given seed does: each at the
// start of a slot that no live segment has.
func (h *history) put(t *rapid.T, name string) []event {
	const slot = 64 * mib
	addr := make([]uint64, len(h.sizes))
	taken := make(map[uint64]bool)
	var out []event
	for _, s := range h.steps {
		if s.action == policies.ActionSegmentAlloc {
			for addr[s.segment] == 0 || taken[addr[s.segment]] {
				addr[s.segment] = slot * rapid.Uint64Range(1, 60).Draw(t, name)
			}
			taken[addr[s.segment]] = true
		}
		if s.action == policies.ActionSegmentFree {
			delete(taken, addr[s.segment])
		}
		out = append(out, event{s.action, addr[s.segment] + uint64(s.offset), s.size, s.stream, len(out)})
	}
	return out
}

// TestPlacesAreRelative: the same history at two sets of addresses is the same,
// and with one thing changed it is another.
func TestPlacesAreRelative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		a, b := h.put(t, "a"), h.put(t, "b")
		r := new(Report)
		r.compareEvents(a, b, 16*gib)
		if len(r.Mismatches) > 0 || r.EventsCompared != len(a) {
			t.Fatalf("%d of %d events agree, %v", r.EventsCompared, len(a), r.Mismatches)
		}
		i := rapid.IntRange(0, len(b)-1).Draw(t, "changed")
		was := b[i]
		switch rapid.IntRange(0, 3).Draw(t, "how") {
		case 0:
			b[i].size += 512
		case 1:
			b[i].stream++
		case 2:
			if b[i].action == policies.ActionSegmentAlloc {
				t.Skip("where a segment is does not matter")
			}
			b[i].addr += 512
		case 3:
			if len(b) == 1 {
				t.Skip("nothing would be left")
			}
			b = b[:i]
		}
		r = new(Report)
		r.compareEvents(a, b, 16*gib)
		if len(r.Mismatches) != 1 || r.EventsCompared != i {
			t.Fatalf("event %d is changed from %+v: %d agree, %v", i, was, r.EventsCompared, r.Mismatches)
		}
	})
}

// TestRecorder: 20, 42, 22 and 42 MiB are reserved; the first of the two equal
// peaks is the peak, and samples are taken once a step is over.
func TestRecorder(t *testing.T) {
	tr := &traces.Trace{Events: make([]traces.Event, 12)}
	r := newRecorder(tr, 3) // every third event
	see := func(at int, a policies.Action, size int64) {
		r.Observe(sim.At{Event: at}, &policies.Event{Action: a, Size: size})
	}
	see(0, policies.ActionSegmentAlloc, 20*mib)
	see(0, policies.ActionAlloc, 512)
	see(2, policies.ActionSegmentMap, 22*mib)
	see(3, policies.ActionAlloc, 512)
	see(4, policies.ActionAlloc, 512)
	see(5, policies.ActionSegmentFree, 20*mib)
	see(7, policies.ActionRetry, 0)
	see(7, policies.ActionSegmentAlloc, 20*mib)
	see(7, policies.ActionAlloc, 512)
	see(9, policies.ActionSegmentUnmap, 22*mib)
	see(10, policies.ActionAlloc, 512)
	if r.peak != 42*mib || r.peakAt != 2 || r.reserved != 20*mib {
		t.Errorf("peak %d at event %d, %d reserved", r.peak/mib, r.peakAt, r.reserved/mib)
	}
	if want := []sample{{3, 42 * mib}, {7, 42 * mib}, {10, 20 * mib}}; !slices.Equal(r.points, want) {
		t.Errorf("samples %v, want %v", r.points, want)
	}
	if len(r.events) != 5 || !slices.Equal(r.retries, []int{7}) {
		t.Errorf("%d events, retries at %v", len(r.events), r.retries)
	}
}

// TestCheckpoints: samples at the same event are compared, others left out.
func TestCheckpoints(t *testing.T) {
	r := new(Report)
	r.checkpoints([]sample{{3, 10}, {6, 20}, {9, 30}}, []sample{{3, 11}, {7, 20}, {9, 30}, {12, 40}})
	if want := []Checkpoint{{3, 10, 11}, {9, 30, 30}}; !slices.Equal(r.Checkpoints, want) {
		t.Errorf("%v, want %v", r.Checkpoints, want)
	}
}

// TestFailedRequestsCompared: the first that is at another place, or missing,
// is told.
func TestFailedRequestsCompared(t *testing.T) {
	for _, c := range []struct {
		predicted, measured []sim.OOM
		where               string
	}{
		{nil, nil, ""},
		{[]sim.OOM{{Event: 5}}, []sim.OOM{{Event: 5}}, ""},
		{[]sim.OOM{{Event: 5}, {Event: 9}}, []sim.OOM{{Event: 5}, {Event: 8}}, "number 2"},
		{[]sim.OOM{{Event: 5}, {Event: 9}}, []sim.OOM{{Event: 5}}, "number 2"},
		{nil, []sim.OOM{{Event: 5}}, "number 1"},
	} {
		r := new(Report)
		r.compareOOMs(c.predicted, c.measured)
		got := ""
		if len(r.Mismatches) > 0 {
			got = r.Mismatches[0].Where
		}
		if got != c.where || len(r.Mismatches) > 1 {
			t.Errorf("%v against %v: %v", c.predicted, c.measured, r.Mismatches)
		}
	}
}

// TestMismatchesAreBounded: a list that goes on for pages hides the others.
func TestMismatchesAreBounded(t *testing.T) {
	r := new(Report)
	for range 100 {
		r.mismatch("statistic", "a", "1", "2")
	}
	r.mismatch("block", "entry 1", "1", "2")
	if len(r.Mismatches) != maxMismatches+1 || r.Mismatches[maxMismatches].What != "block" {
		t.Errorf("%d mismatches", len(r.Mismatches))
	}
}

// TestPrepareRunsToTheEnd: what stops a simulation early has no place in a
// prediction that is compared to its end.
func TestPrepareRunsToTheEnd(t *testing.T) {
	o := options(t, workload(t), Options{Config: sim.Config{Policy: policy(t, "torch"), StopAtOOM: true, MaxReserved: 1, Detail: true}})
	if o.Config.StopAtOOM || o.Config.MaxReserved != 0 || o.Config.Detail || o.Checkpoints != 10 {
		t.Errorf("%+v", o)
	}
}

// TestStatistics: what both have is compared, what only PyTorch has is noted.
func TestStatistics(t *testing.T) {
	r := new(Report)
	r.compareStats(map[string]int64{"a": 1, "b": 2, "ours": 3}, map[string]int64{"a": 1, "b": 3, "theirs": 4})
	if r.StatsCompared != 2 || len(r.Mismatches) != 1 || r.Mismatches[0] != (Mismatch{"statistic", "b", "2", "3"}) || len(r.Notes) != 1 {
		t.Errorf("%+v", r)
	}
}
