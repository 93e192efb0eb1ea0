// Package sim runs traces through allocator policies: the event loop, the
// modelled device with the driver's placement rule and its costs, the
// observers, and the exactness check against a recording.
//
// The core is deterministic: the same trace, policy and device give the same
// result, byte for byte, on any machine and any number of workers.
package sim

import (
	"allocsim/policies"
	"allocsim/traces"
)

// Config says under which allocator and on which device a trace is run.
type Config struct {
	// Policy is the allocator. Required.
	Policy *policies.Spec
	// Machine is what the allocator may take.
	Machine
	// Device is the memory to run on; nil = a modelled device of the machine's
	// Capacity and Total bytes, the usual case. A real GPU goes here.
	Device policies.Device
	// Addresses says where the modelled device's cudaMalloc puts segments; the zero value is the
	// driver model.
	Addresses Addresses
	// Pin takes the recorded addresses of segments as long as the run asks for
	// the same segments in the same order: a replay under the recorded
	// configuration then breaks every tie as the real run did. Afterwards, or
	// without recorded segments, Addresses holds.
	Pin bool
	// Seed chooses the order of AddressesRandom.
	Seed uint64
	// FromStart begins with the layout that the recording began with, where
	// the trace has one and the policy can take it, instead of allocating what
	// lived then afresh. It is right under the recorded policy only: another
	// would have had other segments by then.
	FromStart bool
	// StartOrder chooses the order in which what lived at the start is
	// allocated afresh; the program's own is not in the recording. 0 = that of
	// the trace (by address), else a seeded shuffle.
	StartOrder uint64
	// Cost is the time of driver calls; nil = DefaultCost.
	Cost *CostTable
	// Detail asks for what needs a second pass over the trace: the
	// fragmentation at the peak.
	Detail bool
	// MaxReserved ends the run early as soon as reserved bytes exceed it
	// (Result.Stopped is then true): a search uses it for candidates that can
	// no longer win. 0 = never.
	MaxReserved int64
	// StopAtOOM ends the run at the first OOM that the recording does not
	// have.
	StopAtOOM bool
	// GiveUp, if not nil, is asked every few hundred events with what the run
	// has done so far; true ends it early (Result.Stopped is then true). When
	// it is asked depends on the trace only.
	GiveUp func(Progress) bool
	// Brief counts OOMs without describing them (Result.OOMs stays empty): a
	// description looks at every block, which a search that meets thousands of
	// OOMs need not pay for.
	Brief bool
}

// Progress is what a run has done so far. None of it is ever undone: numbers
// only grow.
type Progress struct {
	ReservedPeak    int64 // bytes
	NumAllocRetries int64
	NumOOMs         int64
	// Failed reports that Result.Completed will be false.
	Failed bool
	Driver Driver
}

// Addresses is a rule for the addresses of cudaMalloc.
type Addresses uint8

// The address rules. Only the order of addresses matters to an allocator: it
// breaks ties between free blocks of equal size (spec pytorch-allocator A2.6).
const (
	// AddressesDriver is the model of spec driver.md section 2.
	AddressesDriver Addresses = iota
	// AddressesDown always goes down.
	AddressesDown
	// AddressesUp always goes up.
	AddressesUp
	// AddressesRandom draws a seeded non-overlapping address for each segment
	// (spec verification.md section 7).
	AddressesRandom
)

// Cause is why an allocation failed.
type Cause string

// The causes.
const (
	// CauseFragmentation: the free bytes inside the allocator's segments, with
	// what it could still take, would have held the request if they were one
	// piece. Blocks that another stream still uses are not free.
	CauseFragmentation Cause = "fragmentation"
	// CauseLimit: the allocator's own memory limit left too little room.
	CauseLimit Cause = "limit"
	// CauseCapacity: the device left too little room.
	CauseCapacity Cause = "capacity"
)

// OOM is an allocation that failed in the simulation.
type OOM struct {
	Event       int   // index in Trace.Events
	TimeUS      int64 // µs since the start of the trace
	Requested   int64 // bytes
	Reserved    int64
	Allocated   int64
	LargestFree int64 // largest free block inside the allocator
	DeviceFree  int64
	Cause       Cause
	// Reason is what a user must know besides the cause: whose limit it is,
	// what waits for another stream, that a cache was not flushed. Often empty.
	Reason string
	// Recorded reports that the recording shows the same failure.
	Recorded bool
}

// Driver sums up what a run asked of the driver.
type Driver struct {
	Mallocs, Frees, Maps, Unmaps int64
	// StallUS is the modelled time of these calls in µs (see CostTable).
	StallUS float64
}

// Fragmentation describes an allocator's free memory at one moment.
type Fragmentation struct {
	Event               int   // index in Trace.Events of the moment
	Reserved, Allocated int64 // bytes
	ReservedUnallocated int64 // reserved − allocated
	Stranded            int64 // free bytes in segments that something else keeps
	LargestFree         int64
	// External is 1 − largest free block / all free bytes; 0 when nothing is
	// free.
	External float64
}

// Result is the outcome of a run.
type Result struct {
	Policy *policies.Spec
	// Machine is what the allocator could take, resolved.
	Machine
	// Completed reports that every request that the recorded program got was
	// served (an OOM that the recording has too does not count against it
	// unless an allocation that worked in the recording failed here).
	Completed bool
	// Stopped reports that MaxReserved, StopAtOOM or GiveUp ended the run early.
	Stopped bool
	// Events is the number of events run.
	Events int
	// Alike is the range of device capacities, from the first up to but not
	// including the second, on which the run would have gone the same way
	// (Device.Alike); zero on a device that is not the modelled one.
	Alike  [2]int64
	Stats  policies.Stats
	OOMs   []OOM
	Driver Driver
	// AtPeak is the fragmentation when reserved bytes were highest (first
	// such moment; for an allocator that takes all its memory at once, when
	// most was live); nil without Config.Detail.
	AtPeak *Fragmentation
	// Notes are the trace's and the policy's notes and those of this run.
	Notes []string
}

// Progress is the outcome in the form in which GiveUp has seen it grow.
func (r *Result) Progress() Progress {
	return Progress{r.Stats.ReservedBytes[policies.All].Peak, r.Stats.NumAllocRetries, r.Stats.NumOOMs, !r.Completed, r.Driver}
}

// Utilization is peak allocated / peak reserved, 0 when nothing was reserved.
func (r *Result) Utilization() float64 {
	p := r.Stats.ReservedBytes[policies.All].Peak
	if p == 0 {
		return 0
	}
	return float64(r.Stats.AllocatedBytes[policies.All].Peak) / float64(p)
}

// Observer follows a run. Observe is called for each event of the policy with
// the trace event that caused it; the policy event is reused, so copy what is
// kept.
type Observer interface {
	Observe(at At, e *policies.Event)
}

// At is a place in a running trace.
type At struct {
	Event  int            // index in Trace.Events
	TimeUS int64          // µs since the start of the trace
	ID     traces.BlockID // block of the trace event; NoBlock if none
}
