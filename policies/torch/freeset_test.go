package torch

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naiveSet is the specification: a list sorted by (size, address).
type naiveSet []*block

func (s naiveSet) search(size int64, addr uint64) int {
	i, _ := slices.BinarySearchFunc(s, block{size: size, addr: addr}, func(b *block, t block) int {
		switch {
		case b.size != t.size:
			if b.size < t.size {
				return -1
			}
			return 1
		case b.addr < t.addr:
			return -1
		case b.addr > t.addr:
			return 1
		}
		return 0
	})
	return i
}

// sizes draws block sizes as allocators see them: few distinct small ones,
// and now and then anything up to terabytes.
func drawSize(n uint64) int64 {
	switch n % 8 {
	case 0:
		return 512
	case 1, 2, 3:
		return int64(n>>3%24+1) * 512
	case 4, 5:
		return int64(n>>3%5000+1) * 512
	case 6:
		return int64(n>>3%300+1) * (2 << 20)
	}
	return int64(n>>3%(1<<33)+1) * 512
}

type setPair struct {
	blocks []block
	fast   freeSet
	naive  naiveSet
	idx    map[uint64]uint32 // by address
}

func newSetPair() *setPair {
	return &setPair{blocks: make([]block, 1), idx: map[uint64]uint32{}}
}

func (p *setPair) insert(size int64, addr uint64) {
	if _, taken := p.idx[addr]; taken {
		return
	}
	i := uint32(len(p.blocks))
	p.blocks = append(p.blocks, block{addr: addr, size: size})
	p.idx[addr] = i
	p.fast.insert(p.blocks, i)
	b := p.blocks[i]
	p.naive = slices.Insert(p.naive, p.naive.search(size, addr), &b)
}

func (p *setPair) removeAt(k int) {
	b := p.naive[k]
	p.fast.remove(p.blocks, p.idx[b.addr])
	delete(p.idx, b.addr)
	p.naive = slices.Delete(p.naive, k, k+1)
}

type fataler interface {
	Fatalf(format string, args ...any)
}

func (p *setPair) check(t fataler, size int64) {
	k := p.naive.search(size, 0)
	i := p.fast.lowerBound(size)
	if (k < len(p.naive)) != (i != 0) {
		t.Fatalf("lowerBound(%d): naive has one: %v, fast: %v", size, k < len(p.naive), i != 0)
	}
	// Walk a few steps with next.
	for step := 0; i != 0; step++ {
		if got, want := p.blocks[i], p.naive[k]; got.addr != want.addr || got.size != want.size {
			t.Fatalf("lowerBound(%d) step %d: %d@%#x, want %d@%#x", size, step, got.size, got.addr, want.size, want.addr)
		}
		if step == 4 {
			return
		}
		i = p.fast.next(p.blocks, i)
		k++
		if (k < len(p.naive)) != (i != 0) {
			t.Fatalf("next after lowerBound(%d) step %d: naive has one: %v", size, step, k < len(p.naive))
		}
	}
}

func TestFreeSetAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newSetPair()
		for range rapid.IntRange(1, 300).Draw(t, "ops") {
			n := rapid.Uint64().Draw(t, "n")
			switch {
			case len(p.naive) > 0 && n%5 < 2:
				p.removeAt(int(n >> 8 % uint64(len(p.naive))))
			default:
				p.insert(drawSize(n), rapid.Uint64Range(1, 1<<12).Draw(t, "addr")*512)
			}
			p.check(t, drawSize(rapid.Uint64().Draw(t, "size")))
		}
		min := drawSize(rapid.Uint64().Draw(t, "min"))
		got := p.fast.appendSorted(nil, p.blocks, min, func(b *block) bool { return b.addr/512%3 != 0 })
		var want []uint64
		for _, b := range p.naive[p.naive.search(min, 0):] {
			if b.addr/512%3 != 0 {
				want = append(want, b.addr)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("appendSorted gives %d blocks, want %d", len(got), len(want))
		}
		for k, i := range got {
			if p.blocks[i].addr != want[k] {
				t.Fatalf("appendSorted[%d] = %#x, want %#x", k, p.blocks[i].addr, want[k])
			}
		}
	})
}

// TestFreeSetMillions holds the set against the naive one under two million
// random operations on a set of some thousand blocks.
func TestFreeSetMillions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	p := newSetPair()
	next := uint64(1)
	ops := 2_000_000
	if testing.Short() {
		ops = 200_000
	}
	for op := range ops {
		if grow := len(p.naive) < 200 || op/100_000%2 == 0 && len(p.naive) < 3000; grow && rng.IntN(5) > 0 || len(p.naive) == 0 {
			p.insert(drawSize(rng.Uint64()), next<<30>>10*512)
			next = next*6364136223846793005 + 1442695040888963407
			next &= 1<<40 - 1
		} else {
			p.removeAt(rng.IntN(len(p.naive)))
		}
		if len(p.blocks) > 1<<16 && len(p.naive) < 3000 {
			// Start over with fresh indices so that memory stays small.
			p = newSetPair()
		}
		if op%16 == 0 {
			p.check(t, drawSize(rng.Uint64()))
		}
	}
}
