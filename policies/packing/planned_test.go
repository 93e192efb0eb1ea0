package packing

import (
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"allocsim/policies"
	"allocsim/policies/policytest"
)

// TestPlannedConformance runs the shared checks on a plan with a place of its
// own for every request that they can make.
func TestPlannedConformance(t *testing.T) {
	spec, err := Registration.Parse("")
	if err != nil {
		t.Fatal(err)
	}
	const size = 4 << 20
	var plan Plan
	for i := range 200 {
		plan.Offsets = append(plan.Offsets, int64(i*size))
		plan.Sizes = append(plan.Sizes, size)
	}
	plan.Height = 200 * size
	policytest.Run(t, Planned(spec, plan), policytest.Options{MaxSize: size})
}

// TestPlanned runs random programs through a plan made from them.
func TestPlanned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type call struct {
			malloc bool
			i      int
			size   int64
		}
		var calls []call
		var log callLog
		var live []int
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			if len(live) > 0 && rapid.Bool().Draw(t, "free") {
				k := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				log.free(live[k])
				calls = append(calls, call{i: live[k]})
				live = append(live[:k], live[k+1:]...)
				continue
			}
			size := rapid.Int64Range(1, 1<<20).Draw(t, "size")
			i := log.malloc(size)
			live = append(live, i)
			calls = append(calls, call{true, i, size})
		}
		bs := log.buffers()
		p, err := Pack(context.Background(), bs, Options{Budget: -1})
		if err != nil {
			t.Fatal(err)
		}
		spec, err := Registration.Parse("")
		if err != nil {
			t.Fatal(err)
		}
		policy, err := Planned(spec, NewPlan(bs, p)).New(policies.Env{Device: policytest.NewDevice(0)})
		if err != nil {
			t.Fatal(err)
		}
		handles := make([]policies.Handle, len(bs))
		var base uint64
		for _, c := range calls {
			if !c.malloc {
				if err := policy.Free(handles[c.i], false); err != nil {
					t.Fatal(err)
				}
				continue
			}
			b, err := policy.Malloc(policies.Request{Size: c.size})
			if err != nil {
				t.Fatal(err)
			}
			if base == 0 {
				base = policy.Segments(nil)[0].Addr
			}
			if got := int64(b.Addr - base); got != p.Offsets[c.i] {
				t.Fatalf("request %d is at %d, planned %d", c.i, got, p.Offsets[c.i])
			}
			handles[c.i] = b.Handle
		}
		s := policy.Stats()
		if r, a := s.ReservedBytes[policies.All].Peak, s.AllocatedBytes[policies.All].Peak; len(bs) > 0 && (r != p.Height || a != Bound(bs)) {
			t.Fatalf("peaks: reserved %d, allocated %d; height %d, bound %d", r, a, p.Height, Bound(bs))
		}
	})
}

// TestPlannedRefuses checks every way in which a request can miss its place.
func TestPlannedRefuses(t *testing.T) {
	plan := Plan{Offsets: []int64{0, 0, 1024, -1, 512, 4096}, Sizes: []int64{512, 512, 512, 512, 512, 512}, Height: 4608}
	policy, err := NewPlanned(policies.Env{Device: policytest.NewDevice(0), Limit: 4096}, plan)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		size int64
		want error
	}{
		{512, nil}, {512, errPlanUsed}, {513, errPlanSize}, {512, errPlanNone}, {1, nil}, {512, errPlanRoom}, {512, errPlanEnd},
	} {
		_, err := policy.Malloc(policies.Request{Size: c.size})
		if !errors.Is(err, c.want) || c.want != nil && !errors.Is(err, policies.ErrOutOfMemory) {
			t.Errorf("request %d: %v, want %v", i, err, c.want)
		}
	}
	if got := policy.Stats().NumOOMs; got != 5 {
		t.Errorf("%d OOMs counted, want 5", got)
	}
	for _, bad := range []Plan{
		{Offsets: []int64{0}, Height: 512},
		{Offsets: []int64{0}, Sizes: []int64{0}, Height: 512},
		{Offsets: []int64{1}, Sizes: []int64{512}, Height: 512},
	} {
		if _, err := NewPlanned(policies.Env{Device: policytest.NewDevice(0)}, bad); err == nil {
			t.Errorf("plan %v is accepted", bad)
		}
	}
}

func TestRegistration(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "budget=100000000": "budget=100000000", "round=512": "", "round=1": "round=1", "budget=5,seed=3": "budget=5,seed=3", "budget=0": "budget=0",
	} {
		spec, err := Registration.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Options != want {
			t.Errorf("%q is %q in normal form, want %q", text, spec.Options, want)
		}
		if _, err := spec.New(policies.Env{}); !errors.Is(err, ErrNoPlan) {
			t.Errorf("New without a plan: %v", err)
		}
	}
	for _, text := range []string{"budget=x", "seed=-1", "time=3", "budget=-1", "round=0"} {
		if _, err := Registration.Parse(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	s, err := Registration.Parse("budget=7,seed=9")
	if err != nil {
		t.Fatal(err)
	}
	if o := s.Config.(config); o.Budget != 7 || o.Seed != 9 {
		t.Errorf("%+v", o)
	}
}
