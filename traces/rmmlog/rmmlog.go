// Package rmmlog reads the allocation log of RAPIDS RMM: the CSV that its
// logging resource adaptor writes when RMM_LOG_FILE is set (RMM 25,
// cpp/src/mr/detail/logging_resource_adaptor_impl.cpp; spec trace-formats 1.1).
//
//	Thread,Time,Action,Pointer,Size,Stream
//	2342727,15:47:02.841961,allocate,0x10012400000,1048576,0x0
//
// The log holds what an allocator was asked: requested sizes, streams and
// failures, in the order of the file. It knows no date and no segments.
package rmmlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/internal/lines"
	"allocsim/internal/plural"
	"allocsim/traces"
)

// Format is Trace.Format of these traces.
const Format = "rmm-log"

const (
	colThread = iota
	colTime
	colAction
	colPointer
	colSize
	colStream
	numCols
)

var colNames = [numCols]string{"Thread", "Time", "Action", "Pointer", "Size", "Stream"}

// header finds the columns by name. ok is false when fields are no header.
func header(fields []lines.Field) (where [numCols]int, ok bool) {
	for c := range where {
		where[c] = -1
	}
	for i, f := range fields {
		for c, n := range colNames {
			if strings.EqualFold(string(f.Text), n) && where[c] < 0 {
				where[c] = i
			}
		}
	}
	return where, where[colAction] >= 0 && where[colPointer] >= 0 && where[colSize] >= 0
}

// Detect reports whether a file that begins with head is such a log: its first
// line names Action, Pointer and Size.
func Detect(head []byte) bool {
	head = bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))
	line, _, _ := bytes.Cut(bytes.TrimLeft(head, " \t\r\n"), []byte{'\n'})
	fields, err := lines.Split(bytes.TrimRight(line, "\r"), nil)
	if err != nil {
		return false
	}
	_, ok := header(fields)
	return ok
}

// row is one line of the log.
type row struct {
	time   int64 // µs since midnight of the first day
	addr   uint64
	size   int64
	stream uint64
	action uint8
}

const (
	allocate = iota
	free
	failure
)

// deviceInName is what RMM's Python interface puts into the name of a log.
var deviceInName = regexp.MustCompile(`\.dev(\d{1,4})(\.|$)`)

// Read reads a log; name is the file's name for the trace, from which the
// device is taken (log.dev1.csv). Errors name the line and column.
func Read(ctx context.Context, r io.Reader, name string) (*traces.Recording, error) {
	var (
		in       = lines.NewReader(ctx, r)
		fields   []lines.Field
		where    [numCols]int
		rows     []row
		notes    []string
		headers  int
		lastText string // of the previous thread
		threads  = make(map[string]bool)
		streams  = make(map[uint64]bool)
		clk      clock
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
		if w, ok := header(fields); ok {
			where = w
			headers++
			continue
		}
		if headers == 0 {
			return nil, fmt.Errorf("line %d: the log must begin with the header Thread,Time,Action,Pointer,Size,Stream", in.Line())
		}
		rw, err := parse(fields, &where, &clk)
		if in.Torn() && (err != nil || !streams[rw.stream]) {
			// The writer was killed in the middle of a line. What is left may
			// read as a complete line with a stream that never was.
			notes = append(notes, fmt.Sprintf("The last line (%d) is cut short and was left out.", in.Line()))
			break
		}
		if err != nil {
			return nil, fmt.Errorf("line %d, %w", in.Line(), err)
		}
		streams[rw.stream] = true
		if i := where[colThread]; i >= 0 && i < len(fields) && string(fields[i].Text) != lastText {
			lastText = string(fields[i].Text)
			threads[lastText] = true
		}
		rows = append(rows, rw)
	}
	if headers == 0 {
		return nil, errors.New("the file has no lines")
	}
	if len(rows) == 0 {
		return nil, errors.New("the log holds no allocations")
	}
	if headers > 1 {
		notes = append(notes, fmt.Sprintf("The header occurs %d times: several resources or runs wrote to this file; their lines are taken in order.", headers))
	}
	if len(threads) > 1 {
		notes = append(notes, fmt.Sprintf("%d threads wrote the log; the order is that of the file.", len(threads)))
	}
	if clk.backwards > 0 {
		notes = append(notes, fmt.Sprintf("%s with a time before that of the line above: the order of the file is kept.", plural.Of(clk.backwards, "line")))
	}
	t, err := build(rows, notes)
	if err != nil {
		return nil, err
	}
	t.Source, t.Format = name, Format
	if m := deviceInName.FindStringSubmatch(filepath.Base(name)); m != nil {
		t.Device, _ = strconv.Atoi(m[1])
	}
	return &traces.Recording{Devices: []*traces.Trace{t}}, nil
}

func build(rows []row, notes []string) (*traces.Trace, error) {
	type block struct {
		addr uint64
		row  int
	}
	b := traces.NewBuilder(len(rows))
	// A pointer that is freed before it is allocated was live at the start.
	var start []block
	seen := make(map[uint64]bool)
	for i, r := range rows {
		if r.addr == 0 || r.action == failure || seen[r.addr] {
			continue
		}
		seen[r.addr] = true
		if r.action == free && r.size > 0 {
			start = append(start, block{r.addr, i})
		}
	}
	slices.SortFunc(start, func(x, y block) int { return cmp.Compare(x.addr, y.addr) })
	live := make(map[uint64]traces.BlockID)
	var startBytes int64
	for _, s := range start {
		r := &rows[s.row]
		live[s.addr] = b.Alloc(0, r.size, b.Stream(r.stream), 0)
		startBytes += r.size
	}
	startEvents := b.Len()
	var lost, empty int
	for i := range rows {
		r := &rows[i]
		t := r.time - rows[0].time
		id, ok := live[r.addr]
		switch {
		case r.action == failure:
			if r.size > 0 {
				b.OOM(t, r.size, b.Stream(r.stream), 0)
			}
		case r.addr == 0 || r.action == allocate && r.size == 0:
			empty++
		case r.action == allocate:
			if ok {
				lost++
				b.Free(t, id)
			}
			live[r.addr] = b.Alloc(t, r.size, b.Stream(r.stream), 0)
		case ok:
			b.Free(t, id)
			delete(live, r.addr)
		default:
			lost++
		}
	}
	t, _, err := b.Build()
	if err != nil {
		return nil, err
	}
	t.StartEvents = startEvents
	if len(start) > 0 {
		notes = append(notes, fmt.Sprintf("%s (%s) of unknown age: freed in the log without having been allocated in it, so allocated at its start.", plural.Of(len(start), "block"), bytesize.Format(startBytes)))
	}
	if lost > 0 {
		notes = append(notes, fmt.Sprintf("%s at odds with what is live at the pointer: lines are missing.", plural.Of(lost, "line")))
	}
	if empty > 0 {
		notes = append(notes, fmt.Sprintf("%s of 0 bytes left out.", plural.Of(empty, "request")))
	}
	t.Notes = notes
	return t, nil
}

func parse(fields []lines.Field, where *[numCols]int, clk *clock) (r row, err error) {
	bad := func(c int, format string, args ...any) error {
		col := fields[len(fields)-1].Col
		if i := where[c]; i >= 0 && i < len(fields) {
			col = fields[i].Col
		}
		return fmt.Errorf("column %d (%s): %s", col, colNames[c], fmt.Sprintf(format, args...))
	}
	get := func(c int) ([]byte, bool) {
		if i := where[c]; i >= 0 && i < len(fields) {
			return fields[i].Text, true
		}
		return nil, false
	}
	text, _ := get(colAction)
	switch string(text) {
	case "allocate":
		r.action = allocate
	case "free":
		r.action = free
	case "allocate failure":
		r.action = failure
	default:
		return r, bad(colAction, "%q is not allocate, free or allocate failure", text)
	}
	text, ok := get(colPointer)
	if !ok {
		return r, bad(colPointer, "missing")
	}
	// A request that failed has no pointer; some versions leave it empty.
	if none := r.action == failure && len(text) == 0; !none {
		if r.addr, err = pointer(text); err != nil {
			return r, bad(colPointer, "%v", err)
		}
	}
	if text, ok = get(colSize); !ok {
		return r, bad(colSize, "missing")
	}
	if r.size, err = strconv.ParseInt(string(text), 10, 64); err != nil || r.size < 0 {
		return r, bad(colSize, "%q is not a number of bytes", text)
	}
	if where[colStream] >= 0 {
		if text, ok = get(colStream); !ok {
			return r, bad(colStream, "missing")
		}
		if r.stream, err = pointer(text); err != nil {
			return r, bad(colStream, "%v", err)
		}
		if r.stream == legacyStream {
			r.stream = 0
		}
	}
	if where[colTime] >= 0 {
		text, _ = get(colTime)
		if r.time, err = clk.read(text); err != nil {
			return r, bad(colTime, "%v", err)
		}
	}
	return r, nil
}

// legacyStream is cudaStreamLegacy, another handle of the default stream.
const legacyStream = 1

// pointer reads what %p prints. Streams are written the same way, so that even
// "10" is hexadecimal.
func pointer(s []byte) (uint64, error) {
	t := string(s)
	if t == "(nil)" || t == "nullptr" {
		return 0, nil
	}
	t = strings.TrimPrefix(strings.TrimPrefix(t, "0x"), "0X")
	v, err := strconv.ParseUint(t, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a hexadecimal pointer", s)
	}
	return v, nil
}

const (
	day     = 24 * 60 * 60 * 1_000_000 // µs
	halfDay = day / 2
)

// clock turns times of day into µs that never go back.
type clock struct {
	started   bool
	days      int64
	last      int64 // time of day
	backwards int
}

// read reads HH:MM:SS.ffffff or HH:MM:SS:ffffff. A jump back of more than half
// a day is midnight; a smaller one comes from threads that wrote out of order.
func (c *clock) read(s []byte) (int64, error) {
	t := string(s)
	if len(t) < 8 || t[2] != ':' || t[5] != ':' {
		return 0, fmt.Errorf("%q is not a time such as 15:47:02.841961", s)
	}
	ok := true
	num := func(s string, limit uint64) int64 {
		v, err := strconv.ParseUint(s, 10, 32)
		ok = ok && err == nil && v < limit
		return int64(v)
	}
	us := int64(0)
	if len(t) > 8 {
		if t[8] != '.' && t[8] != ':' || len(t) > 18 || len(t) == 9 {
			return 0, fmt.Errorf("%q is not a time such as 15:47:02.841961", s)
		}
		us = num((t[9:] + "000000")[:6], 1_000_000)
	}
	at := (num(t[0:2], 24)*60+num(t[3:5], 60))*60_000_000 + num(t[6:8], 61)*1_000_000 + us
	if !ok {
		return 0, fmt.Errorf("%q is not a time such as 15:47:02.841961", s)
	}
	switch {
	case !c.started || at >= c.last && at <= c.last+halfDay, at > c.last && c.days == 0:
		c.last = at
	case at < c.last-halfDay:
		c.days++
		c.last = at
	default:
		// Also what was read just before midnight and written after it.
		c.backwards++
	}
	c.started = true
	return c.days*day + c.last, nil
}
