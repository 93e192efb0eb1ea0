package sim_test

import (
	"context"
	"fmt"

	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats"
)

// open reads one of the recordings in the repository.
func open(name string) *traces.Trace {
	rec, err := formats.Open(context.Background(), "../testdata/recordings/"+name, formats.Options{})
	if err != nil {
		panic(err)
	}
	trace, err := rec.Device(-1)
	if err != nil {
		panic(err)
	}
	return trace
}

// What would this recording have needed with expandable segments, on a card
// that has 8 GiB for the allocator?
func ExampleRun() {
	spec, err := torch.Parse("expandable_segments:True", conf.Latest)
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := sim.Run(context.Background(), open("gnn__default.pickle.zst"), sim.Config{Policy: spec, Machine: sim.Machine{Capacity: 8 << 30}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("completed:", res.Completed)
	fmt.Printf("reserved:  %.2f GiB at most\n", float64(res.Stats.ReservedBytes[policies.All].Peak)/(1<<30))
	fmt.Printf("allocated: %.2f GiB at most\n", float64(res.Stats.AllocatedBytes[policies.All].Peak)/(1<<30))
	// Output:
	// completed: true
	// reserved:  7.97 GiB at most
	// allocated: 5.45 GiB at most
}

// releases counts what is given back to the driver.
type releases struct {
	count, bytes int64
}

func (r *releases) Observe(_ sim.At, e *policies.Event) {
	if e.Action == policies.ActionSegmentFree {
		r.count++
		r.bytes += e.Size
	}
}

// An observer sees every decision of the allocator. What a recording does not
// say, such as a memory limit, is found out by package recovery first.
func ExampleObserver() {
	ctx := context.Background()
	rec, err := recovery.Recover(ctx, open("oom_retry__f12.pickle.zst"), recovery.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var r releases
	res, err := sim.Run(ctx, rec.Trace, rec.Config(), &r)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Stats.NumAllocRetries, "flushes and", len(res.OOMs), "OOMs below", res.Limit, "bytes")
	fmt.Println(r.count, "segments,", r.bytes>>30, "GiB given back")
	// Output:
	// 29 flushes and 26 OOMs below 18013185638 bytes
	// 116 segments, 24 GiB given back
}
