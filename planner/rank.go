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

// last reports a candidate that wins only if no other completes.
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
			if c.lostTo != nil {
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
		if seen && t.room > 0 && best.completes() && c.completes() && c.NumOOMs == best.NumOOMs && c.Driver.StallUS < quick[f].Driver.StallUS {
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
	// Peaks within the tolerance of the lowest count as equal; among them the
	// stall decides where it differs by more than noise, then simplicity.
	best := list[0]
	band := int64(float64(best.Upper()) * (1 + t.opts.Tolerance))
	n := 0
	shortest := int64(math.MaxInt64)
	for n < len(list) && list[n].completes() && list[n].NumOOMs == best.NumOOMs && list[n].last() == best.last() &&
		!list[n].Stopped && list[n].changedRuns() == best.changedRuns() && list[n].Upper() <= band && (best.Span == nil || list[n].Span != nil) {
		shortest = min(shortest, list[n].Driver.StallUS)
		n++
	}
	slack := shortest + max(shortest/5, t.negligible())
	slices.SortStableFunc(list[:n], func(a, b *Candidate) int {
		return cmp.Or(
			boolFirst(a.Driver.StallUS <= slack, b.Driver.StallUS <= slack),
			boolFirst(a == t.cands[0], b == t.cands[0]),
			cmp.Compare(a.Options, b.Options),
			cmp.Compare(a.Upper(), b.Upper()),
			cmp.Compare(a.Driver.StallUS, b.Driver.StallUS),
			compareConfs(a, b),
		)
	})
	return list
}

// negligible is a stall in µs that nobody notices: 1 % of the traces' time.
func (t *tuner) negligible() int64 {
	var us int64
	for i := range t.jobs {
		us += t.jobs[i].Trace.Duration()
	}
	return us / 100
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
