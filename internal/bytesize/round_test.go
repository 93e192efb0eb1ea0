package bytesize

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRounded: a need printed with FormatUp parses to at least the need, and
// what there is with FormatDown to at most that, each by less than 1 % of the
// unit.
func TestRounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1<<45).Draw(t, "n")
		up, err := Parse(FormatUp(n))
		if err != nil || up < n || up > n+n/50+1 {
			t.Fatalf("FormatUp(%d) = %q, which is %d (%v)", n, FormatUp(n), up, err)
		}
		down, err := Parse(FormatDown(n))
		if err != nil || down > n || down < n-n/50-1 {
			t.Fatalf("FormatDown(%d) = %q, which is %d (%v)", n, FormatDown(n), down, err)
		}
	})
}
