package snapshot

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"allocsim/internal/plural"
	"allocsim/traces"
)

// This file infers the state before the first entry of a trace whose beginning
// is missing: a ring buffer that wrapped, or recording that began in mid-run
// (spec pytorch-allocator B4 and trace-formats 9.2).

// fromTheMiddle makes the trace of a recording that the entries alone cannot
// explain from an empty allocator; con is where that shows.
func (c *converter) fromTheMiddle(con *contradiction) (*traces.Trace, error) {
	switch {
	case !c.hasFinal:
		return nil, fmt.Errorf("%w; the file has no segments from which the state before its first event could be inferred", con)
	case c.finalErr != nil:
		return nil, fmt.Errorf("%w, and %w", con, c.finalErr)
	}
	start, err := c.walkBack()
	if err != nil && c.noAllocs {
		return nil, c.fail(-1, false, "%s", noAllocs)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; walking back from the final segments does not explain it: %w", con, err)
	}
	if len(start) == 0 {
		return nil, con
	}
	guessed := c.sizeStart(start)
	t, err := c.replay(start)
	if err != nil {
		return nil, fmt.Errorf("%w (after inferring what was live before the first event)", err)
	}
	blocks := 0
	var bytes int64
	for _, s := range start {
		for _, b := range s.blocks {
			blocks++
			bytes += b.requested
		}
	}
	c.note("The beginning is missing: the start state is inferred by walking back from the final segments (%s and %s of %d requested bytes before the first event). Results before the window are unknown.", plural.Of(len(start), "segment"), plural.Of(blocks, "live block"), bytes)
	if guessed > 0 {
		c.note("The start state is partly inferred: the size of %s freed in the trace comes from later addresses or from rounding.", plural.Of(guessed, "block"))
	}
	return t, nil
}

// walkBack undoes the entries from the last to the first and returns the
// segments that are then left, with their live blocks, by address.
func (c *converter) walkBack() ([]startSegment, error) {
	m := newMemory()
	var blocks []startBlock // numbered by m.live
	for _, s := range c.segs {
		a := segAttr{stream: s.stream, pool: s.pool, small: s.small, expandable: s.expandable}
		m.segs.insert(s.addr, s.addr+uint64(s.size), m.newAttr(a))
		for _, b := range c.rec.blocks[s.first:][:s.n] {
			if b.state == traces.Inactive || (b.state == traces.ActivePendingFree && !c.completed) {
				continue
			}
			val := uint32(len(blocks))
			if b.state == traces.ActivePendingFree {
				val |= pendingBit
			}
			blocks = append(blocks, startBlock{addr: b.addr, requested: b.requested, size: b.size, stack: b.stack, stream: s.stream, pool: s.pool})
			m.live.insert(b.addr, b.addr+uint64(b.requested), val)
		}
	}
	page := c.largePage()
	revive := func(i int, e *entry, flag uint32) error {
		if e.size == 0 || e.addr+uint64(e.size) > 1<<63 {
			return c.fail(i, false, "the block is impossible")
		}
		p, ok := m.live.insert(e.addr, e.addr+uint64(e.size), uint32(len(blocks))|flag)
		if !ok {
			a, z, _ := m.live.get(p)
			return c.fail(i, false, "it overlaps the block of %d bytes at 0x%x, which is live afterwards without having been allocated", z-a, a)
		}
		blocks = append(blocks, startBlock{addr: e.addr, requested: e.size, stack: traces.NoStack, stream: e.stream, pool: c.poolAt(i, e)})
		return nil
	}
	for i := c.n - 1; i >= 0; i-- {
		e := c.at(i)
		if i&0xfff == 0 {
			if err := c.ctx.Err(); err != nil {
				return nil, err
			}
		}
		end := e.addr + uint64(e.size)
		switch e.action {
		case actAlloc:
			p, ok := m.live.exact(e.addr)
			if !ok {
				return nil, c.fail(i, false, "no block is live at this address afterwards, and no free of it is recorded")
			}
			if _, _, v := m.live.get(p); v&pendingBit != 0 {
				return nil, c.fail(i, false, "the block waits for the completion of a free that is not recorded")
			}
			m.live.vacate(p)
		case actFreeRequested:
			if c.completed {
				p, ok := m.live.exact(e.addr)
				if !ok {
					return nil, c.fail(i, false, "neither its completion nor a pending block at the end is recorded")
				}
				ch := m.live.chunks[p.c]
				if ch.val[p.i]&pendingBit == 0 {
					return nil, c.fail(i, false, "the block is live afterwards without having been allocated again")
				}
				ch.val[p.i] &^= pendingBit
			} else if err := revive(i, e, 0); err != nil {
				return nil, err
			}
		case actFreeCompleted:
			flag := uint32(pendingBit)
			if !c.requested {
				flag = 0
			}
			if err := revive(i, e, flag); err != nil {
				return nil, err
			}
		case actSegmentAlloc, actSegmentMap:
			if p, hit := m.live.overlap(e.addr, end); hit {
				a, z, _ := m.live.get(p)
				return nil, c.fail(i, false, "the block of %d bytes at 0x%x in it is older than the segment", z-a, a)
			}
			if !m.removeSegment(e.addr, end, e.action == actSegmentMap) {
				return nil, c.fail(i, false, "no such segment exists afterwards, and no release of it is recorded")
			}
		case actSegmentFree, actSegmentUnmap:
			if e.size == 0 || end > 1<<63 {
				return nil, c.fail(i, false, "the range is impossible")
			}
			a := segAttr{stream: e.stream, pool: c.poolAt(i, e), expandable: e.action == actSegmentUnmap}
			a.small = e.size == smallSegment || (a.expandable && e.size%page != 0)
			if w, ok := m.addSegment(e.addr, end, a); !ok {
				return nil, c.fail(i, false, "it overlaps the segment at 0x%x, which exists afterwards without having been made", w)
			}
		}
	}

	var out []startSegment
	m.segs.each(func(addr, end uint64, val uint32) {
		out = append(out, startSegment{addr: addr, end: end, attr: m.attr[val]})
	})
	var err error
	k := 0
	m.live.each(func(addr, end uint64, val uint32) {
		for k < len(out) && out[k].end <= addr {
			k++
		}
		if k == len(out) || addr < out[k].addr || end > out[k].end {
			if err == nil {
				err = c.fail(-1, false, "the block of %d bytes at 0x%x, which was live before the first event, lies in no segment of that time", end-addr, addr)
			}
			return
		}
		b := blocks[val&^pendingBit]
		b.pending = val&pendingBit != 0
		out[k].blocks = append(out[k].blocks, b)
	})
	return out, err
}

// largePage is the page of expandable segments of the large pool, which is
// large_segment_size (spec A1).
func (c *converter) largePage() int64 {
	for _, part := range strings.Split(c.settings["PYTORCH_CUDA_ALLOC_CONF"], ",") {
		if v, ok := strings.CutPrefix(strings.TrimSpace(part), "large_segment_size_mb:"); ok {
			if mb, err := strconv.ParseInt(v, 10, 32); err == nil && mb > 0 {
				return mb << 20
			}
		}
	}
	return 20 << 20
}

// slack is the most that an unsplit block of the large pool leaves unused: a
// remainder above it is split off (spec A2.7).
const slack = 1 << 20

// sizeStart finds the block sizes that the file does not give: those of start
// blocks that are freed in the trace. It returns their number.
func (c *converter) sizeStart(start []startSegment) int {
	table := c.roundup()
	maxSplit := int64(-1)
	if v, err := strconv.ParseInt(c.settings["max_split_size"], 10, 64); err == nil {
		maxSplit = v
	}
	// What lies open: the gap behind a block that may end anywhere in it.
	type gap struct{ b *startBlock }
	var open []gap
	gaps := newRangeSet()
	guessed := 0
	for si := range start {
		s := &start[si]
		for i := range s.blocks {
			b := &s.blocks[i]
			if b.size != 0 {
				continue // still live at the end: the file says its size
			}
			guessed++
			limit := s.end
			if i+1 < len(s.blocks) {
				limit = s.blocks[i+1].addr
			}
			room := int64(limit - b.addr)
			b.size = min(roundSize(b.requested, table), room)
			switch {
			case s.attr.expandable || s.attr.small:
				// Every remainder of 512 bytes or more is split off.
			case room-b.size <= slack, maxSplit > 0 && b.size >= maxSplit:
				b.size = room
			default:
				gaps.insert(b.addr+uint64(b.size), limit, uint32(len(open)))
				open = append(open, gap{b})
			}
		}
	}
	// The rest of such a gap is one free block that begins where the start
	// block ends, and the first placement in it takes its front.
	for i := 0; i < c.n && len(open) > 0; i++ {
		e := c.at(i)
		switch e.action {
		case actAlloc:
			p := gaps.find(e.addr)
			if !gaps.valid(p) {
				continue
			}
			if _, end, v := gaps.get(p); e.addr < end {
				b := open[v].b
				b.size = int64(e.addr - b.addr)
				gaps.remove(p)
			}
		case actFreeCompleted, actFreeRequested:
			if e.action == actFreeRequested && c.completed {
				continue
			}
			// The block has died: what comes after says nothing of it.
			if p := gaps.next(gaps.find(e.addr)); gaps.valid(p) {
				if _, _, v := gaps.get(p); open[v].b.addr == e.addr {
					gaps.remove(p)
				}
			}
		}
	}
	return guessed
}

// startState is the State of the start segments, with the gaps between their
// blocks as free blocks. Blocks are numbered in the order of their synthetic
// events.
func (c *converter) startState(o *output, start []startSegment) *traces.State {
	st := &traces.State{Segments: make([]traces.Segment, 0, len(start))}
	id := traces.BlockID(0)
	for _, s := range start {
		seg := traces.Segment{
			Addr: s.addr, Size: int64(s.end - s.addr), Stream: c.stream(o, s.attr.stream), Pool: c.pool(o, s.attr.pool),
			Small: s.attr.small, Expandable: s.attr.expandable,
		}
		at := s.addr
		fill := func(to uint64) {
			if to > at {
				seg.Blocks = append(seg.Blocks, traces.SegmentBlock{Addr: at, Size: int64(to - at), ID: traces.NoBlock, Stack: traces.NoStack})
				at = to
			}
		}
		for _, b := range s.blocks {
			fill(b.addr)
			state := traces.ActiveAllocated
			if b.pending {
				state = traces.ActivePendingFree
			}
			seg.Blocks = append(seg.Blocks, traces.SegmentBlock{Addr: b.addr, Size: b.size, Requested: b.requested, ID: id, State: state, Stack: b.stack})
			at += uint64(b.size)
			id++
		}
		fill(s.end)
		st.Segments = append(st.Segments, seg)
	}
	return st
}

// roundup reads the recorded roundup_power2_divisions table: divisions by the
// lower bound of the interval in MiB (spec B2).
func (c *converter) roundup() [16]int64 {
	var table [16]int64
	for _, part := range strings.Split(c.settings["roundup_power2_divisions"], ",") {
		k, v, ok := strings.Cut(part, ":")
		if !ok {
			continue
		}
		mb, err := strconv.ParseUint(k, 10, 32)
		div, err2 := strconv.ParseInt(v, 10, 32)
		if err == nil && err2 == nil && mb > 0 && div >= 0 {
			table[min(bits.Len64(mb)-1, 15)] = div
		}
	}
	return table
}

// roundSize is PyTorch's round_size (spec A2.2).
func roundSize(req int64, table [16]int64) int64 {
	if req < 512 {
		return 512
	}
	log2 := bits.Len64(uint64(req)) - 1
	d := table[min(max(log2-20, 0), 15)]
	if d > 1 && req > 512*d {
		floor := int64(1) << log2
		if req == floor {
			return req
		}
		step := floor >> (bits.Len64(uint64(d)) - 1)
		if step == 0 {
			return floor * 2
		}
		return (req + step - 1) / step * step
	}
	return (req + 511) / 512 * 512
}
