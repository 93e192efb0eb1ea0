package scale

import (
	"fmt"
	"math"

	"allocsim/traces"
)

// alloc is one allocation of a recording, reduced to what alignment looks at.
type alloc struct {
	size  int64 // requested bytes
	event int32 // index in Trace.Events
	// life is the number of allocations made while this one was alive;
	// forever when it is never freed.
	life int32
	// stream and pool are numbered by first use, because handles differ from
	// process to process.
	stream, pool uint16
	// site is where it was allocated, as numbered by sites; 0 = unknown.
	site uint32
}

const forever = math.MaxInt32

// short reports that at most one allocation was made while a was alive: a
// library's scratch, or a temporary.
func (a *alloc) short() bool { return a.life <= 1 }

// program is a recording as a list of allocations.
type program struct {
	value  int64
	trace  *traces.Trace
	allocs []alloc
	// block gives the index in allocs by BlockID.
	block []int32
}

// sites numbers call sites across recordings.
type sites struct {
	ids map[traces.Frame]uint32
}

// of is the number of the innermost user frame of a stack; 0 without one.
func (s *sites) of(st *traces.Stacks, id traces.StackID) uint32 {
	if id == traces.NoStack || int(id) >= len(st.Stack) {
		return 0
	}
	for _, f := range st.Stack[id] {
		frame := st.Frames[f]
		if !frame.User() {
			continue
		}
		n, ok := s.ids[frame]
		if !ok {
			n = uint32(len(s.ids) + 1)
			s.ids[frame] = n
		}
		return n
	}
	return 0
}

// reduce makes a program of a trace. withSites says that every recording has
// stacks. The error is a *Refusal.
func reduce(in Input, s *sites, withSites bool) (*program, error) {
	t := in.Trace
	if t.StartEvents > 0 || t.Start != nil {
		return nil, refuse("%s does not start at the program's start: something was allocated before the recording began", t.Source)
	}
	if len(t.Events) > math.MaxInt32 {
		return nil, fmt.Errorf("%s has %d events; at most %d can be aligned", t.Source, len(t.Events), math.MaxInt32)
	}
	p := &program{value: in.Value, trace: t, block: make([]int32, t.NumBlocks)}
	siteOf := make(map[traces.StackID]uint32) // many allocations share a stack
	named := func(id traces.StackID) uint32 {
		n, ok := siteOf[id]
		if !ok {
			n = s.of(t.Stacks, id)
			siteOf[id] = n
		}
		return n
	}
	streams := make([]int, len(t.Streams))
	pools := make([]int, len(t.Pools))
	rank := func(ranks []int, i int, used *int) uint16 {
		if ranks[i] == 0 {
			*used++
			ranks[i] = *used
		}
		return uint16(ranks[i] - 1)
	}
	var usedStreams, usedPools int
	for i, e := range t.Events {
		switch e.Kind {
		case traces.Alloc:
			a := alloc{size: e.Size, event: int32(i), life: forever,
				stream: rank(streams, int(e.Stream), &usedStreams), pool: rank(pools, int(e.Pool), &usedPools)}
			if withSites && int(e.ID) < len(t.Stacks.ByBlock) {
				a.site = named(t.Stacks.ByBlock[e.ID])
			}
			p.block[e.ID] = int32(len(p.allocs))
			p.allocs = append(p.allocs, a)
		case traces.Free, traces.FreeRequested:
			at := p.block[e.ID]
			p.allocs[at].life = int32(len(p.allocs)) - at - 1
		case traces.OOM:
			return nil, refuse("%s ran out of memory while it was recorded: what the program did then says nothing about other sizes", t.Source)
		}
	}
	if len(p.allocs) == 0 {
		return nil, refuse("%s has no allocations", t.Source)
	}
	return p, nil
}
