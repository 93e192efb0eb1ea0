// Package rmm holds the memory resources of RAPIDS RMM that sub-allocate:
//
//   - rmm-pool, pool_memory_resource: a free list per stream, best fit, exact
//     splits, and an upstream that grows by doubling and gives nothing back;
//   - rmm-fixed, fixed_size_memory_resource: blocks of one size, first in first
//     out, from chunks of 128;
//   - rmm-binning, binning_memory_resource: a fixed-size resource for each of a
//     few sizes, and a pool for what is larger;
//   - rmm-arena, arena_memory_resource: one region taken at the start, cut into
//     superblocks that a global arena and an arena per stream share.
//
// The rules were read in rapidsai/rmm 26.08 (5d50a37); there are no recordings
// to hold them to. All sizes are rounded up to 256 bytes, and no resource
// returns memory to the device while it exists, so EmptyCache does nothing.
// RMM orders frees by stream; here a block is freed on the stream that
// allocated it.
package rmm

import (
	"fmt"
	"math"

	"allocsim/policies"
	"allocsim/policies/internal/heap"
)

// unit is CUDA_ALLOCATION_ALIGNMENT, in bytes.
const unit = 256

const sourceNote = "RMM's rules were read in its source (rapidsai/rmm 5d50a37), not compared with recordings."

// share returns a size given in bytes or as a fraction of the device's free
// memory, as percent_of_free_device_memory computes it.
func share(env policies.Env, option string, size int64, fraction float64) (int64, error) {
	if fraction == 0 {
		return size, nil
	}
	free, total := env.Device.MemInfo()
	if free == math.MaxInt64 {
		// An unlimited device may still say how large the real one is.
		if free = total; free <= 0 {
			return 0, fmt.Errorf("%s is a share of the free memory, but the device has no size; give one or write %s=BYTES", option, option)
		}
	}
	if env.Limit > 0 {
		free = min(free, env.Limit)
	}
	return int64(float64(free)*fraction) &^ (unit - 1), nil
}

// streams remembers in which order streams came into use. RMM visits the free
// lists of other streams in the order of event addresses, which is that order
// as long as the addresses ascend.
type streams struct {
	known []bool
	order []uint16
}

// note enters a stream.
func (s *streams) note(stream uint16) {
	for int(stream) >= len(s.known) {
		s.known = append(s.known, false)
	}
	if !s.known[stream] {
		s.known[stream] = true
		s.order = append(s.order, stream)
	}
}

// noRoom wraps ErrOutOfMemory with RMM's own words.
func noRoom(cause string) error {
	return fmt.Errorf("maximum pool size exceeded: %s: %w", cause, policies.ErrOutOfMemory)
}

// roundUp rounds a request up as every resource does.
func roundUp(size int64) int64 { return heap.Round(size, unit) }
