package explain

import (
	"context"
	"errors"
	"strings"
	"testing"

	"allocsim/planner/diagnose"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/traces/formats/formatstest"
)

const recordings = "../../testdata/recordings/"

// TestRecording: the failure of a real run under a limit of 300 MiB, as its
// sidecar has it.
func TestRecording(t *testing.T) {
	ctx := context.Background()
	tr := formatstest.Load(t, recordings+"fuzz0003.pickle.zst")
	m, o, err := Recording(ctx, tr, Options{Path: "job.pickle"})
	if err != nil {
		t.Fatal(err)
	}
	if m.Requested.Bytes != 252<<20 || m.Allowed.Bytes != 300<<20 || m.PrivatePools.Known || o.Trace != "job.pickle" {
		t.Errorf("%+v %+v", m, o)
	}
	if r := diagnose.Diagnose(m, o); r.Verdict != diagnose.Limit || r.Next != "allocsim plan job.pickle" {
		t.Errorf("%s, next %s", r.Verdict, r.Next)
	}

	var none *NoOOM
	_, _, err = Recording(ctx, formatstest.Load(t, recordings+"gnn__default.pickle.zst"), Options{Path: "x"})
	if !errors.As(err, &none) || none.Retries != 0 || !strings.Contains(err.Error(), "x has no out-of-memory event; ") {
		t.Errorf("%v", err)
	}
	_, _, err = Recording(ctx, formatstest.Load(t, recordings+"gnn__tightexp.pickle.zst"), Options{Path: "x"})
	if !errors.As(err, &none) || none.Retries == 0 || !strings.Contains(err.Error(), "it was close") {
		t.Errorf("%v", err)
	}
}

// TestFreeAt works out by hand what a request of the default pool may use: a
// pool keeps 600 MiB free, the default pool holds 100 MiB of which nothing is
// free, and 500 MiB more exceed a device of 1,000 MiB.
func TestFreeAt(t *testing.T) {
	const mib = 1 << 20
	ctx := context.Background()
	for _, id := range []traces.PoolID{{7, 0}, {0, 7}} {
		b := traces.NewBuilder(4)
		kept := b.Alloc(10, 600*mib, 0, b.Pool(id))
		b.Free(20, kept)
		b.Alloc(30, 100*mib, 0, 0)
		b.Alloc(40, 500*mib, 0, 0)
		tr, _, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		spec, err := torch.Parse("", conf.Latest)
		if err != nil {
			t.Fatal(err)
		}
		cfg := sim.Config{Policy: spec, Machine: sim.On(1000*mib, 0)}
		res, err := sim.Run(ctx, tr, cfg)
		if err != nil || len(res.OOMs) != 1 {
			t.Fatalf("%v %+v", err, res)
		}
		f, err := freeAt(ctx, tr, cfg, res.OOMs[0])
		if want := (free{private: 600 * mib, graphs: id[1] == 0, memPool: id[0] == 0}); err != nil || f != want {
			t.Errorf("%v %+v, by hand %+v", err, f, want)
		}
	}
}
