package diagnose

import (
	"regexp"
	"sort"
)

// A flat is a piece of a log without what terminals, launchers and pastes put
// between the words: escape sequences, prefixes of lines, line ends. White
// space is one blank. It knows where each byte came from.
type flat struct {
	text []byte
	low  []byte // text in lower case
	runs []run
}

// A run is where copied text goes on after something was left out.
type run struct{ at, from int }

// source is the place in the original of the byte at place i.
func (f *flat) source(i int) int {
	k := sort.Search(len(f.runs), func(k int) bool { return f.runs[k].at > i }) - 1
	if k < 0 {
		return i
	}
	return f.runs[k].from + i - f.runs[k].at
}

// flatten leaves out of src what is not the message's own.
func flatten(src []byte) *flat {
	f := &flat{text: make([]byte, 0, len(src)), low: make([]byte, 0, len(src))}
	from := 0 // what the next byte is expected to come from
	put := func(c byte, at int) {
		if at != from {
			f.runs = append(f.runs, run{len(f.text), at})
		}
		from = at + 1
		f.text = append(f.text, c)
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		f.low = append(f.low, c)
	}
	blank := true // the last byte was a blank, or there is none
	lineStart := true
	for i := 0; i < len(src); {
		if lineStart {
			lineStart = false
			i += prefixLen(src[i:])
			continue
		}
		c := src[i]
		n := 1
		switch {
		case c == 0x1b:
			i += escapeLen(src[i:])
			continue
		case c == '\\' && i+1 < len(src) && (src[i+1] == 'n' || src[i+1] == 'r') && !letterAt(src, i+2):
			// A line end inside a quoted text.
			c, n, lineStart = ' ', 2, true
		case c == '\\' && i+5 < len(src) && src[i+1] == 'u' && src[i+2] == '0' && src[i+3] == '0' && src[i+4] == '1' && (src[i+5] == 'b' || src[i+5] == 'B'):
			i += 6 + max(0, escapeLen(append([]byte{0x1b}, src[i+6:min(len(src), i+24)]...))-1)
			continue
		case c == '\n' || c == '\r':
			c, lineStart = ' ', true
		case c == 0xc2 && i+1 < len(src) && src[i+1] == 0xa0: // no-break space
			c, n = ' ', 2
		case c == 0xe2 && i+2 < len(src) && src[i+1] == 0x80 && (src[i+2] == 0x98 || src[i+2] == 0x99): // ‘ ’
			c, n = '\'', 3
		case c == '`', c == '*' && i+1 < len(src) && src[i+1] == '*', c == '*' && i > 0 && src[i-1] == '*':
			i++
			continue
		case c == '&' && i+4 <= len(src) && string(src[i:i+4]) == "&gt;":
			c, n = '>', 4
		case c <= ' ':
			c = ' '
		}
		if c != ' ' {
			put(c, i)
			blank = false
		} else if !blank {
			put(c, i)
			blank = true
		}
		i += n
	}
	return f
}

func letterAt(s []byte, i int) bool {
	return i < len(s) && (s[i] >= 'a' && s[i] <= 'z' || s[i] == '\\')
}

// escapeLen is the length of the terminal's escape sequence at the start of s.
func escapeLen(s []byte) int {
	if len(s) < 2 || s[1] != '[' {
		return 1
	}
	for i := 2; i < len(s) && i < 16; i++ {
		if c := s[i]; c >= '@' && c <= '~' {
			return i + 1
		}
	}
	return 1
}

// Prefixes that launchers and loggers give to every line.
var (
	prefixes = regexp.MustCompile(`^(?:` +
		`\[?[Rr]ank ?\d+\]?: ?|\[default\d+\]: ?|\[\d+\]: ?|\[\d+,\d+\]<\w+>: ?|` + // torchrun, mpirun
		`\([\w ]*?pid=\d+(?:, ip=[\d.]+)?\) ?|` + // Ray, vLLM
		`(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? (?:\[[^\]\s]{1,60}\] ?)?|` + // vLLM's logger
		`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? (?:\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?:? )?|` +
		`\d+: |[\w.-]+ +\| )`)
	maxPrefixes = 6
)

// prefixLen is the length of what stands before the words of a line.
func prefixLen(s []byte) int {
	n := 0
	for range maxPrefixes {
		for n < len(s) && (s[n] == ' ' || s[n] == '\t' || s[n] == '>' || s[n] == '|' || s[n] == '#' || s[n] == 0x1b) {
			if s[n] == 0x1b {
				n += escapeLen(s[n:])
				continue
			}
			n++
		}
		if n >= len(s) {
			return len(s)
		}
		switch c := s[n]; {
		case c == '[' || c == '(' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c == 'r' || c >= 'a' && c <= 'z' && pipeAhead(s[n:]):
		default:
			return n
		}
		loc := prefixes.FindIndex(s[n:min(len(s), n+160)])
		if loc == nil || loc[1] == 0 {
			return n
		}
		n += loc[1]
	}
	return n
}

// pipeAhead reports whether s looks like the "service-1  | " of docker compose.
func pipeAhead(s []byte) bool {
	for i := 0; i < len(s) && i < 40; i++ {
		switch c := s[i]; {
		case c == '|':
			return true
		case c == '\n':
			return false
		}
	}
	return false
}
