package heap

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"allocsim/policies"
)

// TestSizes compares two sets of one heap with sorted lists.
func TestSizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Heap
		h.Init(nil, 0, nil)
		sets := [2]*Sizes{NewSizes(&h), NewSizes(&h)}
		var want [2][]int32
		order := func(a, b int32) int {
			x, y := &h.Blocks[a], &h.Blocks[b]
			return cmp.Or(cmp.Compare(x.Size, y.Size), cmp.Compare(x.Addr, y.Addr))
		}
		sizes := rapid.OneOf(rapid.Int64Range(1, 64), rapid.Int64Range(1, 1<<20), rapid.SampledFrom([]int64{1, 7, 8, 9, 1 << 30, 1 << 42}))
		addr := uint64(0)
		for range rapid.SampledFrom([]int{5, 50, 300}).Draw(t, "steps") {
			i := rapid.IntRange(0, 1).Draw(t, "set")
			if len(want[i]) == 0 || rapid.IntRange(0, 2).Draw(t, "step") > 0 {
				b := h.NewBlock()
				// Addresses in no particular order, all different.
				addr += 0x9e3779b97f4a7c15
				h.Blocks[b].Addr, h.Blocks[b].Size, h.Blocks[b].State = addr, 256*sizes.Draw(t, "size"), Free
				sets[i].Insert(b)
				want[i] = append(want[i], b)
				slices.SortFunc(want[i], order)
			} else {
				k := rapid.IntRange(0, len(want[i])-1).Draw(t, "which")
				sets[i].Remove(want[i][k])
				h.Drop(want[i][k])
				want[i] = slices.Delete(want[i], k, k+1)
			}
			for i, s := range sets {
				if s.Len() != len(want[i]) || !slices.Equal(s.Append(nil), want[i]) {
					t.Fatalf("the set holds %v, expected %v", s.Append(nil), want[i])
				}
				largest := int32(0)
				if n := len(want[i]); n > 0 {
					largest = want[i][n-1]
				}
				if got := s.Max(); got != largest {
					t.Fatalf("Max is %d, expected %d", got, largest)
				}
				ask := 256 * sizes.Draw(t, "ask")
				best := int32(0)
				if k := slices.IndexFunc(want[i], func(b int32) bool { return h.Blocks[b].Size >= ask }); k >= 0 {
					best = want[i][k]
				}
				if got := s.Find(ask); got != best {
					t.Fatalf("Find(%d) is %d, expected %d", ask, got, best)
				}
			}
		}
	})
}

// TestBins checks that bins are in the order of sizes and in range.
func TestBins(t *testing.T) {
	last := uint(0)
	for shift := 8; shift < 59; shift++ {
		for i := int64(8); i < 16; i++ {
			size := i << shift >> 3
			if b := bin(size); b < last || b >= numBins {
				t.Fatalf("bin of %d is %d after %d", size, b, last)
			} else {
				last = b
			}
		}
	}
	if b := bin(math.MaxInt64); b >= numBins {
		t.Errorf("bin of the largest size is %d of %d", b, numBins)
	}
}

// TestStaleHandles checks that a handle dies with its block, even when the
// table entry is used again.
func TestStaleHandles(t *testing.T) {
	var h Heap
	h.Init(nil, 0, func(b int32) error { h.Drop(b); return nil })
	var old []policies.Handle
	for range 5 {
		b := h.NewBlock()
		if b != 1 {
			t.Fatalf("block %d, the entry was not used again", b)
		}
		h.Blocks[b].Size, h.Blocks[b].State = 256, Free
		x := h.Take(b, policies.Request{Size: 1})
		for _, o := range old {
			if err := h.Free(o, false); err == nil {
				t.Fatalf("stale handle %#x was accepted while %#x lives", uint64(o), uint64(x.Handle))
			}
			if err := h.FreeCompleted(o); err != nil {
				t.Fatalf("FreeCompleted of a completed free: %v", err)
			}
		}
		if err := h.FreeCompleted(x.Handle); err == nil {
			t.Fatal("FreeCompleted of a live block was accepted")
		}
		if err := h.Free(x.Handle, false); err != nil {
			t.Fatal(err)
		}
		old = append(old, x.Handle)
	}
}
