package planner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"allocsim/planner"
	"allocsim/policies"
	"allocsim/sim"
)

// TestRealRuns replays what really happened on an H200: 29 runs of six
// programs under a configuration and a memory limit other than those of the
// recording that they are predicted from. Which runs end in an error, and of
// those that do not every figure, must be as it was; of a program that the
// error ended, every figure up to there.
func TestRealRuns(t *testing.T) {
	data, err := os.ReadFile("testdata/real_runs.json")
	if err != nil {
		t.Fatal(err)
	}
	var runs []struct {
		Recording, Conf string
		Fraction        *float64 `json:"memory_fraction"`
		Real            struct {
			Completed     bool
			ReservedPeak  int64 `json:"reserved_peak"`
			AllocatedPeak int64 `json:"allocated_peak"`
			Retries, OOMs int64
			// Died: the first error ended the program. Else it caught them and
			// went on in its own way, which is not in the recording.
			Died bool
		}
	}
	if err := json.Unmarshal(data, &runs); err != nil {
		t.Fatal(err)
	}
	if len(runs) != 29 {
		t.Fatalf("%d runs", len(runs))
	}
	cases := make(map[string]planner.Case)
	for _, r := range runs {
		recorded, ok := cases[r.Recording]
		if !ok {
			recorded = job(t, r.Recording)
			cases[r.Recording] = recorded
		}
		choice := planner.Choice{Conf: &r.Conf}
		name := r.Recording + " under " + r.Conf
		if r.Fraction != nil {
			choice.Fraction = *r.Fraction
			name += fmt.Sprintf(" with %.4f of the memory", *r.Fraction)
		}
		c, err := planner.NewCase(context.Background(), recorded.Trace, choice)
		if err != nil {
			t.Fatal(err)
		}
		cfg := c.Config()
		cfg.StopAtOOM = r.Real.Died
		res, err := sim.Run(context.Background(), c.Trace, cfg)
		if err != nil {
			t.Fatal(err)
		}
		s, real := &res.Stats, &r.Real
		reserved, allocated := s.ReservedBytes[policies.All].Peak, s.AllocatedBytes[policies.All].Peak
		if res.Completed != real.Completed || (s.NumOOMs > 0) != (real.OOMs > 0) || reserved != real.ReservedPeak {
			t.Errorf("%s: completes %v, %d OOMs, reserves %d; it was %v, %d and %d", name, res.Completed, s.NumOOMs, reserved, real.Completed, real.OOMs, real.ReservedPeak)
		}
		if !real.Completed && !real.Died {
			continue
		}
		// A few small tensors differ from one run of a program to the next.
		if s.NumAllocRetries != real.Retries || s.NumOOMs != real.OOMs || max(allocated-real.AllocatedPeak, real.AllocatedPeak-allocated) > 4096 {
			t.Errorf("%s: %d retries, %d OOMs, allocates %d; it was %d, %d and %d", name, s.NumAllocRetries, s.NumOOMs, allocated, real.Retries, real.OOMs, real.AllocatedPeak)
		}
	}
}
