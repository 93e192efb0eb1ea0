package rmm

import (
	"fmt"
	"math"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

// Pool makes pool_memory_resource known as "rmm-pool".
var Pool = policies.Registration{
	Name:    "rmm-pool",
	Aliases: []string{"rmm", "rapids", "pool"},
	Doc:     "RAPIDS RMM pool_memory_resource: best fit per stream, doubles, never shrinks",
	Options: "initial=0 (bytes at the start or a share of the free memory; RMM's Python default is 50%), " +
		"max=0 (most bytes; 0 = what the device gives)",
	Parse: func(text string) (*policies.Spec, error) {
		o := options.Parse(text, "initial", "max")
		var c poolConfig
		c.read(o, "initial", "max")
		return newSpec("rmm-pool", o, func(env policies.Env) (policies.Policy, error) {
			return newResource(env, &c, nil)
		})
	},
}

func newSpec(name string, o *options.Set, make func(policies.Env) (policies.Policy, error)) (*policies.Spec, error) {
	if err := o.Err(); err != nil {
		return nil, err
	}
	return &policies.Spec{
		Name: name, Options: o.Normal(),
		New: func(env policies.Env) (policies.Policy, error) {
			p, err := make(env)
			if err != nil {
				return nil, err // and not a nil pointer as a Policy
			}
			return p, nil
		},
		Notes: []string{name + ": " + sourceNote + " With several streams, their free lists are visited in the order of first use."},
	}, nil
}

type poolConfig struct {
	initial  int64
	fraction float64 // of the free memory, instead of initial
	max      int64   // bytes; 0 = none
}

func (c *poolConfig) read(o *options.Set, initial, maximum string) {
	o.SizeOrPercent(initial, &c.initial, &c.fraction)
	o.Size(maximum, &c.max, 0)
	if c.initial%unit != 0 || c.max%unit != 0 {
		o.Fail("options %s and %s take multiples of %d bytes", initial, maximum, unit)
	}
	if c.max > 0 && c.initial > c.max {
		o.Fail("option %s exceeds %s", initial, maximum)
	}
}

// resource is a pool, fixed-size bins or both. Their blocks tile the same
// segments: a bin's chunk stays cut into blocks of the bin's size.
type resource struct {
	heap.Heap

	// The pool; unused when upstream is the device itself (direct).
	direct bool
	max    int64
	lists  []*heap.Sizes // free blocks by stream; Block.List is the stream
	streams
	scratch []int32

	bins []bin
	only bool // larger requests than the largest bin are refused
}

// newResource makes a pool with or without bins, or, with a nil pool
// configuration, bins on the device itself.
func newResource(env policies.Env, c *poolConfig, bins []binConfig) (*resource, error) {
	r := &resource{direct: c == nil}
	r.Init(env.Device, env.Limit, r.release)
	if c != nil {
		r.max = c.max
		initial, err := share(env, "initial", c.initial, c.fraction)
		if err != nil {
			return nil, err
		}
		if c.max > 0 {
			initial = min(initial, c.max)
		}
		if initial > 0 {
			b, err := r.Grow(initial, 0)
			if err != nil {
				return nil, fmt.Errorf("taking the initial pool of %d bytes: %w", initial, err)
			}
			r.note(0)
			r.insert(b, 0)
		}
	}
	for _, b := range bins {
		if err := r.addBin(b); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// onTheMove is the Block.List of a free block that is between two lists.
const onTheMove = math.MinInt32

// list returns the free list of a stream.
func (r *resource) list(stream uint16) *heap.Sizes {
	for int(stream) >= len(r.lists) {
		r.lists = append(r.lists, nil)
	}
	if r.lists[stream] == nil {
		r.lists[stream] = heap.NewSizes(&r.Heap)
	}
	return r.lists[stream]
}

// inList reports whether block b is free and in the pool's list of a stream.
func (r *resource) inList(b, list int32) bool {
	return b != 0 && r.Blocks[b].State == heap.Free && r.Blocks[b].List == list
}

// insert puts a free block into a stream's list, joined with its neighbours in
// that list.
func (r *resource) insert(b int32, stream uint16) {
	list := r.list(stream)
	r.Blocks[b].List = int32(stream)
	if n := r.Blocks[b].Next; r.inList(n, int32(stream)) {
		list.Remove(n)
		r.Join(b)
	}
	if n := r.Blocks[b].Prev; r.inList(n, int32(stream)) {
		list.Remove(n)
		r.Join(n)
		b = n
	}
	list.Insert(b)
}

// cut removes block b from the list it is in and leaves what it has over size
// there.
func (r *resource) cut(b int32, size int64) {
	list := r.lists[r.Blocks[b].List]
	list.Remove(b)
	if r.Blocks[b].Size > size {
		list.Insert(r.Split(b, size))
	}
}

// fromPool returns a block of size bytes, a multiple of 256, in no list:
// stream_ordered_memory_resource's get_block.
func (r *resource) fromPool(size int64, stream uint16) (int32, error) {
	own := r.list(stream)
	r.note(stream)
	if b := own.Find(size); b != 0 {
		r.cut(b, size)
		return b, nil
	}
	for _, s := range r.order {
		if s != stream && r.lists[s] != nil {
			if b := r.lists[s].Find(size); b != 0 {
				r.cut(b, size)
				return b, nil
			}
		}
	}
	for _, s := range r.order {
		if s == stream || r.lists[s] == nil || r.lists[s].Len() == 0 {
			continue
		}
		r.scratch = r.lists[s].Append(r.scratch[:0])
		for _, b := range r.scratch {
			r.lists[s].Remove(b)
			r.Blocks[b].List = onTheMove
		}
		for _, b := range r.scratch {
			r.insert(b, stream)
		}
		if b := own.Find(size); b != 0 {
			r.cut(b, size)
			return b, nil
		}
	}
	b, err := r.expand(size, stream)
	if err != nil {
		return 0, err
	}
	r.Blocks[b].List = int32(stream)
	if r.Blocks[b].Size > size {
		own.Insert(r.Split(b, size))
	}
	return b, nil
}

// expand takes a segment with room for size bytes: try_to_expand of
// size_to_grow.
func (r *resource) expand(size int64, stream uint16) (int32, error) {
	pool := r.Counters.ReservedBytes[policies.All].Current
	try := max(size, pool)
	if r.max > 0 {
		remaining := roundUp(r.max - pool)
		if size > remaining {
			return 0, r.Refuse(policies.Shortage{Wanted: size, Limit: r.max, Counted: pool, Err: noRoom("not enough room to grow")})
		}
		try = max(size, remaining/2)
	}
	for {
		b, err := r.Grow(try, stream)
		if !heap.IsOOM(err) {
			return b, err
		}
		if try == size {
			return 0, fmt.Errorf("maximum pool size exceeded: upstream refused: %w", err)
		}
		try = max(size, try/2)
	}
}

// Malloc implements policies.Policy.
func (r *resource) Malloc(q policies.Request) (policies.Block, error) {
	if err := r.Check(q); err != nil {
		return policies.Block{}, err
	}
	b, err := r.get(q)
	if heap.IsOOM(err) {
		return policies.Block{}, r.OutOfMemory(q, roundUp(q.Size), err)
	}
	if err != nil {
		return policies.Block{}, err
	}
	return r.Take(b, q), nil
}

func (r *resource) get(q policies.Request) (int32, error) {
	for i := range r.bins {
		if q.Size <= r.bins[i].size {
			return r.fromBin(int32(i), q.Stream)
		}
	}
	if r.only {
		largest := r.bins[len(r.bins)-1].size
		return 0, r.Refuse(policies.Shortage{
			Limit: largest, Final: true, Reason: fmt.Sprintf("The resource serves requests of up to %s only.", bytesize.Format(largest)),
			Err: fmt.Errorf("maximum allocation size exceeded: %w", policies.ErrOutOfMemory),
		})
	}
	return r.upstream(roundUp(q.Size), q.Stream)
}

// upstream returns a block of size bytes from the pool or the device.
func (r *resource) upstream(size int64, stream uint16) (int32, error) {
	if r.direct {
		return r.Grow(size, stream)
	}
	return r.fromPool(size, stream)
}

func (r *resource) release(b int32) error {
	blk := &r.Blocks[b]
	switch {
	case blk.List < 0:
		r.push(-1-blk.List, blk.Stream, b)
	case r.direct:
		return r.Shrink(blk.Seg)
	default:
		r.insert(b, blk.Stream)
	}
	return nil
}

// EmptyCache implements policies.Policy: RMM gives nothing back.
func (r *resource) EmptyCache() error { return nil }
