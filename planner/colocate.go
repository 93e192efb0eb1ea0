package planner

import (
	"context"
	"fmt"

	"allocsim/internal/bytesize"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/sim"
)

// ColocateOptions describe a card shared by several jobs.
type ColocateOptions struct {
	// Capacity is the card's bytes for all processes; 0 = unlimited.
	Capacity int64
	// Overhead is what each process takes besides its allocator, in bytes.
	Overhead int64
	// WorstCase shifts the jobs so that their live peaks coincide.
	WorstCase bool
}

// ColocatedJob is one job on the shared card.
type ColocatedJob struct {
	Source       string `json:"source"`
	Completed    bool   `json:"completed"`
	ReservedPeak int64  `json:"reserved_peak"`
	// NumAllocRetries counts flushes; OOMs failed allocations.
	NumAllocRetries int64 `json:"num_alloc_retries"`
	NumOOMs         int64 `json:"num_ooms"`
	DelayUS         int64 `json:"delay_us"`
}

// Colocation is the answer of Colocate.
type Colocation struct {
	Fits bool `json:"fits"`
	// UsedPeak is the most bytes that all processes took at once, overhead
	// included; SumOfPeaks what they would take if each had its peak at once,
	// with room for that.
	UsedPeak   int64           `json:"used_peak"`
	SumOfPeaks int64           `json:"sum_of_peaks"`
	Capacity   bytesize.OrNone `json:"capacity"`
	Jobs       []ColocatedJob  `json:"jobs"`
	// Verdict is gpus.Fits, gpus.No, or gpus.Undecidable where a recording does
	// not hold what would show it.
	Verdict  gpus.Verdict `json:"verdict"`
	Evidence Evidence     `json:"evidence"`
}

// Colocate runs several jobs on one card at the same time, each with its own
// allocator and context. As recorded they start together; with WorstCase their
// live peaks coincide.
func Colocate(ctx context.Context, jobs []Case, o ColocateOptions) (*Colocation, error) {
	if len(jobs) < 2 {
		return nil, fmt.Errorf("colocate: give two or more traces")
	}
	overhead := o.Overhead * int64(len(jobs))
	room := int64(0)
	if o.Capacity > 0 {
		if room = o.Capacity - overhead; room <= 0 {
			return nil, fmt.Errorf("colocate: the contexts of %d processes alone take %d of %d bytes", len(jobs), overhead, o.Capacity)
		}
	}
	var latest int64
	if o.WorstCase {
		for _, j := range jobs {
			latest = max(latest, sim.PeakTime(j.Trace))
		}
	}
	var shared []sim.SharedJob
	for _, j := range jobs {
		s := sim.SharedJob{Trace: j.Trace, Config: j.Config()}
		s.Config.Machine = sim.Machine{Total: o.Capacity}
		if o.WorstCase {
			s.DelayUS = latest - sim.PeakTime(j.Trace)
		}
		shared = append(shared, s)
	}
	res, err := sim.RunShared(ctx, shared, room)
	if err != nil {
		return nil, err
	}
	out := &Colocation{Fits: true, UsedPeak: res.UsedPeak + overhead, SumOfPeaks: overhead, Capacity: bytesize.OrNone(o.Capacity)}
	for i, r := range res.Jobs {
		peak := r.Stats.ReservedBytes[policies.All].Peak
		out.Fits = out.Fits && r.Completed
		// What each would take alone, with all the room it wants: a run that was
		// cut short by the others says nothing about that.
		alone, err := sim.Run(ctx, jobs[i].Trace, jobs[i].On(jobs[i].Policy, sim.Machine{Total: o.Capacity}))
		if err != nil {
			return nil, err
		}
		out.SumOfPeaks += alone.Stats.ReservedBytes[policies.All].Peak
		out.Jobs = append(out.Jobs, ColocatedJob{
			Source: jobs[i].Trace.Source, Completed: r.Completed, ReservedPeak: peak,
			NumAllocRetries: r.Stats.NumAllocRetries, NumOOMs: r.Stats.NumOOMs, DelayUS: shared[i].DelayUS,
		})
	}
	out.Evidence = evidenceOf(jobs)
	for i := range jobs {
		if endsInOOM(jobs[i].Trace) {
			out.Evidence.Missing = append(out.Evidence.Missing, fmt.Sprintf("%s ends with an OOM: what the program would have needed after it is not in it.", jobs[i].Trace.Source))
		}
	}
	switch {
	case !out.Fits:
		out.Verdict = gpus.No
	case !out.Evidence.Complete():
		out.Verdict, out.Fits = gpus.Undecidable, false
	default:
		out.Verdict = gpus.Fits
	}
	return out, nil
}
