package sim_test

import (
	"slices"
	"testing"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces"
)

// TestObserversSeeTheStart: a run that begins with a recorded layout shows it
// to its observers; otherwise their curves would begin at zero.
func TestObserversSeeTheStart(t *testing.T) {
	const mib = 1 << 20
	b := traces.NewBuilder(0)
	held := b.Alloc(0, 5*mib, 0, 0)
	waits := b.Alloc(0, 3*mib, 0, 0)
	b.FreeRequested(0, waits)
	b.FreeCompleted(10, waits)
	b.Free(20, held)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.StartEvents = 3
	tr.Start = &traces.State{Segments: []traces.Segment{{Addr: 1 << 30, Size: 20 * mib, Blocks: []traces.SegmentBlock{
		{Addr: 1 << 30, Size: 5 * mib, Requested: 5 * mib, ID: held, State: traces.ActiveAllocated},
		{Addr: 1<<30 + 5*mib, Size: 3 * mib, Requested: 3 * mib, ID: waits, State: traces.ActivePendingFree},
		{Addr: 1<<30 + 8*mib, Size: 12 * mib, ID: traces.NoBlock},
	}}}}
	spec, err := policies.Parse("torch")
	if err != nil {
		t.Fatal(err)
	}
	var s sim.Series
	res, err := sim.Run(t.Context(), tr, sim.Config{Policy: spec, FromStart: true}, &s)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what      string
		got, want []int64
	}{
		{"times", s.TimeUS, []int64{0, 10, 20}},
		{"reserved", s.Reserved, []int64{20 * mib, 20 * mib, 20 * mib}},
		{"allocated", s.Allocated, []int64{5 * mib, 5 * mib, 0}},
		{"active", s.Active, []int64{8 * mib, 5 * mib, 0}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s %v, want %v", c.what, c.got, c.want)
		}
	}
	if peak := res.Stats.ReservedBytes[policies.All].Peak; peak != 20*mib {
		t.Errorf("%d bytes reserved at the peak, want 20 MiB", peak)
	}
}
