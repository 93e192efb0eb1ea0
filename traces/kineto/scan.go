package kineto

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// scanner finds the values of a JSON text without decoding them, so that a
// trace of gigabytes, of which a thousandth concerns memory, is read at the
// speed of a byte scan and in a small buffer. What it skips is not validated:
// profiler traces are known for stray NaNs and control characters in places
// that do not matter here.
type scanner struct {
	r   *bufio.Reader
	off int64  // bytes consumed
	buf []byte // the value that is being kept
}

// maxValue bounds the values that are kept, in bytes.
const maxValue = 16 << 20

var errTooLong = fmt.Errorf("a single value exceeds %d MiB", maxValue>>20)

func newScanner(r io.Reader) *scanner { return &scanner{r: bufio.NewReaderSize(r, 1<<18)} }

// next returns the next byte that is not white space, without consuming it.
func (s *scanner) next() (byte, error) {
	for {
		b, err := s.r.ReadByte()
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		switch b {
		case ' ', '\t', '\r', '\n':
			s.off++
		default:
			return b, s.r.UnreadByte()
		}
	}
}

// skip consumes one byte that next has returned.
func (s *scanner) skip() {
	s.r.Discard(1)
	s.off++
}

// expect consumes the byte c.
func (s *scanner) expect(c byte) error {
	b, err := s.next()
	if err != nil {
		return err
	}
	if b != c {
		return fmt.Errorf("byte %d: %q where %q was expected", s.off, b, c)
	}
	s.skip()
	return nil
}

// value consumes one value. With keep it returns its text, valid until the
// next call.
func (s *scanner) value(keep bool) ([]byte, error) {
	first, err := s.next()
	if err != nil {
		return nil, err
	}
	s.buf = s.buf[:0]
	nested := first == '{' || first == '['
	scalar := !nested && first != '"'
	depth, inString, escaped := 0, false, false
	for {
		if s.r.Buffered() == 0 {
			if _, err := s.r.Peek(1); err != nil {
				if err == io.EOF {
					if scalar && s.off > 0 {
						return s.buf, nil
					}
					err = io.ErrUnexpectedEOF
				}
				return nil, err
			}
		}
		chunk, _ := s.r.Peek(s.r.Buffered())
		i, done := 0, false
	scan:
		for i < len(chunk) {
			c := chunk[i]
			switch {
			case escaped:
				escaped = false
			case inString:
				// The common case: no escape before the closing quote.
				n := bytes.IndexByte(chunk[i:], '"')
				if n < 0 {
					n = len(chunk) - i
				}
				if e := bytes.IndexByte(chunk[i:i+n], '\\'); e >= 0 {
					i += e
					escaped = true
				} else if i += n; i == len(chunk) {
					break scan
				} else {
					inString = false
					if depth == 0 {
						i++
						done = true
						break scan
					}
				}
			case c == '"':
				inString = true
			case c == '{' || c == '[':
				depth++
			case c == '}' || c == ']':
				if scalar {
					done = true
					break scan
				}
				if depth--; depth == 0 {
					i++
					done = true
					break scan
				}
			case scalar && (c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t'):
				done = true
				break scan
			}
			i++
		}
		if keep {
			if len(s.buf)+i > maxValue {
				return nil, errTooLong
			}
			s.buf = append(s.buf, chunk[:i]...)
		}
		s.r.Discard(i)
		s.off += int64(i)
		if done {
			return s.buf, nil
		}
	}
}

// elements calls f with the text of each element of the array that follows.
func (s *scanner) elements(f func(text []byte) error) error {
	if err := s.expect('['); err != nil {
		return err
	}
	for {
		b, err := s.next()
		if err != nil {
			return err
		}
		switch b {
		case ']':
			s.skip()
			return nil
		case ',':
			s.skip()
		default:
			text, err := s.value(true)
			if err != nil {
				return err
			}
			if len(text) == 0 {
				return fmt.Errorf("byte %d: %q is not the start of a value", s.off, b)
			}
			if err := f(text); err != nil {
				return err
			}
		}
	}
}

// members calls f with each key of the object that follows; f must consume
// the value.
func (s *scanner) members(f func(key string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	for {
		b, err := s.next()
		if err != nil {
			return err
		}
		switch b {
		case '}':
			s.skip()
			return nil
		case ',':
			s.skip()
		case '"':
			key, err := s.value(true)
			if err != nil {
				return err
			}
			k := string(key[1 : len(key)-1])
			if err := s.expect(':'); err != nil {
				return err
			}
			if err := f(k); err != nil {
				return err
			}
		default:
			return fmt.Errorf("byte %d: %q where a key was expected", s.off, b)
		}
	}
}
