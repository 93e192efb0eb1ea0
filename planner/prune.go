package planner

import (
	"allocsim/sim"
)

// kind is what two candidates must share for one to rule out the other: the
// search keeps the best of each family, and lists settings that limit
// themselves, and approximations, beside the others.
type kind struct {
	family              [5]bool
	limits, approximate bool
}

func (c *Candidate) kind() kind {
	return kind{c.family(), c.Limits, c.Approximate}
}

// rivals are the candidates of one kind that have been simulated to their end:
// what another of that kind, still running, is held against.
//
// A running candidate x is lost when a rival y is at least as good in all that
// ranked, leaders and pareto look at, and before x where they are equal
// (inFront). What x has done so far only grows, so whatever follows, y stays in
// front of x:
//
//   - ranked: y completes, or x does not; y has no more OOMs, no higher peak,
//     no longer stall, no more flushes and no more options, and the last
//     tie-break is y's. Each key of the order then puts y first or leaves it to
//     the next. The band of equal peaks starts at the lowest peak and its slack
//     at the least cost in it; y has no more of either than x, so x moves
//     neither. Where x would do as the simpler one, so would y.
//   - leaders: y is in front of x and of the same family, so x is not the best
//     of it. It is not its simplest either, nor its quickest: y, met before,
//     would do for whatever x does for.
//   - pareto: y is in front of x there, too, and stalls no longer.
//
// A candidate that has failed is lost as soon as one of its kind completes:
// "simplest" and "quickest" compare like with like. It is also lost when y
// failed less often, although it may still be the simplest then if its peak is
// the lower one: leaders makes sure. That is rare as long as
// another of those that failed has fewer options than x.
//
// All of this is about candidates before the finalists are sampled. What
// happens if these turn out not to be reliable is told at revive.
type rivals struct {
	completed, failed []*Candidate
	fewest            int // options of those that failed
}

func (r *rivals) add(c *Candidate) {
	if c.Completed {
		r.completed = append(r.completed, c)
	} else {
		if len(r.failed) == 0 || c.Options < r.fewest {
			r.fewest = c.Options
		}
		r.failed = append(r.failed, c)
	}
}

func (r *rivals) none() bool { return len(r.completed)+len(r.failed) == 0 }

// beats returns a rival that stays in front of x, which stands at s; nil if
// there is none.
func (r *rivals) beats(x *Candidate, s standing) *Candidate {
	list := r.completed
	if s.failed {
		if len(list) > 0 {
			return list[0]
		}
		list = r.failed
	}
	for _, y := range list {
		if s.failed && y.NumOOMs < s.ooms && r.fewest < x.Options || y.inFront(x, s) {
			return y
		}
	}
	return nil
}

// standing is what a candidate has done so far, in the units of its figures.
type standing struct {
	reservedPeak, stallUS, retries, ooms int64
	failed                               bool
}

// and adds what the run of a further trace has done so far, as Candidate.sum
// does.
func (s standing) and(p sim.Progress) standing {
	return standing{
		max(s.reservedPeak, p.ReservedPeak), s.stallUS + p.Driver.Document().StallUS, s.retries + p.NumAllocRetries, s.ooms + p.NumOOMs, s.failed || p.Failed,
	}
}

// inFront reports that y, simulated to its end, is at least as good as x is
// now, and first where they are equal.
func (y *Candidate) inFront(x *Candidate, s standing) bool {
	if y.ReservedPeak > s.reservedPeak || y.Driver.StallUS > s.stallUS || y.NumAllocRetries > s.retries || y.NumOOMs > s.ooms || y.Options > x.Options {
		return false
	}
	return y.ReservedPeak < s.reservedPeak || y.Driver.StallUS < s.stallUS || y.NumAllocRetries < s.retries || y.NumOOMs < s.ooms || y.Options < x.Options || y.Conf < x.Conf
}

// wasWhole reports that the candidate has been simulated to its end.
func (c *Candidate) wasWhole() bool { return c.perTrace != nil && !c.Stopped }
