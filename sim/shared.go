package sim

import (
	"context"
	"fmt"

	"allocsim/traces"
)

// SharedJob is one process on a shared card.
type SharedJob struct {
	Trace *traces.Trace
	// Config gives policy and limit; its device settings are not used.
	Config Config
	// DelayUS is when the trace starts on the common clock, in µs.
	DelayUS int64
}

// SharedResult is the outcome of several processes on one card.
type SharedResult struct {
	Jobs []*Result
	// UsedPeak is the most bytes that all processes held at once.
	UsedPeak int64
}

// RunShared runs several traces on one device of capacity bytes (0 =
// unlimited), each with its own allocator and address space, in the order of
// their clocks; ties go to the earlier job.
func RunShared(ctx context.Context, jobs []SharedJob, capacity int64) (*SharedResult, error) {
	shared := NewDevice(DeviceConfig{Capacity: capacity})
	runs := make([]*Session, len(jobs))
	runners := make([]Runner, len(jobs))
	for i, j := range jobs {
		cfg := j.Config
		total := cfg.Total
		if total == 0 {
			total = capacity
		}
		d := NewDevice(DeviceConfig{Total: total, Addresses: cfg.Addresses, Seed: cfg.Seed, SideStreams: len(j.Trace.Streams) > 1, Cost: cfg.Cost})
		d.mem = shared.mem
		cfg.Device, cfg.Capacity = d, capacity
		run, err := runners[i].Start(j.Trace, cfg)
		if err != nil {
			return nil, fmt.Errorf("job %d: %w", i+1, err)
		}
		run.model = d
		runs[i] = run
	}
	at := make([]int, len(jobs))
	for n := 0; ; n++ {
		if n%cancelEvery == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		next, nextUS := -1, int64(0)
		for i, j := range jobs {
			if at[i] == len(j.Trace.Events) {
				continue
			}
			if us := j.Trace.Events[at[i]].TimeUS + j.DelayUS; next < 0 || us < nextUS {
				next, nextUS = i, us
			}
		}
		if next < 0 {
			break
		}
		if err := runs[next].batch(at[next], at[next]+1); err != nil {
			return nil, err
		}
		at[next]++
	}
	out := &SharedResult{UsedPeak: shared.mem.peak}
	for _, r := range runs {
		out.Jobs = append(out.Jobs, r.Finish())
	}
	return out, nil
}

// PeakTime is when most bytes of a trace are live, in µs from its start.
func PeakTime(tr *traces.Trace) int64 {
	if k := PeakEvent(tr); k >= 0 {
		return tr.Events[k].TimeUS
	}
	return 0
}

// PeakEvent is the index of the event after which most requested bytes of a
// trace are live, the first of several; -1 if there is none.
func PeakEvent(tr *traces.Trace) int {
	live := tr.Live()
	var most int64
	when := -1
	for i := range tr.Events {
		if live.See(&tr.Events[i]); live.Active > most {
			most, when = live.Active, i
		}
	}
	return when
}
