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
	for _, name := range []string{"packing/resnet50.csv", "packing/pangu_2.6B.csv", "packing/G_1.csv", "packing/S_1.csv"} {
		bs := shared(t, name)
		for _, budget := range []int64{0, 1e9} {
			start := time.Now()
			p, err := Pack(context.Background(), bs, Options{Budget: budget})
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			if err := Verify(bs, p.Offsets, p.Height); err != nil {
				t.Fatal(err)
			}
			t.Logf("%-22s %6d buffers, bound %d, height %d (%.5f), optimal %v, %s, %d steps, %v", name, len(bs), p.Bound, p.Height, float64(p.Height)/float64(p.Bound), p.Optimal(), p.Heuristic, p.Steps, took)
		}
	}
}

func TestMinimalloc(t *testing.T) {
	for _, l := range "ABCDEFGHIJK" {
		bs := shared(t, "minimalloc/"+string(l)+".1048576.csv")
		start := time.Now()
		p, err := Pack(context.Background(), bs, Options{Capacity: 1048576, Budget: 5e9})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		if err := Verify(bs, p.Offsets, p.Height); err != nil {
			t.Fatal(err)
		}
		t.Logf("%c %3d buffers, bound %7d, height %7d, fits %v, %s, %d steps, %v", l, len(bs), p.Bound, p.Height, p.Verdict(1048576), p.Heuristic, p.Steps, took)
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
