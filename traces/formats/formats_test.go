package formats

import (
	"bytes"
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
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"

	"allocsim/internal/outfile"
	"allocsim/traces"
	"allocsim/traces/native"
	"allocsim/traces/snapshot"
)

// samples are small files of each kind.
var samples = map[string]string{
	native.FormatCSV:     "../native/testdata/golden.csv",
	native.FormatParquet: "../native/testdata/golden.parquet",
	"kineto":             "../kineto/testdata/resnet50_cut.json.gz",
	"rmm-log":            "../rmmlog/testdata/golden.csv",
	"nsys":               "../nsys/testdata/golden.sqlite",
	"minimalloc-csv":     "../minimalloc/testdata/small.csv",
	snapshot.Format:      "testdata/small.pickle",
}

func TestOpenEveryFormat(t *testing.T) {
	for want, path := range samples {
		rec, err := Open(context.Background(), path, Options{})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		tr := rec.Devices[0]
		if tr.Format != want || tr.Source != path || len(tr.Events) == 0 || tr.Meta.ClockUS == 0 && tr.StartUS != 0 {
			t.Errorf("%s: format %s, source %s, %d events, clock %d", path, tr.Format, tr.Source, len(tr.Events), tr.Meta.ClockUS)
		}
		i := slices.IndexFunc(Formats(), func(f Format) bool { return f.Name == want })
		if i < 0 || !Formats()[i].Read {
			t.Errorf("%s is not in Formats()", want)
		}
	}
}

// TestPacked opens every format packed, by file and through a pipe.
func TestPacked(t *testing.T) {
	dir := t.TempDir()
	for format, path := range samples {
		want, err := Open(context.Background(), path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, ".gz") {
			z, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if data, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		for _, ending := range []string{"", ".gz", ".zst"} {
			var b bytes.Buffer
			if err := pack("x"+ending, &b, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, format+ending)
			if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, o := range []struct {
				path string
				opts Options
			}{{file, Options{}}, {"-", Options{Stdin: iotest.HalfReader(&b)}}} {
				got, err := Open(context.Background(), o.path, o.opts)
				if err != nil {
					t.Errorf("%s%s through %s: %v", format, ending, o.path, err)
					continue
				}
				if d := cmp.Diff(want.Devices[0].Events, got.Devices[0].Events); d != "" {
					t.Errorf("%s%s through %s: %s", format, ending, o.path, d)
				}
			}
		}
	}
}

// TestMessages opens what is no trace and prints the message.
func TestMessages(t *testing.T) {
	datadriven.RunTest(t, "testdata/messages.txt", func(t *testing.T, d *datadriven.TestData) string {
		dir := t.TempDir()
		name := "file"
		if d.HasArg("name") {
			d.ScanArgs(t, "name", &name)
		}
		data := []byte(d.Input)
		if d.HasArg("hex") {
			data = nil
			for _, f := range strings.Fields(d.Input) {
				var b byte
				if _, err := fmt.Sscanf(f, "%02x", &b); err != nil {
					t.Fatal(err)
				}
				data = append(data, b)
			}
		}
		path := filepath.Join(dir, name)
		switch d.Cmd {
		case "open":
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		case "cut":
			var b bytes.Buffer
			if err := pack(name, &b, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b.Bytes()[:b.Len()-9], 0o600); err != nil {
				t.Fatal(err)
			}
		case "missing":
			if err := os.WriteFile(path+".zst", nil, 0o600); err != nil {
				t.Fatal(err)
			}
		case "folder":
			path = dir
		}
		if d.HasArg("beside") {
			var beside string
			d.ScanArgs(t, "beside", &beside)
			if err := os.WriteFile(filepath.Join(dir, beside), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(context.Background(), path, Options{})
		if err == nil {
			return "ok\n"
		}
		return strings.ReplaceAll(strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), ""), dir, "DIR") + "\n"
	})
}

// TestSidecar looks for the sidecar beside a snapshot, packed or not.
func TestSidecar(t *testing.T) {
	data, err := os.ReadFile(samples[snapshot.Format])
	if err != nil {
		t.Fatal(err)
	}
	const side = `{"conf":"max_split_size_mb:128","fraction":0.5,"device_total":1000,"torch":"2.11.0"}`
	for _, c := range []struct {
		snapshot, beside, content, override string
		want                                string
	}{
		{"a.pickle", "a.json", side, "", "true max_split_size_mb:128 0.5"},
		{"a.pickle.zst", "a.json", side, "", "true max_split_size_mb:128 0.5"},
		{"run.1.pkl.gz", "run.1.json", side, "", "true max_split_size_mb:128 0.5"},
		{"a.pickle", "b.json", side, "", "false  0"},
		{"a.pickle", "b.json", side, "b.json", "true max_split_size_mb:128 0.5"},
		// Another program's file of that name is none.
		{"a.pickle", "a.json", `{"learning_rate": 0.1}`, "", "false  0"},
		{"a.pickle", "a.json", `[1, 2`, "", "false  0"},
		{"a.pickle", "b.json", `{"learning_rate": 0.1}`, "b.json", "error: b.json is not a sidecar: it is not a JSON object with conf, fraction, device_total or stats"},
		{"a.pickle", "b.json", side, "c.json", "error: sidecar: there is no file c.json"},
		{"a.pickle", "a.json", `{"conf": "", "fraction": 7}`, "", "error: a.json: the sidecar's fraction is 7; it must be between 0 and 1"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, c.snapshot)
		file, err := outfile.New(path, outfile.Kind{})
		if err != nil {
			t.Fatal(err)
		}
		if err := WritePacked(file, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, c.beside), []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		o := Options{}
		if c.override != "" {
			o.Sidecar = filepath.Join(dir, c.override)
		}
		rec, err := Open(context.Background(), path, o)
		var got string
		if err != nil {
			_, msg, _ := strings.Cut(err.Error(), "): ")
			got = "error: " + strings.ReplaceAll(msg, dir+string(filepath.Separator), "")
		} else {
			m := rec.Devices[0].Meta
			got = fmt.Sprint(m.Sidecar, " ", m.Conf, " ", m.Fraction)
		}
		if got != c.want {
			t.Errorf("%s with %s: got %s, want %s", c.snapshot, c.beside, got, c.want)
		}
	}
}

// TestWrite writes every format that can be written and reads back what can be
// read.
func TestWrite(t *testing.T) {
	ctx := context.Background()
	rec, err := Open(ctx, samples["kineto"], Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := rec.Devices[0]
	dir := t.TempDir()
	// The second time they replace what the first wrote.
	for _, name := range []string{"a.csv", "a.csv.gz", "a.csv.zst", "A.PARQUET", "a.parquet", "a.csv", "a.csv.gz", "a.csv.zst", "A.PARQUET", "a.parquet"} {
		path := filepath.Join(dir, name)
		notes, err := writeTo(ctx, path, want)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(notes) != 1 || !strings.Contains(notes[0], "addresses") {
			t.Errorf("%s: notes %q", name, notes)
		}
		got, err := Open(ctx, path, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		g := got.Devices[0]
		if d := cmp.Diff(want.Events, g.Events); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if !slices.Equal(g.Notes, append(slices.Clone(want.Notes), notes...)) {
			t.Errorf("%s: notes %q", name, g.Notes)
		}
		if g.Meta.DeviceTotal != want.Meta.DeviceTotal || g.StartUS != want.StartUS || g.Meta.ClockUS != want.Meta.ClockUS || !slices.Equal(g.Annotations, want.Annotations) {
			t.Errorf("%s: %+v", name, g.Meta)
		}
	}
	if notes, err := writeTo(ctx, filepath.Join(dir, "a.minimalloc.csv.gz"), want); err != nil || len(notes) == 0 {
		t.Errorf("minimalloc: %v, %q", err, notes)
	} else if got, err := Open(ctx, filepath.Join(dir, "a.minimalloc.csv.gz"), Options{}); err != nil || got.Devices[0].NumBlocks != want.NumBlocks || len(got.Devices[0].Notes) == 0 {
		t.Errorf("minimalloc: %v, %+v", err, got)
	}
	if notes, err := writeTo(ctx, filepath.Join(dir, "a.perfetto.json"), want); err != nil || len(notes) != 1 {
		t.Errorf("perfetto: %v, %q", err, notes)
	}
	for name, msg := range map[string]string{
		"a.txt":         "the ending names no format",
		"a.csv.bz2":     "bzip2",
		"no/such/a.csv": "there is no folder",
	} {
		if _, err := writeTo(ctx, filepath.Join(dir, name), want); err == nil || !strings.Contains(err.Error(), msg) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var b bytes.Buffer
	if _, err := Encode(ctx, &b, want, native.FormatCSV); err != nil || !native.DetectCSV(b.Bytes()) {
		t.Errorf("Encode: %v", err)
	}
	if _, err := Encode(ctx, &b, want, "pickle"); err == nil {
		t.Error("Encode of an unknown format: no error")
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// A write that is cancelled or refused leaves what was there.
func TestWriteSpares(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tr := &traces.Trace{Streams: []uint64{0}, Pools: []traces.PoolID{{}}, Events: []traces.Event{{Kind: traces.EmptyCache, ID: traces.NoBlock}}}
	if _, err := writeTo(ctx, filepath.Join(dir, "t.csv"), tr); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if got := entries(t, dir); len(got) > 0 {
		t.Errorf("after a cancelled write the folder holds %q", got)
	}
	var other bytes.Buffer // a table that is no trace
	type row struct{ Name string }
	if err := parquet.Write(&other, []row{{"milk"}}); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"table.csv":          []byte("name,size\nmilk,1\n"),
		"mini.csv":           []byte("id,lower,upper,size\n1,0,1,512\n"),
		"n.minimalloc.csv":   []byte("time_us,action,id,size,stream\n0,alloc,1,512,0\n"),
		"table.parquet":      other.Bytes(),
		"torn.csv.gz":        {0x1f, 0x8b},
		"settings.json":      []byte(`{"learning_rate": 0.1}`),
		"kineto.json":        []byte(`{"schemaVersion": 1, "traceEvents": []}`),
		"text.perfetto.json": []byte("milk\n"),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := writeTo(t.Context(), path, tr); err == nil || !strings.Contains(err.Error(), "exists and is not ") {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s changed: %q, %v", name, got, err)
		}
	}
}

// writeTo writes a trace as a program does that reads nothing else.
func writeTo(ctx context.Context, path string, tr *traces.Trace) ([]string, error) {
	out, err := Output(path)
	if err != nil {
		return nil, err
	}
	return Write(ctx, out, tr)
}

func TestProgress(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.csv")
	var b bytes.Buffer
	b.WriteString("time_us,action,id,size\n")
	for i := range 200_000 {
		fmt.Fprintf(&b, "%d,alloc,%d,512\n", i, i)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var seen []int64
	_, err := Open(context.Background(), path, Options{Progress: func(done, total int64) {
		if total != int64(b.Len()) {
			t.Errorf("total %d, want %d", total, b.Len())
		}
		seen = append(seen, done)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) < 3 || !slices.IsSorted(seen) || seen[len(seen)-1] != int64(b.Len()) {
		t.Errorf("progress %v of %d", seen, b.Len())
	}
}

func TestOpenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for format, path := range samples {
		if _, err := Open(ctx, path, Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// zeros is a bomb: it unpacks to n bytes of c.
func bomb(t *testing.T, head string, c byte, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(z, head)
	block := bytes.Repeat([]byte{c}, 1<<20)
	for range n >> 20 {
		if _, err := z.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestBombs opens small files that unpack to 512 MiB. What readers keep is
// bounded by what they find, so each must end, with an error, without taking
// that memory.
func TestBombs(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks gigabytes")
	}
	for name, head := range map[string]string{
		"csv":     "time_us,action,id,size\n0,alloc,",
		"rmm":     "Thread,Time,Action,Pointer,Size,Stream\n1,",
		"kineto":  `{"traceEvents":[{"name":"`,
		"parquet": "PAR1",
		"sqlite":  "SQLite format 3\x00",
		"pickle":  "\x80\x04\x8e\xff\xff\xff\xff\x0f\x00\x00\x00",
	} {
		data := bomb(t, head, '7', 512<<20)
		var stats = new(memoryPeak)
		stop := stats.watch()
		_, err := Open(context.Background(), "-", Options{Stdin: bytes.NewReader(data)})
		peak := stop()
		if err == nil {
			t.Errorf("%s: %d bytes that unpack to 512 MiB of nonsense: no error", name, len(data))
		}
		if peak > 128<<20 {
			t.Errorf("%s: %d MiB of memory for %d bytes (%v)", name, peak>>20, len(data), err)
		}
	}
}
