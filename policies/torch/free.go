package torch

import (
	"fmt"

	"allocsim/policies"
)

var errBadFree = fmt.Errorf("torch: %w", policies.ErrBadFree)

// Free is DeviceCachingAllocator::free (spec A4.1). A pending block stays
// active until FreeCompleted or the next flush or EmptyCache.
func (p *Policy) Free(h policies.Handle, isPending bool) error {
	blocks, i := p.blocks, uint32(h)
	if int(i) >= len(blocks) {
		return errBadFree
	}
	b := &blocks[i]
	if b.gen != uint32(h>>32) || b.state != live {
		return errBadFree
	}
	s := p.sets[b.set]
	if isPending {
		p.startPending()
	}
	p.countFree(s, b.size)
	if p.obs != nil {
		p.emit(policies.ActionFreeRequested, s, h, b.addr, b.size, b.req)
	}
	if b.size >= p.conf.MaxSplitSize {
		p.stats.OversizeAllocations.Sub(1)
	}
	if isPending {
		b.state = pending
		p.pending = append(p.pending, h)
		p.nPend++
		return nil
	}
	p.freeBlock(s, i, b)
	return nil
}

// FreeCompleted ends a pending free unless a synchronisation has done so.
func (p *Policy) FreeCompleted(h policies.Handle) error {
	i := p.find(h)
	if i == 0 || p.blocks[i].state != pending {
		return nil
	}
	p.nPend--
	if p.nPend == 0 {
		p.pending = p.pending[:0]
	} else if len(p.pending) > 64 && len(p.pending) > 4*p.nPend {
		p.compactPending(i)
	}
	p.freeBlock(p.sets[p.blocks[i].set], i, &p.blocks[i])
	return nil
}

// compactPending drops handles that are no longer pending, and block done.
func (p *Policy) compactPending(done uint32) {
	kept := p.pending[:0]
	for _, h := range p.pending {
		if i := p.find(h); i != 0 && i != done && p.blocks[i].state == pending {
			kept = append(kept, h)
		}
	}
	p.pending = kept
}

// completePending waits for pending frees (sync_and_free_events, spec A4.4):
// all, or those of the sets for which of holds.
func (p *Policy) completePending(of func(*streamSet) bool) {
	p.stats.NumSyncAllStreams++
	kept := p.pending[:0]
	for _, h := range p.pending {
		i := p.find(h)
		if i == 0 || p.blocks[i].state != pending {
			continue
		}
		s := p.sets[p.blocks[i].set]
		if of != nil && !of(s) {
			kept = append(kept, h)
			continue
		}
		p.freeBlock(s, i, &p.blocks[i])
	}
	p.pending = kept
	p.nPend = len(kept)
}

// freeBlock is free_block (spec A4.2): merges block i, which is b, with free
// neighbours and puts the result into its set.
func (p *Policy) freeBlock(s *streamSet, i uint32, b *block) {
	if p.obs != nil {
		p.emit(policies.ActionFreeCompleted, s, handleOf(i, b.gen), b.addr, b.size, b.req)
	}
	s.counts.requested -= b.req
	p.counts[policies.All].requested -= b.req
	if p.pends {
		p.stats.Active.Sub(s.class, 1)
		p.stats.ActiveBytes.Sub(s.class, b.size)
	}
	// inactive_split changes once, by the net effect (spec A4.2).
	var pieces, bytes int64
	blocks := p.blocks
	if j := b.prev; blocks[j].state == free {
		pieces--
		bytes -= p.absorb(s, b, i, j)
	}
	if j := b.next; blocks[j].state == free {
		pieces--
		bytes -= p.absorb(s, b, i, j)
	}
	if b.seg == noSeg {
		isPiece := isPiece(b)
		p.countSplits(s, pieces+isPiece, bytes+isPiece*b.size)
	}
	s.insertFree(blocks, i)
}

// isPiece is 1 for a block of a split segment, 0 for one that is a whole
// segment.
func isPiece(b *block) int64 {
	n := int64(b.prev | b.next)
	return int64(uint64(-n) >> 63)
}

// absorb merges the free neighbour j into block i, which is b and in no set,
// and returns j's size.
func (p *Policy) absorb(s *streamSet, b *block, i, j uint32) int64 {
	s.remove(p.blocks, j)
	p.join(b, i, j)
	return p.blocks[j].size
}

// join makes block i, which is b, cover its neighbour j too and drops j.
func (p *Policy) join(b *block, i, j uint32) {
	blocks := p.blocks
	nb := &blocks[j]
	b.size += nb.size
	if b.prev == j {
		b.addr, b.prev = nb.addr, nb.prev
		blocks[nb.prev].next = i
	} else {
		b.next = nb.next
		blocks[nb.next].prev = i
	}
	p.dropBlock(j)
}

// coldBlocks is the number of blocks, of 64 bytes each, from which on most are
// in no cache of a processor's core.
const coldBlocks = 1 << 15

// Cold reports that Warm is worth its time.
func (p *Policy) Cold() bool { return len(p.blocks) > coldBlocks }

// Warm reads the blocks that the next frees name and their neighbours. The
// processor does these reads at the same time, because none waits for another
// block's; those of the frees themselves it cannot foresee.
func (p *Policy) Warm(next []policies.Handle) {
	blocks := p.blocks
	var read blockState
	for _, h := range next {
		if i := p.find(h); i != 0 {
			b := &blocks[i]
			read |= blocks[b.prev].state | blocks[b.next].state
		}
	}
	p.warmed = read
}
