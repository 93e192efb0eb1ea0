package packing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// small draws an instance that brute force can solve.
func small(t *rapid.T, gaps bool) []Buffer {
	n := rapid.IntRange(1, 6).Draw(t, "n")
	bs := make([]Buffer, n)
	for i := range bs {
		lower := rapid.Int64Range(0, 8).Draw(t, "lower")
		bs[i] = Buffer{
			ID: int64(i), Lower: lower, Upper: lower + rapid.Int64Range(1, 6).Draw(t, "life"),
			Size:      rapid.Int64Range(1, 5).Draw(t, "size"),
			Alignment: rapid.SampledFrom([]int64{0, 1, 1, 1, 2, 3}).Draw(t, "alignment"),
		}
		if b := &bs[i]; gaps && b.Upper-b.Lower > 1 && rapid.Bool().Draw(t, "gap") {
			from := rapid.Int64Range(b.Lower, b.Upper-1).Draw(t, "from")
			to := rapid.Int64Range(from+1, b.Upper).Draw(t, "to")
			w := rapid.Int64Range(0, b.Size).Draw(t, "window")
			b.Gaps = []Gap{{from, to, w, rapid.Int64Range(w, b.Size).Draw(t, "window end")}}
		}
	}
	return bs
}

// naive is the least height, by trying every offset of every buffer.
func naive(bs []Buffer) int64 {
	var sum int64
	for _, b := range bs {
		sum += b.Size + max(b.Alignment, 1)
	}
	offsets := make([]int64, len(bs))
	for capacity := Bound(bs); ; capacity++ {
		var try func(i int) bool
		try = func(i int) bool {
			if i == len(bs) {
				return true
			}
			for o := int64(0); o+bs[i].Size <= capacity; o += max(bs[i].Alignment, 1) {
				offsets[i] = o
				if Verify(bs[:i+1], offsets[:i+1], capacity) == nil && try(i+1) {
					return true
				}
			}
			return false
		}
		if try(0) {
			return capacity
		}
		if capacity > sum {
			panic("no placement")
		}
	}
}

// TestExactAgainstBruteForce holds the exact search to the least height: it
// must find it and prove that one less is impossible, with any taste.
func TestExactAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bs := small(t, false)
		want := naive(bs)
		r := &run{opt: Options{Seed: rapid.Uint64().Draw(t, "seed")}, p: newProblem(bs)}
		s := newSearch(r.p)
		for i := range 5 {
			name, taste := r.taste(r.p, i)
			if got := s.run(context.Background(), want, taste, 1<<60); got != found {
				t.Fatalf("%s: search at the least height %d: outcome %d", name, want, got)
			}
			if err := Verify(bs, s.offset, want); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := s.run(context.Background(), want-1, taste, 1<<60); got != impossible {
				t.Fatalf("%s: search at %d, one less than the least height: outcome %d", name, want-1, got)
			}
		}
		p, err := Pack(context.Background(), bs, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Height != want || !p.Optimal() {
			t.Fatalf("Pack found height %d, optimal %v; the least is %d", p.Height, p.Optimal(), want)
		}
		if p, err = Pack(context.Background(), bs, Options{Capacity: want - 1}); want > 1 && (err != nil || p.Verdict(want-1) != DoesNotFit) {
			t.Fatalf("in %d bytes: verdict %v, error %v", want-1, p.Verdict(want-1), err)
		}
	})
}

// tight draws a program that fills capacity bytes exactly at every moment, as
// such programs are the hardest to place. About one in 600 does not fit.
func tight(rng *rand.Rand) (bs []Buffer, capacity int64) {
	capacity = 4 + rng.Int64N(8)
	var live []int
	for now := range 3 + rng.Int64N(10) {
		room := capacity
		keep := live[:0]
		for _, i := range live {
			if rng.IntN(2) == 0 {
				bs[i].Upper = now
			} else {
				keep = append(keep, i)
				room -= bs[i].Size
			}
		}
		live = keep
		for room > 0 {
			size := 1 + rng.Int64N(min(room, 5))
			live = append(live, len(bs))
			bs = append(bs, Buffer{ID: int64(len(bs)), Lower: now, Upper: 100, Size: size})
			room -= size
		}
	}
	return bs, capacity
}

// inTime reports whether the buffers, ordered by start and without alignments
// or gaps, fit: it allocates them in that order in every possible way.
func inTime(bs []Buffer, capacity int64) bool {
	offsets := make([]int64, len(bs))
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(bs) {
			return true
		}
	place:
		for o := int64(0); o+bs[i].Size <= capacity; o++ {
			for j := range i {
				if bs[j].Upper > bs[i].Lower && o < offsets[j]+bs[j].Size && offsets[j] < o+bs[i].Size {
					continue place
				}
			}
			offsets[i] = o
			if try(i + 1) {
				return true
			}
		}
		return false
	}
	return try(0)
}

// TestExactTight holds the search to the truth where the bound sometimes cannot
// be reached.
func TestExactTight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	count := map[outcome]int{}
	for count[found]+count[impossible] < 15_000 {
		bs, capacity := tight(rng)
		if len(bs) > 20 {
			continue // too many to try all
		}
		want := impossible
		if inTime(bs, capacity) {
			want = found
		}
		count[want]++
		r := &run{p: newProblem(bs), opt: Options{Seed: rng.Uint64()}}
		s := newSearch(r.p)
		for i := range len(tastes) + 1 {
			name, taste := r.taste(r.p, i)
			got := s.run(context.Background(), capacity, taste, 1<<60)
			if got != want {
				t.Fatalf("%s: outcome %d in %d bytes, want %d: %+v", name, got, capacity, want, bs)
			}
			if got == found {
				if err := Verify(bs, s.offset, capacity); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
	}
	t.Logf("%d fit in their bound, %d do not", count[found], count[impossible])
	if count[impossible] < 10 {
		t.Error("too few that do not fit: the test shows little")
	}
}

// cut draws buffers that fill a rectangle of time and bytes when placed right.
func cut(rng *rand.Rand, n int, moments, capacity int64) []Buffer {
	bs := []Buffer{{Lower: 0, Upper: moments, Size: capacity}}
	for len(bs) < n {
		i := rng.IntN(len(bs))
		b := bs[i]
		if rng.IntN(2) == 0 {
			if b.Size < 2 {
				continue
			}
			at := 1 + rng.Int64N(b.Size-1)
			bs[i].Size = at
			b.Size -= at
		} else {
			if b.Upper-b.Lower < 2 {
				continue
			}
			at := b.Lower + 1 + rng.Int64N(b.Upper-b.Lower-1)
			bs[i].Upper = at
			b.Lower = at
		}
		bs = append(bs, b)
	}
	for i := range bs {
		bs[i].ID = int64(i)
	}
	return bs
}

// TestExactKnown: the search never claims to rule out a placement that is
// known to exist, on instances on which it has to turn back a lot.
func TestExactKnown(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	count := map[outcome]int{}
	var nodes int64
	for round := range 600 {
		capacity := 40 + rng.Int64N(200)
		bs := cut(rng, 30+rng.IntN(40), 12+rng.Int64N(20), capacity)
		if round%2 == 0 {
			// Leave some room, so that one set of buffers can be placed at
			// different heights.
			for range rng.IntN(6) {
				i := rng.IntN(len(bs))
				bs = append(bs[:i], bs[i+1:]...)
			}
			for range 10 {
				b := &bs[rng.IntN(len(bs))]
				b.Size = max(b.Size-rng.Int64N(3), 1)
			}
		}
		r := &run{p: newProblem(bs), opt: Options{Seed: rng.Uint64()}}
		s := newSearch(r.p)
		for i := range len(tastes) + 2 {
			name, taste := r.taste(r.p, i)
			got := s.run(context.Background(), capacity, taste, 500_000)
			if got == impossible {
				t.Fatalf("%s rules out the %d bytes from which %+v were cut", name, capacity, bs)
			}
			if got == found {
				if err := Verify(bs, s.offset, capacity); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			count[got]++
			nodes += s.nodes
		}
	}
	t.Logf("%d found, %d given up, %d nodes", count[found], count[outOfSteps], nodes)
}

// TestStateHash: the memory of failed states tells apart everything that a
// state consists of, and does not depend on the order of buffers.
func TestStateHash(t *testing.T) {
	seen := map[hash]string{}
	for b := range int32(64) {
		for low := range int64(64) {
			for _, passed := range []bool{false, true} {
				var h hash
				h.add(b, low*1024, passed)
				what := fmt.Sprint(b, low, passed)
				if other, ok := seen[h]; ok {
					t.Fatalf("%s and %s have the same hash", what, other)
				}
				seen[h] = what
			}
		}
	}
	var x, y, z hash
	x.add(1, 2, false)
	x.add(2, 1, true)
	y.add(2, 1, true)
	y.add(1, 2, false)
	z.add(1, 1, true)
	z.add(2, 2, false)
	if x != y || x == z {
		t.Error("not a hash of the set")
	}
}
