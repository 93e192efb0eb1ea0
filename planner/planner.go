// Package planner asks the simulator many questions and turns the answers into
// advice: which configuration cures an out-of-memory error or lowers the peak
// (tune.go), which card fits (plan.go), what several jobs on one card need
// (colocate.go), and whether a limit that someone set is exceeded (alerts.go).
// Extrapolation to sizes nobody ran is planner/scale, the catalogue of cards
// planner/gpus, OOM messages planner/diagnose.
//
// Results do not depend on the number of workers: candidates are made in a
// fixed order, bounds that end a run early are fixed before a batch starts,
// and ties are broken by the configuration string.
package planner

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"allocsim/sim"
)

// parallel calls f(worker's runner, k) for k in [0,n) on some workers (≤ 0:
// one a processor) and stops at the first error. done, if not nil, is called
// after each, from one goroutine at a time.
func parallel(ctx context.Context, workers, n int, done func(), f func(ctx context.Context, r *sim.Runner, k int) error) error {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var next atomic.Int64
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	for range min(workers, n) {
		g.Go(func() error {
			var r sim.Runner
			for {
				k := int(next.Add(1)) - 1
				if k >= n {
					return nil
				}
				if err := f(ctx, &r, k); err != nil {
					return err
				}
				if done != nil {
					mu.Lock()
					done()
					mu.Unlock()
				}
			}
		})
	}
	return g.Wait()
}
