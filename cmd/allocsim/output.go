package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/lipgloss"

	"allocsim/internal/bytesize"
	"allocsim/internal/progress"
	"allocsim/internal/table"
)

// printJSON prints one document.
func (a *app) printJSON(v any) error { return writeJSON(a.stdout, v) }

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printf prints to standard output.
func (a *app) printf(format string, args ...any) {
	fmt.Fprintf(a.stdout, format, args...)
}

// notes prints what is not known to standard error, each sentence once.
func (a *app) notes(notes []string) {
	if a.quiet || a.json {
		return
	}
	seen := make(map[string]bool)
	for _, n := range notes {
		if !seen[n] {
			seen[n] = true
			fmt.Fprintln(a.stderr, wrap("note: "+n, 80, "      "))
		}
	}
}

// progress returns a bar on standard error; nil when it would disturb.
func (a *app) progress(what, unit string) *progress.Bar {
	if a.quiet {
		return nil
	}
	return progress.New(a.stderr, what, unit)
}

// print writes a table to standard output.
func (a *app) print(t *table.Table) error {
	return t.Write(a.stdout, a.header())
}

// renderer knows whether standard output is a terminal, which only the file
// itself can say.
func (a *app) renderer() *lipgloss.Renderer {
	if c, ok := a.stdout.(*checked); ok {
		return lipgloss.NewRenderer(c.Writer)
	}
	return lipgloss.NewRenderer(a.stdout)
}

// header is the style of table headers.
func (a *app) header() *lipgloss.Style {
	s := a.renderer().NewStyle().Bold(true)
	return &s
}

// strong makes text stand out on a terminal.
func (a *app) strong(s string) string {
	return a.renderer().NewStyle().Bold(true).Render(s)
}

// size is a size for people; 0 and less are shown too.
func size(n int64) string { return bytesize.Format(n) }

// sizeOr is a size, or a word for "none".
func sizeOr(n int64, none string) string {
	if n == 0 {
		return none
	}
	return size(n)
}

// percent is a share.
func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// millis is a time in µs as ms or s.
func millis(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.2f s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.1f ms", us/1e3)
	}
	return fmt.Sprintf("%.0f µs", us)
}

// wrap breaks text into lines of at most width columns.
func wrap(text string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		word = table.Printable(word)
		if n := lipgloss.Width(word); i > 0 {
			if column+1+n > width {
				b.WriteString("\n" + indent)
				column = len(indent)
			} else {
				b.WriteByte(' ')
				column++
			}
			column += n
		} else {
			column = n
		}
		b.WriteString(word)
	}
	return b.String()
}

// number is a count with thousands separated.
func number(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// breakAtCommas breaks a setting into lines of at most width columns where it
// has commas.
func breakAtCommas(s string, width int) string {
	var b strings.Builder
	column := 0
	for i, part := range strings.SplitAfter(s, ",") {
		if i > 0 && column+len(part) > width {
			b.WriteString("\n")
			column = 0
		}
		b.WriteString(part)
		column += len(part)
	}
	return b.String()
}

// linesOf is breakAtCommas as a list.
func linesOf(s string, width int) []string { return strings.Split(breakAtCommas(s, width), "\n") }

// tail shortens a path or call site from the left to at most width columns,
// before a folder's name where it can.
func tail(s string, width int) string {
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

// place shortens the name of what holds memory to at most width columns: the
// telling part of a call site is its end, that of a description its beginning.
func place(where string, width int) string {
	if strings.HasPrefix(where, "requests of ") {
		return head(where, width)
	}
	return tail(where, width)
}

// head shortens a name from the right to at most width columns.
func head(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	return string(r[:width-1]) + "…"
}
