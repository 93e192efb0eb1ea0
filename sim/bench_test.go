package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
	"allocsim/traces/formats/formatstest"
)

// benchmarkConfs are the options that change what is hot.
var benchmarkConfs = []struct {
	name, conf string
	limit      int64 // bytes
}{
	{"default", "", 0},
	{"expandable", "expandable_segments:True", 0},
	{"max_split", "max_split_size_mb:128", 0},
	{"roundup", "roundup_power2_divisions:4", 0},
	{"gc", "garbage_collection_threshold:0.6", 16 << 30},
	{"all", "max_split_size_mb:128,garbage_collection_threshold:0.6,roundup_power2_divisions:[1:4,64:2,>:8]", 16 << 30},
}

// run replays a trace b.N times, after one run that is not counted, and reports
// the time for each event.
func run(b *testing.B, tr *traces.Trace, options string, limit int64) {
	spec, err := torch.Parse(options, conf.Latest)
	if err != nil {
		b.Fatal(err)
	}
	var r sim.Runner
	cfg := sim.Config{Policy: spec, Machine: sim.Machine{Limit: limit, Total: 150109880320}}
	if _, err := r.Run(context.Background(), tr, cfg); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := r.Run(context.Background(), tr, cfg); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(tr.Events)), "ns/event")
}

func BenchmarkReplay(b *testing.B) {
	for _, name := range []string{"bert_large_varlen__default", "gnn__default", "resnet50_amp__default", "vit_accum__default"} {
		path := "../testdata/recordings/" + name + ".pickle.zst"
		tr := tryLoad(b, path, "../../shared/recordings/workloads/"+name+".pickle.zst")
		if tr == nil {
			continue
		}
		for _, c := range benchmarkConfs {
			b.Run(name+"/"+c.name, func(b *testing.B) { run(b, tr, c.conf, c.limit) })
		}
	}
}

// sizeOf draws a request of the kinds that training makes, small and large.
func sizeOf(rng *rand.Rand) int64 {
	switch rng.IntN(4) {
	case 0:
		return 512 * (1 + rng.Int64N(8))
	case 1, 2:
		return 1 + rng.Int64N(1<<20)
	}
	return 1<<20 + rng.Int64N(8<<20)
}

// steps makes a trace of about n events like training: each step allocates
// what it keeps for backward, with a temporary for every second block, until
// live blocks are alive, and frees them in reverse order, with a temporary each.
func steps(n, live int) *traces.Trace {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(live)))
	b := traces.NewBuilder(n)
	s := b.Stream(0)
	var kept []traces.BlockID
	temporary := func() { b.Free(int64(b.Len()), b.Alloc(int64(b.Len()), sizeOf(rng), s, 0)) }
	for b.Len() < n {
		for len(kept) < live && b.Len() < n {
			kept = append(kept, b.Alloc(int64(b.Len()), sizeOf(rng), s, 0))
			if len(kept)%2 == 0 {
				temporary()
			}
		}
		for len(kept) > 0 && b.Len() < n {
			temporary()
			b.Free(int64(b.Len()), kept[len(kept)-1])
			kept = kept[:len(kept)-1]
		}
	}
	return built(b)
}

// churn makes a trace of n events in which any of about live blocks may go
// next: nothing is near to anything in memory, the worst for a cache.
func churn(n, live int) *traces.Trace {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(live)))
	b := traces.NewBuilder(n)
	s := b.Stream(0)
	var alive []traces.BlockID
	for k := range n {
		if len(alive) < live && rng.IntN(8) > 0 || len(alive) == 0 {
			alive = append(alive, b.Alloc(int64(k), sizeOf(rng), s, 0))
			continue
		}
		i := rng.IntN(len(alive))
		b.Free(int64(k), alive[i])
		alive[i] = alive[len(alive)-1]
		alive = alive[:len(alive)-1]
	}
	return built(b)
}

func built(b *traces.Builder) *traces.Trace {
	tr, _, err := b.Build()
	if err != nil {
		panic(err)
	}
	return tr
}

// BenchmarkGrowth shows how the time for each event grows with the length of
// the trace and with the number of live blocks.
func BenchmarkGrowth(b *testing.B) {
	for _, pattern := range []struct {
		name string
		make func(n, live int) *traces.Trace
	}{{"steps", steps}, {"churn", churn}} {
		for _, n := range []int{10_000, 100_000, 1_000_000, 10_000_000} {
			tr := pattern.make(n, 1000)
			b.Run(fmt.Sprintf("%s/events=%d", pattern.name, n), func(b *testing.B) { run(b, tr, "", 0) })
		}
		for _, live := range []int{100, 1_000, 10_000, 100_000} {
			tr := pattern.make(1_000_000, live)
			b.Run(fmt.Sprintf("%s/live=%d", pattern.name, live), func(b *testing.B) { run(b, tr, "", 0) })
		}
	}
}

// tryLoad reads the first of some files that exists; nil if none does.
func tryLoad(t testing.TB, paths ...string) *traces.Trace {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return formatstest.Load(t, p)
		}
	}
	return nil
}
