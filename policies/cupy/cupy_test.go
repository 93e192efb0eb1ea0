package cupy

import (
	"path/filepath"
	"testing"

	"allocsim/policies"
	"allocsim/policies/internal/oplog"
	"allocsim/policies/policytest"
)

func spec(tb testing.TB, options string) *policies.Spec {
	s, err := Registration.Parse(options)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	for _, options := range []string{"", "limit=64MiB,retry-at-limit=true"} {
		t.Run(options, func(t *testing.T) { policytest.Run(t, spec(t, options), policytest.Options{Align: 512}) })
	}
}

func BenchmarkSteady(b *testing.B) { policytest.Benchmark(b, spec(b, "")) }

// replay runs a log and returns the number of samples whose total, used and
// free bytes differ from CuPy's, the first such operation and the number of
// samples with another number of free blocks.
func replay(t *testing.T, l *oplog.Log, p *pool) (wrong, first, wrongCount int) {
	t.Helper()
	total, used, free, count := l.Column("total"), l.Column("used"), l.Column("free"), l.Column("n_free_blocks")
	live := make(map[int]policies.Handle)
	first = -1
	for i, op := range l.Ops {
		switch op.Action {
		case "alloc":
			b, err := p.Malloc(policies.Request{Size: op.Size})
			if err != nil {
				t.Fatalf("operation %d: %v", i, err)
			}
			live[op.ID] = b.Handle
		case "free":
			if err := p.Free(live[op.ID], false); err != nil {
				t.Fatalf("operation %d: %v", i, err)
			}
		case "oom":
			if b, err := p.Malloc(policies.Request{Size: op.Size}); err == nil {
				t.Fatalf("operation %d: %d bytes at %#x where CuPy ran out of memory", i, op.Size, b.Addr)
			}
		}
		want := l.Samples[i+1]
		got := p.NativeStats()
		if got["total_bytes"] != want[total] || got["used_bytes"] != want[used] || got["free_bytes"] != want[free] {
			if wrong++; first < 0 {
				first = i
			}
		}
		if got["n_free_blocks"] != want[count] {
			wrongCount++
		}
	}
	return wrong, first, wrongCount
}

func logs(t *testing.T) []string {
	paths, err := filepath.Glob("testdata/*.json.zst")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings in testdata: %v", err)
	}
	return paths
}

// run replays a log under the given rules.
func run(t *testing.T, path string, r rules) (operations, wrong, first, wrongCount int) {
	t.Helper()
	l, err := oplog.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPool(policies.Env{Device: policytest.NewDevice(0)}, config{}, r)
	if err != nil {
		t.Fatal(err)
	}
	wrong, first, wrongCount = replay(t, l, p)
	return len(l.Ops), wrong, first, wrongCount
}

// TestRecordings holds total, used and free bytes against CuPy's own counters
// after every operation. The number of free blocks depends on the order of a
// Python set wherever two free blocks have the same size; cupy000 has no such
// case, so there it must be equal too.
func TestRecordings(t *testing.T) {
	for _, path := range logs(t) {
		n, wrong, first, count := run(t, path, upstream)
		if wrong > 0 {
			t.Errorf("%s: %d of %d operations differ, first %d", path, wrong, n, first)
		}
		t.Logf("%s: %d operations equal, %d with another number of free blocks", filepath.Base(path), n-wrong, count)
		if filepath.Base(path) == "cupy000.json.zst" && count > 0 {
			t.Errorf("%s: %d samples with another number of free blocks", path, count)
		}
	}
}

// TestRecordingsPinRules bends one rule at a time: at least one log must
// notice.
func TestRecordingsPinRules(t *testing.T) {
	bend := func(f func(*rules)) rules {
		r := upstream
		f(&r)
		return r
	}
	for name, r := range map[string]rules{
		"round to 256 bytes":          bend(func(r *rules) { r.unit = 256 }),
		"round to 1024 bytes":         bend(func(r *rules) { r.unit = 1024 }),
		"no split":                    bend(func(r *rules) { r.split = false }),
		"freed blocks stay apart":     bend(func(r *rules) { r.join = false }),
		"cudaMalloc of a little more": bend(func(r *rules) { r.spare = 512 }),
	} {
		caught := 0
		for _, path := range logs(t) {
			if n, wrong, first, _ := run(t, path, r); wrong > 0 {
				caught++
				t.Logf("%s: %d of %d operations of %s differ, first %d", name, wrong, n, filepath.Base(path), first)
			}
		}
		if caught == 0 {
			t.Errorf("no log notices: %s", name)
		}
	}
}

// TestTranscripts pins what no recording shows: streams, limits, a full
// device.
func TestTranscripts(t *testing.T) {
	policytest.Transcripts(t, "testdata/transcripts", Registration.Parse)
}
