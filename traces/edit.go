package traces

import "slices"

// WithEmptyCaches returns a copy of t with an EmptyCache event in front of
// each of the given event indices (of t; len(t.Events) appends one; an index
// given twice gets two). Recorded driver events keep the request they belong
// to.
func WithEmptyCaches(t *Trace, before []int) *Trace {
	if len(before) == 0 {
		return t
	}
	before = slices.Sorted(slices.Values(before))
	c := *t
	c.Events = make([]Event, 0, len(t.Events)+len(before))
	next := 0
	for k := range len(t.Events) + 1 {
		for next < len(before) && before[next] <= k {
			var us int64
			switch {
			case k < len(t.Events):
				us = t.Events[k].TimeUS
			case k > 0:
				us = t.Events[k-1].TimeUS
			}
			c.Events = append(c.Events, Event{TimeUS: us, ID: NoBlock, Kind: EmptyCache})
			next++
		}
		if k < len(t.Events) {
			c.Events = append(c.Events, t.Events[k])
		}
	}
	if t.Recorded != nil {
		r := *t.Recorded
		r.Driver = slices.Clone(t.Recorded.Driver)
		shift := 0
		for i := range r.Driver {
			for shift < len(before) && before[shift] <= int(r.Driver[i].Before) {
				shift++
			}
			r.Driver[i].Before += uint32(shift)
		}
		c.Recorded = &r
	}
	return &c
}
