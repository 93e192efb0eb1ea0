package plural

import "testing"

func TestOf(t *testing.T) {
	for n, want := range []string{"0 blocks are retries", "1 block is a retry", "2 blocks are retries"} {
		if got := Of(n, "block") + " " + Are(n) + " " + Noun(n, "a retry", "retries"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
