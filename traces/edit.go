package traces

import (
	"fmt"
	"slices"
)

// WithEmptyCaches returns a copy of t with an EmptyCache event inserted before
// each of the given event indices, which refer to t.Events, may be len(t.Events)
// (at the end), may repeat (several calls) and need no order. The copy shares
// everything else with t.
//
// A new event takes the time of the event it precedes, and Recorded.Driver is
// corrected so that each driver event still names the request that follows it.
// It panics if an index is out of range or lies among the StartEvents.
func WithEmptyCaches(t *Trace, before []int) *Trace {
	at := slices.Clone(before)
	slices.Sort(at)
	for _, i := range at {
		if i < t.StartEvents || i > len(t.Events) {
			panic(fmt.Sprintf("traces: an EmptyCache before event %d of a trace whose events are %d to %d", i, t.StartEvents, len(t.Events)))
		}
	}
	out := *t
	if len(at) == 0 {
		return &out
	}
	out.Events = make([]Event, 0, len(t.Events)+len(at))
	done := 0
	for _, i := range at {
		out.Events = append(out.Events, t.Events[done:i]...)
		done = i
		e := Event{ID: NoBlock, Kind: EmptyCache, TimeUS: t.Duration()}
		if i < len(t.Events) {
			e.TimeUS = t.Events[i].TimeUS
		}
		out.Events = append(out.Events, e)
	}
	out.Events = append(out.Events, t.Events[done:]...)
	if t.Recorded != nil && len(t.Recorded.Driver) > 0 {
		r := *t.Recorded
		r.Driver = slices.Clone(r.Driver)
		for j := range r.Driver {
			// Calls inserted before or at the request push it back.
			n, _ := slices.BinarySearch(at, int(r.Driver[j].Before)+1)
			r.Driver[j].Before += uint32(n)
		}
		out.Recorded = &r
	}
	return &out
}
