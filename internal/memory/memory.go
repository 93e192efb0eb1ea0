// Package memory has the words that recordings and allocators share: what an
// allocator does, and what state a block is in. The names are those of PyTorch's
// memory snapshots (spec pytorch-allocator B2, B3), so a recorded action and a
// simulated one are the same value and need no translation.
//
// Packages traces and policies, which know nothing of each other, give these
// types out under their own names.
package memory

import "fmt"

// Action is a step that an allocator reports.
type Action uint8

// The actions.
const (
	Alloc Action = iota + 1
	FreeRequested
	FreeCompleted
	SegmentAlloc
	SegmentFree
	SegmentMap
	SegmentUnmap
	OOM
	Retry // the allocator flushed its cache and asks the device again
)

var actionNames = [...]string{"invalid", "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom", "retry"}

// String is PyTorch's name of the action.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("action(%d)", uint8(a))
}

// Takes reports that the allocator takes memory from the driver.
func (a Action) Takes() bool { return a == SegmentAlloc || a == SegmentMap }

// Releases reports that the allocator gives memory back to the driver.
func (a Action) Releases() bool { return a == SegmentFree || a == SegmentUnmap }

// Reserves is by how many bytes the action, on size bytes, changes what the
// allocator has from the driver.
func (a Action) Reserves(size int64) int64 {
	switch {
	case a.Takes():
		return size
	case a.Releases():
		return -size
	}
	return 0
}

// BlockState says whether a block is in use.
type BlockState uint8

// The block states.
const (
	Inactive          BlockState = iota // free
	ActiveAllocated                     // the program holds it
	ActivePendingFree                   // given back, but other streams may still use it
)

var stateNames = [...]string{"inactive", "active_allocated", "active_pending_free"}

// String is PyTorch's name of the state.
func (s BlockState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}
