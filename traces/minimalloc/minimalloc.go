// Package minimalloc reads and writes the CSV form in which static memory
// allocation problems are exchanged: one line per buffer with its lifetime and
// size, and for a solution its offset. The form is that of MiniMalloc
// (github.com/google/minimalloc, src/converter.cc at 9f5cf810).
//
// The header names the columns, in any order:
//
//	id | buffer | buffer_id   the buffer's name
//	lower | start | begin     the time from which it lives
//	upper                     the time from which it lives no more
//	end                       the last time at which it lives (upper = end+1)
//	size                      bytes
//	alignment                 optional: what the offset must be a multiple of
//	hint                      optional: a suggested offset, -1 for none
//	gaps                      optional: times in which it is not needed, "l-u"
//	                          or, if some of it is, "l-u@w1:w2", blanks between
//	offset                    optional: where it is placed
//
// A [Buffer] holds a line. [Read] makes a trace of them for the rest of the
// program, in which a unit of time is one µs; [ReadBuffers] keeps everything.
package minimalloc

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/lines"
	"allocsim/internal/plural"
	"allocsim/traces"
)

// Format is the name of the format.
const Format = "minimalloc-csv"

// MaxTime bounds times on both sides of zero.
const MaxTime = 1 << 60

// Buffer is a line of the file.
type Buffer struct {
	ID string
	// Lower and Upper bound the lifetime [Lower, Upper); Lower < Upper.
	Lower, Upper int64
	// Size is bytes, > 0.
	Size int64
	// Alignment is what the offset must be a multiple of, ≥ 1.
	Alignment int64
	// Hint and Offset are bytes; -1 = none.
	Hint, Offset int64
	// Gaps are times in which less than Size bytes are needed, ascending and
	// disjoint within the lifetime.
	Gaps []Gap
}

// Gap is a time [Lower, Upper) in which only the bytes [WindowLower,
// WindowUpper) of the buffer are needed, none when both are 0.
type Gap struct {
	Lower, Upper             int64
	WindowLower, WindowUpper int64
}

// column is a kind of column.
type column uint8

const (
	colID column = iota
	colLower
	colUpper
	colSize
	colAlignment
	colHint
	colGaps
	colOffset
	numColumns
)

var columnNames = [numColumns]string{"id", "lower", "upper", "size", "alignment", "hint", "gaps", "offset"}

// header maps columns to fields; -1 = absent.
type header struct {
	at        [numColumns]int
	names     [numColumns]string // as written
	fields    int
	inclusive bool // "end" instead of "upper"
}

// parseHeader reads the header line. Columns of other names are ignored.
func parseHeader(fields []lines.Field) (*header, error) {
	h := &header{fields: len(fields)}
	for c := range h.at {
		h.at[c] = -1
	}
	for i, f := range fields {
		name := string(f.Text)
		var c column
		switch strings.ToLower(name) {
		case "id", "buffer", "buffer_id":
			c = colID
		case "lower", "start", "begin":
			c = colLower
		case "upper":
			c = colUpper
		case "end":
			c, h.inclusive = colUpper, true
		case "size":
			c = colSize
		case "alignment":
			c = colAlignment
		case "hint":
			c = colHint
		case "gaps":
			c = colGaps
		case "offset":
			c = colOffset
		default:
			continue
		}
		if h.at[c] >= 0 {
			return nil, fmt.Errorf("columns %q and %q mean the same", h.names[c], name)
		}
		h.at[c], h.names[c] = i, name
	}
	for _, c := range []column{colID, colLower, colUpper, colSize} {
		if h.at[c] < 0 {
			return nil, fmt.Errorf("the header has no column %q; it must name id, lower, upper (or end) and size", columnNames[c])
		}
	}
	return h, nil
}

// Detect reports whether a file that begins with head has this form: its first
// line that is not blank names the four columns.
func Detect(head []byte) bool {
	in := lines.NewReader(context.Background(), bytes.NewReader(head))
	for {
		line, err := in.Next()
		if err != nil {
			return false
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		fields, err := lines.Split(line, nil)
		if err != nil {
			return false
		}
		_, err = parseHeader(fields)
		return err == nil
	}
}

// ReadBuffers reads all lines. Errors name the line and the column.
func ReadBuffers(ctx context.Context, r io.Reader) ([]Buffer, error) {
	in := lines.NewReader(ctx, r)
	var (
		h       *header
		fields  []lines.Field
		buffers []Buffer
	)
	for {
		line, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if fields, err = lines.Split(line, fields[:0]); err != nil {
			return nil, fmt.Errorf("line %d, %w", in.Line(), err)
		}
		if h == nil {
			if h, err = parseHeader(fields); err != nil {
				return nil, fmt.Errorf("line %d: %w", in.Line(), err)
			}
			continue
		}
		b, err := h.buffer(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", in.Line(), err)
		}
		buffers = append(buffers, b)
	}
	if h == nil {
		return nil, errors.New("the file has no header line; it must begin with id,lower,upper,size")
	}
	return buffers, nil
}

// buffer reads a line.
func (h *header) buffer(fields []lines.Field) (Buffer, error) {
	var b Buffer
	if len(fields) != h.fields {
		return b, fmt.Errorf("%d fields where the header has %d", len(fields), h.fields)
	}
	var err error
	num := func(c column, least, most, missing int64) int64 {
		if h.at[c] < 0 || err != nil {
			return missing
		}
		f := fields[h.at[c]]
		v, e := strconv.ParseInt(string(f.Text), 10, 64)
		switch {
		case errors.Is(e, strconv.ErrRange):
			err = fmt.Errorf("column %d (%s): %s is out of range", f.Col, h.names[c], f.Text)
		case e != nil:
			err = fmt.Errorf("column %d (%s): %q is not a whole number", f.Col, h.names[c], f.Text)
		case v < least || v > most:
			err = fmt.Errorf("column %d (%s): %d is not between %d and %d", f.Col, h.names[c], v, least, most)
		}
		return v
	}
	b.ID = string(fields[h.at[colID]].Text)
	b.Lower = num(colLower, -MaxTime, MaxTime, 0)
	b.Upper = num(colUpper, -MaxTime, MaxTime, 0)
	b.Size = num(colSize, 1, 1<<60, 0)
	b.Alignment = num(colAlignment, 1, 1<<60, 1)
	b.Hint = num(colHint, -1, 1<<60, -1)
	b.Offset = num(colOffset, -1, 1<<60, -1)
	if err != nil {
		return b, err
	}
	if h.inclusive {
		b.Upper++
	}
	if b.Lower >= b.Upper {
		return b, fmt.Errorf("buffer %q lives from %d to %d: the end must come after the start", b.ID, b.Lower, b.Upper)
	}
	if h.at[colGaps] >= 0 {
		f := fields[h.at[colGaps]]
		if b.Gaps, err = h.gaps(string(f.Text), &b); err != nil {
			return b, fmt.Errorf("column %d (%s): %w", f.Col, h.names[colGaps], err)
		}
	}
	return b, nil
}

// gaps reads the gaps of b.
func (h *header) gaps(text string, b *Buffer) ([]Gap, error) {
	var gaps []Gap
	at := b.Lower
	for _, word := range strings.Fields(text) {
		life, window, windowed := strings.Cut(word, "@")
		var g Gap
		ok := pair(life, '-', &g.Lower, &g.Upper)
		if windowed {
			ok = ok && pair(window, ':', &g.WindowLower, &g.WindowUpper)
		}
		if !ok {
			return nil, fmt.Errorf("gap %q is not like 7-9 or 7-9@0:64", word)
		}
		if h.inclusive {
			g.Upper++
		}
		if g.Lower < at || g.Lower >= g.Upper || g.Upper > b.Upper {
			return nil, fmt.Errorf("gap %q: gaps must ascend within the lifetime %d to %d", word, b.Lower, b.Upper)
		}
		if g.WindowLower < 0 || g.WindowLower > g.WindowUpper || g.WindowUpper > b.Size {
			return nil, fmt.Errorf("gap %q: the bytes must lie within the size %d", word, b.Size)
		}
		at = g.Upper
		gaps = append(gaps, g)
	}
	return gaps, nil
}

// pair reads two numbers with a separator between; either may be negative.
func pair(text string, sep byte, a, b *int64) bool {
	if text == "" {
		return false
	}
	i := strings.IndexByte(text[1:], sep) + 1
	if i < 1 {
		return false
	}
	var err1, err2 error
	*a, err1 = strconv.ParseInt(text[:i], 10, 64)
	*b, err2 = strconv.ParseInt(text[i+1:], 10, 64)
	return err1 == nil && err2 == nil && *a >= -MaxTime && *b <= MaxTime
}

// WriteBuffers writes the buffers. Optional columns are written if some buffer
// needs them, in the order of the original: alignment, hint, gaps, offset.
func WriteBuffers(w io.Writer, buffers []Buffer) error {
	var alignment, hint, gaps, offset bool
	for i := range buffers {
		b := &buffers[i]
		alignment = alignment || b.Alignment > 1
		hint = hint || b.Hint >= 0
		gaps = gaps || len(b.Gaps) > 0
		offset = offset || b.Offset >= 0
	}
	out := bufio.NewWriter(w)
	line := []byte("id,lower,upper,size")
	for _, c := range []struct {
		on   bool
		name string
	}{{alignment, ",alignment"}, {hint, ",hint"}, {gaps, ",gaps"}, {offset, ",offset"}} {
		if c.on {
			line = append(line, c.name...)
		}
	}
	num := func(v int64) {
		line = append(line, ',')
		line = strconv.AppendInt(line, v, 10)
	}
	for i := range buffers {
		line = append(line, '\n')
		if _, err := out.Write(line); err != nil {
			return err
		}
		b := &buffers[i]
		if strings.ContainsAny(b.ID, "\r\n") {
			return fmt.Errorf("buffer %q: an id must not contain a line end", b.ID)
		}
		line = appendID(line[:0], b.ID)
		num(b.Lower)
		num(b.Upper)
		num(b.Size)
		if alignment {
			num(max(b.Alignment, 1))
		}
		if hint {
			num(b.Hint)
		}
		if gaps {
			for k, g := range b.Gaps {
				sep := byte(' ')
				if k == 0 {
					sep = ','
				}
				line = append(line, sep)
				line = fmt.Appendf(line, "%d-%d", g.Lower, g.Upper)
				if g.WindowLower < g.WindowUpper {
					line = fmt.Appendf(line, "@%d:%d", g.WindowLower, g.WindowUpper)
				}
			}
			if len(b.Gaps) == 0 {
				line = append(line, ',')
			}
		}
		if offset {
			num(b.Offset)
		}
	}
	line = append(line, '\n')
	if _, err := out.Write(line); err != nil {
		return err
	}
	return out.Flush()
}

// appendID quotes an id where it must be.
func appendID(line []byte, id string) []byte {
	if !strings.ContainsAny(id, "\",") && strings.TrimSpace(id) == id {
		return append(line, id...)
	}
	line = append(line, '"')
	line = append(line, strings.ReplaceAll(id, `"`, `""`)...)
	return append(line, '"')
}

// Read reads a file as a trace; name is the file's name for it. Buffers become
// blocks in the order of their starts. At equal times frees come before
// allocations, as lifetimes are half-open. What a trace cannot hold is told in
// its Notes.
func Read(ctx context.Context, r io.Reader, name string) (*traces.Recording, error) {
	buffers, err := ReadBuffers(ctx, r)
	if err != nil {
		return nil, err
	}
	t, err := Trace(buffers, name)
	if err != nil {
		return nil, err
	}
	return &traces.Recording{Devices: []*traces.Trace{t}}, nil
}

// Trace makes a trace of the buffers; see [Read].
func Trace(buffers []Buffer, name string) (*traces.Trace, error) {
	starts := make([]int32, len(buffers))
	var zero int64 // the trace's time zero
	for i := range buffers {
		starts[i] = int32(i)
		zero = min(zero, buffers[i].Lower)
	}
	ends := slices.Clone(starts)
	slices.SortStableFunc(starts, func(a, b int32) int { return cmp.Compare(buffers[a].Lower, buffers[b].Lower) })
	slices.SortStableFunc(ends, func(a, b int32) int { return cmp.Compare(buffers[a].Upper, buffers[b].Upper) })
	build := traces.NewBuilder(2 * len(buffers))
	stream := build.Stream(0)
	block := make([]traces.BlockID, len(buffers))
	next := 0
	for _, i := range starts {
		b := &buffers[i]
		for ; buffers[ends[next]].Upper <= b.Lower; next++ {
			build.Free(buffers[ends[next]].Upper-zero, block[ends[next]])
		}
		block[i] = build.Alloc(b.Lower-zero, b.Size, stream, 0)
	}
	for ; next < len(ends); next++ {
		build.Free(buffers[ends[next]].Upper-zero, block[ends[next]])
	}
	t, _, err := build.Build()
	if err != nil {
		return nil, err
	}
	t.Source, t.Format = name, Format
	t.Notes = append(t.Notes, "The file has lifetimes only: a unit of its time counts as 1 µs, everything is on one stream, and buffers are numbered in the order of their starts.")
	if zero < 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("The file's times begin at %d; they were shifted to begin at 0.", zero))
	}
	var aligned, hinted, gapped, placed int
	for i := range buffers {
		b := &buffers[i]
		aligned += one(b.Alignment > 1)
		hinted += one(b.Hint >= 0)
		gapped += one(len(b.Gaps) > 0)
		placed += one(b.Offset >= 0)
	}
	for _, lost := range []struct {
		n    int
		what string
	}{
		{aligned, "alignments"},
		{hinted, "hints"},
		{gapped, "gaps (the buffers count as live throughout)"},
		{placed, "offsets"},
	} {
		if lost.n > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%d of %d buffers have %s, which a trace does not hold.", lost.n, len(buffers), lost.what))
		}
	}
	return t, nil
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Buffers are the lifetimes of t's blocks, in the order of their ids, without
// offsets; sizes are as requested. A pending free counts when it completes,
// requests that the recorded allocator could not serve are left out, and
// blocks that are never freed live to the end.
//
// Time is the trace's in µs if that leaves the order of events as it is, given
// that lifetimes are half-open; else (ordinal true) it is the index of the
// event.
func Buffers(t *traces.Trace) (buffers []Buffer, ordinal bool) {
	ordinal = !ordered(t)
	at := func(i int) int64 {
		if ordinal {
			return int64(i)
		}
		return t.Events[i].TimeUS
	}
	index := make([]int32, t.NumBlocks) // in buffers, from 1; 0 = not a buffer
	for i := range t.Events {
		switch e := &t.Events[i]; e.Kind {
		case traces.Alloc:
			buffers = append(buffers, Buffer{
				ID: strconv.FormatUint(uint64(e.ID), 10), Lower: at(i), Upper: -1, Size: e.Size, Alignment: 1, Hint: -1, Offset: -1,
			})
			index[e.ID] = int32(len(buffers))
		case traces.Free, traces.FreeCompleted:
			buffers[index[e.ID]-1].Upper = at(i)
		}
	}
	end := int64(len(t.Events))
	if !ordinal {
		end = t.Duration() + 1
	}
	for i := range buffers {
		if buffers[i].Upper < 0 {
			buffers[i].Upper = end
		}
	}
	return buffers, ordinal
}

// ordered reports whether the times alone tell the order of frees and
// allocations: no free comes after an allocation of the same µs.
func ordered(t *traces.Trace) bool {
	last := int64(-1) // time of the last allocation
	for i := range t.Events {
		switch e := &t.Events[i]; e.Kind {
		case traces.Alloc:
			last = e.TimeUS
		case traces.Free, traces.FreeCompleted:
			if e.TimeUS == last {
				return false
			}
		}
	}
	return true
}

// Write writes t's lifetimes; [Losses] says what is lost.
func Write(ctx context.Context, w io.Writer, t *traces.Trace) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	buffers, _ := Buffers(t)
	return WriteBuffers(w, buffers)
}

// Losses says what of t the format cannot carry.
func Losses(t *traces.Trace) []string {
	notes := []string{"The minimalloc CSV holds lifetimes and requested sizes only: no streams, pools, call sites or configuration."}
	if !ordered(t) {
		notes = append(notes, "Several events share a µs, so times in the file are the numbers of events.")
	}
	var pending, oom, empty, live int
	for i := range t.Events {
		switch t.Events[i].Kind {
		case traces.Alloc:
			live++
		case traces.Free, traces.FreeCompleted:
			live--
		case traces.FreeRequested:
			pending++
		case traces.OOM:
			oom++
		case traces.EmptyCache:
			empty++
		}
	}
	if live > 0 {
		notes = append(notes, fmt.Sprintf("Every lifetime ends in the file: the %s alive at the end of the trace %s written as freed there.", plural.Of(live, "block"), plural.Are(live)))
	}
	if pending > 0 {
		notes = append(notes, fmt.Sprintf("Frees that were requested before they completed (%d) count when they completed.", pending))
	}
	if oom > 0 {
		notes = append(notes, fmt.Sprintf("%s %s left out.", plural.Of(oom, "failed request"), plural.Are(oom)))
	}
	if empty > 0 {
		notes = append(notes, fmt.Sprintf("%s to empty the cache %s left out.", plural.Of(empty, "call"), plural.Are(empty)))
	}
	return notes
}
