// Package explain finds out why a recording ran out of memory: it recovers
// what the recording does not say, runs it again under the recorded
// configuration up to the first failure, and hands package diagnose the exact
// account of that moment, with what was free in the pools that the request
// could not use.
package explain

import (
	"context"
	"fmt"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/planner/diagnose"
	"allocsim/policies"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
)

// Options is what is known besides the recording.
type Options struct {
	// Conf is the configuration to run under, if ConfSet; else the recorded
	// one.
	Conf    string
	ConfSet bool
	// Version is the PyTorch release; zero for the recorded one.
	Version conf.Version
	// Path names the recording in commands and errors.
	Path string
}

// NoOOM is the error for a recording without a failure.
type NoOOM struct {
	Path string
	// Retries is how often the allocator had to empty its cache.
	Retries int64
	// Peak is the most that was reserved, Room the most that might be; 0 when
	// unlimited. Bytes.
	Peak, Room int64
}

func (e *NoOOM) Error() string {
	if e.Retries == 0 {
		return fmt.Sprintf("%s has no out-of-memory event; allocsim tune %s says what its memory could be", e.Path, e.Path)
	}
	closest := ""
	if e.Room > 0 {
		closest = fmt.Sprintf(" (at most %s of %s reserved)", bytesize.Format(e.Peak), bytesize.Format(e.Room))
	}
	return fmt.Sprintf("%s has no out-of-memory event, but it was close: the allocator had to empty its cache %s%s; allocsim tune %s says what would avoid that",
		e.Path, plural.Of(int(e.Retries), "time"), closest, e.Path)
}

// Recording is the account of a recording's first out-of-memory failure, and
// what diagnose should know besides. The error is a *NoOOM when there is none.
func Recording(ctx context.Context, tr *traces.Trace, o Options) (diagnose.Message, diagnose.Options, error) {
	fail := func(err error) (diagnose.Message, diagnose.Options, error) {
		return diagnose.Message{}, diagnose.Options{}, err
	}
	rec, err := recovery.Recover(ctx, tr, recovery.Options{Conf: o.Conf, ConfSet: o.ConfSet, Version: o.Version})
	if err != nil {
		return fail(err)
	}
	res, err := sim.Run(ctx, rec.Trace, rec.Config())
	if err != nil {
		return fail(err)
	}
	if len(res.OOMs) == 0 {
		return fail(&NoOOM{Path: o.Path, Retries: int64(res.Stats.NumAllocRetries), Peak: res.Stats.ReservedBytes[policies.All].Peak, Room: res.Room()})
	}
	oom := res.OOMs[0]
	free, err := freeAt(ctx, rec.Trace, rec.Config(), oom)
	if err != nil {
		return fail(err)
	}
	_, segment := rec.Policy.Sizes(oom.Requested)
	facts := diagnose.Facts{
		// The message names the segment, not the tensor.
		Requested: segment,
		Reserved:  oom.Reserved, Allocated: oom.Allocated,
		DeviceFree: oom.DeviceFree, Total: tr.Meta.DeviceTotal, Limit: rec.Limit,
		LargestFree: free.largest, Private: free.private, GPU: tr.Device,
	}
	msg := diagnose.FromFacts(facts)
	msg.Around.Graphs, msg.Around.MemPool = free.graphs, free.memPool
	return msg, diagnose.Options{Conf: rec.Conf, Version: rec.Version, Trace: o.Path, Open: rec.Open}, nil
}

// free is an allocator's free memory as a failed request sees it.
type free struct {
	// largest is the largest block that the request may use, private the sum
	// of what is free in private pools that it may not use. Bytes.
	largest, private int64
	// graphs and memPool say whose such pools are: a capture's own ids have a
	// zero second, those of MemPool and graph_pool_handle a zero first.
	graphs, memPool bool
}

// freeAt runs the recording again up to a failure and looks at what is free.
func freeAt(ctx context.Context, tr *traces.Trace, cfg sim.Config, oom sim.OOM) (f free, err error) {
	pool := tr.Events[oom.Event].Pool
	var runner sim.Runner
	session, err := runner.Start(tr, cfg)
	if err != nil {
		return f, err
	}
	if err := session.Run(ctx, 0, oom.Event+1); err != nil {
		return f, err
	}
	for _, s := range session.Policy().Segments(nil) {
		for _, b := range s.Blocks {
			switch {
			case b.State != policies.Inactive:
			case s.Pool == pool:
				f.largest = max(f.largest, b.Size)
			case s.Pool != 0:
				f.private += b.Size
				if id := tr.Pools[s.Pool]; id[1] == 0 {
					f.graphs = true
				} else if id[0] == 0 {
					f.memPool = true
				}
			}
		}
	}
	return f, nil
}
