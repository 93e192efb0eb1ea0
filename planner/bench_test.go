package planner_test

import (
	"context"
	"testing"

	"allocsim/planner"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces/synth"
)

// BenchmarkTune searches up to 1,000 configurations on a trace of 120,000
// events: GPT-2 training with sequences of changing length, on a device without
// limit.
func BenchmarkTune(b *testing.B) { benchmarkTune(b, 0) }

// BenchmarkTuneTight does so 2 % above what lives at once, where the defaults
// run out of memory.
func BenchmarkTuneTight(b *testing.B) { benchmarkTune(b, 8_611_409_428) }

func benchmarkTune(b *testing.B, capacity int64) {
	m, err := synth.Load("gpt2")
	if err != nil {
		b.Fatal(err)
	}
	tr, err := synth.Generate(context.Background(), m, synth.Options{Batch: 8, Seq: 512, Lengths: "uniform:64-512", Padding: "longest", Steps: 56})
	if err != nil {
		b.Fatal(err)
	}
	tr.Events = tr.Events[:min(len(tr.Events), 120_000)]
	spec, err := torch.Parse("", conf.Latest)
	if err != nil {
		b.Fatal(err)
	}
	job := planner.Case{Trace: tr, Policy: spec, Machine: sim.Machine{Capacity: capacity}}
	b.ReportAllocs()
	b.ResetTimer()
	searched := 0
	for range b.N {
		res, err := planner.Tune(context.Background(), []planner.Case{job}, planner.TuneOptions{Budget: 1000})
		if err != nil {
			b.Fatal(err)
		}
		searched = res.Searched
	}
	b.ReportMetric(float64(len(tr.Events)), "events")
	b.ReportMetric(float64(searched), "configs")
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/search")
}
