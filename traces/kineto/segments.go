package kineto

import (
	"cmp"
	"slices"

	"allocsim/traces"
)

// placement works out from Total Reserved where the native allocator put its
// segments and when it gave them back. A step up by exactly a segment's size is
// a new segment, and the block that caused it lies at its start, since a split
// keeps the front (spec pytorch-allocator A2.3, A2.5). A step down by exactly
// all that is unused is a flush: a user's empty_cache, or the allocator's own if
// the same request then grows it. Whatever else happens (expandable segments,
// garbage collection, a start in the middle) ends the knowledge.
type placement struct {
	known    bool
	reserved int64
	segments []segment // ascending by address
	driver   []traces.DriverEvent
}

type segment struct {
	addr uint64
	size int64
	live int64 // bytes in blocks
}

const (
	mib         = 1 << 20
	smallSize   = 1 * mib  // the largest block of the small pool
	smallBuffer = 2 * mib  // its segments
	largeBuffer = 20 * mib // segments of blocks below minLarge
	minLarge    = 10 * mib
)

// segmentSize is the size of a new segment for a block.
func segmentSize(block int64) int64 {
	switch {
	case block <= smallSize:
		return smallBuffer
	case block < minLarge:
		return largeBuffer
	}
	return (block + smallBuffer - 1) / smallBuffer * smallBuffer
}

// find returns the segment that a block lies in, or nil.
func (p *placement) find(addr uint64, size int64) *segment {
	i, found := slices.BinarySearchFunc(p.segments, addr, func(s segment, a uint64) int { return cmp.Compare(s.addr, a) })
	if !found {
		i--
	}
	if i < 0 || addr-p.segments[i].addr > uint64(p.segments[i].size-size) || p.segments[i].size < size {
		return nil
	}
	return &p.segments[i]
}

// before follows the step of Total Reserved that e shows. index is where e's
// request will be in Trace.Events. It reports a user's empty_cache.
func (p *placement) before(e *event, index int) (emptied bool) {
	if e.reserved < 0 {
		p.known = false
		return false
	}
	step := e.reserved - p.reserved
	p.reserved = e.reserved
	if step < 0 && !p.known {
		// A free makes no request that the allocator could flush for.
		return e.bytes < 0 && !e.oom
	}
	if step == 0 || !p.known {
		return false
	}
	var unused int64
	for _, s := range p.segments {
		if s.live == 0 {
			unused += s.size
		}
	}
	grown := int64(0)
	if e.bytes > 0 && !e.oom {
		grown = segmentSize(e.bytes)
	}
	switch {
	case step == -unused && e.oom:
		p.flush(index) // before it gave up
	case step == -unused:
		// The call is an event of its own, before this one.
		p.flush(index + 1)
		return true
	case grown > 0 && step == grown:
		p.grow(e, grown, index)
	case grown > 0 && step == grown-unused:
		p.flush(index)
		p.grow(e, grown, index)
	default:
		p.known = false
	}
	return false
}

// flush returns every unused segment, in the allocator's order: the large pool
// before the small one, ascending by size and address.
func (p *placement) flush(index int) {
	small := func(s segment) int {
		if s.size == smallBuffer {
			return 1
		}
		return 0
	}
	var gone []segment
	p.segments = slices.DeleteFunc(p.segments, func(s segment) bool {
		if s.live == 0 {
			gone = append(gone, s)
		}
		return s.live == 0
	})
	slices.SortFunc(gone, func(x, y segment) int {
		return cmp.Or(cmp.Compare(small(x), small(y)), cmp.Compare(x.size, y.size), cmp.Compare(x.addr, y.addr))
	})
	for _, s := range gone {
		p.driver = append(p.driver, traces.DriverEvent{Addr: s.addr, Size: s.size, Before: uint32(index), Action: traces.SegmentFree})
	}
}

func (p *placement) grow(e *event, size int64, index int) {
	i, found := slices.BinarySearchFunc(p.segments, e.addr, func(s segment, a uint64) int { return cmp.Compare(s.addr, a) })
	end := e.addr + uint64(size)
	if found || end < e.addr ||
		i > 0 && p.segments[i-1].addr+uint64(p.segments[i-1].size) > e.addr ||
		i < len(p.segments) && end > p.segments[i].addr {
		p.known = false
		return
	}
	p.segments = slices.Insert(p.segments, i, segment{addr: e.addr, size: size})
	p.driver = append(p.driver, traces.DriverEvent{Addr: e.addr, Size: size, Before: uint32(index), Action: traces.SegmentAlloc})
}

// use records that a block came (size > 0) or went (size < 0).
func (p *placement) use(addr uint64, size int64) {
	if !p.known {
		return
	}
	s := p.find(addr, max(size, -size))
	if s == nil {
		p.known = false
		return
	}
	s.live += size
}
