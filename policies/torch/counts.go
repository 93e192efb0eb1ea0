package torch

import "allocsim/policies"

// counts is what memory_stats() tells of a class of blocks and what changes
// with every request. Of the class All, the totals of pieces are not kept: they
// are sums.
type counts struct {
	// Blocks in use, their bytes and the bytes requested: at present, at most
	// and in all.
	blocks, bytes, requested             int64
	blocksPeak, bytesPeak, requestedPeak int64
	blocksSum, bytesSum, requestedSum    int64
	// Free pieces of split segments and their bytes (inactive_split).
	pieces, pieceBytes         int64
	piecesPeak, pieceBytesPeak int64
	piecesSum, pieceBytesSum   int64
}

// add counts a new block.
func (t *counts) add(bytes, requested int64) {
	t.blocksSum++
	t.bytesSum += bytes
	t.requestedSum += requested
	t.blocks++
	t.bytes += bytes
	t.requested += requested
	t.blocksPeak = max(t.blocksPeak, t.blocks)
	t.bytesPeak = max(t.bytesPeak, t.bytes)
	t.requestedPeak = max(t.requestedPeak, t.requested)
}

// split adds to the number of free pieces and their bytes; both may fall.
func (t *counts) split(pieces, bytes int64) {
	t.pieces += pieces
	t.pieceBytes += bytes
	t.piecesPeak = max(t.piecesPeak, t.pieces)
	t.pieceBytesPeak = max(t.pieceBytesPeak, t.pieceBytes)
}

// Stats are the statistics so far, as torch.cuda.memory_stats() has them.
func (p *Policy) Stats() *policies.Stats {
	all := &p.counts[policies.All]
	small, large := &p.counts[policies.Small], &p.counts[policies.Large]
	all.piecesSum = small.piecesSum + large.piecesSum
	all.pieceBytesSum = small.pieceBytesSum + large.pieceBytesSum
	put := func(to *policies.StatArray, of func(*counts) policies.Stat) {
		for c := range to {
			to[c] = of(&p.counts[c])
		}
	}
	blocks := func(t *counts) policies.Stat {
		return policies.Stat{Current: t.blocks, Peak: t.blocksPeak, Allocated: t.blocksSum}
	}
	bytes := func(t *counts) policies.Stat {
		return policies.Stat{Current: t.bytes, Peak: t.bytesPeak, Allocated: t.bytesSum}
	}
	put(&p.stats.Allocation, blocks)
	put(&p.stats.AllocatedBytes, bytes)
	if !p.pends {
		put(&p.stats.Active, blocks)
		put(&p.stats.ActiveBytes, bytes)
	}
	put(&p.stats.RequestedBytes, func(t *counts) policies.Stat {
		return policies.Stat{Current: t.requested, Peak: t.requestedPeak, Allocated: t.requestedSum}
	})
	put(&p.stats.InactiveSplit, func(t *counts) policies.Stat {
		return policies.Stat{Current: t.pieces, Peak: t.piecesPeak, Allocated: t.piecesSum}
	})
	put(&p.stats.InactiveSplitBytes, func(t *counts) policies.Stat {
		return policies.Stat{Current: t.pieceBytes, Peak: t.pieceBytesPeak, Allocated: t.pieceBytesSum}
	})
	return &p.stats
}

// countSplits counts one net change of the free pieces of split segments.
// There is no branch on the signs, which no predictor could guess.
func (p *Policy) countSplits(s *streamSet, pieces, bytes int64) {
	t := s.counts
	t.piecesSum += max(pieces, 0)
	t.pieceBytesSum += max(bytes, 0)
	t.split(pieces, bytes)
	p.counts[policies.All].split(pieces, bytes)
}

// countActive counts a block that is handed out, where active is counted apart
// from allocated.
func (p *Policy) countActive(s *streamSet, bytes int64) {
	p.stats.Active.Add(s.class, 1)
	p.stats.ActiveBytes.Add(s.class, bytes)
}

// countFree counts a block that the program gives back.
func (p *Policy) countFree(s *streamSet, bytes int64) {
	t, all := s.counts, &p.counts[policies.All]
	t.blocks--
	t.bytes -= bytes
	all.blocks--
	all.bytes -= bytes
}

// startPending switches to counting active apart from allocated.
func (p *Policy) startPending() {
	if !p.pends {
		p.Stats()
		p.pends = true
	}
}
