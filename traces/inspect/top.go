package inspect

import (
	"cmp"
	"slices"

	"allocsim/traces"
)

// Lifetime says how long memory stays.
type Lifetime string

// The lifetimes.
const (
	// Persistent memory outlives iterations: parameters, optimizer states,
	// caches, leaks.
	Persistent Lifetime = "persistent"
	// PerIteration memory is made anew in each iteration and lives for a good
	// part of it: activations, gradients, batches.
	PerIteration Lifetime = "per iteration"
	// Transient memory is the working space of single operations.
	Transient Lifetime = "transient"
)

// Holder is a group of blocks that are live at one moment.
type Holder struct {
	// Where is the call site, or the size class where no frames were recorded.
	Where string `json:"where"`
	// Bytes are requested bytes.
	Bytes    int64    `json:"bytes"`
	Blocks   int      `json:"blocks"`
	Lifetime Lifetime `json:"lifetime"`
}

// TopReport says who holds memory at one moment.
type TopReport struct {
	// Event is the index in Trace.Events after which the memory is looked at;
	// -1 when the trace has no events and its final segments are.
	Event int
	// TimeUS is its time in µs since the start of the trace.
	TimeUS int64
	// Bytes and Blocks are requested bytes and blocks in all.
	Bytes  int64
	Blocks int
	// Holders are sorted by falling bytes.
	Holders []Holder
}

const (
	// A block that lives for less than this share of an iteration, in events,
	// is transient.
	transientShare = 0.05
	// Without iterations, one that lives for this share of the trace counts as
	// persistent and any other as transient.
	persistentShare = 0.5
)

// Top says who holds the memory at the moment when most requested bytes are
// live (allocated and not yet given back). Memory that the program keeps for
// less than the rest of an iteration is told from what it keeps for good by
// FindIterations.
func Top(t *traces.Trace) TopReport {
	if len(t.Events) == 0 {
		return topFinal(t)
	}
	birth := make([]int32, t.NumBlocks)
	death := make([]int32, t.NumBlocks) // len(Events) = never
	var peak int64
	at := 0
	live := t.Live()
	for i := range t.Events {
		e := &t.Events[i]
		live.See(e)
		if live.Allocated > peak {
			peak, at = live.Allocated, i
		}
		switch e.Kind {
		case traces.Alloc:
			birth[e.ID], death[e.ID] = int32(i), int32(len(t.Events))
		case traces.Free, traces.FreeRequested:
			death[e.ID] = int32(i)
		case traces.OOM:
			birth[e.ID], death[e.ID] = int32(len(t.Events)), 0
		}
	}
	it := FindIterations(t)
	sites := newSiteNames(t)
	r := TopReport{Event: at, TimeUS: t.Events[at].TimeUS, Bytes: peak}
	var c collector
	for id := range birth {
		if int(birth[id]) > at || int(death[id]) <= at {
			continue
		}
		r.Blocks++
		c.add(sites.of(traces.BlockID(id)), live.Size(traces.BlockID(id)), lifetime(t, &it, int(birth[id]), int(death[id])), t.Stacks != nil)
	}
	r.Holders = c.sorted()
	return r
}

// lifetime classifies a block that is allocated at one event and given back at
// another (or at the end of the trace if never).
func lifetime(t *traces.Trace, it *Iterations, birth, death int) Lifetime {
	n := len(t.Events)
	if it.Count() == 0 {
		if death == n || float64(death-birth) >= persistentShare*float64(n) {
			return Persistent
		}
		return Transient
	}
	first, last := it.at(birth), it.at(death)
	if last-first >= 2 || death == n && first < 0 {
		return Persistent
	}
	loop := float64(it.Bounds[it.Count()]-it.Bounds[0]) / float64(it.Count())
	if float64(death-birth) < transientShare*loop {
		return Transient
	}
	return PerIteration
}

// topFinal attributes the final segments of a snapshot without events.
func topFinal(t *traces.Trace) TopReport {
	r := TopReport{Event: -1}
	if t.Recorded == nil || t.Recorded.Final == nil {
		return r
	}
	sites := newSiteNames(t)
	var c collector
	for _, s := range t.Recorded.Final.Segments {
		for _, b := range s.Blocks {
			if b.State == traces.Inactive {
				continue
			}
			r.Blocks++
			r.Bytes += b.Requested
			c.add(sites.ofStack(b.Stack), b.Requested, Persistent, t.Stacks != nil)
		}
	}
	r.Holders = c.sorted()
	return r
}

// collector sums up blocks by place and lifetime.
type collector struct {
	groups map[holderKey]*Holder
}

type holderKey struct {
	where    string
	lifetime Lifetime
}

func (c *collector) add(site string, size int64, l Lifetime, framed bool) {
	if site == "" {
		site = "requests of " + sizeClass(size)
		if framed {
			site += " without a call site"
		}
	}
	if c.groups == nil {
		c.groups = make(map[holderKey]*Holder)
	}
	k := holderKey{site, l}
	h := c.groups[k]
	if h == nil {
		h = &Holder{Where: site, Lifetime: l}
		c.groups[k] = h
	}
	h.Bytes += size
	h.Blocks++
}

func (c *collector) sorted() []Holder {
	out := make([]Holder, 0, len(c.groups))
	for _, h := range c.groups {
		out = append(out, *h)
	}
	slices.SortFunc(out, func(x, y Holder) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Where, y.Where), cmp.Compare(x.Lifetime, y.Lifetime))
	})
	return out
}
