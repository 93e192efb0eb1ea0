package sim

import "allocsim/policies"

// Series records an allocator's memory over time: an Observer. Between two
// points all values stay what they were.
type Series struct {
	Event  []int   // index in Trace.Events
	TimeUS []int64 // µs since the start of the trace
	// Bytes at these times.
	Reserved, Allocated, Active []int64

	held policies.Held
}

// Observe adds a point for each trace event that changes something.
func (s *Series) Observe(at At, e *policies.Event) {
	if !s.held.See(e) {
		return
	}
	n := len(s.Event)
	if n > 0 && s.Event[n-1] == at.Event {
		s.Reserved[n-1], s.Allocated[n-1], s.Active[n-1] = s.held.Reserved, s.held.Allocated, s.held.Active
		return
	}
	s.Event = append(s.Event, at.Event)
	s.TimeUS = append(s.TimeUS, at.TimeUS)
	s.Reserved = append(s.Reserved, s.held.Reserved)
	s.Allocated = append(s.Allocated, s.held.Allocated)
	s.Active = append(s.Active, s.held.Active)
}
