// Package direct is no allocator at all: every request goes to the driver as a
// cudaMalloc of its own and every free is a cudaFree. It is the yardstick for
// the others: nothing is cached, so reserved bytes always equal active bytes,
// and the price is one driver call per event.
//
// Sizes are rounded up to 512 bytes, the alignment of what cudaMalloc returns.
//
// A real cudaFree waits for the device. Here the cudaFree of a block that other
// streams still use takes place when its free completes, which gives the same
// memory without moving what comes later.
package direct

import (
	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

// Registration makes the policy known as "direct".
var Registration = policies.Registration{
	Name:    "direct",
	Aliases: []string{"cudamalloc", "cuda", "none"},
	Doc:     "every request is a cudaMalloc, every free a cudaFree",
	Options: "round=512 (multiple to which sizes are rounded up, a power of two, such as 2MiB for whole pages or 1)",
	Parse:   parse,
}

func parse(text string) (*policies.Spec, error) {
	o := options.Parse(text, "round")
	round := int64(512)
	o.Size("round", &round, 1)
	if round&(round-1) != 0 {
		o.Fail("option round=%d is not a power of two", round)
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return &policies.Spec{
		Name:    "direct",
		Options: o.Normal(),
		Sizes: func(size int64) (block, segment int64) {
			block = heap.Round(size, round)
			return block, block
		},
		New: func(env policies.Env) (policies.Policy, error) { return newAllocator(env, round), nil },
	}, nil
}

type allocator struct {
	heap.Heap
	round int64
}

func newAllocator(env policies.Env, round int64) *allocator {
	a := &allocator{round: round}
	a.Init(env.Device, env.Limit, func(b int32) error { return a.Shrink(a.Blocks[b].Seg) })
	return a
}

// Malloc implements policies.Policy.
func (a *allocator) Malloc(r policies.Request) (policies.Block, error) {
	if err := a.Check(r); err != nil {
		return policies.Block{}, err
	}
	size := heap.Round(r.Size, a.round)
	b, err := a.Grow(size, r.Stream)
	if heap.IsOOM(err) {
		return policies.Block{}, a.OutOfMemory(r, size, err)
	}
	if err != nil {
		return policies.Block{}, err
	}
	return a.Take(b, r), nil
}

// EmptyCache implements policies.Policy: nothing is cached.
func (a *allocator) EmptyCache() error { return nil }
