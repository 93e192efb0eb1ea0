package recovery

import (
	"math"

	"allocsim/policies/torch"
	"allocsim/traces"
)

// recordedOps calls f for every request (Alloc or OOM) with the recorded
// driver events that belong to it and the bytes held before them.
func recordedOps(tr *traces.Trace, f func(k int, group []traces.DriverEvent, held int64)) {
	held := tr.Start.Reserved()
	driver := tr.Recorded.Driver
	for k := tr.StartEvents; k <= len(tr.Events); k++ {
		n := 0
		for n < len(driver) && int(driver[n].Before) <= k {
			n++
		}
		if n > 0 || k == len(tr.Events) || tr.Events[k].Kind == traces.OOM {
			f(k, driver[:n], held)
		}
		for _, d := range driver[:n] {
			held += d.Reserves()
		}
		driver = driver[n:]
	}
}

// burst is a run of releases in front of one event: an empty_cache call, the
// flush or the garbage collection of a request, the end of a private pool.
type burst struct {
	event int // it precedes this event of the trace
	// need is the bytes that the request would have held without the releases,
	// as the allocator counts against a limit; cardNeed what the device would
	// have given by then.
	need, cardNeed int64
	grew           bool // memory was taken after the releases
	called         bool // an EmptyCache stands in the trace where the burst does
	oom            bool // the event is a request that failed
	caller         traces.Caller
}

// certain reports that a burst can only be an empty_cache call, as long as no
// private pool ends there: its releases name the call, or no request followed
// that could have caused them (spec verification.md section 3.1, rule T).
func (b *burst) certain() bool {
	return b.caller == traces.CallerEmptyCache || !b.grew && !b.oom
}

// flush reports that a burst can be what a request released at a bound.
func (b *burst) flush() bool { return b.grew && !b.called && b.caller != traces.CallerEmptyCache }

// evidence is what the segment events of a recording say of a bound, whatever
// the allocator's rules made of it.
type evidence struct {
	// limitLow is the least limit that lets every growth pass: the allocator
	// counts a whole segment before it maps a part of one. cardLow is the most
	// that was really held.
	limitLow, cardLow int64
	// limitHigh is the largest limit at which each request fails that failed
	// although the device is not known to have been full; roomy counts those
	// for which it had room, ooms all that failed.
	limitHigh   int64
	roomy, ooms int
	// bursts are all runs of releases, in order.
	bursts []burst
	// card is the capacity that oom entries show if the device was full at one
	// of them: what was held and what was free add up to the same at each. 0 =
	// not full; -1 = full, but with another capacity each time.
	card int64
}

// evidenceOf reads the segment events of a trace.
func (r *Recovered) evidenceOf(tr *traces.Trace) evidence {
	ev := evidence{limitHigh: math.MaxInt64}
	sizes := torch.SizesOf(r.Conf, r.Version)
	oom := 0
	full, constant := false, true
	var capacity int64
	recordedOps(tr, func(k int, group []traces.DriverEvent, held int64) {
		isOOM := k < len(tr.Events) && tr.Events[k].Kind == traces.OOM
		var segment int64
		if k < len(tr.Events) && (isOOM || tr.Events[k].Kind == traces.Alloc) {
			_, segment = sizes(tr.Events[k].Size)
		}
		b := burst{event: k, need: held + segment, cardNeed: held, called: calledBefore(tr, k), oom: isOOM}
		released := false
		for _, d := range group {
			switch {
			case d.Action.Releases():
				released = true
				b.caller = max(b.caller, d.Caller)
			case d.Action == traces.SegmentAlloc:
				b.grew = true
				ev.limitLow = max(ev.limitLow, held+d.Size)
			case !b.grew:
				b.grew = true
				ev.limitLow = max(ev.limitLow, held+segment)
			}
			held += d.Reserves()
			b.cardNeed += max(0, d.Reserves())
			ev.cardLow = max(ev.cardLow, held)
		}
		if released {
			ev.bursts = append(ev.bursts, b)
		}
		if !isOOM {
			return
		}
		free := int64(-1)
		if oom < len(tr.Recorded.OOMDeviceFree) {
			free = tr.Recorded.OOMDeviceFree[oom]
		}
		oom++
		ev.ooms++
		switch {
		case free < 0:
			constant = false
			ev.limitHigh = min(ev.limitHigh, held+segment-1)
			return
		case free < segment:
			full = true
		default:
			ev.roomy++
			ev.limitHigh = min(ev.limitHigh, held+segment-1)
		}
		if capacity == 0 {
			capacity = held + free
		}
		constant = constant && capacity == held+free
	})
	switch {
	case full && constant:
		ev.card = capacity
	case full:
		ev.card = -1
	}
	return ev
}

// calledBefore reports that an EmptyCache stands directly in front of an event.
func calledBefore(tr *traces.Trace, k int) bool {
	for k--; k >= tr.StartEvents; k-- {
		switch tr.Events[k].Kind {
		case traces.EmptyCache:
			return true
		case traces.ReleasePool, traces.FreeCompleted:
		default:
			return false
		}
	}
	return false
}
