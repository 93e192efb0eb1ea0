package rmm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestTree compares two sets in one table with sorted lists.
func TestTree(t *testing.T) {
	type item struct {
		n    int32
		addr uint64
		size int64
	}
	rapid.Check(t, func(t *rapid.T) {
		tr := tree{nodes: make([]node, 1)}
		var roots [2]int32
		var want [2][]item
		next := int32(1)
		for range rapid.SampledFrom([]int{5, 50, 300}).Draw(t, "steps") {
			s := rapid.IntRange(0, 1).Draw(t, "set")
			size := rapid.Int64Range(1, 20).Draw(t, "size")
			switch k := rapid.IntRange(0, 4).Draw(t, "step"); {
			case k < 2 || len(want[s]) == 0:
				x := item{next, rapid.Uint64Range(0, 1<<40).Draw(t, "addr"), size}
				if slices.ContainsFunc(want[s], func(y item) bool { return y.addr == x.addr }) {
					continue
				}
				next++
				tr.insert(&roots[s], x.n, x.addr, x.size)
				want[s] = append(want[s], x)
				slices.SortFunc(want[s], func(a, b item) int { return int(int64(a.addr - b.addr)) })
			case k == 2:
				i := rapid.IntRange(0, len(want[s])-1).Draw(t, "which")
				tr.remove(&roots[s], want[s][i].n)
				want[s] = slices.Delete(want[s], i, i+1)
			default:
				i := rapid.IntRange(0, len(want[s])-1).Draw(t, "which")
				tr.resize(want[s][i].n, want[s][i].addr, size)
				want[s][i].size = size
			}
			for s := range want {
				largest := int64(0)
				for _, x := range want[s] {
					largest = max(largest, x.size)
				}
				if got := tr.largest(roots[s]); got != largest {
					t.Fatalf("largest is %d, expected %d", got, largest)
				}
				for size := int64(1); size <= 21; size++ {
					first := int32(0)
					if i := slices.IndexFunc(want[s], func(x item) bool { return x.size >= size }); i >= 0 {
						first = want[s][i].n
					}
					if got := tr.first(roots[s], size); got != first {
						t.Fatalf("first of %d bytes is %d, expected %d", size, got, first)
					}
				}
			}
		}
	})
}
