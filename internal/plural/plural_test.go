package plural

import "testing"

func TestOf(t *testing.T) {
	for n, want := range []string{"0 blocks are", "1 block is", "2 blocks are"} {
		if got := Of(n, "block") + " " + Are(n); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
