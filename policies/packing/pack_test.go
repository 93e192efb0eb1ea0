package packing

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestPackValid: whatever the buffers, gaps and alignments included, the
// placement is valid, no lower than what is proved, and the same with any
// number of workers.
func TestPackValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var bs []Buffer
		for range rapid.IntRange(0, 6).Draw(t, "groups") {
			shift := rapid.Int64Range(-30, 30).Draw(t, "shift")
			for _, b := range small(t, true) {
				b.ID = int64(len(bs))
				b.Lower += shift
				b.Upper += shift
				b.Gaps = slices.Clone(b.Gaps)
				for i := range b.Gaps {
					b.Gaps[i].Lower += shift
					b.Gaps[i].Upper += shift
				}
				bs = append(bs, b)
			}
		}
		opt := Options{
			Budget:   rapid.SampledFrom([]int64{-1, 1, 3000, 100_000, 400_000}).Draw(t, "budget"),
			Capacity: rapid.SampledFrom([]int64{0, 0, 5, 12, 20}).Draw(t, "capacity"),
			Seed:     rapid.Uint64().Draw(t, "seed"),
		}
		p, err := Pack(context.Background(), bs, opt)
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(bs, p.Offsets, 0); err != nil {
			t.Fatal(err)
		}
		var height int64
		for i, b := range bs {
			height = max(height, p.Offsets[i]+b.Size)
		}
		if height != p.Height || p.LowerBound < p.Bound || p.Height < p.LowerBound || p.Bound < Bound(bs) {
			t.Fatalf("%+v, real height %d, bound %d", p, height, Bound(bs))
		}
		opt.Workers = 3
		q, err := Pack(context.Background(), bs, opt)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(p, q) {
			t.Fatalf("one worker: %+v\nthree:      %+v", p, q)
		}
	})
}

// TestPackGapsAgainstBruteForce: with gaps nothing but the bound is proved, and
// no placement may claim to beat the least height.
func TestPackGapsAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bs := small(t, true)
		want := naive(bs)
		p, err := Pack(context.Background(), bs, Options{Budget: 200_000})
		if err != nil {
			t.Fatal(err)
		}
		if p.Height < want || p.LowerBound > want {
			t.Fatalf("height %d, lower bound %d, the least is %d; %+v in %+v", p.Height, p.LowerBound, want, p, bs)
		}
	})
}

// TestBound compares with counting at every moment.
func TestBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bs := small(t, true)
		var most int64
		for now := int64(0); now < 20; now++ {
			var live int64
			for i := range bs {
				bs[i].spans(func(lower, upper, w0, w1 int64) {
					if lower <= now && now < upper {
						live += w1 - w0
					}
				})
			}
			most = max(most, live)
		}
		if got := Bound(bs); got != most {
			t.Fatalf("%d, want %d", got, most)
		}
		p := newProblem(bs)
		if got := slices.Max(append([]int64{0}, p.live...)); got != most {
			t.Fatalf("the fullest section has %d bytes, want %d", got, most)
		}
	})
}

// TestFitAgainstNaive holds first fit and best fit to their definitions, by
// trying every offset.
func TestFitAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bs := append(small(t, true), small(t, true)...)
		p := newProblem(bs)
		f := newFitter(p)
		f.ctx, f.most = context.Background(), math.MaxInt64
		order := rapid.Permutation(p.order(byLower)).Draw(t, "order")
		rule := rapid.SampledFrom([]fit{firstFit, bestFit}).Draw(t, "rule")
		got := make([]int64, p.n)
		if _, ok := f.place(order, rule, math.MaxInt64, got); !ok {
			t.Fatal("not placed")
		}
		var placed []Buffer
		var offsets []int64
		for _, b := range order {
			placed = append(placed, bs[b])
			free := func(o int64) bool { return Verify(placed, append(offsets, o), 0) == nil }
			want, least := int64(-1), int64(math.MaxInt64)
			for o := int64(0); o < 200; o++ {
				if bs[b].Alignment > 1 && o%bs[b].Alignment != 0 || !free(o) {
					continue
				}
				if rule == firstFit {
					want = o
					break
				}
				// How far it could be raised, in bytes, alignment aside.
				raised := bs[b]
				raised.Alignment = 1
				placed[len(placed)-1] = raised
				slack := int64(0)
				for slack < 300 && free(o+slack+1) {
					slack++
				}
				placed[len(placed)-1] = bs[b]
				if want < 0 || slack < least {
					want, least = o, slack
				}
				if slack >= 300 {
					break
				}
				o += slack // the rest of this free range
			}
			if got[b] != want {
				t.Fatalf("buffer %d is at %d, want %d, in %+v, order %v, offsets %v", b, got[b], want, bs, order, got)
			}
			offsets = append(offsets, want)
		}
	})
}

// TestVerify: each kind of fault is found.
func TestVerify(t *testing.T) {
	bs := []Buffer{
		{ID: 1, Lower: 0, Upper: 4, Size: 10},
		{ID: 2, Lower: 4, Upper: 8, Size: 10, Alignment: 4},
		{ID: 3, Lower: 3, Upper: 5, Size: 6, Gaps: []Gap{{3, 4, 0, 2}}},
	}
	for _, c := range []struct {
		offsets  []int64
		capacity int64
		want     string
	}{
		{[]int64{0, 0, 10}, 16, ""},
		{[]int64{0, 12, 5}, 0, "buffers 1 and 3 overlap: bytes 0 to 10 and 5 to 7, both live at time 3"},
		{[]int64{0, 8, 10}, 0, "buffers 2 and 3 overlap"},
		{[]int64{2, 0, 12}, 17, "buffer 3 of 6 bytes at offset 12 ends above the capacity of 17 bytes"},
		{[]int64{0, 2, 12}, 0, "buffer 2 at offset 2 is not aligned to 4"},
		{[]int64{-1, 0, 10}, 0, "negative"},
		{[]int64{0, 0}, 0, "2 offsets for 3 buffers"},
		{[]int64{math.MaxInt64 - 5, 0, 10}, 0, "ends above"},
	} {
		err := Verify(bs, c.offsets, c.capacity)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v in %d: %v, want %q", c.offsets, c.capacity, err, c.want)
		}
	}
}

// TestVerifyAgainstPairs compares with looking at every pair.
func TestVerifyAgainstPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bs := small(t, true)
		offsets := make([]int64, len(bs))
		for i := range offsets {
			offsets[i] = rapid.Int64Range(0, 12).Draw(t, "offset") * max(bs[i].Alignment, 1)
		}
		good := true
		for i := range bs {
			for j := range i {
				bs[i].spans(func(l1, u1, a1, z1 int64) {
					bs[j].spans(func(l2, u2, a2, z2 int64) {
						if max(l1, l2) < min(u1, u2) && max(offsets[i]+a1, offsets[j]+a2) < min(offsets[i]+z1, offsets[j]+z2) {
							good = false
						}
					})
				})
			}
		}
		if err := Verify(bs, offsets, 0); (err == nil) != good {
			t.Fatalf("%v, want valid %v", err, good)
		}
	})
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		b    Buffer
		want string
	}{
		{Buffer{ID: 7, Lower: 3, Upper: 3, Size: 1}, "buffer 7 lives from 3 to 3"},
		{Buffer{Lower: 0, Upper: 3}, "size 0"},
		{Buffer{Lower: 0, Upper: 3, Size: 1, Alignment: -2}, "alignment -2"},
		{Buffer{Lower: 0, Upper: 3, Size: math.MaxInt64}, "more than 2^60 bytes"},
		{Buffer{Lower: 0, Upper: 9, Size: 5, Gaps: []Gap{{2, 4, 0, 0}, {3, 5, 0, 0}}}, "gap 3 to 5"},
		{Buffer{Lower: 0, Upper: 9, Size: 5, Gaps: []Gap{{2, 4, 0, 6}}}, "window 0 to 6"},
	} {
		if _, err := Pack(context.Background(), []Buffer{c.b}, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.b, err, c.want)
		}
	}
}

// TestCancel: a cancelled context ends the work with its error, and what has
// been found is still valid.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p, err := Pack(ctx, random(20_000, 3), Options{})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	if p.Offsets != nil {
		t.Error("a placement without work")
	}
}

// TestRandomPrograms holds the heuristics to their quality on programs like
// those of GPUs, without other people's data.
func TestRandomPrograms(t *testing.T) {
	for _, n := range []int{1, 10, 300, 5000} {
		bs := random(n, uint64(n))
		p, err := Pack(context.Background(), bs, Options{Budget: 20_000_000})
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(bs, p.Offsets, p.Height); err != nil {
			t.Fatal(err)
		}
		if r := float64(p.Height) / float64(p.Bound); r > 1.05 {
			t.Errorf("%d buffers: %.4f times the bound", n, r)
		} else {
			t.Logf("%d buffers: %.5f times the bound, %s", n, r, p.Heuristic)
		}
	}
}
