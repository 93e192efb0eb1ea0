package packing_test

import (
	"context"
	"fmt"

	"allocsim/policies/packing"
)

// An allocator puts buffer 2 right behind buffer 1, and buffer 3, which is
// larger than 1, must then go above both: 1000 bytes. Who knows the future
// leaves the first 500 bytes to 1 and 3.
func ExamplePack() {
	buffers := []packing.Buffer{
		{ID: 1, Lower: 0, Upper: 2, Size: 400},
		{ID: 2, Lower: 1, Upper: 4, Size: 100},
		{ID: 3, Lower: 3, Upper: 5, Size: 500},
	}
	p, err := packing.Pack(context.Background(), buffers, packing.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("live at once:", p.Bound)
	fmt.Println("placed in:   ", p.Height, "optimal:", p.Optimal())
	fmt.Println("fits in 599: ", p.Verdict(599))
	fmt.Println("offsets:     ", p.Offsets)
	fmt.Println("valid:       ", packing.Verify(buffers, p.Offsets, p.Height) == nil)
	// Output:
	// live at once: 600
	// placed in:    600 optimal: true
	// fits in 599:  does not fit
	// offsets:      [0 500 0]
	// valid:        true
}
