// Package heap is what the block-splitting policies have in common: a flat
// table of blocks that tile the segments taken from a device, handles that
// detect bad frees, the statistics and the observer events.
//
// A policy embeds a [Heap], keeps its free blocks in one or more [Sizes] and
// adds its own rules: which free block a request gets, when it is split, with
// which neighbours a freed block joins and how the heap grows. Blocks and
// segments are indices into slices, so that a steady run allocates nothing and
// the garbage collector has nothing to follow.
package heap

import (
	"errors"
	"fmt"
	"slices"

	"allocsim/policies"
)

// MaxRequest is the largest request that is looked at, 1 PiB: larger ones are
// out of memory anywhere, and up to here no sum or rounding overflows.
const MaxRequest = 1 << 50

// Block is a piece of a segment. Index 0 of the table is no block.
type Block struct {
	Addr      uint64
	Size      int64 // bytes
	Requested int64 // bytes asked for; 0 when free
	// Prev and Next are the neighbours by address in the same segment; 0 =
	// none.
	Prev, Next int32
	Seg        int32
	// List and Link are for the policy, such as the free list that the block
	// belongs to and the next block there.
	List, Link int32
	gen        uint32
	Stream     uint16
	Pool       uint8
	State      State
}

// State says what a block is doing.
type State uint8

// The block states.
const (
	Unused  State = iota // a table entry to be reused
	Free                 // not in use; the policy keeps it in a free set
	Live                 // allocated
	Pending              // freed, but other streams may still use it
)

// Segment is a range obtained from the device. Index 0 is no segment.
type Segment struct {
	Addr   uint64
	Size   int64
	First  int32 // the block at Addr
	Stream uint16
	Pool   uint8
	// Mapped tells a range of a reservation, which the policy itself maps and
	// unmaps, from a cudaMalloc.
	Mapped bool
	used   bool
}

// Heap is the common part of a policy.
type Heap struct {
	Device policies.Device
	// Limit is the most bytes Grow takes; 0 = none.
	Limit    int64
	Blocks   []Block
	Segs     []Segment
	Counters policies.Stats
	// Unpadded makes the statistics count a block's requested bytes as
	// allocated and active, not its size.
	Unpadded bool
	// Release takes a block whose free has completed, which is in state Free
	// and in no free set.
	Release func(b int32) error

	asked    int64             // bytes that the device was last asked for
	refused  policies.Shortage // what the allocator itself last refused
	nodes    []node            // the trees of Sizes, by block
	observer policies.Observer
	event    policies.Event
	spare    []int32 // unused block indices
	spareSeg []int32
}

// Init makes an empty heap.
func (h *Heap) Init(d policies.Device, limit int64, release func(int32) error) {
	h.Device, h.Limit, h.Release = d, limit, release
	h.Blocks, h.nodes = make([]Block, 1, 1024), make([]node, 1, 1024)
	h.Segs = make([]Segment, 1, 64)
	h.Counters.MaxSplitSize = -1
}

// Stats implements policies.Policy.
func (h *Heap) Stats() *policies.Stats { return &h.Counters }

// Observe implements policies.Policy.
func (h *Heap) Observe(o policies.Observer) { h.observer = o }

// Round rounds size up to a multiple of unit, a power of two.
func Round(size, unit int64) int64 { return (size + unit - 1) &^ (unit - 1) }

// NewBlock returns an unused entry; its fields are to be set.
func (h *Heap) NewBlock() int32 {
	if n := len(h.spare); n > 0 {
		b := h.spare[n-1]
		h.spare = h.spare[:n-1]
		return b
	}
	h.Blocks = append(h.Blocks, Block{gen: 1})
	h.nodes = append(h.nodes, node{})
	return int32(len(h.Blocks) - 1)
}

// Drop gives a table entry back.
func (h *Heap) Drop(b int32) {
	blk := &h.Blocks[b]
	*blk = Block{gen: blk.gen}
	h.spare = append(h.spare, b)
}

// Check refuses requests that no allocator can serve.
func (h *Heap) Check(r policies.Request) error {
	if r.Size <= 0 {
		return fmt.Errorf("request of %d bytes: a size must be positive", r.Size)
	}
	if r.Size > MaxRequest {
		return h.OutOfMemory(r, r.Size, h.Refuse(policies.Shortage{Final: true, Reason: "No allocator serves a request of more than 1024 TiB."}))
	}
	return nil
}

// IsOOM reports whether err says that the device (or the limit) has no room.
func IsOOM(err error) bool { return errors.Is(err, policies.ErrOutOfMemory) }

// errLimit is wrapped where the limit, not the device, refuses.
var errLimit = fmt.Errorf("memory limit reached: %w", policies.ErrOutOfMemory)

// Grow takes a segment of size bytes from the device and returns its only
// block, in state Free and in no free set. The error wraps ErrOutOfMemory when
// the limit or the device refuses; nothing has changed then.
func (h *Heap) Grow(size int64, stream uint16) (int32, error) {
	h.asked = size
	if reserved := h.Counters.ReservedBytes[policies.All].Current; h.Limit > 0 && size > h.Limit-reserved {
		return 0, h.Refuse(policies.Shortage{Wanted: size, Limit: h.Limit, Counted: reserved, Err: errLimit})
	}
	addr, err := h.Device.Malloc(size)
	if err != nil {
		return 0, err
	}
	return h.AddSegment(addr, size, stream, false), nil
}

// AddSegment enters a range that has been obtained from the device and
// returns its only block.
func (h *Heap) AddSegment(addr uint64, size int64, stream uint16, mapped bool) int32 {
	var s int32
	if n := len(h.spareSeg); n > 0 {
		s = h.spareSeg[n-1]
		h.spareSeg = h.spareSeg[:n-1]
	} else {
		h.Segs = append(h.Segs, Segment{})
		s = int32(len(h.Segs) - 1)
	}
	b := h.NewBlock()
	h.Segs[s] = Segment{Addr: addr, Size: size, First: b, Stream: stream, Mapped: mapped, used: true}
	blk := &h.Blocks[b]
	*blk = Block{Addr: addr, Size: size, Seg: s, Stream: stream, State: Free, gen: blk.gen}
	h.Counters.Segment.Add(policies.Large, 1)
	h.Reserve(addr, size, stream, mapped)
	return b
}

// Reserve counts and reports size bytes obtained from the device.
func (h *Heap) Reserve(addr uint64, size int64, stream uint16, mapped bool) {
	h.Counters.ReservedBytes.Add(policies.Large, size)
	h.Counters.NumDeviceAlloc++
	if h.observer != nil {
		a := policies.ActionSegmentAlloc
		if mapped {
			a = policies.ActionSegmentMap
		}
		h.Emit(policies.Event{Action: a, Addr: addr, Size: size, Stream: stream})
	}
}

// Unreserve counts and reports size bytes given back to the device.
func (h *Heap) Unreserve(addr uint64, size int64, stream uint16, mapped bool) {
	h.Counters.ReservedBytes.Sub(policies.Large, size)
	h.Counters.NumDeviceFree++
	if h.observer != nil {
		a := policies.ActionSegmentFree
		if mapped {
			a = policies.ActionSegmentUnmap
		}
		h.Emit(policies.Event{Action: a, Addr: addr, Size: size, Stream: stream})
	}
}

// Extend makes the last block of a mapped segment, which is in no free set, size
// bytes longer, as the range behind it has been mapped.
func (h *Heap) Extend(last int32, size int64) {
	blk := &h.Blocks[last]
	h.Reserve(blk.Addr+uint64(blk.Size), size, blk.Stream, true)
	h.Segs[blk.Seg].Size += size
	blk.Size += size
}

// Append adds a block of size bytes behind the last block of a mapped segment
// and returns it in state Free and in no free set.
func (h *Heap) Append(last int32, size int64) int32 {
	b := h.NewBlock()
	blk, n := &h.Blocks[last], &h.Blocks[b]
	*n = Block{Addr: blk.Addr + uint64(blk.Size), Size: size, Prev: last, Seg: blk.Seg, State: Free, gen: n.gen}
	blk.Next = b
	h.Segs[blk.Seg].Size += size
	h.Reserve(n.Addr, size, 0, true)
	return b
}

// Shrink returns segment s, whose only block is free and in no free set, to
// the device.
func (h *Heap) Shrink(s int32) error {
	seg := h.Segs[s]
	if err := h.Device.Free(seg.Addr, seg.Size); err != nil {
		return fmt.Errorf("returning a segment of %d bytes at %#x: %w", seg.Size, seg.Addr, err)
	}
	h.RemoveSegment(s)
	return nil
}

// RemoveSegment forgets segment s, which has been returned to the device.
func (h *Heap) RemoveSegment(s int32) {
	seg := h.Segs[s]
	h.Counters.Segment.Sub(policies.Large, 1)
	h.Unreserve(seg.Addr, seg.Size, seg.Stream, seg.Mapped)
	h.Drop(seg.First)
	h.Segs[s] = Segment{}
	h.spareSeg = append(h.spareSeg, s)
}

// Split cuts block b, which is in no free set, to its lowest size bytes and
// returns the rest as a new block in state Free and in no free set.
func (h *Heap) Split(b int32, size int64) int32 {
	r := h.NewBlock()
	blk, rest := &h.Blocks[b], &h.Blocks[r]
	*rest = Block{
		Addr: blk.Addr + uint64(size), Size: blk.Size - size, Prev: b, Next: blk.Next,
		Seg: blk.Seg, List: blk.List, Stream: blk.Stream, Pool: blk.Pool, State: Free, gen: rest.gen,
	}
	blk.Size = size
	if rest.Next != 0 {
		h.Blocks[rest.Next].Prev = r
	}
	blk.Next = r
	return r
}

// Carve cuts the lowest size bytes off block b and returns them as a new block
// in state Free and in no free set; b keeps the rest.
func (h *Heap) Carve(b int32, size int64) int32 {
	n := h.NewBlock()
	blk, low := &h.Blocks[b], &h.Blocks[n]
	*low = Block{
		Addr: blk.Addr, Size: size, Prev: blk.Prev, Next: b,
		Seg: blk.Seg, List: blk.List, Stream: blk.Stream, Pool: blk.Pool, State: Free, gen: low.gen,
	}
	blk.Addr += uint64(size)
	blk.Size -= size
	blk.Prev = n
	if low.Prev != 0 {
		h.Blocks[low.Prev].Next = n
	} else {
		h.Segs[low.Seg].First = n
	}
	return n
}

// JoinUp makes b and its next neighbour one block: the neighbour. b is in no
// free set.
func (h *Heap) JoinUp(b int32) {
	blk := &h.Blocks[b]
	next := &h.Blocks[blk.Next]
	next.Addr = blk.Addr
	next.Size += blk.Size
	next.Prev = blk.Prev
	if blk.Prev != 0 {
		h.Blocks[blk.Prev].Next = blk.Next
	} else {
		h.Segs[blk.Seg].First = blk.Next
	}
	h.Drop(b)
}

// Join makes b and its next neighbour one block b. Neither is in a free set.
func (h *Heap) Join(b int32) {
	blk := &h.Blocks[b]
	n := blk.Next
	next := &h.Blocks[n]
	blk.Size += next.Size
	blk.Next = next.Next
	if blk.Next != 0 {
		h.Blocks[blk.Next].Prev = b
	}
	h.Drop(n)
}

// Whole reports whether b is all of its segment.
func (h *Heap) Whole(b int32) bool {
	blk := &h.Blocks[b]
	return blk.Prev|blk.Next == 0
}

// counted is the bytes of a block in the statistics.
func (h *Heap) counted(blk *Block) int64 {
	if h.Unpadded {
		return blk.Requested
	}
	return blk.Size
}

// CountFree enters free block b in the inactive-split statistics, if it is not
// all of its segment; UncountFree takes it out.
func (h *Heap) CountFree(b int32) {
	if blk := &h.Blocks[b]; blk.Prev|blk.Next != 0 {
		h.Counters.InactiveSplit.Add(policies.Large, 1)
		h.Counters.InactiveSplitBytes.Add(policies.Large, blk.Size)
	}
}

// UncountFree undoes CountFree.
func (h *Heap) UncountFree(b int32) {
	if blk := &h.Blocks[b]; blk.Prev|blk.Next != 0 {
		h.Counters.InactiveSplit.Sub(policies.Large, 1)
		h.Counters.InactiveSplitBytes.Sub(policies.Large, blk.Size)
	}
}

// Take allocates block b, which is in no free set.
func (h *Heap) Take(b int32, r policies.Request) policies.Block {
	blk := &h.Blocks[b]
	blk.State, blk.Requested, blk.Stream, blk.Pool = Live, r.Size, r.Stream, r.Pool
	c := &h.Counters
	c.Allocation.Add(policies.Large, 1)
	bytes := h.counted(blk)
	c.AllocatedBytes.Add(policies.Large, bytes)
	c.Active.Add(policies.Large, 1)
	c.ActiveBytes.Add(policies.Large, bytes)
	c.RequestedBytes.Add(policies.Large, r.Size)
	hd := handle(b, blk.gen)
	if h.observer != nil {
		h.emitBlock(policies.ActionAlloc, hd, blk)
	}
	return policies.Block{Handle: hd, Addr: blk.Addr}
}

// OutOfMemory counts and reports a request that cannot be served. size is the
// rounded request; cause wraps ErrOutOfMemory.
func (h *Heap) OutOfMemory(r policies.Request, size int64, cause error) error {
	h.Counters.NumOOMs++
	if h.observer != nil {
		h.Emit(policies.Event{Action: policies.ActionOOM, Size: size, Requested: r.Size, Stream: r.Stream, Pool: r.Pool})
	}
	s := policies.Shortage{Wanted: h.asked, Err: cause}
	if errors.Is(cause, &h.refused) {
		s = h.refused
		if cause != error(&h.refused) {
			s.Err = cause
		}
	}
	return fmt.Errorf("cannot allocate %d bytes (%d reserved, %d allocated): %w", r.Size,
		h.Counters.ReservedBytes[policies.All].Current, h.Counters.AllocatedBytes[policies.All].Current, &s)
}

// Refuse is the error for what the allocator itself refuses. OutOfMemory hands
// it on; nothing is allocated for it.
func (h *Heap) Refuse(s policies.Shortage) error {
	h.refused = s
	return &h.refused
}

// Asked notes how many bytes the device is about to be asked for, for
// OutOfMemory; Grow does so itself.
func (h *Heap) Asked(size int64) { h.asked = size }

// Retry counts and reports that the cache was flushed to serve a request.
func (h *Heap) Retry(r policies.Request, size int64) {
	h.Counters.NumAllocRetries++
	if h.observer != nil {
		h.Emit(policies.Event{Action: policies.ActionRetry, Size: size, Requested: r.Size, Stream: r.Stream, Pool: r.Pool})
	}
}

func handle(b int32, gen uint32) policies.Handle {
	return policies.Handle(uint32(b)) | policies.Handle(gen)<<32
}

// find returns the block of a handle that is still in use (live or pending).
// stale reports a handle whose block has been freed completely.
func (h *Heap) find(hd policies.Handle) (b int32, stale bool, err error) {
	i, gen := uint32(hd), uint32(hd>>32)
	if i == 0 || gen == 0 || uint64(i) >= uint64(len(h.Blocks)) {
		return 0, false, badFree(hd)
	}
	blk := &h.Blocks[i]
	if blk.gen == gen && (blk.State == Live || blk.State == Pending) {
		return int32(i), false, nil
	}
	if gen < blk.gen {
		return 0, true, badFree(hd)
	}
	return 0, false, badFree(hd)
}

func badFree(hd policies.Handle) error {
	return fmt.Errorf("handle %#x: %w", uint64(hd), policies.ErrBadFree)
}

// Free implements policies.Policy.
func (h *Heap) Free(hd policies.Handle, pending bool) error {
	i, gen := uint32(hd), uint32(hd>>32)
	if i == 0 || uint64(i) >= uint64(len(h.Blocks)) || h.Blocks[i].gen != gen || h.Blocks[i].State != Live {
		return badFree(hd)
	}
	blk := &h.Blocks[i]
	h.Counters.Allocation.Sub(policies.Large, 1)
	h.Counters.AllocatedBytes.Sub(policies.Large, h.counted(blk))
	if h.observer != nil {
		h.emitBlock(policies.ActionFreeRequested, hd, blk)
	}
	if pending {
		blk.State = Pending
		return nil
	}
	return h.complete(int32(i))
}

// FreeCompleted implements policies.Policy.
func (h *Heap) FreeCompleted(hd policies.Handle) error {
	b, stale, err := h.find(hd)
	if stale {
		return nil
	}
	if err != nil {
		return err
	}
	if h.Blocks[b].State != Pending {
		return fmt.Errorf("handle %#x has not been freed: %w", uint64(hd), policies.ErrBadFree)
	}
	return h.complete(b)
}

func (h *Heap) complete(b int32) error {
	blk := &h.Blocks[b]
	h.Counters.Active.Sub(policies.Large, 1)
	h.Counters.ActiveBytes.Sub(policies.Large, h.counted(blk))
	h.Counters.RequestedBytes.Sub(policies.Large, blk.Requested)
	if h.observer != nil {
		h.emitBlock(policies.ActionFreeCompleted, handle(b, blk.gen), blk)
	}
	blk.State, blk.Requested = Free, 0
	blk.gen++
	return h.Release(b)
}

// CompletePending completes every pending free: the device has been
// synchronised.
func (h *Heap) CompletePending() error {
	if h.Counters.Active[policies.All].Current == h.Counters.Allocation[policies.All].Current {
		return nil
	}
	for b := 1; b < len(h.Blocks); b++ {
		if h.Blocks[b].State == Pending {
			if err := h.complete(int32(b)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Emit reports an event; call it only with an observer (see Observed).
func (h *Heap) Emit(e policies.Event) {
	h.event = e
	h.observer.Observe(&h.event)
}

// Observed reports whether there is an observer to tell.
func (h *Heap) Observed() bool { return h.observer != nil }

func (h *Heap) emitBlock(a policies.Action, hd policies.Handle, blk *Block) {
	h.event = policies.Event{
		Handle: hd, Addr: blk.Addr, Size: blk.Size, Requested: blk.Requested,
		Stream: blk.Stream, Pool: blk.Pool, Action: a,
	}
	h.observer.Observe(&h.event)
}

// Report describes a block for Segments.
func (h *Heap) Report(b int32) policies.SegmentBlock {
	blk := &h.Blocks[b]
	sb := policies.SegmentBlock{Addr: blk.Addr, Size: blk.Size}
	switch blk.State {
	case Live:
		sb.State, sb.Requested, sb.Handle = policies.ActiveAllocated, blk.Requested, handle(b, blk.gen)
	case Pending:
		sb.State, sb.Requested, sb.Handle = policies.ActivePendingFree, blk.Requested, handle(b, blk.gen)
	}
	return sb
}

// Segments implements policies.Policy.
func (h *Heap) Segments(buf []policies.Segment) []policies.Segment {
	start := len(buf)
	for i := range h.Segs {
		seg := &h.Segs[i]
		if !seg.used {
			continue
		}
		out := policies.Segment{Addr: seg.Addr, Size: seg.Size, Stream: seg.Stream, Pool: seg.Pool, Expandable: seg.Mapped}
		for b := seg.First; b != 0; b = h.Blocks[b].Next {
			out.Blocks = append(out.Blocks, h.Report(b))
		}
		buf = append(buf, out)
	}
	slices.SortFunc(buf[start:], func(a, b policies.Segment) int {
		if a.Addr < b.Addr {
			return -1
		}
		return 1
	})
	return buf
}
