package synth_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/traces/formats"
	"allocsim/traces/synth"
)

// recording opens a recording of the repository, or of the complete set beside
// it.
func recording(t *testing.T, dir, name string) *traces.Trace {
	t.Helper()
	for _, p := range []string{
		filepath.Join("../../testdata/recordings", name+".pickle.zst"),
		filepath.Join("../../../shared/recordings", dir, name+".pickle.zst"),
	} {
		if _, err := os.Stat(p); err != nil {
			continue
		}
		r, err := formats.Open(context.Background(), p, formats.Options{})
		if err != nil {
			t.Fatal(err)
		}
		tr, err := r.Device(-1)
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	t.Skipf("recording %s is not in this clone", name)
	return nil
}

func load(t testing.TB, name string) synth.Model {
	t.Helper()
	m, err := synth.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func generate(t testing.TB, m synth.Model, o synth.Options) *synth.Result {
	t.Helper()
	r, err := synth.Run(context.Background(), m, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// step is one request, or the sizes of a run of frees in ascending order: which
// of them comes first is a hash order or the order of C++ fields.
type step struct {
	alloc int64
	frees string
}

// normal is a trace as steps. With transient false, blocks that the very next
// event frees (library workspaces) are left out. The frees at the end of the
// process are not counted.
func normal(tr *traces.Trace, transient bool) []step {
	sizes := make([]int64, tr.NumBlocks)
	var out []step
	var burst []int64
	flush := func() {
		if len(burst) > 0 {
			slices.Sort(burst)
			out = append(out, step{frees: fmt.Sprint(burst)})
			burst = nil
		}
	}
	for i, e := range tr.Events {
		switch e.Kind {
		case traces.Alloc:
			sizes[e.ID] = e.Size
			if !transient && i+1 < len(tr.Events) && tr.Events[i+1].Kind == traces.Free && tr.Events[i+1].ID == e.ID {
				sizes[e.ID] = 0
				continue
			}
			flush()
			out = append(out, step{alloc: e.Size})
		case traces.Free:
			if sizes[e.ID] > 0 {
				burst = append(burst, sizes[e.ID])
			}
		}
	}
	return out
}

// TestRecordings holds the engine to real programs, request for request.
func TestRecordings(t *testing.T) {
	bert := func(batch, seq int64) synth.Options {
		return synth.Options{Batch: batch, Seq: seq, Precision: synth.BF16AMP}
	}
	resnet := func(batch int64) synth.Options {
		return synth.Options{Batch: batch, Precision: synth.BF16AMP, Optimizer: synth.SGD}
	}
	for _, c := range []struct {
		dir, name, model string
		o                synth.Options
		transient        bool // compare library workspaces too
	}{
		{"scale", "scale_bert__bs8seq128", "bert-large", bert(8, 128), true},
		{"scale", "scale_bert__bs8seq256", "bert-large", bert(8, 256), true},
		{"scale", "scale_bert__bs8seq512", "bert-large", bert(8, 512), true},
		{"scale", "scale_bert__bs2seq256", "bert-large", bert(2, 256), true},
		{"scale", "scale_bert__bs4seq256", "bert-large", bert(4, 256), true},
		{"scale", "scale_bert__bs16seq256", "bert-large", bert(16, 256), true},
		{"scale", "scale_bert__bs32seq256", "bert-large", bert(32, 256), true},
		{"scale", "scale_resnet50__bs4seq0", "resnet50", resnet(4), false},
		{"scale", "scale_resnet50__bs8seq0", "resnet50", resnet(8), false},
		{"scale", "scale_resnet50__bs16seq0", "resnet50", resnet(16), false},
		{"scale", "scale_resnet50__bs32seq0", "resnet50", resnet(32), false},
		{"scale", "scale_resnet50__bs64seq0", "resnet50", resnet(64), false},
		{"scale", "scale_resnet50__bs128seq0", "resnet50", resnet(128), false},
		{"workloads", "bert_large_varlen__default", "bert-large", synth.Options{
			Batches: []int64{8, 8, 8, 8, 8, 8, 8, 4, 8, 8, 8, 8, 8, 8}, Steps: 14, Precision: synth.BF16AMP, HoldBatch: true,
			Lengths: "list:384,48,512,256,312,200,128,128,256,128,96,96,312,96"}, true},
		{"workloads", "vit_accum__default", "vit-b-16", synth.Options{
			Batches: []int64{48, 48, 30}, Accumulate: 3, Steps: 4, Precision: synth.BF16AMP, HoldBatch: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			real := recording(t, c.dir, c.name)
			made := generate(t, load(t, c.model), c.o).Trace
			want, got := normal(real, c.transient), normal(made, c.transient)
			if len(got) > len(want) {
				t.Fatalf("%d steps made, %d recorded", len(got), len(want))
			}
			// What the program did after its last step is not ours.
			if len(want)-len(got) > 20 {
				t.Fatalf("%d steps made, %d recorded", len(got), len(want))
			}
			differ := 0
			for i := range got[:len(got)-1] {
				if got[i] != want[i] {
					if differ == 0 {
						t.Logf("step %d: made %+v, recorded %+v", i, got[i], want[i])
					}
					differ++
				}
			}
			if differ > 0 {
				t.Errorf("%d of %d steps differ", differ, len(got))
			}
			compare(t, made, real.Recorded.Stats["allocated_bytes.all.peak"], real.Recorded.Stats["reserved_bytes.all.peak"], 0.25, 8.5)
		})
	}
}

// TestRecordedPeaks holds programs that the options describe only in part: a
// ResNet-50 whose loop also evaluates, and a loop that keeps every graph.
func TestRecordedPeaks(t *testing.T) {
	for _, c := range []struct {
		dir, name, model string
		o                synth.Options
		tol              float64 // percent
	}{
		{"workloads", "resnet50_amp__default", "resnet50", synth.Options{Batches: []int64{64, 64, 64, 37, 64, 64, 21}, Steps: 7,
			Precision: synth.FP16AMP, Optimizer: synth.SGD, SkippedSteps: 3, ZeroGradFirst: true, HoldBatch: true}, 0.3},
		{"leak", "leak_outputs__leakpy", "resnet18", synth.Options{Batch: 16, Steps: 12, Optimizer: synth.SGD, Fault: synth.KeepGraph}, 1.2},
	} {
		t.Run(c.name, func(t *testing.T) {
			real := recording(t, c.dir, c.name)
			made := generate(t, load(t, c.model), c.o)
			if e := percent(made.LivePeak, livePeak(real)); e > c.tol || e < -c.tol {
				t.Errorf("live peak off by %+.2f %%", e)
			}
		})
	}
}

func livePeak(tr *traces.Trace) (peak int64) {
	sizes := make([]int64, tr.NumBlocks)
	var live int64
	for _, e := range tr.Events {
		switch e.Kind {
		case traces.Alloc:
			sizes[e.ID] = (e.Size + 511) / 512 * 512
			live += sizes[e.ID]
			peak = max(peak, live)
		case traces.Free:
			live -= sizes[e.ID]
		}
	}
	return peak
}

// compare runs a trace through PyTorch's allocator and compares its peaks in
// percent.
func compare(t *testing.T, tr *traces.Trace, allocated, reserved int64, tolA, tolR float64) (a, r float64) {
	t.Helper()
	spec, err := policies.Parse("torch")
	if err != nil {
		t.Fatal(err)
	}
	res, err := sim.Run(context.Background(), tr, sim.Config{Policy: spec})
	if err != nil {
		t.Fatal(err)
	}
	a = percent(res.Stats.AllocatedBytes[policies.All].Peak, allocated)
	r = percent(res.Stats.ReservedBytes[policies.All].Peak, reserved)
	if a > tolA || a < -tolA {
		t.Errorf("allocated peak off by %+.2f %%, allowed %.2f", a, tolA)
	}
	if r > tolR || r < -tolR {
		t.Errorf("reserved peak off by %+.2f %%, allowed %.2f", r, tolR)
	}
	return a, r
}

func percent(got, want int64) float64 { return (float64(got)/float64(want) - 1) * 100 }
