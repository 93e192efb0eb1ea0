package planner

import (
	"context"
	"slices"

	"allocsim/policies"
	"allocsim/sim"
)

// finalists samples the span and the robustness of the baseline, of the best
// candidates and of the simplest that come close.
//
// Those that do not even complete as recorded are behind every one that
// completes under all orders. They are sampled only if there is none. If none
// of all these is reliable, those that come next are sampled, too.
func (t *tuner) finalists(ctx context.Context) error {
	leaders, err := t.leaders(ctx, 8)
	if err != nil {
		return err
	}
	chosen := []*Candidate{t.cands[0]}
	for _, c := range leaders {
		if c != t.cands[0] {
			chosen = append(chosen, c)
		}
	}
	if n := t.opts.Finalists; n != 0 {
		chosen = chosen[:min(max(n+1, 0), len(chosen))]
	}
	if len(chosen) == 0 {
		return nil
	}
	var failed []*Candidate
	hopeful := slices.Clone(chosen[:1])
	for _, c := range chosen[1:] {
		if c.Completed {
			hopeful = append(hopeful, c)
		} else {
			failed = append(failed, c)
		}
	}
	if err := t.sample(ctx, hopeful); err != nil {
		return err
	}
	if !slices.ContainsFunc(hopeful, (*Candidate).completes) {
		if err := t.sample(ctx, failed); err != nil {
			return err
		}
	}
	for round := 0; ; round++ {
		if err := t.revive(ctx); err != nil {
			return err
		}
		next := t.untried()
		if len(next) == 0 || t.opts.Finalists != 0 {
			return nil
		}
		if round == moreRounds {
			t.doubt()
			return nil
		}
		if err := t.sample(ctx, next); err != nil {
			return err
		}
	}
}

// Where no finalist turns out to be reliable, moreFinalists others at a time
// are sampled, in at most moreRounds rounds.
const (
	moreFinalists = 4
	moreRounds    = 8
)

// untried returns the next candidates to sample: those that come before all
// that have been sampled, because these do not complete under all orders. An
// answer must not win by not having been tried.
func (t *tuner) untried() []*Candidate {
	var list []*Candidate
	for _, c := range t.ranked() {
		if c.Span != nil || !c.Completed || c.Stopped || c.last() || len(list) == moreFinalists {
			break
		}
		list = append(list, c)
	}
	return list
}

// doubt takes what has not been sampled for unreliable, after nothing that was
// sampled has turned out to be reliable.
func (t *tuner) doubt() {
	for _, c := range t.cands {
		c.doubted = c.Span == nil && !c.last()
	}
}

// revive runs those lost candidates to their end that may be in front now. A
// candidate loses to one that does better as recorded. When sampling has shown
// that this one is not reliable, the loser may come before it, as it has not
// been sampled.
func (t *tuner) revive(ctx context.Context) error {
	top := t.ranked()[0]
	stays := func(c *Candidate) bool { // behind top, whatever it would still do
		failed := slices.ContainsFunc(c.perTrace, func(r *sim.Result) bool { return !r.Completed })
		switch {
		case failed == top.completes():
			return failed
		case c.NumOOMs != top.NumOOMs:
			return c.NumOOMs > top.NumOOMs
		}
		return top.Span != nil
	}
	var lost []*Candidate
	for _, c := range t.cands {
		if c.lostTo != nil && !stays(c) {
			lost = append(lost, c)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return t.simulateAll(ctx, lost, true)
}

// sample runs candidates under other address orders and on changed traces, all
// runs in one list so that no processor waits for the last run of each.
func (t *tuner) sample(ctx context.Context, list []*Candidate) error {
	type sampled struct {
		orders  [][]*sim.Result // by job and order
		changed []changedRun
	}
	results := make([]sampled, len(list))
	var runs []func(context.Context, *sim.Runner) error
	for n, c := range list {
		s := &results[n]
		s.orders = make([][]*sim.Result, len(t.jobs))
		for i := range t.jobs {
			cfg := t.config(i, c)
			orders := sim.SpanRuns(t.jobs[i].Trace, cfg, c.perTrace[i], sim.SpanOrders)
			s.orders[i] = make([]*sim.Result, len(orders))
			for k, cfg := range orders {
				runs = append(runs, func(ctx context.Context, r *sim.Runner) (err error) {
					s.orders[i][k], err = r.Run(ctx, t.jobs[i].Trace, cfg)
					return err
				})
			}
		}
		s.changed = make([]changedRun, ChangedTraces)
	}
	// Set by set, so that few sets are in use at a time.
	for k := range ChangedTraces {
		changed := new(changedTraces)
		changed.runs.Store(int64(len(list)))
		for n, c := range list {
			runs = append(runs, func(ctx context.Context, r *sim.Runner) error {
				defer changed.done()
				o := changedRun{completed: true}
				for i, tr := range changed.take(t, k) {
					res, err := r.Run(ctx, tr, t.config(i, c))
					if err != nil {
						return err
					}
					o.completed = o.completed && res.Completed
					o.peak = max(o.peak, res.Stats.ReservedBytes[policies.All].Peak)
				}
				results[n].changed[k] = o
				return nil
			})
		}
	}
	t.total += int64(len(runs))
	err := parallel(ctx, t.opts.Workers, len(runs), t.tick, func(ctx context.Context, r *sim.Runner, k int) error {
		return runs[k](ctx, r)
	})
	if err != nil {
		return err
	}
	for n, c := range list {
		for i := range t.jobs {
			span := sim.NewSpan(c.perTrace[i], results[n].orders[i])
			if c.Span == nil {
				c.Span = span
			} else {
				c.Span.Worst(span)
			}
		}
		c.Robustness = newRobustness(results[n].changed)
	}
	return nil
}

// config is the run of a job under a candidate.
func (t *tuner) config(job int, c *Candidate) sim.Config {
	j := &t.jobs[job]
	cfg := j.On(c.spec, j.Machine)
	cfg.Brief = true
	return cfg
}
