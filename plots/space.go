package plots

import (
	"cmp"
	"slices"
	"sort"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

// gap is a free range of addresses inside a segment.
type gap struct {
	lo, hi uint64
	// since is when the part of it that can be given back (held.run) began to
	// be as it is.
	since int64
}

func (g gap) size() int64 { return int64(g.hi - g.lo) }

// held is a contiguous range that the allocator has from the driver: a
// cudaMalloc segment, or the mapped stretch of an expandable one.
type held struct {
	lo, hi uint64
	since  int64 // when its extent began to be this
	// page is the size in which an expandable segment is mapped and unmapped,
	// counted from base; 0 for a segment that comes and goes as a whole.
	page      int64
	base      uint64
	free      []gap // ascending, never adjacent
	freeBytes int64
	largest   int64 // largest gap
}

func (h *held) size() int64 { return int64(h.hi - h.lo) }

// run is the part of a gap that the allocator can give back to the driver:
// a segment in which nothing lives, or whole pages of an expandable one.
func (h *held) run(g gap) (lo, hi uint64) {
	if h.page == 0 {
		if g.lo == h.lo && g.hi == h.hi {
			return g.lo, g.hi
		}
		return 0, 0
	}
	page := uint64(h.page)
	// Distances from a page boundary at or below the segment's start.
	origin := h.lo - (h.lo-h.base)%page
	if h.lo < h.base {
		origin = h.base - (h.base-h.lo+page-1)/page*page
	}
	lo = origin + (g.lo-origin+page-1)/page*page
	hi = origin + (g.hi-origin)/page*page
	if lo >= hi {
		return 0, 0
	}
	return lo, hi
}

// space follows which addresses an allocator holds and which of them are
// free, from its events alone. Times are those of a scale.
type space struct {
	segs     []*held // ascending
	last     int     // index found last
	reserved int64
	free     int64
	cached   int64 // free bytes that can be given back
	largest  int64 // largest gap of all; valid unless stale
	stale    bool
	// extent and idle, if not nil, are told each period in which a segment has
	// one extent, and in which a range could have been given back.
	extent, idle func(lo, hi uint64, from, to int64)
}

// find returns the index of the segment that contains addr, or -1.
func (s *space) find(addr uint64) int {
	if s.last < len(s.segs) {
		if h := s.segs[s.last]; h.lo <= addr && addr < h.hi {
			return s.last
		}
	}
	i := sort.Search(len(s.segs), func(i int) bool { return s.segs[i].hi > addr })
	if i == len(s.segs) || s.segs[i].lo > addr {
		return -1
	}
	s.last = i
	return i
}

// swap replaces free[i:j] of a segment by other gaps.
func (s *space) swap(h *held, i, j int, now int64, gaps ...gap) {
	var most int64
	for _, g := range h.free[i:j] {
		h.freeBytes -= g.size()
		s.free -= g.size()
		most = max(most, g.size())
		lo, hi := h.run(g)
		s.cached -= int64(hi - lo)
		kept := false
		for k := range gaps {
			if l, u := h.run(gaps[k]); lo < hi && l == lo && u == hi {
				gaps[k].since, kept = g.since, true
			}
		}
		if lo < hi && !kept && s.idle != nil && g.since < now {
			s.idle(lo, hi, g.since, now)
		}
	}
	var grown int64
	for _, g := range gaps {
		h.freeBytes += g.size()
		s.free += g.size()
		grown = max(grown, g.size())
		lo, hi := h.run(g)
		s.cached += int64(hi - lo)
	}
	h.free = slices.Replace(h.free, i, j, gaps...)
	if grown < most && most == h.largest {
		if h.largest == s.largest {
			s.stale = true
		}
		h.largest = 0
		for _, g := range h.free {
			h.largest = max(h.largest, g.size())
		}
	}
	h.largest = max(h.largest, grown)
	s.largest = max(s.largest, grown)
}

// insert adds a free range to a segment and joins it to its neighbours.
func (s *space) insert(h *held, lo, hi uint64, now int64) {
	i := sort.Search(len(h.free), func(i int) bool { return h.free[i].lo >= lo })
	j := i
	if i > 0 && h.free[i-1].hi == lo {
		i--
		lo = h.free[i].lo
	}
	if j < len(h.free) && h.free[j].lo == hi {
		hi = h.free[j].hi
		j++
	}
	s.swap(h, i, j, now, gap{lo, hi, now})
}

// take removes a range from the gap that holds it; false if none does.
func (s *space) take(h *held, lo, hi uint64, now int64) bool {
	i := sort.Search(len(h.free), func(i int) bool { return h.free[i].hi > lo })
	if i == len(h.free) || h.free[i].lo > lo || h.free[i].hi < hi {
		return false
	}
	f := h.free[i]
	switch {
	case f.lo == lo && f.hi == hi:
		s.swap(h, i, i+1, now)
	case f.lo == lo:
		s.swap(h, i, i+1, now, gap{hi, f.hi, now})
	case f.hi == hi:
		s.swap(h, i, i+1, now, gap{f.lo, lo, now})
	default:
		s.swap(h, i, i+1, now, gap{f.lo, lo, now}, gap{hi, f.hi, now})
	}
	return true
}

// end closes the period of a segment's present extent.
func (s *space) end(h *held, now int64) {
	if s.extent != nil && h.since < now {
		s.extent(h.lo, h.hi, h.since, now)
	}
	h.since = now
}

// add is a new segment, or with page > 0 pages mapped into an expandable one.
func (s *space) add(addr uint64, size, now, page int64) {
	hi := addr + uint64(size)
	i := sort.Search(len(s.segs), func(i int) bool { return s.segs[i].hi > addr })
	if size <= 0 || hi < addr || i < len(s.segs) && s.segs[i].lo < hi {
		return // overlaps: nothing that can be drawn
	}
	s.reserved += size
	left := i > 0 && page > 0 && s.segs[i-1].page == page && s.segs[i-1].hi == addr
	right := i < len(s.segs) && page > 0 && s.segs[i].page == page && s.segs[i].lo == hi
	var h *held
	switch {
	case left:
		h = s.segs[i-1]
		s.end(h, now)
		h.hi = hi
		if right {
			n := s.segs[i]
			s.end(n, now)
			h.hi = n.hi
			h.free = append(h.free, n.free...)
			h.freeBytes += n.freeBytes
			h.largest = max(h.largest, n.largest)
			s.segs = slices.Delete(s.segs, i, i+1)
		}
	case right:
		h = s.segs[i]
		s.end(h, now)
		h.lo = addr
	default:
		h = &held{lo: addr, hi: hi, since: now, page: page, base: addr}
		s.segs = slices.Insert(s.segs, i, h)
	}
	s.insert(h, addr, hi, now)
}

// remove is a segment given back, or pages unmapped.
func (s *space) remove(addr uint64, size, now int64) {
	i, hi := s.find(addr), addr+uint64(size)
	if i < 0 || size <= 0 || hi < addr || hi > s.segs[i].hi {
		return
	}
	h := s.segs[i]
	if !s.take(h, addr, hi, now) {
		return // something lives there
	}
	s.end(h, now)
	s.reserved -= size
	var parts []*held
	for _, p := range []*held{{lo: h.lo, hi: addr}, {lo: hi, hi: h.hi}} {
		if p.size() <= 0 {
			continue
		}
		p.since, p.page, p.base = now, h.page, h.base
		for _, f := range h.free {
			if f.lo >= p.lo && f.hi <= p.hi {
				p.free = append(p.free, f)
				p.freeBytes += f.size()
				p.largest = max(p.largest, f.size())
			}
		}
		parts = append(parts, p)
	}
	s.segs = slices.Replace(s.segs, i, i+1, parts...)
}

// alloc takes a block's range.
func (s *space) alloc(addr uint64, size, now int64) {
	if i := s.find(addr); i >= 0 && size > 0 {
		s.take(s.segs[i], addr, addr+uint64(size), now)
	}
}

// release gives a block's range back.
func (s *space) release(addr uint64, size, now int64) {
	i, hi := s.find(addr), addr+uint64(size)
	if i < 0 || size <= 0 || hi > s.segs[i].hi {
		return
	}
	h := s.segs[i]
	k := sort.Search(len(h.free), func(k int) bool { return h.free[k].hi > addr })
	if k < len(h.free) && h.free[k].lo < hi {
		return // part of it is free already
	}
	s.insert(h, addr, hi, now)
}

// finish tells the periods that are still open.
func (s *space) finish(now int64) {
	for _, h := range s.segs {
		s.end(h, now)
		for i, g := range h.free {
			if lo, hi := h.run(g); lo < hi && s.idle != nil && g.since < now {
				s.idle(lo, hi, g.since, now)
			}
			h.free[i].since = now
		}
	}
}

// largestFree is the largest gap.
func (s *space) largestFree() int64 {
	if s.stale {
		s.stale, s.largest = false, 0
		for _, h := range s.segs {
			s.largest = max(s.largest, h.largest)
		}
	}
	return s.largest
}

// external is external fragmentation in millionths.
func (s *space) external() int64 {
	if s.free == 0 {
		return 0
	}
	return int64(1e6 * (1 - float64(s.largestFree())/float64(s.free)))
}

// Fragments is an allocator's free memory over time.
type Fragments struct {
	Scale Scale
	// Reserved is what the allocator holds; Held what of it could not be given
	// back to the driver, because something lives in the segment or, with
	// expandable segments, in the page; Used the blocks alive, pending frees
	// included. Held − Used is stranded, Reserved − Held cached.
	Reserved, Held, Used Curve
	// Stranded is free bytes that something else keeps.
	Stranded Curve
	// External is external fragmentation in millionths: 1 − largest free
	// block / all free bytes; 0 when nothing is free.
	External Curve
}

// RangeSpan is a range of addresses over a period.
type RangeSpan struct {
	Offset, Size int64 // bytes, in the layout's compact addresses
	X0, X1       int64 // on the scale
}

// BlockSpan is the life of a block.
type BlockSpan struct {
	ID           traces.BlockID
	Offset, Size int64 // bytes, in the layout's compact addresses
	Requested    int64 // bytes
	X0, X1       int64 // on the scale; X1 is its end for blocks never freed
	Freed        bool
}

// Layout is where everything lay over time. Addresses are compact: ranges
// that the allocator never held are left out, so that an offset is an address
// among those it held at any time.
type Layout struct {
	Scale Scale
	// Segments are held from the driver; what of them no block occupies is
	// cached, that is could be given back, or else stranded.
	Segments, Cached []RangeSpan
	Blocks           []BlockSpan
	// Height is the number of compact addresses, in bytes.
	Height int64
}

// SpaceRecorder is an observer that records Fragments and, when asked, the
// Layout.
type SpaceRecorder struct {
	scale Scale // of the layout
	curve Scale // of the curves
	space space
	event int
	used  int64

	reserved, held, usedT, stranded, external tracer

	pages [2]int64 // of the small and the large pool's expandable segments

	layout       bool
	segs, cached []rawRange
	blocks       []rawBlock
	live         map[uint64]int32 // open block by address
	now          int64
}

type rawRange struct {
	lo, hi uint64
	x0, x1 int64
}

type rawBlock struct {
	addr            uint64
	size, requested int64
	x0, x1          int64
	id              traces.BlockID
}

// NewSpaceRecorder makes a recorder for runs of a trace under a policy. A
// layout takes memory in proportion to the trace's blocks.
func NewSpaceRecorder(tr *traces.Trace, policy *policies.Spec, axis Axis, columns int, layout bool) *SpaceRecorder {
	s := NewScale(tr, axis, columns)
	r := &SpaceRecorder{scale: s, curve: s, event: -1, layout: layout, pages: pageSizes(policy)}
	for _, t := range r.tracers() {
		*t = newTracer(s.Columns)
	}
	if layout {
		r.live = make(map[uint64]int32)
		r.blocks = make([]rawBlock, 0, tr.NumBlocks)
		r.space.extent = func(lo, hi uint64, from, to int64) { r.segs = append(r.segs, rawRange{lo, hi, from, to}) }
		r.space.idle = func(lo, hi uint64, from, to int64) { r.cached = append(r.cached, rawRange{lo, hi, from, to}) }
	}
	return r
}

// Curves gives the fragments another axis than the layout; call it before the
// run.
func (r *SpaceRecorder) Curves(tr *traces.Trace, axis Axis) {
	r.curve = NewScale(tr, axis, r.curve.Columns)
}

// pageSizes are the pages in which a policy maps segments of its small and its
// large pool.
func pageSizes(policy *policies.Spec) [2]int64 {
	if policy == nil || policy.Page == nil {
		return [2]int64{2 * bytesize.MiB, 20 * bytesize.MiB} // PyTorch's
	}
	return [2]int64{policy.Page(true), policy.Page(false)}
}

func (r *SpaceRecorder) tracers() []*tracer {
	return []*tracer{&r.reserved, &r.held, &r.usedT, &r.stranded, &r.external}
}

// Observe follows a run.
func (r *SpaceRecorder) Observe(at sim.At, e *policies.Event) {
	if at.Event != r.event {
		r.settle()
		r.event = at.Event
		r.now = r.scale.x(at)
		c := r.curve.column(r.curve.x(at))
		for _, t := range [...]*tracer{&r.reserved, &r.held, &r.usedT, &r.stranded, &r.external} {
			t.move(c)
		}
	}
	s := &r.space
	switch e.Action {
	case policies.ActionAlloc:
		s.alloc(e.Addr, e.Size, r.now)
		r.used += e.Size
		if r.layout {
			r.live[e.Addr] = int32(len(r.blocks))
			r.blocks = append(r.blocks, rawBlock{e.Addr, e.Size, e.Requested, r.now, -1, at.ID})
		}
	case policies.ActionFreeCompleted:
		s.release(e.Addr, e.Size, r.now)
		r.used -= e.Size
		if r.layout {
			if k, ok := r.live[e.Addr]; ok {
				r.blocks[k].x1 = r.now
				delete(r.live, e.Addr)
			}
		}
	case policies.ActionSegmentAlloc:
		s.add(e.Addr, e.Size, r.now, 0)
	case policies.ActionSegmentMap:
		page := r.pages[1]
		if e.Small {
			page = r.pages[0]
		}
		s.add(e.Addr, e.Size, r.now, page)
	case policies.ActionSegmentFree, policies.ActionSegmentUnmap:
		s.remove(e.Addr, e.Size, r.now)
	}
}

// settle writes down the state after a trace event: what lies between the
// steps of one request is of no interest here.
func (r *SpaceRecorder) settle() {
	if r.event < 0 {
		return
	}
	s := &r.space
	r.reserved.set(s.reserved)
	r.held.set(s.reserved - s.cached)
	r.usedT.set(r.used)
	r.stranded.set(s.free - s.cached)
	r.external.set(s.external())
}

// Fragments is what was recorded, up to the scale's end.
func (r *SpaceRecorder) Fragments() *Fragments {
	r.settle()
	for _, t := range r.tracers() {
		t.move(r.curve.Columns - 1)
	}
	return &Fragments{
		Scale: r.curve, Reserved: r.reserved.curve, Held: r.held.curve, Used: r.usedT.curve,
		Stranded: r.stranded.curve, External: r.external.curve,
	}
}

// Layout is what was recorded, up to the scale's end; nil unless asked for.
func (r *SpaceRecorder) Layout() *Layout {
	if !r.layout {
		return nil
	}
	r.space.finish(r.scale.Span)
	// The union of all ranges ever held, with the compact offset of each.
	ranges := slices.Clone(r.segs)
	if len(ranges) == 0 { // a policy without segments: blocks alone
		for _, b := range r.blocks {
			ranges = append(ranges, rawRange{lo: b.addr, hi: b.addr + uint64(b.size)})
		}
	}
	slices.SortFunc(ranges, func(a, b rawRange) int { return cmp.Compare(a.lo, b.lo) })
	var union []rawRange
	for _, g := range ranges {
		if n := len(union); n > 0 && g.lo <= union[n-1].hi {
			union[n-1].hi = max(union[n-1].hi, g.hi)
			continue
		}
		union = append(union, g)
	}
	offsets := make([]int64, len(union))
	l := &Layout{Scale: r.scale}
	for i, g := range union {
		offsets[i] = l.Height
		l.Height += int64(g.hi - g.lo)
	}
	compact := func(addr uint64) (int64, bool) {
		i := sort.Search(len(union), func(i int) bool { return union[i].hi > addr })
		if i == len(union) || union[i].lo > addr {
			return 0, false
		}
		return offsets[i] + int64(addr-union[i].lo), true
	}
	spans := func(raw []rawRange) []RangeSpan {
		out := make([]RangeSpan, 0, len(raw))
		for _, s := range raw {
			if off, ok := compact(s.lo); ok {
				out = append(out, RangeSpan{off, int64(s.hi - s.lo), s.x0, s.x1})
			}
		}
		return out
	}
	l.Segments, l.Cached = spans(r.segs), spans(r.cached)
	for _, b := range r.blocks {
		off, ok := compact(b.addr)
		if !ok {
			continue
		}
		s := BlockSpan{ID: b.id, Offset: off, Size: b.size, Requested: b.requested, X0: b.x0, X1: b.x1, Freed: b.x1 >= 0}
		if !s.Freed {
			s.X1 = r.scale.Span
		}
		l.Blocks = append(l.Blocks, s)
	}
	return l
}

// ByTime is a layout recorded by event with the events' times in their place;
// the layout itself where the trace has no clock.
func (l *Layout) ByTime(tr *traces.Trace) *Layout {
	s := NewScale(tr, ByTime, 1)
	if s.Axis != ByTime || l.Scale.Axis != ByEvent {
		return l
	}
	at := func(x int64) int64 {
		if x < int64(len(tr.Events)) {
			return tr.Events[x].TimeUS
		}
		return s.Span
	}
	out := &Layout{Scale: s, Height: l.Height, Segments: slices.Clone(l.Segments), Cached: slices.Clone(l.Cached), Blocks: slices.Clone(l.Blocks)}
	for _, rs := range [][]RangeSpan{out.Segments, out.Cached} {
		for i := range rs {
			rs[i].X0, rs[i].X1 = at(rs[i].X0), at(rs[i].X1)
		}
	}
	for i := range out.Blocks {
		b := &out.Blocks[i]
		b.X0, b.X1 = at(b.X0), at(b.X1)
	}
	return out
}
