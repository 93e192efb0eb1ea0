package sim_test

import (
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
)

const mib = 1 << 20

// TestBoundWaits: a block whose free waits for another stream may be gone at
// once, so it is no part of the bound. By hand: 600 MiB wait while 300 and 500
// are asked for; a flush of the cache ends the wait, and 900 MiB are enough.
func TestBoundWaits(t *testing.T) {
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	b.Stream(1)
	a := b.Alloc(0, 600*mib, s, 0)
	b.FreeRequested(1, a)
	b.Alloc(2, 300*mib, s, 0)
	b.Alloc(3, 500*mib, s, 0)
	b.FreeCompleted(4, a)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if got := sim.Bound(tr); got != 800*mib {
		t.Errorf("bound %d MiB, want 800", got/mib)
	}
	spec, err := torch.Parse("", conf.Latest)
	if err != nil {
		t.Fatal(err)
	}
	res, err := sim.Run(context.Background(), tr, sim.Config{Policy: spec, Machine: sim.On(1024*mib, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if peak := res.Stats.ReservedBytes[policies.All].Peak; !res.Completed || peak != 900*mib {
		t.Errorf("completes %v with %d MiB, want 900", res.Completed, peak/mib)
	}
}

// TestBoundHolds: no policy under any setting, on any device, serves all
// requests with less than the bound.
func TestBoundHolds(t *testing.T) {
	settings := []string{
		"torch", "torch:expandable_segments:True", "torch:max_split_size_mb:32", "torch:roundup_power2_divisions:8",
		"torch:garbage_collection_threshold:0.5", "torch:backend:cudaMallocAsync", "bfc:preallocate=false", "rmm-pool", "rmm-arena", "rmm-binning",
		"cupy", "stream", "direct", "packing",
	}
	met := 0
	rapid.Check(t, func(rt *rapid.T) {
		tr := smallTrace(rt)
		bound := sim.Need(tr)
		for _, name := range settings {
			spec, err := policies.Parse(name)
			if err != nil {
				rt.Fatal(err)
			}
			share := rapid.SampledFrom([]int64{0, 80, 100, 105, 130}).Draw(rt, "share of the bound in percent")
			cfg := sim.Config{Policy: spec, Machine: sim.Machine{Capacity: bound * share / 100}}
			if share > 0 && cfg.Capacity == 0 {
				continue
			}
			res, err := sim.Run(context.Background(), tr, cfg)
			if errors.Is(err, policies.ErrOutOfMemory) {
				continue // cannot even begin
			}
			if err != nil {
				continue // a policy that does not suit so small a device
			}
			if !res.Completed || res.Stats.NumOOMs > 0 {
				continue
			}
			met++
			if peak := res.Stats.ReservedBytes[policies.All].Peak; peak < bound {
				rt.Fatalf("%s serves all on %d bytes with %d, the bound is %d", name, cfg.Capacity, peak, bound)
			}
		}
	})
	if met == 0 {
		t.Error("nothing completes: this test sees nothing")
	}
}

// smallTrace is a program of up to 20 requests on two streams, with frees that
// wait and requests that fail.
func smallTrace(rt *rapid.T) *traces.Trace {
	b := traces.NewBuilder(0)
	streams := []uint16{b.Stream(0), b.Stream(1)}
	var live, waiting []traces.BlockID
	take := func(list *[]traces.BlockID) traces.BlockID {
		k := rapid.IntRange(0, len(*list)-1).Draw(rt, "which")
		id := (*list)[k]
		*list = append((*list)[:k:k], (*list)[k+1:]...)
		return id
	}
	for us := range int64(rapid.IntRange(1, 20).Draw(rt, "events")) {
		switch k := rapid.IntRange(0, 9).Draw(rt, "kind"); {
		case k < 5 || len(live) == 0:
			size := rapid.Int64Range(1, 40).Draw(rt, "MiB") * mib
			live = append(live, b.Alloc(us, size, streams[rapid.IntRange(0, 1).Draw(rt, "stream")], 0))
		case k < 7:
			b.Free(us, take(&live))
		case k < 8:
			id := take(&live)
			b.FreeRequested(us, id)
			waiting = append(waiting, id)
		case k < 9 && len(waiting) > 0:
			b.FreeCompleted(us, take(&waiting))
		default:
			b.EmptyCache(us)
		}
	}
	tr, _, err := b.Build()
	if err != nil {
		rt.Fatal(err)
	}
	return tr
}
