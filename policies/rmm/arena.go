package rmm

import (
	"fmt"
	"math"
	"slices"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

// Arena makes arena_memory_resource known as "rmm-arena".
var Arena = policies.Registration{
	Name:    "rmm-arena",
	Aliases: []string{"arena"},
	Doc:     "RAPIDS RMM arena_memory_resource: one region, superblocks shared between streams",
	Options: "size=50% (bytes or a share of the free memory, at least 1 MiB), " +
		"size-classes=false (RMM_ARENA_USE_SIZE_CLASSES)",
	Parse: func(text string) (*policies.Spec, error) {
		o := options.Parse(text, "size", "size-classes")
		c := arenaConfig{}
		o.SizeOrPercent("size", &c.size, &c.fraction)
		switch text, given := o.Text("size"); {
		case !given:
			c.fraction = 0.5
		case c.fraction == 0 && c.size < superblockSize:
			o.Fail("option size=%s: size takes at least one superblock of 1 MiB, such as 4GiB, or a share such as 50%%", text)
		}
		o.Bool("size-classes", &c.classes)
		return newSpec("rmm-arena", o, func(env policies.Env) (policies.Policy, error) { return newArena(env, c) })
	},
}

// superblockSize is the smallest superblock, and the largest request that a
// stream's own arena serves, in bytes.
const superblockSize = bytesize.MiB

type arenaConfig struct {
	size     int64
	fraction float64 // of the free memory, instead of size
	classes  bool
}

// superblock is a range that moves between arenas as a whole. Its blocks are
// neighbours in the heap; Block.List is the number of their superblock.
type superblock struct {
	addr       uint64
	size       int64
	first      int32 // block at addr
	free       int32 // set of free blocks in arena.blocks
	owner      int32 // 0 = the global arena, else 1 + the stream
	prev, next int32 // neighbours by address, 0 = none
	listed     bool  // it has a free block and is in its arena's tree
}

type arena struct {
	heap.Heap
	classes bool
	supers  []superblock // superblock 0 is none
	spare   []int32
	// owned[0] is the global arena's set of superblocks in tree, owned[1+s]
	// that of stream s; the size in the tree is the superblock's largest free
	// block. Those without one cannot serve anything and are left out.
	owned []int32
	tree  tree
	// blocks holds the free blocks of each superblock.
	blocks tree
}

func newArena(env policies.Env, c arenaConfig) (*arena, error) {
	size, err := share(env, "size", c.size, c.fraction)
	if err != nil {
		return nil, err
	}
	if size &^= unit - 1; size < superblockSize {
		return nil, fmt.Errorf("the arena has %d bytes; it needs at least one superblock of 1 MiB", size)
	}
	a := &arena{classes: c.classes, supers: make([]superblock, 1), owned: make([]int32, 1)}
	a.tree.fit(0)
	a.blocks.fit(0)
	a.Init(env.Device, env.Limit, a.release)
	b, err := a.Grow(size, 0)
	if err != nil {
		return nil, fmt.Errorf("taking the arena of %d bytes: %w", size, err)
	}
	s := a.newSuper()
	a.supers[s] = superblock{addr: a.Blocks[b].Addr, size: size, first: b}
	a.addFree(s, b)
	a.resize(s)
	return a, nil
}

func (a *arena) newSuper() int32 {
	if n := len(a.spare); n > 0 {
		s := a.spare[n-1]
		a.spare = a.spare[:n-1]
		return s
	}
	a.supers = append(a.supers, superblock{})
	return int32(len(a.supers) - 1)
}

// addFree puts block b among the free blocks of superblock s. It does not tell
// the superblock's arena: resize does.
func (a *arena) addFree(s, b int32) {
	blk := &a.Blocks[b]
	blk.List = s
	a.CountFree(b)
	a.blocks.insert(&a.supers[s].free, b, blk.Addr, blk.Size)
}

// refit records that free block b has grown or shrunk.
func (a *arena) refit(b int32) {
	a.CountFree(b)
	a.blocks.resize(b, a.Blocks[b].Addr, a.Blocks[b].Size)
}

// resize tells the superblock's arena how large its largest free block is.
func (a *arena) resize(s int32) {
	super := &a.supers[s]
	switch largest := a.blocks.largest(super.free); {
	case super.listed && largest > 0:
		a.tree.resize(s, super.addr, largest)
	case super.listed:
		a.tree.remove(&a.owned[super.owner], s)
		super.listed = false
	case largest > 0:
		a.tree.insert(&a.owned[super.owner], s, super.addr, largest)
		super.listed = true
	}
}

// give hands superblock s to another arena.
func (a *arena) give(s, owner int32) {
	super := &a.supers[s]
	if super.listed {
		a.tree.remove(&a.owned[super.owner], s)
		super.listed = false
	}
	super.owner = owner
	a.resize(s)
}

// empty reports whether existing superblock s has no block in use.
func (a *arena) empty(s int32) bool { return a.blocks.largest(a.supers[s].free) == a.supers[s].size }

// cut cuts the lowest size bytes off empty superblock s of the global arena
// and returns them as a new superblock, which is in no arena and whose only
// block is not among its free ones yet.
func (a *arena) cut(s int32, size int64) int32 {
	h := a.newSuper()
	super := &a.supers[s]
	b := super.first
	a.UncountFree(b)
	low := a.Carve(b, size)
	a.Blocks[low].List = h
	a.supers[h] = superblock{addr: super.addr, size: size, first: low, prev: super.prev, next: s}
	if super.prev != 0 {
		a.supers[super.prev].next = h
	}
	super.addr += uint64(size)
	super.size -= size
	super.prev = h
	a.refit(b)
	a.resize(s)
	return h
}

// take cuts size bytes off the first free block of superblock s that has them.
func (a *arena) take(s int32, size int64) int32 {
	super := &a.supers[s]
	b := a.blocks.first(super.free, size)
	a.UncountFree(b)
	if a.Blocks[b].Size == size {
		a.blocks.remove(&super.free, b)
		return b
	}
	low := a.Carve(b, size)
	if super.first == b {
		super.first = low
	}
	a.refit(b)
	return low
}

// allocate is arena::allocate; 0 if there is no room.
func (a *arena) allocate(size int64, stream uint16) int32 {
	owner := int32(0)
	if size <= superblockSize {
		owner = int32(stream) + 1
		for int(owner) >= len(a.owned) {
			a.owned = append(a.owned, 0)
		}
		if s := a.tree.first(a.owned[owner], size); s != 0 {
			b := a.take(s, size)
			a.resize(s)
			return b
		}
	}
	// global_arena::first_fit: the first superblock with a free block that is
	// large enough, cut to what is needed if it is empty and large.
	s := a.tree.first(a.owned[0], size)
	if s == 0 {
		return 0
	}
	keep := max(superblockSize, size)
	if a.supers[s].size >= keep+superblockSize && a.empty(s) {
		s = a.cut(s, keep)
		b := a.supers[s].first
		if keep > size {
			low := a.Carve(b, size)
			a.supers[s].first = low
			a.addFree(s, b)
			b = low
		}
		a.supers[s].owner = owner
		a.resize(s)
		return b
	}
	b := a.take(s, size)
	if owner == 0 {
		a.resize(s)
	} else {
		a.give(s, owner)
	}
	return b
}

// Malloc implements policies.Policy.
func (a *arena) Malloc(r policies.Request) (policies.Block, error) {
	if err := a.Check(r); err != nil {
		return policies.Block{}, err
	}
	size := roundUp(r.Size)
	if a.classes {
		size = sizeClass(r.Size)
	}
	b := a.allocate(size, r.Stream)
	if b == 0 {
		// arena_memory_resource_impl::defragment: wait for the device, then
		// every arena gives all superblocks back.
		if err := a.CompletePending(); err != nil {
			return policies.Block{}, err
		}
		a.clean()
		a.Retry(r, size)
		if b = a.allocate(size, r.Stream); b == 0 {
			reserved := a.Counters.ReservedBytes[policies.All].Current
			return policies.Block{}, a.OutOfMemory(r, size, a.Refuse(policies.Shortage{
				Wanted: size, Limit: reserved, Counted: reserved,
				Reason: "The arena took its memory at the start and does not grow.", Err: noRoom("no room in arena"),
			}))
		}
	}
	return a.Take(b, r), nil
}

// clean moves all superblocks to the global arena.
func (a *arena) clean() {
	for s := int32(1); s < int32(len(a.supers)); s++ {
		if a.supers[s].owner != 0 {
			a.give(s, 0)
		}
	}
	for s := int32(1); s < int32(len(a.supers)); s++ {
		if a.supers[s].size > 0 && a.empty(s) {
			a.merge(s)
		}
	}
}

// merge joins empty superblock s of the global arena with its empty
// neighbours there, and tells the arena.
func (a *arena) merge(s int32) {
	if n := a.supers[s].next; a.mergeable(n) {
		a.absorb(s, n)
		s = n
	}
	if p := a.supers[s].prev; a.mergeable(p) {
		a.absorb(p, s)
	}
	a.resize(s)
}

// mergeable reports whether s is an empty superblock of the global arena.
func (a *arena) mergeable(s int32) bool { return s != 0 && a.supers[s].owner == 0 && a.empty(s) }

// absorb makes two empty neighbours of the global arena one superblock: high.
func (a *arena) absorb(low, high int32) {
	l, h := &a.supers[low], &a.supers[high]
	if l.listed {
		a.tree.remove(&a.owned[0], low)
	}
	a.UncountFree(l.first)
	a.UncountFree(h.first)
	a.JoinUp(l.first)
	h.addr, h.size, h.prev = l.addr, h.size+l.size, l.prev
	if h.prev != 0 {
		a.supers[h.prev].next = high
	}
	a.refit(h.first)
	a.supers[low] = superblock{}
	a.spare = append(a.spare, low)
}

// release joins a freed block with its free neighbours in the superblock. One
// that is empty then and belongs to the global arena joins its neighbours; a
// stream's arena keeps it.
func (a *arena) release(b int32) error {
	s := a.Blocks[b].List
	super := &a.supers[s]
	next, prev := a.Blocks[b].Next, a.Blocks[b].Prev
	switch below, above := a.freeIn(prev, s), a.freeIn(next, s); {
	case below:
		a.UncountFree(prev)
		if above {
			a.UncountFree(next)
			a.blocks.remove(&super.free, next)
			a.Join(b)
		}
		a.Join(prev)
		a.refit(prev)
	case above:
		a.UncountFree(next)
		if super.first == b {
			super.first = next
		}
		a.JoinUp(b)
		a.refit(next)
	default:
		a.addFree(s, b)
	}
	if super.owner == 0 && a.empty(s) {
		a.merge(s)
	} else {
		a.resize(s)
	}
	return nil
}

// freeIn reports whether b is a free block of superblock s.
func (a *arena) freeIn(b, s int32) bool {
	return b != 0 && a.Blocks[b].List == s && a.Blocks[b].State == heap.Free
}

// EmptyCache implements policies.Policy: RMM gives nothing back.
func (a *arena) EmptyCache() error { return nil }

// sizeClasses are the size classes of arena.hpp, in bytes: 256 to 2,048 in
// steps of 256, then four to each doubling up to 256 GiB. Where 56 KiB would
// be due, RMM has 54 KiB.
var sizeClasses = func() []int64 {
	var c []int64
	for n := int64(256); n <= 2048; n += 256 {
		c = append(c, n)
	}
	for base := int64(2048); base < 256*bytesize.GiB; base *= 2 {
		for i := int64(1); i <= 4; i++ {
			n := base + i*base/4
			if n == 56*bytesize.KiB {
				n = 54 * bytesize.KiB
			}
			c = append(c, n)
		}
	}
	return c
}()

// sizeClass rounds size up to a size class; beyond the largest no size fits.
func sizeClass(size int64) int64 {
	i, _ := slices.BinarySearch(sizeClasses, size)
	if i == len(sizeClasses) {
		return math.MaxInt64
	}
	return sizeClasses[i]
}
