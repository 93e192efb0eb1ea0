package direct_test

import (
	"testing"

	"allocsim/policies"
	"allocsim/policies/direct"
	"allocsim/policies/policytest"
)

func spec(tb testing.TB, options string) *policies.Spec {
	s, err := direct.Registration.Parse(options)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	for _, options := range []string{"", "round=1", "round=2MiB"} {
		t.Run(options, func(t *testing.T) { policytest.Run(t, spec(t, options)) })
	}
}

func BenchmarkSteady(b *testing.B) { policytest.Benchmark(b, spec(b, "")) }
