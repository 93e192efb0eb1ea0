package sim_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"allocsim/internal/bend"
	"allocsim/policies"
	"allocsim/sim"
)

// TestMachine works out, by hand, how much may be taken and who says so.
func TestMachine(t *testing.T) {
	torch, err := policies.Parse("torch")
	if err != nil {
		t.Fatal(err)
	}
	bfc, err := policies.Parse("bfc:preallocate=false")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name               string
		m                  sim.Machine
		spec               *policies.Spec
		recorded           int64
		room, total, limit int64
		limitDecides       bool
	}{
		{"nothing said", sim.Machine{}, torch, 0, 0, 0, 0, false},
		{"a device", sim.On(100, 0), torch, 0, 100, 100, 0, false},
		{"a part of the recorded device: its address space stays", sim.On(100, 0), torch, 1000, 100, 1000, 0, false},
		{"a part of it, for an allocator that asks for its size", sim.On(100, 0), bfc, 1000, 100, 100, 0, false},
		{"a larger device than the recorded one", sim.On(2000, 0), torch, 1000, 2000, 2000, 0, false},
		{"half of the recorded device", sim.Machine{Fraction: 0.5}, torch, 1000, 500, 1000, 500, true},
		{"half of a device of that size", sim.On(100, 0).WithFraction(0.5), torch, 1000, 50, 1000, 50, true},
		{"half of a card that gives less", sim.On(400, 1000).WithFraction(0.5), torch, 0, 400, 1000, 500, false},
		{"a limit goes before a fraction", sim.Machine{Limit: 70, Fraction: 0.5}, torch, 1000, 70, 1000, 70, true},
		{"a fraction goes before a limit that was recorded", sim.Machine{Limit: 70}.WithFraction(0.5), torch, 1000, 500, 1000, 500, true},
		{"less than a byte is not no limit", sim.Machine{Total: 1, Fraction: 0.1}, torch, 0, 1, 1, 1, true},
	} {
		m, err := c.m.Resolve(c.spec, c.recorded)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if m.Room() != c.room || m.Total != c.total || m.Limit != c.limit || m.LimitDecides() != c.limitDecides {
			t.Errorf("%s: room %d, total %d, limit %d, the limit decides: %v; want %d, %d, %d, %v",
				c.name, m.Room(), m.Total, m.Limit, m.LimitDecides(), c.room, c.total, c.limit, c.limitDecides)
		}
	}
	for _, m := range []sim.Machine{{Fraction: 1.5, Total: 10}, {Fraction: -1, Total: 10}, {Fraction: 0.5}} {
		if _, err := m.Resolve(torch, 0); err == nil {
			t.Errorf("%+v is taken", m)
		}
	}
}

// TestAlike: on every size of which a run says that it would have gone the same
// way, it does.
func TestAlike(t *testing.T) {
	spec, err := policies.Parse("torch")
	if err != nil {
		t.Fatal(err)
	}
	wide := 0
	rapid.Check(t, func(rt *rapid.T) {
		tr := smallTrace(rt)
		on := func(capacity int64) *sim.Result {
			res, err := sim.Run(context.Background(), tr, sim.Config{Policy: spec, Machine: sim.On(capacity, 0)})
			if err != nil {
				rt.Fatal(err)
			}
			return res
		}
		const top = 1 << 30
		capacity := rapid.Int64Range(1, top).Draw(rt, "capacity")
		res := on(capacity)
		low, high := res.Alike[0], min(res.Alike[1], top)
		if capacity < low || capacity >= res.Alike[1] {
			rt.Fatalf("%d is not in [%d, %d)", capacity, low, high)
		}
		if high-low > 2*sim.Granule {
			wide++
		}
		for _, c := range []int64{max(low, 1), high - 1, rapid.Int64Range(max(low, 1), max(high-1, 1)).Draw(rt, "another")} {
			if c < 1 {
				continue
			}
			other := on(c)
			if diff := cmp.Diff(res.Stats, other.Stats); diff != "" || other.Completed != res.Completed || len(other.OOMs) != len(res.OOMs) {
				rt.Fatalf("%d and %d bytes differ (alike from %d to %d):\n%s", capacity, c, low, high, diff)
			}
		}
	})
	if wide == 0 {
		t.Error("no range is wide: this test sees nothing")
	}
}

// TestMachineBends: a bent rule of what bounds a run turns its test red.
func TestMachineBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "what waits for a stream must live", File: "bound.go", Test: "TestBoundWaits",
			Old: "most = max(most, live.Allocated)\n", Bent: "most = max(most, live.Active)\n"},
		{Rule: "the bound counts too much", File: "../traces/live.go", Test: "TestBoundHolds",
			Old: "l.size[e.ID] = e.Size\n", Bent: "l.size[e.ID] = e.Size / 2\n"},
		{Rule: "the larger of limit and capacity is the room", File: "machine.go", Test: "TestMachine",
			Old: "m.Limit < m.Capacity)", Bent: "m.Limit > m.Capacity)"},
		{Rule: "a fraction is one of the recorded device, whatever device is asked about", File: "machine.go", Test: "TestMachine",
			Old: "base = m.Capacity", Bent: "base = recorded"},
		{Rule: "address space shrinks with what is free", File: "machine.go", Test: "TestMachine",
			Old: "m.Total = max(m.Capacity, recorded, m.Space)", Bent: "m.Total = base"},
		{Rule: "a recorded limit outlives another fraction", File: "machine.go", Test: "TestMachine",
			Old: "m.Limit, m.Fraction = 0, f", Bent: "m.Fraction = f"},
		{Rule: "less than a byte is no limit", File: "machine.go", Test: "TestMachine",
			Old: "m.Limit = 1 //", Bent: "m.Limit = 0 //"},
		{Rule: "a fraction above 1 is taken", File: "machine.go", Test: "TestMachine",
			Old: "case fraction < 0 || fraction > 1 ||", Bent: "case fraction < 0 ||"},
		{Rule: "the last call that failed says what is alike", File: "device.go", Test: "TestAlike",
			Old: "m.refused == 0 || need < m.refused", Bent: "true"},
		{Rule: "what was in use at the end says what is alike", File: "device.go", Test: "TestAlike",
			Old: "return d.mem.peak, d.mem.refused", Bent: "return d.mem.used, d.mem.refused"},
	})
}
