package synth_test

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"allocsim/traces/synth"
)

// measured is a real run on an H200 (torch 2.11.0+cu130, transformers 5.17,
// torchvision 0.26): what program it was, and its peaks in bytes. docs/synthetic.md
// says how they were taken.
type measured struct {
	Name      string        `json:"name"`
	Round     int           `json:"round"` // 1 to 3, see docs/synthetic.md
	Model     string        `json:"model"`
	Options   synth.Options `json:"options"`
	Live      int64         `json:"live"` // requests rounded to 512
	Allocated int64         `json:"allocated"`
	Reserved  int64         `json:"reserved"`
	Allocs    int           `json:"allocs"`
	// Predicted is the live peak that was written down before the run; 0 when
	// the run came first.
	Predicted int64 `json:"predicted"`
}

func readMeasured(t *testing.T) []measured {
	t.Helper()
	f, err := os.Open("testdata/measured.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var runs []measured
	for s := bufio.NewScanner(f); s.Scan(); {
		var m measured
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, m)
	}
	return runs
}

// TestMeasured holds the generator and PyTorch's allocator together to real
// runs.
func TestMeasured(t *testing.T) {
	var allocated, reserved []float64
	for _, c := range readMeasured(t) {
		t.Run(c.Name, func(t *testing.T) {
			m := load(t, c.Model)
			r := generate(t, m, c.Options)
			if e := percent(r.LivePeak, c.Live); math.Abs(e) > 0.1 {
				t.Errorf("live peak %d, measured %d: %+.3f %%", r.LivePeak, c.Live, e)
			}
			// Requests of transformer training within 1 %; convolutions have
			// workspaces of 272 or 400 bytes that no rule foresees, generate()
			// and fully_shard small tensors that are left out.
			tol := 1.0
			if m.Family == "resnet" || m.Family == "mobilenet-v3" || c.Options.Mode == synth.Infer || c.Options.Zero > 0 || c.Options.UseCache {
				tol = 9
			}
			if e := percent(int64(r.Trace.NumBlocks), int64(c.Allocs)); math.Abs(e) > tol {
				t.Errorf("%d allocations, measured %d: %+.2f %%", r.Trace.NumBlocks, c.Allocs, e)
			}
			a, v := compare(t, r.Trace, c.Allocated, c.Reserved, 0.65, 8.5)
			allocated = append(allocated, math.Abs(a))
			reserved = append(reserved, math.Abs(v))
		})
	}
	slices.Sort(allocated)
	slices.Sort(reserved)
	if m := allocated[len(allocated)/2]; m > 0.01 {
		t.Errorf("median error of allocated peaks %.3f %%", m)
	}
	if m := reserved[len(reserved)/2]; m > 0.1 {
		t.Errorf("median error of reserved peaks %.3f %%", m)
	}
}
