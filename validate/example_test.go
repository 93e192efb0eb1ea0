package validate_test

import (
	"context"
	"fmt"

	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces/formats"
	"allocsim/validate"
)

// The engines "torch" and "cuda" need a GPU. "sim" repeats the run on the
// modelled device, which confirms nothing real, and the report says so.
func ExampleRun() {
	ctx := context.Background()
	rec, err := formats.Open(ctx, "../testdata/recordings/fuzz0015.pickle.zst", formats.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	trace, err := rec.Device(-1)
	if err != nil {
		fmt.Println(err)
		return
	}
	spec, err := torch.Parse("", conf.Latest)
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := validate.Run(ctx, trace, validate.Options{Engine: validate.EngineSim, Config: sim.Config{Policy: spec}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("pass:", report.Pass, "confirmed:", report.Confirmed)
	for _, c := range report.Checks() {
		fmt.Println(c.Name, c.Predicted, c.Measured)
	}
	// Output:
	// pass: true confirmed: false
	// reserved_peak 1017118720 1017118720
	// allocated_peak 499042304 499042304
	// segments 38 38
	// fragmentation 0.509357 0.509357
	// ooms 0 0
}
