package record

import (
	"context"
	"path/filepath"
	"testing"

	_ "allocsim/policies/all"
	"allocsim/sim/recovery"
	"allocsim/traces/formats"
)

// TestExact: what the module recorded on a real GPU, the simulator repeats to
// the address. The runs are testdata/train.py in its default form, with
// expandable segments, under a limit with an OOM at the end, and a program that
// filled the whole card (record_full).
func TestExact(t *testing.T) {
	files, err := filepath.Glob("../../testdata/recordings/record_*.pickle.zst")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			rec, err := formats.Open(context.Background(), f, formats.Options{})
			if err != nil {
				t.Fatal(err)
			}
			tr, err := rec.Device(-1)
			if err != nil {
				t.Fatal(err)
			}
			if !tr.Meta.Sidecar || !tr.Meta.ConfKnown || tr.Meta.DeviceTotal != 150109880320 || tr.Recorded.Stats == nil {
				t.Errorf("sidecar not read in full: %+v", tr.Meta)
			}
			r, err := recovery.Check(context.Background(), tr, recovery.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !r.Exact || r.StatsCompared < 100 {
				t.Errorf("%+v", r)
			}
		})
	}
}
