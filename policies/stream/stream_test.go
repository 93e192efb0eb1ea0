package stream

import (
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

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
	for _, options := range []string{"", "threshold=0", "threshold=64MiB,max=150MiB"} {
		t.Run(options, func(t *testing.T) {
			policytest.Run(t, spec(t, options), policytest.Options{Align: 512, MaxSize: 100 << 20, Capacities: []int64{0, 160 << 20, 1 << 30}})
		})
	}
}

func TestTranscripts(t *testing.T) {
	policytest.Transcripts(t, "testdata/transcripts", Registration.Parse)
}

func BenchmarkSteady(b *testing.B) { policytest.Benchmark(b, spec(b, "")) }

// replay returns the number of samples of a log that differ and the first such
// operation.
func replay(t *testing.T, path string, r rules) (operations, wrong, first int) {
	t.Helper()
	l, err := oplog.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	reserved, peak, allocated := l.Column("reserved"), l.Column("reserved_peak"), l.Column("allocated")
	p, err := newPool(policies.Env{Device: policytest.NewDevice(0)}, Config{Threshold: Never}, r)
	if err != nil {
		t.Fatal(err)
	}
	// The recorder made one tensor of one element before it began.
	b, err := p.Malloc(policies.Request{Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Free(b.Handle, false); err != nil {
		t.Fatal(err)
	}
	live := make(map[int]policies.Handle)
	first = -1
	compare := func(i int) {
		s, want := p.Stats(), l.Samples[i+1]
		if s.ReservedBytes[policies.All].Current != want[reserved] || s.ReservedBytes[policies.All].Peak != want[peak] ||
			s.AllocatedBytes[policies.All].Current != want[allocated] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	compare(-1)
	for i, op := range l.Ops {
		switch op.Action {
		case "alloc", "oom":
			b, err := p.Malloc(policies.Request{Size: op.Size})
			if (err == nil) != (op.Action == "alloc") {
				t.Fatalf("%s: operation %d, %s of %d bytes: %v", path, i, op.Action, op.Size, err)
			}
			live[op.ID] = b.Handle
		case "free":
			if err := p.Free(live[op.ID], false); err != nil {
				t.Fatalf("%s: operation %d: %v", path, i, err)
			}
		}
		compare(i)
	}
	return len(l.Ops), wrong, first
}

func logs(t *testing.T) []string {
	paths, err := filepath.Glob("testdata/*.json.zst")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings in testdata: %v", err)
	}
	return paths
}

// TestRecordings holds reserved bytes, their peak and the allocated bytes
// against the driver's own counters after every operation.
func TestRecordings(t *testing.T) {
	for _, path := range logs(t) {
		n, wrong, first := replay(t, path, fitted)
		if wrong > 0 {
			t.Errorf("%s: %d of %d operations differ, first %d", path, wrong, n, first)
		}
		t.Logf("%s: %d operations equal", filepath.Base(path), n-wrong)
	}
}

// TestRecordingsPinRules bends one part of the rule at a time: at least one
// log must notice. (That the highest chunk moves first shows only in a log
// that is not bundled: TestAgainstModel holds that part.)
func TestRecordingsPinRules(t *testing.T) {
	bend := func(f func(*rules)) rules {
		r := fitted
		f(&r)
		return r
	}
	for name, r := range map[string]rules{
		"chunks of 16 MiB":        bend(func(r *rules) { r.shift = 24 }),
		"chunks of 64 MiB":        bend(func(r *rules) { r.shift = 26 }),
		"chunks of 2 MiB":         bend(func(r *rules) { r.shift = 21 }),
		"requests round to 4 KiB": bend(func(r *rules) { r.unit = 4096 }),
		"chunks never move":       bend(func(r *rules) { r.neverMove = true }),
	} {
		caught := 0
		for _, path := range logs(t) {
			if n, wrong, first := replay(t, path, r); wrong > 0 {
				caught++
				t.Logf("%s: %d of %d operations of %s differ, first %d", name, wrong, n, filepath.Base(path), first)
			}
		}
		if caught == 0 {
			t.Errorf("no log notices: %s", name)
		}
	}
}

// model is the rule written down as simply as possible: a list of slots and a
// list of blocks, searched from end to end.
type model struct {
	rules
	mapped map[int]bool
	live   []interval
}

type interval struct{ addr, size int64 }

const endless = int64(1) << 45

// free returns the gaps between live blocks in address order.
func (m *model) free() []interval {
	var out []interval
	at := int64(0)
	for _, b := range m.live {
		if b.addr > at {
			out = append(out, interval{at, b.addr - at})
		}
		at = b.addr + b.size
	}
	return append(out, interval{at, endless - at})
}

func (m *model) slots(b interval) (first, last int) {
	return int(b.addr >> m.shift), int((b.addr + b.size - 1) >> m.shift)
}

func (m *model) alloc(size int64) int64 {
	size = (size + m.unit - 1) / m.unit * m.unit
	gaps := m.free()
	best, bestHoled := -1, true
	for i, g := range gaps {
		if g.size < size {
			continue
		}
		holed := i == len(gaps)-1
		if first, last := m.slots(g); !holed {
			for s := first; s <= last; s++ {
				holed = holed || !m.mapped[s]
			}
		}
		if best < 0 || !m.oneStep && bestHoled && !holed || (holed == bestHoled || m.oneStep) && g.size < gaps[best].size {
			best, bestHoled = i, holed
		}
	}
	b := interval{gaps[best].addr, size}
	i, _ := slices.BinarySearchFunc(m.live, b.addr, func(x interval, a int64) int { return int(x.addr - a) })
	m.live = slices.Insert(m.live, i, b)
	first, last := m.slots(b)
	for s := first; s <= last; s++ {
		if m.mapped[s] {
			continue
		}
		from := -1
		for c := range m.mapped {
			inUse := slices.ContainsFunc(m.live, func(x interval) bool {
				f, l := m.slots(x)
				return f <= c && c <= l
			})
			if !inUse && (from < 0 || m.lowestMove == (c < from)) && !m.neverMove {
				from = c
			}
		}
		if from >= 0 {
			delete(m.mapped, from)
		}
		m.mapped[s] = true
	}
	return b.addr
}

func (m *model) release(addr int64) {
	m.live = slices.DeleteFunc(m.live, func(b interval) bool { return b.addr == addr })
}

// TestAgainstModel compares the pool, with all its indices, with the naive
// model: every address and the reserved bytes after every step.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Small chunks and blocks of few sizes make ties and moves frequent.
		r := rules{unit: 512, shift: 12, lowestMove: rapid.Bool().Draw(t, "lowest"), oneStep: rapid.Bool().Draw(t, "one step")}
		p, err := newPool(policies.Env{Device: policytest.NewDevice(0)}, Config{Threshold: Never}, r)
		if err != nil {
			t.Fatal(err)
		}
		m := &model{rules: r, mapped: make(map[int]bool)}
		var live []policies.Block
		for range rapid.SampledFrom([]int{5, 30, 200}).Draw(t, "steps") {
			if n := len(live); n > 0 && rapid.IntRange(0, 9).Draw(t, "free") < 5 {
				i := rapid.IntRange(0, n-1).Draw(t, "which")
				if err := p.Free(live[i].Handle, false); err != nil {
					t.Fatal(err)
				}
				m.release(int64(live[i].Addr - p.base))
				live = slices.Delete(live, i, i+1)
			} else {
				size := rapid.Int64Range(1, 24<<10).Draw(t, "size")
				b, err := p.Malloc(policies.Request{Size: size})
				if err != nil {
					t.Fatal(err)
				}
				live = append(live, b)
				if want := m.alloc(size); int64(b.Addr-p.base) != want {
					t.Fatalf("%d bytes at %d, the model says %d", size, b.Addr-p.base, want)
				}
			}
			if got, want := p.Stats().ReservedBytes[policies.All].Current, int64(len(m.mapped))<<r.shift; got != want {
				t.Fatalf("%d bytes reserved, the model says %d", got, want)
			}
		}
	})
}
