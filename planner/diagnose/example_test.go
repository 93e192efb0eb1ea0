package diagnose_test

import (
	"fmt"

	"allocsim/planner/diagnose"
)

// What ran out? The numbers of the message decide, with their rounding.
func ExampleDiagnose() {
	msg, err := diagnose.Parse(`torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
GPU 0 has a total capacity of 23.65 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this
process has 22.44 GiB memory in use. Of the allocated memory 14.10 GiB is allocated by PyTorch, and
7.85 GiB is reserved by PyTorch but unallocated.`)
	if err != nil {
		fmt.Println(err)
		return
	}
	r := diagnose.Diagnose(msg, diagnose.Options{})
	fmt.Println(r.Verdict)
	fmt.Println(r.Advice[0])
	// Output:
	// fragmentation
	// set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the likeliest cure, because free pieces of one stream then join (assumes Linux, no Jetson, no sleep mode or allocator of its own)
}
