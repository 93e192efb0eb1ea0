package firstfit_test

import (
	"context"
	"fmt"
	"testing"

	"allocsim/examples/firstfit"
	"allocsim/policies"
	"allocsim/policies/policytest"
	"allocsim/sim"
	"allocsim/traces"
)

// TestConformance is all that a policy needs to be held against the promises
// of policies.Policy.
func TestConformance(t *testing.T) {
	for _, options := range []string{"", "segment=1"} {
		spec, err := firstfit.Registration.Parse(options)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(options, func(t *testing.T) { policytest.Run(t, spec) })
	}
}

// TestTranscripts pins the placement rule in files that can be read without
// reading Go.
func TestTranscripts(t *testing.T) {
	policytest.Transcripts(t, "testdata", firstfit.Registration.Parse)
}

func BenchmarkSteady(b *testing.B) {
	spec, err := firstfit.Registration.Parse("")
	if err != nil {
		b.Fatal(err)
	}
	policytest.Benchmark(b, spec)
}

// A program registers the policy once; from then on it is found by its name
// like the built-in ones, and runs any trace.
func Example() {
	policies.Register(firstfit.Registration)
	spec, err := policies.Parse("firstfit:segment=32")
	if err != nil {
		fmt.Println(err)
		return
	}

	b := traces.NewBuilder(8)
	stream := b.Stream(0)
	weights := b.Alloc(0, 20<<20, stream, 0)
	b.Alloc(1, 10<<20, stream, 0)
	b.Free(2, weights)
	b.Alloc(3, 24<<20, stream, 0)
	b.Alloc(4, 5<<20, stream, 0)
	trace, _, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}

	result, err := sim.Run(context.Background(), trace, sim.Config{Policy: spec, Machine: sim.Machine{Capacity: 1 << 30}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s: peak reserved %d MiB, utilization %.0f%%\n", spec,
		result.Stats.ReservedBytes[policies.All].Peak>>20, 100*result.Utilization())
	// Output:
	// firstfit:segment=32: peak reserved 64 MiB, utilization 61%
}
