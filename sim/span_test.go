package sim_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	_ "allocsim/policies/all"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces/formats/formatstest"
)

// TestSpanOfExpandable runs what SpanRuns leaves out: with expandable segments
// every order of driver addresses gives the same result, to the last
// statistic, also with streams, private pools and too little memory. With the
// default the same orders do not.
func TestSpanOfExpandable(t *testing.T) {
	ctx := context.Background()
	differ := false
	for _, name := range []string{"gnn__default", "streams_prefetch__default", "h200_graphs__default", "h200_mempool__exp", "h200_moe__tight", "resnet50_amp__default"} {
		rec, err := recovery.Recover(ctx, formatstest.Load(t, "../testdata/recordings/"+name+".pickle.zst"), recovery.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, options := range []string{"", "expandable_segments:True", "expandable_segments:True,large_segment_size_mb:12,roundup_power2_divisions:8"} {
			cfg := rec.Config()
			if cfg.Policy, err = torch.Parse(options, conf.Latest); err != nil {
				t.Fatal(err)
			}
			for _, share := range []float64{0, 1.04} {
				cfg.Capacity = int64(share * float64(sim.Bound(rec.Trace)))
				want, err := sim.Run(ctx, rec.Trace, cfg)
				if err != nil {
					t.Fatal(err)
				}
				if runs := sim.SpanRuns(rec.Trace, cfg, want, sim.SpanOrders); (len(runs) == 0) != (options != "") {
					t.Errorf("%s under %q: %d orders to run", name, options, len(runs))
				}
				var r sim.Runner
				for seed := range uint64(sim.SpanOrders) {
					random := cfg
					random.Addresses, random.Seed = sim.AddressesRandom, seed+1
					got, err := r.Run(ctx, rec.Trace, random)
					if err != nil {
						t.Fatal(err)
					}
					if options == "" {
						differ = differ || got.Stats != want.Stats
						continue
					}
					if diff := cmp.Diff(want, got, cmp.Comparer(samePolicy)); diff != "" {
						t.Fatalf("%s under %q in %d bytes, order %d (-driver model +random):\n%s", name, options, cfg.Capacity, seed+1, diff)
					}
				}
			}
		}
	}
	if !differ {
		t.Error("no order changes anything under the default either: this test cannot fail")
	}
}
