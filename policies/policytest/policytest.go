// Package policytest checks that an allocator keeps the promises of
// [policies.Policy], whatever its placement rules. One line in a policy's own
// tests runs everything:
//
//	func TestConformance(t *testing.T) { policytest.Run(t, spec) }
//
// It drives the policy with random requests, frees, pending frees, cache
// flushes, misuse and a device that runs full, and holds after every step:
//
//   - live and pending blocks never overlap, lie inside a segment and are
//     aligned; the blocks of a segment tile it;
//   - statistics equal what Segments shows, what the events say and what the
//     device handed out and took back; peaks are running maxima;
//   - neither the device's capacity nor the limit is exceeded; a request that
//     cannot be served fails with ErrOutOfMemory and takes nothing away; a
//     Shortage that names a limit is one that the limit explains;
//   - a free of a block that is not live is an ErrBadFree and changes nothing;
//   - a pending block stays out of use until its free completes;
//   - EmptyCache is harmless at any time, and when everything has been freed
//     nothing counts as allocated;
//   - the same requests give the same result, with or without an observer, and
//     when addresses are shifted, streams renumbered in the same order and
//     handles interleaved with invalid ones.
//
// [Device] is a small device for such tests; [Benchmark] is the workload that
// the project's own policies are timed with.
package policytest

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"allocsim/policies"
)

// Options adapt the checks to a policy. The zero value of a field is its
// default.
type Options struct {
	// Align is the alignment of block addresses in bytes; default 256.
	Align int64
	// MaxSize is the largest request drawn, in bytes; default 48 MiB.
	MaxSize int64
	// Capacities are the device sizes tried, in bytes (0 = unlimited);
	// default 0, 96 MiB and 1 GiB.
	Capacities []int64
	// Limits are the Env.Limit values tried, in bytes (0 = none); default 0,
	// 40 MiB and 200 MiB.
	Limits []int64
	// Streams is the number of streams used; default 3.
	Streams int
	// Steps is the most steps of one random run; default 120.
	Steps int
	// LimitSlack is how far reserved bytes may exceed Env.Limit, for a policy
	// whose original checks the limit before it rounds up to pages; default 0.
	LimitSlack int64
	// Uncounted is the request size in bytes from which on an OOM leaves the
	// statistics alone, for a policy whose original refuses such requests
	// before it looks at them; default none.
	Uncounted int64
}

func (o Options) withDefaults() Options {
	if o.Align == 0 {
		o.Align = 256
	}
	if o.MaxSize == 0 {
		o.MaxSize = 48 << 20
	}
	if o.Capacities == nil {
		o.Capacities = []int64{0, 96 << 20, 1 << 30}
	}
	if o.Limits == nil {
		o.Limits = []int64{0, 40 << 20, 200 << 20}
	}
	if o.Streams == 0 {
		o.Streams = 3
	}
	if o.Steps == 0 {
		o.Steps = 120
	}
	if o.Uncounted == 0 {
		o.Uncounted = math.MaxInt64
	}
	return o
}

// Run checks the policies that spec makes. At most one Options is taken.
func Run(t *testing.T, spec *policies.Spec, options ...Options) {
	t.Helper()
	var o Options
	if len(options) > 0 {
		o = options[0]
	}
	o = o.withDefaults()
	scripts := scriptGen(o)
	t.Run("invariants", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			if err := verify(spec, o, scripts.Draw(t, "script")); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("deterministic", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			if err := compareRuns(spec, o, scripts.Draw(t, "script")); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("huge requests", func(t *testing.T) {
		if err := verifyHuge(spec, o); err != nil {
			t.Fatal(err)
		}
	})
}

type kind uint8

const (
	opAlloc kind = iota
	opFree
	opFreePending
	opComplete
	opEmptyCache
	opBadFree
	opSqueeze // the device refuses after some more calls
	opRelax   // the device has room again
)

var kindNames = [...]string{"alloc", "free", "free pending", "complete", "empty cache", "bad free", "squeeze", "relax"}

// op is one step of a script.
type op struct {
	kind   kind
	size   int64
	stream uint16
	// pick chooses among the blocks that the step can concern.
	pick int
}

func (o op) String() string {
	switch o.kind {
	case opAlloc:
		return fmt.Sprintf("alloc(%d bytes, stream %d)", o.size, o.stream)
	case opEmptyCache, opRelax:
		return kindNames[o.kind]
	}
	return fmt.Sprintf("%s(%d)", kindNames[o.kind], o.pick)
}

// script is a random run.
type script struct {
	capacity, limit int64
	ops             []op
}

// GoString is how rapid shows a script that fails.
func (s script) GoString() string {
	return fmt.Sprintf("device of %d bytes, limit %d: %v", s.capacity, s.limit, s.ops)
}

func scriptGen(o Options) *rapid.Generator[script] {
	sizes := rapid.OneOf(
		rapid.Int64Range(1, 4096),
		rapid.Int64Range(1, 1<<20),
		rapid.Int64Range(1, o.MaxSize),
		rapid.SampledFrom([]int64{256, 512, 1 << 20, 2 << 20, 4 << 20, 20 << 20, 32 << 20}),
	).Filter(func(n int64) bool { return n <= o.MaxSize })
	kinds := []kind{
		opAlloc, opAlloc, opAlloc, opAlloc, opAlloc, opAlloc, opFree, opFree, opFree, opFree,
		opFreePending, opFreePending, opComplete, opComplete, opEmptyCache, opBadFree, opSqueeze, opRelax,
	}
	one := rapid.Custom(func(t *rapid.T) op {
		x := op{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		switch x.kind {
		case opAlloc:
			x.size = sizes.Draw(t, "size")
			x.stream = uint16(rapid.IntRange(0, o.Streams-1).Draw(t, "stream"))
		case opEmptyCache, opRelax:
		default:
			x.pick = rapid.IntRange(0, 1000).Draw(t, "pick")
		}
		return x
	})
	return rapid.Custom(func(t *rapid.T) script {
		return script{
			capacity: rapid.SampledFrom(o.Capacities).Draw(t, "capacity"),
			limit:    rapid.SampledFrom(o.Limits).Draw(t, "limit"),
			// Left to itself rapid prefers short slices, in which little happens.
			ops: rapid.SliceOfN(one, rapid.SampledFrom([]int{1, o.Steps / 4, o.Steps}).Draw(t, "least"), o.Steps).Draw(t, "ops"),
		}
	})
}

// block is what the harness knows of an allocation that is in use.
type block struct {
	policies.Block
	size    int64
	stream  uint16
	pending bool
}

// variant is a way of running a script that must not matter.
type variant struct {
	observed  bool
	base      uint64 // shift of all addresses
	stride    uint16 // stream i becomes i × stride
	intruders bool   // invalid handles between the steps
}

// run is a policy under a script.
type run struct {
	spec   *policies.Spec
	o      Options
	v      variant
	limit  int64
	device *Device
	policy policies.Policy

	blocks  []block // in use, in order of allocation
	retired []policies.Handle
	events  events
	// trail is what the run did, for comparison: one entry per step.
	trail []outcome
}

type outcome struct {
	addr  uint64 // less the shift
	oom   bool
	stats policies.Stats
}

// events sums up what the observer heard.
type events struct {
	reserved, allocated, active, requested int64
	ooms, retries                          int64
	completed                              []policies.Handle
	err                                    error
}

// Observe implements policies.Observer.
func (e *events) Observe(ev *policies.Event) {
	switch ev.Action {
	case policies.ActionAlloc:
		e.allocated++
		e.active++
		e.requested += ev.Requested
	case policies.ActionFreeRequested:
		e.allocated--
	case policies.ActionFreeCompleted:
		e.active--
		e.requested -= ev.Requested
		e.completed = append(e.completed, ev.Handle)
	case policies.ActionSegmentAlloc, policies.ActionSegmentMap, policies.ActionSegmentFree, policies.ActionSegmentUnmap:
		e.reserved += ev.Action.Reserves(ev.Size)
	case policies.ActionOOM:
		e.ooms++
	case policies.ActionRetry:
		e.retries++
	default:
		e.err = fmt.Errorf("event with unknown action %v", ev.Action)
	}
}

func newRun(spec *policies.Spec, o Options, s script, v variant) (*run, error) {
	r := &run{spec: spec, o: o, v: v, limit: s.limit, device: NewDevice(s.capacity)}
	r.device.Base = v.base
	env := policies.Env{Device: r.device, Limit: s.limit, Streams: (o.Streams-1)*int(v.stride) + 1}
	p, err := spec.New(env)
	if err != nil {
		return nil, fmt.Errorf("making %s on a device of %d bytes with limit %d: %w", spec, s.capacity, s.limit, err)
	}
	r.policy = p
	// What New took from the device was not observed.
	r.events.reserved = p.Stats().ReservedBytes[policies.All].Current
	if v.observed {
		p.Observe(&r.events)
	}
	return r, nil
}

// choose returns the index in r.blocks of the pick-th block that is pending or
// not, -1 if there is none.
func (r *run) choose(pick int, pending bool) int {
	n := 0
	for _, b := range r.blocks {
		if b.pending == pending {
			n++
		}
	}
	if n == 0 {
		return -1
	}
	pick %= n
	for i, b := range r.blocks {
		if b.pending == pending {
			if pick == 0 {
				return i
			}
			pick--
		}
	}
	return -1
}

// retire takes block i out of the model: its free has completed.
func (r *run) retire(i int) {
	r.retired = append(r.retired, r.blocks[i].Handle)
	r.blocks = slices.Delete(r.blocks, i, i+1)
}

func (r *run) step(x op) error {
	r.events.completed = r.events.completed[:0]
	out := outcome{}
	switch x.kind {
	case opAlloc:
		before := *r.policy.Stats()
		b, err := r.policy.Malloc(policies.Request{Size: x.size, Stream: x.stream * r.v.stride})
		if err == nil {
			out.addr = b.Addr - r.v.base
		}
		out.oom = err != nil
		if err := r.settle(); err != nil {
			return err
		}
		switch {
		case err == nil:
			if b.Handle == 0 {
				return errors.New("Malloc returned handle 0, which means no block")
			}
			if i := slices.IndexFunc(r.blocks, func(o block) bool { return o.Handle == b.Handle }); i >= 0 {
				return fmt.Errorf("Malloc returned handle %#x, which is still in use", uint64(b.Handle))
			}
			r.blocks = append(r.blocks, block{Block: b, size: x.size, stream: x.stream * r.v.stride})
		case errors.Is(err, policies.ErrOutOfMemory):
			if n := r.policy.Stats().NumOOMs; n != before.NumOOMs+1 && x.size < r.o.Uncounted {
				return fmt.Errorf("an OOM moved NumOOMs from %d to %d", before.NumOOMs, n)
			}
			var s *policies.Shortage
			if errors.As(err, &s) && !s.Final && s.Limit > 0 && max(s.Wanted, x.size) <= s.Limit-s.Counted {
				return fmt.Errorf("refused by a limit of %d bytes that leaves room: %d count, %d wanted", s.Limit, s.Counted, max(s.Wanted, x.size))
			}
		default:
			return fmt.Errorf("Malloc: %w", err)
		}
	case opFree, opFreePending:
		i := r.choose(x.pick, false)
		if i < 0 {
			return nil
		}
		h := r.blocks[i].Handle
		r.blocks[i].pending = true
		if err := r.policy.Free(h, x.kind == opFreePending); err != nil {
			return fmt.Errorf("Free: %w", err)
		}
		if x.kind == opFree {
			if !r.v.observed || slices.Contains(r.events.completed, h) {
				r.retire(i)
				r.events.completed = slices.DeleteFunc(r.events.completed, func(c policies.Handle) bool { return c == h })
			} else {
				return fmt.Errorf("Free without pending reported no free_completed event")
			}
		}
		if err := r.settle(); err != nil {
			return err
		}
	case opComplete:
		i := r.choose(x.pick, true)
		if i < 0 {
			return nil
		}
		h := r.blocks[i].Handle
		if err := r.policy.FreeCompleted(h); err != nil {
			return fmt.Errorf("FreeCompleted: %w", err)
		}
		if r.v.observed && !slices.Contains(r.events.completed, h) {
			return fmt.Errorf("FreeCompleted reported no free_completed event")
		}
		r.retire(i)
		r.events.completed = slices.DeleteFunc(r.events.completed, func(c policies.Handle) bool { return c == h })
		if err := r.settle(); err != nil {
			return err
		}
		// A second completion of the same free does nothing.
		before := *r.policy.Stats()
		if err := r.policy.FreeCompleted(h); err != nil {
			return fmt.Errorf("FreeCompleted of a completed free: %w", err)
		}
		if *r.policy.Stats() != before {
			return errors.New("FreeCompleted of a completed free changed the statistics")
		}
	case opEmptyCache:
		if err := r.policy.EmptyCache(); err != nil {
			return fmt.Errorf("EmptyCache: %w", err)
		}
		if err := r.settle(); err != nil {
			return err
		}
	case opBadFree:
		if err := r.badFrees(x.pick); err != nil {
			return err
		}
	case opSqueeze:
		r.device.FailAfter(int64(x.pick % 4))
	case opRelax:
		r.device.FailAfter(-1)
	}
	if r.v.intruders {
		if err := r.badFrees(len(r.trail)); err != nil {
			return err
		}
	}
	out.stats = *r.policy.Stats()
	r.trail = append(r.trail, out)
	return nil
}

// settle retires the pending blocks whose free the policy has completed by
// itself. Without an observer that is only seen in the statistics, so such
// blocks stay in the model until the script completes them.
func (r *run) settle() error {
	if r.events.err != nil {
		return r.events.err
	}
	for _, h := range r.events.completed {
		i := slices.IndexFunc(r.blocks, func(b block) bool { return b.Handle == h })
		if i < 0 {
			return fmt.Errorf("free_completed event for handle %#x, which is not in use", uint64(h))
		}
		if !r.blocks[i].pending {
			return fmt.Errorf("free_completed event for handle %#x, which has not been freed", uint64(h))
		}
		r.retire(i)
	}
	return nil
}

// badFrees frees what is not live and checks that it is refused.
func (r *run) badFrees(pick int) error {
	handles := []policies.Handle{0, policies.Handle(pick)<<32 | 0xfffffff0, math.MaxUint64}
	if n := len(r.retired); n > 0 {
		handles = append(handles, r.retired[n-1], r.retired[pick%n])
	}
	if i := r.choose(pick, true); i >= 0 {
		handles = append(handles, r.blocks[i].Handle) // freed twice
	}
	before := *r.policy.Stats()
	for _, h := range handles {
		if slices.ContainsFunc(r.blocks, func(b block) bool { return b.Handle == h && !b.pending }) {
			continue // the policy gave the number out again
		}
		for _, pending := range []bool{false, true} {
			if err := r.policy.Free(h, pending); !errors.Is(err, policies.ErrBadFree) {
				return fmt.Errorf("Free of handle %#x, which is not live, returned %v; it must wrap ErrBadFree", uint64(h), err)
			}
		}
	}
	// What FreeCompleted says of a handle that was never freed is the
	// policy's affair, but it must change nothing.
	for _, h := range []policies.Handle{0, math.MaxUint64} {
		_ = r.policy.FreeCompleted(h)
	}
	if i := r.choose(pick, false); i >= 0 {
		_ = r.policy.FreeCompleted(r.blocks[i].Handle)
	}
	if *r.policy.Stats() != before {
		return errors.New("a bad free changed the statistics")
	}
	return nil
}

// check holds the policy against the model.
func (r *run) check() error {
	s := r.policy.Stats()
	var size, active, padded, requested, livePadded, liveRequested int64
	var live, pending, segments, freeBytes int64
	expandable := false
	byHandle := make(map[policies.Handle]block, len(r.blocks))
	for _, b := range r.blocks {
		byHandle[b.Handle] = b
	}
	end := uint64(0)
	for _, seg := range r.policy.Segments(nil) {
		if seg.Addr < end {
			return fmt.Errorf("segment at %#x overlaps or precedes the one before it", seg.Addr)
		}
		end = seg.Addr + uint64(seg.Size)
		size += seg.Size
		segments++
		expandable = expandable || seg.Expandable
		at := seg.Addr
		for _, b := range seg.Blocks {
			if b.Addr != at || b.Size <= 0 {
				return fmt.Errorf("segment %#x: block at %#x of %d bytes where one at %#x was due", seg.Addr, b.Addr, b.Size, at)
			}
			at += uint64(b.Size)
			if b.State == policies.Inactive {
				freeBytes += b.Size
				if b.Handle != 0 || b.Requested != 0 {
					return fmt.Errorf("free block at %#x has handle %#x and %d requested bytes", b.Addr, uint64(b.Handle), b.Requested)
				}
				continue
			}
			want, ok := byHandle[b.Handle]
			if !ok {
				return fmt.Errorf("in Segments, handle %#x is at %#x, which is not in use", uint64(b.Handle), b.Addr)
			}
			delete(byHandle, b.Handle)
			state := policies.ActiveAllocated
			if want.pending {
				state = policies.ActivePendingFree
			}
			if b.Addr != want.Addr || b.Requested != want.size || b.State != state {
				return fmt.Errorf("in Segments, handle %#x is at %#x with %d requested bytes in state %d; it is at %#x with %d bytes in state %d",
					uint64(b.Handle), b.Addr, b.Requested, b.State, want.Addr, want.size, state)
			}
			if b.Size < b.Requested {
				return fmt.Errorf("block at %#x has %d bytes for a request of %d", b.Addr, b.Size, b.Requested)
			}
			if b.Addr%uint64(r.o.Align) != 0 {
				return fmt.Errorf("block at %#x is not aligned to %d bytes", b.Addr, r.o.Align)
			}
			active += b.Size
			requested += b.Requested
			if state == policies.ActiveAllocated {
				live++
				livePadded += b.Size
				liveRequested += b.Requested
			} else {
				pending++
				padded += b.Size
			}
		}
		if at != end {
			return fmt.Errorf("the blocks of segment %#x end at %#x, it ends at %#x", seg.Addr, at, end)
		}
	}
	if len(byHandle) > 0 {
		h := slices.Min(slices.Collect(maps.Keys(byHandle)))
		return fmt.Errorf("handle %#x at %#x is in use, but Segments does not show it", uint64(h), byHandle[h].Addr)
	}

	equal := func(name string, got, want int64) error {
		if got != want {
			return fmt.Errorf("%s is %d; %d expected", name, got, want)
		}
		return nil
	}
	// Allocated bytes count a block's padding or not, but always the same.
	allocatedBytes := s.AllocatedBytes[policies.All].Current
	withPadding := allocatedBytes == livePadded && s.ActiveBytes[policies.All].Current == active
	without := allocatedBytes == liveRequested && s.ActiveBytes[policies.All].Current == requested
	if !withPadding && !without {
		return fmt.Errorf("allocated_bytes is %d and active_bytes %d; Segments shows %d and %d bytes of blocks, %d and %d requested",
			allocatedBytes, s.ActiveBytes[policies.All].Current, livePadded, active, liveRequested, requested)
	}
	errs := []error{
		equal("allocation", s.Allocation[policies.All].Current, live),
		equal("active", s.Active[policies.All].Current, live+pending),
		equal("requested_bytes", s.RequestedBytes[policies.All].Current, requested),
		equal("reserved_bytes against Segments", s.ReservedBytes[policies.All].Current, size),
		equal("reserved_bytes against the device", s.ReservedBytes[policies.All].Current, r.device.Used()),
		equal("reserved bytes by the events", r.events.reserved, size),
		equal("allocations by the events", r.events.allocated, live),
		equal("active blocks by the events", r.events.active, live+pending),
		equal("requested bytes by the events", r.events.requested, requested),
		equal("OOMs by the events", r.events.ooms, s.NumOOMs),
		equal("retries by the events", r.events.retries, s.NumAllocRetries),
	}
	if s.NumDeviceAlloc != 0 || s.NumDeviceFree != 0 { // it counts its calls
		errs = append(errs,
			equal("num_device_alloc against the device", s.NumDeviceAlloc, r.device.Taken()),
			equal("num_device_free against the device", s.NumDeviceFree, r.device.Returned()))
	}
	if !expandable {
		errs = append(errs, equal("segment", s.Segment[policies.All].Current, segments))
	}
	if n := s.InactiveSplitBytes[policies.All].Current; n < 0 || n > freeBytes {
		errs = append(errs, fmt.Errorf("inactive_split_bytes is %d with %d bytes free", n, freeBytes))
	}
	if r.limit > 0 && size > r.limit+r.o.LimitSlack {
		errs = append(errs, fmt.Errorf("%d bytes reserved exceed the limit of %d", size, r.limit))
	}
	for name, a := range statArrays(s) {
		for c := range a {
			if a[c].Current < 0 || a[c].Peak < a[c].Current || a[c].Freed() < 0 {
				errs = append(errs, fmt.Errorf("%s class %d: current %d, peak %d, allocated %d", name, c, a[c].Current, a[c].Peak, a[c].Allocated))
			}
		}
		if a[policies.All].Current != a[policies.Small].Current+a[policies.Large].Current {
			errs = append(errs, fmt.Errorf("%s: all is %d, small %d, large %d", name, a[policies.All].Current, a[policies.Small].Current, a[policies.Large].Current))
		}
	}
	return errors.Join(errs...)
}

func statArrays(s *policies.Stats) map[string]policies.StatArray {
	return map[string]policies.StatArray{
		"allocation": s.Allocation, "allocated_bytes": s.AllocatedBytes,
		"active": s.Active, "active_bytes": s.ActiveBytes, "requested_bytes": s.RequestedBytes,
		"segment": s.Segment, "reserved_bytes": s.ReservedBytes,
		"inactive_split": s.InactiveSplit, "inactive_split_bytes": s.InactiveSplitBytes,
	}
}

// finish frees everything and checks that nothing is left in use.
func (r *run) finish() error {
	r.device.FailAfter(-1)
	for i := range r.blocks {
		b := r.blocks[i]
		r.events.completed = r.events.completed[:0]
		var err error
		if b.pending {
			err = r.policy.FreeCompleted(b.Handle)
		} else {
			err = r.policy.Free(b.Handle, false)
		}
		if err != nil {
			return fmt.Errorf("freeing everything: %w", err)
		}
	}
	r.blocks = nil
	reserved := r.policy.Stats().ReservedBytes[policies.All].Current
	if err := r.check(); err != nil {
		return fmt.Errorf("with everything freed: %w", err)
	}
	if err := r.policy.EmptyCache(); err != nil {
		return fmt.Errorf("EmptyCache with everything freed: %w", err)
	}
	if err := r.check(); err != nil {
		return fmt.Errorf("after EmptyCache with everything freed: %w", err)
	}
	if n := r.policy.Stats().ReservedBytes[policies.All].Current; n > reserved {
		return fmt.Errorf("EmptyCache raised the reserved bytes from %d to %d", reserved, n)
	}
	return nil
}

// verify runs a script and checks every step.
func verify(spec *policies.Spec, o Options, s script) error {
	r, err := newRun(spec, o, s, variant{observed: true, stride: 1})
	if err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return fmt.Errorf("at the start: %w", err)
	}
	var peaks peakTracker
	for i, x := range s.ops {
		if err := r.step(x); err != nil {
			return fmt.Errorf("step %d, %v: %w", i, x, err)
		}
		if err := r.check(); err != nil {
			return fmt.Errorf("after step %d, %v: %w", i, x, err)
		}
		if err := peaks.check(r.policy.Stats()); err != nil {
			return fmt.Errorf("after step %d, %v: %w", i, x, err)
		}
	}
	return r.finish()
}

// peakTracker checks that a peak moves only when its current value reaches it
// or passes through a higher one within a step, which is only possible for the
// bytes reserved.
type peakTracker struct{ allocated, active int64 }

func (p *peakTracker) check(s *policies.Stats) error {
	p.allocated = max(p.allocated, s.AllocatedBytes[policies.All].Current)
	p.active = max(p.active, s.ActiveBytes[policies.All].Current)
	if got := s.AllocatedBytes[policies.All].Peak; got != p.allocated {
		return fmt.Errorf("allocated_bytes peak is %d; the largest value was %d", got, p.allocated)
	}
	if got := s.ActiveBytes[policies.All].Peak; got != p.active {
		return fmt.Errorf("active_bytes peak is %d; the largest value was %d", got, p.active)
	}
	return nil
}

// compareRuns runs a script in ways that must not matter.
func compareRuns(spec *policies.Spec, o Options, s script) error {
	variants := []struct {
		name string
		v    variant
	}{
		{"the first run", variant{observed: true, stride: 1}},
		{"a second run", variant{observed: true, stride: 1}},
		{"a run with other addresses", variant{observed: true, stride: 1, base: 1 << 40}},
		{"a run with other stream numbers", variant{observed: true, stride: 3}},
		{"a run with invalid handles between the steps", variant{observed: true, stride: 1, intruders: true}},
	}
	var first []outcome
	for i, x := range variants {
		r, err := newRun(spec, o, s, x.v)
		if err != nil {
			return err
		}
		for j, y := range s.ops {
			if err := r.step(y); err != nil {
				return fmt.Errorf("%s, step %d, %v: %w", x.name, j, y, err)
			}
		}
		if i == 0 {
			first = r.trail
			if err := unobserved(spec, o, s, first); err != nil {
				return err
			}
			continue
		}
		if err := sameTrail(x.name, s, first, r.trail); err != nil {
			return err
		}
	}
	return nil
}

func sameTrail(name string, s script, want, got []outcome) error {
	for j := range want {
		if j >= len(got) || got[j] != want[j] {
			return fmt.Errorf("%s differs from the first run in step %d of %d", name, j, len(s.ops))
		}
	}
	return nil
}

// unobserved repeats a script without an observer and with hints about frees
// that may never come, guided by a run with one for the frees that the policy
// completes by itself.
func unobserved(spec *policies.Spec, o Options, s script, want []outcome) error {
	guide, err := newRun(spec, o, s, variant{observed: true, stride: 1})
	if err != nil {
		return err
	}
	r, err := newRun(spec, o, s, variant{stride: 1})
	if err != nil {
		return err
	}
	for j, y := range s.ops {
		if err := guide.step(y); err != nil {
			return err
		}
		if err := r.step(y); err != nil {
			return fmt.Errorf("without an observer, step %d, %v: %w", j, y, err)
		}
		if w, ok := r.policy.(policies.Warmer); ok {
			hints := append([]policies.Handle{0, math.MaxUint64}, r.retired...)
			for _, b := range r.blocks {
				hints = append(hints, b.Handle)
			}
			w.Warm(hints)
		}
		// Forget what the guide knows to be complete.
		for i := 0; i < len(r.blocks); {
			h := r.blocks[i].Handle
			if slices.ContainsFunc(guide.blocks, func(b block) bool { return b.Handle == h }) {
				i++
			} else {
				r.retire(i)
			}
		}
	}
	return sameTrail("a run without an observer", s, want, r.trail)
}

// verifyHuge makes requests that no device can serve.
func verifyHuge(spec *policies.Spec, o Options) error {
	for _, capacity := range o.Capacities {
		r, err := newRun(spec, o, script{capacity: capacity}, variant{observed: true, stride: 1})
		if err != nil {
			return err
		}
		for _, size := range []int64{1 << 47, math.MaxInt64 / 2, math.MaxInt64 - 256, math.MaxInt64} {
			x := op{kind: opAlloc, size: size}
			if err := r.step(x); err != nil {
				return fmt.Errorf("%v: %w", x, err)
			}
			if len(r.blocks) > 0 {
				return fmt.Errorf("%v succeeded on a device of %d bytes", x, capacity)
			}
			if err := r.check(); err != nil {
				return fmt.Errorf("after %v: %w", x, err)
			}
		}
		if err := r.step(op{kind: opAlloc, size: 1}); err != nil {
			return err
		}
		if err := r.finish(); err != nil {
			return err
		}
		for _, size := range []int64{0, -1, math.MinInt64} {
			if _, err := r.policy.Malloc(policies.Request{Size: size}); err == nil {
				return fmt.Errorf("a request of %d bytes succeeded", size)
			}
		}
	}
	return nil
}
