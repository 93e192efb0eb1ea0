package snapshot

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Sidecar is what the JSON file beside a snapshot says: what the snapshot
// itself cannot. Unknown fields are ignored.
type Sidecar struct {
	// Conf is the PYTORCH_CUDA_ALLOC_CONF string in force; nil when the file
	// does not say.
	Conf *string `json:"conf"`
	// Fraction is set_per_process_memory_fraction's argument; 0 = not called.
	Fraction float64 `json:"fraction"`
	// Torch is torch.__version__.
	Torch string `json:"torch"`
	// DeviceTotal is the device's bytes as the CUDA runtime reports them.
	DeviceTotal int64 `json:"device_total"`
	// Device is the device's name; older recorders write its index here.
	Device any `json:"device"`
	// WorldSize is the number of processes of the job; 0 = unknown.
	WorldSize int `json:"world_size"`
	// Notes are the program's calls that leave no entry of their own.
	Notes []Note `json:"notes"`
	// Stats is torch.cuda.memory_stats() at the end.
	Stats map[string]any `json:"stats"`
	// TraceEntries is the number of entries of the snapshot's trace; 0 =
	// unknown.
	TraceEntries int `json:"trace_entries"`
}

// Note is a call noted by the recorder.
type Note struct {
	Kind string `json:"kind"` // "empty_cache", "oom", …
	T    int64  `json:"t"`    // µs since the Unix epoch, the clock of time_us
	// Value is the memory fraction of a note of kind "fraction".
	Value float64 `json:"value"`
}

// ParseSidecar reads the JSON file that the recorder writes beside a snapshot.
func ParseSidecar(data []byte) (*Sidecar, error) {
	var s Sidecar
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("the sidecar is not the JSON that the recorder writes: %w; remove or repair it", err)
	}
	if s.Fraction < 0 || s.Fraction > 1 {
		return nil, fmt.Errorf("the sidecar's fraction is %g; it must be between 0 and 1", s.Fraction)
	}
	if s.WorldSize < 0 {
		return nil, fmt.Errorf("the sidecar's world_size is negative (%d)", s.WorldSize)
	}
	if s.DeviceTotal < 0 {
		return nil, fmt.Errorf("the sidecar's device_total is negative (%d)", s.DeviceTotal)
	}
	return &s, nil
}

// emptyCaches are the times of the empty_cache calls, ascending.
func (s *Sidecar) emptyCaches() []int64 {
	if s == nil {
		return nil
	}
	var ts []int64
	for _, n := range s.Notes {
		if n.Kind == "empty_cache" {
			ts = append(ts, n.T)
		}
	}
	slices.Sort(ts)
	return ts
}

// fractions are the memory fractions that the program set, in order, each once
// in a row.
func (s *Sidecar) fractions() (set []float64) {
	for _, n := range s.Notes {
		if n.Kind == "fraction" && (len(set) == 0 || set[len(set)-1] != n.Value) {
			set = append(set, n.Value)
		}
	}
	return set
}

// stats are the integer statistics.
func (s *Sidecar) stats() map[string]int64 {
	if s == nil || s.Stats == nil {
		return nil
	}
	m := make(map[string]int64, len(s.Stats))
	for k, v := range s.Stats {
		if f, ok := v.(float64); ok && f == float64(int64(f)) {
			m[k] = int64(f)
		}
	}
	return m
}
