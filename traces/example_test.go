package traces_test

import (
	"fmt"

	"allocsim/traces"
)

// A trace is made request by request. Blocks, streams and pools are numbers
// from then on, and every free is paired with its allocation.
func ExampleBuilder() {
	b := traces.NewBuilder(4)
	stream := b.Stream(0) // the default stream
	weights := b.Alloc(0, 64<<20, stream, 0)
	batch := b.Alloc(10, 16<<20, stream, 0)
	b.Free(25, batch)
	trace, _, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range trace.Events {
		fmt.Println(e.TimeUS, "µs", e.Kind, "block", e.ID, e.Size)
	}
	fmt.Println(trace.NumBlocks, "blocks; the weights are block", weights)
	// Output:
	// 0 µs alloc block 0 67108864
	// 10 µs alloc block 1 16777216
	// 25 µs free block 1 0
	// 2 blocks; the weights are block 0
}

// Mistakes are kept until Build, so that a reader need not check each call.
func ExampleBuilder_error() {
	b := traces.NewBuilder(2)
	id := b.Alloc(0, 1024, b.Stream(0), 0)
	b.Free(1, id)
	b.Free(2, id)
	_, _, err := b.Build()
	fmt.Println(err)
	// Output:
	// event 2: free of block 0, which is not live
}
