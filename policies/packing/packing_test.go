package packing

import (
	"context"
	"encoding/csv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
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

func TestShared(t *testing.T) {
	for _, name := range []string{"packing/resnet50.csv", "packing/pangu_2.6B.csv", "packing/G_1.csv", "packing/S_1.csv", "minimalloc/A.1048576.csv", "minimalloc/K.1048576.csv"} {
		bs := shared(t, name)
		p := newProblem(bs)
		f := newFitter(p)
		off := make([]int64, p.n)
		for _, h := range heuristics {
			start := time.Now()
			order := p.order(h.keys...)
			so := time.Since(start)
			f.steps, f.most = 0, 1<<60
			var height int64
			if h.skyline {
				height, _ = p.lowestFirst(order, 1<<60, off, f)
			} else {
				height, _ = f.place(order, h.rule, 1<<60, off)
			}
			d := time.Since(start)
			if err := Verify(bs, off, height); err != nil {
				t.Fatal(h.name, err)
			}
			t.Logf("%-25s %-28s %.4f %8v (sort %v) steps %d (%.1f ns)", name, h.name, float64(height)/float64(p.bound), d, so, f.steps, float64(d)/float64(f.steps))
		}
		start := time.Now()
		pl, err := Pack(context.Background(), bs, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(name, pl.Heuristic, float64(pl.Height)/float64(pl.Bound), pl.Steps, time.Since(start), Bound(bs) == p.bound)
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

func BenchmarkPack100k(b *testing.B) {
	bs := random(100_000, 1)
	for b.Loop() {
		p, err := Pack(context.Background(), bs, Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(p.Height)/float64(p.Bound), "height/bound")
		b.ReportMetric(float64(p.Steps), "steps")
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
				f.steps, f.most = 0, 1<<60
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

func BenchmarkPack1M(b *testing.B) {
	bs := random(1_000_000, 1)
	for b.Loop() {
		p, err := Pack(context.Background(), bs, Options{Budget: -1})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(p.Height)/float64(p.Bound), "height/bound")
		b.ReportMetric(float64(p.Steps), "steps")
	}
}

func BenchmarkBound(b *testing.B) {
	bs := random(1_000_000, 1)
	for b.Loop() {
		Bound(bs)
	}
}
