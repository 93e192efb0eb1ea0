package diagnose

import (
	"fmt"
	"math"
	"strings"

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
	// Capacity: even an allocator that wastes nothing could not serve it.
	Capacity Verdict = "capacity"
	// OtherProcess: the device would do if others did not hold so much of it.
	OtherProcess Verdict = "other-process"
	// Limit: the device has room; a limit on the process refused.
	Limit Verdict = "limit"
	// Undecidable: numbers are missing, or rounded too much to tell.
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
	// OtherProcesses is the sum of the other processes that the message names.
	OtherProcesses *int64 `json:"other_processes,omitempty"`
	// Outside is total − reserved − free: everything on the device that is not
	// PyTorch's, such as the CUDA context, libraries and other processes.
	Outside *int64 `json:"outside,omitempty"`
	// LargestFree is the largest free block, from a recording.
	LargestFree *int64 `json:"largest_free,omitempty"`
	// Short is what is missing even if nothing were wasted: requested −
	// unallocated − free; negative when it would fit.
	Short *int64 `json:"short,omitempty"`
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
	// UnusedShare is the share of the reserved memory that no tensor uses, 0 to
	// 1 (pytorch/pytorch#29554): what fragmentation and caching cost.
	UnusedShare *float64 `json:"unused_share,omitempty"`
	// Advice says in this order what helps, what does not, and the command to
	// run next.
	Advice []string `json:"advice"`
	// Next is that command alone.
	Next      string    `json:"next"`
	Framework Framework `json:"framework"`
	GPU       *int      `json:"gpu,omitempty"`
	// Messages is the number of different out-of-memory messages in the text.
	Messages int `json:"messages"`
	// Notes say how the numbers are to be read.
	Notes []string `json:"notes"`
}

// overhead is how much a process that uses PyTorch commonly holds outside the
// allocator (context, kernels, libraries, a desktop) before one must suspect
// other processes: 0.6–0.7 GiB for one context, up to 1.54 GiB seen in reports
// (case R13).
const overhead = 3 * bytesize.GiB / 2

// Diagnose explains a message.
func Diagnose(m Message, o Options) Report {
	d := diagnosis{Message: m, o: o}
	d.r = Report{Framework: m.Framework, Messages: m.Count, Also: []Verdict{}, Advice: []string{}, Notes: []string{}}
	if m.GPU >= 0 {
		gpu := m.GPU
		d.r.GPU = &gpu
	}
	d.derive()
	d.decide()
	d.advise()
	d.note()
	return d.r
}

// diagnosis is the work on one message.
type diagnosis struct {
	Message
	o Options
	r Report

	outside Quantity // on the device, but not the allocator's
	others  Quantity // held by other processes that the message names
	room    Quantity // unallocated + free
	short   Quantity // requested − room
}

func (d *diagnosis) derive() {
	d.outside = d.Total.minus(d.Reserved).minus(d.Free)
	if len(d.Others) > 0 {
		d.others.Known = true
		for _, p := range d.Others {
			d.others = d.others.plus(p.Uses)
		}
	}
	d.room = d.Unallocated.plus(d.Free)
	d.short = d.Requested.minus(d.room)
	n := &d.r.Numbers
	rounding := map[string]int64{}
	for _, x := range []struct {
		name string
		to   **int64
		q    Quantity
	}{
		{"requested", &n.Requested, d.Requested}, {"total", &n.Total, d.Total}, {"free", &n.Free, d.Free},
		{"allocated", &n.Allocated, d.Allocated}, {"reserved", &n.Reserved, d.Reserved}, {"unallocated", &n.Unallocated, d.Unallocated},
		{"private_pools", &n.PrivatePools, d.PrivatePools}, {"allowed", &n.Allowed, d.Allowed}, {"process", &n.Process, d.Process},
		{"other_processes", &n.OtherProcesses, d.others}, {"outside", &n.Outside, d.outside}, {"largest_free", &n.LargestFree, d.LargestFree},
		{"short", &n.Short, d.short},
	} {
		if x.q.Known {
			bytes := x.q.Bytes
			*x.to = &bytes
			if x.q.Rounding > 0 {
				rounding[x.name] = x.q.Rounding
			}
		}
	}
	if d.Unallocated.Known && d.Reserved.Known && d.Reserved.Bytes > 0 {
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

func (d *diagnosis) also(v Verdict) { d.r.Also = append(d.r.Also, v) }

// about writes a quantity for a sentence.
func about(q Quantity) string { return bytesize.Format(q.Bytes) }

// decide finds the verdict.
func (d *diagnosis) decide() {
	switch d.Framework {
	case Host:
		d.verdict(Undecidable, "this is the computer's main memory that ran out, not the GPU's")
	case RMM:
		if d.PoolFull {
			d.verdict(Limit, "RMM's pool reached the maximum size it was given, or cannot grow in one piece")
		} else {
			d.verdict(Undecidable, "the driver refused to give RMM more; the message does not say what the rest of the device holds")
		}
	case JAX, TensorFlow:
		d.decideBFC()
	case PyTorchAsync:
		d.decideAsync()
	case PyTorchMPS:
		d.decideMPS()
	case CuPy:
		d.decideCuPy()
	case CUDA:
		if d.Requested.Known {
			d.verdict(Undecidable, "the driver refused %s; the message does not say what the rest of the device holds", about(d.Requested))
		} else {
			d.verdict(Undecidable, "the message has no numbers: it comes from the driver or from PyTorch before 1.0, not from the allocator")
		}
	default:
		d.decideTorch()
	}
}

func (d *diagnosis) decideTorch() {
	switch {
	case !d.Requested.Known:
		d.verdict(Undecidable, "the message does not say how much was requested")
		return
	case d.Requested.Bytes >= 1<<60:
		d.verdict(Capacity, "more than an exbibyte was requested: a size went wrong in the program, such as a negative or overflowed dimension")
		return
	case d.Requested.surelyMore(d.Total):
		d.verdict(Capacity, "the request of %s alone is larger than the device (%s)", about(d.Requested), about(d.Total))
		return
	case d.Allowed.Known && d.Requested.surelyMore(d.Allowed):
		d.verdict(Limit, "the request of %s alone is larger than the limit of %s", about(d.Requested), about(d.Allowed))
		return
	}
	hasRoom := d.Requested.surelyAtMost(d.Free) || d.Unlimited
	fits := d.Requested.surelyAtMost(d.Unallocated) // in what the allocator holds already
	if hasRoom {
		// The driver could have given it. What else refused?
		switch {
		case d.Unlimited && d.Allowed.Known:
			d.verdict(Limit, "the process may take only %s and holds %s: %s more would exceed that", about(d.Allowed), about(d.Reserved), about(d.Requested))
		case d.Unlimited:
			d.verdict(Undecidable, "neither the device nor a limit refused the %s requested", about(d.Requested))
		case d.Allowed.Known:
			d.verdict(Limit, "the device has %s free, but the process may take only %s and holds %s: %s more would exceed that", about(d.Free), about(d.Allowed), about(d.Reserved), about(d.Requested))
		default:
			d.verdict(Limit, "the device has %s free, enough for the %s requested, and still refused: something other than its memory limits the process", about(d.Free), about(d.Requested))
		}
		if fits {
			d.also(Fragmentation)
		}
		return
	}
	if !d.Unallocated.Known || !d.Free.Known {
		d.decideTruncated()
		return
	}
	excess := d.outside
	excess.Bytes -= overhead
	crowded := d.crowded(excess)
	fitsWithoutOthers := d.Requested.Low() <= d.room.High()+max(0, excess.High())
	switch {
	case fits:
		d.verdict(Fragmentation, "PyTorch holds %s that no tensor uses, more than the %s requested, but in pieces that are too small", about(d.Unallocated), about(d.Requested))
		if d.LargestFree.Known {
			d.r.Reason += fmt.Sprintf(" (the largest has %s)", about(d.LargestFree))
		}
		d.alsoFull()
		if crowded {
			d.also(OtherProcess)
		}
	case d.Requested.surelyMore(d.room) && crowded && fitsWithoutOthers:
		d.verdict(OtherProcess, "%s of the device is held by others; the request of %s would fit if they left", d.heldByOthers(), about(d.Requested))
	case d.Requested.surelyMore(d.room):
		d.verdict(Capacity, "%s were requested; unused (%s) and free (%s) memory together are %s short of that, so no allocator setting can help", about(d.Requested), about(d.Unallocated), about(d.Free), about(d.short))
		if crowded {
			d.also(OtherProcess)
		}
	case !d.Requested.surelyAtMost(d.room):
		d.verdict(Undecidable, "unused and free memory together (%s) are within rounding of the %s requested: the printed numbers do not tell whether an allocator setting would do", about(d.room), about(d.Requested))
		d.also(Fragmentation)
		if crowded {
			d.r.Reason += fmt.Sprintf("; others hold %s of the device", d.heldByOthers())
			d.r.Also = []Verdict{OtherProcess, Fragmentation}
		}
	case crowded:
		d.verdict(OtherProcess, "%s of the device is held by others; PyTorch itself leaves only %s unused", d.heldByOthers(), about(d.Unallocated))
		d.also(Fragmentation)
	default:
		d.alsoFull()
		d.verdict(Fragmentation, "unused (%s) and free (%s) memory together would hold the %s requested, but not in one piece", about(d.Unallocated), about(d.Free), about(d.Requested))
	}
}

// alsoFull notes capacity where next to nothing would be left even without
// holes: the next larger request would fail all the same.
func (d *diagnosis) alsoFull() {
	if left := d.room.minus(d.Requested); left.Known && d.Total.Known && left.Bytes < d.Total.Bytes/50 {
		d.also(Capacity)
	}
}

// crowded reports whether someone else holds enough of the device to matter.
func (d *diagnosis) crowded(excess Quantity) bool {
	if d.others.Known {
		// The message lists the processes: no need to guess. Another context
		// without data is no suspect.
		return d.others.Bytes > bytesize.GiB && d.others.Bytes >= d.Total.Bytes/10
	}
	if d.Process.Known && d.Total.Known {
		// Says what this process holds in all.
		rest := d.Total.Bytes - d.Process.Bytes - d.Free.Bytes
		return rest > bytesize.GiB && rest >= d.Total.Bytes/10
	}
	return excess.Known && excess.Low() > 0 && d.outside.Bytes >= d.Total.Bytes/4
}

func (d *diagnosis) heldByOthers() string {
	switch {
	case d.others.Known:
		return about(d.others)
	case d.Process.Known:
		return about(d.Total.minus(d.Process).minus(d.Free))
	}
	return about(d.outside)
}

// decideTruncated makes the best of a message that breaks off.
func (d *diagnosis) decideTruncated() {
	const missing = "the message breaks off before the numbers that decide"
	ceiling := d.Total
	if d.Allowed.Known && (!ceiling.Known || d.Allowed.Bytes < ceiling.Bytes) {
		ceiling = d.Allowed
	}
	if rest := ceiling.minus(d.Allocated); d.Requested.surelyMore(rest) {
		d.verdict(Capacity, "tensors hold %s of %s; the %s requested do not fit beside them, however they are arranged", about(d.Allocated), about(ceiling), about(d.Requested))
		return
	}
	d.verdict(Undecidable, "%s", missing)
}

func (d *diagnosis) decideAsync() {
	if !d.Requested.Known || !d.Allocated.Known || !d.Total.Known {
		d.verdict(Undecidable, "the message breaks off before the numbers that decide")
		return
	}
	after := d.Allocated.plus(d.Requested)
	held := d.Total.minus(d.Allocated).minus(d.Free)
	switch {
	case d.Allowed.Known && after.surelyMore(d.Allowed):
		d.verdict(Limit, "%s allocated and %s requested exceed the limit of %s", about(d.Allocated), about(d.Requested), about(d.Allowed))
	case after.surelyMore(d.Total):
		d.verdict(Capacity, "%s allocated and %s requested exceed the device's %s", about(d.Allocated), about(d.Requested), about(d.Total))
	case d.Requested.surelyAtMost(d.Free):
		d.verdict(Limit, "the device has %s free, enough for the %s requested, and still refused: something other than its memory limits the process", about(d.Free), about(d.Requested))
	case d.Free.Known && d.Requested.Low() > d.Free.High()+max(0, held.High()-overhead):
		d.verdict(Capacity, "%s are allocated and %s free; the %s requested do not fit beside a usual CUDA context", about(d.Allocated), about(d.Free), about(d.Requested))
	default:
		d.verdict(Undecidable, "%s of the device is neither allocated nor free: the pool's own holes or other processes; this backend does not say which", about(held))
		d.r.Also = []Verdict{Fragmentation, OtherProcess}
	}
}

func (d *diagnosis) decideMPS() {
	if !d.Allowed.Known {
		d.verdict(Undecidable, "the message has no numbers")
		return
	}
	d.verdict(Limit, "Apple's MPS backend may take %s and holds %s", about(d.Allowed), about(d.Process))
}

func (d *diagnosis) decideCuPy() {
	switch after := d.Allocated.plus(d.Requested); {
	case !after.Known:
		d.verdict(Undecidable, "the message has no numbers")
	case d.Allowed.Known && after.surelyMore(d.Allowed):
		d.verdict(Limit, "%s taken from the driver and %s requested exceed the pool's limit of %s", about(d.Allocated), about(d.Requested), about(d.Allowed))
	default:
		d.verdict(Undecidable, "CuPy's pool had taken %s from the driver, which refused %s more; the message does not say how much of that is unused", about(d.Allocated), about(d.Requested))
	}
}

// decideBFC is for the best-fit allocator of TensorFlow and XLA, which takes
// its memory in large regions up to a limit.
func (d *diagnosis) decideBFC() {
	ceiling := d.Allowed
	if !ceiling.Known {
		ceiling = d.Reserved
	}
	unused := ceiling.minus(d.Allocated)
	switch {
	case !d.Requested.Known:
		d.verdict(Undecidable, "the message does not say how much was requested")
	case d.Requested.surelyMore(d.Total):
		d.verdict(Capacity, "the request of %s alone is larger than the device (%s)", about(d.Requested), about(d.Total))
	case d.Requested.surelyMore(ceiling):
		d.verdict(Capacity, "the request of %s alone is larger than the allocator's limit (%s)", about(d.Requested), about(ceiling))
	case d.Requested.surelyMore(unused):
		d.verdict(Capacity, "the allocator's limit is %s and %s is in use; %s more do not fit, however they are arranged", about(ceiling), about(d.Allocated), about(d.Requested))
	case d.Requested.surelyAtMost(unused) && d.Allowed.Known:
		d.verdict(Fragmentation, "%s of the allocator's %s is not in use, more than the %s requested, but not in one piece", about(unused), about(ceiling), about(d.Requested))
	default:
		d.verdict(Undecidable, "the message gives only the request (%s); the lines \"Limit\" and \"InUse\" of the allocator's log would tell the rest", about(d.Requested))
	}
}

// note adds how to read the numbers.
func (d *diagnosis) note() {
	add := func(format string, args ...any) { d.r.Notes = append(d.r.Notes, fmt.Sprintf(format, args...)) }
	if d.Framework == PyTorch {
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
	if d.PrivatePools.Known {
		add("%s is free inside private pools (CUDA graphs); only they can use it, and the message counts it as allocated", about(d.PrivatePools))
	}
	if d.Reserved.surelyMore(d.Total) {
		add("PyTorch holds more than the device has: the driver has moved memory to the computer's RAM (Windows), which is slow")
	}
	if d.outside.Known && d.outside.High() < 0 {
		add("the numbers do not add up to the device's total; they were taken at different moments, or the driver oversubscribes")
	}
	if d.Count > 1 && d.Framework != JAX && d.Framework != TensorFlow { // those report one error twice
		add("the text holds %d different out-of-memory messages; this is about the first", d.Count)
	}
	if d.Process.Known && d.Reserved.Known && d.Framework == PyTorch {
		if rest := d.Process.minus(d.Reserved); rest.Low() > 0 {
			add("this process holds %s besides PyTorch's allocator: CUDA context, kernels, libraries", about(rest))
		}
	}
}

// Glossary explains the words of an out-of-memory message, one per line.
var Glossary = []string{
	"allocated    bytes that tensors hold now",
	"reserved     bytes that PyTorch has taken from the driver: allocated, plus what it keeps for reuse",
	"unallocated  reserved − allocated: kept for reuse; large and useless at an OOM means fragmentation",
	"free         bytes that nobody has taken from the driver",
	"outside      total − reserved − free: CUDA contexts, libraries, other processes",
	"nvidia-smi   shows reserved plus the context of each process, never allocated",
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
	// LargestFree is the allocator's largest free block.
	LargestFree int64
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
		Framework: Recorded, GPU: f.GPU, Count: 1,
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
	m.complete()
	return m
}

func join(items []string) string { return strings.Join(items, ", ") }
