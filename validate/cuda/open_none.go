//go:build !cuda

package cuda

import "fmt"

// Built reports that this program can drive a GPU.
const Built = false

// Open makes the context of CUDA device ordinal current on the calling
// goroutine's thread. In this build it fails with ErrNotBuilt.
func Open(ordinal int) (Driver, error) {
	return nil, fmt.Errorf("%w: build it with `CGO_ENABLED=1 CGO_CFLAGS=-I$PWD/validate/cuda/include go build -tags cuda ./cmd/allocsim` on a machine with CUDA's headers (docs/validation.md), or choose --engine sim", ErrNotBuilt)
}
