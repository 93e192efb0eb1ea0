package nsys

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"allocsim/traces"
)

func makeDB(t testing.TB, path, script string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(script); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTranscripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/nsys.txt", func(t *testing.T, d *datadriven.TestData) string {
		// A name that would be cut or decoded if it were pasted into a URL.
		path := filepath.Join(t.TempDir(), "a b%20?#.sqlite")
		makeDB(t, filepath.Join(filepath.Dir(path), "plain"), d.Input)
		if err := os.Rename(filepath.Join(filepath.Dir(path), "plain"), path); err != nil {
			t.Fatal(err)
		}
		rec, err := Read(context.Background(), path, "r.sqlite")
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		var b strings.Builder
		for _, tr := range rec.Devices {
			dump(&b, tr)
		}
		return b.String()
	})
}

func dump(b *strings.Builder, t *traces.Trace) {
	fmt.Fprintf(b, "device=%d name=%q total=%d streams=%d start_us=%d clock_us=%d start_events=%d\n",
		t.Device, t.Meta.DeviceName, t.Meta.DeviceTotal, t.Streams, t.StartUS, t.Meta.ClockUS, t.StartEvents)
	for _, e := range t.Events {
		fmt.Fprintf(b, "%d %s #%d %d stream %d\n", e.TimeUS, e.Kind, e.ID, e.Size, e.Stream)
	}
	for _, n := range t.Notes {
		fmt.Fprintf(b, "note %s\n", n)
	}
}

// TestGolden reads a database that is part of the repository, and leaves it as
// it was.
func TestGolden(t *testing.T) {
	const path = "testdata/golden.sqlite"
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !Detect(before) {
		t.Error("not detected")
	}
	rec, err := Read(context.Background(), path, path)
	if err != nil {
		t.Fatal(err)
	}
	tr := rec.Devices[0]
	if got := fmt.Sprint(tr.CountByKind(), tr.Meta.DeviceName); got != "map[alloc:3 free:1]NVIDIA H200" {
		t.Errorf("got %s", got)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file changed (%v)", err)
	}
}

func TestErrors(t *testing.T) {
	if _, err := Read(context.Background(), "testdata/none.sqlite", "x"); err == nil {
		t.Error("a missing file: no error")
	}
	if _, err := os.Stat("testdata/none.sqlite"); err == nil {
		t.Error("a missing file was created")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, "testdata/golden.sqlite", "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	seed, err := os.ReadFile("testdata/golden.sqlite")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "f.sqlite")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		Read(context.Background(), path, "f")
	})
}
