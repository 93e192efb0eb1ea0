package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

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
				Addr: b.Addr, Size: b.Size, Requested: b.Requested, State: b.State,
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

// begin puts the start of the trace in place as the configuration asks and
// returns the event to go on from.
func (r *Session) begin(ctx context.Context) (int, error) {
	if r.cfg.FromStart {
		if restored, err := r.Restore(); err != nil || restored {
			r.announce()
			return r.tr.StartEvents, err
		}
	}
	n := r.tr.StartEvents
	if r.cfg.StartOrder == 0 || n < 2 || !simpleStart(r.tr) {
		return 0, nil
	}
	// The same events in another order, so that everything else stays as it is.
	whole := r.tr
	shuffled := *whole
	shuffled.Events = slices.Clone(whole.Events[:n])
	rng := rand.New(rand.NewPCG(r.cfg.StartOrder, 0x57a27))
	rng.Shuffle(n, func(i, j int) {
		shuffled.Events[i], shuffled.Events[j] = shuffled.Events[j], shuffled.Events[i]
	})
	r.tr = &shuffled
	err := r.Run(ctx, 0, n)
	r.tr = whole
	return n, err
}

// simpleStart reports that the events made up for the start are allocations
// only, which can come in any order.
func simpleStart(tr *traces.Trace) bool {
	return !slices.ContainsFunc(tr.Events[:tr.StartEvents], func(e traces.Event) bool { return e.Kind != traces.Alloc })
}

// announce tells the observers of a restored layout what is there, as if it
// came at the beginning of the trace.
func (r *Session) announce() {
	if r.relay == nil {
		return
	}
	ids := make(map[policies.Handle]traces.BlockID)
	for id, h := range r.handles {
		if h != 0 {
			ids[h] = traces.BlockID(id)
		}
	}
	for _, s := range r.policy.Segments(nil) {
		e := policies.Event{Addr: s.Addr, Size: s.Size, Stream: s.Stream, Pool: s.Pool, Small: s.Small, Action: policies.ActionSegmentAlloc}
		if s.Expandable {
			e.Action = policies.ActionSegmentMap
		}
		r.relay.at = At{ID: traces.NoBlock}
		r.relay.Observe(&e)
		for _, b := range s.Blocks {
			if b.State == policies.Inactive {
				continue
			}
			if id, ok := ids[b.Handle]; ok {
				r.relay.at.ID = id
			} else {
				r.relay.at.ID = traces.NoBlock
			}
			e.Handle, e.Addr, e.Size, e.Requested, e.Action = b.Handle, b.Addr, b.Size, b.Requested, policies.ActionAlloc
			r.relay.Observe(&e)
			if b.State == policies.ActivePendingFree {
				e.Action = policies.ActionFreeRequested
				r.relay.Observe(&e)
			}
		}
	}
}
