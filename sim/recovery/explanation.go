package recovery

import (
	"math"

	"allocsim/sim"
	"allocsim/traces"
)

// The kinds of explanation: what set the bound at which the recorded allocator
// gave memory back or failed.
const (
	KindNone     = "none"            // nothing that the run met
	KindFraction = "memory fraction" // set_per_process_memory_fraction: the allocator refuses, and may collect garbage
	KindCard     = "full card"       // the device had no more for this allocator: the driver refuses
)

// Explanation is one world that fits a recording: what its program called, what
// its machine was. All of a recording's explanations are consistent with every
// recorded event; no replay of the recording itself can tell them apart, while
// another configuration may come out differently under each.
type Explanation struct {
	// Trace has the EmptyCache calls and the private pools of this explanation
	// in place.
	Trace *traces.Trace
	// Machine is the capacity or limit in force; its Total is the device's where
	// that is known.
	Machine sim.Machine
	// Kind is KindNone, KindFraction or KindCard.
	Kind string
	// Low and High bracket the bound in bytes: every value in between explains
	// the recording as well. With KindNone, Low is the most that was asked of
	// the device at once, and a bound of Low or more that was never met is as
	// good as none; High is math.MaxInt64 where nothing bounds it.
	Low, High int64
	// Known reports that kind and bound are recorded or given, not inferred.
	Known bool
	// EmptyCaches counts the EmptyCache calls of Trace that are inferred.
	EmptyCaches int
	// Says is the explanation in one sentence.
	Says string
}

// Limited reports that the explanation has a bound.
func (e *Explanation) Limited() bool { return e.Kind != KindNone }

// explain makes the only explanation of what r has come to.
func (r *Recovered) explain() {
	e := Explanation{Trace: r.Trace, Machine: r.Machine(), Kind: KindNone, High: math.MaxInt64, Says: "No limit was met."}
	switch {
	case r.Capacity != 0:
		e.Kind, e.Low, e.High = KindCard, r.Capacity, r.Capacity
	case r.Limit != 0:
		e.Kind, e.Low, e.High = KindFraction, r.LimitLow, r.LimitHigh
	}
	r.Explanations = []Explanation{e}
}
