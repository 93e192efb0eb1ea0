package torch

import (
	"fmt"

	"allocsim/policies"
)

// EmptyCache is torch.cuda.empty_cache() outside a capture (spec A3.6).
func (p *Policy) EmptyCache() error { return p.releaseCached() }

// releaseCached is release_cached_blocks for the default pool: all pending
// frees complete, then every unsplit free segment of the large pool and then
// of the small pool goes back, then those of private pools that nobody owns any
// more, small first.
func (p *Policy) releaseCached() error {
	p.completePending(nil)
	for _, k := range [...]int{1, 0} {
		if k < len(p.pools) {
			if err := p.releaseAll(p.pools[k]); err != nil {
				return err
			}
		}
	}
	for k := 2; k+1 < len(p.pools); k += 2 {
		if p.pools[k].freeable {
			if err := p.releaseBoth(k); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Policy) releaseBoth(k int) error {
	if err := p.releaseAll(p.pools[k]); err != nil {
		return err
	}
	return p.releaseAll(p.pools[k+1])
}

// ReleasePool marks a private pool as given up by the program (releasePool
// with no use left): the next flush returns what is free in it.
func (p *Policy) ReleasePool(private uint8) {
	for k := int(private) * 2; private != 0 && k < min(int(private)*2+2, len(p.pools)); k++ {
		p.pools[k].freeable = true
	}
}

// EmptyPool is release_cached_blocks for one private pool, which a MemPool's
// destructor calls after it has released the pool.
func (p *Policy) EmptyPool(private uint8) error {
	k := int(private) * 2
	if private == 0 || k+1 >= len(p.pools) || !p.pools[k].freeable {
		return nil
	}
	p.completePending(func(s *streamSet) bool { return s.pool.private == private })
	return p.releaseBoth(k)
}

// releaseAll is release_blocks: unsplit segments in set order, then the whole
// free pages of expandable segments.
func (p *Policy) releaseAll(pl *pool) error {
	p.buf = p.buf[:0]
	for _, s := range pl.sets {
		if s != nil {
			p.buf = s.appendSorted(p.buf, p.blocks, 0, func(b *block) bool {
				return b.seg != noSeg || b.prev|b.next == 0
			})
		}
	}
	expandable := p.buf[:0]
	for _, i := range p.buf {
		if p.blocks[i].seg != noSeg {
			expandable = append(expandable, i)
			continue
		}
		if err := p.releaseSegment(i); err != nil {
			return err
		}
	}
	for _, i := range expandable {
		if err := p.unmap(i); err != nil {
			return err
		}
	}
	return nil
}

// releaseSegment is release_block: cudaFree of a free block that is a whole
// segment.
func (p *Policy) releaseSegment(i uint32) error {
	b := &p.blocks[i]
	s := p.sets[b.set]
	p.stats.NumDeviceFree++
	if p.obs != nil {
		p.emit(policies.ActionSegmentFree, s, 0, b.addr, b.size, 0)
	}
	if err := p.device.Free(b.addr, b.size); err != nil {
		return fmt.Errorf("cudaFree of %d bytes at %#x: %w", b.size, b.addr, err)
	}
	p.total -= b.size
	p.stats.Segment.Sub(s.class, 1)
	p.stats.ReservedBytes.Sub(s.class, b.size)
	if b.size >= p.conf.MaxSplitSize {
		p.stats.OversizeSegments.Sub(1)
	}
	s.remove(p.blocks, i)
	p.dropBlock(i)
	return nil
}

// collectGarbage is garbage_collect_cached_blocks (spec A3.2): above the
// threshold, unsplit free segments of the default large pool that are at least
// as old as the average go, pass by pass, until enough is reclaimed.
func (p *Policy) collectGarbage() error {
	threshold := int64(p.conf.GCThreshold * float64(p.limit))
	if p.total <= threshold || len(p.pools) < 2 {
		return nil
	}
	target := p.total - threshold
	pl := p.pools[1]
	p.buf = p.buf[:0]
	for _, s := range pl.sets {
		if s != nil {
			p.buf = s.appendSorted(p.buf, p.blocks, 0, func(b *block) bool { return b.prev|b.next == 0 })
		}
	}
	rest := p.buf
	count := len(rest)
	var totalAge, reclaimed int64
	for _, i := range rest {
		totalAge += p.age(pl, i)
	}
	for progress := true; progress && reclaimed < target && count > 0; {
		oldest := float64(totalAge) / float64(count)
		progress = false
		kept := rest[:0]
		for _, i := range rest {
			age := p.age(pl, i)
			if p.blocks[i].seg != noSeg || float64(age) < oldest {
				kept = append(kept, i)
				continue
			}
			progress = true
			reclaimed += p.blocks[i].size
			totalAge -= age
			count--
			if err := p.releaseSegment(i); err != nil {
				return err
			}
		}
		rest = kept
	}
	return nil
}

func (p *Policy) age(pl *pool, i uint32) int64 { return int64(pl.calls - p.blocks[i].base) }

// releaseAvailable is release_available_cached_blocks (spec A3.5): with
// max_split_size, oversize blocks of the request's own pool and stream are
// released until enough is free. It reports whether it was enough.
func (p *Policy) releaseAvailable(s *streamSet, size int64) (bool, error) {
	if p.stats.MaxSplitSize < 0 {
		return false, nil
	}
	want := max(size, p.conf.MaxSplitSize)
	// Oversize blocks are not split. Only a restored layout of which sizes were
	// guessed can have one that is; it is not a segment to give back.
	if i := s.lowerBound(want); i != 0 && p.blocks[i].seg == noSeg && p.blocks[i].prev|p.blocks[i].next == 0 {
		return true, p.releaseSegment(i)
	}
	p.buf = s.appendSorted(p.buf[:0], p.blocks, p.conf.MaxSplitSize, func(b *block) bool {
		return b.size < want && b.seg == noSeg && b.prev|b.next == 0
	})
	var released int64
	for k := len(p.buf) - 1; k >= 0 && released < want; k-- {
		released += p.blocks[p.buf[k]].size
		if err := p.releaseSegment(p.buf[k]); err != nil {
			return false, err
		}
	}
	return released >= want, nil
}
