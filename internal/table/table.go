// Package table prints aligned tables for terminals and pipes: columns of text
// to the left, of numbers to the right, and nothing but spaces in between, so
// that the output can be cut with the usual tools.
package table

import (
	"io"
	"strings"

	"github.com/charmbracelet/lipgloss"
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

// Row adds a row; missing cells are empty.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write prints the table with an indent of spaces. style, if not nil, is
// applied to the header's cells.
func (t *Table) Write(w io.Writer, indent int, style *lipgloss.Style) error {
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
	var b strings.Builder
	line := func(cells []string, style *lipgloss.Style) {
		start := b.Len()
		b.WriteString(strings.Repeat(" ", indent))
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
		text := strings.TrimRight(b.String()[start:], " ")
		all := b.String()[:start] + text + "\n"
		b.Reset()
		b.WriteString(all)
	}
	if headed {
		line(t.header, style)
	}
	for _, r := range t.rows {
		line(r, nil)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
