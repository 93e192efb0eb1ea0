// Package diagnose explains out-of-memory errors. [Scan] finds the messages in
// a log of any length and reads their numbers; [Diagnose] says from the numbers
// alone what ran out — the card, the allocator's own holes, a private pool, a
// limit, or memory that someone else holds — and what would help.
//
// A message is taken as the account of a card, a [Ledger]: its total is what
// this process's allocator holds (tensors, cached, private pools), what the
// process holds besides, what others hold, and what is free. Parts that are
// missing are solved for or stay unknown; figures that cannot add up are not
// believed. Printed numbers are rounded ("1.69 GiB"), so every quantity is
// carried as an interval; where the interval leaves the question open, so does
// the verdict.
//
// The central inequality: an allocator that wasted nothing could still give
// out what it has reserved but not allocated, plus what the device has free.
// If the request is larger than both together, no allocator setting can help.
package diagnose

import (
	"fmt"
	"math"

	"allocsim/internal/bytesize"
	"allocsim/policies/torch/conf"
)

// Verdict says what ran out.
type Verdict string

// The verdicts.
const (
	// Fragmentation: the allocator holds enough unused memory, in pieces that
	// do not fit the request.
	Fragmentation Verdict = "fragmentation"
	// PrivatePool: enough is free in pools of CUDA graphs, MemPool scopes or a
	// sleep mode, which the request may not use.
	PrivatePool Verdict = "private-pool"
	// Capacity: the card is full with what the job itself needs.
	Capacity Verdict = "capacity"
	// OtherProcess: the device would do if others did not hold so much of it.
	OtherProcess Verdict = "other-process"
	// OutsideAllocator: this process holds too much beside its allocator.
	OutsideAllocator Verdict = "outside-allocator"
	// Limit: the device has room; something set a limit on the process.
	Limit Verdict = "limit"
	// HostMemory: the computer's memory ran out, not the device's.
	HostMemory Verdict = "host"
	// Undecidable: numbers are missing, rounded too much to tell, or do not fit
	// together.
	Undecidable Verdict = "undecidable"
)

// Options is what is known besides the message.
type Options struct {
	// Conf is the configuration in force; zero when unknown. What is on already
	// is not recommended.
	Conf conf.Config
	// Version is the PyTorch release; zero when unknown.
	Version conf.Version
	// Trace is the path of a recording of the job for the next command; empty
	// when there is none.
	Trace string
	// Open says, one sentence each, what a recording cannot tell; it goes into
	// the notes.
	Open []string
}

// Numbers are the message's numbers in bytes; nil where it has none.
type Numbers struct {
	Requested    *int64 `json:"requested,omitempty"`
	Total        *int64 `json:"total,omitempty"`
	Free         *int64 `json:"free,omitempty"`
	Allocated    *int64 `json:"allocated,omitempty"`
	Reserved     *int64 `json:"reserved,omitempty"`
	Unallocated  *int64 `json:"unallocated,omitempty"`
	PrivatePools *int64 `json:"private_pools,omitempty"`
	Allowed      *int64 `json:"allowed,omitempty"`
	Process      *int64 `json:"process,omitempty"`
	// OtherProcesses is what other processes hold: what the message names,
	// less this process where it is named as another one, or what is left of
	// the total. Rounding tells the span.
	OtherProcesses *int64 `json:"other_processes,omitempty"`
	// Context is what this process holds besides the allocator.
	Context *int64 `json:"context,omitempty"`
	// Outside is total − reserved − free: everything on the device that is not
	// PyTorch's, such as the CUDA context, libraries and other processes.
	Outside *int64 `json:"outside,omitempty"`
	// LargestFree is the largest free block, from a recording.
	LargestFree *int64 `json:"largest_free,omitempty"`
	// Short is what is missing even if nothing were wasted: requested −
	// unallocated − free; negative when it would fit.
	Short *int64 `json:"short,omitempty"`
}

// Outlook says what a choice would leave for later requests once this one is
// served, in bytes; a negative number is what would still be missing.
type Outlook struct {
	Choice string `json:"choice"`
	Low    int64  `json:"low"`
	High   int64  `json:"high"`
}

// Report is the explanation.
type Report struct {
	Verdict Verdict `json:"verdict"`
	// Reason is one sentence with the numbers that decide.
	Reason string `json:"reason"`
	// Also lists what contributes besides the verdict.
	Also    []Verdict `json:"also"`
	Numbers Numbers   `json:"numbers"`
	// Rounding is by how many bytes each number may be off, under the names of
	// Numbers; exact ones are left out.
	Rounding map[string]int64 `json:"rounding,omitempty"`
	// Consistent is unset when the figures cannot all be true of one card.
	Consistent bool `json:"consistent"`
	// UnusedShare is the share of the reserved memory that no tensor uses, 0 to
	// 1 (pytorch/pytorch#29554): what fragmentation and caching cost.
	UnusedShare *float64 `json:"unused_share,omitempty"`
	// Outlook is what a few choices would leave.
	Outlook []Outlook `json:"outlook,omitempty"`
	// Advice says in this order what helps, what does not, and the command to
	// run next.
	Advice []string `json:"advice"`
	// Next is that command alone.
	Next      string    `json:"next"`
	Framework Framework `json:"framework"`
	GPU       *int      `json:"gpu,omitempty"`
	Rank      *int      `json:"rank,omitempty"`
	// Notes say how the numbers are to be read.
	Notes []string `json:"notes"`

	advice []advice
}

// Diagnose explains a message.
func Diagnose(m Message, o Options) Report {
	d := diagnosis{Message: m, l: solve(m), o: o}
	d.vendor = vendorOf(m)
	d.r = Report{Framework: m.Framework, Also: []Verdict{}, Advice: []string{}, Notes: []string{}}
	if m.GPU >= 0 {
		d.r.GPU = &m.GPU
	}
	if m.Rank >= 0 {
		d.r.Rank = &m.Rank
	}
	d.r.Consistent = d.l.Problem == ""
	d.derive()
	d.decide()
	d.advise()
	d.lookAhead()
	d.note()
	return d.r
}

// diagnosis is the work on one message.
type diagnosis struct {
	Message
	l      Ledger
	o      Options
	r      Report
	vendor vendor

	short Quantity // requested − room
}

// derive fills in the report's numbers.
func (d *diagnosis) derive() {
	if d.l.Problem == "" {
		d.short = d.Requested.minus(d.room())
	}
	n := &d.r.Numbers
	rounding := map[string]int64{}
	allocated := d.Allocated // as the message says, with what is free in private pools
	if d.Framework == Recorded {
		allocated = d.l.Tensors
	}
	for _, x := range []struct {
		name string
		to   **int64
		q    Quantity
	}{
		{"requested", &n.Requested, d.Requested}, {"total", &n.Total, d.Total}, {"free", &n.Free, d.Free},
		{"allocated", &n.Allocated, allocated}, {"reserved", &n.Reserved, d.Reserved}, {"unallocated", &n.Unallocated, d.Unallocated},
		{"private_pools", &n.PrivatePools, d.PrivatePools}, {"allowed", &n.Allowed, d.Allowed}, {"process", &n.Process, d.Process},
		{"other_processes", &n.OtherProcesses, d.l.Others}, {"context", &n.Context, d.l.Context}, {"outside", &n.Outside, d.l.Rest},
		{"largest_free", &n.LargestFree, d.LargestFree}, {"short", &n.Short, d.short},
	} {
		if x.q.Known && (x.q.Bytes >= 0 || x.name == "short") {
			bytes := x.q.Bytes
			*x.to = &bytes
			if x.q.Rounding > 0 {
				rounding[x.name] = x.q.Rounding
			}
		}
	}
	if d.Unallocated.Known && d.Reserved.Known && d.Reserved.Bytes > 0 && d.l.Problem != Impossible {
		share := math.Round(1e4*float64(d.Unallocated.Bytes)/float64(d.Reserved.Bytes)) / 1e4
		d.r.UnusedShare = &share
	}
	if len(rounding) > 0 {
		d.r.Rounding = rounding
	}
}

func (d *diagnosis) verdict(v Verdict, format string, args ...any) {
	d.r.Verdict, d.r.Reason = v, fmt.Sprintf(format, args...)
}

// also adds what contributes, once, and never the verdict itself.
func (d *diagnosis) also(v Verdict) {
	if v != d.r.Verdict && !d.has(v) {
		d.r.Also = append(d.r.Also, v)
	}
}

func (d *diagnosis) has(v Verdict) bool {
	for _, a := range d.r.Also {
		if a == v {
			return true
		}
	}
	return false
}

// about writes a quantity for a sentence: a span where it is wide.
func about(q Quantity) string {
	if q.Rounding > 64*bytesize.MiB && q.Rounding > q.Bytes/50 {
		if q.Low() <= 0 {
			return "up to " + bytesize.Format(q.High())
		}
		return bytesize.Format(q.Low()) + " to " + bytesize.Format(q.High())
	}
	return bytesize.Format(q.Bytes)
}

// share writes a as a percentage of b.
func share(a, b Quantity) string {
	if b.Bytes <= 0 {
		return "?"
	}
	p := 100 * float64(a.Bytes) / float64(b.Bytes)
	if p > 0 && p < 0.05 {
		return "less than 0.1 %"
	}
	if p > 0 && p < 1 {
		return fmt.Sprintf("%.1f %%", p)
	}
	return fmt.Sprintf("%.0f %%", p)
}

// note adds how to read the numbers.
func (d *diagnosis) note() {
	add := func(format string, args ...any) { d.r.Notes = append(d.r.Notes, fmt.Sprintf(format, args...)) }
	if d.Framework.caching() && d.Framework != Recorded {
		switch {
		case d.Requested.Bytes == 20*bytesize.MiB:
			add("20 MiB is the segment that PyTorch takes for a tensor between 1 and 10 MiB: the tensor itself may be smaller")
		case d.Requested.Bytes == 2*bytesize.MiB:
			add("2 MiB is the segment that PyTorch takes for tensors of up to 1 MiB: the tensor itself may be smaller")
		}
		if d.Before14 {
			add("\"cached\" in this old message is what PyTorch held but did not use")
		}
	}
	if d.PrivatePools.Known && d.r.Verdict != PrivatePool && d.l.Problem == "" {
		add("%s is free inside private pools (CUDA graphs, MemPool); only they can use it, and the message counts it as allocated", about(d.PrivatePools))
	}
	if d.l.Hidden {
		d.noteHidden(add)
	} else if d.l.Context.Known && d.l.Context.Low() > 0 && d.Framework.caching() && d.r.Verdict != OutsideAllocator {
		add("this process holds %s besides PyTorch's allocator: %s context, kernels, libraries", about(d.l.Context), d.vendor.api)
	}
	if d.Handled {
		add("the text says that the program went on after this message: it may not be what ended it")
	}
	d.r.Notes = append(d.r.Notes, d.o.Open...)
	if d.Repeats > 0 {
		add("the same message comes %d times", d.Repeats+1)
	}
}

// noteHidden says which listed process is this one.
func (d *diagnosis) noteHidden(add func(string, ...any)) {
	const why = "a container does not show the process its own number"
	if d.l.Self != 0 {
		add("process %d in the message is this process itself (%s): it holds %s besides PyTorch's allocator", d.l.Self, why, about(d.l.Context))
		return
	}
	add("one of the processes in the message is this process itself (%s): the figures do not tell which, so the others hold %s", why, about(d.l.Others))
}

// Facts are the numbers of an out-of-memory error that a recording or a
// simulation gives, in bytes; a negative number is unknown.
type Facts struct {
	// Requested is what the allocator asked the device for (the segment).
	Requested int64
	// Reserved and Allocated are the allocator's counters just before.
	Reserved, Allocated int64
	// DeviceFree and Total are cudaMemGetInfo's; math.MaxInt64 and 0 for an
	// unlimited device.
	DeviceFree, Total int64
	// Limit is the most the allocator may reserve; 0 or negative for none.
	Limit int64
	// LargestFree is the allocator's largest free block that the request may
	// use, Private what is free in pools that it may not use; 0 for none.
	LargestFree, Private int64
	// GPU is the device index.
	GPU int
}

// FromFacts makes the Message that stands for f.
func FromFacts(f Facts) Message {
	known := func(n int64) Quantity {
		if n < 0 || n == math.MaxInt64 {
			return Quantity{}
		}
		return Exact(n)
	}
	m := Message{
		Framework: Recorded, GPU: f.GPU, Rank: -1,
		Requested: known(f.Requested), Reserved: known(f.Reserved), Allocated: known(f.Allocated),
		Free: known(f.DeviceFree), LargestFree: known(f.LargestFree),
	}
	m.Unlimited = f.DeviceFree == math.MaxInt64
	if f.Total > 0 {
		m.Total = known(f.Total)
	}
	if f.Limit > 0 {
		m.Allowed = known(f.Limit)
	}
	if f.Private > 0 && m.Allocated.Known {
		// As PyTorch's message counts.
		m.PrivatePools, m.Allocated = Exact(f.Private), m.Allocated.plus(Exact(f.Private))
	}
	m.complete()
	return m
}
