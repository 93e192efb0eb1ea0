package cuda

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Call names a driver call that is timed.
type Call uint8

// The timed calls.
const (
	CallAlloc Call = iota + 1
	CallFree
	CallReserve
	CallUnreserve
	CallCreate
	CallMap
	CallAccess
	CallUnmap
	CallRelease
)

var callNames = [...]string{"invalid", "cuMemAlloc", "cuMemFree", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"}

// String is the driver's name of the call.
func (c Call) String() string {
	if int(c) < len(callNames) {
		return callNames[c]
	}
	return callNames[0]
}

// Latencies collects the times of driver calls by size.
type Latencies struct {
	samples map[latencyKey][]float64
}

type latencyKey struct {
	call   Call
	size   int64
	pieces int
}

// maxSamples bounds what is kept for one call and size; later ones are
// counted but not kept.
const maxSamples = 1 << 16

func (l *Latencies) add(c Call, size int64, pieces int, d time.Duration) {
	if l.samples == nil {
		l.samples = make(map[latencyKey][]float64)
	}
	k := latencyKey{c, size, pieces}
	if s := l.samples[k]; len(s) < maxSamples {
		l.samples[k] = append(s, float64(d.Nanoseconds())/1e3)
	}
}

// Latency sums up one call at one size.
type Latency struct {
	Call string `json:"call"`
	// Size is the bytes of one allocation, reservation or page.
	Size int64 `json:"size"`
	// Pieces is how many pages the call (or, for all but cuMemSetAccess, the
	// run of calls) covered; 1 outside the virtual memory calls.
	Pieces int `json:"pieces"`
	Count  int `json:"count"`
	// MedianUS and P90US are µs for all pieces together.
	MedianUS float64 `json:"median_us"`
	P90US    float64 `json:"p90_us"`
}

// Table lists the latencies by call, size and pieces.
func (l *Latencies) Table() []Latency {
	keys := slices.SortedFunc(maps.Keys(l.samples), func(a, b latencyKey) int {
		return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.size, b.size), cmp.Compare(a.pieces, b.pieces))
	})
	rows := make([]Latency, 0, len(keys))
	for _, k := range keys {
		q := quantiles(l.samples[k])
		rows = append(rows, Latency{
			Call: k.call.String(), Size: k.size, Pieces: k.pieces,
			Count: len(l.samples[k]), MedianUS: q[0], P90US: q[1],
		})
	}
	return rows
}

// quantiles are the median and the 90th percentile of a non-empty sample, by
// nearest rank.
func quantiles(us []float64) [2]float64 {
	s := slices.Sorted(slices.Values(us))
	return [2]float64{s[(len(s)-1)/2], s[(len(s)*9+9)/10-1]}
}
