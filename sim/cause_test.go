package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces"
)

// calls makes a trace of words: "a=600" allocates 600 MiB as block a, "a=600@1"
// on stream 1, "a=600#1" in the private pool 1; "-a" frees, "~a" requests a free
// that never completes.
func calls(t *testing.T, words string) *traces.Trace {
	t.Helper()
	b := traces.NewBuilder(0)
	streams := []uint16{b.Stream(0), b.Stream(1)}
	pool := b.Pool(traces.PoolID{0, 1})
	ids := make(map[string]traces.BlockID)
	for i, w := range strings.Fields(words) {
		at := int64(i)
		switch {
		case w[0] == '-':
			b.Free(at, ids[w[1:]])
		case w[0] == '~':
			b.FreeRequested(at, ids[w[1:]])
		default:
			name, what, _ := strings.Cut(w, "=")
			var size float64
			stream, private := streams[0], uint8(0)
			if what, on := strings.CutSuffix(what, "@1"); on {
				stream = streams[1]
				fmt.Sscan(what, &size)
			} else if what, in := strings.CutSuffix(what, "#1"); in {
				private = pool
				fmt.Sscan(what, &size)
			} else {
				fmt.Sscan(what, &size)
			}
			ids[name] = b.Alloc(at, int64(size*(1<<20)), stream, private)
		}
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestCause: who refused, and what a user must know besides, for every
// allocator; the arithmetic is in the comments. Sizes are MiB.
func TestCause(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		policy  string
		machine sim.Machine
		calls   string
		cause   sim.Cause
		reason  string // contained; after "=" all of it
	}{
		// The allocator's own limit, nothing reserved.
		{"bfc:preallocate=false,limit=100MiB", sim.Machine{}, "a=101", sim.CauseLimit, "own limit is 100 MiB"},
		{"bfc", sim.Machine{Capacity: 1000 * mib}, "a=751", sim.CauseLimit, "own limit is 750 MiB. JAX keeps to 75 % of the device's memory"}, // 75 % of 1000
		{"bfc:fraction=0.5", sim.Machine{Capacity: 1000 * mib}, "a=501", sim.CauseLimit, "own limit is 500 MiB. That is the fraction 0.5"},
		{"bfc:vmm=true,limit=100MiB", sim.Machine{}, "a=101", sim.CauseLimit, "own limit is 100 MiB"},
		{"rmm-pool:max=64MiB", sim.Machine{}, "a=65", sim.CauseLimit, "own limit is 64 MiB"},
		{"rmm-binning:max=1GiB", sim.Machine{}, "a=1025", sim.CauseLimit, "own limit is 1 GiB"},
		{"rmm-binning:max=1GiB", sim.Machine{}, "a=1024", sim.CauseFragmentation, "own limit is 1 GiB"}, // all of it is free, cut into the bins' blocks
		{"rmm-fixed", sim.Machine{}, "a=2", sim.CauseLimit, "requests of up to 1 MiB only"},
		{"rmm-arena:size=64MiB", sim.Machine{}, "a=65", sim.CauseLimit, "own limit is 64 MiB. The arena took its memory at the start"},
		{"cupy:limit=50%", sim.Machine{Capacity: 1000 * mib}, "a=501", sim.CauseLimit, "own limit is 500 MiB"},
		{"cupy:limit=100MiB", sim.Machine{}, "a=101", sim.CauseLimit, "own limit is 100 MiB"},
		{"stream:max=64MiB", sim.Machine{}, "a=65", sim.CauseLimit, "own limit is 64 MiB"},
		{"stream", sim.Machine{Limit: 64 * mib}, "a=65", sim.CauseLimit, ""},
		// In use 600 + 500 > 1000, though 400 of 1000 in chunks are free.
		{"torch:backend:cudaMallocAsync", sim.Machine{Limit: 1000 * mib}, "a=400 b=600 -a c=401", sim.CauseLimit, "counts the bytes in use"},
		// The limit of the machine: no sentence needed.
		{"torch", sim.Machine{Limit: 100 * mib}, "a=101", sim.CauseLimit, ""},
		{"direct", sim.Machine{Limit: 100 * mib}, "a=101", sim.CauseLimit, ""},
		{"packing", sim.Machine{Limit: 100 * mib}, "a=101", sim.CauseLimit, "as a whole takes 101 MiB"},
		// The device: 101 > 100; a higher limit would not help.
		{"torch", sim.Machine{Capacity: 100 * mib}, "a=101", sim.CauseCapacity, ""},
		{"torch", sim.Machine{Capacity: 100 * mib, Limit: 102 * mib}, "a=50 b=60", sim.CauseCapacity, ""}, // 52 of the limit left, 50 of the device
		{"bfc:preallocate=false,limit=200MiB", sim.Machine{Capacity: 100 * mib}, "a=101", sim.CauseCapacity, ""},
		{"rmm-pool:max=200MiB", sim.Machine{Capacity: 100 * mib}, "a=101", sim.CauseCapacity, ""},
		{"stream", sim.Machine{Capacity: 64 * mib}, "a=65", sim.CauseCapacity, ""},
		{"cupy", sim.Machine{Capacity: 100 * mib}, "a=101", sim.CauseCapacity, ""},
		{"packing", sim.Machine{Capacity: 100 * mib}, "a=101", sim.CauseCapacity, "as a whole takes 101 MiB"},
		// 2 MiB would fit in 10, the segment of 20 does not; nor does a chunk of 32.
		{"torch", sim.Machine{Capacity: 10 * mib}, "a=2", sim.CauseCapacity, "asks for 20 MiB at a time"},
		{"torch", sim.Machine{Limit: 10 * mib}, "a=2", sim.CauseLimit, "asks for 20 MiB at a time"},
		{"torch:expandable_segments:True", sim.Machine{Capacity: 50 * mib}, "a=45", sim.CauseCapacity, "asks for 60 MiB at a time"},
		{"stream", sim.Machine{Capacity: 10 * mib}, "a=2", sim.CauseCapacity, "asks for 32 MiB at a time"},
		{"rmm-fixed:block=16KiB", sim.Machine{Capacity: 2 * mib}, strings.Repeat("a=0.01 ", 129), sim.CauseCapacity, ""}, // one chunk of 2 MiB is all
		// Pieces: 40 of 100 are free around b, in one segment.
		{"bfc:limit=100MiB", sim.Machine{}, "a=20 b=40 c=20 -a -c d=41", sim.CauseFragmentation, "own limit"},
		{"bfc:limit=100MiB", sim.Machine{}, "a=20 b=39 c=41 -a d=21", sim.CauseLimit, "own limit"}, // 20 free, in one piece
		{"rmm-pool:max=64MiB,initial=64MiB", sim.Machine{}, "a=20 b=20 c=24 -a -c d=25", sim.CauseFragmentation, "own limit"},
		// 30 free inside and 40 of the device make 60 of 60.
		{"cupy", sim.Machine{Capacity: 100 * mib}, "a=30 b=30 -a c=20 d=70", sim.CauseCapacity, ""},
		{"cupy", sim.Machine{Capacity: 100 * mib}, "a=60 -a b=30 c=60", sim.CauseFragmentation, ""},
		// The arithmetic of issue 15.3: 600 wait, 300 live, 1024 - 900 = 124 left.
		{"bfc:preallocate=false,limit=1GiB", sim.Machine{}, "a=600 ~a b=300 c=500", sim.CauseLimit, "A range of 600 MiB would hold it, but waits for another stream"},
		{"stream", sim.Machine{Capacity: 1024 * mib}, "a=600 ~a b=300 c=500", sim.CauseCapacity, "A range of 600 MiB would hold it, but waits for another stream"},
		{"direct", sim.Machine{Capacity: 1024 * mib}, "a=600 ~a b=300 c=500", sim.CauseCapacity, "A range of 600 MiB would hold it, but waits for another stream"},
		{"direct", sim.Machine{Capacity: 1024 * mib}, "a=600 ~a b=300 c=700", sim.CauseCapacity, "600 MiB more will be free when other streams are done"}, // 600 + 124
		{"direct", sim.Machine{Capacity: 1024 * mib}, "a=600 ~a b=300 c=800", sim.CauseCapacity, ""},
		// PyTorch waits itself and serves it from the default pool; in a private
		// pool it does not.
		{"torch", sim.Machine{Capacity: 1024 * mib}, "a=600 ~a b=300 c=500", "", ""},
		{"torch", sim.Machine{Capacity: 1024 * mib}, "a=600 -a b=300#1 c=500#1", sim.CauseFragmentation, "does not flush its cache"},
		{"torch", sim.Machine{Capacity: 1024 * mib}, "a=600#1 ~a b=300#1 c=500#1", sim.CauseCapacity, "waits for another stream"},
		{"torch", sim.Machine{Capacity: 1024 * mib}, "a=600 ~a b=300 c=500#1", sim.CauseCapacity,
			"=The request belongs to a private pool (a CUDA graph capture or a MemPool), and for such the allocator does not flush its cache."},
		// Cached for another stream, split and so not returnable: 20 of a segment of 20.
		{"torch", sim.Machine{Capacity: 40 * mib}, "a=9@1 b=9@1 c=20 -a d=9", sim.CauseFragmentation, "belongs to another stream or private pool"},
	} {
		name := fmt.Sprintf("%s, %+v, %s", c.policy, c.machine, c.calls)
		spec, err := policies.Parse(c.policy)
		if err != nil {
			t.Fatal(err)
		}
		res, err := sim.Run(context.Background(), calls(t, c.calls), sim.Config{Policy: spec, Machine: c.machine})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.cause == "" {
			if len(res.OOMs) > 0 {
				t.Errorf("%s: %+v", name, res.OOMs)
			}
			continue
		}
		if len(res.OOMs) != 1 {
			t.Errorf("%s: %d OOMs, want one", name, len(res.OOMs))
			continue
		}
		o := res.OOMs[0]
		whole, exact := strings.CutPrefix(c.reason, "=")
		if o.Cause != c.cause || !strings.Contains(o.Reason, whole) || (exact || whole == "") && o.Reason != whole {
			t.Errorf("%s:\n got %s: %q (%d reserved)\nwant %s: %q", name, o.Cause, o.Reason, o.Reserved, c.cause, c.reason)
		}
	}
}
