package policytest

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"allocsim/policies"
)

// BenchmarkBlocks is the number of blocks that Benchmark keeps alive.
const BenchmarkBlocks = 1000

// Benchmark times a policy in a steady state: 1,000 live blocks with sizes
// from 512 bytes to 32 MiB, evenly spread over the powers of two; each
// iteration frees a random block and allocates another, which is two events.
// It reports ns/event. The device does no work of its own; it is unlimited or
// of capacity bytes.
func Benchmark(b *testing.B, spec *policies.Spec, capacity ...int64) {
	d := &idleDevice{next: mallocTop}
	if len(capacity) > 0 {
		d.total = capacity[0]
	}
	p, err := spec.New(policies.Env{Device: d, Streams: 1})
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	type step struct {
		victim int32
		size   int64
	}
	steps := make([]step, 1<<16)
	for i := range steps {
		steps[i] = step{int32(r.IntN(BenchmarkBlocks)), int64(math.Exp2(9 + 16*r.Float64()))}
	}
	var live [BenchmarkBlocks]policies.Handle
	malloc := func(size int64) policies.Handle {
		x, err := p.Malloc(policies.Request{Size: size})
		if err != nil && !errors.Is(err, policies.ErrOutOfMemory) {
			b.Fatal(err)
		}
		return x.Handle
	}
	for i := range live {
		live[i] = malloc(steps[i].size)
	}
	i := 0
	round := func() {
		s := &steps[i&(len(steps)-1)]
		i++
		if h := live[s.victim]; h != 0 {
			if err := p.Free(h, false); err != nil {
				b.Fatal(err)
			}
		}
		live[s.victim] = malloc(s.size)
	}
	for range 2 * len(steps) {
		round()
	}
	ooms := p.Stats().NumOOMs
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		round()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/event")
	if p.Stats().NumOOMs != ooms {
		b.Fatal("the benchmark ran out of memory")
	}
}

// idleDevice hands out descending addresses and remembers nothing.
type idleDevice struct {
	next, reservation uint64
	total, used       int64
}

func (d *idleDevice) Total() int64 { return d.total }

func (d *idleDevice) MemInfo() (free, total int64) {
	if d.total == 0 {
		return math.MaxInt64, 0
	}
	return d.total - d.used, d.total
}

func (d *idleDevice) Malloc(size int64) (uint64, error) {
	if d.total > 0 && size > d.total-d.used {
		return 0, policies.ErrOutOfMemory
	}
	d.used += size
	room := (uint64(size) + 511) &^ 511
	if d.next < mallocTop/2 {
		d.next = mallocTop
	}
	d.next -= room
	return d.next, nil
}

func (d *idleDevice) Free(_ uint64, size int64) error {
	d.used -= size
	return nil
}

func (d *idleDevice) Reserve(size int64) (uint64, error) {
	d.reservation += reserveBase
	return d.reservation, nil
}

func (d *idleDevice) Release(uint64, int64) error         { return nil }
func (d *idleDevice) Map(_ uint64, size, _ int64) error   { d.used += size; return nil }
func (d *idleDevice) Unmap(_ uint64, size, _ int64) error { d.used -= size; return nil }
