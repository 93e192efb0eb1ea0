package native

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"allocsim/internal/lines"
	"allocsim/traces"
)

// DetectCSV reports whether a file that begins with head is a native CSV: its
// first line that is neither blank nor a comment names the columns action and
// id.
func DetectCSV(head []byte) bool {
	head = bytes.TrimPrefix(head, []byte{0xEF, 0xBB, 0xBF})
	for len(head) > 0 {
		var line []byte
		line, head, _ = bytes.Cut(head, []byte{'\n'})
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if line[0] == '#' {
			if bytes.HasPrefix(line, []byte(magic)) {
				return true
			}
			continue
		}
		fields, err := lines.Split(line, nil)
		if err != nil {
			return false
		}
		var action, id bool
		for _, f := range fields {
			switch strings.ToLower(string(f.Text)) {
			case "action":
				action = true
			case "id":
				id = true
			}
		}
		return action && id
	}
	return false
}

// magic begins a CSV that carries metadata.
const magic = "# allocsim trace"

// ReadCSV reads a native CSV; name is the file's name for the trace. Errors
// name the line and column.
func ReadCSV(ctx context.Context, r io.Reader, name string) (*traces.Recording, error) {
	a := newAssembler(1 << 12)
	in := lines.NewReader(ctx, r)
	var (
		fields []lines.Field
		where  [numCols]int // field of each column; -1 = absent
		header bool
		extra  []string
	)
	for {
		line, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		trimmed := bytes.TrimSpace(line)
		if len(trimmed) == 0 {
			continue
		}
		if trimmed[0] == '#' {
			if !header {
				if err := a.meta.comment(string(trimmed[1:])); err != nil {
					return nil, fmt.Errorf("line %d: %w", in.Line(), err)
				}
			}
			continue
		}
		if fields, err = lines.Split(line, fields[:0]); err != nil {
			return nil, fmt.Errorf("line %d, %w", in.Line(), err)
		}
		if !header {
			header = true
			if bytes.ContainsRune(trimmed, '\r') {
				return nil, fmt.Errorf("line %d: lines end in a carriage return alone; end them in a line feed", in.Line())
			}
			var unknown []string
			if where, unknown, err = parseHeader(fields); err != nil {
				return nil, fmt.Errorf("line %d: %w", in.Line(), err)
			}
			if len(unknown) > 0 {
				extra = append(extra, fmt.Sprintf("Columns that mean nothing here were skipped: %s.", strings.Join(unknown, ", ")))
			}
			if err := a.begin(); err != nil {
				return nil, err
			}
			continue
		}
		rw, err := parseRow(fields, &where)
		if err == nil {
			err = a.add(&rw)
		}
		if err != nil {
			var fe *fieldError
			if errors.As(err, &fe) && where[fe.col] >= 0 && where[fe.col] < len(fields) {
				return nil, fmt.Errorf("line %d, column %d (%s): %s", in.Line(), fields[where[fe.col]].Col, colNames[fe.col], fe.msg)
			}
			return nil, fmt.Errorf("line %d: %w", in.Line(), err)
		}
	}
	if !header {
		return nil, errors.New("the file has no header line; it must begin with time_us,action,id,size,stream")
	}
	return a.finish(name, FormatCSV, extra)
}

func (m *metadata) comment(s string) error {
	k, v, ok := strings.Cut(s, ":")
	if !ok {
		return nil
	}
	return m.set(strings.TrimSpace(k), unescape([]byte(strings.TrimPrefix(v, " "))))
}

func parseHeader(fields []lines.Field) (where [numCols]int, unknown []string, err error) {
	for c := range where {
		where[c] = -1
	}
next:
	for i, f := range fields {
		name := strings.ToLower(string(f.Text))
		for c, n := range colNames {
			if n == name {
				if where[c] >= 0 {
					return where, nil, fmt.Errorf("column %d: the header names %s twice", f.Col, n)
				}
				where[c] = i
				continue next
			}
		}
		if name != "" {
			unknown = append(unknown, string(f.Text))
		}
	}
	var missing []string
	for c := range required {
		if where[c] < 0 {
			missing = append(missing, colNames[c])
		}
	}
	if missing != nil {
		return where, nil, fmt.Errorf("the header lacks %s; it must name time_us,action,id,size and may name stream, pool, stack", strings.Join(missing, ", "))
	}
	return where, unknown, nil
}

func parseRow(fields []lines.Field, where *[numCols]int) (r row, err error) {
	get := func(c int) []byte {
		if i := where[c]; i >= 0 && i < len(fields) {
			return fields[i].Text
		}
		return nil
	}
	action := get(colAction)
	kind, ok := kinds[string(action)]
	if !ok {
		if kind, ok = kinds[strings.ToLower(string(action))]; !ok {
			return r, bad(colAction, "%q is not one of alloc, free, free_requested, free_completed, empty_cache, oom", action)
		}
	}
	r.kind = kind
	if r.time, err = parseTime(get(colTime)); err != nil {
		return r, err
	}
	r.id = parseKey(get(colID))
	if kind == traces.EmptyCache || kind == traces.ReleasePool {
		return r, r.setPool(get(colPool))
	}
	if kind != traces.Alloc && kind != traces.OOM {
		return r, nil
	}
	if s := get(colSize); len(s) > 0 {
		if r.size, err = parseInt(s); err != nil {
			return r, bad(colSize, "%q is not a whole number of bytes", s)
		}
	}
	if s := get(colStream); len(s) > 0 {
		if r.stream, err = parseStream(string(s)); err != nil {
			return r, bad(colStream, "%v", err)
		}
	}
	if err := r.setPool(get(colPool)); err != nil {
		return r, err
	}
	if s := get(colStack); len(s) > 0 {
		r.stack = s
	}
	return r, nil
}

// parseTime reads µs; a fraction is cut off.
func parseTime(s []byte) (int64, error) {
	if n, ok := parseDigits(s); ok {
		return n, nil
	}
	whole, frac, _ := bytes.Cut(s, []byte{'.'})
	if _, ok := parseDigits(frac); ok || len(frac) == 0 {
		if n, err := strconv.ParseInt(string(whole), 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, bad(colTime, "%q is not a time in µs", s)
}

// parseKey reads an id: a 64-bit integer or any text.
func parseKey(s []byte) key {
	if len(s) == 0 {
		return key{}
	}
	if n, ok := parseDigits(s); ok && (s[0] != '0' || len(s) == 1) {
		return key{n: n, set: true}
	}
	if n, err := parseInt(s); err == nil && (s[0] != '0' || bytes.HasPrefix(s, []byte("0."))) {
		return key{n: n, set: true}
	}
	return key{text: string(s), set: true}
}

// WriteCSV writes t as a native CSV. It returns ctx's error soon after ctx is
// done.
func WriteCSV(ctx context.Context, w io.Writer, t *traces.Trace) error {
	b := bufio.NewWriterSize(w, 1<<16)
	if pairs := pairsOf(t, true); len(pairs) > 0 {
		b.WriteString(magic + "\n")
		var buf []byte
		for _, p := range pairs {
			buf = append(buf[:0], "# "...)
			buf = append(buf, p.key...)
			buf = append(buf, ": "...)
			buf = appendValue(buf, p.value)
			if len(buf) >= lines.MaxLine {
				return fmt.Errorf("%s is longer than a line may be (%d bytes)", p.key, lines.MaxLine)
			}
			b.Write(append(buf, '\n'))
		}
	}
	pools, stacks := len(t.Pools) > 1, t.Stacks != nil
	b.WriteString("time_us,action,id,size,stream")
	if pools {
		b.WriteString(",pool")
	}
	if stacks {
		b.WriteString(",stack")
	}
	b.WriteByte('\n')
	var buf []byte
	for i := range t.Events {
		if i%(1<<12) == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		e := &t.Events[i]
		buf = strconv.AppendInt(buf[:0], e.TimeUS, 10)
		buf = append(buf, ',')
		buf = append(buf, e.Kind.String()...)
		buf = append(buf, ',')
		if e.ID != traces.NoBlock {
			buf = strconv.AppendUint(buf, uint64(e.ID), 10)
		}
		buf = append(buf, ',')
		alloc := e.Kind == traces.Alloc || e.Kind == traces.OOM
		if alloc {
			buf = strconv.AppendInt(buf, e.Size, 10)
		}
		buf = append(buf, ',')
		if e.ID != traces.NoBlock {
			buf = strconv.AppendUint(buf, t.Streams[e.Stream], 10)
		}
		if pools {
			buf = append(buf, ',')
			if e.Pool != 0 {
				buf = append(buf, poolText(t.Pools[e.Pool])...)
			}
		}
		if stacks {
			buf = append(buf, ',')
			if alloc {
				if s := t.Stacks.ByBlock[e.ID]; s != traces.NoStack {
					buf = strconv.AppendUint(buf, uint64(s), 10)
				}
			}
		}
		b.Write(append(buf, '\n'))
	}
	return b.Flush()
}

// appendValue appends a metadata value, of which only line ends and '\' need
// care.
func appendValue(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\\':
			b = append(b, `\\`...)
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
