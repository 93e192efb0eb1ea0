package text_test

import (
	"slices"
	"strings"
	"testing"

	"allocsim/internal/text"
)

func TestWords(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{text.Duration(0.0), "0 µs"}, {text.Duration(999.4), "999 µs"}, {text.Duration(int64(1000)), "1.0 ms"},
		{text.Duration(1_540_000.0), "1.54 s"}, {text.Duration(999_960.0), "1.00 s"}, {text.Duration(999.6), "1.0 ms"},
		{text.Count(0), "0"}, {text.Count(999), "999"}, {text.Count(1000), "1,000"}, {text.Count(int64(-1234567)), "-1,234,567"}, {text.Count(-123), "-123"},
		{text.Percent(0.125), "12.5 %"},
		{text.Printable("a\x1b[1m\n"), `a\x1b[1m\n`}, {text.Printable("µ"), "µ"},
		{text.Head("abcdef", 6), "abcdef"}, {text.Head("abcdef", 5), "abcd…"},
		{text.Tail("/home/me/train.py:3", 19), "/home/me/train.py:3"}, {text.Tail("/home/me/train.py:3", 15), "…/me/train.py:3"}, {text.Tail("abcdef", 4), "…def"},
		{text.Quote("a\"b", 9), `"a\"b"`}, {text.Quote("abcdef", 4), `"abc…"`},
		{text.Wrap("one two three", 8, "  "), "one two\n  three"}, {text.Wrap("one two", 7, ""), "one two"}, {text.Wrap("overlong a", 3, ""), "overlong\na"},
		{text.Wrap("  a\x07 ", 9, ""), `a\a`}, {text.Wrap("", 9, ""), ""},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	if got, want := text.BreakAtCommas("a:1,b:2,c:3", 8), []string{"a:1,b:2,", "c:3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWrapWidth: lines keep to the width, and joined again they are the text.
func TestWrapWidth(t *testing.T) {
	const s = "The beginning is missing: the start state is inferred by walking back from the final segments"
	for width := 12; width < 100; width++ {
		got := text.Wrap(s, width, "   ")
		for _, line := range strings.Split(got, "\n") {
			if len(line) > width {
				t.Errorf("width %d: %q has %d columns", width, line, len(line))
			}
		}
		if back := strings.Join(strings.Fields(got), " "); back != s {
			t.Errorf("width %d: %q", width, back)
		}
	}
}
