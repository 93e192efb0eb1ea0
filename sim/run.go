package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"allocsim/internal/plural"
	"allocsim/policies"
	"allocsim/traces"
)

// maxOOMs is how many OOMs a Result describes; all of them are counted.
const maxOOMs = 1000

// cancelEvery is how many events run between two looks at the context.
const cancelEvery = 1 << 14

// warmEvery is how many events' frees are announced to a policy whose tables
// have outgrown the processor's caches: enough for many reads to overlap, few
// enough for what they brought to stay.
const warmEvery = 32

// giveUpEvery is how many events run between two questions to Config.GiveUp:
// few enough to save most of a lost run, many enough to cost nothing.
const giveUpEvery = 1 << 8

// Run replays a trace under a configuration. It returns an error for a policy
// or device that fails for another reason than lack of memory, for a trace
// that frees what it must not, and when ctx ends.
//
// An allocation that the recording has but that fails here leaves no block:
// its free is skipped, as if the program went on without it. What follows the
// first such OOM is therefore a guess (spec verification.md section 4).
func Run(ctx context.Context, tr *traces.Trace, cfg Config, obs ...Observer) (*Result, error) {
	var r Runner
	return r.Run(ctx, tr, cfg, obs...)
}

// Runner runs traces one after the other and reuses its memory between runs.
// The zero Runner is ready. It is used by one goroutine.
type Runner struct {
	handles  []policies.Handle // by block id; 0 = not live
	done     policies.Policy   // of the last run: the next may have its memory
	prepared prepared
}

// Run is the function Run.
func (r *Runner) Run(ctx context.Context, tr *traces.Trace, cfg Config, obs ...Observer) (*Result, error) {
	done, err := r.prepare(ctx, tr, cfg)
	if err != nil {
		return nil, err
	}
	if done != cfg.Policy {
		// It has been told of the trace's order, and knows the rest as well.
		cfg.Policy, cfg.StartOrder = done, 0
	}
	run, err := r.Start(tr, cfg, obs...)
	if err != nil {
		return nil, err
	}
	from, err := run.begin(ctx)
	if err != nil {
		return nil, err
	}
	if err := run.Run(ctx, from, len(tr.Events)); err != nil {
		return nil, err
	}
	res := run.Finish()
	r.done = run.policy
	if cfg.Detail && !res.Stopped && cfg.Device == nil {
		at := run.peakAt
		if d := res.Driver; d.Mallocs+d.Maps <= 1 {
			// All memory was taken at once, before anything used it.
			at = max(PeakEvent(tr), 0)
		}
		if res.AtPeak, err = r.atPeak(ctx, tr, cfg, at); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// Session is one run in progress, for callers that look at the policy between
// events or run only a part of the trace. Run is the usual way. A Session is
// used by one goroutine, and until its Runner starts another.
type Session struct {
	tr      *traces.Trace
	cfg     Config
	device  policies.Device
	model   *Device // device, when it is the modelled one
	policy  policies.Policy
	warmer  policies.Warmer // policy, if it is one
	next    [warmEvery]policies.Handle
	stats   *policies.Stats
	handles []policies.Handle
	res     *Result
	relay   *relay // nil without observers
	peakAt  int    // event at which reserved bytes first reached their peak
	peak    int64
	spare   int // OOMs of the recording that had room here
}

// relay adds the place in the trace to a policy's events.
type relay struct {
	at  At
	obs []Observer
}

func (r *relay) Observe(e *policies.Event) {
	for _, o := range r.obs {
		o.Observe(r.at, e)
	}
}

// Start prepares a run: device, limit, policy. The errors are those of Run.
func (r *Runner) Start(tr *traces.Trace, cfg Config, obs ...Observer) (*Session, error) {
	if cfg.Policy == nil {
		return nil, fmt.Errorf("run %s: no policy", tr.Source)
	}
	machine, err := cfg.Resolve(cfg.Policy, tr.Meta.DeviceTotal)
	if err != nil {
		return nil, err
	}
	cfg.Machine = machine
	run := &Session{tr: tr, cfg: cfg, device: cfg.Device}
	if run.device == nil {
		run.model = NewDevice(DeviceConfig{
			Capacity: cfg.Capacity, Total: cfg.Total, Addresses: cfg.Addresses, Seed: cfg.Seed,
			SideStreams: len(tr.Streams) > 1, Cost: cfg.Cost,
		})
		run.device = run.model
		if cfg.Pin && tr.Recorded != nil {
			run.model.place = newPinned(tr.Recorded.Driver, run.model.place)
		}
	}
	run.policy, err = cfg.Policy.New(policies.Env{Device: run.device, Limit: cfg.Limit, Streams: len(tr.Streams), Reuse: r.done})
	r.done = nil
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", cfg.Policy, err)
	}
	run.warmer, _ = run.policy.(policies.Warmer)
	run.stats = run.policy.Stats()
	if len(obs) > 0 {
		run.relay = &relay{obs: obs}
		run.policy.Observe(run.relay)
	}
	r.handles = slices.Grow(r.handles[:0], tr.NumBlocks)[:tr.NumBlocks]
	clear(r.handles)
	run.handles = r.handles
	run.res = &Result{
		Policy: cfg.Policy, Machine: cfg.Machine, Completed: true,
		Notes: slices.Concat(tr.Notes, cfg.Policy.Notes),
	}
	return run, nil
}

// Run runs Events[from:to]. The errors are those of the function Run.
func (r *Session) Run(ctx context.Context, from, to int) error {
	for from < to && !r.res.Stopped {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := min(from+cancelEvery, to)
		if r.cfg.GiveUp != nil {
			// Asked at fixed events, whatever else cuts the run into pieces.
			if from%giveUpEvery == 0 && r.cfg.GiveUp(r.progress()) {
				r.res.Stopped = true
				return nil
			}
			end = min(end, from-from%giveUpEvery+giveUpEvery)
		}
		if r.warmer != nil && r.warmer.Cold() {
			end = min(end, from+warmEvery)
			r.warm(from, end)
		}
		if err := r.batch(from, end); err != nil {
			return err
		}
		from = end
	}
	return nil
}

func (r *Session) progress() Progress {
	p := Progress{ReservedPeak: r.stats.ReservedBytes[policies.All].Peak, NumAllocRetries: r.stats.NumAllocRetries, NumOOMs: r.stats.NumOOMs, Failed: !r.res.Completed}
	if r.model != nil {
		p.Driver = r.model.Driver()
	}
	return p
}

// warm tells the policy which blocks the frees of Events[from:to] name.
func (r *Session) warm(from, to int) {
	n := 0
	for k := from; k < to; k++ {
		if e := &r.tr.Events[k]; e.Kind == traces.Free {
			r.next[n] = r.handles[e.ID]
			n++
		}
	}
	r.warmer.Warm(r.next[:n])
}

func (r *Session) batch(from, to int) error {
	events := r.tr.Events
	policy, handles := r.policy, r.handles
	reserved := &r.stats.ReservedBytes[policies.All]
	maxReserved := r.cfg.MaxReserved
	if maxReserved <= 0 {
		maxReserved = math.MaxInt64
	}
	for k := from; k < to; k++ {
		e := &events[k]
		if r.relay != nil {
			r.relay.at = At{Event: k, TimeUS: e.TimeUS, ID: e.ID}
		}
		switch e.Kind {
		case traces.Alloc:
			b, err := policy.Malloc(policies.Request{Size: e.Size, Stream: e.Stream, Pool: e.Pool})
			if err != nil {
				if err := r.failed(k, e, err); err != nil {
					return err
				}
			} else {
				handles[e.ID] = b.Handle
			}
			if reserved.Peak > r.peak {
				r.peak, r.peakAt = reserved.Peak, k
				if r.peak > maxReserved {
					r.res.Stopped = true
				}
			}
			if r.res.Stopped {
				r.res.Events = k + 1
				return nil
			}
		case traces.Free:
			if h := handles[e.ID]; h != 0 {
				handles[e.ID] = 0
				if err := policy.Free(h, false); err != nil {
					return r.wrap(k, err)
				}
			}
		case traces.FreeRequested:
			if h := handles[e.ID]; h != 0 {
				if err := policy.Free(h, true); err != nil {
					return r.wrap(k, err)
				}
			}
		case traces.FreeCompleted:
			if h := handles[e.ID]; h != 0 {
				handles[e.ID] = 0
				if err := policy.FreeCompleted(h); err != nil {
					return r.wrap(k, err)
				}
			}
		case traces.EmptyCache, traces.ReleasePool:
			if err := r.release(e); err != nil {
				return r.wrap(k, err)
			}
		case traces.OOM:
			if err := r.attempt(k, e); err != nil {
				return err
			}
		default:
			return r.wrap(k, fmt.Errorf("unknown kind of event %d", e.Kind))
		}
	}
	r.res.Events = to
	return nil
}

// release returns cached memory, of the default pools or of a private one.
func (r *Session) release(e *traces.Event) error {
	if e.Pool == 0 {
		return r.policy.EmptyCache()
	}
	p, ok := r.policy.(policies.PoolReleaser)
	if !ok {
		return nil
	}
	if e.Kind == traces.ReleasePool {
		p.ReleasePool(e.Pool)
		return nil
	}
	return p.EmptyPool(e.Pool)
}

func (r *Session) wrap(k int, err error) error {
	return fmt.Errorf("%s: event %d (%s of block %d) under %s: %w",
		r.tr.Source, k, r.tr.Events[k].Kind, r.tr.Events[k].ID, r.cfg.Policy, err)
}

// failed notes an allocation that failed; another failure than lack of memory
// is an error.
func (r *Session) failed(k int, e *traces.Event, err error) error {
	if !errors.Is(err, policies.ErrOutOfMemory) {
		return r.wrap(k, err)
	}
	recorded := e.Kind == traces.OOM
	if !recorded {
		r.res.Completed = false
		if r.cfg.StopAtOOM {
			r.res.Stopped = true
		}
	}
	if r.cfg.Brief || len(r.res.OOMs) >= maxOOMs {
		return nil
	}
	free, _ := r.device.MemInfo()
	o := OOM{
		Event: k, TimeUS: e.TimeUS, Requested: e.Size,
		Reserved:   r.stats.ReservedBytes[policies.All].Current,
		Allocated:  r.policy.Stats().AllocatedBytes[policies.All].Current,
		DeviceFree: free, Recorded: recorded,
	}
	r.explain(&o, e, err)
	r.res.OOMs = append(r.res.OOMs, o)
	return nil
}

// attempt tries an allocation that failed in the recording. What the program
// would have done with the block is unknown, so it goes back at once.
func (r *Session) attempt(k int, e *traces.Event) error {
	b, err := r.policy.Malloc(policies.Request{Size: e.Size, Stream: e.Stream, Pool: e.Pool})
	if err != nil {
		return r.failed(k, e, err)
	}
	r.spare++
	if err := r.policy.Free(b.Handle, false); err != nil {
		return r.wrap(k, err)
	}
	return nil
}

// Stop ends the run after the present event: an Observer may call it.
func (r *Session) Stop() { r.res.Stopped = true }

// Policy is the allocator in its present state.
func (r *Session) Policy() policies.Policy { return r.policy }

// Finish returns what the run has come to.
func (r *Session) Finish() *Result {
	r.res.Stats = *r.policy.Stats()
	if r.model != nil {
		r.res.Driver = r.model.Driver()
		r.res.Alike[0], r.res.Alike[1] = r.model.Alike()
	}
	if r.spare > 0 {
		r.res.Notes = append(r.res.Notes, fmt.Sprintf(
			"%s that failed in the recording %s here; freed at once, because the recording does not say how the program would have gone on.",
			plural.Of(r.spare, "allocation"), plural.Noun(r.spare, "succeeds", "succeed")))
	}
	if n := r.res.Stats.NumOOMs; n > maxOOMs && len(r.res.OOMs) == maxOOMs {
		r.res.Notes = append(r.res.Notes, fmt.Sprintf("%d allocations failed; the first %d are described.", n, maxOOMs))
	}
	return r.res
}

// atPeak runs the trace again up to the reserved peak and looks at the free
// memory there.
func (r *Runner) atPeak(ctx context.Context, tr *traces.Trace, cfg Config, peakAt int) (*Fragmentation, error) {
	run, err := r.Start(tr, cfg)
	if err != nil {
		return nil, err
	}
	from, err := run.begin(ctx)
	if err != nil {
		return nil, err
	}
	if err := run.Run(ctx, from, max(from, min(peakAt+1, len(tr.Events)))); err != nil {
		return nil, err
	}
	f := Measure(run.policy)
	f.Event = peakAt
	r.done = run.policy
	return &f, nil
}

// Measure describes a policy's free memory at this moment.
func Measure(p policies.Policy) Fragmentation {
	st := p.Stats()
	f := Fragmentation{
		Reserved:  st.ReservedBytes[policies.All].Current,
		Allocated: st.AllocatedBytes[policies.All].Current,
	}
	f.ReservedUnallocated = f.Reserved - f.Allocated
	var all int64
	for _, s := range p.Segments(nil) {
		var freeHere, returnable int64
		for _, b := range s.Blocks {
			if b.State == policies.Inactive {
				freeHere += b.Size
				returnable += b.Returnable
				f.LargestFree = max(f.LargestFree, b.Size)
			}
		}
		all += freeHere
		if freeHere < s.Size {
			f.Stranded += freeHere - returnable
		}
	}
	if all > 0 {
		f.External = 1 - float64(f.LargestFree)/float64(all)
	}
	return f
}
