package perfetto

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"allocsim/traces"
)

// TestTranscripts writes the tracks of a small trace, alone or merged into the
// input.
func TestTranscripts(t *testing.T) {
	tracks := []Track{
		{Name: "reserved", TimeUS: []int64{0, 5, 5, 9}, Value: []int64{0, 10, 20, 20}},
		{Name: `a "b"`, TimeUS: []int64{1}, Value: []int64{7}},
	}
	o := Options{Process: "allocsim: torch", ClockUS: 1000}
	datadriven.RunTest(t, "testdata/perfetto.txt", func(t *testing.T, d *datadriven.TestData) string {
		var b bytes.Buffer
		var err error
		switch d.Cmd {
		case "write":
			err = Write(context.Background(), &b, o, tracks)
		case "merge":
			err = Merge(context.Background(), &b, iotest.OneByteReader(strings.NewReader(d.Input)), o, tracks)
		}
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		if !json.Valid(b.Bytes()) {
			return "not valid JSON:\n" + b.String()
		}
		return b.String()
	})
}

// TestMerge adds tracks to any JSON trace: what was there stays, value for
// value.
func TestMerge(t *testing.T) {
	tracks := []Track{{Name: "x", TimeUS: []int64{1, 2}, Value: []int64{3, 4}}}
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringOf(rapid.RuneFrom([]rune("ab\"\\[]{}:, traceEvents")))
		events := []any{}
		for range rapid.IntRange(0, 3).Draw(rt, "n") {
			events = append(events, map[string]any{"name": text.Draw(rt, "name"), "args": []any{text.Draw(rt, "arg"), 1.5}})
		}
		var doc any = events
		if rapid.Bool().Draw(rt, "object") {
			m := map[string]any{}
			for range rapid.IntRange(0, 3).Draw(rt, "keys") {
				// Keys that sort before and after, values that look like it.
				k := rapid.SampledFrom([]string{"a", "b", "z", "traceEvent"}).Draw(rt, "key") + text.Draw(rt, "rest")
				m[k] = rapid.SampledFrom([]any{"traceEvents", map[string]any{"traceEvents": []any{1.0}}, []any{"traceEvents"}, nil}).Draw(rt, "value")
			}
			m["traceEvents"] = events
			doc = m
		}
		in, err := json.MarshalIndent(doc, "", rapid.SampledFrom([]string{"", " "}).Draw(rt, "indent"))
		if err != nil {
			rt.Fatal(err)
		}
		var b bytes.Buffer
		if err := Merge(context.Background(), &b, bytes.NewReader(in), Options{}, tracks); err != nil {
			rt.Fatalf("%v\n%s", err, in)
		}
		var got, want any
		if err := json.Unmarshal(b.Bytes(), &got); err != nil {
			rt.Fatalf("%v\n%s\n%s", err, in, b.String())
		}
		if err := json.Unmarshal(in, &want); err != nil {
			rt.Fatal(err)
		}
		drop := func(v any) []any { return v.([]any)[3:] }
		if m, ok := got.(map[string]any); ok {
			m["traceEvents"] = drop(m["traceEvents"])
		} else {
			got = drop(got)
		}
		if d := cmp.Diff(want, got); d != "" {
			rt.Fatalf("%s\n%s", d, in)
		}
	})
}

func TestFromTrace(t *testing.T) {
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	x := b.Alloc(0, 100, s, 0)
	y := b.Alloc(1, 50, s, 0)
	b.FreeRequested(2, x)
	b.OOM(3, 1000, s, 0)
	b.FreeCompleted(4, x)
	b.Free(5, y)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Start = &traces.State{Segments: []traces.Segment{{Size: 7}}}
	tr.Recorded = &traces.Recorded{Driver: []traces.DriverEvent{
		{Size: 200, Before: 0, Action: traces.SegmentAlloc},
		{Size: 200, Before: uint32(len(tr.Events)), Action: traces.SegmentFree},
	}}
	got := fmt.Sprint(FromTrace(tr))
	want := "[{requested [0 1 2 4 5] [100 150 50 50 0]} {requested, not yet completed [0 1 2 4 5] [100 150 150 50 0]} {reserved (recorded) [0 0 5] [7 207 7]}]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var out bytes.Buffer
	if err := WriteTrace(context.Background(), &out, tr); err != nil || !json.Valid(out.Bytes()) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	one := []Track{{Name: "x", TimeUS: []int64{1}, Value: []int64{1}}}
	if err := Write(ctx, &bytes.Buffer{}, Options{}, one); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := Merge(ctx, &bytes.Buffer{}, strings.NewReader("[]"), Options{}, one); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := Write(context.Background(), &bytes.Buffer{}, Options{}, []Track{{TimeUS: []int64{1}}}); err == nil {
		t.Error("times without values: no error")
	}
	full := iotest.ErrReader(os.ErrClosed)
	if err := Merge(context.Background(), &bytes.Buffer{}, full, Options{}, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("reading: %v", err)
	}
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"a":"\"traceEvents","traceEvents":[{}]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var b bytes.Buffer
		if Merge(context.Background(), &b, bytes.NewReader(data), Options{}, nil) == nil && json.Valid(data) && !json.Valid(b.Bytes()) {
			t.Fatalf("valid %q became %q", data, b.String())
		}
	})
}
