// Package text writes numbers and sentences for people: durations, counts,
// shares, lines that fit a terminal, names that fit a column. Counts with their
// nouns are internal/plural, sizes internal/bytesize.
package text

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/charmbracelet/lipgloss"
)

// Duration writes a time in µs in the unit that fits: "12 µs", "1.5 ms",
// "2.04 s".
func Duration[T ~int64 | ~float64](us T) string {
	switch x := float64(us); {
	case x >= 999_950: // shown as a thousand of the smaller unit
		return fmt.Sprintf("%.2f s", x/1e6)
	case x >= 999.5:
		return fmt.Sprintf("%.1f ms", x/1e3)
	default:
		return fmt.Sprintf("%.0f µs", x)
	}
}

// Count writes a number with its thousands apart: "1,234,567".
func Count[T ~int | ~int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Percent writes a share: 0.125 is "12.5 %".
func Percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// Printable returns s with its control characters written as escapes such as
// \x1b: text from a file must not move the cursor of a terminal or break a
// line.
func Printable(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Wrap breaks a text into lines of at most width columns, all but the first
// behind indent. Its words are made Printable; a longer word has a line of its
// own.
func Wrap(s string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		word = Printable(word)
		n := lipgloss.Width(word)
		switch {
		case i == 0:
			column = n
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent) + n
		default:
			b.WriteByte(' ')
			column += 1 + n
		}
		b.WriteString(word)
	}
	return b.String()
}

// BreakAtCommas breaks a setting into lines of at most width columns where it
// has commas.
func BreakAtCommas(s string, width int) []string {
	var out []string
	line := ""
	for i, part := range strings.SplitAfter(s, ",") {
		if i > 0 && len(line)+len(part) > width {
			out = append(out, line)
			line = ""
		}
		line += part
	}
	return append(out, line)
}

// Head shortens a name from the right to at most width runes.
func Head(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	return string(r[:width-1]) + "…"
}

// Tail shortens a path or call site from the left to at most width runes,
// before a folder's name where it can.
func Tail(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	r = r[len(r)-width+1:]
	if k := slices.Index(r, '/'); k >= 0 && k < width/2 {
		r = r[k:]
	}
	return "…" + string(r)
}

// Quote quotes a piece of a source for a message, cut to at most width runes.
func Quote(s string, width int) string { return strconv.Quote(Head(s, width)) }
