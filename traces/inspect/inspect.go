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

	size := make([]int64, t.NumBlocks)
	first := make(map[int64]int) // size → index into requests
	var requests []Request
	var ids []traces.BlockID // of the first request of each size
	var bins [65]SizeBin
	var live, active int64
	ooms := 0
	for i := range t.Events {
		e := &t.Events[i]
		switch e.Kind {
		case traces.Alloc:
			size[e.ID] = e.Size
			live += e.Size
			active += e.Size
			if live > s.Peak.Requested {
				s.Peak.Requested, s.Peak.TimeUS = live, e.TimeUS
			}
			s.Peak.Active = max(s.Peak.Active, active)
			if i < t.StartEvents {
				s.StartBlocks++
				continue
			}
			k, ok := first[e.Size]
			if !ok {
				k = len(requests)
				first[e.Size] = k
				requests = append(requests, Request{Size: e.Size, TimeUS: e.TimeUS})
				ids = append(ids, e.ID)
			}
			requests[k].Count++
			b := &bins[bits.Len64(uint64(e.Size-1))]
			b.Count++
			b.Bytes += e.Size
		case traces.Free:
			live -= size[e.ID]
			active -= size[e.ID]
		case traces.FreeRequested:
			live -= size[e.ID]
		case traces.FreeCompleted:
			active -= size[e.ID]
		case traces.OOM:
			o := OOM{TimeUS: e.TimeUS, Size: e.Size}
			if t.Recorded != nil && ooms < len(t.Recorded.OOMDeviceFree) && t.Recorded.OOMDeviceFree[ooms] >= 0 {
				o.DeviceFree = &t.Recorded.OOMDeviceFree[ooms]
			}
			ooms++
			s.OOMs = append(s.OOMs, o)
		}
	}
	s.Peak.Allocated = s.Peak.Requested
	for i, b := range bins {
		if b.Count > 0 {
			if i > 0 {
				b.Above, b.UpTo = int64(1)<<(i-1), int64(1)<<i
			} else {
				b.UpTo = 1
			}
			s.Sizes = append(s.Sizes, b)
		}
	}
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(requests[y].Size, requests[x].Size) })
	sites := newSiteNames(t)
	for _, i := range order[:min(maxLargest, len(order))] {
		r := requests[i]
		r.Where = sites.of(ids[i])
		s.Largest = append(s.Largest, r)
	}
	s.counters(t)
	return s
}

// counters replaces sums of requests by what the source itself counted.
func (s *Summary) counters(t *traces.Trace) {
	if t.Meta.PeakReserved > 0 {
		s.Peak.Reserved = &t.Meta.PeakReserved
	}
	if t.Meta.PeakAllocated > 0 {
		s.Peak.Allocated, s.Peak.Active, s.Peak.Counted = t.Meta.PeakAllocated, t.Meta.PeakAllocated, true
	}
	if t.Recorded == nil {
		return
	}
	if stats := t.Recorded.Stats; stats != nil {
		reserved, ok := stats["reserved_bytes.all.peak"]
		allocated, ok2 := stats["allocated_bytes.all.peak"]
		active, ok3 := stats["active_bytes.all.peak"]
		if ok && ok2 && ok3 {
			s.Peak.Reserved = &reserved
			s.Peak.Allocated, s.Peak.Active, s.Peak.Counted = allocated, active, true
			return
		}
	}
	var r, peak int64
	known := len(t.Recorded.Driver) > 0
	if t.Start != nil {
		known = true
		for _, seg := range t.Start.Segments {
			r += seg.Size
		}
	}
	peak = r
	for _, d := range t.Recorded.Driver {
		switch d.Action {
		case traces.SegmentAlloc, traces.SegmentMap:
			r += d.Size
		case traces.SegmentFree, traces.SegmentUnmap:
			r -= d.Size
		}
		peak = max(peak, r)
	}
	if t.Recorded.Final != nil && !known {
		known = true
		var allocated, active int64
		for _, seg := range t.Recorded.Final.Segments {
			peak += seg.Size
			for _, b := range seg.Blocks {
				if b.State == traces.ActiveAllocated {
					allocated += b.Size
				}
				if b.State != traces.Inactive {
					active += b.Size
				}
			}
		}
		if len(t.Events) == 0 {
			s.Peak.Allocated, s.Peak.Active, s.Peak.Counted = allocated, active, true
		}
	}
	if known {
		s.Peak.Reserved = &peak
	}
}
