// Package nsys reads the GPU memory events of Nsight Systems, from the SQLite
// file that
//
//	nsys profile --cuda-memory-usage=true …
//	nsys export --type=sqlite FILE.nsys-rep
//
// makes (table CUDA_GPU_MEMORY_USAGE_EVENTS, schema 3.16; spec trace-formats
// 7.3).
//
// They are what the program asked of the CUDA driver. For a framework with a
// caching allocator those are its segments and not its tensors: good for
// seeing how it grew and for programs that use CUDA directly, not for tuning
// the framework's allocator. Device memory is read (device, array and static);
// host and managed memory are counted in the notes.
package nsys

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/traces"
)

// Format is Trace.Format of these traces.
const Format = "nsys"

// Detect reports whether a file that begins with head is an SQLite database.
func Detect(head []byte) bool { return bytes.HasPrefix(head, []byte("SQLite format 3\x00")) }

const table = "CUDA_GPU_MEMORY_USAGE_EVENTS"

// ENUM_CUDA_MEM_KIND.
const (
	kindPageable = iota
	kindPinned
	kindDevice
	kindArray
	kindManaged
	kindDeviceStatic
	kindManagedStatic
)

// event is a row of the table.
type event struct {
	start   int64 // ns of the report's clock
	process int64
	addr    uint64
	bytes   int64
	stream  uint64
	alloc   bool
}

// Read reads the database at path, which is not changed; name is the file's
// name for the trace.
func Read(ctx context.Context, path, name string) (*traces.Recording, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(abs), RawQuery: "mode=ro&immutable=1&_pragma=trusted_schema(0)&_pragma=query_only(1)"}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	d := &database{ctx, db}
	rec, err := d.read(name)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return rec, err
}

type database struct {
	ctx context.Context
	db  *sql.DB
}

// columns lists the columns of a real table (a view could be anything), in
// lower case; none when it does not exist.
func (d *database) columns(table string) (map[string]bool, error) {
	rows, err := d.db.QueryContext(d.ctx,
		`SELECT lower(c.name) FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name = ?`, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	cols := make(map[string]bool)
	for rows.Next() {
		var c string
		if err := rows.Scan(&c); err != nil {
			return nil, err
		}
		cols[c] = true
	}
	return cols, rows.Err()
}

// rowid is the expression that numbers a table's rows: NULL for a table WITHOUT
// ROWID, which has no such column.
func (d *database) rowid(table string) (string, error) {
	var without bool
	err := d.db.QueryRowContext(d.ctx, `SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?`, table).Scan(&without)
	if without {
		return "NULL", nil
	}
	return "rowid", err
}

// line is the values of a row, whatever their types: SQLite keeps to those of
// the schema only where the schema is strict.
type line struct {
	table   string
	columns []string
	rowid   any
	nth     int // from 1, in the order of the query, for a table without rowids
	values  []any
	dest    []any
	err     error
}

func newLine(table string, columns ...string) *line {
	l := &line{table: table, columns: columns, values: make([]any, len(columns))}
	l.dest = append(l.dest, &l.rowid)
	for i := range l.values {
		l.dest = append(l.dest, &l.values[i])
	}
	return l
}

// scan takes the next row of a query whose first column is the rowid.
func (l *line) scan(from interface{ Scan(...any) error }) error {
	l.nth++
	l.err = nil
	return from.Scan(l.dest...)
}

// bad is an error about column i of the row.
func (l *line) bad(i int, format string, args ...any) error {
	row := fmt.Sprintf("row %d", l.nth)
	if n, ok := l.rowid.(int64); ok {
		row = fmt.Sprintf("row %d", n)
	} else if l.nth > 1 {
		row += " in order of time"
	}
	return fmt.Errorf("table %s, %s: %s is %s", l.table, row, l.columns[i], fmt.Sprintf(format, args...))
}

// int is the whole number in column i. The first value that is none stays in
// l.err.
func (l *line) int(i int) int64 {
	switch v := l.values[i].(type) {
	case int64:
		return v
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= 1<<53 {
			return int64(v)
		}
	}
	if l.err == nil {
		l.err = l.bad(i, "%s, not a whole number", show(l.values[i]))
	}
	return 0
}

// text is the text in column i, as int is the number.
func (l *line) text(i int) string {
	switch v := l.values[i].(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	if l.err == nil {
		l.err = l.bad(i, "%s, not text", show(l.values[i]))
	}
	return ""
}

// show is a value as a message has it.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "empty (NULL)"
	case []byte:
		return "binary data of " + plural.Of(len(v), "byte")
	case string:
		const most = 40
		if r := []rune(v); len(r) > most {
			return strconv.Quote(string(r[:most]) + "…")
		}
		return strconv.Quote(v)
	}
	return fmt.Sprint(v)
}

// operations maps memoryOperationType to alloc (true) or free (false), from
// the file's own enumeration if it has one.
func (d *database) operations() (map[int64]bool, error) {
	ops := map[int64]bool{0: true, 1: false}
	const t = "ENUM_CUDA_DEV_MEM_EVENT_OPER"
	cols, err := d.columns(t)
	if err != nil || !cols["id"] || !cols["name"] {
		return ops, err
	}
	rowid, err := d.rowid(t)
	if err != nil {
		return nil, err
	}
	// coalesce drops the declared types, by which the driver would convert.
	rows, err := d.db.QueryContext(d.ctx, `SELECT `+rowid+`, coalesce(id, NULL), coalesce(name, NULL) FROM `+t)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	l := newLine(t, "id", "name")
	for rows.Next() {
		if err := l.scan(rows); err != nil {
			return nil, err
		}
		id, name := l.int(0), strings.ToLower(l.text(1))
		if l.err != nil {
			return nil, l.err
		}
		if strings.Contains(name, "dealloc") || strings.Contains(name, "free") || strings.Contains(name, "release") {
			ops[id] = false
		} else if strings.Contains(name, "alloc") {
			ops[id] = true
		}
	}
	return ops, rows.Err()
}

func (d *database) read(name string) (*traces.Recording, error) {
	cols, err := d.columns(table)
	if err != nil {
		return nil, fmt.Errorf("not a usable SQLite database: %w", err)
	}
	if len(cols) == 0 {
		other, err := d.columns("StringIds")
		if err == nil && len(other) > 0 {
			return nil, errors.New("the report has no GPU memory events (table " + table + "): record with nsys profile --cuda-memory-usage=true and export again")
		}
		return nil, errors.New("an SQLite database, but not an Nsight Systems export (no table " + table + ")")
	}
	for _, c := range []string{"start", "address", "bytes", "memKind", "memoryOperationType"} {
		if !cols[strings.ToLower(c)] {
			return nil, fmt.Errorf("table %s has no column %s; the schema is not one that is known", table, c)
		}
	}
	ops, err := d.operations()
	if err != nil {
		return nil, err
	}
	rowid, err := d.rowid(table)
	if err != nil {
		return nil, err
	}
	or := func(col, otherwise string) string {
		if cols[strings.ToLower(col)] {
			return ", coalesce(" + col + ", " + otherwise + ")"
		}
		return ", " + otherwise
	}
	order := " ORDER BY start"
	if rowid != "NULL" {
		order += ", rowid"
	}
	rows, err := d.db.QueryContext(d.ctx, `SELECT `+rowid+or("start", "NULL")+or("globalPid", "0")+or("deviceId", "0")+or("address", "0")+
		or("bytes", "0")+or("memKind", "-1")+or("memoryOperationType", "-1")+or("streamId", "0")+` FROM `+table+order)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	byDevice := make(map[int64][]event)
	var host, managed, other int
	const colStart, colDevice, colBytes = 0, 2, 4
	l := newLine(table, "start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType", "streamId")
	for rows.Next() {
		if err := l.scan(rows); err != nil {
			return nil, fmt.Errorf("table %s: %w", table, err)
		}
		e := event{start: l.int(colStart), process: l.int(1), bytes: l.int(colBytes)}
		device, addr, kind, op, stream := l.int(colDevice), l.int(3), l.int(5), l.int(6), l.int(7)
		if l.err != nil {
			return nil, l.err
		}
		alloc, known := ops[op]
		switch {
		case kind == kindPageable || kind == kindPinned:
			host++
		case kind == kindManaged || kind == kindManagedStatic:
			managed++
		case !known || kind != kindDevice && kind != kindArray && kind != kindDeviceStatic:
			other++
		case device < 0 || device > math.MaxInt32:
			return nil, l.bad(colDevice, "%d, not the number of a device", device)
		case e.bytes < 0 || e.bytes > 1<<60:
			return nil, l.bad(colBytes, "%d, which no device can hold", e.bytes)
		case e.start < 0:
			return nil, l.bad(colStart, "%d, before the report's clock began", e.start)
		default:
			// Static variables have neither stream nor process of interest, but
			// live at addresses of their process like everything else.
			e.process = e.process >> 24 & 0xffffff
			e.addr, e.stream, e.alloc = uint64(addr), uint64(stream), alloc
			byDevice[device] = append(byDevice[device], e)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("table %s: %w", table, err)
	}
	if len(byDevice) == 0 {
		if managed > 0 {
			return nil, fmt.Errorf("the report has no events of device memory, only %d of managed memory, whose place is the driver's choice", managed)
		}
		return nil, fmt.Errorf("table %s has no events of device memory", table)
	}
	start, err := d.sessionStart()
	if err != nil {
		return nil, err
	}
	zero := int64(math.MaxInt64)
	for _, ev := range byDevice {
		zero = min(zero, ev[0].start)
	}
	zero = zero / 1000 * 1000
	rec := new(traces.Recording)
	for dev, ev := range byDevice {
		t, err := build(ev, zero)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", dev, err)
		}
		t.Source, t.Format, t.Device = name, Format, int(dev)
		t.Meta.ClockUS = zero / 1000
		if start > 0 {
			t.StartUS = (start + zero) / 1000
		}
		if t.Meta.DeviceName, t.Meta.DeviceTotal, err = d.device(dev); err != nil {
			return nil, err
		}
		for _, n := range []struct {
			n    int
			what string
		}{{host, "host memory"}, {managed, "managed memory, whose place is the driver's choice"}, {other, "an unknown kind"}} {
			if n.n > 0 {
				t.Notes = append(t.Notes, fmt.Sprintf("%s of %s left out.", plural.Of(n.n, "event"), n.what))
			}
		}
		rec.Devices = append(rec.Devices, t)
	}
	slices.SortFunc(rec.Devices, func(x, y *traces.Trace) int { return cmp.Compare(x.Device, y.Device) })
	return rec, nil
}

func build(ev []event, zero int64) (*traces.Trace, error) {
	type key struct {
		process int64
		addr    uint64
	}
	b := traces.NewBuilder(len(ev))
	// What is freed without having been allocated was live at the start.
	type block struct {
		key
		e *event
	}
	var start []block
	seen := make(map[key]bool)
	processes := make(map[int64]bool)
	frees := 0
	for i := range ev {
		e := &ev[i]
		processes[e.process] = true
		if !e.alloc {
			frees++
		}
		k := key{e.process, e.addr}
		if seen[k] {
			continue
		}
		seen[k] = true
		if !e.alloc && e.bytes > 0 {
			start = append(start, block{k, e})
		}
	}
	slices.SortFunc(start, func(x, y block) int {
		return cmp.Or(cmp.Compare(x.process, y.process), cmp.Compare(x.addr, y.addr))
	})
	live := make(map[key]traces.BlockID)
	var startBytes int64
	for _, s := range start {
		live[s.key] = b.Alloc(0, s.e.bytes, b.Stream(s.e.stream), 0)
		startBytes += s.e.bytes
	}
	startEvents := b.Len()
	var lost, empty int
	for i := range ev {
		e := &ev[i]
		t := (e.start - zero) / 1000
		k := key{e.process, e.addr}
		id, ok := live[k]
		switch {
		case e.alloc && e.bytes == 0:
			empty++
		case e.alloc:
			if ok {
				// Addresses are used again: it was freed in between.
				lost++
				b.Free(t, id)
			}
			live[k] = b.Alloc(t, e.bytes, b.Stream(e.stream), 0)
		case ok:
			b.Free(t, id)
			delete(live, k)
		default:
			lost++
		}
	}
	t, _, err := b.Build()
	if err != nil {
		return nil, err
	}
	t.StartEvents = startEvents
	t.Notes = []string{"The events are calls of the CUDA driver. For a program with a caching allocator (PyTorch, JAX, RMM) they are its segments, not its requests."}
	add := func(format string, args ...any) { t.Notes = append(t.Notes, fmt.Sprintf(format, args...)) }
	if len(processes) > 1 {
		add("%d processes used this device; their events are taken together.", len(processes))
	}
	if frees == 0 {
		add("The report has no frees at all: everything stays live to the end, which need not be so.")
	}
	if len(start) > 0 {
		add("%s (%s) of unknown age: freed in the report without having been allocated in it, so allocated at its start.", plural.Of(len(start), "block"), bytesize.Format(startBytes))
	}
	if lost > 0 {
		add("%s at odds with what is live at the address: events are missing.", plural.Of(lost, "event"))
	}
	if empty > 0 {
		add("%s of 0 bytes left out.", plural.Of(empty, "allocation"))
	}
	return t, nil
}

// sessionStart is the start of the report in ns since the Unix epoch; 0 when
// unknown.
func (d *database) sessionStart() (int64, error) {
	const t = "TARGET_INFO_SESSION_START_TIME"
	cols, err := d.columns(t)
	if err != nil || !cols["utcepochns"] {
		return 0, err
	}
	l := newLine(t, "utcEpochNs")
	err = d.first(l, `coalesce(utcEpochNs, 0)`, "")
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	ns := l.int(0)
	if ns < 0 || ns > math.MaxInt64/2 {
		ns = 0
	}
	return ns, l.err
}

// first takes the first row of l's table that where holds for.
func (d *database) first(l *line, columns, where string, args ...any) error {
	rowid, err := d.rowid(l.table)
	if err != nil {
		return err
	}
	query := `SELECT ` + rowid + `, ` + columns + ` FROM ` + l.table + where
	if rowid != "NULL" {
		query += " ORDER BY rowid"
	}
	return l.scan(d.db.QueryRowContext(d.ctx, query+` LIMIT 1`, args...))
}

// device looks up the name and bytes of a CUDA device.
func (d *database) device(n int64) (name string, total int64, err error) {
	const gpus, mapping = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"
	cols, err := d.columns(gpus)
	if err != nil || !cols["name"] || !cols["id"] {
		return "", 0, err
	}
	// CUDA's numbering need not be that of the machine.
	to, err := d.columns(mapping)
	if err != nil {
		return "", 0, err
	}
	if to["gpuid"] && to["cudaid"] {
		l := newLine(mapping, "gpuId")
		err := d.first(l, `coalesce(gpuId, NULL)`, ` WHERE cudaId = ?`, n)
		if err == nil {
			n, err = l.int(0), l.err
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return "", 0, err
		}
	}
	memory := "0"
	if cols["totalmemory"] {
		memory = "coalesce(totalMemory, 0)"
	}
	l := newLine(gpus, "name", "totalMemory")
	err = d.first(l, `coalesce(name, ''), `+memory, ` WHERE id = ?`, n)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	name, total = l.text(0), max(0, l.int(1))
	return name, total, l.err
}
