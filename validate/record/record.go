// Package record holds the Python module that records a PyTorch program for
// allocsim: Script is its text, printed by "allocsim record".
//
// The module starts torch.cuda.memory's history when the program first uses
// CUDA and writes, at the end and at the first out-of-memory error, the
// snapshot NAME.pickle and beside it the sidecar NAME.json with what a snapshot
// cannot say: configuration, memory fraction, device size, the times of
// empty_cache calls and iterations, the allocator's statistics. Package
// traces/formats reads such a pair. It needs PyTorch 2.1 or newer and nothing
// else.
//
// It lives beside the code that replays decisions on a real GPU because it is
// the other half of the comparison: what the real allocator did.
package record

import (
	_ "embed"
)

// FileName is the name under which the module must be saved: programs import
// it as allocsim_record.
const FileName = "allocsim_record.py"

// Script is the module's text.
//
//go:embed allocsim_record.py
var Script string

// Cost is what recording costs, measured with
//
//	python testdata/bench.py
//
// in this folder: a loop that does nothing but allocate and free, so the
// slowdown of a real program, which also computes, is smaller. One allocated
// and freed tensor makes three events. "Frames" is with the Python stacks of
// allocations, 30 calls deep.
type Cost struct {
	// Machine says on what it was measured.
	Machine string
	// PerSecond, PerSecondRecorded and PerSecondFrames are the events that a
	// program gets through in a second without recording, with it, and with
	// frames.
	PerSecond, PerSecondRecorded, PerSecondFrames float64
	// HostBytes is the host memory that an event takes until the end.
	HostBytes float64
	// FileBytes and FileBytesFrames are an event's share of the file,
	// uncompressed.
	FileBytes, FileBytesFrames float64
	// WriteUS and WriteUSFrames are µs per event to write the files at the
	// end; resolving stacks is slow.
	WriteUS, WriteUSFrames float64
}

// MicrosecondsPerEvent is the time that recording adds to an event, without
// and with frames.
func (c Cost) MicrosecondsPerEvent() (plain, frames float64) {
	return 1e6/c.PerSecondRecorded - 1e6/c.PerSecond, 1e6/c.PerSecondFrames - 1e6/c.PerSecond
}

// Measured is the median of three runs on one machine. The rates varied
// between runs by a third and more.
var Measured = Cost{
	Machine:           "NVIDIA H200, torch 2.11.0+cu130",
	PerSecond:         1_076_000,
	PerSecondRecorded: 803_000,
	PerSecondFrames:   613_000,
	HostBytes:         137,
	FileBytes:         52,
	FileBytesFrames:   60,
	WriteUS:           1.4,
	WriteUSFrames:     53,
}
