package formats_test

import (
	"context"
	"fmt"
	"os"

	"allocsim/traces"
	"allocsim/traces/formats"
)

// Open recognises a file by its content, unpacks it, and finds the sidecar of a
// PyTorch snapshot beside it.
func ExampleOpen() {
	rec, err := formats.Open(context.Background(), "../../testdata/recordings/gnn__default.pickle.zst", formats.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	trace, err := rec.Device(-1) // the only device, or the busiest
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(trace.Format, trace.Meta.Torch, trace.Meta.DeviceName)
	fmt.Println(trace.CountByKind()["alloc"], "allocations, sidecar:", trace.Meta.Sidecar)
	// Output:
	// torch-snapshot 2.11.0+cu130 NVIDIA H200
	// 1550 allocations, sidecar: true
}

// Any trace can be written as CSV or Parquet, for tools of one's own.
func ExampleEncode() {
	b := traces.NewBuilder(2)
	id := b.Alloc(0, 4096, b.Stream(0), 0)
	b.Free(7, id)
	trace, _, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := formats.Encode(context.Background(), os.Stdout, trace, "native-csv"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// time_us,action,id,size,stream
	// 0,alloc,0,4096,0
	// 7,free,0,,0
}
