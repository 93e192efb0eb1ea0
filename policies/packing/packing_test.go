package packing

import (
	"context"
	"encoding/csv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"allocsim/policies"
)

// shared reads a file of other people's instances, which are not part of the
// repository.
func shared(t testing.TB, name string) []Buffer {
	f, err := os.Open(filepath.Join("../../../shared/data", name))
	if err != nil {
		t.Skipf("other people's instances are absent: %v", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var bs []Buffer
	for _, row := range rows[1:] {
		num := func(i int) int64 {
			v, err := strconv.ParseInt(row[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		bs = append(bs, Buffer{ID: int64(len(bs)), Lower: num(1), Upper: num(2), Size: num(3)})
	}
	return bs
}

// TestShared prints the table of docs/packing.md for training graphs and
// larger instances.
func TestShared(t *testing.T) {
	for _, name := range []string{"resnet50", "pangu_2.6B", "G_1", "S_1"} {
		bs := shared(t, "packing/"+name+".csv")
		for _, budget := range []int64{-1, 0, 1e9} {
			if budget > 0 && !testing.Verbose() {
				continue
			}
			start := time.Now()
			p, err := Pack(context.Background(), bs, Options{Budget: budget})
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			if err := Verify(bs, p.Offsets, p.Height); err != nil {
				t.Fatal(err)
			}
			if p.Bound != Bound(bs) || float64(p.Height) > 1.05*float64(p.Bound) {
				t.Errorf("%s: height %d is more than 1.05 times the bound %d", name, p.Height, p.Bound)
			}
			t.Logf("%-10s %5d buffers, budget %10d: height %d, bound %d, ratio %.5f, optimal %-5v, %s, %d steps, %.2f s",
				name, len(bs), budget, p.Height, p.Bound, float64(p.Height)/float64(p.Bound), p.Optimal(), p.Heuristic, p.Steps, took.Seconds())
		}
	}
}

// TestMinimalloc prints the table of docs/packing.md for MiniMalloc's
// challenging instances, on one core, and checks that all are solved.
func TestMinimalloc(t *testing.T) {
	for _, l := range "ABCDEFGHIJK" {
		bs := shared(t, "minimalloc/"+string(l)+".1048576.csv")
		const capacity = 1 << 20
		start := time.Now()
		p, err := Pack(context.Background(), bs, Options{Capacity: capacity, Budget: 2e9})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		if err := Verify(bs, p.Offsets, capacity); err != nil {
			t.Error(err)
		}
		t.Logf("%c %d buffers: height %d, bound %d, %s, %s, %d steps, %.2f s", l, len(bs), p.Height, p.Bound, p.Verdict(capacity), p.Heuristic, p.Steps, took.Seconds())
	}
}

// TestMinimallocLeast prints how far each instance can be pushed down without
// a capacity to reach.
func TestMinimallocLeast(t *testing.T) {
	if !testing.Verbose() {
		t.Skip("takes long and only prints a table; use -v")
	}
	for _, l := range "ABCDEFGHIJK" {
		bs := shared(t, "minimalloc/"+string(l)+".1048576.csv")
		p, err := Pack(context.Background(), bs, Options{Budget: 300e6})
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(bs, p.Offsets, p.Height); err != nil {
			t.Error(err)
		}
		t.Logf("%c height %d, proved lower bound %d, most live %d, %s, %d steps", l, p.Height, p.LowerBound, p.Bound, p.Heuristic, p.Steps)
	}
}

// random makes n buffers as a program would: time is the count of calls, most
// buffers are short-lived, some live throughout.
func random(n int, seed uint64) []Buffer {
	rng := rand.New(rand.NewPCG(seed, 1))
	sizes := make([]int64, 64)
	for i := range sizes {
		sizes[i] = (int64(math.Exp(rng.Float64()*12+5)) + 511) / 512 * 512
	}
	bs := make([]Buffer, n)
	for i := range bs {
		life := int64(1 + math.Exp(rng.Float64()*rng.Float64()*math.Log(float64(2*n))))
		size := sizes[rng.IntN(len(sizes))]
		if rng.IntN(4) == 0 {
			size = (rng.Int64N(4<<20)/512 + 1) * 512
		}
		bs[i] = Buffer{ID: int64(i), Lower: int64(2 * i), Upper: int64(2*i) + life, Size: size, Alignment: 512}
	}
	return bs
}

// training makes about n buffers as a training loop would: parameters that
// stay, activations that go in reverse order, temporaries of varying size.
func training(n int) []Buffer {
	rng := rand.New(rand.NewPCG(1, 1))
	var log callLog
	size := func() int64 { return 512 << rng.IntN(16) }
	for range 600 {
		log.malloc(size())
	}
	layers := make([]int64, 1000)
	for i := range layers {
		layers[i] = size()
	}
	for len(log.run.Lifetimes) < n {
		scale := 1 + rng.Int64N(64) // a batch of its own length
		var kept []int
		for _, s := range layers {
			x := log.malloc(s * scale / 32)
			t := log.malloc(s * scale / 64)
			log.free(t)
			kept = append(kept, x)
		}
		for i := len(kept) - 1; i >= 0; i-- {
			g := log.malloc(layers[i] * scale / 32)
			t := log.malloc(layers[i])
			log.free(kept[i])
			log.free(g)
			log.free(t)
		}
	}
	return log.buffers()
}

// BenchmarkPack shows the time for whole programs with the default budget, and
// for the first heuristic alone.
func BenchmarkPack(b *testing.B) {
	for _, c := range []struct {
		name string
		bs   func() []Buffer
	}{
		{"training-100k", func() []Buffer { return training(100_000) }},
		{"training-1M", func() []Buffer { return training(1_000_000) }},
		{"random-100k", func() []Buffer { return random(100_000, 1) }},
	} {
		for _, budget := range []int64{0, -1} {
			name := c.name + "/default"
			if budget < 0 {
				name = c.name + "/first"
			}
			b.Run(name, func(b *testing.B) {
				bs := c.bs()
				for b.Loop() {
					p, err := Pack(context.Background(), bs, Options{Budget: budget})
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(p.Height)/float64(p.Bound), "height/bound")
					b.ReportMetric(float64(p.Steps), "steps")
				}
			})
		}
	}
}

func BenchmarkHeuristics(b *testing.B) {
	bs := random(100_000, 1)
	p := newProblem(bs)
	f := newFitter(p)
	off := make([]int64, p.n)
	for _, h := range heuristics {
		b.Run(h.name, func(b *testing.B) {
			for b.Loop() {
				order := p.order(h.keys...)
				f.ctx, f.steps, f.most = context.Background(), 0, 1<<60
				var height int64
				if h.skyline {
					height, _ = p.lowestFirst(order, 1<<60, off, f)
				} else {
					height, _ = f.place(order, h.rule, 1<<60, off)
				}
				b.ReportMetric(float64(height)/float64(p.bound), "height/bound")
				b.ReportMetric(float64(f.steps), "steps")
			}
		})
	}
}

func BenchmarkBound(b *testing.B) {
	bs := random(1_000_000, 1)
	for b.Loop() {
		Bound(bs)
	}
}

// callLog notes the calls of a program, one a µs.
type callLog struct{ run policies.Future }

// malloc notes a request and returns its index.
func (l *callLog) malloc(size int64) int {
	l.run.Lifetimes = append(l.run.Lifetimes, policies.Lifetime{Size: size, Malloc: l.run.Calls, Free: -1, MallocUS: l.run.Calls})
	l.run.Calls++
	return len(l.run.Lifetimes) - 1
}

// free notes that the bytes of request i can be used again.
func (l *callLog) free(i int) {
	l.run.Lifetimes[i].Free, l.run.Lifetimes[i].FreeUS = l.run.Calls, l.run.Calls
	l.run.Calls++
}

// buffers are those of the calls so far; what was not freed lives to the end.
func (l *callLog) buffers() []Buffer {
	run := policies.Future{Lifetimes: slices.Clone(l.run.Lifetimes), Calls: l.run.Calls}
	for i := range run.Lifetimes {
		if l := &run.Lifetimes[i]; l.Free < 0 {
			l.Free, l.FreeUS = run.Calls, run.Calls
		}
	}
	return Buffers(&run, Granularity)
}
