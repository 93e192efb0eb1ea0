package sim

import "allocsim/traces"

// Bound is the most requested bytes that must live at once whatever completes
// when: no placement by any allocator can need less. A block whose free waits
// for another stream counts as gone, because the GPU may be done with it at
// once and an allocator that synchronises does not wait. Requests that failed
// in the recording do not count.
func Bound(tr *traces.Trace) int64 { return mostLive(tr, false) }

// Need is Bound with the requests that failed in the recording: what the
// program would have needed at that moment to go on.
func Need(tr *traces.Trace) int64 { return mostLive(tr, true) }

func mostLive(tr *traces.Trace, failed bool) int64 {
	live := tr.Live()
	var most int64
	for i := range tr.Events {
		e := &tr.Events[i]
		live.See(e)
		most = max(most, live.Allocated)
		if failed && e.Kind == traces.OOM {
			most = max(most, live.Allocated+e.Size)
		}
	}
	return most
}
