package torch

import (
	"math/bits"
	"strconv"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/policies/torch/conf"
)

// sizer turns requests into block and segment sizes.
type sizer struct {
	conf   conf.Config
	rules  conf.Rules
	rounds bool // the roundup table is not empty
}

func newSizer(c conf.Config, v conf.Version) sizer {
	return sizer{conf: c, rules: v.Rules(), rounds: c.Roundup != [conf.Intervals]int64{}}
}

// SizesOf tells the block that a request of req > 0 bytes is rounded up to and
// the segment that it takes when no free block serves it, in bytes.
func SizesOf(c conf.Config, v conf.Version) func(req int64) (block, segment int64) {
	s := newSizer(c, v)
	return func(req int64) (block, segment int64) {
		block = s.round(req)
		return block, s.segmentSize(block)
	}
}

// round is round_size: the block size for a request of req > 0 bytes (spec
// A2.2).
func (p *sizer) round(req int64) int64 {
	if p.rounds && req >= minBlockSize {
		return p.roundDivided(req)
	}
	return (req + minBlockSize - 1) &^ (minBlockSize - 1)
}

// roundDivided is round under the roundup table.
func (p *sizer) roundDivided(req int64) int64 {
	d := p.conf.Roundup[conf.RoundupInterval(req)]
	if t := p.conf.RoundupBypassThreshold; t > 0 && req > t {
		d = 0
	}
	switch {
	case d > 1 && req > minBlockSize*d:
		return pow2Division(req, d)
	case d == 1 && req > minBlockSize && p.rules.DivisionsOneUnrounded:
		return req
	}
	return (req + minBlockSize - 1) &^ (minBlockSize - 1)
}

// pow2Division is roundup_power2_next_division: up to the next of d equal
// steps between powers of two; d is a power of two ≥ 2.
func pow2Division(size, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(size)) - 1)
	if size == floor {
		return size
	}
	step := floor >> bits.TrailingZeros64(uint64(d))
	if step == 0 {
		return floor << 1
	}
	return (size + step - 1) &^ (step - 1)
}

// segmentSize is get_allocation_size: what a rounded size takes from the
// device (spec A2.3).
func (p *sizer) segmentSize(size int64) int64 {
	switch {
	case size <= smallSize:
		return smallBuffer
	case size < minLargeAlloc:
		return p.conf.LargeSegmentSize
	}
	return (size + roundLarge - 1) &^ (roundLarge - 1)
}

// steps are the sizes at which the rules change under a configuration (spec A2,
// A3).
func steps(c conf.Config) []policies.Step {
	steps := []policies.Step{
		{At: minBlockSize, Text: "512 B: block sizes are multiples"},
		{At: smallSize, Text: "1 MiB: up to here from small segments of 2 MiB, above from the large pool"},
		{At: minLargeAlloc, Text: "10 MiB: below from segments of " + bytesize.Format(c.LargeSegmentSize) + ", from here of the size itself in steps of 2 MiB"},
	}
	if c.MaxSplitSize != conf.Unlimited {
		steps = append(steps, policies.Step{At: c.MaxSplitSize, Text: "max_split_size " + bytesize.Format(c.MaxSplitSize) + ": larger blocks are not split"})
	}
	for i, d := range c.Roundup {
		if d <= 1 || i > 0 && c.Roundup[i-1] == d {
			continue
		}
		at := int64(1<<20) << i
		if i == 0 {
			at = 1
		}
		from := "from " + bytesize.Format(at)
		if i == 0 {
			from = "from the smallest on"
		}
		steps = append(steps, policies.Step{At: at, Text: from + ": rounded up to 1/" + strconv.FormatInt(d, 10) + " of a power of two"})
	}
	return steps
}
