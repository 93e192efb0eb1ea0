package kineto

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cockroachdb/datadriven"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"allocsim/traces"
)

func TestTranscripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/kineto.txt", func(t *testing.T, d *datadriven.TestData) string {
		var r io.Reader = strings.NewReader(d.Input)
		brief := d.Cmd == "file"
		if brief {
			f, err := os.Open(filepath.Join("testdata", d.CmdArgs[0].Key))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if r, err = gzip.NewReader(f); err != nil {
				t.Fatal(err)
			}
		}
		rec, err := Read(context.Background(), r, "in.json")
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		var b strings.Builder
		for _, tr := range rec.Devices {
			dump(&b, tr, brief)
		}
		return b.String()
	})
}

func dump(b *strings.Builder, t *traces.Trace, brief bool) {
	fmt.Fprintf(b, "device=%d name=%q total=%d start_us=%d clock_us=%d start_events=%d peak_reserved=%d peak_allocated=%d\n",
		t.Device, t.Meta.DeviceName, t.Meta.DeviceTotal, t.StartUS, t.Meta.ClockUS, t.StartEvents, t.Meta.PeakReserved, t.Meta.PeakAllocated)
	for i, e := range t.Events {
		if brief && i >= 10 {
			fmt.Fprintf(b, "… %v\n", t.CountByKind())
			break
		}
		fmt.Fprintf(b, "%d %s #%d %d\n", e.TimeUS, e.Kind, e.ID, e.Size)
	}
	if t.Recorded != nil {
		for i, d := range t.Recorded.Driver {
			if brief && i >= 5 {
				break
			}
			fmt.Fprintf(b, "driver before %d: %s %#x %d\n", d.Before, d.Action, d.Addr, d.Size)
		}
	}
	for _, a := range t.Annotations {
		fmt.Fprintf(b, "annotation %+v\n", a)
	}
	for _, n := range t.Notes {
		fmt.Fprintf(b, "note %s\n", n)
	}
}

// TestRecording reads the whole real trace, whose run reserved 742 MiB at its
// peak.
func TestRecording(t *testing.T) {
	f, err := os.Open("../../../shared/recordings/kineto/scale_resnet50.kineto.json.zst")
	if err != nil {
		t.Skip("no shared recordings here: ", err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	rec, err := Read(context.Background(), z, "k")
	if err != nil {
		t.Fatal(err)
	}
	tr := rec.Devices[0]
	if len(tr.Events) != 5531 || tr.StartEvents != 0 || tr.Meta.PeakReserved != 742<<20 || len(tr.Notes) != 3 {
		t.Errorf("%d events, %d start events, peak %d, notes %q", len(tr.Events), tr.StartEvents, tr.Meta.PeakReserved, tr.Notes)
	}
	var reserved int64
	for _, d := range tr.Recorded.Driver {
		reserved += d.Size
	}
	if len(tr.Recorded.Driver) != 70 || reserved != 742<<20 || len(tr.Recorded.Addr) != tr.NumBlocks {
		t.Errorf("%d segments of %d bytes, %d addresses of %d blocks", len(tr.Recorded.Driver), reserved, len(tr.Recorded.Addr), tr.NumBlocks)
	}
}

// TestPublicTrace reads a trace that is not in the order of time: in the right
// order every running total follows from the one before.
func TestPublicTrace(t *testing.T) {
	f, err := os.Open("../../../shared/data/kineto/df_index_resolver.json.gz")
	if err != nil {
		t.Skip("no shared data here: ", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := Read(context.Background(), z, "d")
	if err != nil {
		t.Fatal(err)
	}
	tr := rec.Devices[0]
	// 28,010 memory events, of which 26,770 are of the GPU; one block stands
	// for what was live all along.
	if tr.Device != 1 || len(tr.Events) != 26770+1 || tr.Events[0].Size != 4121780224-25165824 {
		t.Errorf("device %d, %d events, first %+v", tr.Device, len(tr.Events), tr.Events[0])
	}
	for _, n := range tr.Notes {
		if strings.Contains(n, "missing") {
			t.Error(n)
		}
	}
}

// TestOrder shuffles a file: as long as ties keep their order, the trace is
// the same.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 30).Draw(rt, "n")
		lines := make([]string, n)
		order := make([]int, n)
		for i := range n {
			lines[i] = fmt.Sprintf(`{"ph":"i","name":"[memory]","ts":%d.%03d,"args":{"Device Type":1,"Device Id":0,"Addr":%d,"Bytes":%d}}`,
				1700000000000000+i/2, i*7%1000, i, 512*(i+1))
			order[i] = i
		}
		order = rapid.Permutation(order).Draw(rt, "order")
		shuffled := make([]string, n)
		for i, o := range order {
			shuffled[i] = lines[o]
		}
		sorted, err := Read(context.Background(), strings.NewReader("["+strings.Join(lines, ",")+"]"), "")
		if err != nil {
			rt.Fatal(err)
		}
		got, err := Read(context.Background(), iotest.OneByteReader(strings.NewReader("["+strings.Join(shuffled, ",\n")+"]")), "")
		if err != nil {
			rt.Fatal(err)
		}
		if !slices.Equal(sorted.Devices[0].Events, got.Devices[0].Events) {
			rt.Fatalf("%v\n%v", sorted.Devices[0].Events, got.Devices[0].Events)
		}
	})
}

// endless is a hostile file: it never ends.
type endless struct{ head, body string }

func (e *endless) Read(b []byte) (int, error) {
	if e.head != "" {
		n := copy(b, e.head)
		e.head = e.head[n:]
		return n, nil
	}
	for i := range b {
		b[i] = e.body[i%len(e.body)]
	}
	return len(b), nil
}

func TestEndless(t *testing.T) {
	for _, head := range []string{`{"traceEvents":[{"name":"`, `{"traceEvents":[[[`, `{"x`, `{"deviceProperties":[`} {
		_, err := Read(context.Background(), &endless{head, "["}, "x")
		if !errors.Is(err, errTooLong) {
			t.Errorf("%s: %v", head, err)
		}
	}
	// What does not matter may be of any length, and reading it can be stopped.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, &endless{`{"traceEvents":[`, `{},`}, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func FuzzRead(f *testing.F) {
	z, err := os.Open("testdata/resnet50_cut.json.gz")
	if err != nil {
		f.Fatal(err)
	}
	defer z.Close()
	r, err := gzip.NewReader(z)
	if err != nil {
		f.Fatal(err)
	}
	whole, err := io.ReadAll(r)
	if err != nil {
		f.Fatal(err)
	}
	i := bytes.Index(whole, []byte(`"[memory]"`))
	f.Add([]byte(`{"traceEvents":[` + string(whole[i-200:i+400]) + `]}`))
	f.Add([]byte(`[{"ph":"i","name":"[memory]","ts":1,"args":{"Device Type":1,"Device Id":0,"Addr":1,"Bytes":-512,"Total Allocated":0}}]`))
	f.Add([]byte(`{"a":"\"","traceEvents":[{"ph":"i","name":"[OutOfMemory]","ts":1e3,"args":{"Device Type":1,"Device Id":0,"Bytes":5}}],"b":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := Read(context.Background(), bytes.NewReader(data), "f")
		if err != nil {
			return
		}
		for _, tr := range rec.Devices {
			if len(tr.Events) > 2*len(data) {
				t.Fatalf("%d events from %d bytes", len(tr.Events), len(data))
			}
		}
	})
}

// BenchmarkRead reports bytes of JSON per second.
func BenchmarkRead(b *testing.B) {
	z, err := os.Open("testdata/resnet50_cut.json.gz")
	if err != nil {
		b.Fatal(err)
	}
	defer z.Close()
	r, err := gzip.NewReader(z)
	if err != nil {
		b.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Read(context.Background(), bytes.NewReader(data), "b"); err != nil {
			b.Fatal(err)
		}
	}
}
