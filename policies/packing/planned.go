package packing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

// Name is the registered name.
const Name = "packing"

// Granularity is the multiple of bytes to which GPU allocators round sizes and
// align blocks; [Buffers] uses it.
const Granularity = 512

// Registration makes the policy known as "packing". Placement needs the whole
// run at once, so the Spec that Parse returns makes no policies; the one that
// its Prepare returns does.
var Registration = policies.Registration{
	Name:    Name,
	Aliases: []string{"offline", "optimal", "minimalloc"},
	Doc:     "offline placement with full knowledge of the trace: what perfect placement would need",
	Options: "budget=100000000 (steps of about 10 ns, 0 = only the first heuristic), seed=0",
	Parse: func(text string) (*policies.Spec, error) {
		o, normal, err := parse(text)
		if err != nil {
			return nil, err
		}
		s := &policies.Spec{
			Name:    Name,
			Options: normal,
			Config:  o,
			Notes:   []string{"Offline placement: it knows every allocation and free in advance, which no allocator in a program can."},
			New:     func(policies.Env) (policies.Policy, error) { return nil, ErrNoPlan },
		}
		s.Prepare = func(ctx context.Context, run *policies.Future) (*policies.Spec, error) {
			buffers := Buffers(run)
			placement, err := Pack(ctx, buffers, o)
			if err != nil {
				return nil, err
			}
			return Planned(s, NewPlan(buffers, placement)), nil
		}
		return s, nil
	},
}

// ErrNoPlan is what a Spec of the registration returns from New before it has
// been prepared.
var ErrNoPlan = errors.New("packing needs the whole trace in advance, so it cannot serve requests one by one")

func parse(text string) (Options, string, error) {
	s := options.Parse(text, "budget", "seed")
	budget, seed := int64(DefaultBudget), int64(0)
	s.Int("budget", &budget, 0, 1<<50)
	s.Int("seed", &seed, 0, 1<<62)
	if err := s.Err(); err != nil {
		return Options{}, "", err
	}
	if budget == 0 {
		budget = -1
	}
	return Options{Budget: budget, Seed: uint64(seed)}, s.Normal(), nil
}

// Buffers are the requests of a run: sizes are rounded up to Granularity and
// aligned to it, time is the number of calls so far.
func Buffers(run *policies.Future) []Buffer {
	buffers := make([]Buffer, len(run.Lifetimes))
	for i, l := range run.Lifetimes {
		buffers[i] = Buffer{
			ID: int64(i), Lower: l.Malloc, Upper: l.Free,
			Size: (l.Size + Granularity - 1) / Granularity * Granularity, Alignment: Granularity,
		}
	}
	return buffers
}

// Plan is a placement made for a run: the i-th request gets Sizes[i] bytes at
// Offsets[i] of one segment of Height bytes. A negative offset stands for a
// request that is not to be served.
type Plan struct {
	Offsets, Sizes []int64
	Height         int64
}

// NewPlan is the plan of a placement of the buffers.
func NewPlan(buffers []Buffer, p Placement) Plan {
	sizes := make([]int64, len(buffers))
	for i := range buffers {
		sizes[i] = buffers[i].Size
	}
	return Plan{Offsets: p.Offsets, Sizes: sizes, Height: p.Height}
}

// Planned completes a Spec of the registration: its policies follow the plan.
func Planned(spec *policies.Spec, plan Plan) *policies.Spec {
	s := *spec
	s.Prepare = nil
	s.New = func(env policies.Env) (policies.Policy, error) { return NewPlanned(env, plan) }
	return &s
}

// NewPlanned returns a policy that serves the i-th Malloc from the plan's i-th
// place, in one segment that it takes at the first request. Where the limit or
// the device has no room for the plan's height, the segment is as large as
// they allow, and requests whose place lies beyond it are out of memory. So is
// a request that the plan has no place for: beyond its end, larger than
// planned, or while the place is still in use.
func NewPlanned(env policies.Env, plan Plan) (policies.Policy, error) {
	if len(plan.Sizes) != len(plan.Offsets) {
		return nil, fmt.Errorf("the plan has %d offsets and %d sizes", len(plan.Offsets), len(plan.Sizes))
	}
	for i, o := range plan.Offsets {
		if s := plan.Sizes[i]; o >= 0 && (s <= 0 || o > plan.Height-s) {
			return nil, fmt.Errorf("the plan's request %d, %d bytes at %d, does not lie within its height of %d bytes", i, s, o, plan.Height)
		}
	}
	p := &planned{plan: plan}
	p.Init(env.Device, env.Limit, p.release)
	return p, nil
}

// planned follows a plan.
type planned struct {
	heap.Heap
	plan    Plan
	next    int // request
	segment int32
	live    []int32 // blocks in use, by address
}

var (
	errPlanEnd  = fmt.Errorf("the plan has no more requests: %w", policies.ErrOutOfMemory)
	errPlanNone = fmt.Errorf("the plan has no place for the request: %w", policies.ErrOutOfMemory)
	errPlanSize = fmt.Errorf("the request is larger than planned: %w", policies.ErrOutOfMemory)
	errPlanUsed = fmt.Errorf("the planned place is still in use: %w", policies.ErrOutOfMemory)
	errPlanRoom = fmt.Errorf("the planned place lies beyond the memory that could be had: %w", policies.ErrOutOfMemory)
)

// Malloc implements policies.Policy.
func (p *planned) Malloc(r policies.Request) (policies.Block, error) {
	i := p.next
	if r.Size > 0 {
		p.next++
	}
	if err := p.Check(r); err != nil {
		return policies.Block{}, err
	}
	fail := func(err error) (policies.Block, error) {
		if heap.IsOOM(err) {
			err = p.OutOfMemory(r, (r.Size+Granularity-1)/Granularity*Granularity, err)
		}
		return policies.Block{}, err
	}
	switch {
	case i >= len(p.plan.Offsets):
		return fail(errPlanEnd)
	case p.plan.Offsets[i] < 0:
		return fail(errPlanNone)
	case r.Size > p.plan.Sizes[i]:
		return fail(errPlanSize)
	}
	if p.segment == 0 {
		if err := p.take(); err != nil {
			return fail(err)
		}
	}
	seg, offset, size := &p.Segs[p.segment], p.plan.Offsets[i], p.plan.Sizes[i]
	if offset > seg.Size-size {
		return fail(errPlanRoom)
	}
	addr := seg.Addr + uint64(offset)
	// The block in use before addr, if any, is followed by the free one that
	// must hold the place.
	at := p.find(addr)
	b := seg.First
	if at > 0 {
		b = p.Blocks[p.live[at-1]].Next
	}
	blk := &p.Blocks[b]
	if b == 0 || blk.State != heap.Free || blk.Addr > addr || addr+uint64(size) > blk.Addr+uint64(blk.Size) {
		return fail(errPlanUsed)
	}
	p.UncountFree(b)
	if blk.Addr < addr {
		p.CountFree(p.Carve(b, int64(addr-blk.Addr)))
	}
	if p.Blocks[b].Size > size {
		p.CountFree(p.Split(b, size))
	}
	p.live = slices.Insert(p.live, at, b)
	return p.Take(b, r), nil
}

// find is the place of an address in live.
func (p *planned) find(addr uint64) int {
	i, _ := slices.BinarySearchFunc(p.live, addr, func(b int32, addr uint64) int {
		return cmp.Compare(p.Blocks[b].Addr, addr)
	})
	return i
}

// take gets the segment.
func (p *planned) take() error {
	size := p.plan.Height
	if p.Limit > 0 {
		size = min(size, p.Limit)
	}
	b, err := p.Grow(size, 0)
	if heap.IsOOM(err) {
		// As much as there is: whole pages of 2 MiB, then what is left.
		free, _ := p.Device.MemInfo()
		for _, unit := range []int64{2 << 20, Granularity} {
			if less := min(free, size) / unit * unit; less > 0 && less < size {
				if b, err = p.Grow(less, 0); !heap.IsOOM(err) {
					break
				}
			}
		}
	}
	if err != nil {
		return err
	}
	p.segment = p.Blocks[b].Seg
	return nil
}

// release takes back a block whose free has completed.
func (p *planned) release(b int32) error {
	i := p.find(p.Blocks[b].Addr)
	p.live = slices.Delete(p.live, i, i+1)
	if n := p.Blocks[b].Next; n != 0 && p.Blocks[n].State == heap.Free {
		p.UncountFree(n)
		p.Join(b)
	}
	if v := p.Blocks[b].Prev; v != 0 && p.Blocks[v].State == heap.Free {
		p.UncountFree(v)
		p.Join(v)
		b = v
	}
	p.CountFree(b)
	return nil
}

// EmptyCache implements policies.Policy: the segment goes back when nothing is
// in it.
func (p *planned) EmptyCache() error {
	if p.segment == 0 || len(p.live) > 0 {
		return nil
	}
	if err := p.Shrink(p.segment); err != nil {
		return err
	}
	p.segment = 0
	return nil
}
