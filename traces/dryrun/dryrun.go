// Package dryrun reads what the recorder writes when it runs a program without
// a GPU (--dry-run): the operations that the program called on fake tensors,
// with shapes, layouts and the lives of their storages. It makes of them the
// requests that the same program would make of the CUDA caching allocator.
//
// The recorder says when each storage comes and goes. What a kernel takes and
// gives back inside one operation, and in which order it asks for its results,
// comes from the rules of traces/kernels. An operation without a rule asks for
// its results only; a note counts and names such operations.
//
// A dry run is evidence of its own level, below a recording: the first note of
// such a trace says so, and the notes list what had to be assumed, such as the
// answers to questions about data that nobody computed.
package dryrun

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"allocsim/internal/lines"
	"allocsim/traces"
	"allocsim/traces/kernels"
)

// Format is the name that Trace.Format holds for a dry run.
const Format = "dry-run"

// version is the newest version of the file format that is read.
const version = 1

// Detect reports whether head begins a dry run.
func Detect(head []byte) bool {
	return bytes.HasPrefix(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), []byte(`{"allocsim_dryrun":`))
}

// Read reads a dry run; name is for messages. The trace's times are made up:
// events are 5 µs apart, their order is meant.
func Read(ctx context.Context, r io.Reader, name string) (*traces.Recording, error) {
	lr := lines.NewReader(ctx, r)
	head, err := lr.Next()
	if err != nil {
		if err == io.EOF {
			err = errors.New("it is empty")
		}
		return nil, err
	}
	var h header
	if err := json.Unmarshal(head, &h); err != nil {
		return nil, fmt.Errorf("line 1: %w", explain(err))
	}
	if h.Version != version {
		return nil, fmt.Errorf("a dry run of format %d; this release reads format %d; use the recorder that it ships (allocsim record)", h.Version, version)
	}
	w := newWalk(&h)
	for {
		line, err := lr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := w.line(line); err != nil {
			if lr.Torn() {
				break // the recorder was killed in the middle of a line
			}
			return nil, fmt.Errorf("line %d: %w", lr.Line(), explain(err))
		}
		if err := w.b.Err(); err != nil {
			return nil, fmt.Errorf("line %d: %w", lr.Line(), err)
		}
	}
	t, err := w.finish()
	if err != nil {
		return nil, err
	}
	t.Source, t.Format = name, Format
	return &traces.Recording{Devices: []*traces.Trace{t}}, nil
}

// explain puts a JSON error into words that do not name Go types.
func explain(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return fmt.Errorf("a %s where another kind of value belongs (%s)", typ.Value, typ.Field)
	}
	return err
}

// header is the first line.
type header struct {
	Version int      `json:"allocsim_dryrun"`
	Torch   string   `json:"torch"`
	Program []string `json:"program"`
	Conf    string   `json:"conf"`
	// Steps is the number of optimizer steps after which the recorder ends the
	// program; 0 = it ran to its end.
	Steps     int `json:"steps"`
	WorldSize int `json:"world_size"`
	GPU       gpu `json:"gpu"`
	Env       map[string]string
}

// gpu is the card that the program was shown.
type gpu struct {
	Name        string `json:"name"`
	Major       int    `json:"major"`
	TotalMemory int64  `json:"total_memory"`
	SMs         int64  `json:"sms"`
}

func (g *gpu) device() kernels.Device {
	if g.SMs <= 0 || g.SMs > 1<<12 {
		return kernels.H200
	}
	return kernels.DeviceOf(g.Major, g.SMs)
}
