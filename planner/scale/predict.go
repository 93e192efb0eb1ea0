package scale

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"allocsim/policies"
	"allocsim/sim"
)

// The runs of a prediction and the least widths of its bars, from
// spec/scaling.md section 3.5.
const (
	// perturbedRuns is how often the uncertain sizes are drawn.
	perturbedRuns = 12
	// orderRuns is how often the driver's addresses are drawn
	// (spec/verification.md section 7), with the sizes varied too.
	orderRuns = 12
	// allocatedBar and reservedBar widen the range of the runs.
	allocatedBar, reservedBar = 0.005, 0.02
	// tileBar widens both where the value is less round than the recordings,
	// belowAllocated and belowReserved where it is below them all.
	tileBar                       = 0.05
	belowAllocated, belowReserved = 0.01, 0.03
)

// LawBytes is how many of the bytes alive at a peak follow a law.
type LawBytes struct {
	Law   string `json:"law"`
	Bytes int64  `json:"bytes"`
}

// Prediction is the memory of the program at a value nobody ran. All sizes are
// bytes. The bars are the range seen over runs with varied sizes and driver
// addresses, widened by what measured predictions were off; they are no
// confidence level.
type Prediction struct {
	Value     int64 `json:"value"`
	Reference int64 `json:"reference"` // the recording whose order of requests is used
	// ReservedPeak is that of the sizes as the laws give them or, where
	// libraries chose other algorithms between the recordings, the median over
	// the runs with varied sizes: the laws alone are too low then.
	ReservedPeak     int64 `json:"reserved_peak"`
	ReservedPeakLow  int64 `json:"reserved_peak_low"`
	ReservedPeakHigh int64 `json:"reserved_peak_high"`
	// AllocatedPeak is that of the sizes as the laws give them.
	AllocatedPeak     int64 `json:"allocated_peak"`
	AllocatedPeakLow  int64 `json:"allocated_peak_low"`
	AllocatedPeakHigh int64 `json:"allocated_peak_high"`
	// RequestedPeak is the most bytes the program itself asked for at once.
	RequestedPeak int64 `json:"requested_peak"`
	// NumOOMs and Completed are those of the run with the laws' sizes.
	NumOOMs         int64 `json:"num_ooms"`
	NumAllocRetries int64 `json:"num_alloc_retries"`
	Completed       bool  `json:"completed"`
	// Runs is the number of simulations, RunsCompleted how many had no OOM.
	Runs          int `json:"runs"`
	RunsCompleted int `json:"runs_completed"`
	// PeakByLaw splits the requested bytes alive at the peak, PeakMoved says
	// that the peak is at another operation than in the reference, and
	// LargestDoubtful is the largest allocation in it without an exact law.
	PeakByLaw       []LawBytes `json:"peak_by_law"`
	PeakMoved       bool       `json:"peak_moved"`
	LargestDoubtful int64      `json:"largest_doubtful"`
	// UncertainAllocations is the number of allocations that were varied.
	UncertainAllocations int   `json:"uncertain_allocations"`
	Notes                Notes `json:"notes"`
}

// Predict simulates the program at a value nobody ran under any allocator and
// device. A *Refusal says why the recordings do not determine it.
func (m *Model) Predict(ctx context.Context, value int64, cfg sim.Config) (Prediction, error) {
	s, err := m.scenario(value)
	if err != nil {
		return Prediction{}, err
	}
	return m.predict(ctx, s, cfg)
}

func (m *Model) predict(ctx context.Context, s *scenario, cfg sim.Config) (Prediction, error) {
	runs := s.runs()
	results, err := m.simulate(ctx, s, runs, cfg)
	if err != nil {
		return Prediction{}, err
	}
	p := Prediction{
		Value: s.value, Reference: m.programs[s.ref].value,
		RequestedPeak: s.peak.bytes, PeakMoved: s.peak.moved, LargestDoubtful: s.peak.doubtful,
		UncertainAllocations: s.uncertain(), Runs: len(runs), Notes: append(Notes{}, s.notes...),
	}
	for l, n := range s.peak.byLaw {
		if n > 0 {
			p.PeakByLaw = append(p.PeakByLaw, LawBytes{Law(l).String(), n})
		}
	}
	var allocated, reserved, median []int64
	for i, r := range results {
		if r.Stats.NumOOMs == 0 {
			p.RunsCompleted++
		}
		allocated = append(allocated, r.Stats.AllocatedBytes[policies.All].Peak)
		reserved = append(reserved, r.Stats.ReservedBytes[policies.All].Peak)
		if !runs[i].random && (i == 0 || s.switches) {
			median = append(median, reserved[i])
		}
	}
	base := results[0]
	p.NumOOMs, p.Completed = base.Stats.NumOOMs, base.Completed
	p.NumAllocRetries = base.Stats.NumAllocRetries
	p.AllocatedPeak = allocated[0]
	slices.Sort(median)
	p.ReservedPeak = median[(len(median)-1)/2]
	extra := m.extraBar(s.value)
	p.AllocatedPeakLow, p.AllocatedPeakHigh = bar(allocated, allocatedBar+extra.allocated)
	p.ReservedPeakLow, p.ReservedPeakHigh = bar(reserved, reservedBar+extra.reserved)
	if n := base.Notes; len(n) > 0 {
		for _, note := range n {
			if !slices.Contains(s.trace.Notes, note) {
				p.Notes = append(p.Notes, note)
			}
		}
	}
	return p, nil
}

// run says how one simulation differs from the laws' sizes and the driver
// model.
type run struct {
	seed   uint64 // of the sizes; 0 = as the laws give them
	random bool   // random addresses, by seed
}

func (s *scenario) uncertain() int {
	n := 0
	for i := range s.fits {
		if !s.fits[i].certain() {
			n++
		}
	}
	return n
}

// runs lists the simulations of a prediction; the first has the laws' sizes
// and the driver model's addresses.
func (s *scenario) runs() []run {
	rs := []run{{}}
	if s.uncertain() > 0 {
		for i := range perturbedRuns {
			rs = append(rs, run{seed: uint64(i + 1)})
		}
	}
	for i := range orderRuns {
		rs = append(rs, run{seed: uint64(i + 1), random: true})
	}
	return rs
}

// simulate runs the scenario; results are in the order of runs.
func (m *Model) simulate(ctx context.Context, s *scenario, runs []run, cfg sim.Config) ([]*sim.Result, error) {
	results := make([]*sim.Result, len(runs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(m.opt.workers())
	for i, r := range runs {
		g.Go(func() error {
			t, c := s.trace, cfg
			if r.seed != 0 && s.uncertain() > 0 {
				t = s.perturbed(r.seed)
			}
			if r.random {
				c.Addresses, c.Seed = sim.AddressesRandom, r.seed
			}
			res, err := sim.Run(ctx, t, c)
			if err != nil {
				return fmt.Errorf("simulate %d: %w", s.value, err)
			}
			results[i] = res
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return results, nil
}

// widths are shares by which the bars are widened.
type widths struct{ allocated, reserved float64 }

// extraBar is for values outside of what the recordings can show.
func (m *Model) extraBar(value int64) (w widths) {
	if value < m.programs[0].value {
		w.allocated += belowAllocated
		w.reserved += belowReserved
	}
	if m.indivisible(value) {
		w.allocated += tileBar
		w.reserved += tileBar
	}
	return w
}

// bar is the range of the runs, widened by a share.
func bar(runs []int64, share float64) (low, high int64) {
	return int64(float64(slices.Min(runs)) * (1 - share)), int64(float64(slices.Max(runs)) * (1 + share))
}
