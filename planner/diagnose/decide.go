package diagnose

import (
	"fmt"

	"allocsim/internal/bytesize"
)

// decide finds the verdict.
func (d *diagnosis) decide() {
	switch d.Cause {
	case ReportFailed, VMMOutOfMemory, VMMUnsupported, SleepPool:
		d.decideDriver()
		return
	case KVTooSmall, NoKV, StartBudget, ProfileDisturbed, Warmup, KVPoolEmpty:
		d.decideServing()
		return
	case SharedMemory:
		d.verdict(HostMemory, "the shared memory of the computer or container (/dev/shm) is too small, not the GPU's memory")
		return
	case WorkerKilled:
		d.verdict(HostMemory, "a data-loader worker was killed: nearly always the computer's main memory ran out, not the GPU's")
		return
	case KernelKilled:
		d.decideKilled()
		return
	case SharedBlock:
		d.verdict(Limit, "a kernel asks for more on-chip shared memory than one block may have; the GPU's main memory has nothing to do with it")
		return
	case BufferTooLarge:
		d.decideBuffer()
		return
	case NotInitialized:
		d.verdict(Undecidable, "%s could not start or found nothing that works, which most often is too little free memory; the message has no numbers", d.Framework)
		return
	}
	switch d.Framework {
	case Host:
		d.decideHost()
	case RMM:
		d.decideRMM()
	case JAX, TensorFlow:
		d.decideBFC()
	case PyTorchAsync:
		d.decideAsync()
	case PyTorchMPS:
		d.decideMPS()
	case CuPy:
		d.decideCuPy()
	case Paddle:
		d.decidePaddle()
	case Julia, XGBoost:
		d.decideFree()
	default:
		if d.Framework.caching() {
			d.decideTorch()
		} else {
			d.decideDriver()
		}
	}
}

// decideTorch solves the account of a caching allocator: first what needs no
// account, then a limit, then the parts of the card by size.
func (d *diagnosis) decideTorch() {
	total := d.Total
	switch {
	case !d.Requested.Known:
		d.verdict(Undecidable, "the message does not say how much was requested")
	case d.Requested.Bytes >= huge:
		d.verdict(Capacity, "more than an exbibyte was requested: a size went wrong in the program, such as a negative or overflowed dimension")
	case d.l.Problem != "":
		d.decideProblem()
	case d.Requested.surelyMore(total):
		d.verdict(Capacity, "the request of %s alone is larger than the device (%s)", about(d.Requested), about(total))
	case d.Allowed.Known && d.Requested.surelyMore(d.Allowed) && d.limited():
		d.verdict(Limit, "the request of %s alone is larger than the limit of %s", about(d.Requested), about(d.Allowed))
	case d.Unlimited || d.Requested.surelyAtMost(d.l.Free) && !d.asGoodAsFull():
		d.decideLimit()
	case !d.Unallocated.Known || !d.l.Free.Known:
		d.decideTruncated()
	default:
		d.decideCard()
	}
}

// decideProblem refuses figures that do not fit.
func (d *diagnosis) decideProblem() {
	by := about(d.l.Excess)
	switch d.l.Problem {
	case Shared:
		d.verdict(Undecidable, "the message gives more free memory (%s) than the device has (%s): the chip shares the computer's memory, and the two figures describe different parts of it", about(d.Free), about(d.Total))
	case Virtual:
		than, what := d.Total, "the device has"
		if !exceeds(d.Reserved, d.Total) {
			than, what = d.Process, "this process has on the device"
		}
		d.verdict(Undecidable, "PyTorch counts %s as reserved, %s more than %s (%s): part of it is not on the device, so the figures do not show what is full", about(d.Reserved), by, what, about(than))
	default:
		d.verdict(Undecidable, "the figures cannot all be true of one device: their parts exceed the whole by %s", by)
	}
}

// limited reports whether the limit, not the device, is what refuses: what
// would be reserved exceeds the limit for sure or within rounding.
func (d *diagnosis) limited() bool {
	return d.Allowed.Known && !d.Reserved.plus(d.Requested).surelyAtMost(d.Allowed)
}

// asGoodAsFull reports that what is free is hardly more than the request and
// no limit is known: the driver keeps a reserve, so a nearly full device may
// refuse. A limit is one that something set.
func (d *diagnosis) asGoodAsFull() bool {
	margin := d.l.Free.minus(d.Requested)
	return !d.limited() && margin.Bytes < max(d.Total.Bytes/50, 64*bytesize.MiB)
}

// decideLimit is for a request that the device could have served.
func (d *diagnosis) decideLimit() {
	switch {
	case d.Unlimited && d.Allowed.Known:
		d.verdict(Limit, "the process may take only %s and holds %s: %s more would exceed that", about(d.Allowed), about(d.Reserved), about(d.Requested))
	case d.Unlimited:
		d.verdict(Undecidable, "neither the device nor a limit refused the %s requested", about(d.Requested))
	case d.limited():
		d.verdict(Limit, "the device has %s free, but the process may take only %s and holds %s: %s more would exceed that", about(d.Free), about(d.Allowed), about(d.Reserved), about(d.Requested))
	case d.Allowed.Known:
		d.verdict(Undecidable, "neither the device (%s free) nor the limit (%s, of which %s is held) refuses %s: something else did", about(d.Free), about(d.Allowed), about(d.Reserved), about(d.Requested))
		d.also(Limit)
	default:
		d.verdict(Limit, "the device has %s free, enough for the %s requested, and still refused: something other than its memory limits the process, and the message does not name it", about(d.Free), about(d.Requested))
	}
	if d.r.Verdict == Limit && d.Unallocated.Known && d.Requested.surelyAtMost(d.l.Cached) {
		d.also(Fragmentation)
	}
	if d.r.Verdict == Limit && d.l.Private.Known && d.Requested.surelyAtMost(d.l.Private) {
		d.also(PrivatePool)
	}
}

// A part of the card that is not at the request's disposal.
type part struct {
	verdict Verdict
	held    Quantity // how much of it could be had
	enough  bool     // whether that would serve the request
}

// decideCard names the largest part of the card that is wasted or held
// elsewhere and would have served the request; if there is none, the card is
// full.
func (d *diagnosis) decideCard() {
	room := d.l.room()
	full := d.Requested.surelyMore(room)
	if full && d.l.Private.Known {
		full = d.Requested.surelyMore(room.plus(d.l.Private))
	}
	parts := d.parts(room)
	var best *part
	for i := range parts {
		p := &parts[i]
		if p.enough && (best == nil || p.held.Bytes > best.held.Bytes) {
			best = p
		}
	}
	// Holes are the process's own doing: they come first unless others hold
	// most of the card.
	if own := d.own(parts); own != nil && best != nil && best.verdict == OtherProcess && best.held.Low() < d.Total.Bytes/2 {
		best = own
	}
	switch {
	case best != nil && d.unsure(best, room):
		d.verdict(Undecidable, "unused and free memory together (%s) are within rounding of the %s requested: the printed numbers do not tell whether an allocator setting would do", about(room), about(d.Requested))
		if best.verdict == OtherProcess {
			d.r.Reason += fmt.Sprintf("; %s of the device is held by something else than PyTorch's allocator", about(best.held))
			d.also(OtherProcess)
		}
		d.also(Fragmentation)
	case best == nil:
		d.full(room, full)
	default:
		d.blame(best.verdict, room)
	}
	for _, p := range parts {
		d.also(p.verdict)
	}
	if d.r.Verdict == Fragmentation && room.minus(d.Requested).Bytes < d.Total.Bytes/50 {
		d.also(Capacity) // next to nothing would be left even without holes
	}
}

// own is the larger of the parts that this process's allocator wastes and that
// would do.
func (d *diagnosis) own(parts []part) (own *part) {
	for i := range parts {
		p := &parts[i]
		if p.enough && (p.verdict == Fragmentation || p.verdict == PrivatePool) && (own == nil || p.held.Bytes > own.held.Bytes) {
			own = p
		}
	}
	return own
}

// parts lists what is material: a part below a twentieth of the card is what
// every job has. Others count from a tenth and a GiB on, and what is only known
// as not PyTorch's from a quarter, because a context is in it.
func (d *diagnosis) parts(room Quantity) (parts []part) {
	least := d.Total.Bytes / 20
	take := func(v Verdict, held, with Quantity, least int64) {
		if held.Known && held.Bytes >= least && held.Bytes > 0 {
			parts = append(parts, part{v, held, d.Requested.Low() <= with.High()})
		}
	}
	take(Fragmentation, d.l.Cached, room, least)
	take(PrivatePool, d.l.Private, room.plus(d.l.Private), least)
	outside := func(q Quantity) Quantity { return q.minus(Exact(usual)) }
	switch {
	case d.l.Others.Known && d.l.Context.Known:
		take(OtherProcess, d.l.Others, room.plus(d.l.Others), max(2*least, bytesize.GiB))
		take(OutsideAllocator, outside(d.l.Context), room.plus(outside(d.l.Context)), least)
	case d.l.Others.Known:
		take(OtherProcess, d.l.Others, room.plus(d.l.Others), max(2*least, bytesize.GiB))
	case d.l.Rest.Known:
		if excess := outside(d.l.Rest); excess.Low() > 0 {
			take(OtherProcess, d.l.Rest, room.plus(excess), 5*least)
		}
	}
	return parts
}

// unsure reports that rounding leaves open whether p would have served the
// request.
func (d *diagnosis) unsure(p *part, room Quantity) bool {
	switch p.verdict {
	case Fragmentation:
		return !d.Requested.surelyAtMost(room)
	case OtherProcess:
		// Who holds it is not said either.
		return !d.l.Others.Known && !d.Requested.surelyMore(room) && !d.Requested.surelyAtMost(room)
	}
	return false
}

// full is for a card on which nothing large is wasted.
func (d *diagnosis) full(room Quantity, surely bool) {
	left := room.minus(d.Requested)
	held := fmt.Sprintf("tensors hold %s of %s (%s)", about(d.l.Tensors), about(d.Total), share(d.l.Tensors, d.Total))
	switch {
	case surely:
		private := ""
		if d.l.Private.Known && d.l.Private.Bytes > 0 {
			private = fmt.Sprintf(", even with what private pools keep (%s),", about(d.l.Private))
			d.short = d.short.minus(d.l.Private)
		}
		d.verdict(Capacity, "%s were requested; unused (%s) and free (%s) memory together%s are %s short of that, so no allocator setting can help", about(d.Requested), about(d.l.Cached), about(d.l.Free), private, about(d.short))
	case d.Requested.Bytes > d.Total.Bytes/2:
		d.verdict(Capacity, "the request of %s is most of the card (%s of %s); unused (%s) and free (%s) memory together hardly exceed it, and the driver keeps a reserve", about(d.Requested), share(d.Requested, d.Total), about(d.Total), about(d.l.Cached), about(d.l.Free))
	case left.Bytes <= 0:
		d.verdict(Capacity, "the card is full: %s, and joining every hole (%s) would at best serve this one request of %s", held, about(d.l.Cached), about(d.Requested))
	default:
		d.verdict(Capacity, "the card is full: %s; joining every hole would leave only %s (%s of it) once the %s requested are served", held, about(left), share(Exact(left.High()), d.Total), about(d.Requested))
		if left.Low() >= d.Total.Bytes/50 {
			d.also(Fragmentation)
		}
	}
}

// blame writes the reason for a part that would have served the request.
func (d *diagnosis) blame(v Verdict, room Quantity) {
	switch v {
	case Fragmentation:
		if d.Requested.surelyAtMost(d.l.Cached) {
			d.verdict(v, "PyTorch holds %s that no tensor uses, more than the %s requested, but in pieces that are too small", about(d.l.Cached), about(d.Requested))
			if d.LargestFree.Known {
				d.r.Reason += fmt.Sprintf(" (the largest has %s)", about(d.LargestFree))
			}
			return
		}
		d.verdict(v, "unused (%s) and free (%s) memory together would hold the %s requested, but not in one piece", about(d.l.Cached), about(d.l.Free), about(d.Requested))
	case PrivatePool:
		d.verdict(v, "%s is free inside private pools, where this request of %s may not go; only %s is unused elsewhere", about(d.l.Private), about(d.Requested), about(d.l.Cached))
		if d.LargestFree.Known && d.LargestFree.Bytes == 0 {
			d.r.Reason = fmt.Sprintf("%s is free inside private pools, where this request of %s may not go; nothing is unused elsewhere", about(d.l.Private), about(d.Requested))
		}
	case OutsideAllocator:
		d.verdict(v, "this process holds %s beside PyTorch's allocator, where a %s context with its libraries takes 0.5 to 1.5 GiB; the %s requested would fit without the rest", about(d.l.Context), d.vendor.api, about(d.Requested))
	case OtherProcess:
		who := "other processes"
		if !d.l.Others.Known {
			d.verdict(v, "%s of the device (%s) is held by something else than PyTorch's allocator: other processes, or libraries in this one, the message does not say which", about(d.l.Rest), share(d.l.Rest, d.Total))
			return
		}
		d.verdict(v, "%s of the device (%s) is held by %s; PyTorch itself leaves only %s unused", about(d.l.Others), share(d.l.Others, d.Total), who, about(d.l.Cached))
	}
}

// decideTruncated makes the best of a message that breaks off.
func (d *diagnosis) decideTruncated() {
	ceiling := d.Total
	if d.Allowed.Known && (!ceiling.Known || d.Allowed.Bytes < ceiling.Bytes) {
		ceiling = d.Allowed
	}
	if rest := ceiling.minus(d.l.Tensors); d.Requested.surelyMore(rest) {
		d.verdict(Capacity, "tensors hold %s of %s; the %s requested do not fit beside them, however they are arranged", about(d.l.Tensors), about(ceiling), about(d.Requested))
		return
	}
	d.verdict(Undecidable, "the message breaks off before the numbers that decide")
}

// decideAsync is for backend:cudaMallocAsync, whose message has no account of
// the pool.
func (d *diagnosis) decideAsync() {
	if !d.Requested.Known || !d.Allocated.Known || !d.Total.Known {
		d.verdict(Undecidable, "the message breaks off before the numbers that decide")
		return
	}
	if d.l.Problem != "" || exceeds(d.Allocated, d.Total) || exceeds(d.Allocated.plus(d.Free), d.Total) {
		if d.l.Problem == "" {
			d.l.refuse(true, Impossible, d.Allocated.plus(d.Free).minus(d.Total))
			d.r.Consistent = false
		}
		d.decideProblem()
		return
	}
	after := d.Allocated.plus(d.Requested)
	held := d.Total.minus(d.Allocated).minus(d.Free).atLeast0()
	switch {
	case d.Allowed.Known && after.surelyMore(d.Allowed):
		d.verdict(Limit, "%s allocated and %s requested exceed the limit of %s", about(d.Allocated), about(d.Requested), about(d.Allowed))
	case after.surelyMore(d.Total):
		d.verdict(Capacity, "%s allocated and %s requested exceed the device's %s", about(d.Allocated), about(d.Requested), about(d.Total))
	case d.Requested.surelyAtMost(d.Free) && d.Free.minus(d.Requested).Bytes >= max(d.Total.Bytes/50, 64*bytesize.MiB):
		d.verdict(Limit, "the device has %s free, enough for the %s requested, and still refused: something other than its memory limits the process, and the message does not name it", about(d.Free), about(d.Requested))
	case d.Free.Known && d.Requested.Low() > d.Free.High()+max(0, held.High()-usual), d.Free.Known && held.High() <= usual:
		d.verdict(Capacity, "%s are allocated and %s free; the %s requested do not fit beside a usual CUDA context", about(d.Allocated), about(d.Free), about(d.Requested))
	default:
		d.verdict(Undecidable, "%s of the device is neither allocated nor free: the pool's own holes or other processes; this backend does not say which", about(held))
		d.also(Fragmentation)
		d.also(OtherProcess)
	}
}

// decideMPS is for Apple's GPUs, where the limit is PyTorch's own share of the
// memory that Metal recommends.
func (d *diagnosis) decideMPS() {
	if !d.Allowed.Known {
		d.verdict(Undecidable, "the message has no numbers: Metal refused the memory")
		return
	}
	other := d.Process.minus(d.Allocated)
	switch {
	case d.Requested.surelyMore(d.Allowed):
		d.verdict(Capacity, "the request of %s alone is larger than what the MPS backend may take (%s)", about(d.Requested), about(d.Allowed))
	case d.Process.Known && d.Process.plus(d.Requested).surelyAtMost(d.Allowed):
		d.verdict(Undecidable, "%s in use and %s requested are within the %s allowed: Metal itself refused, for want of system memory or of one large enough piece", about(d.Process), about(d.Requested), about(d.Allowed))
	case other.Known && other.Bytes > d.Allocated.Bytes && other.Bytes > d.Allowed.Bytes/10:
		d.verdict(OutsideAllocator, "Metal holds %s for this process beside PyTorch's allocator (%s), mostly intermediates of large operations, of %s allowed", about(other), about(d.Allocated), about(d.Allowed))
		d.also(Limit)
	default:
		d.verdict(Limit, "Apple's MPS backend may take %s and this process holds %s; %s more would exceed that", about(d.Allowed), about(d.Process), about(d.Requested))
	}
}

// decideBuffer is for one buffer beyond what an API allows.
func (d *diagnosis) decideBuffer() {
	switch {
	case d.Requested.Known && d.Allowed.Known:
		d.verdict(Limit, "one buffer of %s was requested; the largest that Metal gives here is %s", about(d.Requested), about(d.Allowed))
	case d.Requested.Known:
		d.verdict(Limit, "one buffer of %s was requested, more than the largest that Metal gives", about(d.Requested))
	default:
		d.verdict(Limit, "one tensor is larger than the largest buffer that Metal gives")
	}
}

// decideCuPy is for CuPy's pool.
func (d *diagnosis) decideCuPy() {
	switch after := d.Allocated.plus(d.Requested); {
	case !after.Known && d.Requested.Known:
		d.verdict(Undecidable, "the driver refused CuPy %s; the message does not say what the rest of the device holds", about(d.Requested))
	case !after.Known:
		d.verdict(Undecidable, "the message has no numbers")
	case d.Allowed.Known && d.Requested.surelyMore(d.Allowed):
		d.verdict(Limit, "the request of %s alone is larger than the pool's limit of %s", about(d.Requested), about(d.Allowed))
	case d.Allowed.Known && after.surelyMore(d.Allowed):
		d.verdict(Limit, "%s taken from the driver and %s requested exceed the pool's limit of %s", about(d.Allocated), about(d.Requested), about(d.Allowed))
	default:
		d.verdict(Undecidable, "CuPy's pool had taken %s from the driver, which refused %s more; the message does not say how much of that is unused", about(d.Allocated), about(d.Requested))
	}
}

// decideRMM is for RAPIDS' memory resources.
func (d *diagnosis) decideRMM() {
	switch {
	case d.Cause == PoolFull && d.Reserved.Known && d.Allowed.Known && d.Requested.Known && d.Reserved.plus(d.Requested).surelyMore(d.Allowed):
		d.verdict(Limit, "RMM's pool has %s of at most %s and would have to grow by %s", about(d.Reserved), about(d.Allowed), about(d.Requested))
	case d.Cause == PoolFull && d.Requested.Known:
		d.verdict(Limit, "RMM's pool got no %s in one piece: it reached the maximum size it was given, or the driver refused to let it grow", about(d.Requested))
	case d.Cause == PoolFull:
		d.verdict(Limit, "RMM's pool reached the maximum size it was given, or cannot grow in one piece")
	case d.Requested.Known:
		d.verdict(Undecidable, "the driver refused to give RMM %s; the message does not say what the rest of the device holds", about(d.Requested))
	default:
		d.verdict(Undecidable, "the driver refused to give RMM more; the message does not say what the rest of the device holds")
	}
}

// decidePaddle is for PaddlePaddle, whose "has been allocated" is its own.
func (d *diagnosis) decidePaddle() {
	switch {
	case !d.Requested.Known:
		d.verdict(Undecidable, "the message has no numbers")
	case d.Allowed.Known && d.Allocated.plus(d.Requested).surelyMore(d.Allowed):
		d.verdict(Limit, "%s allocated and %s requested exceed FLAGS_gpu_memory_limit_mb (%s)", about(d.Allocated), about(d.Requested), about(d.Allowed))
	case d.Requested.surelyAtMost(d.Free) && d.Free.minus(d.Requested).Bytes >= max(d.Allocated.Bytes/50, 64*bytesize.MiB):
		d.verdict(Limit, "the device has %s free, enough for the %s requested, and still refused: something other than its memory limits the process, and the message does not name it", about(d.Free), about(d.Requested))
	case d.Free.Known && d.Requested.surelyMore(d.Free) && d.Allocated.Bytes > 8*d.Free.Bytes && d.Allocated.Bytes > 4*bytesize.GiB:
		d.verdict(Capacity, "%s were requested and %s is free while %s is allocated: %s short, unless another process has a part of it", about(d.Requested), about(d.Free), about(d.Allocated), about(d.Requested.minus(d.Free)))
		d.also(OtherProcess)
	case d.Free.Known && d.Requested.surelyMore(d.Free):
		d.verdict(Undecidable, "%s were requested and %s is free; the message does not give the card's total, so what others hold is unknown", about(d.Requested), about(d.Free))
		d.also(OtherProcess)
	default:
		d.verdict(Undecidable, "the driver refused %s; the message does not say what the rest of the device holds", about(d.Requested))
	}
}

// decideFree is for messages that give what the device has free, and perhaps
// the pool.
func (d *diagnosis) decideFree() {
	margin := d.Free.minus(d.Requested)
	held := d.Total.minus(d.Free).minus(d.Reserved)
	switch {
	case !d.Requested.Known:
		d.verdict(Undecidable, "the message does not say how much was requested")
	case d.Requested.surelyMore(d.Total):
		d.verdict(Capacity, "the request of %s alone is larger than the device (%s)", about(d.Requested), about(d.Total))
	case d.l.Problem != "":
		d.decideProblem()
	case d.Requested.surelyAtMost(d.Free) && margin.Bytes >= max(d.Total.Bytes/50, 64*bytesize.MiB):
		d.verdict(Limit, "the device has %s free, enough for the %s requested, and still refused: something other than its memory limits the process, and the message does not name it", about(d.Free), about(d.Requested))
	case held.Known && held.Bytes >= d.Total.Bytes/4 && held.Bytes > usual:
		d.verdict(OtherProcess, "%s of the device (%s) is held by something else than the pool: other processes, or libraries in this one, the message does not say which", about(held), share(held, d.Total))
	case d.Unallocated.Known && d.Total.Known && d.Unallocated.Bytes >= d.Total.Bytes/20 && d.Requested.surelyAtMost(d.Unallocated.plus(d.Free)):
		d.verdict(Fragmentation, "the pool holds %s that nothing uses, and %s is free; %s were requested in one piece", about(d.Unallocated), about(d.Free), about(d.Requested))
	case d.Allocated.Known && d.Free.Known:
		d.verdict(Capacity, "%s were requested; unused (%s) and free (%s) memory together do not serve more than this one request, or not even that", about(d.Requested), about(d.Unallocated), about(d.Free))
	case d.Free.Known && d.Requested.surelyMore(d.Free):
		d.verdict(Undecidable, "%s were requested and %s is free; the message does not say who holds the rest", about(d.Requested), about(d.Free))
	default:
		d.verdict(Undecidable, "the driver refused %s; the message does not say what the rest of the device holds", about(d.Requested))
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
	case d.Cause == CompileTime:
		d.verdict(Capacity, "the compiled program needs %s of the %s that one device has", about(d.Requested), about(d.Total))
	case d.Cause == StatsOnly:
		d.verdict(Undecidable, "these are the allocator's counters (%s of %s in use) without the line that says what was requested", about(d.Allocated), about(ceiling))
	case exceeds(d.Allocated, ceiling):
		d.r.Consistent = false
		d.verdict(Undecidable, "the figures cannot all be true: %s in use of a limit of %s", about(d.Allocated), about(ceiling))
	case exceeds(d.Free, d.Total):
		d.r.Consistent = false
		d.verdict(Undecidable, "the figures cannot all be true: %s free of %s", about(d.Free), about(d.Total))
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
	case d.Free.Known && d.Requested.surelyMore(d.Free):
		d.verdict(Capacity, "%s were requested and only %s is free", about(d.Requested), about(d.Free))
	default:
		d.verdict(Undecidable, "the message gives only the request (%s); the lines \"Limit\" and \"InUse\" of the allocator's log would tell the rest", about(d.Requested))
	}
}

// decideServing is for the budgets of serving engines.
func (d *diagnosis) decideServing() {
	switch d.Cause {
	case KVTooSmall:
		switch {
		case d.Requested.Known && d.Allowed.Known && d.Requested.surelyAtMost(d.Allowed):
			d.r.Consistent = false
			d.verdict(Undecidable, "the figures cannot both be true: a KV cache of %s is refused for want of %s", about(d.Allowed), about(d.Requested))
		case d.Requested.Known && d.Allowed.Known:
			d.verdict(Limit, "one request of the model's length%s needs %s of KV cache, and %s's budget leaves %s for it: %s are missing", d.length(), about(d.Requested), d.Framework, about(d.Allowed), about(d.Requested.minus(d.Allowed)))
		case d.Tokens > 0 && d.FitTokens > 0:
			d.verdict(Limit, "the model's length of %d tokens is more than the %d that fit into %s's KV cache", d.Tokens, d.FitTokens, d.Framework)
		default:
			d.verdict(Limit, "%s's budget leaves too little KV cache for one request of the model's length", d.Framework)
		}
	case NoKV:
		d.verdict(Limit, "the model's weights and the run that measures it use up %s's budget: nothing is left for the KV cache", d.Framework)
		d.also(Capacity)
	case StartBudget:
		d.decideStart()
	case ProfileDisturbed:
		d.verdict(OtherProcess, "the free memory grew from %s to %s while %s measured its own use: another process on this GPU gave some back", about(d.Requested), about(d.Free), d.Framework)
	case Warmup:
		d.verdict(Limit, "the warm-up batch of %s does not fit beside the weights and the KV cache", d.Framework)
		d.also(Capacity)
	case KVPoolEmpty:
		d.verdict(Limit, "the running requests used up the KV cache of %s; the GPU's memory as such is not the question", d.Framework)
	}
}

func (d *diagnosis) length() string {
	if d.Tokens == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d tokens)", d.Tokens)
}

// decideStart is for an engine that finds less free at the start than its
// budget: whatever is used then belongs to others, or to this process's own
// context.
func (d *diagnosis) decideStart() {
	if !d.Total.Known {
		d.verdict(OtherProcess, "the GPUs have different amounts of free memory at the start: others use some of them")
		return
	}
	if exceeds(d.Free, d.Total) || exceeds(d.Requested, d.Total) || d.Requested.surelyAtMost(d.Free) {
		d.r.Consistent = false
		d.verdict(Undecidable, "the figures cannot all be true: %s free of %s, and a budget of %s refused", about(d.Free), about(d.Total), about(d.Requested))
		return
	}
	used := d.Total.minus(d.Free)
	if used.Bytes <= usual && used.Bytes < d.Total.Bytes/10 {
		d.verdict(Limit, "the budget of %s (%.2g of %s) is more than is free at the start (%s): only %s are in use, about what contexts take", about(d.Requested), d.Fraction, about(d.Total), about(d.Free), about(used))
		return
	}
	d.verdict(OtherProcess, "%s of %s are in use before the engine starts, so its budget of %s (%.2g of the card) is %s more than is free", about(used), about(d.Total), about(d.Requested), d.Fraction, about(d.Requested.minus(d.Free)))
}

// decideDriver is for messages of drivers and libraries, which have no account
// of the card.
func (d *diagnosis) decideDriver() {
	const silent = "the message does not say what the rest of the device holds"
	switch {
	case d.Cause == ReportFailed:
		d.verdict(Undecidable, "PyTorch ran out of memory and failed while writing its message, because NVML gave no answer: this is an out-of-memory error without numbers")
	case d.Cause == VMMOutOfMemory:
		d.verdict(Undecidable, "the driver had no more memory for an expandable segment; this wording has no numbers")
	case d.Cause == VMMUnsupported:
		d.verdict(Undecidable, "memory has not run out: expandable segments need virtual-memory calls that this driver or device does not support")
	case d.Cause == SleepPool:
		d.verdict(Undecidable, "the allocator for %s's sleep mode was refused memory by the driver; %s", d.Framework, silent)
	case d.Framework == Unknown:
		d.verdict(Undecidable, "the text says that memory ran out, in words of no known program and without figures: it may be the computer's memory or a device's")
	case d.Framework == NCCL:
		d.verdict(Undecidable, "the driver had no memory left for NCCL, which allocates its buffers outside PyTorch's pool; %s", silent)
	case d.Framework == CuBLAS || d.Framework == CuDNN:
		d.verdict(Undecidable, "%s got no memory for its workspace, which it takes from the driver or from PyTorch's pool; %s", d.Framework, silent)
	case d.Requested.Known && d.Requested.surelyMore(d.Total):
		d.verdict(Capacity, "the request of %s alone is larger than the device (%s)", about(d.Requested), about(d.Total))
	case d.Requested.Known && d.Free.Known && d.Requested.surelyMore(d.Free):
		d.verdict(Undecidable, "%s were requested and %s is free; the message does not say who holds the rest", about(d.Requested), about(d.Free))
	case d.Requested.Known:
		d.verdict(Undecidable, "the driver refused %s; %s", about(d.Requested), silent)
	case d.Framework == PyTorchXPU:
		d.verdict(Undecidable, "the message has no numbers")
	default:
		d.verdict(Undecidable, "the message has no numbers: it comes from the driver or from PyTorch before 1.0, not from the allocator")
	}
}

func (d *diagnosis) decideHost() {
	if d.Requested.Known {
		d.verdict(HostMemory, "this is the computer's main memory that ran out, not the GPU's: %s were requested", about(d.Requested))
		return
	}
	d.verdict(HostMemory, "this is the computer's main memory that ran out, not the GPU's")
}

func (d *diagnosis) decideKilled() {
	switch {
	case d.Framework == Ollama:
		d.verdict(HostMemory, "the model needs %s of the computer's main memory and %s is free", about(d.Requested), about(d.Free))
	case d.Allocated.Known:
		d.verdict(HostMemory, "the kernel killed the process because the computer or its control group ran out of main memory; it held %s", about(d.Allocated))
	case d.weak:
		d.verdict(HostMemory, "the process was killed (signal 9), which is what the kernel does when main memory runs out; the GPU's memory is not the question")
	default:
		d.verdict(HostMemory, "the process was killed because the computer or its control group ran out of main memory, not the GPU")
	}
}
