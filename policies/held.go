package policies

// Held follows an allocator's bytes while its events go by. It is the one place
// that says what each action does to them. The zero Held is an allocator that
// has nothing.
type Held struct {
	// Reserved is what the allocator has from the device, Allocated what the
	// program has of it; Active counts also what the program has given back
	// while another stream may still use it.
	Reserved, Allocated, Active int64
}

// See takes in an event and reports whether it changes anything.
func (h *Held) See(e *Event) bool {
	switch e.Action {
	case ActionAlloc:
		h.Allocated += e.Size
		h.Active += e.Size
	case ActionFreeRequested:
		h.Allocated -= e.Size
	case ActionFreeCompleted:
		h.Active -= e.Size
	case ActionSegmentAlloc, ActionSegmentFree, ActionSegmentMap, ActionSegmentUnmap:
		h.Reserved += e.Action.Reserves(e.Size)
	default:
		return false
	}
	return true
}
