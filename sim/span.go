package sim

import (
	"context"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"allocsim/policies"
	"allocsim/traces"
)

// SpanOrders is how many seeded random orders of driver addresses a Span
// samples, besides the driver model.
const SpanOrders = 40

// Span is the range of an outcome over the orders in which the driver may
// place segments (spec verification.md section 7): what a prediction cannot
// know. With the same requests, the real outcome lay inside in every recording
// tried. Expandable segments have a span of no width.
type Span struct {
	ReservedPeak    [2]int64 `json:"reserved_peak"`     // bytes: low, high
	NumAllocRetries [2]int64 `json:"num_alloc_retries"` // low, high
	// CompletedAll reports that every order completed.
	CompletedAll bool `json:"completed_all"`
}

// SampleSpan runs a configuration under so many random orders (SpanOrders, for
// most) and the
// driver model. workers ≤ 0 means one for each processor; the result does not
// depend on it.
func SampleSpan(ctx context.Context, tr *traces.Trace, cfg Config, orders, workers int) (*Span, error) {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	cfg.Detail, cfg.Brief, cfg.Addresses = false, true, AddressesDriver
	first, err := Run(ctx, tr, cfg)
	if err != nil {
		return nil, err
	}
	runs := SpanRuns(tr, cfg, first, orders)
	if first.Policy != cfg.Policy {
		// Prepared once, for the trace's own order (see Runner.Run).
		for k := range runs {
			runs[k].Policy, runs[k].StartOrder = first.Policy, 0
		}
	}
	results := make([]*Result, len(runs))
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			var r Runner
			for {
				k := int(next.Add(1)) - 1
				if k >= len(runs) {
					return nil
				}
				res, err := r.Run(ctx, tr, runs[k])
				if err != nil {
					return err
				}
				results[k] = res
			}
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return NewSpan(first, results), nil
}

// SpanRuns are the runs that a Span samples besides the one under the driver
// model, whose result is first.
//
// There are none when that run has not called cudaMalloc: the orders differ in
// nothing but the addresses that it returns. So it is with expandable
// segments, which map memory into reservations; where these lie is not drawn.
// A start that is allocated afresh has orders of its own.
func SpanRuns(tr *traces.Trace, cfg Config, first *Result, orders int) []Config {
	rebuilt := tr.StartEvents > 1 && !(cfg.FromStart && tr.Start != nil)
	if first.Driver.Mallocs == 0 && cfg.Device == nil && !rebuilt {
		return nil
	}
	runs := make([]Config, orders)
	for k := range runs {
		runs[k] = cfg.Order(uint64(k + 1))
		runs[k].Detail, runs[k].Brief = false, true
	}
	return runs
}

// Order is the same run in another order of what a prediction cannot know:
// where the driver places segments, and in which order what lived at the start
// of a recording came to be. k > 0 chooses the order.
func (c Config) Order(k uint64) Config {
	c.Addresses, c.Seed, c.Pin, c.StartOrder = AddressesRandom, k, false, k
	return c
}

// NewSpan is the span of a run under the driver model and of its SpanRuns.
func NewSpan(first *Result, orders []*Result) *Span {
	peak, retries := first.Stats.ReservedBytes[policies.All].Peak, first.Stats.NumAllocRetries
	s := &Span{ReservedPeak: [2]int64{peak, peak}, NumAllocRetries: [2]int64{retries, retries}, CompletedAll: first.Completed}
	for _, res := range orders {
		peak, retries := res.Stats.ReservedBytes[policies.All].Peak, res.Stats.NumAllocRetries
		s.ReservedPeak = [2]int64{min(s.ReservedPeak[0], peak), max(s.ReservedPeak[1], peak)}
		s.NumAllocRetries = [2]int64{min(s.NumAllocRetries[0], retries), max(s.NumAllocRetries[1], retries)}
		s.CompletedAll = s.CompletedAll && res.Completed
	}
	return s
}

// Worst takes in the span of another trace that must complete too: of both,
// the higher peaks and all retries.
func (s *Span) Worst(o *Span) {
	s.ReservedPeak = [2]int64{max(s.ReservedPeak[0], o.ReservedPeak[0]), max(s.ReservedPeak[1], o.ReservedPeak[1])}
	s.NumAllocRetries = [2]int64{s.NumAllocRetries[0] + o.NumAllocRetries[0], s.NumAllocRetries[1] + o.NumAllocRetries[1]}
	s.CompletedAll = s.CompletedAll && o.CompletedAll
}
