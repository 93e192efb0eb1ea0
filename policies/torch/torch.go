// Package torch is PyTorch's native CUDA caching allocator
// (c10/cuda/CUDACachingAllocator.cpp, 2.11), every option of its configuration
// string included. The rules and their numbering are those of
// spec pytorch-allocator sections A1–A6; they were held against real
// recordings to the byte and the address.
//
// Memory comes from the device in segments. Requests are rounded to 512 bytes;
// those up to 1 MiB share 2 MiB segments (the small pool), others use 20 MiB
// or made-to-measure segments (the large pool). A request takes the smallest
// free block of its pool and stream that fits, at the lowest address, and
// splits off what it does not need; freed blocks merge with free neighbours of
// the same segment. When nothing fits and the device has no room, cached
// segments are released and the request is tried again.
//
// Files: malloc.go (the order of attempts), free.go (frees and pending frees),
// release.go (garbage collection and flushes), expandable.go (expandable
// segments), freeset.go (the sorted set of free blocks), rounding.go, counts.go
// (statistics), state.go (segments, out and in).
package torch

import (
	"fmt"
	"math"

	"allocsim/internal/text"
	"allocsim/policies"
	"allocsim/policies/stream"
	"allocsim/policies/torch/conf"
)

// Constants of c10/cuda/CUDACachingAllocator.h (spec A1), in bytes.
const (
	minBlockSize  = 512
	smallSize     = 1 << 20  // largest rounded size of the small pool
	smallBuffer   = 2 << 20  // segment and page size of the small pool
	minLargeAlloc = 10 << 20 // from here on segments are made to measure
	roundLarge    = 2 << 20
	maxRequest    = 1 << 60 // 1 EiB: refused without touching a statistic
)

// Registration makes the policy known as "torch".
var Registration = policies.Registration{
	Name:    "torch",
	Aliases: []string{"pytorch", "caching", "native"},
	Doc:     "PyTorch's native CUDA caching allocator (2.11)",
	Options: "PYTORCH_CUDA_ALLOC_CONF's own syntax, e.g. torch:expandable_segments:True",
	Parse: func(options string) (*policies.Spec, error) {
		return Parse(options, conf.Latest)
	},
	ParseFor: func(options, release string) (*policies.Spec, error) {
		v, err := conf.ParseVersion(release)
		if err != nil {
			return nil, err
		}
		return Parse(options, v)
	},
}

// block is a piece of a segment: one cache line.
type block struct {
	addr uint64
	size int64
	req  int64 // requested bytes of the last request that used this block
	// prev and next are the neighbours in the segment, by address; 0 = none.
	prev, next uint32
	// Links of the free set's heap.
	child, sibling, parent uint32
	base                   int32  // pool's call count when it became free (GC age)
	gen                    uint32 // counts the allocations this index has served
	set                    int32  // index of its pool and stream in Policy.sets
	seg                    int32  // index in Policy.ranges of its expandable segment, or noSeg
	state                  blockState
}

type blockState uint8

const (
	unused blockState = iota
	free
	live
	pending  // freed by the program, in use by another stream
	unmapped // address space of an expandable segment without memory
)

const noSeg = -1

// pool is the small or large half of the default pool or of a private pool.
type pool struct {
	calls   int32        // get_free_blocks_call_count: the garbage collector's clock
	sets    []*streamSet // by stream; nil = none yet
	small   bool
	private uint8 // private pool, 0 = default
	// freeable: nobody owns this private pool any more.
	freeable bool
}

// streamSet is what a pool has for one stream.
type streamSet struct {
	freeSet
	pool     *pool
	index    int32 // in Policy.sets
	class    policies.Class
	counts   *counts // of the class
	small    bool
	stream   uint16
	unmapped []uint32 // unmapped blocks, by address
	// A block is split if at least minRest bytes are left over and the request
	// is smaller than splitBelow (should_split, spec A3.8).
	minRest, splitBelow int64
}

// addressRange is one reservation of an expandable segment.
type addressRange struct {
	addr uint64
	size int64
	page int64
}

// Policy is one device's allocator.
type Policy struct {
	sizer
	device policies.Device
	limit  int64 // allowed_max; math.MaxInt64 = none
	// collects: a limit and a GC threshold are set, so the clock runs.
	collects bool

	blocks  []block // blocks[0] is not used
	unusedB []uint32
	sets    []*streamSet
	pools   []*pool // 2×private pool + (0 small, 1 large)
	// main are the sets of the default pool, small and large, by stream, nil
	// where there is none yet: what nearly every request uses.
	main    [2][]*streamSet
	ranges  []addressRange
	spare   []*streamSet      // empty sets of recycled policies
	pending []policies.Handle // pending frees in order; completed ones linger
	nPend   int               // pending frees in fact

	total int64 // bytes held from the device
	// counts holds what changes with every request, by policies.Class; Stats
	// brings it into stats.
	counts [3]counts
	// pends: there has been a pending free, so active differs from allocated
	// and is counted in stats. Until then it is that of counts.
	pends bool
	stats policies.Stats
	obs   policies.Observer
	event policies.Event
	buf   []uint32          // scratch of releases
	short policies.Shortage // of the last request that failed
	// warmed keeps the reads of Warm from being compiled away.
	warmed blockState
}

// Parse reads a configuration string for a PyTorch release into a Spec. The
// error shows the position of the first mistake.
func Parse(options string, v conf.Version) (*policies.Spec, error) {
	c, res := conf.Parse(options, v)
	if !res.OK {
		p := res.Errors[0]
		if p.Hint != "" {
			return nil, fmt.Errorf("configuration string %s, offset %d: %s; %s", text.Quote(options, 200), p.Offset, p.Message, p.Hint)
		}
		return nil, fmt.Errorf("configuration string %s, offset %d: %s", text.Quote(options, 200), p.Offset, p.Message)
	}
	return Spec(c, v)
}

// Spec returns the policy choice for a configuration under the rules of a
// PyTorch release.
func Spec(c conf.Config, v conf.Version) (*policies.Spec, error) {
	rules := v.Rules()
	limitOf := func(fraction float64, total int64) int64 {
		if fraction >= 1 && !rules.FractionOneLimits {
			return 0
		}
		return int64(fraction * float64(total))
	}
	if c.Backend == conf.CudaMallocAsync {
		s := stream.Spec(stream.Config{Threshold: stream.Never, LimitCountsUsed: true})
		s.Config, s.Fraction, s.LimitOf = configured{c, v}, fractionOf(c), limitOf
		s.Notes = append([]string{"backend:cudaMallocAsync is simulated as the policy stream; the native allocator's options have no effect."}, s.Notes...)
		return s, nil
	}
	s := &policies.Spec{
		Name:     "torch",
		Options:  c.Format(v),
		Title:    "PyTorch's defaults",
		Config:   configured{c, v},
		Fraction: fractionOf(c),
		LimitOf:  limitOf,
		Sizes:    SizesOf(c, v),
		Page: func(small bool) int64 {
			if small {
				return smallBuffer
			}
			return c.LargeSegmentSize
		},
		Steps: func() []policies.Step { return steps(c) },
		New:   func(env policies.Env) (policies.Policy, error) { return New(env, c, v) },
	}
	if s.Options != "" {
		s.Title = s.Options
	}
	if rules.CollectsExpandable && c.ExpandableSegments && c.GCThreshold > 0 {
		s.Notes = append(s.Notes, "PyTorch before 2.5 also collected expandable blocks; that defect is not simulated.")
	}
	return s, nil
}

// Expandable is the choice of expandable segments and nothing else. The error
// says that the release has no such option.
func Expandable(v conf.Version) (*policies.Spec, error) {
	c := conf.Default(v)
	c.ExpandableSegments = true
	if res := conf.Check(c, v); !res.OK {
		return nil, fmt.Errorf("configuration string %s: %s", text.Quote(c.Format(v), 200), res.Errors[0].Message)
	}
	return Spec(c, v)
}

// configured is the Config of a policy choice.
type configured struct {
	conf    conf.Config
	version conf.Version
}

// ConfigOf is the configuration of a choice that Parse or Spec made, and the
// release whose rules hold. ok is false for other allocators.
func ConfigOf(s *policies.Spec) (c conf.Config, v conf.Version, ok bool) {
	if s == nil {
		return c, v, false
	}
	x, ok := s.Config.(configured)
	return x.conf, x.version, ok
}

func fractionOf(c conf.Config) float64 {
	if c.PerProcessMemoryFraction < 1 {
		return c.PerProcessMemoryFraction
	}
	return 0
}

// New returns an allocator on a device, under the rules of a PyTorch release.
// The error reports a configuration that this allocator cannot run: another
// backend, or pages that are not a multiple of the driver's 2 MiB.
func New(env policies.Env, c conf.Config, v conf.Version) (*Policy, error) {
	switch {
	case env.Device == nil:
		return nil, fmt.Errorf("torch: no device")
	case c.Backend == conf.CudaMallocAsync:
		return nil, fmt.Errorf("torch: backend:cudaMallocAsync is the policy stream")
	case c.ExpandableSegments && c.LargeSegmentSize%roundLarge != 0:
		return nil, fmt.Errorf("torch: large_segment_size_mb must be even with expandable_segments: the driver maps pages of 2 MiB")
	}
	var p *Policy
	if old, ok := env.Reuse.(*Policy); ok {
		p = old.emptied()
	} else {
		p = &Policy{blocks: make([]block, 1, 1024)}
	}
	p.sizer, p.device, p.limit = newSizer(c, v), env.Device, env.Limit
	if p.limit <= 0 {
		p.limit = math.MaxInt64
	}
	p.collects = env.Limit > 0 && c.GCThreshold > 0
	p.stats.MaxSplitSize = c.MaxSplitSize
	if c.MaxSplitSize == conf.Unlimited {
		p.stats.MaxSplitSize = -1
	}
	return p, nil
}

// emptied returns a policy with nothing but the memory of p.
func (p *Policy) emptied() *Policy {
	for _, s := range p.sets {
		s.reset()
		s.unmapped = s.unmapped[:0]
	}
	*p = Policy{
		blocks: p.blocks[:1], unusedB: p.unusedB[:0], ranges: p.ranges[:0], pending: p.pending[:0], buf: p.buf[:0],
		spare: append(p.spare, p.sets...),
	}
	return p
}

// Observe sets the receiver of events.
func (p *Policy) Observe(o policies.Observer) { p.obs = o }

// set returns the free set of a pool and stream and makes it if need be.
func (p *Policy) set(private uint8, small bool, stream uint16) *streamSet {
	k := int(private) * 2
	if !small {
		k++
	}
	for len(p.pools) <= k|1 {
		n := len(p.pools)
		p.pools = append(p.pools, &pool{small: n%2 == 0, private: uint8(n / 2)})
	}
	pl := p.pools[k]
	for len(pl.sets) <= int(stream) {
		pl.sets = append(pl.sets, nil)
	}
	if s := pl.sets[stream]; s != nil {
		return s
	}
	class := policies.Large
	if small {
		class = policies.Small
	}
	var s *streamSet
	if n := len(p.spare); n > 0 {
		s = p.spare[n-1]
		p.spare = p.spare[:n-1]
	} else {
		s = new(streamSet)
	}
	s.pool, s.index, s.class, s.small, s.stream = pl, int32(len(p.sets)), class, small, stream
	s.counts = &p.counts[class]
	s.minRest, s.splitBelow = minBlockSize, math.MaxInt64
	if !small && !p.conf.ExpandableSegments {
		s.minRest, s.splitBelow = smallSize+1, p.conf.MaxSplitSize
	}
	p.sets = append(p.sets, s)
	pl.sets[stream] = s
	if private == 0 {
		p.main[k] = pl.sets
	}
	return s
}

// newBlock returns the index of a block of a set without address, size and
// neighbours. It may move p.blocks.
func (p *Policy) newBlock(s *streamSet, seg int32) uint32 {
	n := len(p.unusedB) - 1
	if n < 0 {
		return p.appendBlock(s, seg)
	}
	i := p.unusedB[n]
	p.unusedB = p.unusedB[:n]
	b := &p.blocks[i]
	b.prev, b.next, b.set, b.seg = 0, 0, s.index, seg
	return i
}

func (p *Policy) appendBlock(s *streamSet, seg int32) uint32 {
	p.blocks = append(p.blocks, block{set: s.index, seg: seg})
	return uint32(len(p.blocks) - 1)
}

func (p *Policy) dropBlock(i uint32) {
	p.blocks[i].state = unused
	p.unusedB = append(p.unusedB, i)
}

// insertFree puts a free block into the set; its GC age starts now.
func (s *streamSet) insertFree(blocks []block, i uint32) {
	b := &blocks[i]
	b.state, b.base = free, s.pool.calls
	s.insert(blocks, i)
}

func handleOf(i, gen uint32) policies.Handle {
	return policies.Handle(gen)<<32 | policies.Handle(i)
}

// find returns the block of a handle; 0 if it names no present allocation.
func (p *Policy) find(h policies.Handle) uint32 {
	i := uint32(h)
	if int(i) >= len(p.blocks) || p.blocks[i].gen != uint32(h>>32) {
		return 0
	}
	return i
}

// emit tells the observer; the caller has checked that there is one.
func (p *Policy) emit(a policies.Action, s *streamSet, h policies.Handle, addr uint64, size, requested int64) {
	p.event = policies.Event{
		Handle: h, Addr: addr, Size: size, Requested: requested,
		Stream: s.stream, Pool: s.pool.private, Action: a, Small: s.pool.small,
	}
	p.obs.Observe(&p.event)
}
