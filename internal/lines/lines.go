// Package lines reads delimited text files line by line for readers that must
// say where a problem is and must not be hurt by hostile input: it strips a
// byte order mark and line ends, numbers lines from 1, refuses endless lines
// and splits fields with their columns.
package lines

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the longest line in bytes that a Reader accepts.
const MaxLine = 1 << 20

// checkEvery is how many lines pass between looks at the context.
const checkEvery = 1 << 12

var bom = []byte{0xEF, 0xBB, 0xBF}

// A Reader yields the lines of a text.
type Reader struct {
	ctx  context.Context
	r    *bufio.Reader
	long []byte // a line that exceeds r's buffer
	line int
	torn bool
}

// NewReader returns a Reader of r. Next returns ctx's error soon after ctx is
// done.
func NewReader(ctx context.Context, r io.Reader) *Reader {
	return &Reader{ctx: ctx, r: bufio.NewReaderSize(r, 1<<16)}
}

// Next returns the next line without its end; it is valid until the next call.
// The error is io.EOF at the end of the text; any other names the line.
func (r *Reader) Next() ([]byte, error) {
	if r.line%checkEvery == 0 {
		if err := r.ctx.Err(); err != nil {
			return nil, err
		}
	}
	b, err := r.r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		r.long = r.long[:0]
		for err == bufio.ErrBufferFull && len(r.long) < MaxLine {
			r.long = append(r.long, b...)
			b, err = r.r.ReadSlice('\n')
		}
		r.long = append(r.long, b...)
		b = r.long
	}
	switch {
	case len(b) > MaxLine:
		return nil, fmt.Errorf("line %d: longer than %d bytes", r.line+1, MaxLine)
	case err == nil:
		b = b[:len(b)-1]
	case err == io.EOF && len(b) == 0:
		return nil, io.EOF
	case err == io.EOF:
		r.torn = true
	default:
		return nil, fmt.Errorf("line %d: %w", r.line+1, err)
	}
	r.line++
	if r.line == 1 {
		b = bytes.TrimPrefix(b, bom)
	}
	return bytes.TrimSuffix(b, []byte{'\r'}), nil
}

// Line is the number of the line that Next returned last, from 1.
func (r *Reader) Line() int { return r.line }

// Torn reports that the last line had no line end, as when the writer was
// killed.
func (r *Reader) Torn() bool { return r.torn }

// Field is one field of a line, without surrounding blanks.
type Field struct {
	Text []byte
	// Col is the field's first column in bytes, from 1.
	Col int
}

// Split appends the comma-separated fields of line to buf. Fields may be
// quoted as in RFC 4180, but do not span lines.
func Split(line []byte, buf []Field) ([]Field, error) {
	if bytes.IndexByte(line, '"') >= 0 {
		r := csv.NewReader(bytes.NewReader(line))
		r.TrimLeadingSpace = true
		record, err := r.Read()
		if err != nil {
			var pe *csv.ParseError
			if errors.As(err, &pe) {
				return buf, fmt.Errorf("column %d: %w", pe.Column, pe.Err)
			}
			return buf, err
		}
		for i, s := range record {
			_, col := r.FieldPos(i)
			buf = append(buf, Field{Text: bytes.TrimSpace([]byte(s)), Col: col})
		}
		return buf, nil
	}
	for start := 0; ; {
		end := bytes.IndexByte(line[start:], ',')
		last := end < 0
		if last {
			end = len(line)
		} else {
			end += start
		}
		text := line[start:end]
		lead := len(text) - len(bytes.TrimLeft(text, " \t"))
		buf = append(buf, Field{Text: bytes.TrimSpace(text), Col: start + lead + 1})
		if last {
			return buf, nil
		}
		start = end + 1
	}
}
