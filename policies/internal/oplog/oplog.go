// Package oplog reads recorded allocator logs for tests: the operations that a
// script made on a real allocator and that allocator's own counters after
// each.
package oplog

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Log is one recording.
type Log struct {
	Kind    string // "bfc", "cupy" or "async"
	Extra   map[string]string
	Columns []string
	Ops     []Op
	// Samples[0] are the counters before the first operation, Samples[i+1]
	// those after Ops[i], in the order of Columns.
	Samples [][]int64
}

// Op is an operation.
type Op struct {
	Action string // "alloc", "free" or "oom"
	ID     int
	Size   int64  // bytes; 0 for free
	Text   string // the error of an oom
}

// UnmarshalJSON reads ["alloc", id, bytes], ["free", id] or
// ["oom", id, bytes, text].
func (o *Op) UnmarshalJSON(b []byte) error {
	*o = Op{}
	fields := []any{&o.Action, &o.ID, &o.Size, &o.Text}
	return json.Unmarshal(b, &fields)
}

// Read reads a .json.zst file.
func Read(path string) (*Log, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer z.Close()
	var l Log
	if err := json.NewDecoder(z).Decode(&l); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(l.Samples) != len(l.Ops)+1 {
		return nil, fmt.Errorf("%s: %d samples for %d operations", path, len(l.Samples), len(l.Ops))
	}
	return &l, nil
}

// Column returns the index of a counter. It panics if there is none.
func (l *Log) Column(name string) int {
	i := slices.Index(l.Columns, name)
	if i < 0 {
		panic(fmt.Sprintf("no counter %q in %v", name, l.Columns))
	}
	return i
}
