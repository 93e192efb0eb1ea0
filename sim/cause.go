package sim

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/traces"
)

// inside is what an allocator holds that is not in use.
type inside struct {
	free    int64 // bytes of free blocks
	largest int64 // the largest of them
	pending int64 // bytes freed by the program that another stream still uses, of pools that serve the request
	// waiting is the largest range that would be free if nothing were pending;
	// 0 without pending blocks.
	waiting int64
	// elsewhere is the largest free block of another stream or private pool,
	// own that of the request's.
	elsewhere, own int64
}

// lookInside adds up the segments for a request. pools says that private pools
// do not share memory.
func lookInside(segments []policies.Segment, e *traces.Event, pools bool) inside {
	var in inside
	for _, s := range segments {
		foreign := pools && s.Pool != e.Pool
		var run int64 // bytes free or pending in a row
		waits := false
		for _, b := range s.Blocks {
			switch b.State {
			case policies.Inactive:
				in.free += b.Size
				in.largest = max(in.largest, b.Size)
				if foreign || s.Stream != e.Stream {
					in.elsewhere = max(in.elsewhere, b.Size)
				} else {
					in.own = max(in.own, b.Size)
				}
				run += b.Size
			case policies.ActivePendingFree:
				if !foreign {
					in.pending += b.Size
				}
				run += b.Size
				waits = true
			default:
				run, waits = 0, false
			}
			if waits && !foreign {
				in.waiting = max(in.waiting, run)
			}
		}
	}
	return in
}

// explain fills in why a request failed and what was free.
func (r *Session) explain(o *OOM, e *traces.Event, err error) {
	_, pools := r.policy.(policies.PoolReleaser)
	in := lookInside(r.policy.Segments(nil), e, pools)
	o.LargestFree = in.largest
	block, wanted := o.Requested, int64(0)
	if r.cfg.Policy.Sizes != nil {
		block, wanted = r.cfg.Policy.Sizes(o.Requested)
	}
	short := policies.Shortage{Wanted: wanted}
	var told *policies.Shortage
	switch {
	case errors.As(err, &told):
		short = *told
	case r.res.Limit > 0 && r.res.Limit-o.Reserved < o.DeviceFree:
		// A policy that does not say who refused.
		short.Limit, short.Counted = r.res.Limit, o.Reserved
	}
	wanted = max(short.Wanted, block)

	// What the allocator could still take.
	room := o.DeviceFree
	if room < math.MaxInt64 && r.model != nil {
		room -= room % Granule
	}
	// Where the device has less than the limit leaves, a higher limit would not
	// help.
	limited := short.Limit > 0 && (short.Final || short.Limit-short.Counted <= o.DeviceFree)
	if short.Limit > 0 {
		room = min(room, max(short.Limit-short.Counted, 0))
	} else if r.res.Limit > 0 {
		room = min(room, max(r.res.Limit-o.Reserved, 0))
	}
	// Free pieces count as far as they matter: they would have held the
	// request, or what could be taken besides, if they were one.
	pieces := !short.Final &&
		(in.free >= block || room < wanted && in.free >= wanted-room || room < block && in.free >= block-room)
	switch {
	case pieces:
		o.Cause = CauseFragmentation
	case limited:
		o.Cause = CauseLimit
	default:
		o.Cause = CauseCapacity
	}
	o.Reason = reason(r.res.Limit, &short, &in, block, wanted, room, pieces)
}

// reason says what the cause alone does not.
func reason(limit int64, short *policies.Shortage, in *inside, block, wanted, room int64, pieces bool) string {
	var why []string
	if short.Limit > 0 && short.Limit != limit && !short.Final {
		why = append(why, fmt.Sprintf("The allocator's own limit is %s.", bytesize.Format(short.Limit)))
	}
	if short.Reason != "" {
		why = append(why, short.Reason)
	}
	if short.Final {
		return strings.Join(why, " ")
	}
	switch {
	case in.waiting >= block && in.own < block:
		why = append(why, fmt.Sprintf("A range of %s would hold it, but waits for another stream: its free was requested and has not completed.", bytesize.Format(in.waiting)))
	case in.pending > 0 && in.free+in.pending >= block-min(room, block) && in.free < block-min(room, block):
		why = append(why, fmt.Sprintf("%s more will be free when other streams are done.", bytesize.Format(in.pending)))
	}
	if pieces && in.elsewhere >= block && in.own < block {
		why = append(why, fmt.Sprintf("A free block of %s would hold it, but belongs to another stream or private pool.", bytesize.Format(in.elsewhere)))
	}
	if !pieces && room >= block && wanted > room {
		why = append(why, fmt.Sprintf("The allocator asks for %s at a time.", bytesize.Format(wanted)))
	}
	return strings.Join(why, " ")
}
