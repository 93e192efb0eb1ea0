package recovery

import (
	"context"
	"math"

	"allocsim/sim"
	"allocsim/traces"
)

// settler looks for the EmptyCache calls and pools that explain a recording on
// one machine.
type settler struct {
	rec     *Recovered
	machine sim.Machine
	runner  *sim.Runner
	budget  *int          // events that may still be replayed
	tr      *traces.Trace // with what has been found so far
	check   *CheckResult
	empty   int     // calls that were inferred
	layout  *layout // which segment each block lived in; made when needed
}

func (s *settler) compare(ctx context.Context, tr *traces.Trace) (*CheckResult, error) {
	check, err := compare(ctx, s.runner, tr, sim.Config{Policy: s.rec.Policy, Machine: s.machine})
	if err != nil {
		return nil, err
	}
	*s.budget -= len(tr.Events)
	if d := check.FirstDivergence; d != nil {
		*s.budget += len(tr.Events) - min(d.Event, len(tr.Events))
	}
	return check, nil
}

// exact reports that every recorded event follows.
func (s *settler) exact() bool { return s.check != nil && s.check.FirstDivergence == nil }

// maxEdits bounds the search of settle.
const maxEdits = 4000

// settle replays, and at each divergence tries what could explain it: an
// empty_cache call at the start of the operation (rule M of spec
// verification.md section 3.1), a segment that belongs to another pool (section
// 3.3), a private pool that ended there. Of the edits with which the replay
// gets further, the most plausible stays, and of equals the one that gets
// furthest.
func (s *settler) settle(ctx context.Context) error {
	var err error
	if s.check, err = s.compare(ctx, s.tr); err != nil {
		return err
	}
	for range maxEdits {
		d := s.check.FirstDivergence
		if d == nil {
			return s.mergePools(ctx)
		}
		if d.Event >= len(s.tr.Events) && d.recorded == noStep || *s.budget < 0 {
			return nil
		}
		var best *edit
		var bestCheck *CheckResult
		furthest := 0
		var odds plausibility
		for _, e := range s.candidates(d) {
			check, err := s.compare(ctx, e.tr)
			if err != nil {
				return err
			}
			reach := math.MaxInt
			if next := check.FirstDivergence; next != nil {
				// The events inserted at the divergence are part of it.
				if reach = next.Event; reach > d.Event {
					reach = max(reach-e.shift, d.Event)
				}
			}
			if reach < d.Event || reach == d.Event && check.SegmentEventsMatched <= s.check.SegmentEventsMatched {
				continue
			}
			o := plausible(e.tr)
			if c := o.compare(odds); best == nil || c < 0 || c == 0 && reach > furthest {
				best, bestCheck, furthest, odds = &e, check, reach, o
			}
		}
		if best == nil {
			return nil
		}
		s.tr, s.check = best.tr, bestCheck
		s.empty += best.empty
		if best.layout != nil {
			s.layout = best.layout
		}
	}
	return nil
}

// mergePools makes one of two pools that were made up where that explains the
// recording as well.
func (s *settler) mergePools(ctx context.Context) error {
	if s.layout == nil {
		return nil
	}
	for p := s.layout.known; p < s.layout.pools; p++ {
		for q := s.layout.pools - 1; q > p; q-- {
			l := s.layout.merged(uint8(p), uint8(q))
			tr := l.apply(s.tr)
			check, err := s.compare(ctx, tr)
			if err != nil {
				return err
			}
			if check.FirstDivergence == nil {
				s.tr, s.check, s.layout = tr, check, l
			}
		}
	}
	return nil
}

// edit is one change to the trace that could explain a divergence.
type edit struct {
	tr     *traces.Trace
	shift  int     // events inserted in front of the divergence
	empty  int     // empty_cache calls inserted
	layout *layout // with another pool for a segment; nil = unchanged
}

func (s *settler) candidates(d *Divergence) []edit {
	var es []edit
	if !s.byRequest(d) {
		es = append(es, edit{tr: traces.WithEmptyCaches(s.tr, []int{d.Event}), shift: 1, empty: 1})
	}
	if s.tr.Meta.NoCompletions && len(s.tr.Streams) > 1 {
		return es // a block that waited looks like one of another pool
	}
	if s.layout == nil {
		s.layout = newLayout(s.tr)
	}
	return append(es, s.layout.edits(s.tr, d)...)
}

// byRequest reports that the call stacks of the releases at a divergence are
// the request's own: no empty_cache call stands there.
func (s *settler) byRequest(d *Divergence) bool {
	if d.recorded != release {
		return false
	}
	for _, e := range s.tr.Recorded.Driver {
		if int(e.Before) == d.Event && e.Action.Releases() {
			return e.Caller == traces.CallerRequest
		}
	}
	return false
}

// further reports that s explains more of the recording than t, or as much
// with fewer inferred calls.
func (s *settler) further(t *settler) bool {
	x, y := s.check.AddressesMatched, t.check.AddressesMatched
	if x != y {
		return x > y
	}
	if s.exact() != t.exact() {
		return s.exact()
	}
	return s.empty < t.empty
}
