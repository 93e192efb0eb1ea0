package torch

import (
	"fmt"
	"slices"

	"allocsim/policies"
)

// Segments appends the present segments; an expandable segment gives one per
// contiguous mapped range, as a snapshot does (spec B2).
func (p *Policy) Segments(buf []policies.Segment) []policies.Segment {
	from := len(buf)
	for head := range p.blocks {
		if b := &p.blocks[head]; b.state == unused || b.prev != 0 {
			continue
		}
		open := false
		for i := uint32(head); i != 0; i = p.blocks[i].next {
			b := &p.blocks[i]
			if b.state == unmapped {
				open = false
				continue
			}
			if !open {
				s := p.sets[b.set]
				buf = append(buf, policies.Segment{
					Addr: b.addr, Stream: s.stream, Pool: s.pool.private,
					Small: s.pool.small, Expandable: b.seg != noSeg,
				})
				open = true
			}
			seg := &buf[len(buf)-1]
			seg.Size += b.size
			sb := policies.SegmentBlock{Addr: b.addr, Size: b.size}
			if b.state != free {
				sb.Requested, sb.Handle, sb.State = b.req, handleOf(i, b.gen), policies.ActiveAllocated
				if b.state == pending {
					sb.State = policies.ActivePendingFree
				}
			} else if b.seg != noSeg {
				_, sb.Returnable = p.wholePages(b)
			}
			seg.Blocks = append(seg.Blocks, sb)
		}
	}
	slices.SortFunc(buf[from:], func(x, y policies.Segment) int {
		if x.Addr < y.Addr {
			return -1
		}
		return 1
	})
	return buf
}

// Restore fills a new allocator with segments that it held before a recording
// began, and sets the Handle of every block that is in use. Statistics start
// from this state: nothing is known about what came before. Private pools and
// streams are those of the segments. The memory is not asked from the device.
func (p *Policy) Restore(segs []policies.Segment) error {
	if len(p.blocks) > 1 {
		return fmt.Errorf("torch: restore into an allocator that is in use")
	}
	for si := range segs {
		s := &segs[si]
		set := p.set(s.Pool, s.Small, s.Stream)
		class := set.class
		seg := int32(noSeg)
		var prev, after uint32 // neighbours of the segment in its reservation
		if s.Expandable {
			var err error
			if seg, prev, after, err = p.restoreRange(set, s); err != nil {
				return err
			}
		} else {
			p.stats.Segment.Add(class, 1)
			if s.Size >= p.conf.MaxSplitSize {
				p.stats.OversizeSegments.Add(1)
			}
		}
		p.total += s.Size
		p.stats.ReservedBytes.Add(class, s.Size)
		for bi := range s.Blocks {
			sb := &s.Blocks[bi]
			i := p.newBlock(set, seg)
			b := &p.blocks[i]
			b.addr, b.size, b.req, b.prev = sb.Addr, sb.Size, sb.Requested, prev
			if prev != 0 {
				p.blocks[prev].next = i
			}
			prev = i
			if sb.State == policies.Inactive {
				set.insertFree(p.blocks, i)
				if seg == noSeg && len(s.Blocks) > 1 {
					p.countSplits(set, 1, b.size)
				}
				continue
			}
			b.gen++
			sb.Handle = handleOf(i, b.gen)
			b.state = live
			set.counts.add(b.size, b.req)
			p.counts[policies.All].add(b.size, b.req)
			if p.pends {
				p.countActive(set, b.size)
			}
			if sb.State == policies.ActivePendingFree {
				p.startPending()
				b.state = pending
				p.pending = append(p.pending, sb.Handle)
				p.nPend++
				p.countFree(set, b.size)
				continue
			}
			if b.size >= p.conf.MaxSplitSize {
				p.stats.OversizeAllocations.Add(1)
			}
		}
		if after != 0 {
			p.blocks[prev].next = after
			p.blocks[after].prev = prev
		}
	}
	return nil
}
