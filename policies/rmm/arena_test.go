package rmm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"allocsim/policies"
	"allocsim/policies/policytest"
)

// arenaModel is the arena written down as RMM does it: sorted lists that are
// searched from end to end.
type arenaModel struct {
	// global and streams hold superblocks by address.
	global  []*modelSuper
	streams map[uint16][]*modelSuper
}

type modelSuper struct {
	addr, size int64
	free       []span // by address
}

type span struct{ addr, size int64 }

func (s *modelSuper) empty() bool { return len(s.free) == 1 && s.free[0].size == s.size }

func (s *modelSuper) fit(size int64) int {
	return slices.IndexFunc(s.free, func(f span) bool { return f.size >= size })
}

func (s *modelSuper) take(size int64) int64 {
	i := s.fit(size)
	addr := s.free[i].addr
	if s.free[i].size > size {
		s.free[i] = span{addr + size, s.free[i].size - size}
	} else {
		s.free = slices.Delete(s.free, i, i+1)
	}
	return addr
}

func (s *modelSuper) release(b span) {
	s.free = append(s.free, b)
	slices.SortFunc(s.free, func(a, b span) int { return int(a.addr - b.addr) })
	for i := 0; i+1 < len(s.free); {
		if s.free[i].addr+s.free[i].size == s.free[i+1].addr {
			s.free[i].size += s.free[i+1].size
			s.free = slices.Delete(s.free, i+1, i+2)
		} else {
			i++
		}
	}
}

func sortSupers(list []*modelSuper) {
	slices.SortFunc(list, func(a, b *modelSuper) int { return int(a.addr - b.addr) })
}

// firstFit takes a superblock out of the global arena.
func (m *arenaModel) firstFit(size int64) *modelSuper {
	i := slices.IndexFunc(m.global, func(s *modelSuper) bool { return s.fit(size) >= 0 })
	if i < 0 {
		return nil
	}
	s := m.global[i]
	m.global = slices.Delete(m.global, i, i+1)
	if least := max(superblockSize, size); s.empty() && s.size >= least+superblockSize {
		m.insert(&modelSuper{s.addr + least, s.size - least, []span{{s.addr + least, s.size - least}}})
		s = &modelSuper{s.addr, least, []span{{s.addr, least}}}
	}
	return s
}

// insert puts a superblock into the global arena, joined with its neighbours
// if all are empty.
func (m *arenaModel) insert(s *modelSuper) {
	m.global = append(m.global, s)
	sortSupers(m.global)
	for i := 0; i+1 < len(m.global); {
		a, b := m.global[i], m.global[i+1]
		if a.empty() && b.empty() && a.addr+a.size == b.addr {
			m.global[i] = &modelSuper{a.addr, a.size + b.size, []span{{a.addr, a.size + b.size}}}
			m.global = slices.Delete(m.global, i+1, i+2)
		} else {
			i++
		}
	}
}

func (m *arenaModel) allocate(size int64, stream uint16) int64 {
	if size > superblockSize {
		s := m.firstFit(size)
		if s == nil {
			return -1
		}
		addr := s.take(size)
		m.insert(s)
		return addr
	}
	for _, s := range m.streams[stream] {
		if s.fit(size) >= 0 {
			return s.take(size)
		}
	}
	s := m.firstFit(size)
	if s == nil {
		return -1
	}
	m.streams[stream] = append(m.streams[stream], s)
	sortSupers(m.streams[stream])
	return s.take(size)
}

func (m *arenaModel) malloc(size int64, stream uint16) int64 {
	size = (size + unit - 1) / unit * unit
	if addr := m.allocate(size, stream); addr >= 0 {
		return addr
	}
	for _, list := range m.streams {
		for _, s := range list {
			m.insert(s)
		}
	}
	clear(m.streams)
	return m.allocate(size, stream)
}

func (m *arenaModel) release(addr, size int64) {
	size = (size + unit - 1) / unit * unit
	holds := func(s *modelSuper) bool { return s.addr <= addr && addr < s.addr+s.size }
	for _, list := range m.streams {
		if i := slices.IndexFunc(list, holds); i >= 0 {
			list[i].release(span{addr, size})
			return
		}
	}
	i := slices.IndexFunc(m.global, holds)
	s := m.global[i]
	m.global = slices.Delete(m.global, i, i+1)
	s.release(span{addr, size})
	m.insert(s)
}

// TestArenaAgainstModel compares every address and every failure.
func TestArenaAgainstModel(t *testing.T) {
	const mib = 1 << 20
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int64{mib, 5 * mib, 5*mib + 768, 20*mib + 256, 64 * mib}).Draw(t, "arena")
		a, err := newArena(policies.Env{Device: policytest.NewDevice(0)}, arenaConfig{size: size})
		if err != nil {
			t.Fatal(err)
		}
		m := &arenaModel{global: []*modelSuper{{0, size, []span{{0, size}}}}, streams: make(map[uint16][]*modelSuper)}
		base := a.supers[1].addr
		sizes := rapid.OneOf(
			rapid.Int64Range(1, 4096), rapid.Int64Range(1, mib), rapid.Int64Range(mib, 8*mib),
			rapid.SampledFrom([]int64{mib / 2, mib - 256, mib, mib + 1, 2 * mib, 4 * mib}),
		)
		type live struct {
			policies.Block
			size int64
		}
		var blocks []live
		for range rapid.SampledFrom([]int{5, 50, 250}).Draw(t, "steps") {
			if n := len(blocks); n > 0 && rapid.IntRange(0, 9).Draw(t, "free") < 5 {
				i := rapid.IntRange(0, n-1).Draw(t, "which")
				if err := a.Free(blocks[i].Handle, false); err != nil {
					t.Fatal(err)
				}
				m.release(int64(blocks[i].Addr-base), blocks[i].size)
				blocks = slices.Delete(blocks, i, i+1)
				continue
			}
			size, stream := sizes.Draw(t, "size"), uint16(rapid.IntRange(0, 2).Draw(t, "stream"))
			want := m.malloc(size, stream)
			b, err := a.Malloc(policies.Request{Size: size, Stream: stream})
			switch {
			case (err == nil) != (want >= 0):
				t.Fatalf("%d bytes on stream %d: %v; the model has address %d", size, stream, err, want)
			case err == nil && int64(b.Addr-base) != want:
				t.Fatalf("%d bytes on stream %d at %d; the model says %d", size, stream, b.Addr-base, want)
			case err == nil:
				blocks = append(blocks, live{b, size})
			}
		}
	})
}
