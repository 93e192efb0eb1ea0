package sim

import (
	"fmt"

	"allocsim/policies"
	"allocsim/traces"
)

// restorer is a policy that can start from a given state.
type restorer interface {
	Restore([]policies.Segment) error
}

// holder is a device that can count memory as taken before the run.
type holder interface {
	Hold(addr uint64, size int64, expandable bool)
}

// Restore puts the layout that the trace's recording started from into the
// policy and reports whether the policy can take one and the trace has one: the
// run then goes on from Trace.StartEvents. It is called before the first event.
func (run *Session) Restore() (bool, error) {
	p, ok := run.policy.(restorer)
	if !ok || run.tr.Start == nil {
		return false, nil
	}
	segs := make([]policies.Segment, len(run.tr.Start.Segments))
	for i, s := range run.tr.Start.Segments {
		segs[i] = policies.Segment{Addr: s.Addr, Size: s.Size, Stream: s.Stream, Pool: s.Pool, Small: s.Small, Expandable: s.Expandable}
		for _, b := range s.Blocks {
			segs[i].Blocks = append(segs[i].Blocks, policies.SegmentBlock{
				Addr: b.Addr, Size: b.Size, Requested: b.Requested, State: BlockState(b.State),
			})
		}
	}
	if err := p.Restore(segs); err != nil {
		return false, fmt.Errorf("%s: restore the state at the start: %w", run.tr.Source, err)
	}
	for i, s := range run.tr.Start.Segments {
		if d, ok := run.device.(holder); ok {
			d.Hold(s.Addr, s.Size, s.Expandable)
		}
		for j, b := range s.Blocks {
			if b.ID != traces.NoBlock && b.State != traces.Inactive {
				run.handles[b.ID] = segs[i].Blocks[j].Handle
			}
		}
	}
	return true, nil
}

// BlockState is a policy's name for a block's state in a snapshot.
func BlockState(s traces.BlockState) policies.BlockState {
	switch s {
	case traces.ActiveAllocated:
		return policies.BlockLive
	case traces.ActivePendingFree:
		return policies.BlockPending
	}
	return policies.BlockFree
}
