package pickle_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"allocsim/internal/pickle"
)

var rewrite = flag.Bool("rewrite-journals", false, "write testdata/journals.txt; with -tags plainpickle only")

// digest is a handler that takes everything it is told into a hash.
type digest struct {
	sum hash.Hash
	n   uint64
}

func (g *digest) write(d *pickle.Decoder, what string, items []pickle.Value) (pickle.Value, error) {
	fmt.Fprintf(g.sum, "%s %d:", what, len(items))
	for _, v := range items {
		n, _ := d.Int(v)
		f, _ := d.Float(v)
		fmt.Fprintf(g.sum, " %x %d %x %q", uint64(v), n, f, d.String(v))
	}
	g.n++
	return pickle.Record(g.n), nil
}

func (g *digest) Dict(d *pickle.Decoder, pairs []pickle.Value, same bool) (pickle.Value, error) {
	return g.write(d, fmt.Sprint("dict ", same), pairs)
}

func (g *digest) Seq(d *pickle.Decoder, acc pickle.Value, items []pickle.Value, last bool) (pickle.Value, error) {
	return g.write(d, fmt.Sprint("seq ", uint64(acc), last), items)
}

// TestJournals: whatever way recordings are decoded, the handler is told the
// same. testdata/journals.txt was written by the plain way (-tags plainpickle).
func TestJournals(t *testing.T) {
	files, err := filepath.Glob("../../testdata/recordings/*.pickle.zst")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	var got strings.Builder
	for _, path := range files {
		packed, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		z, err := zstd.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		g := &digest{sum: sha256.New()}
		v, err := pickle.NewDecoder(context.Background(), z, g, "action").Decode()
		z.Close()
		fmt.Fprintf(&got, "%s %d %x %x %v\n", filepath.Base(path), g.n, uint64(v), g.sum.Sum(nil)[:8], err)
	}
	const golden = "testdata/journals.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	w, g := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
	for i := range max(len(w), len(g)) {
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			t.Fatalf("line %d of %s differs: %q, want %q", i+1, golden, append(g, "")[min(i, len(g))], append(w, "")[min(i, len(w))])
		}
	}
}
