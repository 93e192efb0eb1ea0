package plots

import (
	"context"
	"testing"

	"allocsim/plots/internal/plotstest"
	"allocsim/policies"
	"allocsim/sim"
)

// TestSpaceFollowsAllocator holds the free memory found from events alone
// against the policy's own segments, at the reserved peak of a run.
func TestSpaceFollowsAllocator(t *testing.T) {
	for _, name := range []string{"gnn__default", "gnn__exp", "fuzz0021", "fuzz0051", "oom_retry__f12", "streams_prefetch__default", "cuda_graph__default"} {
		rec := plotstest.Recording(t, "..", name)
		for _, policy := range []string{"", "torch:expandable_segments:True", "bfc", "rmm-pool", "cupy", "direct"} {
			cfg := rec.Config()
			if policy != "" {
				cfg.Policy = plotstest.Spec(t, policy)
			}
			cfg.Detail = true
			res, err := sim.Run(context.Background(), rec.Trace, cfg)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, policy, err)
			}
			want := *res.AtPeak
			short := *rec.Trace
			short.Events = short.Events[:want.Event+1]
			cfg.Detail = false
			r := NewSpaceRecorder(&short, cfg.Policy, ByTime, 1000, true)
			if _, err := sim.Run(context.Background(), &short, cfg, r); err != nil {
				t.Fatalf("%s, %s: %v", name, policy, err)
			}
			r.settle()
			got := sim.Fragmentation{
				Event: want.Event, Reserved: r.space.reserved, Allocated: want.Allocated, ReservedUnallocated: want.ReservedUnallocated,
				LargestFree: r.space.largestFree(), Stranded: r.space.free - r.space.cached,
			}
			if policy == "rmm-pool" {
				// It keeps the free blocks of each stream apart, even where they touch.
				got.LargestFree, want.LargestFree, want.External = 0, 0, 0
			} else if r.space.free > 0 {
				got.External = 1 - float64(got.LargestFree)/float64(r.space.free)
			}
			if got != want {
				t.Errorf("%s under %s:\n got %+v\nwant %+v", name, cfg.Policy, got, want)
			}
		}
	}
}

// TestLayoutTiles: blocks lie inside segments in use and never overlap in
// address and time.
func TestLayoutTiles(t *testing.T) {
	rec := plotstest.Recording(t, "..", "fuzz0021")
	for _, policy := range []string{"torch", "torch:expandable_segments:True"} {
		cfg := rec.Config()
		cfg.Policy = plotstest.Spec(t, policy)
		r := NewSpaceRecorder(rec.Trace, cfg.Policy, ByEvent, 1000, true)
		res, err := sim.Run(context.Background(), rec.Trace, cfg, r)
		if err != nil {
			t.Fatal(err)
		}
		l := r.Layout()
		if n := int64(len(l.Blocks)); n != res.Stats.Allocation[policies.All].Allocated {
			t.Errorf("%s: %d blocks, %d allocations", policy, n, res.Stats.Allocation[policies.All].Allocated)
		}
		var inside, all float64
		for i, b := range l.Blocks {
			if b.X1 < b.X0 || b.Offset < 0 || b.Offset+b.Size > l.Height {
				t.Fatalf("%s: block %d is off the map: %+v", policy, i, b)
			}
			for _, o := range l.Blocks[i+1:] {
				if b.Offset < o.Offset+o.Size && o.Offset < b.Offset+b.Size && b.X0 < o.X1 && o.X0 < b.X1 {
					t.Fatalf("%s: blocks overlap: %+v %+v", policy, b, o)
				}
			}
			all += float64(b.Size) * float64(b.X1-b.X0)
			for _, s := range l.Segments {
				inside += overlap(b, s)
			}
			for _, s := range l.Cached {
				if overlap(b, s) > 0 {
					t.Fatalf("%s: block %+v lies in %+v, which can be given back", policy, b, s)
				}
			}
		}
		if inside < all*0.999999 || inside > all*1.000001 {
			t.Errorf("%s: %.0f of %.0f byte·events of blocks lie in segments", policy, inside, all)
		}
	}
}

func overlap(b BlockSpan, s RangeSpan) float64 {
	w := min(b.X1, s.X1) - max(b.X0, s.X0)
	h := min(b.Offset+b.Size, s.Offset+s.Size) - max(b.Offset, s.Offset)
	return float64(max(w, 0)) * float64(max(h, 0))
}
