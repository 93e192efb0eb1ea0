package sim

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// CostTable is what driver calls cost, in µs. The zero table costs nothing.
type CostTable struct {
	// Source says where the figures come from.
	Source        string
	malloc, free  []costPoint // by bytes
	mapUS, unmaps []costPoint // per page, by page bytes
}

type costPoint struct {
	bytes float64
	us    float64
}

//go:embed driver_cost_h200.json
var h200Cost []byte

// DefaultCost is measured on one NVIDIA H200 host (driver 580, CUDA 13.0).
var DefaultCost = mustCost("NVIDIA H200, driver 580, CUDA 13.0", h200Cost)

func mustCost(source string, data []byte) *CostTable {
	t, err := ReadCostTable(bytes.NewReader(data))
	if err != nil {
		panic("sim: the embedded cost table is broken: " + err.Error())
	}
	t.Source = source
	return t
}

// ReadCostTable reads a JSON table: "cuMemAlloc" and "cuMemFree" map MiB to
// [median, p90] µs of one call; "vmm" maps "N pages of M MiB" to the µs of
// "create", "map", "access", "unmap" and "release" for all N pages, each
// [median, p90]. Medians are used.
func ReadCostTable(r io.Reader) (*CostTable, error) {
	var raw struct {
		Source     string                     `json:"source"`
		CuMemAlloc map[string][]float64       `json:"cuMemAlloc"`
		CuMemFree  map[string][]float64       `json:"cuMemFree"`
		VMM        map[string]json.RawMessage `json:"vmm"`
	}
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return nil, fmt.Errorf("read the driver cost table: %w", err)
	}
	t := &CostTable{Source: raw.Source}
	var err error
	if t.malloc, err = costPoints("cuMemAlloc", raw.CuMemAlloc); err != nil {
		return nil, err
	}
	if t.free, err = costPoints("cuMemFree", raw.CuMemFree); err != nil {
		return nil, err
	}
	pages := make(map[int]int) // page MiB → most pages measured
	for _, key := range sortedKeys(raw.VMM) {
		var n, mib int
		if _, err := fmt.Sscanf(key, "%d pages of %d MiB", &n, &mib); err != nil || n <= 0 || mib <= 0 {
			return nil, fmt.Errorf("driver cost table: vmm entry %q is not \"N pages of M MiB\"", key)
		}
		// Larger runs are the steadier measurement of the cost per page.
		if n < pages[mib] {
			continue
		}
		pages[mib] = n
		var calls map[string]json.RawMessage
		if err := json.Unmarshal(raw.VMM[key], &calls); err != nil {
			return nil, fmt.Errorf("driver cost table: vmm entry %q: %w", key, err)
		}
		sum := func(names ...string) (us float64) {
			for _, name := range names {
				var v []float64
				if json.Unmarshal(calls[name], &v) == nil && len(v) > 0 {
					us += v[0]
				}
			}
			return us / float64(n)
		}
		size := float64(mib) * (1 << 20)
		t.mapUS = setPoint(t.mapUS, costPoint{size, sum("create", "map", "access")})
		t.unmaps = setPoint(t.unmaps, costPoint{size, sum("unmap", "release")})
	}
	return t, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func costPoints(name string, m map[string][]float64) ([]costPoint, error) {
	var ps []costPoint
	for key, v := range m {
		mib, err := strconv.ParseFloat(key, 64)
		if err != nil || !(mib > 0) || len(v) == 0 || !(v[0] >= 0) || math.IsInf(v[0], 0) {
			return nil, fmt.Errorf("driver cost table: %s entry %q must map MiB to [median, p90] in µs", name, key)
		}
		ps = setPoint(ps, costPoint{mib * (1 << 20), v[0]})
	}
	return ps, nil
}

// setPoint keeps ps sorted by size with one point a size.
func setPoint(ps []costPoint, p costPoint) []costPoint {
	at, found := slices.BinarySearchFunc(ps, p, func(x, y costPoint) int { return cmp.Compare(x.bytes, y.bytes) })
	if found {
		ps[at] = p
		return ps
	}
	return slices.Insert(ps, at, p)
}

// at interpolates between the measured sizes on logarithmic scales; outside
// them the nearest point holds, scaled with the size above the largest.
func at(ps []costPoint, bytes int64) float64 {
	x := float64(bytes)
	switch n := len(ps); {
	case n == 0:
		return 0
	case x <= ps[0].bytes:
		return ps[0].us
	case x >= ps[n-1].bytes:
		return ps[n-1].us * x / ps[n-1].bytes
	}
	k := 1
	for ps[k].bytes < x {
		k++
	}
	lo, hi := ps[k-1], ps[k]
	if lo.us <= 0 || hi.us <= 0 {
		return lo.us + (hi.us-lo.us)*(x-lo.bytes)/(hi.bytes-lo.bytes)
	}
	f := math.Log(x/lo.bytes) / math.Log(hi.bytes/lo.bytes)
	return lo.us * math.Pow(hi.us/lo.us, f)
}

// costMemo remembers what a call costs, by size: a program asks for few sizes,
// and the interpolation takes logarithms.
type costMemo [64]costEntry

type costEntry struct {
	bytes int64
	us    float64
}

func (m *costMemo) of(bytes int64, cost func(bytes int64) float64) float64 {
	e := &m[uint64(bytes)/Granule%uint64(len(m))]
	if e.bytes != bytes {
		*e = costEntry{bytes, cost(bytes)}
	}
	return e.us
}

// Malloc is the cost of one cudaMalloc of size bytes.
func (t *CostTable) Malloc(size int64) float64 { return at(t.malloc, size) }

// Free is the cost of one cudaFree of size bytes.
func (t *CostTable) Free(size int64) float64 { return at(t.free, size) }

// Map is the cost of creating, mapping and enabling n pages of page bytes.
func (t *CostTable) Map(n, page int64) float64 { return float64(n) * at(t.mapUS, page) }

// Unmap is the cost of unmapping and releasing n pages of page bytes.
func (t *CostTable) Unmap(n, page int64) float64 { return float64(n) * at(t.unmaps, page) }
