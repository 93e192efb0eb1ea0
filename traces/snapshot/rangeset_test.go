package snapshot

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestRangeSet compares the set with a plain sorted slice.
func TestRangeSet(t *testing.T) {
	type item struct {
		addr, end uint64
		val       uint32
	}
	// Many steps from one number each: drawing all of them would be slow.
	rapid.Check(t, func(t *rapid.T) {
		s := newRangeSet()
		vacate := rapid.Bool().Draw(t, "vacate")
		var naive []item
		base := rapid.SampledFrom([]uint64{0, 1<<63 - 20_000}).Draw(t, "base")
		span := rapid.SampledFrom([]uint64{200, 5000, 15_000}).Draw(t, "span")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for step := range rapid.SampledFrom([]int{30, 4000}).Draw(t, "steps") {
			addr := base + r.Uint64N(span)
			// The set grows and shrinks by turns.
			if len(naive) > 0 && r.IntN(16) < 1+step/500%2*14 {
				addr = naive[r.IntN(len(naive))].addr
			}
			end := addr + 1 + r.Uint64N(12)
			if r.IntN(8) == 0 {
				end += r.Uint64N(1000)
			}
			if _, ok := s.exact(noAddr); ok {
				t.Fatal("a range begins where none can")
			}
			i, exact := slices.BinarySearchFunc(naive, addr, func(x item, a uint64) int { return int(int64(x.addr - a)) })
			hit := slices.IndexFunc(naive, func(x item) bool { return x.addr < end && x.end > addr })

			p, ok := s.exact(addr)
			if ok != exact {
				t.Fatalf("exact(%d) = %v, want %v", addr, ok, exact)
			}
			if ok {
				if a, e, v := s.get(p); (item{a, e, v}) != naive[i] {
					t.Fatalf("exact(%d) = %v, want %v", addr, item{a, e, v}, naive[i])
				}
			}
			below := i - 1
			if exact {
				below = i
			}
			if f := s.find(addr); !vacate && s.valid(f) != (below >= 0) {
				t.Fatalf("find(%d) is valid: %v, want %v", addr, s.valid(f), below >= 0)
			} else if !vacate && below >= 0 {
				if a, e, v := s.get(f); (item{a, e, v}) != naive[below] {
					t.Fatalf("find(%d) = %v, want %v", addr, item{a, e, v}, naive[below])
				}
			}
			// Not always: it removes the vacant places that insert would meet.
			if r.IntN(2) == 0 {
				// insert is next
			} else if q, over := s.overlap(addr, end); over != (hit >= 0) {
				t.Fatalf("overlap(%d, %d) = %v, want %v", addr, end, over, hit >= 0)
			} else if over {
				if a, e, v := s.get(q); (item{a, e, v}) != naive[hit] {
					t.Fatalf("overlap(%d, %d) = %v, want %v", addr, end, item{a, e, v}, naive[hit])
				}
			}
			switch {
			case exact && r.IntN(10) > 0:
				p, _ = s.exact(addr)
				if vacate {
					s.vacate(p)
				} else {
					s.remove(p)
				}
				naive = slices.Delete(naive, i, i+1)
			default:
				val := uint32(len(naive))
				if _, ok := s.insert(addr, end, val); ok != (hit < 0) {
					t.Fatalf("insert(%d, %d) = %v, want %v", addr, end, ok, hit < 0)
				} else if ok {
					naive = slices.Insert(naive, i, item{addr, end, val})
				}
			}
		}
		var got []item
		s.each(func(addr, end uint64, val uint32) { got = append(got, item{addr, end, val}) })
		if !slices.Equal(got, naive) || s.len() != len(naive) {
			t.Fatalf("got %v\nwant %v", got, naive)
		}
	})
}

// TestVacant: the places that vacated ranges leave are bounded by the ranges.
func TestVacant(t *testing.T) {
	s := newRangeSet()
	for i := range uint64(100_000) {
		p, ok := s.insert(i*10, i*10+10, 0)
		if !ok {
			t.Fatalf("range %d is refused", i)
		}
		if i%100 != 0 {
			s.vacate(p)
		}
	}
	if s.len() != 1000 || s.vacant > 2024 || len(s.chunks) > 200 {
		t.Errorf("%d ranges, %d vacant places, %d chunks", s.len(), s.vacant, len(s.chunks))
	}
	if p, hit := s.overlap(5, 99_990); hit {
		if a, _, _ := s.get(p); a != 0 {
			t.Errorf("the first range is at %d", a)
		}
	} else {
		t.Error("no range is found")
	}
	if p, hit := s.overlap(1_000, 99_990); !hit {
		t.Error("no range is found")
	} else if a, _, _ := s.get(p); a != 1_000 {
		t.Errorf("a range is at %d", a)
	}
	if _, hit := s.overlap(99_001*10, 99_100*10); hit {
		t.Error("a range is found where all were vacated")
	}
}
