package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/lipgloss"

	"allocsim/internal/bytesize"
	"allocsim/internal/progress"
	"allocsim/internal/table"
	"allocsim/internal/text"
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
func percent(x float64) string { return text.Percent(x) }

// millis is a time in µs as µs, ms or s.
func millis(us float64) string { return text.Duration(us) }

// wrap breaks a text into lines of at most width columns.
func wrap(s string, width int, indent string) string { return text.Wrap(s, width, indent) }

// number is a count with thousands separated.
func number(n int) string { return text.Count(n) }

// linesOf breaks a setting into lines of at most width columns.
func linesOf(s string, width int) []string { return text.BreakAtCommas(s, width) }

// place shortens the name of what holds memory to at most width columns: the
// telling part of a call site is its end, that of a description its beginning.
func place(where string, width int) string {
	if strings.HasPrefix(where, "requests of ") {
		return text.Head(where, width)
	}
	return text.Tail(where, width)
}
