// Package policies says how an allocator decides. It defines the [Policy] and
// [Device] interfaces, the statistics every policy keeps and the registry by
// which a policy is found from its name; each allocator is a sub-package
// (torch, bfc, rmm, cupy, stream, direct, packing), and policies/all registers
// them.
//
// A policy never sees a trace, a file or a clock. It is handed a Device and
// gets Malloc, Free, FreeCompleted and EmptyCache calls, which is why the same
// code runs in simulation and on a GPU. To add an allocator, implement Policy
// in one package and register it in one line: docs/new-policy.md.
package policies

import (
	"errors"

	"allocsim/internal/memory"
)

// ErrOutOfMemory is what Malloc returns (possibly wrapped) when the allocator
// cannot serve a request, and what a Device returns when it has no room. The
// policy stays usable.
var ErrOutOfMemory = errors.New("out of memory")

// ErrBadFree is returned (possibly wrapped) for a Handle that names no live
// block.
var ErrBadFree = errors.New("free of a block that is not allocated")

// Handle names a block that Malloc returned. It is the policy's own number:
// callers only store it and give it back. 0 is no block.
type Handle uint64

// Request is one allocation.
type Request struct {
	// Size is the requested bytes, > 0.
	Size int64
	// Stream is the index of the stream; indices ascend with stream handles.
	Stream uint16
	// Pool is the private memory pool the request is routed to; 0 is the
	// allocator's default. Policies without pools ignore it.
	Pool uint8
}

// Block is a successful allocation.
type Block struct {
	Handle Handle
	Addr   uint64
}

// Policy is an allocator bound to one Device. It is used by one goroutine.
type Policy interface {
	// Malloc serves a request. The error wraps ErrOutOfMemory when there is no
	// room; any other error is the device's and ends the run.
	Malloc(Request) (Block, error)
	// Free takes a block back. With pending, other streams still use it: it
	// stays out of use until FreeCompleted, or until the policy itself
	// synchronises with the device. The error wraps ErrBadFree for a handle
	// that is not live; any other is the device's.
	Free(h Handle, pending bool) error
	// FreeCompleted ends a pending free. It does nothing if the policy has
	// completed that free already. For any other handle nothing changes;
	// whether that is an error, which then wraps ErrBadFree, is the policy's
	// affair.
	FreeCompleted(h Handle) error
	// EmptyCache returns to the device what is cached and can be returned.
	EmptyCache() error
	// Stats are the counters so far. The pointer stays valid; ReservedBytes,
	// NumAllocRetries and NumOOMs change with every call, the others are
	// brought up to date by Stats itself.
	Stats() *Stats
	// Segments appends the allocator's present segments with their blocks, in
	// ascending address order, to buf and returns it. It is for reports and
	// checks, not for hot paths.
	Segments(buf []Segment) []Segment
	// Observe sets the receiver of the policy's events; nil (the start) for
	// none.
	Observe(Observer)
}

// PoolReleaser is a Policy with private memory pools that end: ReleasePool
// lets what is free in one go back at the next EmptyCache or flush, EmptyPool
// returns it at once.
type PoolReleaser interface {
	ReleasePool(pool uint8)
	EmptyPool(pool uint8) error
}

// Warmer is a Policy that can use a hint about the frees to come: read one by
// one, blocks that are in no cache cost more time than all the rest, read
// together they do not. What it decides does not depend on the hint.
type Warmer interface {
	// Cold reports that the policy's tables are larger than a processor's
	// cache, so that Warm is worth its time.
	Cold() bool
	// Warm reads what the frees of some blocks will need. A handle that names
	// no block is passed over.
	Warm(next []Handle)
}

// Device is the memory a policy takes from: sim's modelled device or a real
// GPU. All sizes are bytes.
type Device interface {
	// Total is the device's memory as the CUDA runtime reports it
	// (totalGlobalMem); 0 means unlimited.
	Total() int64
	// MemInfo is cudaMemGetInfo: bytes free and in all. free is
	// math.MaxInt64 on an unlimited device.
	MemInfo() (free, total int64)
	// Malloc is cudaMalloc. The error wraps ErrOutOfMemory when the device is
	// full.
	Malloc(size int64) (addr uint64, err error)
	// Free is cudaFree of what Malloc returned.
	Free(addr uint64, size int64) error
	// Reserve is cuMemAddressReserve: address space only.
	Reserve(size int64) (addr uint64, err error)
	// Release gives a completely unmapped reservation back.
	Release(addr uint64, size int64) error
	// Map backs size bytes (a multiple of page) at addr, inside a
	// reservation, with physical pages of page bytes each: all of them or,
	// with an error that wraps ErrOutOfMemory, none.
	Map(addr uint64, size, page int64) error
	// Unmap takes the pages away again.
	Unmap(addr uint64, size, page int64) error
}

// Action is what an [Event] reports. The names are those of PyTorch's traces
// (spec pytorch-allocator B3).
type Action = memory.Action

// The actions.
const (
	ActionAlloc         = memory.Alloc
	ActionFreeRequested = memory.FreeRequested
	ActionFreeCompleted = memory.FreeCompleted
	ActionSegmentAlloc  = memory.SegmentAlloc
	ActionSegmentFree   = memory.SegmentFree
	ActionSegmentMap    = memory.SegmentMap
	ActionSegmentUnmap  = memory.SegmentUnmap
	ActionOOM           = memory.OOM
	ActionRetry         = memory.Retry // the allocator flushed its cache and asks the device again
)

// Event is what a policy tells its Observer. Within one Malloc, events come in
// the order of PyTorch's trace: completed frees, releases, a retry, new
// segments, then the alloc itself (or oom).
type Event struct {
	// Handle is the block of alloc and free events, else 0.
	Handle Handle
	Addr   uint64
	// Size is the block's bytes for alloc and free events, the segment's or
	// range's for segment events, the rounded request for oom.
	Size int64
	// Requested is the requested bytes of alloc, free and oom events.
	Requested int64
	Stream    uint16
	Pool      uint8
	Action    Action
	// Small tells the small pool from the large one, where a policy has both.
	Small bool
}

// Observer receives a policy's events as they happen. The Event is reused:
// copy what is kept.
type Observer interface {
	Observe(*Event)
}

// Segment is a contiguous range a policy holds from the device.
type Segment struct {
	Addr       uint64
	Size       int64
	Stream     uint16
	Pool       uint8
	Small      bool
	Expandable bool
	// Blocks tile the segment in address order.
	Blocks []SegmentBlock
}

// SegmentBlock is a piece of a Segment.
type SegmentBlock struct {
	Addr      uint64
	Size      int64
	Requested int64  // bytes asked for; 0 when free
	Handle    Handle // 0 when free
	State     BlockState
	// Returnable is how many bytes of a free block could go back to the device
	// now although the segment is in use: the whole free pages of an expandable
	// segment.
	Returnable int64
}

// BlockState says whether a block is in use, as PyTorch's snapshots do.
type BlockState = memory.BlockState

// The block states.
const (
	Inactive          = memory.Inactive          // free
	ActiveAllocated   = memory.ActiveAllocated   // the program holds it
	ActivePendingFree = memory.ActivePendingFree // given back, but other streams may still use it
)
