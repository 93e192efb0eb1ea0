package snapshot

import (
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
	rapid.Check(t, func(t *rapid.T) {
		s := newRangeSet()
		var naive []item
		base := rapid.SampledFrom([]uint64{0, 1<<63 - 6000}).Draw(t, "base")
		span := rapid.SampledFrom([]uint64{200, 5000}).Draw(t, "span")
		for range rapid.IntRange(0, 600).Draw(t, "steps") {
			addr := base + rapid.Uint64Range(0, span).Draw(t, "addr")
			end := addr + rapid.Uint64Range(1, 12).Draw(t, "len")
			if _, ok := s.exact(noAddr); ok {
				t.Fatal("a range begins where none can")
			}
			i, exact := slices.BinarySearchFunc(naive, addr, func(x item, a uint64) int { return int(int64(x.addr - a)) })
			hit := slices.IndexFunc(naive, func(x item) bool { return x.addr < end && x.end > addr })

			p, ok := s.exact(addr)
			if ok != exact {
				t.Fatalf("exact(%d) = %v, want %v", addr, ok, exact)
			}
			f := s.find(addr)
			below := i - 1
			if exact {
				below = i
			}
			if s.valid(f) != (below >= 0) {
				t.Fatalf("find(%d) is valid: %v, want %v", addr, s.valid(f), below >= 0)
			}
			if below >= 0 {
				if a, e, v := s.get(f); (item{a, e, v}) != naive[below] {
					t.Fatalf("find(%d) = %v, want %v", addr, item{a, e, v}, naive[below])
				}
			}
			if q, over := s.overlap(addr, end); over != (hit >= 0) {
				t.Fatalf("overlap(%d, %d) = %v, want %v", addr, end, over, hit >= 0)
			} else if over {
				if a, e, v := s.get(q); (item{a, e, v}) != naive[hit] {
					t.Fatalf("overlap(%d, %d) = %v, want %v", addr, end, item{a, e, v}, naive[hit])
				}
			}
			switch {
			case exact && rapid.Bool().Draw(t, "remove"):
				s.remove(p)
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
