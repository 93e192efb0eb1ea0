package sim

import "allocsim/policies"

// Series records an allocator's memory over time: an Observer. Between two
// points all values stay what they were.
type Series struct {
	Event  []int   // index in Trace.Events
	TimeUS []int64 // µs since the start of the trace
	// Bytes at these times.
	Reserved, Allocated, Active []int64

	reserved, allocated, active int64
}

// Observe adds a point for each trace event that changes something.
func (s *Series) Observe(at At, e *policies.Event) {
	switch e.Action {
	case policies.ActionAlloc:
		s.allocated += e.Size
		s.active += e.Size
	case policies.ActionFreeRequested:
		s.allocated -= e.Size
	case policies.ActionFreeCompleted:
		s.active -= e.Size
	case policies.ActionSegmentAlloc, policies.ActionSegmentMap:
		s.reserved += e.Size
	case policies.ActionSegmentFree, policies.ActionSegmentUnmap:
		s.reserved -= e.Size
	default:
		return
	}
	n := len(s.Event)
	if n > 0 && s.Event[n-1] == at.Event {
		s.Reserved[n-1], s.Allocated[n-1], s.Active[n-1] = s.reserved, s.allocated, s.active
		return
	}
	s.Event = append(s.Event, at.Event)
	s.TimeUS = append(s.TimeUS, at.TimeUS)
	s.Reserved = append(s.Reserved, s.reserved)
	s.Allocated = append(s.Allocated, s.allocated)
	s.Active = append(s.Active, s.active)
}
