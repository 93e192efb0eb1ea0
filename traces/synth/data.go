package synth

import (
	"math"
	"math/rand/v2"
)

// sampler draws the shape of each batch.
type sampler struct {
	o    *Options
	l    lengths
	rng  *rand.Rand
	turn int // batches so far
	// held is an item drawn for a batch whose token budget it exceeded.
	held int64

	items, tokens, padded int64 // so far, for the notes
}

func newSampler(o *Options) *sampler {
	l, _ := parseLengths(o.Lengths) // checked before
	return &sampler{o: o, l: l, rng: rand.New(rand.NewPCG(uint64(o.Seed), 0x73796e7468))}
}

// item draws the length of one item, at most Seq.
func (s *sampler) item() int64 {
	if h := s.held; h > 0 {
		s.held = 0
		return h
	}
	n := s.o.Seq
	switch s.l.kind {
	case "uniform":
		n = s.l.lo + s.rng.Int64N(s.l.hi-s.l.lo+1)
	case "lognormal":
		n = int64(math.Round(s.l.median * math.Exp(s.l.sigma*s.rng.NormFloat64())))
	}
	return min(max(n, 1), s.o.Seq)
}

// next is the next batch: its items and their padded length.
func (s *sampler) next() (items, length int64) {
	most := s.o.Batch
	if n := len(s.o.Batches); n > 0 {
		most = s.o.Batches[s.turn%n]
	}
	turn := s.turn
	s.turn++
	if s.l.kind == "list" {
		length = s.l.list[turn%len(s.l.list)]
		s.items += most
		s.tokens += most * length
		s.padded += most * length
		return most, length
	}
	pad := func(longest int64) int64 {
		if s.o.Padding == "max" || s.l.kind == "fixed" {
			return s.o.Seq
		}
		m := s.o.PadMultiple
		return min((longest+m-1)/m*m, s.o.Seq)
	}
	var longest, tokens int64
	for items < most {
		n := s.item()
		l := pad(max(longest, n))
		if s.o.TokenBudget > 0 && items > 0 && (items+1)*l > s.o.TokenBudget {
			s.held = n
			break
		}
		longest = max(longest, n)
		tokens += n
		items++
	}
	length = pad(longest)
	s.items += items
	s.tokens += tokens
	s.padded += items * length
	return items, length
}
