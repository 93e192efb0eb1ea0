// Package firstfit is a complete allocator policy outside allocsim, to be read
// as a worked example: docs/new-policy.md walks through it.
//
// It takes segments of a fixed size from the device and serves a request from
// the first free block, by address, that is large enough. Requests that are
// larger than a segment get a segment of their own. Freed blocks join with
// their free neighbours. When the device is full, wholly free segments are
// returned and the request is tried once more.
package firstfit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"allocsim/policies"
)

// Registration makes the policy known as "firstfit". The program that wants it
// calls policies.Register(firstfit.Registration) once.
var Registration = policies.Registration{
	Name:    "firstfit",
	Doc:     "example: first fit by address in segments of a fixed size",
	Options: "segment=64 (MiB taken from the device at a time)",
	Parse:   parse,
}

// parse reads the text after "firstfit:".
func parse(text string) (*policies.Spec, error) {
	options, err := policies.Options(text, "segment")
	if err != nil {
		return nil, err
	}
	segment, normal := int64(64), ""
	if v, ok := options["segment"]; ok {
		if segment, err = strconv.ParseInt(v, 10, 64); err != nil || segment < 1 || segment > 1<<20 {
			return nil, fmt.Errorf("option segment=%s: segment takes a number of MiB from 1 to 1048576", v)
		}
		normal = fmt.Sprintf("segment=%d", segment)
	}
	return &policies.Spec{
		Name:    "firstfit",
		Options: normal,
		New: func(env policies.Env) (policies.Policy, error) {
			return &allocator{
				device: env.Device, limit: env.Limit, segment: segment << 20,
				blocks: make(map[policies.Handle]*block),
			}, nil
		},
	}, nil
}

// align is the alignment of blocks, in bytes, and their smallest size.
const align = 256

// allocator implements policies.Policy.
type allocator struct {
	device   policies.Device
	limit    int64 // most bytes to take from the device; 0 = none
	segment  int64 // bytes of a segment
	segments []*segment
	// blocks finds a block that is in use. Numbers are never given out twice,
	// so a handle that is not here is a bad free.
	blocks   map[policies.Handle]*block
	last     policies.Handle
	stats    policies.Stats
	observer policies.Observer
}

// segment is what one Device.Malloc returned. Its blocks tile it, in address
// order.
type segment struct {
	addr   uint64
	size   int64
	blocks []*block
}

type block struct {
	addr      uint64
	size      int64
	requested int64
	stream    uint16
	state     policies.BlockState
	segment   *segment
}

// Malloc serves a request.
func (a *allocator) Malloc(r policies.Request) (policies.Block, error) {
	if r.Size <= 0 {
		return policies.Block{}, fmt.Errorf("request of %d bytes: a size must be positive", r.Size)
	}
	size := r.Size
	if size < 1<<50 { // beyond it there is no room anyway, and rounding might overflow
		size = (size + align - 1) / align * align
	}
	b := a.find(size)
	if b == nil {
		var err error
		if b, err = a.grow(r, size); err != nil {
			return policies.Block{}, err
		}
	}
	a.split(b, size)

	a.last++
	a.blocks[a.last] = b
	b.state, b.requested, b.stream = policies.ActiveAllocated, r.Size, r.Stream
	a.stats.Allocation.Add(policies.Large, 1)
	a.stats.AllocatedBytes.Add(policies.Large, b.size)
	a.stats.Active.Add(policies.Large, 1)
	a.stats.ActiveBytes.Add(policies.Large, b.size)
	a.stats.RequestedBytes.Add(policies.Large, r.Size)
	a.emit(policies.ActionAlloc, a.last, b)
	return policies.Block{Handle: a.last, Addr: b.addr}, nil
}

// find returns the first free block of at least size bytes: this is the whole
// placement rule.
func (a *allocator) find(size int64) *block {
	for _, s := range a.segments {
		for _, b := range s.blocks {
			if b.state == policies.Inactive && b.size >= size {
				return b
			}
		}
	}
	return nil
}

// grow takes a segment from the device, after a flush if it must.
func (a *allocator) grow(r policies.Request, size int64) (*block, error) {
	want := max(size, a.segment)
	addr, err := a.take(want)
	if errors.Is(err, policies.ErrOutOfMemory) {
		if err := a.EmptyCache(); err != nil {
			return nil, err
		}
		a.stats.NumAllocRetries++
		a.event(policies.Event{Action: policies.ActionRetry, Size: size, Requested: r.Size, Stream: r.Stream})
		addr, err = a.take(want)
	}
	if errors.Is(err, policies.ErrOutOfMemory) {
		a.stats.NumOOMs++
		a.event(policies.Event{Action: policies.ActionOOM, Size: size, Requested: r.Size, Stream: r.Stream})
		return nil, fmt.Errorf("cannot allocate %d bytes: %w", r.Size, err)
	}
	if err != nil {
		return nil, err
	}
	s := &segment{addr: addr, size: want}
	b := &block{addr: addr, size: want, segment: s}
	s.blocks = []*block{b}
	// Keep segments in address order, so that find sees them in that order.
	i, _ := slices.BinarySearchFunc(a.segments, addr, func(s *segment, addr uint64) int {
		if s.addr < addr {
			return -1
		}
		return 1
	})
	a.segments = slices.Insert(a.segments, i, s)
	a.stats.Segment.Add(policies.Large, 1)
	a.stats.ReservedBytes.Add(policies.Large, want)
	a.stats.NumDeviceAlloc++
	a.event(policies.Event{Action: policies.ActionSegmentAlloc, Addr: addr, Size: want, Stream: r.Stream})
	return b, nil
}

// take asks the device for memory within the limit.
func (a *allocator) take(size int64) (uint64, error) {
	if a.limit > 0 && size > a.limit-a.stats.ReservedBytes[policies.All].Current {
		return 0, fmt.Errorf("memory limit reached: %w", policies.ErrOutOfMemory)
	}
	return a.device.Malloc(size)
}

// split leaves in b the lowest size bytes and makes the rest a free block.
func (a *allocator) split(b *block, size int64) {
	if b.size == size {
		return
	}
	s := b.segment
	rest := &block{addr: b.addr + uint64(size), size: b.size - size, segment: s}
	b.size = size
	s.blocks = slices.Insert(s.blocks, slices.Index(s.blocks, b)+1, rest)
}

// Free takes a block back. A pending free keeps it out of use until
// FreeCompleted.
func (a *allocator) Free(h policies.Handle, pending bool) error {
	b := a.blocks[h]
	if b == nil || b.state != policies.ActiveAllocated {
		return fmt.Errorf("handle %d: %w", h, policies.ErrBadFree)
	}
	a.stats.Allocation.Sub(policies.Large, 1)
	a.stats.AllocatedBytes.Sub(policies.Large, b.size)
	a.emit(policies.ActionFreeRequested, h, b)
	b.state = policies.ActivePendingFree
	if pending {
		return nil
	}
	return a.FreeCompleted(h)
}

// FreeCompleted ends a pending free.
func (a *allocator) FreeCompleted(h policies.Handle) error {
	b := a.blocks[h]
	switch {
	case b == nil && h != 0 && h <= a.last:
		return nil // completed already
	case b == nil || b.state != policies.ActivePendingFree:
		return fmt.Errorf("handle %d: %w", h, policies.ErrBadFree)
	}
	delete(a.blocks, h)
	a.stats.Active.Sub(policies.Large, 1)
	a.stats.ActiveBytes.Sub(policies.Large, b.size)
	a.stats.RequestedBytes.Sub(policies.Large, b.requested)
	a.emit(policies.ActionFreeCompleted, h, b)
	b.state, b.requested = policies.Inactive, 0
	a.join(b)
	return nil
}

// join makes one block of b and its free neighbours.
func (a *allocator) join(b *block) {
	s := b.segment
	i := slices.Index(s.blocks, b)
	from, to := i, i+1
	if from > 0 && s.blocks[from-1].state == policies.Inactive {
		from--
	}
	if to < len(s.blocks) && s.blocks[to].state == policies.Inactive {
		to++
	}
	first := s.blocks[from]
	for _, other := range s.blocks[from+1 : to] {
		first.size += other.size
	}
	s.blocks = slices.Delete(s.blocks, from+1, to)
}

// EmptyCache returns the segments in which nothing is in use.
func (a *allocator) EmptyCache() error {
	var kept []*segment
	for i, s := range a.segments {
		if len(s.blocks) > 1 || s.blocks[0].state != policies.Inactive {
			kept = append(kept, s)
			continue
		}
		if err := a.device.Free(s.addr, s.size); err != nil {
			a.segments = append(kept, a.segments[i:]...)
			return fmt.Errorf("returning a segment: %w", err)
		}
		a.stats.Segment.Sub(policies.Large, 1)
		a.stats.ReservedBytes.Sub(policies.Large, s.size)
		a.stats.NumDeviceFree++
		a.event(policies.Event{Action: policies.ActionSegmentFree, Addr: s.addr, Size: s.size})
	}
	a.segments = kept
	return nil
}

// Stats returns the counters.
func (a *allocator) Stats() *policies.Stats { return &a.stats }

// Segments shows what the allocator holds.
func (a *allocator) Segments(buf []policies.Segment) []policies.Segment {
	handles := make(map[*block]policies.Handle, len(a.blocks))
	for h, b := range a.blocks {
		handles[b] = h
	}
	for _, s := range a.segments {
		out := policies.Segment{Addr: s.addr, Size: s.size}
		for _, b := range s.blocks {
			out.Blocks = append(out.Blocks, policies.SegmentBlock{
				Addr: b.addr, Size: b.size, Requested: b.requested, Handle: handles[b], State: b.state,
			})
		}
		buf = append(buf, out)
	}
	return buf
}

// Observe sets who hears of events.
func (a *allocator) Observe(o policies.Observer) { a.observer = o }

// emit reports a block's event.
func (a *allocator) emit(action policies.Action, h policies.Handle, b *block) {
	a.event(policies.Event{Action: action, Handle: h, Addr: b.addr, Size: b.size, Requested: b.requested, Stream: b.stream})
}

func (a *allocator) event(e policies.Event) {
	if a.observer != nil {
		a.observer.Observe(&e)
	}
}
