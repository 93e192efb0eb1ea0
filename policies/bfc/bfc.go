// Package bfc is the "best fit with coalescing" allocator of TensorFlow, XLA
// and JAX (openxla/xla, xla/tsl/framework/bfc_allocator.cc).
//
// Sizes are rounded up to 256 bytes. A request takes the smallest free chunk
// that is large enough, the lowest address among equals. The chunk is split if
// it has at least twice the wanted size or at least 128 MiB too much;
// otherwise the whole chunk is used. A freed chunk joins its free neighbours.
// Upstream sorts free chunks into 21 bins; since each is ordered by size and
// address, the result is that of one ordered set.
//
// Memory is taken from the device in regions: all of the limit at the first
// request (preallocate, JAX's default), or regions that double from 2 MiB. A
// region is never joined with another, and never given back unless garbage
// collection is on (TensorFlow's default, not JAX's).
//
// Held to JAX 0.11.2: all ten counters are equal after every operation of the
// recorded logs.
package bfc

import (
	"errors"
	"fmt"
	"math"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

const (
	// unit is kMinAllocationSize.
	unit = 256
	// firstRegion is the first region's bytes with growth.
	firstRegion = 2 * bytesize.MiB
	// maxSlack is the default of the bytes by which an unsplit chunk may
	// exceed a request.
	maxSlack = 128 * bytesize.MiB
	// page is the granularity of a virtual-memory sub-allocator.
	page = 2 * bytesize.MiB
	// unlimited stands for no limit: more than any sum of requests.
	unlimited = 1 << 60
	// jaxFraction is XLA_CLIENT_MEM_FRACTION's default.
	jaxFraction = 0.75
)

// Registration makes the policy known as "bfc".
var Registration = policies.Registration{
	Name:    "bfc",
	Aliases: []string{"jax", "xla", "tensorflow", "tf"},
	Doc:     "TensorFlow/XLA/JAX best fit with coalescing",
	Options: "preallocate=true (false: regions grow from 2 MiB), limit= (bytes; default fraction × device), " +
		"fraction=0.75 (of the device's total memory), gc=false (TensorFlow's garbage collection of regions), " +
		"fragmentation=0 (fragmentation_fraction; 0 = 128 MiB), vmm=false (virtual-memory sub-allocator: regions are contiguous)",
	Parse: parse,
}

type config struct {
	preallocate   bool
	insist        bool  // preallocate was asked for
	limit         int64 // bytes; 0 = fraction of the device
	fraction      float64
	fractionGiven bool
	gc            bool
	fragmentation float64
	vmm           bool
}

func parse(text string) (*policies.Spec, error) {
	o := options.Parse(text, "preallocate", "limit", "fraction", "gc", "fragmentation", "vmm")
	c := config{preallocate: true, fraction: jaxFraction}
	o.Bool("preallocate", &c.preallocate)
	o.Size("limit", &c.limit, unit)
	o.Fraction("fraction", &c.fraction)
	o.Bool("gc", &c.gc)
	o.Fraction("fragmentation", &c.fragmentation)
	o.Bool("vmm", &c.vmm)
	c.insist = o.Given("preallocate") && c.preallocate
	c.fractionGiven = o.Given("fraction")
	if c.fractionGiven && o.Given("limit") {
		o.Fail("options limit and fraction exclude each other")
	}
	if c.fraction == 0 {
		o.Fail("option fraction=0 leaves no memory")
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return &policies.Spec{
		Name:    "bfc",
		Options: o.Normal(),
		New: func(env policies.Env) (policies.Policy, error) {
			a, err := newAllocator(env, c, upstream)
			if err != nil {
				return nil, err
			}
			return a, nil
		},
	}, nil
}

// rules are the constants of the allocator that the tests bend to show that
// the recordings pin them.
type rules struct {
	unit        int64 // rounding, bytes
	splitRatio  int64 // split if the chunk has this many times the request
	maxSlack    int64 // or this many bytes too much
	doubleAfter bool  // the next region is twice this one unless it was raised
	exactRegion bool  // a region is just what is asked
}

var upstream = rules{unit: unit, splitRatio: 2, maxSlack: maxSlack, doubleAfter: true}

// jaxLimit is the limit JAX sets: a fraction of the device's total memory in
// whole MiB, rounded up (spec other-verified, section 1.2).
func jaxLimit(total int64, fraction float64) int64 {
	return int64(math.Ceil(float64(total)*fraction/bytesize.MiB)) * bytesize.MiB
}

type allocator struct {
	heap.Heap
	rules
	config
	free  *heap.Sizes
	limit int64 // memory_limit_, bytes
	// ofDevice: limit is the fraction of the device's memory.
	ofDevice bool
	region   int64 // curr_region_allocation_bytes_
	largest  int64 // largest allocation so far, bytes

	// With a virtual-memory sub-allocator: the reservation, and the one
	// segment in it (0 = none).
	reservation uint64
	reserved    int64
	segment     int32
}

func newAllocator(env policies.Env, c config, r rules) (*allocator, error) {
	limit, ofDevice := int64(unlimited), false
	switch total := env.Device.Total(); {
	case c.limit > 0:
		limit = c.limit
	case c.fractionGiven && total == 0:
		return nil, errors.New("fraction= needs a device of known size; give one or write limit=BYTES")
	case total > 0 && (c.fractionGiven || env.Limit == 0):
		limit, ofDevice = jaxLimit(total, c.fraction), true
	}
	if env.Limit > 0 && env.Limit < limit {
		limit, ofDevice = env.Limit, false
	}
	preallocate := c.preallocate
	if limit == unlimited && preallocate {
		if c.insist {
			return nil, errors.New("preallocate=true needs to know how much: give the device a size or write limit=BYTES")
		}
		preallocate = false
	}
	if c.fragmentation > 0 {
		r.maxSlack = int64(c.fragmentation * float64(limit))
	}
	a := &allocator{rules: r, config: c, limit: limit, ofDevice: ofDevice}
	if preallocate {
		a.region = heap.Round(limit, unit)
	} else {
		a.region = heap.Round(min(limit, firstRegion), unit)
	}
	a.Init(env.Device, 0, a.release)
	a.free = heap.NewSizes(&a.Heap)
	if c.vmm {
		if a.limit < page {
			return nil, fmt.Errorf("vmm=true needs a limit of at least one page of %s", bytesize.Format(page))
		}
		a.limit &^= page - 1
		a.reserved = min(a.limit, 1<<45)
		addr, err := env.Device.Reserve(a.reserved)
		if err != nil {
			return nil, fmt.Errorf("reserving %s of address space: %w", bytesize.Format(a.reserved), err)
		}
		a.reservation = addr
	}
	return a, nil
}

// Malloc implements policies.Policy: AllocateRawInternal.
func (a *allocator) Malloc(r policies.Request) (policies.Block, error) {
	if err := a.Check(r); err != nil {
		return policies.Block{}, err
	}
	size := heap.Round(r.Size, a.unit)
	b := a.free.Find(size)
	if b == 0 {
		if err := a.extend(size); err != nil {
			if !heap.IsOOM(err) {
				return policies.Block{}, err
			}
			collected, err2 := a.collect(r, size)
			if err2 != nil {
				return policies.Block{}, err2
			}
			if collected {
				err = a.extend(size)
			}
			switch {
			case heap.IsOOM(err):
				return policies.Block{}, a.OutOfMemory(r, size, err)
			case err != nil:
				return policies.Block{}, err
			}
		}
		b = a.free.Find(size)
	}
	a.free.Remove(b)
	if have := a.Blocks[b].Size; have >= size*a.splitRatio || have-size >= a.maxSlack {
		if have > size {
			a.free.Insert(a.Split(b, size))
		}
	}
	a.largest = max(a.largest, a.Blocks[b].Size)
	return a.Take(b, r), nil
}

// errLimit is what extend returns when the limit leaves too little room.
var errLimit = fmt.Errorf("memory limit reached: %w", policies.ErrOutOfMemory)

// refuse says that the limit leaves too little room for size bytes.
func (a *allocator) refuse(size int64) error {
	s := policies.Shortage{Wanted: size, Limit: a.limit, Counted: a.Counters.ReservedBytes[policies.All].Current, Err: errLimit}
	if a.ofDevice {
		s.Reason = fmt.Sprintf("JAX keeps to %g %% of the device's memory unless it is told otherwise.", 100*a.fraction)
		if a.fractionGiven {
			s.Reason = fmt.Sprintf("That is the fraction %g of the device's memory.", a.fraction)
		}
	}
	return a.Refuse(s)
}

// extend takes a region with room for size bytes: Extend.
func (a *allocator) extend(size int64) error {
	available := (a.limit - a.Counters.ReservedBytes[policies.All].Current) &^ (unit - 1)
	if size > available {
		return a.refuse(size)
	}
	raised := false
	for size > a.region {
		a.region *= 2
		raised = true
	}
	bytes := min(a.region, available)
	if a.exactRegion {
		bytes = size
	}
	err := a.takeRegion(bytes)
	for heap.IsOOM(err) {
		// The factor and the product are single precision upstream.
		less := heap.Round(int64(float32(bytes)*float32(0.9)), unit)
		if less >= bytes {
			less = bytes - unit
		}
		if bytes = less; bytes < size {
			return err
		}
		err = a.takeRegion(bytes)
	}
	if err != nil {
		return err
	}
	if !raised && a.doubleAfter && a.region < unlimited {
		a.region *= 2
	}
	return nil
}

// takeRegion gets a region from the device and puts it among the free chunks.
func (a *allocator) takeRegion(size int64) error {
	if a.vmm {
		return a.mapRegion(heap.Round(size, page))
	}
	b, err := a.Grow(size, 0)
	if err != nil {
		return err
	}
	a.free.Insert(b)
	return nil
}

// mapRegion adds size bytes at the end of the reservation; they join what is
// there already (AddOrExtendAllocationRegion).
func (a *allocator) mapRegion(size int64) error {
	end := int64(0)
	if a.segment != 0 {
		end = a.Segs[a.segment].Size
	}
	if size > a.reserved-end {
		return a.Refuse(policies.Shortage{
			Wanted: size, Limit: a.reserved, Counted: end, Reason: "It is the address space that was reserved.", Err: errLimit,
		})
	}
	addr := a.reservation + uint64(end)
	a.Asked(size)
	if err := a.Device.Map(addr, size, page); err != nil {
		return err
	}
	if a.segment == 0 {
		b := a.AddSegment(addr, size, 0, true)
		a.segment = a.Blocks[b].Seg
		a.free.Insert(b)
		return nil
	}
	last := a.Segs[a.segment].First
	for a.Blocks[last].Next != 0 {
		last = a.Blocks[last].Next
	}
	if a.Blocks[last].State == heap.Free {
		a.free.Remove(last)
		a.Extend(last, size)
	} else {
		last = a.Append(last, size)
	}
	a.free.Insert(last)
	return nil
}

func (a *allocator) release(b int32) error {
	blk := &a.Blocks[b]
	if n := blk.Next; n != 0 && a.Blocks[n].State == heap.Free {
		a.free.Remove(n)
		a.Join(b)
	}
	if n := blk.Prev; n != 0 && a.Blocks[n].State == heap.Free {
		a.free.Remove(n)
		a.Join(n)
		b = n
	}
	a.free.Insert(b)
	return nil
}

// collect gives all free regions back if that can make room for a request of
// size bytes, and reports whether it did: DeallocateFreeRegions.
func (a *allocator) collect(r policies.Request, size int64) (bool, error) {
	if !a.gc {
		return false, nil
	}
	free := int64(0)
	for s := range a.Segs {
		if a.regionFree(int32(s)) {
			free += a.Segs[s].Size
		}
	}
	if free == 0 || size > a.limit-a.Counters.ReservedBytes[policies.All].Current+free {
		return false, nil
	}
	for s := range a.Segs {
		if !a.regionFree(int32(s)) {
			continue
		}
		seg := a.Segs[s]
		a.free.Remove(seg.First)
		if a.vmm {
			if err := a.Device.Unmap(seg.Addr, seg.Size, page); err != nil {
				return false, fmt.Errorf("unmapping a region: %w", err)
			}
			a.RemoveSegment(int32(s))
			a.segment = 0
			continue
		}
		if err := a.Shrink(int32(s)); err != nil {
			return false, err
		}
	}
	a.Retry(r, size)
	return true, nil
}

// regionFree reports whether segment s exists and is one free chunk.
func (a *allocator) regionFree(s int32) bool {
	b := a.Segs[s].First
	return b != 0 && a.Blocks[b].State == heap.Free && a.Whole(b)
}

// EmptyCache implements policies.Policy. The allocator has no such call: a
// region, once taken, stays.
func (a *allocator) EmptyCache() error { return nil }

// NativeStats implements policies.Native with the keys of JAX's
// Device.memory_stats().
func (a *allocator) NativeStats() map[string]int64 {
	c := &a.Counters
	m := map[string]int64{
		"bytes_in_use":             c.ActiveBytes[policies.All].Current,
		"bytes_limit":              a.limit,
		"bytes_reserved":           0,
		"largest_alloc_size":       a.largest,
		"largest_free_block_bytes": 0,
		"num_allocs":               c.Allocation[policies.All].Allocated,
		"peak_bytes_in_use":        c.ActiveBytes[policies.All].Peak,
		"peak_bytes_reserved":      0,
		"peak_pool_bytes":          c.ReservedBytes[policies.All].Peak,
		"pool_bytes":               c.ReservedBytes[policies.All].Current,
	}
	if a.limit == unlimited {
		m["bytes_limit"] = 0
	}
	if b := a.free.Max(); b != 0 {
		m["largest_free_block_bytes"] = a.Blocks[b].Size
	}
	return m
}
