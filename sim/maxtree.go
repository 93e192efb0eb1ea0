package sim

import "math/bits"

// maxTree holds a number ≥ 0 for each index and finds the last index whose
// number is large enough. Both take time in the logarithm of the length.
type maxTree struct {
	n    int     // indices in use
	node []int64 // complete binary tree: the leaves are the last half, node 1 is the root
}

// push appends a number and returns its index.
func (t *maxTree) push(x int64) int {
	if 2*t.n >= len(t.node) {
		old := t.node[len(t.node)/2:]
		t.node = make([]int64, max(4, 2*len(t.node)))
		leaves := t.node[len(t.node)/2:]
		copy(leaves, old)
		for k := len(t.node)/2 - 1; k > 0; k-- {
			t.node[k] = max(t.node[2*k], t.node[2*k+1])
		}
	}
	t.n++
	t.set(t.n-1, x)
	return t.n - 1
}

// set changes the number of an index.
func (t *maxTree) set(i int, x int64) {
	k := len(t.node)/2 + i
	t.node[k] = x
	for k > 1 {
		k /= 2
		m := max(t.node[2*k], t.node[2*k+1])
		if t.node[k] == m {
			return
		}
		t.node[k] = m
	}
}

// last returns the last index whose number is at least x > 0; -1 if there is
// none.
func (t *maxTree) last(x int64) int {
	if len(t.node) == 0 || t.node[1] < x {
		return -1
	}
	k := 1
	for range bits.Len(uint(len(t.node)/2)) - 1 {
		if k *= 2; t.node[k+1] >= x {
			k++
		}
	}
	return k - len(t.node)/2
}
