package planner

import (
	"context"
	"fmt"

	"allocsim/policies/torch/conf"
)

// Lost searches like Tune and holds each candidate whose run another ended
// early against that other again, now that the search is over: wrong names the
// pairs for which the reason does not hold any more. again counts the runs
// that the search took up a second time.
func Lost(ctx context.Context, jobs []Case, opts TuneOptions) (lost, again int, wrong []string, err error) {
	opts.Finalists = -1
	t := &tuner{jobs: jobs, opts: opts, seen: make(map[conf.Config]bool), byEffect: make(map[effect]*Candidate), iters: -1}
	if err := t.prepare(); err != nil {
		return 0, 0, nil, err
	}
	if err := t.search(ctx); err != nil {
		return 0, 0, nil, err
	}
	for _, x := range t.cands {
		y := x.lostTo
		if y == nil {
			continue
		}
		lost++
		var s standing
		for _, r := range x.perTrace {
			s = s.and(r.Progress())
		}
		behind := s.failed && (y.Completed || y.NumOOMs < s.ooms) || s.failed == !y.Completed && y.inFront(x, s)
		if !x.Stopped || !y.wasWhole() || y.kind() != x.kind() || !behind {
			wrong = append(wrong, fmt.Sprintf("%q lost to %q", x.Conf, y.Conf))
		}
	}
	return lost, int(t.done) - len(t.cands), wrong, nil
}
