package sim

import "allocsim/traces"

// blockUnit is the granularity of PyTorch's blocks, in bytes.
const blockUnit = 512

// Bound is the most bytes that live at once, each request rounded up to the
// 512 bytes that every policy here gives at least: no placement can need less.
// Pending frees count as live, and requests that failed in the recording do
// not count.
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
			size[e.ID] = roundUp(e.Size, blockUnit)
			live += size[e.ID]
			most = max(most, live)
		case traces.OOM:
			if failed {
				most = max(most, live+roundUp(e.Size, blockUnit))
			}
		case traces.Free, traces.FreeCompleted:
			live -= size[e.ID]
		}
	}
	return most
}
