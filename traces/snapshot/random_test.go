package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"allocsim/internal/pickle/pickletest"
	"allocsim/traces"
)

// program is a random but possible history of an allocator: blocks anywhere in
// segments, frees that complete at once or later, segments that come and go.
type program struct {
	entries pickletest.List
	segs    map[uint64]*programSegment
	live    map[uint64]*programBlock
	// states[i] is a summary of what was live before entry i.
	states []map[uint64]string
}

type programSegment struct {
	size   uint64
	stream int
}

type programBlock struct {
	size    uint64
	stream  int
	pending bool
}

const unit = 1 << 12

func (p *program) entry(action string, addr, size uint64, stream int) {
	before := make(map[uint64]string)
	for a, b := range p.live {
		before[a] = fmt.Sprint(b.size, b.stream, b.pending)
	}
	p.states = append(p.states, before)
	p.entries = append(p.entries, pickletest.Dict{
		pickletest.KV("action", action), pickletest.KV("addr", int64(addr)), pickletest.KV("size", int64(size)),
		pickletest.KV("stream", stream), pickletest.KV("time_us", 100+len(p.entries)),
	})
}

// step adds entries for one thing that the program or the driver does.
func (p *program) step(t *rapid.T) {
	segs := slices.Sorted(maps.Keys(p.segs))
	blocks := slices.Sorted(maps.Keys(p.live))
	switch k := rapid.IntRange(0, 9).Draw(t, "step"); {
	case k == 0 || len(segs) == 0:
		addr := 0x100000 + 16*unit*rapid.Uint64Range(0, 7).Draw(t, "slot")
		if p.segs[addr] != nil {
			return
		}
		s := &programSegment{16 * unit, rapid.IntRange(0, 2).Draw(t, "stream")}
		p.entry("segment_alloc", addr, s.size, s.stream)
		p.segs[addr] = s
	case k == 1:
		addr := rapid.SampledFrom(segs).Draw(t, "segment")
		for a := range p.live {
			if a >= addr && a < addr+p.segs[addr].size {
				return
			}
		}
		p.entry("segment_free", addr, p.segs[addr].size, p.segs[addr].stream)
		delete(p.segs, addr)
	case k < 6:
		seg := rapid.SampledFrom(segs).Draw(t, "segment")
		at := rapid.Uint64Range(0, 15).Draw(t, "at")
		n := rapid.Uint64Range(1, 16-at).Draw(t, "units")
		addr := seg + at*unit
		for a, b := range p.live {
			if a < addr+n*unit && a+b.size > addr {
				return
			}
		}
		size := n*unit - rapid.Uint64Range(0, unit-1).Draw(t, "less")
		p.entry("alloc", addr, size, p.segs[seg].stream)
		p.live[addr] = &programBlock{size, p.segs[seg].stream, false}
	case len(blocks) > 0:
		addr := rapid.SampledFrom(blocks).Draw(t, "block")
		b := p.live[addr]
		if b.pending {
			p.entry("free_completed", addr, b.size, b.stream)
			delete(p.live, addr)
			return
		}
		p.entry("free_requested", addr, b.size, b.stream)
		b.pending = true
		if rapid.IntRange(0, 2).Draw(t, "wait") > 0 {
			p.entry("free_completed", addr, b.size, b.stream)
			delete(p.live, addr)
		}
	}
}

// segments is the final state as a snapshot has it.
func (p *program) segments() pickletest.List {
	out := pickletest.List{}
	for _, addr := range slices.Sorted(maps.Keys(p.segs)) {
		s := p.segs[addr]
		blocks := pickletest.List{}
		at := addr
		add := func(size, requested uint64, state string) {
			if size == 0 {
				return
			}
			blocks = append(blocks, pickletest.Dict{pickletest.KV("address", int64(at)), pickletest.KV("size", int64(size)), pickletest.KV("requested_size", int64(requested)), pickletest.KV("state", state)})
			at += size
		}
		for _, a := range slices.Sorted(maps.Keys(p.live)) {
			if b := p.live[a]; a >= addr && a < addr+s.size {
				add(a-at, 0, "inactive")
				state := "active_allocated"
				if b.pending {
					state = "active_pending_free"
				}
				add((b.size+unit-1)/unit*unit, b.size, state)
			}
		}
		add(addr+s.size-at, 0, "inactive")
		out = append(out, pickletest.Dict{
			pickletest.KV("device", 0), pickletest.KV("address", int64(addr)), pickletest.KV("total_size", int64(s.size)),
			pickletest.KV("stream", s.stream), pickletest.KV("segment_type", "large"), pickletest.KV("blocks", blocks),
		})
	}
	return out
}

// TestRandomPrograms: every possible history is accepted, from its beginning
// and cut anywhere, and the start state is what was live at the cut. The same
// history with one entry taken out, doubled or moved to another address is
// refused, or it is read as something consistent.
func TestRandomPrograms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &program{segs: map[uint64]*programSegment{}, live: map[uint64]*programBlock{}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			p.step(t)
		}
		read := func(entries pickletest.List) (*traces.Trace, error) {
			root := pickletest.Dict{pickletest.KV("segments", p.segments()), pickletest.KV("device_traces", pickletest.List{entries})}
			rec, err := Read(context.Background(), bytes.NewReader(pickletest.Marshal(root, 4)), Options{})
			if err != nil {
				return nil, err
			}
			return rec.Devices[0], nil
		}
		if len(p.entries) < 2 {
			return // one entry is no history
		}
		whole, err := read(p.entries)
		if err != nil {
			t.Fatal(err)
		}
		checkTrace(t, whole)
		if whole.Start != nil {
			t.Fatal("a complete history has a start state")
		}

		cut := rapid.IntRange(0, len(p.entries)-2).Draw(t, "cut")
		tr, err := read(p.entries[cut:])
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		checkTrace(t, tr)
		got := make(map[uint64]string)
		if tr.Start != nil {
			for _, s := range tr.Start.Segments {
				for _, b := range s.Blocks {
					if b.State != traces.Inactive {
						got[b.Addr] = fmt.Sprint(b.Requested, tr.Streams[s.Stream], b.State == traces.ActivePendingFree)
					}
				}
			}
		}
		requested := slices.ContainsFunc(p.entries[cut:], func(e any) bool { return e.(pickletest.Dict)[0].Value == "free_requested" })
		completed := slices.ContainsFunc(p.entries[cut:], func(e any) bool { return e.(pickletest.Dict)[0].Value == "free_completed" })
		// With one half of the frees alone it is unknown what is pending.
		if requested == completed && !maps.Equal(got, p.states[cut]) {
			t.Fatalf("cut at %d: start state %v, want %v", cut, got, p.states[cut])
		}

		bent := slices.Clone(p.entries)
		i := rapid.IntRange(0, len(bent)-1).Draw(t, "bend")
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			bent = slices.Delete(bent, i, i+1)
		case 1:
			bent = slices.Insert(bent, i, bent[i])
		default:
			e := slices.Clone(bent[i].(pickletest.Dict))
			e[1].Value = e[1].Value.(int64) + 2*unit
			bent[i] = e
		}
		if len(bent) == 0 {
			return
		}
		if tr, err := read(bent); err == nil {
			checkTrace(t, tr)
			if tr.Start == nil && len(tr.Notes) == 0 {
				t.Fatalf("a bent history (entry %d) was taken for a complete one", i)
			}
		}
	})
}
