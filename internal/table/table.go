// Package table prints aligned tables for terminals and pipes: columns of text
// to the left, of numbers to the right, and nothing but spaces in between, so
// that the output can be cut with the usual tools.
package table

import (
	"io"
	"strings"

	"github.com/charmbracelet/lipgloss"

	"allocsim/internal/text"
)

// Table collects rows.
type Table struct {
	header []string
	right  []bool
	rows   [][]string
}

// New starts a table. A header that begins with '>' marks a column aligned to
// the right; without any header text no header line is printed.
func New(header ...string) *Table {
	t := &Table{}
	for _, h := range header {
		name, right := strings.CutPrefix(h, ">")
		t.header = append(t.header, name)
		t.right = append(t.right, right)
	}
	return t
}

// Row adds a row; missing cells are empty. Cells are made text.Printable.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = text.Printable(c)
	}
	t.rows = append(t.rows, row)
}

// Write prints the table. style, if not nil, is applied to the header's cells.
func (t *Table) Write(w io.Writer, style *lipgloss.Style) error {
	_, err := io.WriteString(w, strings.Join(t.Lines(style), ""))
	return err
}

// Lines returns the table's lines, each with its line break: the header, if
// there is one, and the rows.
func (t *Table) Lines(style *lipgloss.Style) []string {
	width := make([]int, len(t.header))
	headed := false
	for i, h := range t.header {
		width[i] = lipgloss.Width(h)
		headed = headed || h != ""
	}
	for _, r := range t.rows {
		for i, c := range r {
			if i < len(width) {
				width[i] = max(width[i], lipgloss.Width(c))
			}
		}
	}
	line := func(cells []string, style *lipgloss.Style) string {
		var b strings.Builder
		for i := range width {
			c := ""
			if i < len(cells) {
				c = cells[i]
			}
			pad := strings.Repeat(" ", width[i]-lipgloss.Width(c))
			if style != nil {
				c = style.Render(c)
			}
			if t.right[i] {
				b.WriteString(pad + c)
			} else {
				b.WriteString(c + pad)
			}
			if i < len(width)-1 {
				b.WriteString("  ")
			}
		}
		return strings.TrimRight(b.String(), " ") + "\n"
	}
	var out []string
	if headed {
		out = append(out, line(t.header, style))
	}
	for _, r := range t.rows {
		out = append(out, line(r, nil))
	}
	return out
}
