// Package stream is CUDA's stream-ordered allocator, cudaMallocAsync, with one
// memory pool: what PyTorch uses under backend:cudaMallocAsync.
//
// The driver is closed, so this is a rule fitted to recordings of one driver
// (580, CUDA 13, H200; spec other-verified, section 3), not its code. Reserved
// bytes were right after every operation of the ten logs it was fitted to and
// of 19 out of 20 fresh ones; in the other, one chunk of 32 MiB too low. What a
// trim returns is a guess: 7 of 10 runs with trims were right.
//
// The rule. Addresses are one long range, cut into slots of 32 MiB. Physical
// memory comes in chunks of 32 MiB, one to a mapped slot. Free ranges always
// join with their neighbours, mapped or not. A request, rounded up to 512
// bytes, takes the low end of
//
//  1. the smallest sufficient free range of which every slot is mapped, else
//  2. the smallest sufficient one with an unmapped slot, the endless rest of
//     the range last.
//
// A slot under it that is not mapped gets the chunk of a mapped slot without
// any live byte, the highest first, and only without one a new chunk. So
// fragmentation matters below 32 MiB and not above.
package stream

import (
	"errors"
	"fmt"
	"math/bits"

	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

const (
	// unit is the rounding of requests, in bytes. The logs allow any power of
	// two from 128 to 1024 and 16 or 32; returned addresses are multiples of
	// 512.
	unit = 512
	// slotShift is log2 of a chunk's bytes, 32 MiB.
	slotShift = 25
	// unlimited is more than any pool holds.
	unlimited = 1 << 60
)

// Notes tell a user how far to trust the results.
var Notes = []string{
	"stream: a rule fitted to one driver (CUDA 13, driver 580, H200), not the driver's code; on fresh logs reserved bytes were exact in 19 of 20 and one 32 MiB chunk too low in the other. Trims (empty_cache, threshold) are a guess: right in 7 of 10 probes.",
}

// Registration makes the policy known as "stream".
var Registration = policies.Registration{
	Name:    "stream",
	Aliases: []string{"cudamallocasync", "mallocasync", "async"},
	Doc:     "cudaMallocAsync's memory pool (backend:cudaMallocAsync), a fitted rule",
	Options: "threshold=max (release threshold: size or max; PyTorch sets max, the driver's own default is 0), " +
		"max=0 (the pool's maxSize; 0 = none), " +
		"limit-counts=reserved (used: the memory limit counts used bytes, as PyTorch does with this backend)",
	Parse: parse,
}

// Never is the Threshold of a pool that keeps all that it has.
const Never = unlimited

// Config is the options as a value. The zero value is a pool that gives back
// what it can at every trim and is limited by the device alone.
type Config struct {
	// Threshold is the release threshold: a trim leaves at least this many
	// bytes; Never keeps all.
	Threshold int64
	// Max is the pool's largest size in bytes; 0 = none.
	Max int64
	// LimitCountsUsed lets the memory limit count the bytes in use, as
	// PyTorch does with this backend, not those reserved.
	LimitCountsUsed bool
}

func parse(text string) (*policies.Spec, error) {
	o := options.Parse(text, "threshold", "max", "limit-counts")
	c := Config{Threshold: Never}
	o.SizeOrWord("threshold", &c.Threshold, "max", Never)
	o.Size("max", &c.Max, 0)
	counts := "reserved"
	o.Choice("limit-counts", &counts, "reserved", "used")
	c.LimitCountsUsed = counts == "used"
	if err := o.Err(); err != nil {
		return nil, err
	}
	return Spec(c), nil
}

// Spec returns the policy choice for a configuration.
func Spec(c Config) *policies.Spec {
	var o options.Set
	if c.Threshold != Never {
		o.Keep("threshold", options.Size(c.Threshold))
	}
	if c.Max != 0 {
		o.Keep("max", options.Size(c.Max))
	}
	if c.LimitCountsUsed {
		o.Keep("limit-counts", "used")
	}
	return &policies.Spec{
		Name:    "stream",
		Options: o.Normal(),
		Notes:   Notes,
		Sizes: func(size int64) (block, segment int64) {
			block = heap.Round(size, fitted.unit)
			return block, heap.Round(block, 1<<fitted.shift)
		},
		Page: func(bool) int64 { return 1 << fitted.shift },
		New: func(env policies.Env) (policies.Policy, error) {
			p, err := newPool(env, c, fitted)
			if err != nil {
				return nil, err
			}
			return p, nil
		},
	}
}

// rules are the parts of the rule that the tests bend to show that the logs
// pin them.
type rules struct {
	unit       int64
	shift      uint // log2 of the chunk size
	oneStep    bool // best fit over all ranges, mapped or not
	neverMove  bool // always create
	lowestMove bool // move the lowest chunk first
}

var fitted = rules{unit: unit, shift: slotShift}

// slot is a 32 MiB piece of the range.
type slot struct {
	first  int32 // the block at its first byte; 0 = the endless rest
	live   int32 // number of blocks in use that touch it
	mapped bool
}

type pool struct {
	heap.Heap
	rules
	Config
	chunk     int64 // bytes
	base      uint64
	room      int64 // bytes of the reservation
	limit     int64 // of the environment, bytes; 0 = none
	slots     []slot
	idle      []uint64 // bit set of mapped slots without a live byte
	idleCount int
	head      int32 // the first block
	rest      int32 // the endless free block at the end
	// mapped holds the free blocks whose slots are all mapped, holed the
	// others but for rest. Block.List counts a free block's unmapped slots.
	mapped, holed *heap.Sizes
}

func newPool(env policies.Env, c Config, r rules) (*pool, error) {
	p := &pool{rules: r, Config: c, chunk: 1 << r.shift, limit: env.Limit, room: 1 << 45}
	if total := env.Device.Total(); total > 0 && total < 1<<41 {
		// Holes in the address space cost nothing; this is ample.
		p.room = max(16*total, 1<<40) &^ (p.chunk - 1)
	}
	base, err := env.Device.Reserve(p.room)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of address space: %w", p.room, err)
	}
	p.base = base
	p.Init(env.Device, 0, p.release)
	p.Unpadded = true
	p.mapped, p.holed = heap.NewSizes(&p.Heap), heap.NewSizes(&p.Heap)
	p.mapped.Uncounted, p.holed.Uncounted = true, true
	p.rest = p.NewBlock()
	blk := &p.Blocks[p.rest]
	blk.Addr, blk.Size, blk.State = base, p.room, heap.Free
	p.head = p.rest
	return p, nil
}

// span returns the first and last slot that [addr, addr+size) touches.
func (p *pool) span(addr uint64, size int64) (first, last int) {
	at := addr - p.base
	return int(at >> p.shift), int((at + uint64(size) - 1) >> p.shift)
}

// starts returns the slots [first, end) whose first byte is in
// [addr, addr+size) and that are known.
func (p *pool) starts(addr uint64, size int64) (first, end int) {
	at := addr - p.base
	first = int((at + uint64(p.chunk) - 1) >> p.shift)
	end = int((at+uint64(size)-1)>>p.shift) + 1
	return first, min(end, len(p.slots))
}

// own makes block b the owner of the slots that start in a range.
func (p *pool) own(b int32, addr uint64, size int64) {
	for i, end := p.starts(addr, size); i < end; i++ {
		p.slots[i].first = b
	}
}

// Malloc implements policies.Policy.
func (p *pool) Malloc(r policies.Request) (policies.Block, error) {
	if err := p.Check(r); err != nil {
		return policies.Block{}, err
	}
	size := heap.Round(r.Size, p.rules.unit)
	if p.limit > 0 && p.LimitCountsUsed && r.Size > p.limit-p.Counters.ActiveBytes[policies.All].Current {
		return policies.Block{}, p.OutOfMemory(r, size, p.Refuse(policies.Shortage{
			Wanted: r.Size, Limit: p.limit, Counted: p.Counters.ActiveBytes[policies.All].Current, Final: true,
			Reason: "With this backend the limit counts the bytes in use, not those reserved.", Err: errLimit,
		}))
	}
	b := p.find(size)
	if b == 0 {
		return policies.Block{}, p.OutOfMemory(r, size, p.Refuse(policies.Shortage{Final: true, Reason: "The pool's address space is used up.", Err: errRoom}))
	}
	if b == p.rest || p.Blocks[b].List > 0 {
		if err := p.back(b, size); heap.IsOOM(err) {
			return policies.Block{}, p.OutOfMemory(r, size, err)
		} else if err != nil {
			return policies.Block{}, err
		}
	}
	b = p.carve(b, size)
	return p.Take(b, r), nil
}

var (
	errLimit = fmt.Errorf("memory limit reached: %w", policies.ErrOutOfMemory)
	errMax   = fmt.Errorf("the pool's maximum size is reached: %w", policies.ErrOutOfMemory)
	errRoom  = fmt.Errorf("the pool's address space is used up: %w", policies.ErrOutOfMemory)
)

// find returns the free block for a request; 0 if even the rest is too small.
func (p *pool) find(size int64) int32 {
	b := p.mapped.Find(size)
	if b == 0 || p.oneStep {
		if h := p.holed.Find(size); b == 0 || h != 0 && p.before(h, b) {
			b = h
		}
	}
	if b == 0 && p.Blocks[p.rest].Size > size {
		b = p.rest
	}
	return b
}

// before is the order of blocks in one-step best fit.
func (p *pool) before(a, b int32) bool {
	x, y := &p.Blocks[a], &p.Blocks[b]
	return x.Size < y.Size || x.Size == y.Size && x.Addr < y.Addr
}

// back makes sure that the lowest size bytes of free block b are mapped. On an
// error that wraps ErrOutOfMemory no block has changed.
func (p *pool) back(b int32, size int64) error {
	first, last := p.span(p.Blocks[b].Addr, size)
	for len(p.slots) <= last {
		p.slots = append(p.slots, slot{})
	}
	for len(p.idle)*64 < len(p.slots) {
		p.idle = append(p.idle, 0)
	}
	missing, idle := 0, p.idleCount
	for i := first; i <= last; i++ {
		switch s := &p.slots[i]; {
		case !s.mapped:
			missing++
		case s.live == 0:
			idle-- // about to be used where it is
		}
	}
	if missing == 0 {
		return nil
	}
	if p.neverMove {
		idle = 0
	}
	move := min(missing, idle)
	if err := p.create(first, last, move, missing-move); err != nil {
		return err
	}
	for i := first; move > 0; i++ {
		if p.slots[i].mapped {
			continue
		}
		if err := p.move(p.pick(first, last), i); err != nil {
			return err
		}
		move--
	}
	return nil
}

// create maps new chunks into the unmapped slots of [first, last] but for the
// lowest skip of them: count slots in all.
func (p *pool) create(first, last, skip, count int) error {
	if count == 0 {
		return nil
	}
	wanted, reserved := int64(count)*p.chunk, p.Counters.ReservedBytes[policies.All].Current
	if most := max(p.Max&^(p.chunk-1), p.chunk); p.Max > 0 && reserved+wanted > most {
		return p.Refuse(policies.Shortage{Wanted: wanted, Limit: most, Counted: reserved, Err: errMax})
	}
	if p.limit > 0 && !p.LimitCountsUsed && reserved+wanted > p.limit {
		return p.Refuse(policies.Shortage{Wanted: wanted, Limit: p.limit, Counted: reserved, Err: errLimit})
	}
	p.Asked(wanted)
	for i := first; skip > 0; i++ {
		if !p.slots[i].mapped {
			skip--
		}
		first = i + 1
	}
	var done [][2]int // slots mapped so far
	for i := first; i <= last; i++ {
		if p.slots[i].mapped {
			continue
		}
		end := i
		for end <= last && !p.slots[end].mapped {
			end++
		}
		if err := p.Device.Map(p.addr(i), int64(end-i)*p.chunk, p.chunk); err != nil {
			for _, run := range done {
				if e := p.Device.Unmap(p.addr(run[0]), int64(run[1]-run[0])*p.chunk, p.chunk); e != nil {
					return errors.Join(err, e)
				}
			}
			return err
		}
		done = append(done, [2]int{i, end})
		i = end
	}
	for _, run := range done {
		for i := run[0]; i < run[1]; i++ {
			p.setMapped(i, true)
			p.Counters.Segment.Add(policies.Large, 1)
		}
		p.Reserve(p.addr(run[0]), int64(run[1]-run[0])*p.chunk, 0, true)
	}
	return nil
}

func (p *pool) addr(i int) uint64 { return p.base + uint64(i)<<p.shift }

// setMapped changes whether slot i, which has no live byte, is mapped, and
// keeps the free block around it in the right set.
func (p *pool) setMapped(i int, mapped bool) {
	s := &p.slots[i]
	s.mapped = mapped
	b := s.first
	if b == 0 {
		b = p.rest
	}
	if b != p.rest {
		p.leave(b)
	}
	if mapped {
		p.idle[i>>6] |= 1 << (i & 63)
		p.idleCount++
		p.Blocks[b].List--
	} else {
		p.idle[i>>6] &^= 1 << (i & 63)
		p.idleCount--
		p.Blocks[b].List++
	}
	if b != p.rest {
		p.enter(b)
	}
}

// pick returns the slot whose chunk is moved next: the highest mapped one
// without a live byte outside [first, last].
func (p *pool) pick(first, last int) int {
	if p.lowestMove {
		for i := range p.slots {
			if p.idle[i>>6]>>(i&63)&1 == 1 && (i < first || i > last) {
				return i
			}
		}
	}
	for w := len(p.idle) - 1; w >= 0; w-- {
		m := p.idle[w]
		for m != 0 {
			i := w<<6 + 63 - bits.LeadingZeros64(m)
			if i < first || i > last {
				return i
			}
			m &^= 1 << (i & 63)
		}
	}
	return -1
}

// move takes the chunk of slot from to slot to.
func (p *pool) move(from, to int) error {
	if err := p.Device.Unmap(p.addr(from), p.chunk, p.chunk); err != nil {
		return fmt.Errorf("moving a chunk: %w", err)
	}
	p.setMapped(from, false)
	if err := p.Device.Map(p.addr(to), p.chunk, p.chunk); err != nil {
		// The driver moves a chunk without letting go of it. A device behind
		// this interface may have given it to someone else in between: then
		// the pool has lost it.
		p.Counters.Segment.Sub(policies.Large, 1)
		p.Unreserve(p.addr(from), p.chunk, 0, true)
		return fmt.Errorf("moving a chunk: %w", err)
	}
	p.setMapped(to, true)
	p.Counters.NumDeviceFree++
	p.Counters.NumDeviceAlloc++
	if p.Observed() {
		p.Emit(policies.Event{Action: policies.ActionSegmentUnmap, Addr: p.addr(from), Size: p.chunk})
		p.Emit(policies.Event{Action: policies.ActionSegmentMap, Addr: p.addr(to), Size: p.chunk})
	}
	return nil
}

// enter puts free block b into its set, leave takes it out; not for rest.
func (p *pool) enter(b int32) {
	if p.Blocks[b].List > 0 {
		p.holed.Insert(b)
	} else {
		p.mapped.Insert(b)
	}
}

func (p *pool) leave(b int32) {
	if p.Blocks[b].List > 0 {
		p.holed.Remove(b)
	} else {
		p.mapped.Remove(b)
	}
}

// carve takes the lowest size bytes of free block b, all mapped, for use.
func (p *pool) carve(b int32, size int64) int32 {
	if b != p.rest {
		p.leave(b)
	}
	taken := b
	if p.Blocks[b].Size > size {
		taken = p.NewBlock()
		blk, low := &p.Blocks[b], &p.Blocks[taken]
		low.Addr, low.Size, low.Prev, low.Next = blk.Addr, size, blk.Prev, b
		if blk.Prev != 0 {
			p.Blocks[blk.Prev].Next = taken
		} else {
			p.head = taken
		}
		blk.Prev = taken
		blk.Addr += uint64(size)
		blk.Size -= size
		p.own(taken, low.Addr, size)
		if b != p.rest {
			p.enter(b)
		}
	}
	first, last := p.span(p.Blocks[taken].Addr, size)
	for i := first; i <= last; i++ {
		s := &p.slots[i]
		if s.live == 0 {
			p.idle[i>>6] &^= 1 << (i & 63)
			p.idleCount--
		}
		s.live++
	}
	return taken
}

// release joins a freed block with its free neighbours. The block table entry
// of the largest survives, so that few slots change their owner.
func (p *pool) release(b int32) error {
	blk := &p.Blocks[b]
	first, last := p.span(blk.Addr, blk.Size)
	for i := first; i <= last; i++ {
		s := &p.slots[i]
		if s.live--; s.live == 0 {
			p.idle[i>>6] |= 1 << (i & 63)
			p.idleCount++
		}
	}
	blk.List = 0
	if n := blk.Next; n != 0 && p.Blocks[n].State == heap.Free {
		if n != p.rest {
			p.leave(n)
		}
		b = p.join(b, n)
	}
	if n := p.Blocks[b].Prev; n != 0 && p.Blocks[n].State == heap.Free {
		p.leave(n)
		b = p.join(n, b)
	}
	if b != p.rest {
		p.enter(b)
	}
	if p.Threshold < p.Counters.ReservedBytes[policies.All].Current {
		return p.trim(p.Threshold)
	}
	return nil
}

// join makes one block of two neighbours, neither in a set, and returns it.
func (p *pool) join(low, high int32) int32 {
	l, h := &p.Blocks[low], &p.Blocks[high]
	size, unmapped := l.Size+h.Size, l.List+h.List
	if high == p.rest || h.Size > l.Size {
		p.own(high, l.Addr, l.Size)
		h.Addr, h.Size, h.List, h.Prev = l.Addr, size, unmapped, l.Prev
		if h.Prev != 0 {
			p.Blocks[h.Prev].Next = high
		} else {
			p.head = high
		}
		p.Drop(low)
		return high
	}
	p.own(low, h.Addr, h.Size)
	l.Size, l.List, l.Next = size, unmapped, h.Next
	if l.Next != 0 {
		p.Blocks[l.Next].Prev = low
	}
	p.Drop(high)
	return low
}

// trim returns wholly free chunks, the highest first, as long as keep bytes
// remain reserved: cuMemPoolTrimTo.
func (p *pool) trim(keep int64) error {
	for p.idleCount > 0 && p.Counters.ReservedBytes[policies.All].Current-p.chunk >= keep {
		i := p.pick(-1, -1)
		if err := p.Device.Unmap(p.addr(i), p.chunk, p.chunk); err != nil {
			return fmt.Errorf("returning a chunk: %w", err)
		}
		p.setMapped(i, false)
		p.Counters.Segment.Sub(policies.Large, 1)
		p.Unreserve(p.addr(i), p.chunk, 0, true)
	}
	return nil
}

// EmptyCache implements policies.Policy: synchronise and trim to 0.
func (p *pool) EmptyCache() error {
	if err := p.CompletePending(); err != nil {
		return err
	}
	return p.trim(0)
}

// Segments implements policies.Policy. A segment is a run of mapped slots that
// all hold a live byte, or that all hold none: what holds none can be returned
// or moved. Free blocks are cut at its ends.
func (p *pool) Segments(buf []policies.Segment) []policies.Segment {
	b := p.head
	for i := 0; i < len(p.slots); {
		if !p.slots[i].mapped {
			i++
			continue
		}
		end := i + 1
		for end < len(p.slots) && p.slots[end].mapped && (p.slots[end].live == 0) == (p.slots[i].live == 0) {
			end++
		}
		seg := policies.Segment{Addr: p.addr(i), Size: int64(end-i) * p.chunk, Expandable: true}
		limit := seg.Addr + uint64(seg.Size)
		for p.Blocks[b].Addr+uint64(p.Blocks[b].Size) <= seg.Addr {
			b = p.Blocks[b].Next
		}
		for ; b != 0 && p.Blocks[b].Addr < limit; b = p.Blocks[b].Next {
			out := p.Report(b)
			from, to := max(out.Addr, seg.Addr), min(out.Addr+uint64(out.Size), limit)
			out.Addr, out.Size = from, int64(to-from)
			seg.Blocks = append(seg.Blocks, out)
			if to < p.Blocks[b].Addr+uint64(p.Blocks[b].Size) {
				break // the block goes on behind the segment
			}
		}
		buf = append(buf, seg)
		i = end
	}
	return buf
}

// NativeStats implements policies.Native with cudaMemPool attributes.
func (p *pool) NativeStats() map[string]int64 {
	c := &p.Counters
	return map[string]int64{
		"reserved_mem_current": c.ReservedBytes[policies.All].Current,
		"reserved_mem_high":    c.ReservedBytes[policies.All].Peak,
		"used_mem_current":     c.ActiveBytes[policies.All].Current,
		"used_mem_high":        c.ActiveBytes[policies.All].Peak,
	}
}
