package recovery_test

import (
	"context"
	"fmt"

	"allocsim/sim/recovery"
	"allocsim/traces/formats"
)

// Check holds the simulator against the recording.
func ExampleCheck() {
	ctx := context.Background()
	file, err := formats.Open(ctx, "../../testdata/recordings/fuzz0003.pickle.zst", formats.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	trace, err := file.Device(-1)
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := recovery.Check(ctx, trace, recovery.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("exact:", res.Exact)
	fmt.Println(res.AddressesMatched, "of", res.Allocs, "addresses")
	fmt.Println(res.SegmentEventsMatched, "of", res.SegmentEvents, "segment events")
	fmt.Println(res.OOMsMatched, "of", res.OOMs, "OOMs")
	fmt.Println(res.StatsCompared-len(res.StatsMismatched), "of", res.StatsCompared, "statistics")
	// Output:
	// exact: true
	// 808 of 808 addresses
	// 540 of 540 segment events
	// 25 of 25 OOMs
	// 122 of 122 statistics
}
