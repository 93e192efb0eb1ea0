package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRandomAddressesDoNotRunOut: random placement finds room for more
// segments, and larger ones, than any card has.
func TestRandomAddressesDoNotRunOut(t *testing.T) {
	d := NewDevice(DeviceConfig{Addresses: AddressesRandom, Seed: 1})
	for range 64 {
		if _, err := d.Malloc(1 << 50); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[uint64]bool)
	for range 200_000 {
		addr, err := d.Malloc(2 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if seen[addr] {
			t.Fatalf("address %#x was given twice", addr)
		}
		seen[addr] = true
	}
}

// naiveDriver is the rule of spec driver.md section 2 in its plainest form:
// everything is searched from end to end.
type naiveDriver struct {
	chunks []*chunk // oldest first
	top    uint64
}

func newNaiveDriver(sideStreams bool) *naiveDriver {
	n := &naiveDriver{top: lift + modelA - 416<<20}
	add := func(addr uint64, size int64) {
		n.chunks = append(n.chunks, &chunk{span: span{lift + addr, size}, gaps: []span{{lift + addr, size}}, maxGap: size, initial: true})
	}
	if sideStreams {
		n.top = lift + modelA - 32<<20
		add(modelA-26<<20, 26<<20)
		return n
	}
	add(modelA+72<<20, 24<<20)
	add(modelA-2<<20, 2<<20)
	return n
}

func (n *naiveDriver) alloc(size int64) uint64 { return n.find(size) - lift }

func (n *naiveDriver) find(size int64) uint64 {
	for _, c := range slices.Backward(n.chunks) {
		if c.maxGap >= size {
			return c.take(size)
		}
	}
	cs := roundUp(size, chunkUnit)
	highestFirst := slices.DeleteFunc(slices.Clone(n.chunks), func(c *chunk) bool { return c.initial })
	slices.SortFunc(highestFirst, func(a, b *chunk) int {
		if a.addr > b.addr {
			return -1
		}
		return 1
	})
	end := n.top
	for _, c := range highestFirst {
		if int64(end-c.end()) >= cs+chunkUnit {
			break
		}
		end = c.addr
	}
	c := &chunk{span: span{end - uint64(cs), cs}, gaps: []span{{end - uint64(cs), cs}}, maxGap: cs}
	n.chunks = append(n.chunks, c)
	return c.take(size)
}

func (n *naiveDriver) free(addr uint64, size int64) {
	addr += lift
	k := slices.IndexFunc(n.chunks, func(c *chunk) bool { return addr >= c.addr && addr < c.end() })
	c := n.chunks[k]
	c.give(span{addr, size})
	if c.maxGap == c.size && !c.initial {
		n.chunks = slices.Delete(n.chunks, k, k+1)
	}
}

// TestDriverModelAgainstNaive: the searches by tree and by list of holes give
// the addresses of the plain rule.
func TestDriverModelAgainstNaive(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		model, naive := newDriverModel(seed%2 == 0), newNaiveDriver(seed%2 == 0)
		var live []span
		for op := range 4000 {
			// Phases in which it grows and shrinks, so that chunks go and the
			// table of chunks is made anew.
			if grow := op/500%2 == 0; len(live) == 0 || rng.IntN(8) > 2 == grow {
				size := int64(Granule) * (1 + rng.Int64N(10))
				switch {
				case seed%8 == 7 && rng.IntN(4) == 0: // more than lies below modelA
					size = Granule * (1 + rng.Int64N(1<<24))
				case rng.IntN(4) == 0:
					size = Granule * (1 + rng.Int64N(200))
				}
				got, want := model.alloc(size), naive.alloc(size)
				if got != want {
					t.Fatalf("seed %d, operation %d: alloc(%d) = %#x, want %#x", seed, op, size, got, want)
				}
				live = append(live, span{got, size})
				continue
			}
			k := rng.IntN(len(live))
			model.free(live[k].addr, live[k].size)
			naive.free(live[k].addr, live[k].size)
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
		}
		if model.gone == 0 && len(model.holes) == 1 {
			t.Errorf("seed %d: no chunk was given back", seed)
		}
	}
}

// TestMaxTree holds the tree against a search from the end.
func TestMaxTree(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var tree maxTree
	var list []int64
	for range 20_000 {
		x := rng.Int64N(1000)
		if len(list) == 0 || rng.IntN(8) == 0 {
			if i := tree.push(x); i != len(list) {
				t.Fatalf("push gives index %d, want %d", i, len(list))
			}
			list = append(list, x)
		} else {
			i := rng.IntN(len(list))
			tree.set(i, x)
			list[i] = x
		}
		x = 1 + rng.Int64N(1100)
		want := len(list) - 1
		for want >= 0 && list[want] < x {
			want--
		}
		if got := tree.last(x); got != want {
			t.Fatalf("last(%d) of %d = %d, want %d", x, len(list), got, want)
		}
	}
}
