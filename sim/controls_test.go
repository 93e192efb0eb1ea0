package sim_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestControls bends one rule of the allocator at a time, in the source
// itself, and demands that TestExact then fails: a check that cannot fail
// proves nothing. The compiler reads the bent file through an overlay; the
// tree is not touched.
func TestControls(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the allocator once for each bent rule")
	}
	for _, c := range []struct {
		rule, file, old, bent string
	}{
		{"a remainder of exactly 1 MiB is split", "torch.go", "= smallSize+1, p.conf.MaxSplitSize", "= smallSize, p.conf.MaxSplitSize"},
		{"a request of 10 MiB takes a 20 MiB segment", "rounding.go", "case size < minLargeAlloc:", "case size <= minLargeAlloc:"},
		{"a request of 1 MiB counts as large", "malloc.go", "uint(smallSize-size) >> 63", "uint(smallSize-1-size) >> 63"},
		{"first fit instead of best fit", "malloc.go", "i, e, group, class := s.find(size)", firstFit},
		{"highest instead of lowest address", "freeset.go", "bits.Sub64(blocks[y].addr, blocks[x].addr, 0)", "bits.Sub64(blocks[x].addr, blocks[y].addr, 0)"},
		{"garbage collection takes only blocks older than the average", "release.go", "float64(age) < oldest", "float64(age) <= oldest"},
		{"no walk over expandable blocks", "expandable.go", "for i != 0 && p.blocks[i].seg != noSeg {\n\t\t// Only", "for false {\n\t\t// Only"},
		{"inactive_split counts merges one by one", "free.go", "pieces--\n\t\tbytes -= p.absorb(s, b, i, j)\n\t}\n\tif j := b.next", "p.countSplits(s, -1, 0)\n\t\tbytes -= p.absorb(s, b, i, j)\n\t}\n\tif j := b.next"},
		{"the small pool is flushed first", "release.go", "[...]int{1, 0}", "[...]int{0, 1}"},
		{"a limit that is met exactly fails", "malloc.go", "p.total+a > p.limit", "p.total+a >= p.limit"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			path, err := filepath.Abs(filepath.Join("..", "policies", "torch", c.file))
			if err != nil {
				t.Fatal(err)
			}
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), c.old); n != 1 {
				t.Fatalf("%s has %q %d times, want once", c.file, c.old, n)
			}
			dir := t.TempDir()
			bent := filepath.Join(dir, c.file)
			if err := os.WriteFile(bent, []byte(strings.Replace(string(source), c.old, c.bent, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: bent}})
			if err != nil {
				t.Fatal(err)
			}
			overlayFile := filepath.Join(dir, "overlay.json")
			if err := os.WriteFile(overlayFile, overlay, 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("go", "test", "-overlay", overlayFile, "-run", "^TestExact$", "allocsim/sim").CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("the exactness test passes with this rule bent")
			case !strings.Contains(string(out), "not exact"):
				t.Errorf("the exactness test fails for another reason:\n%s", out)
			}
		})
	}
}

const firstFit = `i, e, group, class := uint32(0), (*sizeClass)(nil), uint(0), uint(0)
	for _, k := range s.appendSorted(nil, p.blocks, size, func(*block) bool { return true }) {
		if i == 0 || p.blocks[k].addr < p.blocks[i].addr {
			i = k
		}
	}`
