package traces

import (
	"cmp"
	"fmt"
	"slices"
)

// WithEmptyCaches returns a copy of t with an EmptyCache event inserted before
// each of the given event indices, which refer to t.Events, may be len(t.Events)
// (at the end), may repeat (several calls) and need no order. Everything else
// is as for WithEvents.
func WithEmptyCaches(t *Trace, before []int) *Trace {
	inserts := make([]Insert, len(before))
	for k, i := range before {
		inserts[k] = Insert{Before: i, Event: Event{ID: NoBlock, Kind: EmptyCache}}
	}
	return WithEvents(t, inserts)
}

// Insert is an event to insert before an index of Trace.Events.
type Insert struct {
	Before int
	Event  Event
}

// WithEvents returns a copy of t with events inserted; those before the same
// index keep their order. The copy shares everything else with t.
//
// A new event takes the time of the event it precedes, and Recorded.Driver is
// corrected so that each driver event still names the request that follows it.
// It panics if an index is out of range or lies among the StartEvents.
func WithEvents(t *Trace, inserts []Insert) *Trace {
	inserts = slices.Clone(inserts)
	slices.SortStableFunc(inserts, func(x, y Insert) int { return cmp.Compare(x.Before, y.Before) })
	at := make([]int, len(inserts))
	for k, in := range inserts {
		at[k] = in.Before
		if i := in.Before; i < t.StartEvents || i > len(t.Events) {
			panic(fmt.Sprintf("traces: an event before event %d of a trace whose events are %d to %d", i, t.StartEvents, len(t.Events)))
		}
	}
	out := *t
	if len(at) == 0 {
		return &out
	}
	out.Events = make([]Event, 0, len(t.Events)+len(at))
	done := 0
	for _, in := range inserts {
		i := in.Before
		out.Events = append(out.Events, t.Events[done:i]...)
		done = i
		e := in.Event
		e.TimeUS = t.Duration()
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
			// Events inserted before or at the request push it back.
			n, _ := slices.BinarySearch(at, int(r.Driver[j].Before)+1)
			r.Driver[j].Before += uint32(n)
		}
		out.Recorded = &r
	}
	return &out
}
