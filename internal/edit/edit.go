// Package edit measures how far a misspelt word is from the right one.
package edit

// Distance is the number of insertions, deletions, substitutions and swaps of
// neighbouring bytes that turn a into b.
func Distance(a, b string) int {
	var before, prev []int
	cur := make([]int, len(b)+1)
	for j := range cur {
		cur[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, prev, cur = prev, cur, make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
	}
	return cur[len(b)]
}
