package recovery

import (
	"cmp"
	"slices"

	"allocsim/traces"
)

// layout says which recorded segment each block lived in and which memory pool
// each segment belongs to. A trace up to torch 2.11 does not name the pool of a
// request; but a segment belongs to one pool for all its life, so what is found
// out about one request holds for all that shared its segment.
type layout struct {
	segments []poolSegment
	block    []int32 // segment by BlockID; -1 = none
	known    int     // pools that the snapshot names
	pools    int     // pools in all
}

type poolSegment struct {
	addr       uint64
	size       int64
	born, died traces.BlockID // allocations made before it appeared and vanished
	pool       uint8
	fixed      bool // the snapshot says which pool it is
}

// reservationReach is less than what separates two address-space reservations
// of one process and more than one can map.
const reservationReach = 1 << 37

// newLayout reads the recorded segment events.
func newLayout(tr *traces.Trace) *layout {
	l := &layout{block: make([]int32, tr.NumBlocks), known: len(tr.Pools), pools: len(tr.Pools)}
	for i := range l.block {
		l.block[i] = -1
	}
	var live []int32 // segments that exist, by address
	byAddr := func(addr uint64) (int, bool) {
		return slices.BinarySearchFunc(live, addr, func(s int32, a uint64) int {
			switch x := l.segments[s].addr; {
			case x < a:
				return -1
			case x > a:
				return 1
			}
			return 0
		})
	}
	add := func(addr uint64, size int64, born traces.BlockID) {
		at, found := byAddr(addr)
		if found {
			return
		}
		l.segments = append(l.segments, poolSegment{addr: addr, size: size, born: born, died: traces.NoBlock})
		live = slices.Insert(live, at, int32(len(l.segments)-1))
	}
	holding := func(addr uint64) int32 {
		at, found := byAddr(addr)
		if !found {
			at--
		}
		if at < 0 || at >= len(live) {
			return -1
		}
		s := live[at]
		if addr-l.segments[s].addr >= uint64(l.segments[s].size) {
			return -1
		}
		return s
	}
	if tr.Start != nil {
		for _, s := range tr.Start.Segments {
			add(s.Addr, s.Size, 0)
		}
	}
	driver := tr.Recorded.Driver
	next := 0
	var allocs traces.BlockID
	for k, e := range tr.Events {
		for ; next < len(driver) && int(driver[next].Before) <= k; next++ {
			switch d := driver[next]; d.Action {
			case traces.SegmentAlloc:
				add(d.Addr, d.Size, allocs)
			case traces.SegmentFree:
				if at, found := byAddr(d.Addr); found {
					l.segments[live[at]].died = allocs
					live = slices.Delete(live, at, at+1)
				}
			case traces.SegmentMap:
				if holding(d.Addr) < 0 {
					add(d.Addr, reservationReach, allocs)
				}
			}
		}
		if e.Kind != traces.Alloc {
			continue
		}
		allocs = e.ID + 1
		s := holding(tr.Recorded.Addr[e.ID])
		l.block[e.ID] = s
		if s >= 0 && e.Pool != 0 {
			l.segments[s].pool, l.segments[s].fixed = e.Pool, true
		}
	}
	return l
}

// at returns the segment that held an address when so many allocations had
// been made, the youngest of several; -1 if there was none.
func (l *layout) at(addr uint64, allocs traces.BlockID) int {
	for s := len(l.segments) - 1; addr != 0 && s >= 0; s-- {
		g := &l.segments[s]
		if g.born <= allocs && allocs <= g.died && addr >= g.addr && addr-g.addr < uint64(g.size) {
			return s
		}
	}
	return -1
}

// edits are the changes of pools that could explain a divergence: the recorded
// or the simulated segment belongs to another pool, or the pool of a segment
// that the recording releases has ended.
func (l *layout) edits(tr *traces.Trace, d *Divergence) []edit {
	var allocs traces.BlockID
	for k := min(d.Event, len(tr.Events)-1); k >= 0; k-- {
		if e := tr.Events[k]; e.Kind == traces.Alloc {
			if allocs = e.ID; k < d.Event {
				allocs++
			}
			break
		}
	}
	var es []edit
	sides := []int{l.at(d.recordedAddr, allocs), l.at(d.simulatedAddr, allocs)}
	if sides[0] == sides[1] {
		sides = sides[:1]
	}
	for _, s := range sides {
		if s < 0 || l.segments[s].fixed {
			continue
		}
		for p := 0; p <= l.pools && p <= traces.MaxPools; p++ {
			if p == int(l.segments[s].pool) || p > 0 && p < l.known {
				continue
			}
			n := l.with(s, uint8(p))
			es = append(es, edit{tr: n.apply(tr), layout: n})
		}
	}
	// Two pools that were made up may be one.
	for p := l.known; p < l.pools; p++ {
		for q := p + 1; q < l.pools; q++ {
			n := l.merged(uint8(p), uint8(q))
			es = append(es, edit{tr: n.apply(tr), layout: n})
		}
	}
	if s := sides[0]; s >= 0 && d.recorded == release {
		for p := 1; p < l.pools; p++ {
			n := l
			if p != int(l.segments[s].pool) {
				if l.segments[s].fixed || p < l.known {
					continue
				}
				n = l.with(s, uint8(p))
			}
			es = append(es, n.ends(n.apply(tr), d, uint8(p))...)
		}
	}
	return es
}

// ends are the ways in which private pool p can have ended at a divergence.
func (l *layout) ends(tr *traces.Trace, d *Divergence, p uint8) []edit {
	end := traces.Event{ID: traces.NoBlock, Pool: p, Kind: traces.ReleasePool}
	empty := traces.Event{ID: traces.NoBlock, Pool: p, Kind: traces.EmptyCache}
	all := traces.Event{ID: traces.NoBlock, Kind: traces.EmptyCache}
	at := func(k int, events ...traces.Event) *traces.Trace {
		var in []traces.Insert
		for _, e := range events {
			in = append(in, traces.Insert{Before: k, Event: e})
		}
		return traces.WithEvents(tr, in)
	}
	var es []edit
	// A graph's pool goes with the empty_cache call in front of the request.
	for k := d.Event - 1; k >= tr.StartEvents && tr.Events[k].Kind != traces.Alloc; k-- {
		if e := tr.Events[k]; e.Kind == traces.EmptyCache && e.Pool == 0 {
			es = append(es, edit{tr: at(k, end), shift: 1, layout: l})
			break
		}
	}
	return append(es,
		edit{tr: at(d.Event, end, empty), shift: 2, layout: l},
		edit{tr: at(d.Event, end, all), shift: 2, empty: 1, layout: l})
}

// with returns the layout with another pool for segment s.
func (l *layout) with(s int, pool uint8) *layout {
	n := *l
	n.segments = slices.Clone(l.segments)
	n.segments[s].pool = pool
	n.pools = max(l.pools, int(pool)+1)
	return &n
}

// merged returns the layout with pool q's segments in pool p.
func (l *layout) merged(p, q uint8) *layout {
	n := *l
	n.segments = slices.Clone(l.segments)
	for i := range n.segments {
		if n.segments[i].pool == q {
			n.segments[i].pool = p
		}
	}
	return &n
}

// apply returns the trace with each request in the pool of its segment.
func (l *layout) apply(tr *traces.Trace) *traces.Trace {
	c := *tr
	c.Events = slices.Clone(tr.Events)
	for k := range c.Events {
		if e := &c.Events[k]; e.Kind == traces.Alloc {
			if s := l.block[e.ID]; s >= 0 {
				e.Pool = l.segments[s].pool
			}
		}
	}
	if l.pools > len(tr.Pools) {
		c.Pools = slices.Clone(tr.Pools)
		for p := len(tr.Pools); p < l.pools; p++ {
			c.Pools = append(c.Pools, traces.PoolID{-1, int64(p)})
		}
	}
	return &c
}

// plausibility orders explanations: programs route requests to private pools
// by scopes, so streams change pools rarely and most requests are not private.
type plausibility struct {
	mostly   int // 1 if most requests are private
	switches int // changes of a stream from one pool to another
	private  int // requests in private pools
}

func plausible(tr *traces.Trace) plausibility {
	last := make([]uint8, len(tr.Streams))
	var p plausibility
	for i := range tr.Events {
		e := &tr.Events[i]
		if e.Kind != traces.Alloc {
			continue
		}
		if last[e.Stream] != e.Pool {
			last[e.Stream] = e.Pool
			p.switches++
		}
		if e.Pool != 0 {
			p.private++
		}
	}
	if 2*p.private > tr.NumBlocks {
		p.mostly = 1
	}
	return p
}

func (p plausibility) compare(o plausibility) int {
	return cmp.Or(cmp.Compare(p.mostly, o.mostly), cmp.Compare(p.switches, o.switches), cmp.Compare(p.private, o.private))
}
