package diagnose

import (
	"fmt"
	"math"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/planner/gpus"
)

// lookAhead says what a larger card, a smaller batch and expandable segments
// would each leave. Every figure is a span, because the message does not tell
// how much of the holes could be used again, nor how much of what tensors hold
// shrinks with the batch.
func (d *diagnosis) lookAhead() {
	l := d.l
	if !d.Framework.caching() || l.Problem != "" || !d.Total.Known || !l.Free.Known || !l.Cached.Known || !d.Requested.Known || d.Requested.Bytes >= huge ||
		d.Unlimited || d.r.Verdict == Limit || d.r.Verdict == OtherProcess {
		return
	}
	add := func(choice string, low, high int64) { d.r.Outlook = append(d.r.Outlook, Outlook{choice, low, high}) }
	short := d.obtainable().Low() - d.Requested.High() // without any hole put to use
	room := d.room().High() - d.Requested.Low()        // with all of them
	if d.r.Verdict == PrivatePool {
		// Neither a larger card nor another setting frees a pool.
		add("the pools' free memory", short, short+l.Private.High())
		return
	}
	if next := nextTotal(d.Total.Bytes); next > 0 {
		more := next - d.Total.Bytes
		add(fmt.Sprintf("a device of %s", bytesize.Format(next)), short+more, room+more)
	}
	if l.Tensors.Known && l.Tensors.Bytes > 0 {
		percent := int64(25)
		// The least that can do if everything shrinks with the batch.
		if need := -room; need > 0 {
			percent = min(95, int64(math.Ceil(100*float64(need)/float64(l.Tensors.Bytes+d.Requested.Bytes)))+5)
		}
		part := func(q int64) int64 { return int64(float64(q) * float64(percent) / 100) }
		add(fmt.Sprintf("a batch smaller by %d %%", percent), short, room+part(l.Tensors.High())+part(d.Requested.High()))
	}
	if d.noExpandable() == "" && !d.o.Conf.ExpandableSegments && !d.old() && l.Cached.Bytes > 0 {
		add("expandable_segments", short, room)
	}
}

// nextTotal is the memory of the next larger card with memory of its own; 0 if
// there is none.
func nextTotal(total int64) int64 {
	var next int64
	for _, c := range gpus.All() {
		if t := c.Total; !strings.Contains(c.MemoryKind, "unified") && t > total+total/20 && (next == 0 || t < next) {
			next = t
		}
	}
	return next
}

// obtainable is what the allocator can still get: what the device has free, but
// no more than its own limit leaves.
func (d *diagnosis) obtainable() Quantity {
	free := d.l.Free
	if d.Allowed.Known && d.Reserved.Known {
		left := d.Allowed.minus(d.Reserved)
		left.Bytes = max(left.Bytes, 0)
		if !free.Known || left.Bytes < free.Bytes {
			return left
		}
	}
	return free
}

// room is what a request could have had if every hole were put to use.
func (d *diagnosis) room() Quantity { return d.l.Cached.plus(d.obtainable()) }
