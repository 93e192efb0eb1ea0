package planner

import (
	"cmp"
	"context"
	"math"
	"slices"

	"allocsim/policies/torch/conf"
)

// Upper is the peak to plan with: for finalists the highest over address
// orders and changed traces, so that a lucky fit does not win.
func (c *Candidate) Upper() int64 {
	n := c.ReservedPeak
	if c.Span != nil {
		n = max(n, c.Span.ReservedPeak[1])
	}
	if c.Robustness != nil {
		n = max(n, c.Robustness.ReservedPeak[1])
	}
	return n
}

// completes reports that the candidate completes under every address order
// tried, or is taken to.
func (c *Candidate) completes() bool {
	return c.Completed && !c.doubted && (c.Span == nil || c.Span.CompletedAll)
}

// changedRuns is the number of changed traces on which it completes.
func (c *Candidate) changedRuns() int {
	if c.Robustness == nil {
		return 0
	}
	return c.Robustness.Completed
}

// robust reports that the candidate completes on every changed trace, or that
// this was not tried.
func (c *Candidate) robust() bool {
	return c.Robustness == nil || c.Robustness.Completed == c.Robustness.Runs
}

// family is the set of options that a candidate uses: the finalists and the
// next round of the search take the best of several.
func (c *Candidate) family() [5]bool {
	return [5]bool{
		c.config.ExpandableSegments, c.config.MaxSplitSize != conf.Unlimited, c.config.GCThreshold > 0,
		c.config.Roundup != [conf.Intervals]int64{}, c.config.LargeSegmentSize != 20*mib,
	}
}

// plainExpandable reports expandable segments without any other option of the
// search.
func (c *Candidate) plainExpandable() bool { return c.plain && c.config.ExpandableSegments }

// expandable is the candidate with plain expandable segments; nil if the
// release does not have them.
func (t *tuner) expandable() *Candidate {
	for _, c := range t.cands {
		if c.plainExpandable() {
			return c
		}
	}
	return nil
}

// last reports a candidate that comes in front only if no other completes.
func (c *Candidate) last() bool { return c.Approximate || c.Limits }

// leaders are the best of each of the best n families, within the tolerance of
// each also the simplest, and where memory is limited also the one with the
// least stall: near the limit all reserve about as much at worst.
//
// A lost candidate that may be the simplest, going by what it has done so far,
// is run to its end first.
func (t *tuner) leaders(ctx context.Context, n int) ([]*Candidate, error) {
	for {
		list := t.choose(n)
		var lost []*Candidate
		for _, c := range list {
			if c.plainExpandable() && c.Stopped {
				c.ceiling = 0 // its figures are shown, win or lose
				lost = append(lost, c)
			} else if c.lostTo != nil {
				lost = append(lost, c)
			}
		}
		if len(lost) == 0 {
			return list, nil
		}
		if err := t.simulateAll(ctx, lost, true); err != nil {
			return nil, err
		}
	}
}

// choose is leaders with lost candidates in places that they may not keep.
func (t *tuner) choose(n int) []*Candidate {
	var out []*Candidate
	first := make(map[[5]bool]*Candidate)
	simple := make(map[[5]bool]*Candidate)
	quick := make(map[[5]bool]*Candidate)
	for _, c := range t.ranked() {
		if c.last() || c.Stopped && c.lostTo == nil {
			continue
		}
		f := c.family()
		best, seen := first[f]
		switch {
		case !seen && len(first) < n && !c.Stopped:
			first[f], simple[f], quick[f] = c, c, c
			out = append(out, c)
		case seen && c.completes() == best.completes() && c.Options < simple[f].Options &&
			float64(c.ReservedPeak) <= float64(best.ReservedPeak)*(1+t.opts.Tolerance):
			simple[f] = c
		}
		if seen && t.room > 0 && best.completes() && c.completes() && c.NumOOMs == best.NumOOMs && t.cost(c) < t.cost(quick[f]) {
			quick[f] = c
		}
	}
	for _, c := range slices.Clone(out) {
		f := c.family()
		if s := simple[f]; s != c {
			out = append(out, s)
		}
		if q := quick[f]; q != c && q != simple[f] {
			out = append(out, q)
		}
	}
	// The setting that people know is always compared.
	if e := t.expandable(); e != nil && !slices.Contains(out, e) {
		out = append(out, e)
	}
	return out
}

// ranked returns the candidates, best first.
func (t *tuner) ranked() []*Candidate {
	list := slices.Clone(t.cands)
	slices.SortStableFunc(list, func(a, b *Candidate) int {
		return cmp.Or(
			boolFirst(!a.last() && a.completes(), !b.last() && b.completes()),
			boolFirst(a.completes(), b.completes()),
			cmp.Compare(a.NumOOMs, b.NumOOMs),
			boolFirst(!a.Stopped, !b.Stopped),
			boolFirst(a.Span != nil, b.Span != nil), // finalists, once there are any
			-cmp.Compare(a.changedRuns(), b.changedRuns()),
			cmp.Compare(a.Upper(), b.Upper()),
			cmp.Compare(a.Driver.StallUS, b.Driver.StallUS),
			cmp.Compare(a.Options, b.Options),
			compareConfs(a, b),
		)
	})
	if len(list) == 0 || !list[0].completes() {
		return list
	}
	best := list[0]
	same := func(c *Candidate) bool {
		return c.completes() && c.NumOOMs == best.NumOOMs && c.last() == best.last() && !c.Stopped &&
			c.changedRuns() == best.changedRuns() && (best.Span == nil || c.Span != nil)
	}
	n := 0
	if t.room > 0 {
		// Below a limit the goal is to go on with room and without waiting. What
		// is reserved costs nothing as long as it fits.
		for n < len(list) && same(list[n]) {
			n++
		}
		slices.SortStableFunc(list[:n], func(a, b *Candidate) int { return boolFirst(!t.close(a), !t.close(b)) })
		for n > 1 && t.close(list[n-1]) && !t.close(list[0]) {
			n--
		}
	} else {
		// Peaks within the tolerance of the lowest count as equal.
		band := int64(float64(best.Upper()) * (1 + t.opts.Tolerance))
		for n < len(list) && same(list[n]) && list[n].Upper() <= band {
			n++
		}
	}
	// Among them the cost decides where it differs by more than noise, then
	// simplicity.
	least := int64(math.MaxInt64)
	for _, c := range list[:n] {
		least = min(least, t.cost(c))
	}
	slack := t.slack(least)
	slices.SortStableFunc(list[:n], func(a, b *Candidate) int {
		return cmp.Or(
			boolFirst(t.cost(a) <= slack, t.cost(b) <= slack),
			boolFirst(a == t.cands[0], b == t.cands[0]),
			cmp.Compare(a.Options, b.Options),
			cmp.Compare(a.Upper(), b.Upper()),
			cmp.Compare(t.cost(a), t.cost(b)),
			compareConfs(a, b),
		)
	})
	t.simplify(list, same)
	return list
}

// simplify puts in front a candidate that sets less than the first, where the
// first does not make up for what it sets more: each option must bring the peak
// down by the tolerance, or save as much of the traces' time.
func (t *tuner) simplify(list []*Candidate, same func(*Candidate) bool) {
	first, at := list[0], 0
	for k, c := range list {
		more := first.Options - c.Options
		if more <= 0 || !same(c) || t.cost(c) > t.cost(first)+max(t.cost(first)/5, int64(more)*t.negligible()) {
			continue
		}
		if float64(c.Upper()) > float64(first.Upper())*(1+t.opts.Tolerance*float64(more)) {
			continue
		}
		if o := list[at]; at == 0 || cmp.Or(boolFirst(c == t.cands[0], o == t.cands[0]), cmp.Compare(c.Options, o.Options), cmp.Compare(c.Upper(), o.Upper()), compareConfs(c, o)) < 0 {
			at = k
		}
	}
	c := list[at]
	copy(list[1:at+1], list[:at])
	list[0] = c
}

// flushWaitUS is what a flush of the cache costs in µs besides its driver
// calls: the host waits until the GPU has done all that is queued. A run with
// 13 flushes took 2.11 s where one without took 0.64 s, of which the calls
// themselves are about a tenth (docs/validation.md).
const flushWaitUS = 100_000

// cost is the time in µs that a candidate adds to the program: driver calls,
// and under a limit what its flushes wait.
func (t *tuner) cost(c *Candidate) int64 {
	if t.room == 0 {
		return c.Driver.StallUS
	}
	return c.Driver.StallUS + c.NumAllocRetries*flushWaitUS
}

// slack is the cost up to which another counts as equal.
func (t *tuner) slack(cost int64) int64 { return cost + max(cost/5, t.negligible()) }

// closeShare is the part of the room that should stay free at worst: less is
// within what other requests than the recorded ones may take.
const closeShare = 100

// close reports that what a candidate takes at worst is nearly all there is.
func (t *tuner) close(c *Candidate) bool { return t.room > 0 && t.room-c.Upper() <= t.room/closeShare }

// negligible is a stall in µs that nobody notices: of the traces' time, the
// share by which peaks count as equal.
func (t *tuner) negligible() int64 {
	var us int64
	for i := range t.jobs {
		us += t.jobs[i].Trace.Duration()
	}
	if us == 0 {
		return 1000 // some traces have no clock
	}
	return int64(float64(us) * t.opts.Tolerance)
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
