package torch_test

import (
	"testing"

	"allocsim/policies/policytest"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
)

func TestConformance(t *testing.T) {
	for _, options := range []string{
		"",
		"expandable_segments:True",
		"max_split_size_mb:32",
		"max_split_size_mb:32,expandable_segments:True",
		"roundup_power2_divisions:4",
		"garbage_collection_threshold:0.5",
		"garbage_collection_threshold:0.5,expandable_segments:True,large_segment_size_mb:40",
		"large_segment_size_mb:64,max_split_size_mb:64,max_non_split_rounding_mb:100",
	} {
		t.Run(options, func(t *testing.T) {
			spec, err := torch.Parse(options, conf.Latest)
			if err != nil {
				t.Fatal(err)
			}
			policytest.Run(t, spec, policytest.Options{
				Align: 512,
				// The limit is checked with the segment size, pages may be larger;
				// 1 EiB is refused before any statistic (spec A3.3, A1).
				LimitSlack: 40 << 20,
				Uncounted:  1 << 60,
			})
		})
	}
}
