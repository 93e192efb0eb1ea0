// Package traces is the event model that every recording and every synthetic
// workload is converted to: what a program asked of its GPU memory allocator,
// in order, and — where the source says so — what the real allocator answered.
//
// Readers for file formats live in sub-packages (traces/snapshot,
// traces/native, …) and are put together by traces/formats; synthetic
// workloads are made by traces/synth. They all use a [Builder] to make a
// [Trace].
//
// A Trace is immutable once built, so any number of workers may share it.
// Addresses of the source have been resolved: blocks are dense ids, streams
// small integers, every free is paired with its allocation. The loop that runs
// a trace therefore needs no map.
package traces

import (
	"fmt"

	"allocsim/internal/memory"
)

// Kind says what an [Event] asks of the allocator.
type Kind uint8

const (
	// Alloc asks for Size bytes on Stream for block ID.
	Alloc Kind = iota + 1
	// Free gives block ID back; it is reusable at once (PyTorch writes
	// free_requested directly followed by free_completed).
	Free
	// FreeRequested gives block ID back while other streams still use it; it
	// becomes reusable at its FreeCompleted.
	FreeRequested
	// FreeCompleted says that the GPU has finished with block ID. Its place in
	// a recording is GPU timing; an allocator that synchronised earlier has
	// completed the free already.
	FreeCompleted
	// EmptyCache is a user's call that returns cached memory to the driver;
	// with Pool ≠ 0 only that of a private pool (a MemPool's destructor).
	EmptyCache
	// OOM is an allocation of Size bytes (as the source gives them: PyTorch
	// has already rounded them) that the recorded allocator could not serve.
	// Block ID belongs to it alone and is never freed by a later event.
	OOM
	// ReleasePool says that the program gave up private pool Pool (its CUDA
	// graph or MemPool is gone): what is free in it goes back with the next
	// EmptyCache or flush. No recording has it; sim/recovery infers it.
	ReleasePool
)

var kindNames = [...]string{"invalid", "alloc", "free", "free_requested", "free_completed", "empty_cache", "oom", "release_pool"}

// String is the name used in files and output.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// BlockID numbers the allocations of a trace densely from 0 in the order in
// which they appear.
type BlockID = uint32

// NoBlock is the ID of events that concern no block.
const NoBlock BlockID = ^BlockID(0)

// Event is one request: 24 bytes.
type Event struct {
	// TimeUS is µs since the start of the trace; it never decreases.
	TimeUS int64
	// Size is the requested bytes of an Alloc or OOM, else 0.
	Size int64
	// ID is the block concerned; NoBlock for EmptyCache.
	ID BlockID
	// Stream indexes Trace.Streams: the stream of the block (allocation
	// stream for frees too).
	Stream uint16
	// Pool indexes Trace.Pools; 0 is the default pool.
	Pool uint8
	Kind Kind
}

// PoolID names a PyTorch memory pool, as `segment_pool_id`; (0,0) is the
// default pool.
type PoolID [2]int64

// Trace is everything one device's allocator was asked, in order.
type Trace struct {
	// Source is the file or model the trace came from, for messages.
	Source string
	// Format is the reader's name for the kind of source, such as
	// "torch-snapshot".
	Format string
	// Device is the device index within the source.
	Device int

	Events []Event
	// NumBlocks is the number of distinct block ids: ids are 0…NumBlocks-1.
	NumBlocks int
	// Streams holds the stream handles in ascending order as unsigned
	// integers, so that comparing indices compares handles (spec
	// pytorch-allocator A2.6). Never empty.
	Streams []uint64
	// Pools holds the pool ids; Pools[0] is the default pool.
	Pools []PoolID

	// StartUS is the time of the trace's zero, in µs since the Unix epoch; 0
	// when the source has no clock.
	StartUS int64
	// StartEvents counts the leading Events that the reader made up to
	// allocate what was live before the recording began; such a trace has a
	// Start. Replays under the recorded configuration may restore Start
	// instead and skip them.
	StartEvents int
	// Start is the allocator's state when the recording began; nil when it
	// began empty.
	Start *State

	// Meta is what is known about the program and its allocator.
	Meta Meta
	// Recorded is what the real allocator did; nil when the source has only
	// requests.
	Recorded *Recorded
	// Stacks names the call sites of allocations; nil without frames.
	Stacks *Stacks
	// Annotations are the program's own marks, in time order.
	Annotations []Annotation
	// Notes say what is missing, inferred or lost, one sentence each. Every
	// command shows them.
	Notes []string
}

// Meta describes the recorded process.
type Meta struct {
	// Torch is the framework's version, such as "2.11.0+cu130"; empty when
	// unknown.
	Torch string
	// TorchSince and TorchBefore bound the release by what the source itself
	// proves, its fields and units: at least the one, older than the other,
	// such as "2.3" and "2.5"; empty = no bound.
	TorchSince, TorchBefore string
	// Conf is PYTORCH_CUDA_ALLOC_CONF in force.
	Conf string
	// ConfKnown tells an empty Conf from an unknown one.
	ConfKnown bool
	// Fraction is set_per_process_memory_fraction's argument; 0 when never
	// called or unknown.
	Fraction float64
	// Bounds are what an earlier recovery of the recording found to have bounded
	// the allocator, the most plausible first; empty when nothing did or none was
	// made. A trace that carries them has the recovered EmptyCache events in
	// place.
	Bounds []Bound
	// Sidecar reports that a sidecar file was read, so that Conf, Fraction and
	// the trace's EmptyCache events are complete facts and not guesses.
	Sidecar bool
	// NoCompletions reports that the source does not say when frees that wait
	// for another stream completed: each is taken to complete at once.
	NoCompletions bool
	// Ranks is the number of processes of the job, of which this is one; 0
	// when unknown.
	Ranks int
	// DeviceName is such as "NVIDIA H200"; empty when unknown.
	DeviceName string
	// DeviceTotal is the device's bytes as the CUDA runtime reports them; 0
	// when unknown.
	DeviceTotal int64
	// Settings echoes `allocator_settings` of a snapshot as strings, for
	// display.
	Settings map[string]string
	// PeakReserved and PeakAllocated are the highest values of the source's
	// own counters in bytes, where it has counters but no segments (profiler
	// traces); 0 when unknown.
	PeakReserved, PeakAllocated int64
	// ClockUS is the source's own timestamp of the trace's zero in µs, for
	// output that is to lie beside it. A profiler trace counts from a base of
	// its own; elsewhere it equals StartUS.
	ClockUS int64
}

// Action is what an allocator did, as PyTorch's history names it.
type Action = memory.Action

// What an allocator asks of the driver (spec pytorch-allocator B3).
const (
	SegmentAlloc = memory.SegmentAlloc
	SegmentFree  = memory.SegmentFree
	SegmentMap   = memory.SegmentMap
	SegmentUnmap = memory.SegmentUnmap
)

// Bound is what bounded a recorded allocator, as sim/recovery infers it.
type Bound struct {
	// Kind is that of a recovery.Explanation.
	Kind string
	// Low and High bracket the bound in bytes, At is the value in use.
	Low, High, At int64
}

// DriverEvent is a recorded segment event.
type DriverEvent struct {
	Addr uint64
	Size int64 // bytes
	// Before is the index in Trace.Events of the first event after this one
	// that is an Alloc, OOM, Free, FreeRequested or len(Events). Within one
	// allocation PyTorch writes driver events before the alloc entry itself,
	// so these are the events caused by Events[Before] or by an EmptyCache
	// shortly before it.
	Before uint32
	Stream uint16
	Pool   uint8
	Action Action // one of the four above
	// Caller is who caused a SegmentFree or SegmentUnmap, where its call stack
	// says so.
	Caller Caller
}

// Caller is who had memory given back to the driver.
type Caller uint8

// The callers. A recording without call stacks knows none.
const (
	CallerUnknown    Caller = iota
	CallerEmptyCache        // torch.cuda.empty_cache()
	CallerRequest           // the request that follows: garbage collection or a flush
)

// Recorded is what the real allocator did with the trace's requests.
type Recorded struct {
	// Addr is the address of each block, by BlockID; 0 where unknown.
	Addr []uint64
	// Driver lists segment events in recorded order.
	Driver []DriverEvent
	// OOMDeviceFree is cudaMemGetInfo's free bytes at each OOM event, in
	// order; -1 where unknown.
	OOMDeviceFree []int64
	// Final is the allocator's state at the end; nil when unknown.
	Final *State
	// Stats is torch.cuda.memory_stats() at the end, with its flat keys; nil
	// without a sidecar.
	Stats map[string]int64
}

// State is a set of segments with the blocks that tile them, sorted by
// address.
type State struct {
	Segments []Segment
}

// Segment is a contiguous range obtained from the driver.
type Segment struct {
	Addr uint64
	Size int64 // bytes
	// Stream indexes Trace.Streams, Pool indexes Trace.Pools.
	Stream     uint16
	Pool       uint8
	Small      bool // belongs to the small pool (requests ≤ 1 MiB)
	Expandable bool
	Blocks     []SegmentBlock // in address order, covering the segment exactly
}

// BlockState is a block's state in a snapshot.
type BlockState = memory.BlockState

// The block states of a PyTorch snapshot (spec pytorch-allocator B2).
const (
	Inactive          = memory.Inactive
	ActiveAllocated   = memory.ActiveAllocated
	ActivePendingFree = memory.ActivePendingFree
)

// SegmentBlock is one piece of a [Segment].
type SegmentBlock struct {
	Addr      uint64
	Size      int64 // bytes
	Requested int64 // bytes; meaningful only when active
	// ID is the trace's block that lives here; NoBlock when inactive or when
	// the trace never mentions it.
	ID    BlockID
	State BlockState
	// Stack is where it was allocated; NoStack when unknown.
	Stack StackID
}

// Annotation is a mark of the program, such as "ProfilerStep#3".
type Annotation struct {
	TimeUS int64 // µs since the start of the trace; negative before it
	Name   string
	End    bool // the end of the named range
}

// Duration is the time of the last event, in µs.
func (t *Trace) Duration() int64 {
	if len(t.Events) == 0 {
		return 0
	}
	return t.Events[len(t.Events)-1].TimeUS
}

// CountByKind counts the events of each kind by its name. Events that the
// reader made up for the start state are not counted.
func (t *Trace) CountByKind() map[string]int {
	m := make(map[string]int)
	for _, e := range t.Events[t.StartEvents:] {
		m[e.Kind.String()]++
	}
	return m
}

// Recording is everything a file holds: one trace per device.
type Recording struct {
	// Devices are the devices for which the file has anything, ascending by
	// Trace.Device.
	Devices []*Trace
}

// Device returns the trace of device n. With n < 0 it returns the only device
// that has events, or, if several have, the one with the most (the lowest
// index among equals) and a note that says so. The error lists the devices
// that exist.
func (r *Recording) Device(n int) (*Trace, error) {
	if len(r.Devices) == 0 {
		return nil, fmt.Errorf("the file describes no device")
	}
	if n >= 0 {
		var have []int
		for _, t := range r.Devices {
			if t.Device == n {
				return t, nil
			}
			have = append(have, t.Device)
		}
		return nil, fmt.Errorf("%s has no device %d; it has %v", r.Devices[0].Source, n, have)
	}
	best, busy := r.Devices[0], 0
	for _, t := range r.Devices {
		if len(t.Events) > 0 {
			busy++
		}
		if len(t.Events) > len(best.Events) {
			best = t
		}
	}
	if busy > 1 {
		c := *best
		c.Notes = append(append([]string(nil), best.Notes...),
			fmt.Sprintf("The file holds %d devices with events; device %d, which has the most, is shown. Choose with --device.", busy, best.Device))
		return &c, nil
	}
	return best, nil
}
