package torch_test

import (
	"testing"

	"allocsim/policies/policytest"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
)

func BenchmarkPolicy(b *testing.B) {
	for _, options := range []string{"", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"} {
		b.Run(options, func(b *testing.B) {
			spec, err := torch.Parse(options, conf.Latest)
			if err != nil {
				b.Fatal(err)
			}
			policytest.Benchmark(b, spec)
		})
	}
}
