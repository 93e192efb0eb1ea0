package scale_test

import (
	"context"
	"fmt"

	"allocsim/planner/scale"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces/formats"
)

// Two recordings of BERT-large at sequence lengths 128 and 256 tell what
// length 512 needs. A recording of that run has 9832 MiB allocated and 10122
// MiB reserved at its peaks.
func ExampleFit() {
	ctx := context.Background()
	var inputs []scale.Input
	for _, seq := range []int64{128, 256} {
		rec, err := formats.Open(ctx, fmt.Sprintf("../../testdata/recordings/scale_bert__bs8seq%d.pickle.zst", seq), formats.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}
		trace, err := rec.Device(-1)
		if err != nil {
			fmt.Println(err)
			return
		}
		inputs = append(inputs, scale.Input{Value: seq, Trace: trace})
	}
	model, err := scale.Fit(ctx, inputs, scale.Options{Vary: "seq"})
	if err != nil {
		fmt.Println(err)
		return
	}
	spec, err := torch.Parse("", conf.Latest)
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := model.Predict(ctx, 512, sim.Config{Policy: spec})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.1f %% of the allocations are aligned\n", 100*model.Aligned())
	fmt.Printf("allocated %d MiB, reserved %d to %d MiB\n", p.AllocatedPeak>>20, p.ReservedPeakLow>>20, p.ReservedPeakHigh>>20)
	// Output:
	// 99.9 % of the allocations are aligned
	// allocated 9832 MiB, reserved 9919 to 10324 MiB
}
