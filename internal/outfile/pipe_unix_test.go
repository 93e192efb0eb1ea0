//go:build unix

package outfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A pipe is written to, and stays one. (So are devices; those of the machine
// are not put at risk by a test.)
func TestWritePipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip("no named pipes here: ", err)
	}
	f, err := New(path, text)
	if err != nil {
		t.Fatal(err)
	}
	// Open for reading and writing, so that nobody waits for the other side.
	r, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := f.Write(content("through")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("through"))
	if st, err := os.Stat(path); err != nil || st.Mode().IsRegular() {
		t.Fatalf("the pipe was replaced: %v, %v", st.Mode(), err)
	}
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "through" {
		t.Errorf("%q came through (%v)", got, err)
	}
	boom := errors.New("boom")
	if err := f.Write(func(io.Writer) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
}
