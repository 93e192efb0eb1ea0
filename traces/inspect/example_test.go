package inspect_test

import (
	"context"
	"fmt"

	"allocsim/traces/formats"
	"allocsim/traces/inspect"
)

// A loop that keeps every loss: which line of the program makes memory grow?
func ExampleFindLeaks() {
	rec, err := formats.Open(context.Background(), "../../testdata/recordings/leak_outputs__leakpy.pickle.zst", formats.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	trace, err := rec.Device(-1)
	if err != nil {
		fmt.Println(err)
		return
	}
	it := inspect.FindIterations(trace)
	fmt.Println(it.Count(), "iterations")
	for _, l := range inspect.FindLeaks(trace, 0).Leaks {
		fmt.Printf("%d MiB an iteration in %d blocks\n", l.BytesPerIteration>>20, l.Blocks)
	}
	// Output:
	// 11 iterations
	// 338 MiB an iteration in 680 blocks
}
