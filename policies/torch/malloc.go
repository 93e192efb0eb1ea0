package torch

import (
	"errors"
	"fmt"

	"allocsim/policies"
)

var errTooLarge = &policies.Shortage{
	Final: true, Reason: "PyTorch refuses requests of 1 EiB and more.",
	Err: fmt.Errorf("tried to allocate more than 1EB memory: %w", policies.ErrOutOfMemory),
}

// Malloc serves a request: the order of attempts of spec A3.
func (p *Policy) Malloc(r policies.Request) (policies.Block, error) {
	if uint64(r.Size-1) >= maxRequest-1 {
		return policies.Block{}, errTooLarge
	}
	size := p.round(r.Size)
	var s *streamSet
	if sets := p.main[isLarge(size)]; r.Pool == 0 && int(r.Stream) < len(sets) {
		s = sets[r.Stream]
	}
	if s == nil {
		s = p.set(r.Pool, size <= smallSize, r.Stream)
	}
	// get_free_block (spec A2.7). A block of max_split_size or more is for
	// requests of that size only, and for those only if little of it is wasted.
	if p.collects {
		s.pool.calls++
	}
	below := p.conf.MaxSplitSize
	if size >= below {
		below = size + p.conf.MaxNonSplitRounding
	}
	i, e, group, class := s.find(size)
	if len(p.ranges) > 0 {
		i = p.walk(s, i)
	}
	switch {
	case i == 0 || p.blocks[i].size >= below:
		var err error
		if i, err = p.obtain(s, size, r); err != nil {
			return policies.Block{}, err
		}
	case e != nil && e.root == i:
		s.pop(p.blocks, e, group, class)
	default:
		s.remove(p.blocks, i)
	}
	// alloc_found_block (spec A3.8): the block is split and its front handed
	// out.
	b := &p.blocks[i]
	// inactive_split changes by the net effect: a block of a split segment is
	// no free piece any more, and the rest is a new one.
	wasPiece := isPiece(b)
	pieces, bytes := -wasPiece, -wasPiece*b.size
	if rem := b.size - size; rem >= s.minRest && size < s.splitBelow {
		// Index i stays the front: indices, unlike upstream's pointers, are
		// not visible outside.
		n := p.newBlock(s, b.seg)
		blocks := p.blocks
		b = &blocks[i]
		rest := &blocks[n]
		rest.addr, rest.size, rest.prev, rest.next = b.addr+uint64(size), rem, i, b.next
		blocks[b.next].prev = n
		b.next, b.size = n, size
		s.insertFree(blocks, n)
		pieces++
		bytes += rem
	}
	if b.seg == noSeg {
		p.countSplits(s, pieces, bytes)
	}
	b.state = live
	b.req = r.Size
	b.gen++
	h := handleOf(i, b.gen)
	s.counts.add(b.size, r.Size)
	p.counts[policies.All].add(b.size, r.Size)
	if p.pends {
		p.countActive(s, b.size)
	}
	if b.size >= p.conf.MaxSplitSize {
		p.stats.OversizeAllocations.Add(1)
	}
	if p.obs != nil {
		p.emit(policies.ActionAlloc, s, h, b.addr, b.size, r.Size)
	}
	return policies.Block{Handle: h, Addr: b.addr}, nil
}

// isLarge is 0 for a rounded size of the small pool, else 1.
func isLarge(size int64) uint { return uint(smallSize-size) >> 63 }

// obtain gets memory from the device for a request that no free block serves.
func (p *Policy) obtain(s *streamSet, size int64, r policies.Request) (uint32, error) {
	i, err := p.tryDevice(s, size, r.Pool != 0)
	if i != 0 || err != nil {
		return i, err
	}
	p.stats.NumOOMs++
	if p.obs != nil {
		p.emit(policies.ActionOOM, s, 0, 0, size, r.Size)
	}
	return 0, p.explain(size, r.Pool != 0)
}

// explain says why all attempts to get memory for a rounded size failed.
func (p *Policy) explain(size int64, capturing bool) error {
	wanted := p.segmentSize(size)
	p.short = policies.Shortage{Wanted: wanted}
	if p.total+wanted > p.limit {
		p.short.Limit, p.short.Counted = p.limit, p.total
	} else if page := p.conf.LargeSegmentSize; p.conf.ExpandableSegments && size > smallSize {
		p.short.Wanted = (size + page - 1) / page * page
	}
	if capturing {
		p.short.Reason = "The request belongs to a private pool (a CUDA graph capture or a MemPool), and for such the allocator does not flush its cache."
	}
	return &p.short
}

// tryDevice makes the attempts of obtain; 0 when all failed.
func (p *Policy) tryDevice(s *streamSet, size int64, capturing bool) (uint32, error) {
	if p.collects {
		if err := p.collectGarbage(); err != nil {
			return 0, err
		}
	}
	i, err := p.allocBlock(s, size)
	if i != 0 || err != nil {
		return i, err
	}
	released, err := p.releaseAvailable(s, size)
	if err != nil {
		return 0, err
	}
	if released {
		if i, err = p.allocBlock(s, size); i != 0 || err != nil {
			return i, err
		}
	}
	if capturing {
		// A flush would synchronise, which a capture forbids (spec A4.5).
		return 0, nil
	}
	if err := p.releaseCached(); err != nil {
		return 0, err
	}
	p.stats.NumAllocRetries++
	if p.obs != nil {
		p.emit(policies.ActionRetry, s, 0, 0, size, 0)
	}
	return p.allocBlock(s, size)
}

// allocBlock is alloc_block (spec A3.3): a new segment, or more pages of an
// expandable one. 0 means out of memory.
func (p *Policy) allocBlock(s *streamSet, size int64) (uint32, error) {
	a := p.segmentSize(size)
	if p.total+a > p.limit {
		return 0, nil
	}
	if p.conf.ExpandableSegments {
		return p.growExpandable(s, size)
	}
	addr, err := p.device.Malloc(a)
	if err != nil {
		if errors.Is(err, policies.ErrOutOfMemory) {
			return 0, nil
		}
		return 0, fmt.Errorf("cudaMalloc of %d bytes: %w", a, err)
	}
	p.total += a
	p.stats.Segment.Add(s.class, 1)
	p.stats.ReservedBytes.Add(s.class, a)
	if a >= p.conf.MaxSplitSize {
		p.stats.OversizeSegments.Add(1)
	}
	p.stats.NumDeviceAlloc++
	i := p.newBlock(s, noSeg)
	b := &p.blocks[i]
	b.addr, b.size = addr, a
	if p.obs != nil {
		p.emit(policies.ActionSegmentAlloc, s, 0, addr, a, 0)
	}
	return i, nil
}
