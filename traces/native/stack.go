package native

import (
	"bytes"
	"strconv"

	"allocsim/traces"
)

// A call stack is written as its frames, innermost first, separated by ';',
// each FUNCTION@FILE:LINE. Inside names, ';', '@' and '\' are preceded by a
// '\' and line ends are written as '\n'.

func appendName(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ';', '@', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			b = append(b, c)
		}
	}
	return b
}

// appendStack appends the text of stack id.
func appendStack(b []byte, s *traces.Stacks, id traces.StackID) []byte {
	for i, f := range s.Stack[id] {
		if i > 0 {
			b = append(b, ';')
		}
		frame := s.Frames[f]
		b = appendName(b, frame.Function)
		b = append(b, '@')
		b = appendName(b, frame.File)
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(frame.Line), 10)
	}
	return b
}

// stackTable interns stacks and frames.
type stackTable struct {
	s      traces.Stacks
	byText map[string]traces.StackID
	frames map[traces.Frame]uint32
}

func newStackTable() *stackTable {
	return &stackTable{byText: make(map[string]traces.StackID), frames: make(map[traces.Frame]uint32)}
}

// intern returns the number of the stack with the given text. Text that does
// not follow the form is kept as function names.
func (t *stackTable) intern(text []byte) traces.StackID {
	if id, ok := t.byText[string(text)]; ok {
		return id
	}
	return t.add(text)
}

// add numbers a stack that the file declares, even one that repeats another.
func (t *stackTable) add(text []byte) traces.StackID {
	stack := []uint32{}
	for rest := text; len(rest) > 0; {
		var part []byte
		part, rest = cutEscaped(rest, ';')
		fn, loc := cutEscaped(part, '@')
		f := traces.Frame{Function: unescape(fn)}
		if i := bytes.LastIndexByte(loc, ':'); i >= 0 {
			if n, err := strconv.Atoi(string(loc[i+1:])); err == nil {
				f.Line, loc = n, loc[:i]
			}
		}
		f.File = unescape(loc)
		n, ok := t.frames[f]
		if !ok {
			n = uint32(len(t.s.Frames))
			t.s.Frames = append(t.s.Frames, f)
			t.frames[f] = n
		}
		stack = append(stack, n)
	}
	id := traces.StackID(len(t.s.Stack))
	t.s.Stack = append(t.s.Stack, stack)
	t.byText[string(text)] = id
	return id
}

// cutEscaped splits s at the first sep that no '\' precedes.
func cutEscaped(s []byte, sep byte) (before, after []byte) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			return s[:i], s[i+1:]
		}
	}
	return s, nil
}

func unescape(s []byte) string {
	if bytes.IndexByte(s, '\\') < 0 {
		return string(s)
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\\' && i+1 < len(s) {
			i++
			switch c = s[i]; c {
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			}
		}
		out = append(out, c)
	}
	return string(out)
}
