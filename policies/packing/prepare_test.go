package packing

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"allocsim/policies"
	"allocsim/policies/policytest"
)

// futureOf is a run that makes the buffers' calls at their times: frees first,
// as lifetimes are half-open.
func futureOf(bs []Buffer) *policies.Future {
	type call struct {
		at     int64
		malloc bool
		i      int
	}
	var calls []call
	for i, b := range bs {
		calls = append(calls, call{b.Lower, true, i}, call{b.Upper, false, i})
	}
	slices.SortStableFunc(calls, func(a, b call) int {
		if a.at == b.at && a.malloc != b.malloc {
			if a.malloc {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.at, b.at)
	})
	run := &policies.Future{Calls: int64(len(calls))}
	index := make([]int, len(bs))
	for k, c := range calls {
		if c.malloc {
			index[c.i] = len(run.Lifetimes)
			run.Lifetimes = append(run.Lifetimes, policies.Lifetime{Size: bs[c.i].Size, Malloc: int64(k), MallocUS: c.at})
		} else {
			l := &run.Lifetimes[index[c.i]]
			l.Free, l.FreeUS = int64(k), c.at
		}
	}
	return run
}

// serve runs the calls of a run and returns the first failure.
func serve(t *testing.T, run *policies.Future, p policies.Policy) error {
	handles := make([]policies.Handle, len(run.Lifetimes))
	type call struct{ malloc, free int }
	calls := make([]call, run.Calls)
	for i, l := range run.Lifetimes {
		calls[l.Malloc].malloc = i + 1
		if l.Free < run.Calls {
			calls[l.Free].free = i + 1
		}
	}
	for _, c := range calls {
		if i := c.malloc - 1; i >= 0 {
			b, err := p.Malloc(policies.Request{Size: run.Lifetimes[i].Size})
			if err != nil {
				return err
			}
			handles[i] = b.Handle
		}
		if i := c.free - 1; i >= 0 {
			if err := p.Free(handles[i], false); err != nil {
				t.Fatal(err)
			}
		}
	}
	return nil
}

// TestBuffersTime: lifetimes are the run's own times where these say in which
// order the calls came, else call numbers.
func TestBuffersTime(t *testing.T) {
	life := func(size, malloc, free, mallocUS, freeUS int64) policies.Lifetime {
		return policies.Lifetime{Size: size, Malloc: malloc, Free: free, MallocUS: mallocUS, FreeUS: freeUS}
	}
	for _, c := range []struct {
		what string
		run  policies.Future
		want []Buffer
	}{
		{"a free before a Malloc of the same µs", policies.Future{Calls: 3, Lifetimes: []policies.Lifetime{life(1, 0, 1, 5, 90), life(513, 2, 3, 90, 91)}},
			[]Buffer{{ID: 0, Lower: 5, Upper: 90, Size: 512, Alignment: 512}, {ID: 1, Lower: 90, Upper: 91, Size: 1024, Alignment: 512}}},
		{"a free after a Malloc of the same µs", policies.Future{Calls: 3, Lifetimes: []policies.Lifetime{life(1, 0, 2, 5, 90), life(513, 1, 3, 90, 91)}},
			[]Buffer{{ID: 0, Lower: 0, Upper: 2, Size: 512, Alignment: 512}, {ID: 1, Lower: 1, Upper: 3, Size: 1024, Alignment: 512}}},
		{"time that goes back", policies.Future{Calls: 3, Lifetimes: []policies.Lifetime{life(1, 0, 1, 5, 90), life(513, 2, 3, 80, 91)}},
			[]Buffer{{ID: 0, Lower: 0, Upper: 1, Size: 512, Alignment: 512}, {ID: 1, Lower: 2, Upper: 3, Size: 1024, Alignment: 512}}},
	} {
		if got := Buffers(&c.run, 512); !slices.EqualFunc(got, c.want, func(a, b Buffer) bool {
			return a.ID == b.ID && a.Lower == b.Lower && a.Upper == b.Upper && a.Size == b.Size && a.Alignment == b.Alignment
		}) {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// paged is a device whose cudaMalloc takes whole pages of 2 MiB.
type paged struct{ *policytest.Device }

func (d paged) Malloc(size int64) (uint64, error) {
	if free, _ := d.MemInfo(); (size+page-1)/page*page > free {
		return 0, policies.ErrOutOfMemory
	}
	return d.Device.Malloc(size)
}

// TestPrepareRoom: the policy finds placements that are known to exist in
// exactly the room there is, which is less than a page of cudaMalloc.
func TestPrepareRoom(t *testing.T) {
	const room = 1 << 20
	for seed := range uint64(4) {
		bs := cut(rand.New(rand.NewPCG(seed, 7)), 90, 1_000_000, room/512)
		for i := range bs {
			bs[i].Size *= 512
		}
		run := futureOf(bs)
		run.Room = room
		spec, err := Registration.Parse("")
		if err != nil {
			t.Fatal(err)
		}
		done, err := spec.Prepare(context.Background(), run)
		if err != nil {
			t.Fatal(err)
		}
		p, err := done.New(policies.Env{Device: paged{policytest.NewDevice(room)}})
		if err != nil {
			t.Fatal(err)
		}
		if err := serve(t, run, p); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if got := p.Stats().ReservedBytes[policies.All].Peak; got != room {
			t.Errorf("seed %d: %d bytes reserved, want %d", seed, got, room)
		}
		if err := p.EmptyCache(); err != nil || p.Stats().ReservedBytes[policies.All].Current != 0 {
			t.Errorf("seed %d: %d bytes stay after EmptyCache (%v)", seed, p.Stats().ReservedBytes[policies.All].Current, err)
		}
		if note := done.Notes[len(done.Notes)-1]; !strings.Contains(note, "no other takes less") {
			t.Errorf("seed %d: %s", seed, note)
		}
		// One unit less, and it is proved that nothing fits.
		run.Room -= 512
		if done, err = spec.Prepare(context.Background(), run); err != nil {
			t.Fatal(err)
		}
		if note := strings.Join(done.Notes, " "); !strings.Contains(note, "No placement fits in 1023.50 KiB (1048064 bytes): that is proved.") {
			t.Errorf("seed %d: %s", seed, note)
		}
		if p, err = done.New(policies.Env{Device: paged{policytest.NewDevice(run.Room)}}); err != nil {
			t.Fatal(err)
		}
		if err := serve(t, run, p); !errors.Is(err, policies.ErrOutOfMemory) {
			t.Errorf("seed %d: a run that cannot fit ends with %v", seed, err)
		}
		if got := p.Stats().ReservedBytes[policies.All].Peak; got != run.Room {
			t.Errorf("seed %d: %d of %d bytes taken", seed, got, run.Room)
		}
	}
}

// TestPrepareTarget: what a search for the least misses within its budget, the
// search for the room finds. The placement exists: the buffers were cut from a
// full rectangle.
func TestPrepareTarget(t *testing.T) {
	const room = 2048
	spec, err := Registration.Parse("budget=300000,round=1")
	if err != nil {
		t.Fatal(err)
	}
	for _, seed := range []uint64{1, 3, 76, 85} {
		rng := rand.New(rand.NewPCG(seed, 7))
		bs := cut(rng, 120, 1_000_000, room)
		rng.Shuffle(len(bs), func(i, j int) { bs[i], bs[j] = bs[j], bs[i] })
		run := futureOf(bs[7:])
		var heights [2]int64
		for k, r := range []int64{0, room} {
			run.Room = r
			done, err := spec.Prepare(context.Background(), run)
			if err != nil {
				t.Fatal(err)
			}
			p, err := done.New(policies.Env{Device: policytest.NewDevice(0)})
			if err != nil {
				t.Fatal(err)
			}
			if err := serve(t, run, p); err != nil {
				t.Fatal(err)
			}
			heights[k] = p.Stats().ReservedBytes[policies.All].Peak
		}
		if heights[0] <= room || heights[1] > room {
			t.Errorf("seed %d: %d without a target, %d with %d bytes as the target", seed, heights[0], heights[1], room)
		}
	}
}
