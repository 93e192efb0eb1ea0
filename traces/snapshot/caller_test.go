package snapshot

import (
	"context"
	"os"
	"testing"

	"allocsim/traces"
)

// TestCallers reads a training loop that was recorded with Python frames and
// calls empty_cache after each phase: every release names it.
func TestCallers(t *testing.T) {
	f, err := os.Open("testdata/empty_frames.pickle")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rec, err := Read(context.Background(), f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr := rec.Devices[0]
	by := map[traces.Caller]int{}
	for _, d := range tr.Recorded.Driver {
		if d.Action == traces.SegmentFree {
			by[d.Caller]++
		} else if d.Caller != traces.CallerUnknown {
			t.Errorf("%v has a caller", d)
		}
	}
	if by[traces.CallerEmptyCache] != 84 || len(by) != 1 {
		t.Errorf("callers %v, want empty_cache for all 84 releases", by)
	}
	// Entries have compile_context (2.8) and user_metadata (2.10), settings
	// graph_capture_record_stream_reuse (2.9); pool_id (2.12) is missing.
	if m := tr.Meta; m.TorchSince != "2.10" || m.TorchBefore != "2.12" {
		t.Errorf("PyTorch from %q to before %q, want 2.10 to before 2.12", m.TorchSince, m.TorchBefore)
	}
}
