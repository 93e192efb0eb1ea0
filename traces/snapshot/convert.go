package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"allocsim/internal/pickle"
	"allocsim/internal/plural"
	"allocsim/traces"
)

// contradiction is an event that cannot be true of the memory before it.
type contradiction struct {
	device int
	index  int // in the device's trace
	entry  entry
	what   string
	// early reports that events before the first one of the trace may explain
	// it.
	early bool
}

func (c *contradiction) Error() string {
	if c.index < 0 {
		return fmt.Sprintf("device %d: %s", c.device, c.what)
	}
	return fmt.Sprintf("device %d, event %d (%s of %d bytes at 0x%x): %s", c.device, c.index, c.entry.action, c.entry.size, c.entry.addr, c.what)
}

// segAttr is what is known about a range obtained from the driver.
type segAttr struct {
	stream     uint16 // file's number
	pool       uint8  // file's number
	small      bool
	expandable bool
}

// private is a final segment of a private pool.
type private struct {
	addr, end uint64
	pool      uint8 // file's number
	created   int   // index of the entry since when it exists
}

// converter makes the trace of one device.
type converter struct {
	ctx    context.Context
	rec    *records
	dec    *pickle.Decoder
	source string
	device int

	first, n int       // the device's entries in rec.entries
	segs     []segment // final segments, by address
	hasFinal bool      // the file says what the final segments are
	finalErr error     // what is wrong with them
	caches   []int64   // empty_cache calls, µs since the epoch, ascending
	settings map[string]string
	cut      bool                    // the history is no more than a single entry
	emptying map[traces.StackID]bool // what namesEmptyCache has found

	kinds                [actOther + 1]int   // entries of each action
	delayed              int                 // frees completed later than at once
	requested, completed bool                // which kinds of free the trace has
	poolIDs              bool                // entries carry pool ids
	moved                struct{ at, n int } // by restoreOrder
	noAllocs             bool                // frees without a single alloc
	noSegments           bool                // no segment_alloc or segment_map
	privates             []private

	notes []string
}

func (c *converter) at(i int) *entry { return c.rec.entries.at(c.first + i) }

func (c *converter) fail(i int, early bool, format string, args ...any) error {
	e := &contradiction{device: c.device, index: i, what: fmt.Sprintf(format, args...), early: early}
	if i >= 0 {
		e.entry = *c.at(i)
	}
	return e
}

func (c *converter) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// pendingBit marks, in the numbers of memory.live, a block whose free waits for
// its completion.
const pendingBit = 1 << 31

// memory is the allocator's memory at one moment.
type memory struct {
	live *rangeSet // blocks by requested bytes; the number is the caller's, with pendingBit
	segs *rangeSet // segments; expandable ones as merged mapped ranges; the number indexes attr
	attr []segAttr
	// near remembers segments found lately, by the 2 MiB page that was asked
	// for: most allocations are served from few.
	near      [nearLen]span
	nearDirty bool
}

type span struct{ addr, end uint64 }

const nearLen = 256

func newMemory() *memory { return &memory{live: newRangeSet(), segs: newRangeSet()} }

func (m *memory) newAttr(a segAttr) uint32 {
	m.attr = append(m.attr, a)
	return uint32(len(m.attr) - 1)
}

// addSegment adds a range; an expandable one joins its neighbours. It returns
// the range in the way if there is one.
func (m *memory) addSegment(addr, end uint64, a segAttr) (inWay uint64, ok bool) {
	if p, hit := m.segs.overlap(addr, end); hit {
		w, _, _ := m.segs.get(p)
		return w, false
	}
	m.nearDirty = true
	val := uint32(0)
	joined := false
	if a.expandable {
		if p := m.segs.find(addr); m.segs.valid(p) {
			if pa, pe, v := m.segs.get(p); pe == addr && m.attr[v].expandable && m.attr[v].stream == a.stream {
				addr, val, joined = pa, v, true
				m.segs.remove(p)
			}
		}
		if p, hit := m.segs.exact(end); hit {
			if _, ne, v := m.segs.get(p); m.attr[v].expandable && m.attr[v].stream == a.stream {
				end = ne
				if !joined {
					val, joined = v, true
				}
				m.segs.remove(p)
			}
		}
	}
	if !joined {
		val = m.newAttr(a)
	}
	m.segs.insert(addr, end, val)
	return 0, true
}

// removeSegment removes a whole segment, or a part of an expandable one. It
// reports whether there was one.
func (m *memory) removeSegment(addr, end uint64, expandable bool) bool {
	p := m.segs.find(addr)
	if !m.segs.valid(p) {
		return false
	}
	a, e, v := m.segs.get(p)
	if m.attr[v].expandable != expandable || a > addr || e < end || (!expandable && (a != addr || e != end)) {
		return false
	}
	m.nearDirty = true
	m.segs.remove(p)
	if a < addr {
		m.segs.insert(a, addr, v)
	}
	if e > end {
		m.segs.insert(end, e, m.newAttr(m.attr[v]))
	}
	return true
}

// inSegment reports whether [addr, end) lies in one known segment.
func (m *memory) inSegment(addr, end uint64) bool {
	if m.nearDirty {
		clear(m.near[:])
		m.nearDirty = false
	}
	n := &m.near[addr>>21%nearLen]
	if addr < n.addr || addr >= n.end {
		p := m.segs.find(addr)
		if !m.segs.valid(p) {
			return false
		}
		n.addr, n.end, _ = m.segs.get(p)
	}
	return addr < n.end && end <= n.end
}

// scan looks at the entries once: which kinds there are, and whether their
// order is that of time.
func (c *converter) scan() {
	backwards := 0
	last := int64(0)
	freed := noDeviceFree // by the entry before
	for i := range c.n {
		e := c.at(i)
		c.kinds[e.action]++
		switch {
		case e.action == actFreeRequested:
			freed = e.addr
		case e.action == actFreeCompleted && e.addr != freed:
			c.delayed++
			fallthrough
		default:
			freed = noDeviceFree
		}
		c.poolIDs = c.poolIDs || e.pool != 0
		if e.timeUS < last {
			backwards++
		}
		last = e.timeUS
	}
	requested, completed := c.kinds[actFreeRequested], c.kinds[actFreeCompleted]
	c.requested, c.completed = requested > 0, completed > 0
	switch {
	case completed == 0 && c.nothingCompleted():
		c.completed = true // recorded, but none has happened
	case requested > 0 && completed == 0:
		c.note("No free_completed is recorded (skip_actions): every free is taken to complete at once.")
	case requested == 0 && completed > 0:
		c.note("No free_requested is recorded (skip_actions): every block is taken to be freed where its free completed.")
	}
	c.noAllocs = c.kinds[actAlloc] == 0 && requested+completed > 0
	c.noSegments = c.kinds[actSegmentAlloc]+c.kinds[actSegmentMap] == 0
	if n := c.kinds[actOther]; n > 0 {
		c.note("Of the trace, %s of kinds that this version does not know are ignored.", plural.Count(n, "entry", "entries"))
	}
	if backwards > 0 {
		c.restoreOrder(backwards)
	}
}

const noAllocs = "the trace has frees but no alloc: it was recorded with skip_actions=[\"alloc\"] and cannot be replayed; record again without skipping alloc"

// nothingCompleted reports whether all frees of a trace without free_completed
// are still pending at its end.
func (c *converter) nothingCompleted() bool {
	pending := make(map[uint64]bool)
	for _, s := range c.segs {
		for _, b := range c.rec.blocks[s.first:][:s.n] {
			if b.state == traces.ActivePendingFree {
				pending[b.addr] = true
			}
		}
	}
	for i := range c.n {
		if e := c.at(i); e.action == actFreeRequested && !pending[e.addr] {
			return false
		}
	}
	return true
}

// restoreOrder puts entries back in the order of time. When the limit of
// PyTorch's ring buffer was raised after it wrapped, a piece from the middle
// stands at the end of the export (spec B4). If no piece fits exactly, the
// clock and not the buffer is at fault: then the order of the file is kept.
func (c *converter) restoreOrder(backwards int) {
	tail := 1
	for ; tail < c.n && c.at(tail).timeUS >= c.at(tail-1).timeUS; tail++ {
	}
	from, to := c.at(tail).timeUS, c.at(c.n-1).timeUS
	at := 0
	for ; at < tail && c.at(at).timeUS < to; at++ {
	}
	if backwards > 1 || (at > 0 && c.at(at-1).timeUS > from) {
		c.note("time_us goes back at %s; the order of the file is kept.", plural.Count(backwards, "entry", "entries"))
		return
	}
	c.rotate(at, tail, c.n)
	c.moved.at, c.moved.n = at, c.n-tail
	c.note("%s at the end of the trace belong before entry %d (the ring buffer's limit was raised after it wrapped) and were put there.", plural.Count(c.n-tail, "entry", "entries"), at)
}

// keepOrder undoes restoreOrder.
func (c *converter) keepOrder() {
	c.rotate(c.moved.at, c.moved.at+c.moved.n, c.n)
	c.moved.n = 0
	c.notes[len(c.notes)-1] = "time_us goes back at 1 entry; the order of the file is kept."
}

// rotate swaps the entries [a, b) and [b, end).
func (c *converter) rotate(a, b, end int) {
	first := make([]entry, 0, b-a)
	for i := a; i < b; i++ {
		first = append(first, *c.at(i))
	}
	for i := b; i < end; i++ {
		*c.at(i - b + a) = *c.at(i)
	}
	for i := range first {
		*c.at(a + end - b + i) = first[i]
	}
}

// findPrivates lists the final segments of private pools and since when they
// exist (spec verification 3.3).
func (c *converter) findPrivates() {
	if c.poolIDs {
		return
	}
	for _, s := range c.segs {
		if s.pool != 0 {
			c.privates = append(c.privates, private{addr: s.addr, end: s.addr + uint64(s.size), pool: s.pool})
		}
	}
	if len(c.privates) == 0 {
		return
	}
	mapped := make([]int64, len(c.privates))
	for i := range c.n {
		e := c.at(i)
		switch e.action {
		case actSegmentAlloc, actSegmentMap:
			if p := c.privateAt(e.addr); p >= 0 {
				if mapped[p] <= 0 {
					mapped[p] = 0
					c.privates[p].created = i
				}
				mapped[p] += e.size
			}
		case actSegmentFree, actSegmentUnmap:
			if p := c.privateAt(e.addr); p >= 0 {
				mapped[p] -= e.size
			}
		}
	}
}

// privateAt is the private segment that holds addr, -1 if none does.
func (c *converter) privateAt(addr uint64) int {
	i, ok := slices.BinarySearchFunc(c.privates, addr, func(p private, a uint64) int { return cmp.Compare(p.addr, a) })
	if !ok {
		i--
	}
	if i >= 0 && addr < c.privates[i].end {
		return i
	}
	return -1
}

// poolAt is the pool of entry i's address.
func (c *converter) poolAt(i int, e *entry) uint8 {
	if len(c.privates) > 0 {
		if p := c.privateAt(e.addr); p >= 0 && i >= c.privates[p].created {
			return c.privates[p].pool
		}
	}
	return e.pool
}

// startBlock is a block that was live before the first entry.
type startBlock struct {
	addr      uint64
	requested int64
	size      int64
	stack     traces.StackID
	stream    uint16 // file's number
	pool      uint8  // file's number
	pending   bool
}

// startSegment is a segment that existed before the first entry.
type startSegment struct {
	addr, end uint64
	attr      segAttr
	blocks    []startBlock
}

// output collects the trace under construction.
type output struct {
	b       *traces.Builder
	streams []int32 // file's stream number → builder's, -1 = not yet
	pools   []int16 // file's pool number → builder's, -1 = not yet
	addr    []uint64
	stacks  []traces.StackID
	driver  []traces.DriverEvent
	open    int              // driver events from here on have no Before yet
	callers []traces.StackID // of the driver events from open on
	oomFree []int64
}

func (c *converter) newOutput(extra int) *output {
	allocs := c.kinds[actAlloc] + c.kinds[actOOM]
	events := allocs + c.kinds[actFreeRequested]
	if c.requested {
		events += c.delayed
	} else {
		events += c.kinds[actFreeCompleted]
	}
	// The builder makes room for half as many blocks as events, but a program
	// that ends with more than it began with has more.
	o := &output{
		b:       traces.NewBuilder(max(events+extra+len(c.caches), 2*(allocs+extra))),
		streams: make([]int32, len(c.rec.streams)),
		pools:   make([]int16, len(c.rec.pools)),
		addr:    make([]uint64, 0, allocs+extra),
		stacks:  make([]traces.StackID, 0, allocs+extra),
	}
	for i := range o.streams {
		o.streams[i] = -1
	}
	for i := range o.pools {
		o.pools[i] = -1
	}
	return o
}

func (c *converter) stream(o *output, n uint16) uint16 {
	if o.streams[n] < 0 {
		o.streams[n] = int32(o.b.Stream(c.rec.streams[n]))
	}
	return uint16(o.streams[n])
}

func (c *converter) pool(o *output, n uint8) uint8 {
	if o.pools[n] < 0 {
		o.pools[n] = int16(o.b.Pool(c.rec.pools[n]))
	}
	return uint8(o.pools[n])
}

func (o *output) block(addr uint64, stack traces.StackID) {
	o.addr = append(o.addr, addr)
	o.stacks = append(o.stacks, stack)
}

// request sets the Before of the driver events that belong to the event about
// to be added, which was called from the given place: PyTorch gives the
// releases inside an allocation the allocation's own call stack.
func (o *output) request(from traces.StackID) {
	for k := o.open; k < len(o.driver); k++ {
		d := &o.driver[k]
		d.Before = uint32(o.b.Len())
		if s := o.callers[k-o.open]; s == from && s != traces.NoStack && d.Caller == traces.CallerUnknown {
			d.Caller = traces.CallerRequest
		}
	}
	o.open, o.callers = len(o.driver), o.callers[:0]
}

// replay walks the entries forward from the given start state, checks every
// one against the memory before it and makes the trace.
func (c *converter) replay(start []startSegment) (*traces.Trace, error) {
	extra := 0
	for _, s := range start {
		extra += 2 * len(s.blocks)
	}
	o := c.newOutput(extra)
	m := newMemory()
	var t0 int64
	if c.n > 0 {
		t0 = c.at(0).timeUS
	}
	for _, s := range start {
		m.addSegment(s.addr, s.end, s.attr)
		for _, b := range s.blocks {
			id := o.b.Alloc(0, b.requested, c.stream(o, b.stream), c.pool(o, b.pool))
			o.block(b.addr, b.stack)
			if _, ok := m.live.insert(b.addr, b.addr+uint64(b.requested), id); !ok {
				return nil, c.fail(-1, false, "two blocks that were live before the first event overlap at 0x%x", b.addr)
			}
		}
	}
	for _, s := range start {
		for _, b := range s.blocks {
			if b.pending {
				p, _ := m.live.exact(b.addr)
				ch := m.live.chunks[p.c]
				o.b.FreeRequested(0, ch.val[p.i])
				ch.val[p.i] |= pendingBit
			}
		}
	}
	startEvents := o.b.Len()

	caches := c.caches
	if start != nil {
		caches = c.cachesInWindow()
	}
	var last int64 // time of the last event, relative
	for i := 0; i < c.n; i++ {
		e := c.at(i)
		if i&0xfff == 0 {
			if err := c.ctx.Err(); err != nil {
				return nil, err
			}
		}
		// Completions that stand where an empty_cache belongs are its own.
		for len(caches) > 0 && caches[0] <= e.timeUS && e.action != actFreeCompleted && e.action < actSnapshot {
			last = max(last, caches[0]-t0)
			o.b.EmptyCache(last)
			caches = caches[1:]
		}
		last = max(last, e.timeUS-t0)
		switch e.action {
		case actAlloc:
			end := e.addr + uint64(e.size)
			if e.size == 0 || end > 1<<63 {
				return nil, c.fail(i, false, "an allocation of %d bytes is impossible", e.size)
			}
			if !m.inSegment(e.addr, end) {
				what := "it lies in no segment that exists at this moment"
				if c.noSegments {
					what += " (no segment event is recorded at all; was the recording made with skip_actions=[\"segment_alloc\"]?)"
				}
				return nil, c.fail(i, true, "%s", what)
			}
			p, ok := m.live.insert(e.addr, end, uint32(len(o.addr)))
			if !ok {
				a, z, _ := m.live.get(p)
				return nil, c.fail(i, false, "it overlaps the block of %d bytes at 0x%x, which is still live", z-a, a)
			}
			o.request(e.stack)
			o.b.Alloc(last, e.size, c.stream(o, e.stream), c.pool(o, c.poolAt(i, e)))
			o.block(e.addr, e.stack)
		case actOOM:
			if e.size == 0 {
				return nil, c.fail(i, false, "an allocation of 0 bytes cannot fail")
			}
			o.request(e.stack)
			o.b.OOM(last, e.size, c.stream(o, e.stream), c.pool(o, e.pool))
			o.block(0, e.stack)
			free := int64(-1)
			if e.addr != noDeviceFree {
				free = int64(e.addr)
			}
			o.oomFree = append(o.oomFree, free)
		case actFreeRequested:
			p, ok := m.live.exact(e.addr)
			if !ok {
				return nil, c.fail(i, true, "no block is live at this address")
			}
			ch := m.live.chunks[p.c]
			id := ch.val[p.i]
			if id&pendingBit != 0 {
				return nil, c.fail(i, false, "the block has been freed already and waits for its completion")
			}
			o.request(traces.NoStack)
			j := i + 1
			for j < c.n && c.at(j).action >= actSnapshot {
				j++
			}
			switch {
			case !c.completed:
				o.b.Free(last, id)
				m.live.vacate(p)
			case j < c.n && c.at(j).action == actFreeCompleted && c.at(j).addr == e.addr:
				o.b.Free(last, id)
				m.live.vacate(p)
				i = j
			default:
				o.b.FreeRequested(last, id)
				ch.val[p.i] |= pendingBit
			}
		case actFreeCompleted:
			p, ok := m.live.exact(e.addr)
			if !ok {
				return nil, c.fail(i, true, "no block is live at this address")
			}
			_, _, id := m.live.get(p)
			switch {
			case !c.requested:
				o.request(traces.NoStack)
				o.b.Free(last, id)
			case id&pendingBit == 0:
				return nil, c.fail(i, false, "the block is live and no free of it was requested")
			default:
				o.b.FreeCompleted(last, id&^pendingBit)
			}
			m.live.vacate(p)
		case actSegmentAlloc, actSegmentMap:
			end := e.addr + uint64(e.size)
			if e.size == 0 || end > 1<<63 {
				return nil, c.fail(i, false, "the range is impossible")
			}
			a := segAttr{stream: e.stream, pool: c.poolAt(i, e), expandable: e.action == actSegmentMap, small: e.size == smallSegment}
			if w, ok := m.addSegment(e.addr, end, a); !ok {
				return nil, c.fail(i, false, "it overlaps the segment at 0x%x, which still exists", w)
			}
			c.driverEvent(o, e, a.pool)
		case actSegmentFree, actSegmentUnmap:
			end := e.addr + uint64(e.size)
			if e.size == 0 || end > 1<<63 {
				return nil, c.fail(i, false, "the range is impossible")
			}
			if p, hit := m.live.overlap(e.addr, end); hit {
				a, z, _ := m.live.get(p)
				return nil, c.fail(i, false, "the block of %d bytes at 0x%x in it is still live", z-a, a)
			}
			if !m.removeSegment(e.addr, end, e.action == actSegmentUnmap) {
				return nil, c.fail(i, true, "no such segment exists at this moment")
			}
			c.driverEvent(o, e, c.poolAt(i, e))
		}
	}
	for _, t := range caches {
		last = max(last, t-t0)
		o.b.EmptyCache(last)
	}
	o.request(traces.NoStack)
	return c.trace(o, m, start, startEvents, t0)
}

const smallSegment = 2 << 20

func (c *converter) driverEvent(o *output, e *entry, pool uint8) {
	d := traces.DriverEvent{
		Addr: e.addr, Size: e.size,
		Stream: c.stream(o, e.stream), Pool: c.pool(o, pool),
		Action: traces.SegmentAlloc + traces.Action(e.action-actSegmentAlloc),
	}
	from := traces.NoStack
	if d.Action.Releases() {
		from = e.stack
		if c.namesEmptyCache(from) {
			d.Caller = traces.CallerEmptyCache
		}
	}
	o.driver = append(o.driver, d)
	o.callers = append(o.callers, from)
}

// namesEmptyCache reports whether a call stack is that of
// torch.cuda.empty_cache(): its innermost Python frame is that function, or one
// of its C++ frames PyTorch's emptyCache. A function of the user's with the
// same name calls PyTorch's.
func (c *converter) namesEmptyCache(s traces.StackID) bool {
	if s == traces.NoStack {
		return false
	}
	if named, ok := c.emptying[s]; ok {
		return named
	}
	named, python := false, false
	for _, f := range c.rec.stacks.get(int(s)) {
		k := c.rec.frames[f]
		name, file := c.text(k.name), c.text(k.file)
		if !strings.HasSuffix(file, ".py") {
			named = named || strings.Contains(name, "emptyCache")
			continue
		}
		if !python && name == "empty_cache" && strings.Contains(file, "torch") && strings.HasSuffix(file, "memory.py") {
			named = true
		}
		python = true
	}
	if c.emptying == nil {
		c.emptying = make(map[traces.StackID]bool)
	}
	c.emptying[s] = named
	return named
}

func (c *converter) text(id uint32) string {
	if id == noString {
		return ""
	}
	return c.dec.StringByID(id)
}

// cachesInWindow are the empty_cache calls that a recording without its
// beginning can show. Of those before its first entry only the last can, and
// only if its releases go on after the cut.
func (c *converter) cachesInWindow() []int64 {
	if c.n == 0 {
		return nil
	}
	i, _ := slices.BinarySearch(c.caches, c.at(0).timeUS)
	if i > 0 && c.startsWithRelease() {
		i--
	}
	return c.caches[i:]
}

// startsWithRelease reports whether the first entries are releases that no
// allocation can have caused (spec verification 3.1, rule T).
func (c *converter) startsWithRelease() bool {
	released := false
	for i := range c.n {
		switch c.at(i).action {
		case actSegmentFree, actSegmentUnmap:
			released = true
		case actSegmentAlloc, actSegmentMap, actOOM:
			return false
		case actAlloc, actFreeRequested:
			return released
		}
	}
	return released
}

// trace finishes the output and checks it against the final segments.
func (c *converter) trace(o *output, m *memory, start []startSegment, startEvents int, t0 int64) (*traces.Trace, error) {
	var final *traces.State
	if c.hasFinal {
		var err error
		if final, err = c.final(o, m); err != nil {
			return nil, err
		}
	}
	var begin *traces.State
	if start != nil {
		begin = c.startState(o, start)
	}
	t, renumber, err := o.b.Build()
	if err != nil {
		return nil, fmt.Errorf("device %d: %w", c.device, err)
	}
	for i := range o.driver {
		o.driver[i].Stream = renumber[o.driver[i].Stream]
	}
	for _, s := range []*traces.State{final, begin} {
		if s != nil {
			for i := range s.Segments {
				s.Segments[i].Stream = renumber[s.Segments[i].Stream]
			}
		}
	}
	t.Source, t.Format, t.Device = c.source, Format, c.device
	t.StartUS = t0
	t.Meta.ClockUS = t0
	t.StartEvents, t.Start = startEvents, begin
	t.Meta.NoCompletions = !c.completed && c.requested
	t.Recorded = &traces.Recorded{Addr: o.addr, Driver: o.driver, OOMDeviceFree: o.oomFree, Final: final}
	t.Stacks = &traces.Stacks{ByBlock: o.stacks}
	return t, nil
}

// final turns the file's final segments into a State. With m it demands that
// the replayed memory equals them and names the blocks by their ids.
func (c *converter) final(o *output, m *memory) (*traces.State, error) {
	if c.finalErr != nil {
		return nil, c.finalErr
	}
	after := func(format string, args ...any) error {
		return c.fail(-1, true, "after the last event (%d): %s", c.n-1, fmt.Sprintf(format, args...))
	}
	st := &traces.State{Segments: make([]traces.Segment, 0, len(c.segs))}
	live := 0
	for _, s := range c.segs {
		end := s.addr + uint64(s.size)
		if m != nil {
			p, ok := m.segs.exact(s.addr)
			if !ok {
				return nil, after("the file's final segments have one of %d bytes at 0x%x, which the events do not explain", s.size, s.addr)
			}
			if _, e, _ := m.segs.get(p); e != end {
				return nil, after("the final segment at 0x%x has %d bytes, by the events it has %d", s.addr, s.size, e-s.addr)
			}
		}
		seg := traces.Segment{
			Addr: s.addr, Size: s.size, Stream: c.stream(o, s.stream), Pool: c.pool(o, s.pool),
			Small: s.small, Expandable: s.expandable, Blocks: make([]traces.SegmentBlock, 0, s.n),
		}
		for _, b := range c.rec.blocks[s.first:][:s.n] {
			sb := traces.SegmentBlock{Addr: b.addr, Size: b.size, Requested: b.requested, ID: traces.NoBlock, State: b.state, Stack: b.stack}
			if b.state != traces.Inactive && m != nil {
				p, ok := m.live.exact(b.addr)
				switch {
				case ok:
					a, e, id := m.live.get(p)
					if !b.hasRequested {
						sb.Requested = int64(e - a)
					} else if int64(e-a) != b.requested {
						return nil, after("the block at 0x%x was asked for with %d bytes, the final segments say %d", a, e-a, b.requested)
					}
					if pending := id&pendingBit != 0; pending != (b.state == traces.ActivePendingFree) {
						return nil, after("the block at 0x%x has another state in the final segments (%s)", a, stateName(b.state))
					}
					sb.ID = id &^ pendingBit
					live++
				case b.state == traces.ActivePendingFree && !c.completed:
					// Completions were not recorded: its free was taken as done.
				default:
					return nil, after("the block of %d bytes at 0x%x is live in the final segments, but not by the events", b.requested, b.addr)
				}
			}
			seg.Blocks = append(seg.Blocks, sb)
		}
		st.Segments = append(st.Segments, seg)
	}
	if m != nil {
		if n := m.segs.len(); n != len(c.segs) {
			return nil, after("by the events there are %s, in the file's final state %d", plural.Of(n, "segment"), len(c.segs))
		}
		if n := m.live.len(); n != live {
			return nil, after("by the events there are %s live, in the final segments %d", plural.Of(n, "block"), live)
		}
	}
	return st, nil
}

func stateName(s traces.BlockState) string {
	switch s {
	case traces.ActiveAllocated:
		return "active_allocated"
	case traces.ActivePendingFree:
		return "active_pending_free"
	}
	return "inactive"
}

// prepareFinal sorts the device's final segments, derives block addresses that
// old files lack, and checks that blocks tile their segments.
func (c *converter) prepareFinal() {
	slices.SortStableFunc(c.segs, func(a, b segment) int { return cmp.Compare(a.addr, b.addr) })
	for i, s := range c.segs {
		if i > 0 && c.segs[i-1].addr+uint64(c.segs[i-1].size) > s.addr {
			c.badFinal("the final segments at 0x%x and 0x%x overlap", c.segs[i-1].addr, s.addr)
		}
		at, end := s.addr, s.addr+uint64(s.size)
		if end > 1<<63 {
			c.badFinal("the final segment at 0x%x has %d bytes", s.addr, s.size)
			return
		}
		blocks := c.rec.blocks[s.first:][:s.n]
		for j := range blocks {
			b := &blocks[j]
			if !b.hasAddr {
				b.addr, b.hasAddr = at, true
			}
			if b.addr != at || b.size == 0 {
				c.badFinal("the final segment at 0x%x: a block is missing at 0x%x", s.addr, at)
			}
			if uint64(b.size) > end-at {
				c.badFinal("the final segment at 0x%x of %d bytes: the block at 0x%x has %d", s.addr, s.size, at, b.size)
				return // sizes that add up to more than an address holds
			}
			if b.state != traces.Inactive && (b.requested > b.size || b.requested == 0) {
				c.badFinal("the final segment at 0x%x: the block of %d bytes at 0x%x was asked for with %d", s.addr, b.size, b.addr, b.requested)
			}
			at += uint64(b.size)
		}
		if at != end || s.n == 0 {
			c.badFinal("the final segment at 0x%x has %d bytes, but its blocks cover %d of them", s.addr, s.size, at-s.addr)
		}
	}
}

func (c *converter) badFinal(format string, args ...any) {
	if c.finalErr == nil {
		c.finalErr = c.fail(-1, false, format, args...)
	}
}
