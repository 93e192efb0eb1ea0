package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"allocsim/traces"
)

// TestTranscripts reads the CSVs in testdata and prints the trace, or the
// error.
func TestTranscripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/csv.txt", func(t *testing.T, d *datadriven.TestData) string {
		in := d.Input
		for _, a := range d.CmdArgs {
			switch a.Key {
			case "crlf":
				in = strings.ReplaceAll(in, "\n", "\r\n")
			case "cr":
				in = strings.ReplaceAll(in, "\n", "\r")
			case "bom":
				in = "\ufeff" + in
			}
		}
		rec, err := ReadCSV(context.Background(), strings.NewReader(in), "in.csv")
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		switch d.Cmd {
		case "read":
			return dump(rec.Devices[0])
		case "rewrite":
			var b bytes.Buffer
			if err := WriteCSV(context.Background(), &b, rec.Devices[0]); err != nil {
				return "error: " + err.Error() + "\n"
			}
			return b.String()
		}
		return "unknown command\n"
	})
}

func dump(t *traces.Trace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "device=%d blocks=%d streams=%d pools=%v start_us=%d start_events=%d\n", t.Device, t.NumBlocks, t.Streams, t.Pools, t.StartUS, t.StartEvents)
	for _, e := range t.Events {
		fmt.Fprintf(&b, "%d %s", e.TimeUS, e.Kind)
		if e.ID != traces.NoBlock {
			fmt.Fprintf(&b, " #%d", e.ID)
		}
		if e.Size != 0 {
			fmt.Fprintf(&b, " %d B stream %d pool %d", e.Size, t.Streams[e.Stream], e.Pool)
			if t.Stacks != nil {
				if s := t.Stacks.ByBlock[e.ID]; s != traces.NoStack {
					for _, f := range t.Stacks.Stack[s] {
						fmt.Fprintf(&b, " < %+v", t.Stacks.Frames[f])
					}
				}
			}
		}
		b.WriteByte('\n')
	}
	for _, a := range t.Annotations {
		fmt.Fprintf(&b, "annotation %+v\n", a)
	}
	if t.Meta.ConfKnown {
		fmt.Fprintf(&b, "conf %q\n", t.Meta.Conf)
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	return b.String()
}

// genTrace draws any trace that a Builder can make, with everything that the
// native formats carry.
func genTrace(t *rapid.T) *traces.Trace {
	b := traces.NewBuilder(0)
	text := rapid.StringOf(rapid.RuneFrom([]rune("ab;@:\\\n\r\",# é\t0")))
	name := rapid.Custom(func(t *rapid.T) string { return strings.TrimSpace("x" + text.Draw(t, "name") + "x") })
	var handles []uint64
	for range rapid.IntRange(0, 3).Draw(t, "streams") {
		handles = append(handles, rapid.Uint64().Draw(t, "stream"))
	}
	handles = append(handles, 0)
	pools := []traces.PoolID{{}, {0, 1}, {7, -2}}[:rapid.IntRange(1, 3).Draw(t, "pools")]
	var live, pending []traces.BlockID
	now, blocks := int64(0), 0
	take := func(from *[]traces.BlockID) traces.BlockID {
		i := rapid.IntRange(0, len(*from)-1).Draw(t, "which")
		id := (*from)[i]
		*from = append((*from)[:i], (*from)[i+1:]...)
		return id
	}
	for range rapid.IntRange(0, 40).Draw(t, "events") {
		now += rapid.Int64Range(0, 1000).Draw(t, "dt")
		switch rapid.IntRange(0, 6).Draw(t, "op") {
		case 0, 1, 2:
			size := rapid.Int64Range(1, traces.MaxAlloc).Draw(t, "size")
			h := rapid.SampledFrom(handles).Draw(t, "handle")
			p := rapid.SampledFrom(pools).Draw(t, "pool")
			live = append(live, b.Alloc(now, size, b.Stream(h), b.Pool(p)))
			blocks++
		case 3:
			if len(live) > 0 {
				b.Free(now, take(&live))
			}
		case 4:
			if len(live) > 0 {
				id := take(&live)
				b.FreeRequested(now, id)
				pending = append(pending, id)
			}
		case 5:
			if len(pending) > 0 {
				b.FreeCompleted(now, take(&pending))
			}
		case 6:
			if rapid.Bool().Draw(t, "oom") {
				b.OOM(now, rapid.Int64Range(1, 1<<40).Draw(t, "oomsize"), b.Stream(handles[0]), 0)
				blocks++
			} else {
				b.EmptyCache(now)
			}
		}
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Source = "t"
	tr.Device = rapid.IntRange(0, 9).Draw(t, "device")
	tr.StartUS = rapid.Int64Range(0, 1<<60).Draw(t, "start")
	for tr.StartEvents < len(tr.Events) && tr.Events[tr.StartEvents].Kind == traces.Alloc && rapid.Bool().Draw(t, "startevent") {
		tr.StartEvents++
	}
	tr.Meta = traces.Meta{
		Torch:        rapid.SampledFrom([]string{"", "2.11.0+cu130"}).Draw(t, "torch"),
		ConfKnown:    rapid.Bool().Draw(t, "confknown"),
		Fraction:     rapid.Float64Range(0, 1).Draw(t, "fraction"),
		Sidecar:      rapid.Bool().Draw(t, "sidecar"),
		Ranks:        rapid.IntRange(0, 4096).Draw(t, "ranks"),
		DeviceName:   rapid.SampledFrom([]string{"", "NVIDIA H200"}).Draw(t, "devname"),
		DeviceTotal:  rapid.Int64Range(0, 1<<50).Draw(t, "total"),
		PeakReserved: rapid.Int64Range(0, 1<<50).Draw(t, "peak"),
		ClockUS:      rapid.Int64Range(0, 1<<60).Draw(t, "clock"),
	}
	if tr.Meta.ClockUS == 0 {
		tr.Meta.ClockUS = tr.StartUS
	}
	if tr.Meta.ConfKnown {
		tr.Meta.Conf = rapid.SampledFrom([]string{"", "expandable_segments:True,roundup_power2_divisions:[256:1,>:2]"}).Draw(t, "conf")
	}
	if rapid.Bool().Draw(t, "settings") {
		tr.Meta.Settings = map[string]string{"a": name.Draw(t, "setting"), "b": ""}
	}
	if rapid.Bool().Draw(t, "stacks") && blocks > 0 {
		tr.Stacks = &traces.Stacks{
			Frames: []traces.Frame{{Function: name.Draw(t, "fn"), File: name.Draw(t, "file"), Line: 12}, {Function: "g", File: "C:\\x.py", Line: 0}},
			Stack:  [][]uint32{{0, 1}, {1}},
		}
		for range blocks {
			tr.Stacks.ByBlock = append(tr.Stacks.ByBlock, rapid.SampledFrom([]traces.StackID{0, 1, traces.NoStack}).Draw(t, "stack"))
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "annotations") {
		tr.Annotations = append(tr.Annotations, traces.Annotation{TimeUS: 5, Name: name.Draw(t, "annotation"), End: rapid.Bool().Draw(t, "end")})
	}
	for range rapid.IntRange(0, 2).Draw(t, "notes") {
		tr.Notes = append(tr.Notes, name.Draw(t, "note"))
	}
	return tr
}

// stacksByBlock spells stacks out, since a reader may number them anew, and
// drops those that no block has.
func stacksByBlock(t *traces.Trace) []string {
	if t.Stacks == nil || !slices.ContainsFunc(t.Stacks.ByBlock, func(s traces.StackID) bool { return s != traces.NoStack }) {
		return nil
	}
	out := make([]string, len(t.Stacks.ByBlock))
	for i, s := range t.Stacks.ByBlock {
		if s != traces.NoStack {
			out[i] = string(appendStack([]byte("> "), t.Stacks, s))
		}
	}
	return out
}

func TestRoundTrip(t *testing.T) {
	ctx := context.Background()
	rapid.Check(t, func(rt *rapid.T) {
		want := genTrace(rt)
		var csv, pq bytes.Buffer
		if err := WriteCSV(ctx, &csv, want); err != nil {
			rt.Fatal(err)
		}
		if err := WriteParquet(ctx, &pq, want); err != nil {
			rt.Fatal(err)
		}
		if !DetectCSV(csv.Bytes()) || !DetectParquet(pq.Bytes()) {
			rt.Fatal("own output not detected")
		}
		fromCSV, err := ReadCSV(ctx, &csv, "t")
		if err != nil {
			rt.Fatal(err)
		}
		fromParquet, err := ReadParquet(ctx, bytes.NewReader(pq.Bytes()), int64(pq.Len()), "t")
		if err != nil {
			rt.Fatal(err)
		}
		for _, got := range []*traces.Trace{fromCSV.Devices[0], fromParquet.Devices[0]} {
			w := *want
			w.Format = got.Format
			if d := cmp.Diff(stacksByBlock(want), stacksByBlock(got)); d != "" {
				rt.Fatalf("%s: stacks differ:\n%s", got.Format, d)
			}
			w.Stacks, got.Stacks = nil, nil
			if d := cmp.Diff(&w, got); d != "" {
				rt.Fatalf("%s: the trace differs:\n%s", got.Format, d)
			}
		}
	})
}

func TestLossesStayWithTheFile(t *testing.T) {
	b := traces.NewBuilder(0)
	b.Alloc(0, 512, b.Stream(0), 0)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Recorded = &traces.Recorded{Addr: []uint64{4096}}
	var buf bytes.Buffer
	if err := WriteCSV(context.Background(), &buf, tr); err != nil {
		t.Fatal(err)
	}
	rec, err := ReadCSV(context.Background(), &buf, "x")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Losses(tr), rec.Devices[0].Notes); d != "" || len(rec.Devices[0].Notes) != 1 {
		t.Fatalf("notes %q: %s", rec.Devices[0].Notes, d)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b := traces.NewBuilder(0)
	b.EmptyCache(0)
	tr, _, _ := b.Build()
	if err := WriteCSV(ctx, &bytes.Buffer{}, tr); !errors.Is(err, context.Canceled) {
		t.Errorf("WriteCSV: %v", err)
	}
	if err := WriteParquet(ctx, &bytes.Buffer{}, tr); !errors.Is(err, context.Canceled) {
		t.Errorf("WriteParquet: %v", err)
	}
	if _, err := ReadCSV(ctx, strings.NewReader("time_us,action,id,size\n"), "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("ReadCSV: %v", err)
	}
}

func TestEndlessLine(t *testing.T) {
	in := "time_us,action,id,size\n" + strings.Repeat("9", 2<<20)
	_, err := ReadCSV(context.Background(), strings.NewReader(in), "x")
	if err == nil || !strings.Contains(err.Error(), "line 2: longer than") {
		t.Fatalf("got %v", err)
	}
}

func TestParquetDamage(t *testing.T) {
	b := traces.NewBuilder(0)
	for range 5000 {
		b.Alloc(1, 512, b.Stream(0), 0)
	}
	tr, _, _ := b.Build()
	var buf bytes.Buffer
	if err := WriteParquet(context.Background(), &buf, tr); err != nil {
		t.Fatal(err)
	}
	whole := buf.Bytes()
	for _, n := range []int{0, 4, 11, 12, 100, len(whole) - 1} {
		if _, err := ReadParquet(context.Background(), bytes.NewReader(whole[:n]), int64(n), "x"); err == nil {
			t.Errorf("cut to %d bytes: no error", n)
		}
	}
}

// TestDamageWords damages each byte of a file in turn: whatever comes of it, the
// words are a user's, not the decoder's.
func TestDamageWords(t *testing.T) {
	golden, err := os.ReadFile("testdata/golden.parquet")
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range golden {
		for _, mask := range []byte{0x01, 0x80, 0xff} {
			data := bytes.Clone(golden)
			data[i] ^= mask
			_, err := ReadParquet(context.Background(), bytes.NewReader(data), int64(len(data)), "x")
			if err == nil {
				continue
			}
			refused++
			for _, bad := range []string{"runtime", "slice", "thrift", "decod", "struct", "strconv", "EOF", "parquet:", "interface", "\n"} {
				if strings.Contains(err.Error(), bad) {
					t.Fatalf("byte %d ^ %#x: %v", i, mask, err)
				}
			}
		}
	}
	if refused == 0 {
		t.Error("no damage was found")
	}
}

// TestMetadataWords gives keys values that they cannot have.
func TestMetadataWords(t *testing.T) {
	for _, c := range [][3]string{
		{"start_us", "soon", `start_us: "soon" is not a whole number`},
		{"clock_us", "99999999999999999999", "clock_us: 99999999999999999999 is out of range"},
		{"device", "-1", "device: -1 is below 0"},
		{"fraction", "half", `fraction: "half" is not a number`},
		{"fraction", "2", "fraction: 2 is not between 0 and 1"},
		{"sidecar", "maybe", `sidecar: "maybe" is neither true nor false`},
		{"device", strings.Repeat("x", 1000), `device: "` + strings.Repeat("x", 40) + `…" is not a whole number`},
	} {
		var m metadata
		if err := m.set(c[0], c[1]); err == nil || err.Error() != c[2] {
			t.Errorf("%s = %s: got %v, want %s", c[0], c[1], err, c[2])
		}
	}
}

func FuzzReadCSV(f *testing.F) {
	seed, err := os.ReadFile("testdata/golden.csv")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte("time_us,action,id,size\n0,alloc,\"a,b\",5\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := ReadCSV(context.Background(), bytes.NewReader(data), "f")
		if err != nil {
			return
		}
		var b bytes.Buffer
		tr := rec.Devices[0]
		if err := WriteCSV(context.Background(), &b, tr); err != nil {
			t.Fatal(err)
		}
		again, err := ReadCSV(context.Background(), &b, "f")
		if err != nil {
			t.Fatalf("own output: %v\n%s", err, b.String())
		}
		if d := cmp.Diff(tr.Events, again.Devices[0].Events); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzReadParquet(f *testing.F) {
	seed, err := os.ReadFile("testdata/golden.parquet")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		ReadParquet(context.Background(), bytes.NewReader(data), int64(len(data)), "f")
	})
}

// TestGolden holds both formats to files that are part of the repository: what
// was written once must stay readable.
func TestGolden(t *testing.T) {
	ctx := context.Background()
	csv, err := os.Open("testdata/golden.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer csv.Close()
	a, err := ReadCSV(ctx, csv, "golden")
	if err != nil {
		t.Fatal(err)
	}
	pq, err := os.ReadFile("testdata/golden.parquet")
	if err != nil {
		t.Fatal(err)
	}
	b, err := ReadParquet(ctx, bytes.NewReader(pq), int64(len(pq)), "golden")
	if err != nil {
		t.Fatal(err)
	}
	x, y := a.Devices[0], b.Devices[0]
	if dump(x) != dump(y) {
		t.Errorf("the CSV and the Parquet file differ:\n%s\n%s", dump(x), dump(y))
	}
	if len(x.Events) != 9 || x.Meta.Conf != "max_split_size_mb:128" {
		t.Errorf("unexpected content:\n%s", dump(x))
	}
}

// BenchmarkReadCSV and BenchmarkWriteCSV report bytes of CSV per second.
func BenchmarkReadCSV(b *testing.B) {
	data := benchCSV(b)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := ReadCSV(context.Background(), bytes.NewReader(data), "x"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadParquet(b *testing.B) {
	tr := benchTrace(b)
	var buf bytes.Buffer
	if err := WriteParquet(context.Background(), &buf, tr); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(buf.Len())/float64(len(tr.Events)), "B/event")
	for b.Loop() {
		if _, err := ReadParquet(context.Background(), bytes.NewReader(buf.Bytes()), int64(buf.Len()), "x"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(tr.Events)*b.N)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkWriteCSV(b *testing.B) {
	tr := benchTrace(b)
	for b.Loop() {
		var w bytes.Buffer
		if err := WriteCSV(context.Background(), &w, tr); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(w.Len()))
	}
}

func benchTrace(b *testing.B) *traces.Trace {
	tb := traces.NewBuilder(200_000)
	s := tb.Stream(0)
	for i := range int64(100_000) {
		tb.Free(2*i+1, tb.Alloc(2*i, 512*(i%1000+1), s, 0))
	}
	tr, _, err := tb.Build()
	if err != nil {
		b.Fatal(err)
	}
	return tr
}

func benchCSV(b *testing.B) []byte {
	var w bytes.Buffer
	if err := WriteCSV(context.Background(), &w, benchTrace(b)); err != nil {
		b.Fatal(err)
	}
	return w.Bytes()
}

// TestFreedTwice: what is freed is gone, under whatever name it had.
func TestFreedTwice(t *testing.T) {
	for _, rows := range []string{"0,alloc,1,512\n1,free,1,\n2,free,1,\n", "0,alloc,x,512\n1,free_requested,x,\n2,free_completed,x,\n3,free_completed,x,\n"} {
		_, err := ReadCSV(context.Background(), strings.NewReader("time_us,action,id,size\n"+rows), "a.csv")
		if err == nil || !strings.Contains(err.Error(), "which is not allocated") {
			t.Errorf("%q: %v", rows, err)
		}
	}
}
