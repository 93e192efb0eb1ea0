// Package inspect answers the first questions that anyone asks of a recording:
// what is in it ([Summarize]), who holds the memory at the peak ([Top]), and is
// something growing ([FindLeaks]).
//
// It looks at what the program asked for and at what the real allocator
// reported; it simulates nothing. Bytes are therefore requested bytes unless a
// field says that they come from the source's own counters.
package inspect

import (
	"cmp"
	"math/bits"
	"slices"

	"allocsim/traces"
)

// Summary is what is in a trace. Its JSON form is what `allocsim inspect
// --json` prints.
type Summary struct {
	Source string `json:"source"`
	Format string `json:"format"`
	// Torch is the framework's version; empty when unknown.
	Torch string `json:"torch"`
	// Conf is PYTORCH_CUDA_ALLOC_CONF; null when unknown.
	Conf *string `json:"conf"`
	// Fraction is the memory fraction; null when never set or unknown.
	Fraction    *float64 `json:"fraction"`
	Device      int      `json:"device"`
	DeviceName  string   `json:"device_name"`
	DeviceTotal int64    `json:"device_total"`
	// Events counts the recorded events by kind.
	Events map[string]int `json:"events"`
	// StartBlocks is how many blocks were live before the recording.
	StartBlocks   int      `json:"start_blocks"`
	Blocks        int      `json:"blocks"`
	Streams       int      `json:"streams"`
	StreamHandles []uint64 `json:"stream_handles"`
	Pools         int      `json:"pools"`
	StartUS       int64    `json:"start_us"`
	DurationUS    int64    `json:"duration_us"`
	// Iterations is how many whole iterations were found, IterationsFrom how.
	Iterations     int    `json:"iterations"`
	IterationsFrom string `json:"iterations_from,omitempty"`
	Peak           Peak   `json:"peak"`
	// Largest are the sizes of the largest requests, largest first.
	Largest []Request `json:"largest"`
	// Sizes is the histogram of the requests by powers of two.
	Sizes []SizeBin `json:"sizes"`
	OOMs  []OOM     `json:"ooms"`
	// Notes say what is missing, inferred or lost.
	Notes []string `json:"notes"`
}

// Peak holds the highest values of the memory counters, in bytes.
type Peak struct {
	// Reserved is what the allocator had from the driver; null when the
	// source does not say.
	Reserved *int64 `json:"reserved"`
	// Allocated and Active are the source's own counters, or sums of requested
	// bytes where it has none.
	Allocated int64 `json:"allocated"`
	Active    int64 `json:"active"`
	// Requested is the most requested bytes that were live at once, at TimeUS.
	Requested int64 `json:"requested"`
	TimeUS    int64 `json:"time_us"`
	// Counted tells the source's counters from sums of requested bytes.
	Counted bool `json:"counted"`
}

// Request is a size that was asked for.
type Request struct {
	Size  int64 `json:"size"`
	Count int   `json:"count"`
	// TimeUS is the first time, Where its call site if frames were recorded.
	TimeUS int64  `json:"time_us"`
	Where  string `json:"where,omitempty"`
}

// SizeBin counts the requests of more than Above and up to UpTo bytes.
type SizeBin struct {
	Above int64 `json:"above"`
	UpTo  int64 `json:"up_to"`
	Count int   `json:"count"`
	Bytes int64 `json:"bytes"`
}

// OOM is a request that the recorded allocator could not serve.
type OOM struct {
	TimeUS int64 `json:"time_us"`
	Size   int64 `json:"size"`
	// DeviceFree is the free bytes of the device at that moment; null when
	// unknown.
	DeviceFree *int64 `json:"device_free"`
}

// maxLargest is how many of the largest sizes a summary lists.
const maxLargest = 10

// Summarize describes t.
func Summarize(t *traces.Trace) Summary {
	s := Summary{
		Source: t.Source, Format: t.Format, Torch: t.Meta.Torch,
		Device: t.Device, DeviceName: t.Meta.DeviceName, DeviceTotal: t.Meta.DeviceTotal,
		Events: t.CountByKind(), Blocks: t.NumBlocks,
		Streams: len(t.Streams), StreamHandles: t.Streams, Pools: len(t.Pools),
		StartUS: t.StartUS, DurationUS: t.Duration(),
		Largest: []Request{}, Sizes: []SizeBin{}, OOMs: []OOM{},
		Notes: slices.Clone(t.Notes),
	}
	if s.Notes == nil {
		s.Notes = []string{}
	}
	if t.Meta.ConfKnown {
		s.Conf = &t.Meta.Conf
	}
	if t.Meta.Fraction > 0 {
		s.Fraction = &t.Meta.Fraction
	}
	it := FindIterations(t)
	if s.Iterations = it.Count(); s.Iterations > 0 {
		s.IterationsFrom = it.From
	}

	s.OOMs = append(s.OOMs, ooms(t)...)
	var asked requests
	live := t.Live()
	for i := range t.Events {
		e := &t.Events[i]
		live.See(e)
		s.Peak.Active = max(s.Peak.Active, live.Active)
		if live.Allocated > s.Peak.Requested {
			s.Peak.Requested, s.Peak.TimeUS = live.Allocated, e.TimeUS
		}
		switch {
		case e.Kind != traces.Alloc:
		case i < t.StartEvents:
			s.StartBlocks++
		default:
			asked.add(e)
		}
	}
	s.Peak.Allocated = s.Peak.Requested
	s.Sizes = append(s.Sizes, asked.histogram()...)
	s.Largest = append(s.Largest, asked.largest(newSiteNames(t))...)
	s.counters(t)
	return s
}

// requests counts what was asked for, by size.
type requests struct {
	bySize  []Request        // in the order in which sizes came
	ids     []traces.BlockID // the first block of each
	at      map[int64]int    // by size: index of bySize
	between [65]SizeBin      // by number of bits of size - 1
}

func (r *requests) add(e *traces.Event) {
	k, ok := r.at[e.Size]
	if !ok {
		if r.at == nil {
			r.at = make(map[int64]int)
		}
		k = len(r.bySize)
		r.at[e.Size] = k
		r.bySize = append(r.bySize, Request{Size: e.Size, TimeUS: e.TimeUS})
		r.ids = append(r.ids, e.ID)
	}
	r.bySize[k].Count++
	b := &r.between[bits.Len64(uint64(e.Size-1))]
	b.Count++
	b.Bytes += e.Size
}

// histogram lists the powers of two between which requests lie.
func (r *requests) histogram() []SizeBin {
	var out []SizeBin
	for i, b := range r.between {
		if b.Count == 0 {
			continue
		}
		b.UpTo = int64(1) << i
		if i > 0 {
			b.Above = int64(1) << (i - 1)
		}
		out = append(out, b)
	}
	return out
}

// largest lists the largest sizes, with the call site of their first block.
func (r *requests) largest(sites *siteNames) []Request {
	order := make([]int, len(r.bySize))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(r.bySize[y].Size, r.bySize[x].Size) })
	var out []Request
	for _, i := range order[:min(maxLargest, len(order))] {
		q := r.bySize[i]
		q.Where = sites.of(r.ids[i])
		out = append(out, q)
	}
	return out
}

// ooms lists the requests that failed.
func ooms(t *traces.Trace) []OOM {
	var out []OOM
	for i := range t.Events {
		e := &t.Events[i]
		if e.Kind != traces.OOM {
			continue
		}
		o := OOM{TimeUS: e.TimeUS, Size: e.Size}
		if n := len(out); t.Recorded != nil && n < len(t.Recorded.OOMDeviceFree) && t.Recorded.OOMDeviceFree[n] >= 0 {
			o.DeviceFree = &t.Recorded.OOMDeviceFree[n]
		}
		out = append(out, o)
	}
	return out
}

// counters replaces sums of requests by what the source itself counted: its
// statistics if it has them, else the segments that it took and gave back.
func (s *Summary) counters(t *traces.Trace) {
	if t.Meta.PeakReserved > 0 {
		s.Peak.Reserved = &t.Meta.PeakReserved
	}
	if t.Meta.PeakAllocated > 0 {
		s.Peak.Allocated, s.Peak.Active, s.Peak.Counted = t.Meta.PeakAllocated, t.Meta.PeakAllocated, true
	}
	if t.Recorded == nil || s.statistics(t.Recorded.Stats) {
		return
	}
	if t.Start != nil || len(t.Recorded.Driver) > 0 {
		peak := reservedPeak(t)
		s.Peak.Reserved = &peak
	} else if t.Recorded.Final != nil {
		s.final(t.Recorded.Final, len(t.Events) == 0)
	}
}

// statistics takes the peaks from torch.cuda.memory_stats(); false if it lacks
// one.
func (s *Summary) statistics(stats map[string]int64) bool {
	reserved, ok := stats["reserved_bytes.all.peak"]
	allocated, ok2 := stats["allocated_bytes.all.peak"]
	active, ok3 := stats["active_bytes.all.peak"]
	if !ok || !ok2 || !ok3 {
		return false
	}
	s.Peak.Reserved = &reserved
	s.Peak.Allocated, s.Peak.Active, s.Peak.Counted = allocated, active, true
	return true
}

// reservedPeak is the most bytes that the allocator had from the driver, from
// its segments at the start and the calls since.
func reservedPeak(t *traces.Trace) int64 {
	reserved := t.Start.Reserved()
	peak := reserved
	for i := range t.Recorded.Driver {
		reserved += t.Recorded.Driver[i].Reserves()
		peak = max(peak, reserved)
	}
	return peak
}

// final takes the segments at the end for the peak, where they are all that is
// known of segments, and their blocks where they are all that is known.
func (s *Summary) final(end *traces.State, alone bool) {
	var reserved, allocated, active int64
	for _, seg := range end.Segments {
		reserved += seg.Size
		for _, b := range seg.Blocks {
			if b.State == traces.ActiveAllocated {
				allocated += b.Size
			}
			if b.State != traces.Inactive {
				active += b.Size
			}
		}
	}
	s.Peak.Reserved = &reserved
	if alone {
		s.Peak.Allocated, s.Peak.Active, s.Peak.Counted = allocated, active, true
	}
}
