// Package perfetto writes memory curves as counter tracks in the Chrome trace
// format, which ui.perfetto.dev and chrome://tracing open (case R41).
//
// The tracks lie in the clock of the source, so that the curves of a simulated
// allocator can be read beside the kernels of the profiler trace that they come
// from: [Merge] adds them to that file.
//
// Format: Trace Event Format, events of phase "C" (counter) and "M" (metadata);
// times in µs.
package perfetto

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"allocsim/traces"
)

// Format names what this package writes.
const Format = "perfetto"

// Track is one curve: a step function that has Value[i] from TimeUS[i] on.
type Track struct {
	// Name is the track's title, such as "reserved".
	Name string
	// TimeUS is µs since the start of the trace, never decreasing.
	TimeUS []int64
	// Value is bytes at the times of TimeUS.
	Value []int64
}

// Options place the tracks.
type Options struct {
	// Process titles the group of tracks, such as "allocsim: torch".
	Process string
	// PID separates groups; 0 = DefaultPID.
	PID int
	// ClockUS is the source's timestamp of the trace's zero (Meta.ClockUS).
	ClockUS int64
}

// DefaultPID is beyond the process ids of Linux, so that the tracks do not mix
// with those of a recorded process.
const DefaultPID = 1 << 30

// checkEvery is how many points pass between looks at the context.
const checkEvery = 1 << 12

// Write writes the tracks as a trace of their own.
func Write(ctx context.Context, w io.Writer, o Options, tracks []Track) error {
	b := bufio.NewWriterSize(w, 1<<16)
	b.WriteString(opening)
	if err := events(ctx, b, o, tracks); err != nil {
		return err
	}
	b.WriteString("\n]}\n")
	return b.Flush()
}

// Detect reports whether a file that begins with head was written by [Write]
// with the default process id: tracks alone, not merged into another trace.
func Detect(head []byte) bool {
	return bytes.HasPrefix(head, fmt.Appendf(nil, "%s{%s%d,", opening, processName, DefaultPID))
}

// DetectMerged reports whether a Chrome trace that begins with head has tracks
// that [Merge] added.
func DetectMerged(head []byte) bool {
	return bytes.Contains(head, fmt.Appendf(nil, "%s%d,", processName, DefaultPID))
}

// How a file begins.
const (
	opening     = `{"displayTimeUnit":"ms","traceEvents":[` + "\n"
	processName = `"ph":"M","name":"process_name","pid":`
)

// events writes the elements of traceEvents, without a comma after the last.
func events(ctx context.Context, b *bufio.Writer, o Options, tracks []Track) error {
	pid := o.PID
	if pid == 0 {
		pid = DefaultPID
	}
	process, err := json.Marshal(o.Process)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, `{%s%d,"args":{"name":%s}}`, processName, pid, process)
	for _, t := range tracks {
		if len(t.TimeUS) != len(t.Value) {
			return fmt.Errorf("track %s has %d times and %d values", t.Name, len(t.TimeUS), len(t.Value))
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return err
		}
		head := fmt.Appendf(nil, ",\n"+`{"ph":"C","name":%s,"pid":%d,"ts":`, name, pid)
		var buf []byte
		written := false
		var last int64
		for i, at := range t.TimeUS {
			if i%checkEvery == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			// Of several values at one time the last holds; what does not
			// change needs no point.
			if i+1 < len(t.TimeUS) && t.TimeUS[i+1] == at || written && t.Value[i] == last {
				continue
			}
			written, last = true, t.Value[i]
			buf = append(buf[:0], head...)
			buf = strconv.AppendInt(buf, o.ClockUS+at, 10)
			buf = append(buf, `,"args":{"bytes":`...)
			buf = strconv.AppendInt(buf, t.Value[i], 10)
			buf = append(buf, "}}"...)
			if _, err := b.Write(buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// Merge copies the Chrome trace r, an object with traceEvents or a bare array,
// to w with the tracks added. The rest is copied byte for byte.
func Merge(ctx context.Context, w io.Writer, r io.Reader, o Options, tracks []Track) error {
	b := bufio.NewWriterSize(w, 1<<16)
	in := bufio.NewReaderSize(r, 1<<16)
	if err := copyToEvents(ctx, b, in); err != nil {
		return err
	}
	b.WriteByte('\n')
	if err := events(ctx, b, o, tracks); err != nil {
		return err
	}
	// A comma follows unless the array was empty.
	for {
		c, err := in.ReadByte()
		if err != nil {
			return eof(err)
		}
		if c == ' ' || c == '\t' || c == '\r' || c == '\n' {
			continue
		}
		if c != ']' {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		if err := in.UnreadByte(); err != nil {
			return err
		}
		break
	}
	if _, err := io.Copy(b, &stopping{ctx, in}); err != nil {
		return err
	}
	return b.Flush()
}

func eof(err error) error {
	if err == io.EOF {
		return errors.New("not a Chrome trace: there is no array traceEvents")
	}
	return err
}

// copyToEvents copies up to and including the bracket that opens the events.
func copyToEvents(ctx context.Context, b *bufio.Writer, in *bufio.Reader) error {
	var (
		depth    int
		inString bool
		escaped  bool
		key      []byte // the last string at depth 1, while it may be the key
		armed    bool   // the key was traceEvents and a colon followed
	)
	for n := 0; ; n++ {
		if n%(1<<16) == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		c, err := in.ReadByte()
		if err != nil {
			return eof(err)
		}
		b.WriteByte(c)
		if inString {
			switch {
			case escaped:
				escaped = false
			case c == '\\':
				escaped = true
			case c == '"':
				inString = false
				continue
			}
			if len(key) <= len("traceEvents") {
				key = append(key, c)
			}
			continue
		}
		switch c {
		case ' ', '\t', '\r', '\n':
		case '"':
			inString, armed = true, false
			key = key[:0]
		case '{', '[':
			if c == '[' && (depth == 0 || armed) {
				return nil
			}
			depth++
			armed = false
		case '}', ']':
			depth--
			armed = false
		case ':':
			armed = depth == 1 && bytes.Equal(key, []byte("traceEvents"))
		default:
			armed = false
		}
	}
}

// stopping is a reader that ends with ctx.
type stopping struct {
	ctx context.Context
	r   io.Reader
}

func (s *stopping) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}

// FromTrace makes the curves that a trace has of itself, without a simulation:
// requested bytes that are allocated (until their free is requested) and active
// (until it completes) and, if it was recorded, what the real allocator had
// reserved.
func FromTrace(t *traces.Trace) []Track {
	n := len(t.Events)
	allocated := Track{Name: "requested", TimeUS: make([]int64, 0, n), Value: make([]int64, 0, n)}
	active := Track{Name: "requested, not yet completed", TimeUS: make([]int64, 0, n), Value: make([]int64, 0, n)}
	pending := false
	live := t.Live()
	for i := range t.Events {
		e := &t.Events[i]
		live.See(e)
		switch e.Kind {
		case traces.FreeRequested:
			pending = true
		case traces.Alloc, traces.Free, traces.FreeCompleted:
		default:
			continue
		}
		allocated.TimeUS = append(allocated.TimeUS, e.TimeUS)
		allocated.Value = append(allocated.Value, live.Allocated)
		active.TimeUS = append(active.TimeUS, e.TimeUS)
		active.Value = append(active.Value, live.Active)
	}
	tracks := []Track{allocated}
	if pending {
		tracks = append(tracks, active)
	}
	if t.Recorded != nil && len(t.Recorded.Driver) > 0 {
		reserved := Track{Name: "reserved (recorded)"}
		r := t.Start.Reserved()
		reserved.TimeUS, reserved.Value = append(reserved.TimeUS, 0), append(reserved.Value, r)
		for _, d := range t.Recorded.Driver {
			r += d.Reserves()
			at := t.Duration()
			if int(d.Before) < n {
				at = t.Events[d.Before].TimeUS
			}
			reserved.TimeUS, reserved.Value = append(reserved.TimeUS, at), append(reserved.Value, r)
		}
		tracks = append(tracks, reserved)
	}
	return tracks
}

// WriteTrace writes the curves of FromTrace.
func WriteTrace(ctx context.Context, w io.Writer, t *traces.Trace) error {
	return Write(ctx, w, Options{Process: fmt.Sprintf("memory of device %d (%s)", t.Device, t.Source), ClockUS: t.Meta.ClockUS}, FromTrace(t))
}

// Losses says what of a trace these curves cannot carry.
func Losses(*traces.Trace) []string {
	return []string{"Counter tracks hold curves and no requests: they are for looking at and cannot be read back."}
}
