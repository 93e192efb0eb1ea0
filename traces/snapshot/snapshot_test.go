package snapshot

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"allocsim/traces"
)

// load reads a snapshot, decompressed if it ends in .zst, with the sidecar
// beside it if there is one.
func load(t testing.TB, path string) ([]byte, *Sidecar) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".zst") {
		d, err := zstd.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if data, err = io.ReadAll(d); err != nil {
			t.Fatal(err)
		}
	}
	var side *Sidecar
	if js, err := os.ReadFile(strings.TrimSuffix(strings.TrimSuffix(path, ".zst"), ".pickle") + ".json"); err == nil {
		if side, err = ParseSidecar(js); err != nil {
			t.Fatal(err)
		}
	}
	return data, side
}

func mustRead(t testing.TB, path string) *traces.Recording {
	t.Helper()
	data, side := load(t, path)
	rec, err := Read(context.Background(), bytes.NewReader(data), Options{Source: filepath.Base(path), Sidecar: side})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// TestAllRecordings loads every recording that is at hand.
func TestAllRecordings(t *testing.T) {
	var files []string
	for _, dir := range []string{"../../testdata/recordings", "../../../shared/recordings/*", "../../../shared/data/snapshots"} {
		for _, ending := range []string{"*.pickle.zst", "*.pickle"} {
			m, err := filepath.Glob(filepath.Join(dir, ending))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, m...)
		}
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			rec := mustRead(t, f)
			for _, tr := range rec.Devices {
				t.Log(len(tr.Events), tr.NumBlocks, tr.CountByKind(), len(tr.Recorded.Driver), tr.Notes)
			}
		})
	}
}
