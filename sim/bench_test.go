package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces"
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

// run replays a trace b.N times and reports the time for each event.
func run(b *testing.B, tr *traces.Trace, options string, limit int64) {
	spec, err := torch.Parse(options, conf.Latest)
	if err != nil {
		b.Fatal(err)
	}
	var r sim.Runner
	cfg := sim.Config{Policy: spec, Limit: limit, Total: 150109880320}
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

// synthetic makes a trace of n events with about live blocks alive: sizes of
// training, small and large, frees in random order.
func synthetic(n, live int) *traces.Trace {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(live)))
	b := traces.NewBuilder(n)
	s := b.Stream(0)
	var alive []traces.BlockID
	for k := 0; k < n; k++ {
		if len(alive) < live && rng.IntN(8) > 0 || len(alive) == 0 {
			var size int64
			switch rng.IntN(4) {
			case 0:
				size = 512 * (1 + rng.Int64N(8))
			case 1, 2:
				size = 1 + rng.Int64N(1<<20)
			default:
				size = 1<<20 + rng.Int64N(8<<20)
			}
			alive = append(alive, b.Alloc(int64(k), size, s, 0))
			continue
		}
		i := rng.IntN(len(alive))
		b.Free(int64(k), alive[i])
		alive[i] = alive[len(alive)-1]
		alive = alive[:len(alive)-1]
	}
	tr, _, err := b.Build()
	if err != nil {
		panic(err)
	}
	return tr
}

// BenchmarkGrowth shows how the time for each event grows with the length of
// the trace and with the number of live blocks.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000, 10_000_000} {
		tr := synthetic(n, 1000)
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) { run(b, tr, "", 0) })
	}
	for _, live := range []int{100, 1_000, 10_000, 100_000} {
		tr := synthetic(1_000_000, live)
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) { run(b, tr, "", 0) })
	}
}
