package formats

import (
	"bytes"
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"allocsim/traces"
	"allocsim/traces/native"
	"allocsim/traces/snapshot"
)

// besideSnapshot writes the sample snapshot and, beside it, a sidecar, and
// returns the snapshot's path.
func besideSnapshot(t *testing.T, sidecar string) string {
	t.Helper()
	data, err := os.ReadFile(samples[snapshot.Format])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.pickle")
	for name, content := range map[string][]byte{path: data, strings.TrimSuffix(path, "pickle") + "json": []byte(sidecar)} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestSidecarByOneKey: a sidecar made by hand may hold one fact only, and that
// one counts.
func TestSidecarByOneKey(t *testing.T) {
	for content, says := range map[string]func(tr *traces.Trace) bool{
		`{"conf": "max_split_size_mb:128"}`:                    func(tr *traces.Trace) bool { return tr.Meta.Conf == "max_split_size_mb:128" },
		`{"fraction": 0.5}`:                                    func(tr *traces.Trace) bool { return tr.Meta.Fraction == 0.5 },
		`{"device_total": 25769803776}`:                        func(tr *traces.Trace) bool { return tr.Meta.DeviceTotal == 24<<30 },
		`{"stats": {"reserved_bytes.all.peak": 2097152}}`:      func(tr *traces.Trace) bool { return tr.Recorded.Stats["reserved_bytes.all.peak"] == 2<<20 },
		`{"fraction": 0.5, "learning_rate": 0.1, "seed": [1]}`: func(tr *traces.Trace) bool { return tr.Meta.Fraction == 0.5 },
	} {
		path := besideSnapshot(t, content)
		if Sidecar(path) == "" {
			t.Errorf("%s is not found", content)
		}
		rec, err := Open(context.Background(), path, Options{})
		if err != nil {
			t.Errorf("%s: %v", content, err)
			continue
		}
		if tr := rec.Devices[0]; !tr.Meta.Sidecar || !says(tr) {
			t.Errorf("%s: read as %+v", content, tr.Meta)
		}
	}
}

// TestSidecarOverruled: the sidecar that the caller names counts, whatever
// lies beside the snapshot.
func TestSidecarOverruled(t *testing.T) {
	path := besideSnapshot(t, `{"fraction": 0.5}`)
	named := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(named, []byte(`{"fraction": 0.25}`), 0o600); err != nil {
		t.Fatal(err)
	}
	rec, err := Open(context.Background(), path, Options{Sidecar: named})
	if err != nil || rec.Devices[0].Meta.Fraction != 0.25 {
		t.Errorf("%v, %v; want the fraction 0.25", rec, err)
	}
}

// TestBzip2 opens three lines that the bzip2 tool packed.
func TestBzip2(t *testing.T) {
	data, err := hex.DecodeString("425a68393141592653590ac22177000015db800010000432200000af279e102000222314cc400ca1468c81a34c8d18c8c947b54ddd00e8c53510e6351f77d5070d23ab08bc263d14fc5dc914e142402b0885dc")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := Open(context.Background(), "-", Options{Stdin: bytes.NewReader(data)})
	if err != nil || rec.Devices[0].NumBlocks != 1 {
		t.Errorf("%+v, %v; want one block", rec, err)
	}
}

// TestNothingIsLeftBehind: Parquet must be read at random, so a packed one is
// unpacked into a temporary file, which goes with the reading.
func TestNothingIsLeftBehind(t *testing.T) {
	data, err := os.ReadFile(samples[native.FormatParquet])
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	if os.TempDir() != temp {
		t.Skip("the temporary folder is named by another variable here")
	}
	if _, err := Open(context.Background(), "-", Options{Stdin: bytes.NewReader(data)}); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, temp); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestUnpackedSizeIsBounded: a small file that unpacks to gigabytes is no
// trace, however little that costs its maker; a file of megabytes may pack as
// well as it likes.
func TestUnpackedSizeIsBounded(t *testing.T) {
	open := func(size int) (unpacked int64, err error) {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		for block := make([]byte, 1<<20); size > 0; size -= len(block) {
			if _, err := z.Write(block); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := open(context.Background(), "-", Options{Stdin: &b})
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		_, unpacked, err = s.random()
		return unpacked, err
	}
	if n, err := open(8 << 20); err != nil || n != 8<<20 {
		t.Errorf("8 MiB of zeros: %d bytes, %v", n, err)
	}
	if n, err := open(400 << 20); err == nil {
		t.Errorf("400 MiB of zeros: %d bytes are unpacked", n)
	}
}

// TestClock: times in a trace count from its first event, and the clock says
// when that was.
func TestClock(t *testing.T) {
	text := "time_us,action,id,size\n1700000000000000,alloc,1,512\n1700000000000005,free,1,\n"
	rec, err := Open(context.Background(), "-", Options{Stdin: strings.NewReader(text)})
	if err != nil {
		t.Fatal(err)
	}
	if tr := rec.Devices[0]; tr.StartUS != 1700000000000000 || tr.Meta.ClockUS != 1700000000000000 {
		t.Errorf("the trace starts at %d, its clock at %d", tr.StartUS, tr.Meta.ClockUS)
	}
}

// TestEndings: the longest ending names the format, in any case, and a packed
// file is packed in the format of what it unpacks to.
func TestEndings(t *testing.T) {
	for path, want := range map[string]string{
		"a.csv": native.FormatCSV, "a.CSV.gz": native.FormatCSV, "x.minimalloc.csv": "minimalloc-csv", "x.Minimalloc.csv.zst": "minimalloc-csv",
		"a.parquet": native.FormatParquet, "A.PARQUET": native.FormatParquet, "b.csv.parquet": native.FormatParquet, "minimalloc.csv": native.FormatCSV,
	} {
		if w, err := writerFor(path); err != nil || w.name != want {
			t.Errorf("%s: %+v, %v; want %s", path, w, err, want)
		}
	}
}
