package bfc

import (
	"path/filepath"
	"strings"
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
	for _, options := range []string{
		"", "preallocate=false", "preallocate=false,gc=true", "limit=64MiB",
		"preallocate=false,fragmentation=0.05,limit=80MiB", "preallocate=false,vmm=true,gc=true",
	} {
		t.Run(options, func(t *testing.T) { policytest.Run(t, spec(t, options)) })
	}
}

func BenchmarkSteady(b *testing.B) { policytest.Benchmark(b, spec(b, "preallocate=false")) }

// lateFrees says which frees of a log were not yet visible in their own sample
// and took effect during a later upload: by log and free operation, the
// operation after which the block is free (spec other-verified, section 1.4).
// It is a property of how the logs were recorded: the transfer thread still
// held the array.
var lateFrees = map[string]map[int]int{
	"bfc002": {389: 390, 401: 402, 407: 408, 410: 412, 430: 432, 451: 452},
	"bfc006": {15: 21},
	"bfc008": {83: 84, 95: 96},
	"bfc009": {47: 48, 523: 525, 526: 528, 646: 650},
}

// result is how far a replay agrees with a log.
type result struct {
	operations, wrong, first int
	counter                  string // the first that differs
}

// replay runs a log under the given rules on a device whose addresses go down
// or up and compares all counters after every operation.
func replay(t *testing.T, path string, r rules, up, marks bool) result {
	t.Helper()
	l, err := oplog.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSuffix(filepath.Base(path), ".json.zst")
	d := policytest.NewDevice(0)
	d.Up = up
	c := config{preallocate: l.Extra["preallocate"] == "true", limit: l.Samples[0][l.Column("bytes_limit")]}
	a, err := newAllocator(policies.Env{Device: d}, c, r)
	if err != nil {
		t.Fatal(err)
	}
	live := make(map[int]policies.Handle)
	late := make(map[int]policies.Handle)
	out := result{operations: len(l.Ops), first: -1}
	for i, op := range l.Ops {
		switch op.Action {
		case "alloc", "oom":
			b, err := a.Malloc(policies.Request{Size: op.Size})
			if (err == nil) != (op.Action == "alloc") && out.first < 0 {
				out.first, out.counter = i, "out of memory"
			}
			live[op.ID] = b.Handle
		case "free":
			h := live[op.ID]
			if h == 0 {
				break // bent rules ran out of memory
			}
			after, isLate := lateFrees[name][i]
			isLate = isLate && marks
			if isLate {
				late[after] = h
			}
			if err := a.Free(h, isLate); err != nil {
				t.Fatalf("%s: operation %d: %v", name, i, err)
			}
		}
		if h := late[i]; h != 0 {
			if err := a.FreeCompleted(h); err != nil {
				t.Fatalf("%s: operation %d: %v", name, i, err)
			}
		}
		got, same := a.NativeStats(), true
		for j, column := range l.Columns {
			if got[column] != l.Samples[i+1][j] {
				same = false
				if out.first < 0 {
					out.first, out.counter = i, column
				}
			}
		}
		if !same {
			out.wrong++
		}
	}
	return out
}

func logs(t *testing.T) []string {
	paths, err := filepath.Glob("testdata/*.json.zst")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings in testdata: %v", err)
	}
	return paths
}

// TestRecordings holds all ten counters against JAX's after every operation.
func TestRecordings(t *testing.T) {
	for _, path := range logs(t) {
		r := replay(t, path, upstream, false, true)
		if r.first >= 0 || r.wrong > 0 {
			t.Errorf("%s: %d of %d operations differ, first %d (%s)", path, r.wrong, r.operations, r.first, r.counter)
		}
		t.Logf("%s: %d operations equal", filepath.Base(path), r.operations-r.wrong)
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
	controls := []struct {
		name  string
		rules rules
		up    bool
		marks bool
	}{
		{"no split of chunks that are 128 MiB too large", bend(func(r *rules) { r.maxSlack = unlimited }), false, true},
		{"always split", bend(func(r *rules) { r.splitRatio = 1 }), false, true},
		{"round to 512 bytes", bend(func(r *rules) { r.unit = 512 }), false, true},
		{"no doubling of a region that was not raised", bend(func(r *rules) { r.doubleAfter = false }), false, true},
		{"a region is just what is asked", bend(func(r *rules) { r.exactRegion = true }), false, true},
		{"later regions lie higher", upstream, true, true},
		{"no free takes effect late", upstream, false, false},
	}
	for _, c := range controls {
		caught := 0
		for _, path := range logs(t) {
			if r := replay(t, path, c.rules, c.up, c.marks); r.first >= 0 {
				caught++
				t.Logf("%s: %s differs from operation %d on (%s)", c.name, filepath.Base(path), r.first, r.counter)
			}
		}
		if caught == 0 {
			t.Errorf("no log notices: %s", c.name)
		}
	}
}

// TestLimit checks JAX's limit against the recorded ones.
func TestLimit(t *testing.T) {
	const total = 150_109_880_320
	for fraction, want := range map[float64]int64{0.01: 1_501_560_832, 0.02: 3_003_121_664, 0.05: 7_505_707_008} {
		if got := jaxLimit(total, fraction); got != want {
			t.Errorf("limit for fraction %g is %d, JAX says %d", fraction, got, want)
		}
	}
}

// TestTranscripts runs the vectors of TensorFlow's tests and of the
// recordings.
func TestTranscripts(t *testing.T) {
	policytest.Transcripts(t, "testdata/transcripts", Registration.Parse)
}
