// Package cupy is CuPy's memory pool for one device, SingleDeviceMemoryPool of
// cupy/cuda/memory.pyx (CuPy 14).
//
// Sizes are rounded up to 512 bytes. A request takes the smallest free block
// that is large enough, of its own stream only; what is left over becomes a
// free block. Without one, cudaMalloc of exactly the rounded size. A freed
// block joins its free neighbours within the same cudaMalloc and stays with
// the stream that allocated it. Memory goes back only as whole cudaMallocs:
// when the user empties the pool, or when cudaMalloc fails, after which it is
// tried once more. The pool's own limit (CUPY_GPU_MEMORY_LIMIT) is checked
// before that: beyond it a request fails at once, with the cache kept.
//
// One thing is not knowable: among free blocks of equal size CuPy takes any of
// a Python set, whose order depends on object addresses. This package takes
// the lowest address. On recorded logs total, used and free bytes come out the
// same under every such rule; the number of free blocks does not.
package cupy

import (
	"fmt"

	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

// unit is ALLOCATION_UNIT_SIZE of memory.pyx, in bytes.
const unit = 512

// Registration makes the policy known as "cupy".
var Registration = policies.Registration{
	Name: "cupy",
	Doc:  "CuPy's MemoryPool: best fit per stream, joins freed blocks, keeps what it took",
	Options: "limit=0 (CUPY_GPU_MEMORY_LIMIT: a size or a percentage of the device; 0 = none), " +
		"retry-at-limit=false (true: empty the pool and try again at the limit, as CuPy 15 does)",
	Parse: parse,
}

type config struct {
	limit        int64
	fraction     float64 // of the device, instead of limit
	retryAtLimit bool
}

func parse(text string) (*policies.Spec, error) {
	o := options.Parse(text, "limit", "retry-at-limit")
	var c config
	o.SizeOrPercent("limit", &c.limit, &c.fraction)
	o.Bool("retry-at-limit", &c.retryAtLimit)
	if err := o.Err(); err != nil {
		return nil, err
	}
	return &policies.Spec{
		Name:    "cupy",
		Options: o.Normal(),
		Notes: []string{
			"cupy: which of several free blocks of equal size CuPy reuses depends on object addresses in its process; the lowest address is taken here.",
		},
		Sizes: func(size int64) (block, segment int64) {
			block = heap.Round(size, unit)
			return block, block
		},
		New: func(env policies.Env) (policies.Policy, error) {
			p, err := newPool(env, c, upstream)
			if err != nil {
				return nil, err
			}
			return p, nil
		},
	}, nil
}

// rules are the parts of the allocator that the tests bend to show that the
// recordings pin them.
type rules struct {
	unit  int64 // rounding, bytes
	split bool  // a larger block is split
	join  bool  // freed blocks join with their neighbours
	spare int64 // bytes that cudaMalloc is asked for on top
}

var upstream = rules{unit: unit, split: true, join: true}

type pool struct {
	heap.Heap
	rules
	config
	arenas []*heap.Sizes // free blocks by stream
}

func newPool(env policies.Env, c config, r rules) (*pool, error) {
	limit := c.limit
	if c.fraction > 0 {
		_, total := env.Device.MemInfo()
		if total <= 0 {
			return nil, fmt.Errorf("limit=%g%% needs a device of known size; give one or write the limit in bytes", c.fraction*100)
		}
		limit = int64(c.fraction * float64(total))
	}
	if env.Limit > 0 && (limit == 0 || env.Limit < limit) {
		limit = env.Limit
	}
	p := &pool{config: c, rules: r}
	p.Init(env.Device, limit, p.release)
	return p, nil
}

// arena returns the free blocks of a stream.
func (p *pool) arena(stream uint16) *heap.Sizes {
	for int(stream) >= len(p.arenas) {
		p.arenas = append(p.arenas, nil)
	}
	if p.arenas[stream] == nil {
		p.arenas[stream] = heap.NewSizes(&p.Heap)
	}
	return p.arenas[stream]
}

// Malloc implements policies.Policy.
func (p *pool) Malloc(r policies.Request) (policies.Block, error) {
	if err := p.Check(r); err != nil {
		return policies.Block{}, err
	}
	size := heap.Round(r.Size, p.unit)
	arena := p.arena(r.Stream)
	b := arena.Find(size)
	if b != 0 {
		arena.Remove(b)
		if p.Blocks[b].Size > size && p.split {
			arena.Insert(p.Split(b, size))
		}
		return p.Take(b, r), nil
	}
	b, err := p.grow(r, size)
	if heap.IsOOM(err) {
		return policies.Block{}, p.OutOfMemory(r, size, err)
	}
	if err != nil {
		return policies.Block{}, err
	}
	return p.Take(b, r), nil
}

// grow takes a segment for a request. CuPy tries the device a third time after
// a Python garbage collection, which finds nothing that a trace has not freed.
func (p *pool) grow(r policies.Request, size int64) (int32, error) {
	atLimit := p.Limit > 0 && size > p.Limit-p.Counters.ReservedBytes[policies.All].Current
	b, err := p.Grow(size+p.spare, r.Stream)
	if !heap.IsOOM(err) || atLimit && !p.retryAtLimit {
		return b, err
	}
	if err := p.EmptyCache(); err != nil {
		return 0, err
	}
	p.Retry(r, size)
	return p.Grow(size, r.Stream)
}

func (p *pool) release(b int32) error {
	blk := &p.Blocks[b]
	arena := p.arenas[blk.Stream]
	if n := blk.Next; n != 0 && p.join && p.Blocks[n].State == heap.Free {
		arena.Remove(n)
		p.Join(b)
	}
	if n := blk.Prev; n != 0 && p.join && p.Blocks[n].State == heap.Free {
		arena.Remove(n)
		p.Join(n)
		b = n
	}
	arena.Insert(b)
	return nil
}

// EmptyCache implements policies.Policy: free_all_blocks. Blocks that are part
// of a larger cudaMalloc stay.
func (p *pool) EmptyCache() error {
	for s := 1; s < len(p.Segs); s++ {
		b := p.Segs[s].First
		if b == 0 || p.Blocks[b].State != heap.Free || !p.Whole(b) {
			continue
		}
		p.arenas[p.Blocks[b].Stream].Remove(b)
		if err := p.Shrink(int32(s)); err != nil {
			return err
		}
	}
	return nil
}

// NativeStats implements policies.Native with the methods of CuPy's pool.
func (p *pool) NativeStats() map[string]int64 {
	n := 0
	for _, a := range p.arenas {
		if a != nil {
			n += a.Len()
		}
	}
	total, used := p.Counters.ReservedBytes[policies.All].Current, p.Counters.ActiveBytes[policies.All].Current
	return map[string]int64{
		"total_bytes": total, "used_bytes": used, "free_bytes": total - used, "n_free_blocks": int64(n),
	}
}
