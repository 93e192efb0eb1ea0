package torch

import (
	"errors"
	"fmt"

	"allocsim/policies"
)

var errTooLarge = fmt.Errorf("tried to allocate more than 1EB memory: %w", policies.ErrOutOfMemory)

// Malloc serves a request: the order of attempts of spec A3.
func (p *Policy) Malloc(r policies.Request) (policies.Block, error) {
	if r.Size >= maxRequest || r.Size <= 0 {
		return policies.Block{}, errTooLarge
	}
	size := p.round(r.Size)
	s := p.set(r.Pool, size <= smallSize, r.Stream)
	i := p.findFree(s, size)
	if i == 0 {
		var err error
		if i, err = p.obtain(s, size, r.Pool != 0); err != nil {
			return policies.Block{}, err
		}
		if i == 0 {
			p.stats.NumOOMs++
			if p.obs != nil {
				p.emit(policies.ActionOOM, s, 0, 0, size, r.Size)
			}
			return policies.Block{}, policies.ErrOutOfMemory
		}
	}
	return p.finish(s, i, size, r.Size), nil
}

// findFree is get_free_block (spec A2.7): it takes the best free block out of
// the set, or returns 0.
func (p *Policy) findFree(s *streamSet, size int64) uint32 {
	if p.collects {
		s.pool.calls++
	}
	i, at := s.lowerBound(size)
	if i == 0 {
		return 0
	}
	first := i
	if b := &p.blocks[i]; b.seg != noSeg {
		if p.conf.ExpandableSegments {
			i = p.walkExpandable(s, i)
		} else if i = p.skipExpandable(s, i); i == 0 {
			return 0
		}
	}
	// A block of max_split_size or more is for requests of that size only, and
	// for those only if little of it is wasted.
	bs := p.blocks[i].size
	if size < p.conf.MaxSplitSize {
		if bs >= p.conf.MaxSplitSize {
			return 0
		}
	} else if bs >= size+p.conf.MaxNonSplitRounding {
		return 0
	}
	if i == first {
		s.removeAt(p.blocks, i, at)
	} else {
		s.remove(p.blocks, i)
	}
	return i
}

// obtain gets memory from the device for a request that no free block serves;
// 0 when everything failed.
func (p *Policy) obtain(s *streamSet, size int64, capturing bool) (uint32, error) {
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

// finish is alloc_found_block (spec A3.8): splits block i, which is in no set,
// and hands its front out.
func (p *Policy) finish(s *streamSet, i uint32, size, req int64) policies.Block {
	b := &p.blocks[i]
	class := s.class
	rem := b.size - size
	wasSplit := b.prev|b.next != 0
	var split bool
	if s.small || p.conf.ExpandableSegments {
		split = rem >= minBlockSize
	} else {
		split = rem > smallSize && size < p.conf.MaxSplitSize
	}
	if split {
		// Index i stays the front: indices, unlike upstream's pointers, are
		// not visible outside.
		n := p.newBlock(s, b.seg)
		b = &p.blocks[i]
		r := &p.blocks[n]
		r.addr, r.size, r.prev, r.next = b.addr+uint64(size), rem, i, b.next
		if b.next != 0 {
			p.blocks[b.next].prev = n
		}
		b.next, b.size = n, size
		p.insertFree(s, n)
		if b.seg == noSeg {
			if wasSplit {
				p.splits[class].bytes -= size
				p.splits[policies.All].bytes -= size
			} else {
				p.countSplits(class, 1, rem)
			}
		}
	} else if wasSplit && b.seg == noSeg {
		p.countSplits(class, -1, -b.size)
	}
	b.state = live
	b.req = req
	b.gen++
	h := handleOf(i, b.gen)
	p.countAlloc(class, b.size, req)
	if b.size >= p.conf.MaxSplitSize {
		p.stats.OversizeAllocations.Add(1)
	}
	if p.obs != nil {
		p.emit(policies.ActionAlloc, s, h, b.addr, b.size, req)
	}
	return policies.Block{Handle: h, Addr: b.addr}
}
