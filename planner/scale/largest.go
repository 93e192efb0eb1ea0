package scale

import (
	"context"
	"errors"
	"fmt"

	"allocsim/policies"
	"allocsim/sim"
)

// Largest is the largest value that fits a device.
type Largest struct {
	// Value is the largest value whose run completes; 0 = none in the range.
	Value int64 `json:"value"`
	// Safe is the largest value for which every run with varied sizes and
	// addresses completes even on a device smaller by the bar's least width; 0
	// = none.
	Safe int64 `json:"safe"`
	// Next is the next value, and NextFails says that it was tried and fails.
	// Next is 0 when the end of the range fits.
	Next      int64 `json:"next"`
	NextFails bool  `json:"next_fails"`
	// At and After are the predictions for Value and Next; nil where these
	// are 0.
	At    *Prediction `json:"at,omitempty"`
	After *Prediction `json:"after,omitempty"`
	Notes Notes       `json:"notes"`
}

// Largest finds the largest value between lo and hi that runs to its end on
// cfg's device. 0 for lo means the smallest step, 0 for hi 16 times the largest
// recording. cfg must have a capacity or a limit.
//
// The search halves the range, so it takes for granted that what fits also
// fits when smaller; the answer itself and the value after it are simulated.
func (m *Model) Largest(ctx context.Context, cfg sim.Config, lo, hi int64) (Largest, error) {
	if cfg.Capacity <= 0 && cfg.Limit <= 0 && cfg.Fraction <= 0 && (cfg.Policy == nil || cfg.Policy.Fraction <= 0) {
		return Largest{}, errors.New("the largest value that fits needs a capacity, a GPU or a memory limit")
	}
	step := max(m.opt.Step, 1)
	if lo <= 0 {
		lo = step
	}
	if hi <= 0 {
		hi = min(beyondFactor*m.programs[len(m.programs)-1].value, MaxValue)
	}
	lo, hi = ceilDiv(lo, step), hi/step
	if lo > hi {
		return Largest{}, fmt.Errorf("no multiple of %d lies in the range", step)
	}
	point, err := search(lo, hi, func(n int64) (bool, error) { return m.fits(ctx, n*step, cfg, false) })
	if err != nil {
		return Largest{}, err
	}
	out := Largest{Notes: Notes{}}
	if point >= lo {
		out.Value = point * step
		safe, err := search(lo, point, func(n int64) (bool, error) { return m.fits(ctx, n*step, cfg, true) })
		if err != nil {
			return Largest{}, err
		}
		if safe >= lo {
			out.Safe = safe * step
		}
		p, err := m.Predict(ctx, out.Value, cfg)
		if err != nil {
			return Largest{}, err
		}
		out.At = &p
	}
	if point == hi {
		out.Notes = append(out.Notes, fmt.Sprintf("The end of the range, %d, still fits.", hi*step))
		return out, nil
	}
	out.Next, out.NextFails = (point+1)*step, true
	p, err := m.Predict(ctx, out.Next, cfg)
	if err != nil {
		return Largest{}, err
	}
	out.After = &p
	return out, nil
}

// search is the largest n in [lo, hi] with ok, or lo-1.
func search(lo, hi int64, ok func(int64) (bool, error)) (int64, error) {
	lo--
	for lo < hi {
		mid := lo + (hi-lo+1)/2
		yes, err := ok(mid)
		if err != nil {
			return 0, err
		}
		if yes {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo, nil
}

// fits reports whether the program completes at a value: with the laws' sizes
// and, where libraries choose algorithms, in most runs with varied sizes, or,
// to be safe, in all runs with varied
// sizes and addresses and a little less memory.
func (m *Model) fits(ctx context.Context, value int64, cfg sim.Config, safe bool) (bool, error) {
	s, err := m.scenario(value)
	if err != nil {
		return false, err
	}
	cfg.StopAtOOM = true
	if safe {
		cfg = smaller(cfg, 1/(1+reservedBar+m.extraBar(value).reserved))
	}
	var runs []run
	for _, r := range s.runs() {
		if safe || r == (run{}) || s.switches && !r.random {
			runs = append(runs, r)
		}
	}
	results, err := m.simulate(ctx, s, runs, cfg)
	if err != nil {
		return false, err
	}
	completed := 0
	for _, r := range results {
		if r.Stats.NumOOMs == 0 {
			completed++
		}
	}
	if safe {
		return completed == len(runs), nil
	}
	return results[0].Stats.NumOOMs == 0 && 2*completed > len(runs), nil
}

// smaller is cfg with what bounds the allocator reduced to a share. A device
// whose total follows from its capacity keeps that total.
func smaller(cfg sim.Config, share float64) sim.Config {
	if cfg.Total == 0 {
		cfg.Total = cfg.Capacity
	}
	cfg.Capacity = int64(float64(cfg.Capacity) * share)
	cfg.Limit = int64(float64(cfg.Limit) * share)
	if cfg.Fraction == 0 {
		cfg.Fraction = cfg.Policy.Fraction
	}
	cfg.Fraction *= share
	return cfg
}

// Backtest is how well the model predicts a recording that it has.
type Backtest struct {
	Value int64 `json:"value"` // the recording predicted
	// LeftOut is true when that recording was not used for the prediction: the
	// error is then an honest one. With two recordings none can be left out;
	// the other's order of requests is used, and only that is tested.
	LeftOut bool `json:"left_out"`
	// The peaks in bytes: predicted, and of the recording's own requests under
	// the same configuration.
	AllocatedPredicted int64 `json:"allocated_predicted"`
	AllocatedPeak      int64 `json:"allocated_peak"`
	ReservedPredicted  int64 `json:"reserved_predicted"`
	ReservedPeak       int64 `json:"reserved_peak"`
}

// AllocatedError and ReservedError are the relative errors, such as -0.02.
func (b Backtest) AllocatedError() float64 {
	return float64(b.AllocatedPredicted)/float64(max(b.AllocatedPeak, 1)) - 1
}

// ReservedError is the relative error of the reserved peak.
func (b Backtest) ReservedError() float64 {
	return float64(b.ReservedPredicted)/float64(max(b.ReservedPeak, 1)) - 1
}

// Backtest predicts the largest recording from the others, or, when there are
// only two, the smaller one from the order of requests of the larger.
func (m *Model) Backtest(ctx context.Context, cfg sim.Config) (Backtest, error) {
	last := len(m.programs) - 1
	target, with, ref := last, m, last
	b := Backtest{LeftOut: last >= 2}
	if b.LeftOut {
		c := *m
		c.programs = m.programs[:last]
		with, ref = &c, last-1
	} else {
		target = 0
	}
	truth := m.programs[target]
	b.Value = truth.value
	s, err := with.scenarioFrom(truth.value, ref)
	if err != nil {
		return b, err
	}
	p, err := with.predict(ctx, s, cfg)
	if err != nil {
		return b, err
	}
	own, err := sim.Run(ctx, truth.trace, cfg)
	if err != nil {
		return b, fmt.Errorf("simulate %s: %w", truth.trace.Source, err)
	}
	b.AllocatedPredicted, b.ReservedPredicted = p.AllocatedPeak, p.ReservedPeak
	b.AllocatedPeak = own.Stats.AllocatedBytes[policies.All].Peak
	b.ReservedPeak = own.Stats.ReservedBytes[policies.All].Peak
	return b, nil
}
