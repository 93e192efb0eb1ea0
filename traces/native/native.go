// Package native reads and writes allocsim's own plain trace formats: CSV and
// Parquet with one row per event and the columns
//
//	time_us,action,id,size,stream[,pool][,stack]
//
// They open in any spreadsheet, pandas or DuckDB, and a round trip keeps every
// event, stream, pool, annotation, call stack and note of a [traces.Trace].
// What the real allocator did (addresses, segments, counters) has no place in
// them; [Losses] says so and the sentence stays with the file.
//
// The columns, the actions and the metadata are described in docs/formats.md.
package native

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/plural"
	"allocsim/traces"
)

// The names of the two formats, as in Trace.Format.
const (
	FormatCSV     = "native-csv"
	FormatParquet = "native-parquet"
)

// The columns.
const (
	colTime = iota
	colAction
	colID
	colSize
	colStream
	colPool
	colStack
	numCols
)

var colNames = [numCols]string{"time_us", "action", "id", "size", "stream", "pool", "stack"}

// required columns; the others have defaults.
const required = colSize + 1

// epochTime is 2001-09-09 in µs since the Unix epoch: a first time beyond it
// is a clock and not a time since the start.
const epochTime = 1_000_000_000_000_000

var kinds = map[string]traces.Kind{
	"alloc": traces.Alloc, "free": traces.Free, "free_requested": traces.FreeRequested,
	"free_completed": traces.FreeCompleted, "empty_cache": traces.EmptyCache, "oom": traces.OOM,
	"release_pool": traces.ReleasePool,
}

// row is one event as both formats hold it.
type row struct {
	time   int64
	kind   traces.Kind
	id     key
	size   int64 // 0 when absent
	stream uint64
	pool   traces.PoolID
	stack  []byte // as written; nil when absent
}

// setPool takes the pool column; empty = the default pool.
func (r *row) setPool(text []byte) (err error) {
	if len(text) == 0 {
		return nil
	}
	if r.pool, err = parsePool(string(text)); err != nil {
		return bad(colPool, "%v", err)
	}
	return nil
}

// key is a block's id: a number, or text if text is not empty.
type key struct {
	n    int64
	text string
	set  bool
}

func (k key) String() string {
	switch {
	case !k.set:
		return "(empty)"
	case k.text != "":
		return strconv.Quote(k.text)
	}
	return strconv.FormatInt(k.n, 10)
}

type liveBlock struct {
	id      traces.BlockID
	pending bool
}

// assembler turns rows into a trace; it is shared by both formats.
type assembler struct {
	b       *traces.Builder
	meta    metadata
	nums    map[int64]liveBlock
	texts   map[string]liveBlock
	stacks  *stackTable
	zero    int64 // first time when times are a clock
	prev    int64
	started bool
}

func newAssembler(sizeHint int) *assembler {
	return &assembler{
		b:     traces.NewBuilder(sizeHint),
		nums:  make(map[int64]liveBlock),
		texts: make(map[string]liveBlock),
	}
}

// fieldError is a problem in one column of a row.
type fieldError struct {
	col int
	msg string
}

func (e *fieldError) Error() string { return colNames[e.col] + ": " + e.msg }

func bad(col int, format string, args ...any) error {
	return &fieldError{col, fmt.Sprintf(format, args...)}
}

func (a *assembler) begin() error {
	for _, s := range a.meta.streams {
		a.b.Stream(s)
	}
	for _, p := range a.meta.pools {
		a.b.Pool(p)
	}
	if len(a.meta.stacks) > 0 {
		a.stacks = newStackTable()
		for _, s := range a.meta.stacks {
			a.stacks.add([]byte(s))
		}
	}
	return a.b.Err()
}

func (a *assembler) find(k key) (liveBlock, bool) {
	if k.text != "" {
		l, ok := a.texts[k.text]
		return l, ok
	}
	l, ok := a.nums[k.n]
	return l, ok
}

func (a *assembler) put(k key, l liveBlock) {
	if k.text != "" {
		a.texts[k.text] = l
	} else {
		a.nums[k.n] = l
	}
}

func (a *assembler) drop(k key) {
	if k.text != "" {
		delete(a.texts, k.text)
	} else {
		delete(a.nums, k.n)
	}
}

func (a *assembler) add(r *row) error {
	if !a.started {
		a.started = true
		if a.meta.startUS == 0 && r.time >= epochTime {
			a.zero = r.time
		}
		a.prev = a.zero
	}
	if r.time < a.prev {
		if a.prev == 0 {
			return bad(colTime, "%d is negative; times are µs since the start", r.time)
		}
		return bad(colTime, "%d comes after %d; rows must be in order of time", r.time, a.prev)
	}
	a.prev = r.time
	t := r.time - a.zero
	if r.kind != traces.EmptyCache && r.kind != traces.ReleasePool && r.kind != traces.OOM && !r.id.set {
		return bad(colID, "missing for %s", r.kind)
	}
	switch r.kind {
	case traces.Alloc, traces.OOM:
		if r.size <= 0 {
			return bad(colSize, "%s needs a size of at least 1 byte", r.kind)
		}
		stream, pool := a.b.Stream(r.stream), a.b.Pool(r.pool)
		var id traces.BlockID
		if r.kind == traces.OOM {
			id = a.b.OOM(t, r.size, stream, pool)
		} else {
			if l, ok := a.find(r.id); ok {
				if l.pending {
					return bad(colID, "%v is allocated again before its free_completed", r.id)
				}
				return bad(colID, "%v is allocated again before its free", r.id)
			}
			id = a.b.Alloc(t, r.size, stream, pool)
			a.put(r.id, liveBlock{id: id})
		}
		if err := a.addStack(id, r.stack); err != nil {
			return err
		}
	case traces.Free, traces.FreeRequested, traces.FreeCompleted:
		l, ok := a.find(r.id)
		switch {
		case !ok:
			return bad(colID, "%s of %v, which is not allocated; what was live before the first row needs alloc rows at the top", r.kind, r.id)
		case l.pending && r.kind != traces.FreeCompleted:
			return bad(colID, "%s of %v, whose free was requested already; only free_completed can follow", r.kind, r.id)
		case !l.pending && r.kind == traces.FreeCompleted:
			return bad(colID, "free_completed of %v without a free_requested; use free for a free that completes at once", r.id)
		}
		switch r.kind {
		case traces.Free:
			a.b.Free(t, l.id)
			a.drop(r.id)
		case traces.FreeRequested:
			a.b.FreeRequested(t, l.id)
			a.put(r.id, liveBlock{l.id, true})
		case traces.FreeCompleted:
			a.b.FreeCompleted(t, l.id)
			a.drop(r.id)
		}
	case traces.EmptyCache:
		a.b.EmptyPool(t, a.b.Pool(r.pool))
	case traces.ReleasePool:
		pool := a.b.Pool(r.pool)
		if pool == 0 {
			return bad(colPool, "release_pool needs the private pool that ends")
		}
		a.b.ReleasePool(t, pool)
	}
	return a.b.Err()
}

func (a *assembler) addStack(id traces.BlockID, text []byte) error {
	if text == nil && a.stacks == nil {
		return nil
	}
	if a.stacks == nil {
		a.stacks = newStackTable()
	}
	s := traces.NoStack
	if text != nil {
		if n, err := strconv.ParseUint(string(text), 10, 32); err == nil {
			if int(n) >= len(a.stacks.s.Stack) {
				return bad(colStack, "%d is not a declared stack; the file declares %d", n, len(a.stacks.s.Stack))
			}
			s = traces.StackID(n)
		} else {
			s = a.stacks.intern(text)
		}
	}
	for len(a.stacks.s.ByBlock) < int(id) {
		a.stacks.s.ByBlock = append(a.stacks.s.ByBlock, traces.NoStack)
	}
	a.stacks.s.ByBlock = append(a.stacks.s.ByBlock, s)
	return nil
}

func (a *assembler) finish(name, format string, extra []string) (*traces.Recording, error) {
	t, _, err := a.b.Build()
	if err != nil {
		return nil, err
	}
	m := &a.meta
	if n := m.startEvents; n > 0 {
		if n > len(t.Events) {
			return nil, fmt.Errorf("start_events: %d exceeds the %d events", n, len(t.Events))
		}
		for i, e := range t.Events[:n] {
			if e.Kind != traces.Alloc && e.Kind != traces.FreeRequested {
				return nil, fmt.Errorf("start_events: event %d of the %d start events is %s", i, n, e.Kind)
			}
		}
		t.StartEvents = n
	}
	t.Source, t.Format, t.Device = name, format, m.device
	t.StartUS = cmp.Or(m.startUS, a.zero)
	t.Meta = m.meta
	t.Meta.ClockUS = cmp.Or(m.meta.ClockUS, t.StartUS)
	t.Annotations = m.annotations
	slices.SortStableFunc(t.Annotations, func(x, y traces.Annotation) int { return cmp.Compare(x.TimeUS, y.TimeUS) })
	if a.stacks != nil {
		for len(a.stacks.s.ByBlock) < t.NumBlocks {
			a.stacks.s.ByBlock = append(a.stacks.s.ByBlock, traces.NoStack)
		}
		t.Stacks = &a.stacks.s
	}
	t.Notes = append(m.notes, extra...)
	return &traces.Recording{Devices: []*traces.Trace{t}}, nil
}

// Losses says, one sentence each, what of t the native formats cannot carry.
func Losses(t *traces.Trace) []string {
	var l []string
	if t.Recorded != nil {
		l = append(l, "The recorded addresses, segments and counters were dropped on conversion to a plain trace: compare with the real allocator on the original file.")
	}
	if t.Start != nil {
		l = append(l, fmt.Sprintf("The recorded placement of the blocks that were live at the start was dropped on conversion to a plain trace: %s %s made afresh.", plural.Of(t.StartEvents, "request"), plural.Are(t.StartEvents)))
	}
	return l
}

// metadata is what both formats say beside the rows, as key and value pairs.
type metadata struct {
	meta        traces.Meta
	device      int
	startUS     int64
	startEvents int
	streams     []uint64
	pools       []traces.PoolID
	stacks      []string
	annotations []traces.Annotation
	notes       []string
}

type pair struct{ key, value string }

// pairsOf lists t's metadata in a fixed order. Keys may repeat.
func pairsOf(t *traces.Trace, declareStacks bool) []pair {
	var p []pair
	add := func(k, v string) { p = append(p, pair{k, v}) }
	addInt := func(k string, v int64) {
		if v != 0 {
			add(k, strconv.FormatInt(v, 10))
		}
	}
	addText := func(k, v string) {
		if v != "" {
			add(k, v)
		}
	}
	m := t.Meta
	addInt("device", int64(t.Device))
	addInt("start_us", t.StartUS)
	if m.ClockUS != t.StartUS {
		addInt("clock_us", m.ClockUS)
	}
	addInt("start_events", int64(t.StartEvents))
	addText("torch", m.Torch)
	addText("torch_since", m.TorchSince)
	addText("torch_before", m.TorchBefore)
	if m.ConfKnown {
		add("conf", m.Conf)
	}
	if m.Fraction != 0 {
		add("fraction", strconv.FormatFloat(m.Fraction, 'g', -1, 64))
	}
	if m.Sidecar {
		add("sidecar", "true")
	}
	addInt("ranks", int64(m.Ranks))
	addText("device_name", m.DeviceName)
	addInt("device_total", m.DeviceTotal)
	for _, b := range m.Bounds {
		add("bound", fmt.Sprintf("%d %d %d %s", b.At, b.Low, b.High, b.Kind))
	}
	addInt("peak_reserved", m.PeakReserved)
	addInt("peak_allocated", m.PeakAllocated)
	for _, k := range slices.Sorted(maps.Keys(m.Settings)) {
		add("setting", k+"="+m.Settings[k])
	}
	if !slices.Equal(t.Streams, []uint64{0}) {
		s := make([]string, len(t.Streams))
		for i, h := range t.Streams {
			s[i] = strconv.FormatUint(h, 10)
		}
		add("streams", strings.Join(s, " "))
	}
	if len(t.Pools) > 1 {
		s := make([]string, len(t.Pools))
		for i, id := range t.Pools {
			s[i] = poolText(id)
		}
		add("pools", strings.Join(s, " "))
	}
	for _, a := range t.Annotations {
		edge := "start"
		if a.End {
			edge = "end"
		}
		add("annotation", fmt.Sprintf("%d %s %s", a.TimeUS, edge, a.Name))
	}
	if declareStacks && t.Stacks != nil {
		for i := range t.Stacks.Stack {
			add("stack", string(appendStack(nil, t.Stacks, traces.StackID(i))))
		}
	}
	for _, n := range t.Notes {
		add("note", n)
	}
	for _, n := range Losses(t) {
		add("note", n)
	}
	return p
}

func poolText(id traces.PoolID) string { return fmt.Sprintf("%d:%d", id[0], id[1]) }

func parsePool(s string) (traces.PoolID, error) {
	a, b, ok := strings.Cut(s, ":")
	x, err := strconv.ParseInt(a, 10, 64)
	y, err2 := strconv.ParseInt(b, 10, 64)
	if !ok || err != nil || err2 != nil {
		return traces.PoolID{}, fmt.Errorf("%q is not a pool id such as 0:1", s)
	}
	return traces.PoolID{x, y}, nil
}

// parseStream reads a stream handle: decimal or 0x hexadecimal; empty is the
// default stream.
func parseStream(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	if h, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		if v, err := strconv.ParseUint(h, 16, 64); err == nil {
			return v, nil
		}
	} else if v, err := strconv.ParseUint(s, 10, 64); err == nil {
		return v, nil
	} else if v, err := parseInt([]byte(s)); err == nil {
		return uint64(v), nil
	}
	return 0, fmt.Errorf("%q is not a stream handle (decimal or 0x hexadecimal)", s)
}

var errNotInt = errors.New("not an integer")

// parseInt reads a decimal integer. It accepts a fraction of zeros, which
// pandas writes for integer columns that have gaps.
func parseInt(s []byte) (int64, error) {
	if n, ok := parseDigits(s); ok {
		return n, nil
	}
	t := string(s)
	if whole, frac, ok := strings.Cut(t, "."); ok && strings.Trim(frac, "0") == "" {
		t = whole
	}
	n, err := strconv.ParseInt(t, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, err
	}
	if err != nil {
		return 0, errNotInt
	}
	return n, nil
}

// parseDigits is the common case without a detour through strings.
func parseDigits(s []byte) (int64, bool) {
	if len(s) == 0 || len(s) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// short is a value as a message has it.
func short(v string) string {
	const most = 40
	if r := []rune(v); len(r) > most {
		return string(r[:most]) + "…"
	}
	return v
}

// set reads one pair. Unknown keys are ignored: they are somebody's comments.
func (m *metadata) set(k, v string) error {
	var err error
	num := func(lo int64) int64 {
		n, e := strconv.ParseInt(v, 10, 64)
		switch {
		case errors.Is(e, strconv.ErrRange):
			err = fmt.Errorf("%s is out of range", short(v))
		case e != nil:
			err = fmt.Errorf("%q is not a whole number", short(v))
		case n < lo:
			err = fmt.Errorf("%d is below %d", n, lo)
		}
		return n
	}
	switch k {
	case "device":
		m.device = int(num(0))
	case "start_us":
		m.startUS = num(0)
	case "clock_us":
		m.meta.ClockUS = num(0)
	case "start_events":
		m.startEvents = int(num(0))
	case "torch":
		m.meta.Torch = v
	case "torch_since":
		m.meta.TorchSince = v
	case "torch_before":
		m.meta.TorchBefore = v
	case "bound":
		var b traces.Bound
		if n, e := fmt.Sscanf(v, "%d %d %d", &b.At, &b.Low, &b.High); e != nil || n != 3 || b.Low < 0 || b.High < b.Low || b.At < b.Low || b.At > b.High {
			return fmt.Errorf("bound: %q is not AT LOW HIGH KIND in bytes", short(v))
		}
		if f := strings.SplitN(v, " ", 4); len(f) == 4 {
			b.Kind = f[3]
		}
		m.meta.Bounds = append(m.meta.Bounds, b)
	case "conf":
		m.meta.Conf, m.meta.ConfKnown = v, true
	case "fraction":
		m.meta.Fraction, err = strconv.ParseFloat(v, 64)
		if err != nil {
			err = fmt.Errorf("%q is not a number", short(v))
		} else if !(m.meta.Fraction >= 0 && m.meta.Fraction <= 1) {
			err = fmt.Errorf("%s is not between 0 and 1", short(v))
		}
	case "sidecar":
		if m.meta.Sidecar, err = strconv.ParseBool(v); err != nil {
			err = fmt.Errorf("%q is neither true nor false", short(v))
		}
	case "ranks":
		m.meta.Ranks = int(num(0))
	case "device_name":
		m.meta.DeviceName = v
	case "device_total":
		m.meta.DeviceTotal = num(0)
	case "peak_reserved":
		m.meta.PeakReserved = num(0)
	case "peak_allocated":
		m.meta.PeakAllocated = num(0)
	case "setting":
		name, value, _ := strings.Cut(v, "=")
		if m.meta.Settings == nil {
			m.meta.Settings = make(map[string]string)
		}
		m.meta.Settings[name] = value
	case "streams":
		for _, f := range strings.Fields(v) {
			h, e := parseStream(f)
			if e != nil {
				return fmt.Errorf("%s: %w", k, e)
			}
			m.streams = append(m.streams, h)
		}
	case "pools":
		for _, f := range strings.Fields(v) {
			id, e := parsePool(f)
			if e != nil {
				return fmt.Errorf("%s: %w", k, e)
			}
			m.pools = append(m.pools, id)
		}
	case "annotation":
		t, rest, _ := strings.Cut(v, " ")
		edge, name, _ := strings.Cut(rest, " ")
		us, e := strconv.ParseInt(t, 10, 64)
		if e != nil || edge != "start" && edge != "end" {
			return fmt.Errorf("annotation: %q is not TIME_US start|end NAME", v)
		}
		m.annotations = append(m.annotations, traces.Annotation{TimeUS: us, Name: name, End: edge == "end"})
	case "stack":
		m.stacks = append(m.stacks, v)
	case "note":
		m.notes = append(m.notes, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", k, err)
	}
	return nil
}
