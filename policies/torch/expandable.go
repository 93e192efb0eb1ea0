package torch

import (
	"errors"
	"fmt"
	"slices"

	"allocsim/policies"
)

// walk moves from the best block of the set to the one that a request may use,
// where there are expandable segments.
func (p *Policy) walk(s *streamSet, i uint32) uint32 {
	if p.conf.ExpandableSegments {
		return p.walkExpandable(s, i)
	}
	return p.skipExpandable(s, i)
}

// walkExpandable moves from an expandable block to later ones of the set while
// their effective size (with the unmapped space behind them) is smaller, so
// that the block at the growing end of a segment is used last (spec A2.7).
func (p *Policy) walkExpandable(s *streamSet, i uint32) uint32 {
	for i != 0 && p.blocks[i].seg != noSeg {
		// Only a block in front of unmapped space can have a larger effective
		// size than its successor.
		b := &p.blocks[i]
		if b.next == 0 || p.blocks[b.next].state != unmapped {
			return i
		}
		n := s.next(p.blocks, i)
		if n == 0 || p.effectiveSize(n) >= p.effectiveSize(i) {
			return i
		}
		i = n
	}
	return i
}

// skipExpandable returns the first block from i on in the set that is not
// expandable: what a request may use when the option is off.
func (p *Policy) skipExpandable(s *streamSet, i uint32) uint32 {
	for i != 0 && p.blocks[i].seg != noSeg {
		i = s.next(p.blocks, i)
	}
	return i
}

func (p *Policy) effectiveSize(i uint32) int64 {
	b := &p.blocks[i]
	size := b.size
	if b.next != 0 {
		if n := &p.blocks[b.next]; n.state == unmapped {
			size += n.size
		}
	}
	return size
}

// growExpandable is try_allocate_expandable_block (spec A3.9): maps pages
// until a free block of size bytes exists and takes it out of its set. 0 means
// out of memory; what was mapped until then stays as free memory.
func (p *Policy) growExpandable(s *streamSet, size int64) (uint32, error) {
	i, err := p.findRange(s, size)
	if i == 0 || err != nil {
		return 0, err
	}
	if p.blocks[i].state == unmapped {
		if ok, err := p.mapPages(i, min(p.blocks[i].size, size)); !ok || err != nil {
			return 0, err
		}
	}
	for p.blocks[i].size < size {
		n := p.blocks[i].next
		if n == 0 {
			// The reservation is smaller than the request.
			return 0, nil
		}
		if ok, err := p.mapPages(n, min(size-p.blocks[i].size, p.blocks[n].size)); !ok || err != nil {
			return 0, err
		}
		i = n // it has absorbed the block in front
	}
	s.remove(p.blocks, i)
	return i, nil
}

// findRange is find_expandable_block: the lowest run of free and unmapped
// blocks that holds size bytes, or a new reservation.
func (p *Policy) findRange(s *streamSet, size int64) (uint32, error) {
	for _, u := range s.unmapped {
		c := u
		if prev := p.blocks[u].prev; prev != 0 && p.allocatable(prev) {
			c = prev
		}
		var sum int64
		for n := c; n != 0 && p.allocatable(n); n = p.blocks[n].next {
			if sum += p.blocks[n].size; sum >= size {
				return c, nil
			}
		}
	}
	seg, err := p.newRange(s, 0, 0)
	if err != nil {
		return 0, err
	}
	return p.newUnmapped(s, seg, p.ranges[seg].addr, p.ranges[seg].size, 0), nil
}

func (p *Policy) allocatable(i uint32) bool {
	st := p.blocks[i].state
	return st == free || st == unmapped
}

// unlimitedReservation is the address space taken on a device of unknown size.
const unlimitedReservation = 16 << 40

// newRange reserves address space for a set: 1⅛ times the device's memory in
// whole pages. With addr ≠ 0 the reservation is known to start there with at
// least atLeast bytes.
func (p *Policy) newRange(s *streamSet, addr uint64, atLeast int64) (int32, error) {
	page := p.conf.LargeSegmentSize
	if s.small {
		page = smallBuffer
	}
	size := int64(unlimitedReservation)
	if t := p.device.Total(); t > 0 {
		size = t + t/8
	}
	size = max(size, atLeast)
	size = (size + page - 1) / page * page
	if addr == 0 {
		var err error
		if addr, err = p.device.Reserve(size); err != nil {
			return 0, fmt.Errorf("reserve %d bytes of address space: %w", size, err)
		}
	}
	p.ranges = append(p.ranges, addressRange{addr: addr, size: size, page: page})
	return int32(len(p.ranges) - 1), nil
}

// restoreRange carves the address range of a restored segment out of the
// unmapped space of its set, and returns the reservation and the blocks in
// front of and behind the range. Segments come in address order; where no
// reservation holds the range a new one is taken to start with it, because a
// snapshot does not tell where reservations start.
func (p *Policy) restoreRange(s *streamSet, seg *policies.Segment) (r int32, prev, after uint32, err error) {
	end := seg.Addr + uint64(seg.Size)
	for _, u := range s.unmapped {
		b := &p.blocks[u]
		if bEnd := b.addr + uint64(b.size); seg.Addr >= b.addr && end <= bEnd {
			r, prev, after = b.seg, b.prev, b.next
			if front := int64(seg.Addr - b.addr); front > 0 {
				b.size = front
				prev = u
			} else {
				p.removeUnmapped(s, u)
				p.dropBlock(u)
			}
			if end < bEnd {
				after = p.newUnmapped(s, r, end, int64(bEnd-end), after)
			}
			return r, prev, after, nil
		}
	}
	if r, err = p.newRange(s, seg.Addr, seg.Size); err != nil {
		return 0, 0, 0, err
	}
	if rest := p.ranges[r].size - seg.Size; rest > 0 {
		after = p.newUnmapped(s, r, end, rest, 0)
	}
	return r, 0, after, nil
}

// newUnmapped adds unmapped space in front of block next.
func (p *Policy) newUnmapped(s *streamSet, r int32, addr uint64, size int64, next uint32) uint32 {
	i := p.newBlock(s, r)
	b := &p.blocks[i]
	b.addr, b.size, b.state, b.next = addr, size, unmapped, next
	if next != 0 {
		p.blocks[next].prev = i
	}
	p.insertUnmapped(s, i)
	return i
}

func (p *Policy) insertUnmapped(s *streamSet, i uint32) {
	at, _ := slices.BinarySearchFunc(s.unmapped, p.blocks[i].addr, p.compareAddr)
	s.unmapped = slices.Insert(s.unmapped, at, i)
}

func (p *Policy) removeUnmapped(s *streamSet, i uint32) {
	at, _ := slices.BinarySearchFunc(s.unmapped, p.blocks[i].addr, p.compareAddr)
	s.unmapped = slices.Delete(s.unmapped, at, at+1)
}

func (p *Policy) compareAddr(x uint32, addr uint64) int {
	switch a := p.blocks[x].addr; {
	case a < addr:
		return -1
	case a > addr:
		return 1
	}
	return 0
}

// mapPages is map_block: backs the first pages of the unmapped block i with
// memory, at least n bytes, and merges the result with its free neighbours.
// False means out of memory.
func (p *Policy) mapPages(i uint32, n int64) (bool, error) {
	b := &p.blocks[i]
	s := p.sets[b.set]
	page := p.ranges[b.seg].page
	size := (n + page - 1) / page * page
	if err := p.device.Map(b.addr, size, page); err != nil {
		if errors.Is(err, policies.ErrOutOfMemory) {
			return false, nil
		}
		return false, fmt.Errorf("map %d bytes at %#x: %w", size, b.addr, err)
	}
	addr := b.addr
	p.removeUnmapped(s, i)
	if size < b.size {
		r := p.newBlock(s, b.seg)
		b = &p.blocks[i]
		rb := &p.blocks[r]
		rb.addr, rb.size, rb.state, rb.prev, rb.next = addr+uint64(size), b.size-size, unmapped, i, b.next
		if b.next != 0 {
			p.blocks[b.next].prev = r
		}
		b.next, b.size = r, size
		p.insertUnmapped(s, r)
	}
	if j := b.prev; p.blocks[j].state == free {
		p.absorb(s, b, i, j)
	}
	if j := b.next; p.blocks[j].state == free {
		p.absorb(s, b, i, j)
	}
	s.insertFree(p.blocks, i)
	p.total += size
	p.stats.ReservedBytes.Add(s.class, size)
	p.stats.NumDeviceAlloc++
	if p.obs != nil {
		p.emit(policies.ActionSegmentMap, s, 0, addr, size, 0)
	}
	return true, nil
}

// wholePages is the range of whole pages inside an expandable block; size 0 if
// there is none.
func (p *Policy) wholePages(b *block) (addr uint64, size int64) {
	r := &p.ranges[b.seg]
	lo := (int64(b.addr-r.addr) + r.page - 1) / r.page * r.page
	hi := (int64(b.addr-r.addr) + b.size) / r.page * r.page
	return r.addr + uint64(lo), max(hi-lo, 0)
}

// unmap is unmap_block: gives the whole pages inside the free block i back.
// What remains in front and behind stays free memory.
func (p *Policy) unmap(i uint32) error {
	b := &p.blocks[i]
	s := p.sets[b.set]
	addr, size := p.wholePages(b)
	if size == 0 {
		return nil
	}
	r := &p.ranges[b.seg]
	if err := p.device.Unmap(addr, size, r.page); err != nil {
		return fmt.Errorf("unmap %d bytes at %#x: %w", size, addr, err)
	}
	s.remove(p.blocks, i)
	if front := int64(addr - b.addr); front > 0 {
		p.cutFront(s, i, front)
		b = &p.blocks[i]
	}
	if rear := b.size - size; rear > 0 {
		p.cutRear(s, i, rear)
		b = &p.blocks[i]
	}
	b.state = unmapped
	if b.prev != 0 && p.blocks[b.prev].state == unmapped {
		p.removeUnmapped(s, b.prev)
		p.join(b, i, b.prev)
	}
	if b.next != 0 && p.blocks[b.next].state == unmapped {
		p.removeUnmapped(s, b.next)
		p.join(b, i, b.next)
	}
	p.insertUnmapped(s, i)
	p.total -= size
	p.stats.ReservedBytes.Sub(s.class, size)
	p.stats.NumDeviceFree++
	if p.obs != nil {
		p.emit(policies.ActionSegmentUnmap, s, 0, addr, size, 0)
	}
	if b.prev|b.next == 0 {
		p.removeUnmapped(s, i)
		r := &p.ranges[b.seg]
		p.dropBlock(i)
		if err := p.device.Release(r.addr, r.size); err != nil {
			return fmt.Errorf("release the address space at %#x: %w", r.addr, err)
		}
	}
	return nil
}

// cutFront makes the first n bytes of block i, which is in no set, a free
// block of their own.
func (p *Policy) cutFront(s *streamSet, i uint32, n int64) {
	f := p.newBlock(s, p.blocks[i].seg)
	b, fb := &p.blocks[i], &p.blocks[f]
	fb.addr, fb.size, fb.prev, fb.next = b.addr, n, b.prev, i
	if b.prev != 0 {
		p.blocks[b.prev].next = f
	}
	b.prev = f
	b.addr += uint64(n)
	b.size -= n
	s.insertFree(p.blocks, f)
}

// cutRear makes the last n bytes of block i, which is in no set, a free block
// of their own.
func (p *Policy) cutRear(s *streamSet, i uint32, n int64) {
	r := p.newBlock(s, p.blocks[i].seg)
	b, rb := &p.blocks[i], &p.blocks[r]
	b.size -= n
	rb.addr, rb.size, rb.prev, rb.next = b.addr+uint64(b.size), n, i, b.next
	if b.next != 0 {
		p.blocks[b.next].prev = r
	}
	b.next = r
	s.insertFree(p.blocks, r)
}
