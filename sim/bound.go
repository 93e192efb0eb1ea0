package sim

import "allocsim/traces"

// Bound is the most requested bytes that live at once: no placement by any
// allocator can need less. Pending frees count as live; requests that failed in
// the recording do not count.
func Bound(tr *traces.Trace) int64 { return mostLive(tr, false) }

// Need is Bound with the requests that failed in the recording: what the
// program would have needed at that moment to go on.
func Need(tr *traces.Trace) int64 { return mostLive(tr, true) }

func mostLive(tr *traces.Trace, failed bool) int64 {
	size := make([]int64, tr.NumBlocks)
	var live, most int64
	for i := range tr.Events {
		e := &tr.Events[i]
		switch e.Kind {
		case traces.Alloc:
			size[e.ID] = e.Size
			live += size[e.ID]
			most = max(most, live)
		case traces.OOM:
			if failed {
				most = max(most, live+e.Size)
			}
		case traces.Free, traces.FreeCompleted:
			live -= size[e.ID]
		}
	}
	return most
}
