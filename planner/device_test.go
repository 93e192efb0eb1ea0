package planner

import (
	"context"
	"strings"
	"testing"

	"allocsim/planner/gpus"
	"allocsim/sim"
	"allocsim/traces"
)

// built is the case of a trace without a recording's events.
func built(t *testing.T, fill func(*traces.Builder)) *Case {
	t.Helper()
	b := traces.NewBuilder(64)
	fill(b)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Meta.Torch = "2.11.0"
	c, err := NewCase(context.Background(), tr, Choice{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTegra: ten blocks of 300 MiB are kept, each after a hole of 500 MiB that
// the next one splits; then 2 GiB come. Expandable segments would be best, but
// a Jetson has none: the present setting needs 6.89 GiB, of 300 MiB as the
// largest block to split 5.42.
func TestTegra(t *testing.T) {
	const mib = 1 << 20
	c := built(t, func(b *traces.Builder) {
		at := int64(0)
		next := func() int64 { at += 10; return at }
		for range 10 {
			hole := b.Alloc(next(), 500*mib, 0, 0)
			b.Free(next(), hole)
			b.Alloc(next(), 300*mib, 0, 0)
		}
		last := b.Alloc(next(), 2048*mib, 0, 0)
		b.Free(next(), last)
	})
	jetson, err := gpus.Find("Jetson Orin Nano 8GB")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Plan(context.Background(), []Case{*c}, PlanOptions{Cards: []gpus.Card{jetson}})
	if err != nil {
		t.Fatal(err)
	}
	v := p.GPUs[0]
	if strings.Contains(v.Conf, "expandable") || v.Conf != "max_split_size_mb:300" || v.ReservedPeak != 5548*mib {
		t.Errorf("%s reserves %d", v.Conf, v.ReservedPeak>>20)
	}
	if !strings.Contains(p.MinCapacity.BestConf, "expandable_segments:True") {
		t.Errorf("elsewhere %s", p.MinCapacity.BestConf)
	}
}

// TestMemPool: a MemPool keeps 600 MiB, and 250 MiB of the default pool do not
// fit beside it into 700 MiB. cudaMallocAsync would do, but has no MemPool; a
// graph's own pool it has.
func TestMemPool(t *testing.T) {
	const mib = 1 << 20
	for id, want := range map[traces.PoolID]bool{{0, 1}: false, {1, 0}: true} {
		c := built(t, func(b *traces.Builder) {
			pool := b.Pool(id)
			x, y := b.Alloc(10, 300*mib, 0, pool), b.Alloc(20, 300*mib, 0, pool)
			b.Free(30, x)
			b.Free(40, y)
			b.EmptyCache(50)
			b.Free(70, b.Alloc(60, 250*mib, 0, 0))
		})
		c.Machine = sim.On(700*mib, 0)
		res, err := Tune(context.Background(), []Case{*c}, TuneOptions{Finalists: -1})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(res.Reason, "only backend:cudaMallocAsync completes"); got != want || res.Export != "" {
			t.Errorf("pool %v: %s", id, res.Reason)
		}
	}
}
