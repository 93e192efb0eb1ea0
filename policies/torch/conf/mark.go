package conf

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
)

// markWidth is the most columns that Mark uses.
const markWidth = 72

// Mark shows where a problem lies: s on one line and, below, carets under the
// Problem's bytes. A long string is cut to the neighbourhood; what cannot be
// printed is shown as '·', white space as a blank.
func Mark(s string, at Problem) string {
	lo := max(0, min(at.Offset, len(s)))
	hi := max(lo, min(at.Offset+at.Length, len(s)))
	type cell struct {
		text  string
		width int
		from  int // byte offset
	}
	var cells []cell
	caretFrom, caretTo := -1, -1 // cell indices
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		c := cell{text: string(r), from: i}
		switch {
		case unicode.IsSpace(r):
			c.text = " "
		case r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) || runewidth.RuneWidth(r) == 0:
			c.text = "·"
		}
		c.width = max(1, runewidth.StringWidth(c.text))
		if i < hi && i+n > lo {
			if caretFrom < 0 {
				caretFrom = len(cells)
			}
			caretTo = len(cells) + 1
		}
		if lo == hi && i <= lo && lo < i+n {
			caretFrom, caretTo = len(cells), len(cells)+1
		}
		cells = append(cells, c)
		i += n
	}
	if caretFrom < 0 { // behind the end
		caretFrom, caretTo = len(cells), len(cells)
	}
	// Choose a window around the start of the mark.
	first, width := caretFrom, 0
	for first > 0 && width < markWidth/2 {
		first--
		width += cells[first].width
	}
	end, total := first, 0
	for end < len(cells) && total+cells[end].width <= markWidth {
		total += cells[end].width
		end++
	}
	for first > 0 && end == len(cells) && total+cells[first-1].width <= markWidth {
		first--
		total += cells[first].width
	}
	var line, marks strings.Builder
	if first > 0 {
		line.WriteString("…")
		marks.WriteString(" ")
	}
	for i := first; i < end; i++ {
		line.WriteString(cells[i].text)
		switch {
		case i >= caretFrom && i < caretTo:
			marks.WriteString(strings.Repeat("^", cells[i].width))
		case i < caretFrom:
			marks.WriteString(strings.Repeat(" ", cells[i].width))
		}
	}
	if caretFrom == caretTo {
		marks.WriteString("^")
	}
	if end < len(cells) {
		line.WriteString("…")
	}
	return line.String() + "\n" + marks.String()
}
