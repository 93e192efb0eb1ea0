package traces

// Live follows the requested bytes of a trace while its events go by, in order
// and none left out. It is the one place that says what each kind of event does
// to them.
type Live struct {
	// Allocated are the bytes that the program has not given back. Active
	// counts also those that it has, while another stream may still use them
	// (FreeRequested without its FreeCompleted).
	Allocated, Active int64

	size []int64 // by block
}

// Live is a follower of t, before its first event.
func (t *Trace) Live() *Live { return &Live{size: make([]int64, t.NumBlocks)} }

// See takes in the next event. A request that failed changes nothing.
func (l *Live) See(e *Event) {
	switch e.Kind {
	case Alloc:
		l.size[e.ID] = e.Size
		l.Allocated += e.Size
		l.Active += e.Size
	case Free:
		l.Allocated -= l.size[e.ID]
		l.Active -= l.size[e.ID]
	case FreeRequested:
		l.Allocated -= l.size[e.ID]
	case FreeCompleted:
		l.Active -= l.size[e.ID]
	}
}

// Size is the requested bytes of a block that has been seen, else 0.
func (l *Live) Size(id BlockID) int64 { return l.size[id] }

// Reserved is the bytes of a state's segments: what its allocator had from the
// driver. It is 0 for no state.
func (s *State) Reserved() int64 {
	if s == nil {
		return 0
	}
	var n int64
	for i := range s.Segments {
		n += s.Segments[i].Size
	}
	return n
}

// Reserves is by how many bytes d changes what the allocator has from the
// driver: positive when it takes memory.
func (d *DriverEvent) Reserves() int64 { return d.Action.Reserves(d.Size) }
