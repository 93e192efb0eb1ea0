package table

import (
	"strings"
	"testing"
)

func TestPrintable(t *testing.T) {
	tab := New("", ">")
	tab.Row("red \x1b[31m\n", "größe\t1")
	if got, want := strings.Join(tab.Lines(nil), ""), "red \\x1b[31m\\n  größe\\t1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
