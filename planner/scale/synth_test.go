package scale

import (
	"context"
	"errors"
	"math"
	"testing"

	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces/synth"
)

// TestOtherPrograms predicts synthetic programs at odd values: the allocated
// peak within 0.5 %, the reserved peak inside the bar and within 5 %.
func TestOtherPrograms(t *testing.T) {
	ctx := context.Background()
	cfg := sim.Config{Policy: torchSpec(t, "")}
	for _, c := range []struct {
		model, vary string
		values      [3]int64 // two recorded, one predicted
	}{
		{"gpt2", "batch", [3]int64{5, 11, 37}},
		{"bert-base", "seq", [3]int64{40, 88, 296}},
		{"vit-b-16", "batch", [3]int64{5, 11, 37}},
		{"resnet50", "batch", [3]int64{5, 11, 37}},
		{"mobilenet-v3-large", "batch", [3]int64{3, 8, 29}},
	} {
		m, err := synth.Load(c.model)
		if err != nil {
			t.Fatal(err)
		}
		var in []Input
		for _, v := range c.values {
			o := synth.Defaults(m)
			if o.Batch = v; c.vary == "seq" {
				o.Batch, o.Seq = 4, v
			}
			tr, err := synth.Generate(ctx, m, o)
			if err != nil {
				t.Fatal(err)
			}
			in = append(in, Input{v, tr})
		}
		fitted, err := Fit(ctx, in[:2], Options{Vary: c.vary, SMs: 132, ThreadsPerSM: 2048})
		if err != nil {
			t.Errorf("%s: %v", c.model, err)
			continue
		}
		p, err := fitted.Predict(ctx, in[2].Value, cfg)
		if err != nil {
			t.Errorf("%s: %v", c.model, err)
			continue
		}
		truth, err := sim.Run(ctx, in[2].Trace, cfg)
		if err != nil {
			t.Fatal(err)
		}
		a, r := truth.Stats.AllocatedBytes[policies.All].Peak, truth.Stats.ReservedBytes[policies.All].Peak
		if e := float64(p.AllocatedPeak)/float64(a) - 1; math.Abs(e) > 0.005 {
			t.Errorf("%s %v: allocated %d, want %d (%+.2f %%)", c.model, c.values, p.AllocatedPeak, a, 100*e)
		}
		if e := float64(p.ReservedPeak)/float64(r) - 1; math.Abs(e) > 0.05 || r < p.ReservedPeakLow || r > p.ReservedPeakHigh {
			t.Errorf("%s %v: reserved %d (%d to %d), want %d (%+.2f %%)", c.model, c.values, p.ReservedPeak, p.ReservedPeakLow, p.ReservedPeakHigh, r, 100*e)
		}
	}

	// Lengths drawn anew in each run leave nothing to fit.
	m, err := synth.Load("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	var in []Input
	for i, lengths := range []string{"uniform:64-128", "uniform:128-256"} {
		o := synth.Defaults(m)
		o.Batch, o.Seq, o.Lengths, o.Seed = 4, 128<<i, lengths, int64(i)
		tr, err := synth.Generate(ctx, m, o)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, Input{o.Seq, tr})
	}
	fitted, err := Fit(ctx, in, Options{Vary: "seq"})
	if err == nil {
		_, err = fitted.Predict(ctx, 512, cfg)
	}
	var refused *Refusal
	if !errors.As(err, &refused) {
		t.Errorf("random lengths: %v", err)
	}
}
