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

// TestRecordings holds total, used and free bytes against CuPy's own counters
// after every operation. The number of free blocks depends on the order of a
// Python set wherever two free blocks have the same size; cupy000 has no such
// case, so there it must be equal too.
func TestRecordings(t *testing.T) {
	for _, path := range logs(t) {
		l, err := oplog.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := newPool(policies.Env{Device: policytest.NewDevice(0)}, config{})
		if err != nil {
			t.Fatal(err)
		}
		wrong, first, count := replay(t, l, p)
		if wrong > 0 {
			t.Errorf("%s: %d of %d operations differ, first %d", path, wrong, len(l.Ops), first)
		}
		t.Logf("%s: %d operations, %d with another number of free blocks", filepath.Base(path), len(l.Ops), count)
		if filepath.Base(path) == "cupy000.json.zst" && count > 0 {
			t.Errorf("%s: %d samples with another number of free blocks", path, count)
		}
	}
}
