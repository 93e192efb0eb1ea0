package diagnose

import (
	"slices"

	"allocsim/internal/bytesize"
)

// A Ledger is the account of a card: Total = this process's allocator (Tensors
// + Cached + Private) + this process outside it (Context) + other processes
// (Others) + Free. Every part is an interval; unknown parts are what the
// message does not determine.
type Ledger struct {
	Total, Tensors, Cached, Private, Context, Others, Free Quantity
	// Rest is Context + Others, which old messages do not tell apart.
	Rest Quantity
	// Self is the id under which this process is listed as another one, which
	// happens in containers; 0 when it is not, or when several may be it.
	Self int64
	// Hidden is set when this process is one of the listed ones.
	Hidden bool
	// Problem says why the figures cannot all be true of one card; empty when
	// they add up.
	Problem Problem
	// Excess is by how much they exceed what is possible.
	Excess Quantity
}

// Problem is a way in which figures do not fit.
type Problem string

// The problems.
const (
	// Impossible: no card and no allocator can have these figures together.
	Impossible Problem = "impossible"
	// Virtual: the allocator counts memory that is not on the card: a pluggable
	// allocator, sleep mode, managed or unified memory.
	Virtual Problem = "virtual"
	// Shared: total and free describe different memories, as on a chip that
	// shares the computer's memory.
	Shared Problem = "shared"
)

// slack is what figures taken one after another may differ by: the page of the
// driver.
const slack = 2 * bytesize.MiB

// exceeds reports that a is larger than b by more than rounding and slack
// explain.
func exceeds(a, b Quantity) bool {
	return a.Known && b.Known && a.Low() > b.High()+slack
}

// solve makes the account of what a message says.
func solve(m Message) Ledger {
	l := Ledger{Total: m.Total, Free: m.Free}
	l.Private = m.PrivatePools
	l.Tensors = m.Allocated
	if m.PrivatePools.Known {
		// PyTorch counts what is free in private pools as allocated.
		l.Tensors = m.Allocated.minus(m.PrivatePools)
	}
	l.Cached = m.Unallocated
	if l.refuse(exceeds(m.Allocated, m.Reserved), Impossible, m.Allocated.minus(m.Reserved)) ||
		l.refuse(exceeds(m.PrivatePools, m.Allocated), Impossible, m.PrivatePools.minus(m.Allocated)) ||
		l.refuse(exceeds(m.Free, m.Total), Shared, m.Free.minus(m.Total)) ||
		l.refuse(exceeds(m.Reserved, m.Total), Virtual, m.Reserved.minus(m.Total)) ||
		l.refuse(exceeds(m.Reserved, m.Process), Virtual, m.Reserved.minus(m.Process)) ||
		l.refuse(exceeds(m.Reserved.plus(m.Free), m.Total), Impossible, m.Reserved.plus(m.Free).minus(m.Total)) ||
		l.refuse(exceeds(m.Process.plus(m.Free), m.Total), Impossible, m.Process.plus(m.Free).minus(m.Total)) {
		return l
	}
	if !m.Free.Known && !m.Unlimited && m.Total.Known && m.Reserved.Known {
		// What the allocator does not hold may be free or another's.
		l.Free = between(0, max(0, m.Total.minus(m.Reserved).High()))
		if m.Process.Known {
			l.Free = between(0, max(0, m.Total.minus(m.Process).High()))
		}
	}
	l.Rest = m.Total.minus(m.Reserved).minus(l.Free).atLeast0()
	switch {
	case m.Process.Known && m.Reserved.Known:
		l.Context = m.Process.minus(m.Reserved).atLeast0()
		l.Others = m.Total.minus(m.Process).minus(l.Free).atLeast0()
		listed := Exact(0)
		for _, p := range m.Others {
			listed = listed.plus(p.Uses)
		}
		// Figures of several processes are not of one moment.
		listed = listed.plus(m.Process).plus(l.Free)
		l.refuse(exceeds(listed, m.Total.plus(Exact(m.Total.Bytes/200))), Impossible, listed.minus(m.Total))
	case len(m.Others) > 0:
		l.others(m)
	}
	return l
}

func (l *Ledger) refuse(no bool, p Problem, by Quantity) bool {
	if no {
		l.Problem, l.Excess = p, by
	}
	return no
}

// usual is how much a process that uses PyTorch commonly holds outside the
// allocator (context, kernels, libraries): 0.6–0.7 GiB for one context, up to
// 1.54 GiB seen in reports (case R13).
const usual = 3 * bytesize.GiB / 2

// others decides which of the listed processes is this one, if any. NVML lists
// every process on the card; PyTorch knows its own by the process id, which in
// a container is not the one that NVML knows.
func (l *Ledger) others(m Message) {
	sum := Exact(0)
	for _, p := range m.Others {
		sum = sum.plus(p.Uses)
	}
	if !m.Reserved.Known || !m.Total.Known || !sum.Known {
		l.Others = sum
		return
	}
	// Nobody listed is this process: what is neither listed nor reserved nor
	// free is its context.
	context := l.Rest.minus(sum)
	apart := context.High() >= 0
	var selves []Process
	if !exceeds(sum.plus(l.Free), m.Total) {
		for _, p := range m.Others {
			if p.Uses.High() >= m.Reserved.Low() {
				selves = append(selves, p)
			}
		}
	}
	nearest := Quantity{Bytes: huge, Known: true}
	for _, p := range selves {
		if c := p.Uses.minus(m.Reserved); c.Bytes < nearest.Bytes {
			nearest = c
		}
	}
	if nearest.Bytes <= usual {
		// Where one leaves a usual context, those that leave a huge one are not it.
		selves = slices.DeleteFunc(selves, func(p Process) bool { return p.Uses.minus(m.Reserved).Bytes > 3*usual })
	}
	if len(selves) > 0 && (!apart || nearest.Bytes <= usual && context.Bytes > usual) {
		apart = false
	} else if apart && (len(selves) == 0 || context.Bytes <= usual) {
		selves = nil
	}
	switch {
	case apart && len(selves) == 0:
		l.Context, l.Others = context.atLeast0(), sum
		return
	case !apart && len(selves) == 0:
		// The listed figures cannot be true beside the others.
		l.refuse(true, Impossible, sum.plus(m.Reserved).plus(l.Free).minus(m.Total))
		return
	}
	l.Hidden = true
	first := true
	for _, p := range selves {
		c, o := p.Uses.minus(m.Reserved).atLeast0(), sum.minus(p.Uses).atLeast0()
		if first {
			l.Context, l.Others, l.Self = c, o, p.PID
			first = false
			continue
		}
		l.Self = 0
		l.Context, l.Others = hull(l.Context, c), hull(l.Others, o)
	}
	if apart {
		l.Self = 0
		l.Context, l.Others = hull(l.Context, context.atLeast0()), hull(l.Others, sum)
	}
}

// hull is the smallest interval that holds both.
func hull(a, b Quantity) Quantity { return between(min(a.Low(), b.Low()), max(a.High(), b.High())) }

// room is what one request could get if every hole of the allocator were
// joined with what is free.
func (l *Ledger) room() Quantity { return l.Cached.plus(l.Free) }
