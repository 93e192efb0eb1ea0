package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// packed runs replay under the policy packing.
func packed(t *testing.T, args ...string) (code int, doc struct {
	Bound     int64            `json:"bound"`
	Completed bool             `json:"completed"`
	Stats     map[string]int64 `json:"stats"`
	Notes     []string         `json:"notes"`
}) {
	t.Helper()
	out, errs, code := execute(t, "", append([]string{"replay", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v: exit code %d, %v, %s", args, code, err, errs)
	}
	return code, doc
}

// TestPackingCommand: a rectangle of time and bytes that was cut into buffers is
// put together again by the command, with its bytes as the capacity and
// without; one byte less cannot do, and that is told.
func TestPackingCommand(t *testing.T) {
	const room, end = 1 << 20, 1_000_000
	type buffer struct{ lower, upper, lo, hi int64 }
	rng := rand.New(rand.NewPCG(9, 7))
	bs := []buffer{{0, end, 0, room / 1024}}
	for len(bs) < 140 {
		i := rng.IntN(len(bs))
		a, b := bs[i], bs[i]
		if rng.IntN(2) == 0 && a.hi-a.lo > 1 {
			a.hi = a.lo + 1 + rng.Int64N(a.hi-a.lo-1)
			b.lo = a.hi
		} else if a.upper-a.lower > 1 {
			a.upper = a.lower + 1 + rng.Int64N(a.upper-a.lower-1)
			b.lower = a.upper
		} else {
			continue
		}
		bs[i] = a
		bs = append(bs, b)
	}
	rng.Shuffle(len(bs), func(i, j int) { bs[i], bs[j] = bs[j], bs[i] })
	var csv strings.Builder
	csv.WriteString("id,lower,upper,size\n")
	for i, b := range bs {
		fmt.Fprintf(&csv, "%d,%d,%d,%d\n", i, b.lower, b.upper, (b.hi-b.lo)*1024)
	}
	file := filepath.Join(t.TempDir(), "cut.csv")
	if err := os.WriteFile(file, []byte(csv.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--capacity", "1048576"}, {"--capacity", "1MiB"}} {
		code, doc := packed(t, append([]string{file, "--policy", "packing"}, args...)...)
		if code != exitOK || !doc.Completed || doc.Bound != room || doc.Stats["reserved_bytes.all.peak"] != room {
			t.Errorf("%v: exit code %d, completed %v, bound %d, reserved %d", args, code, doc.Completed, doc.Bound, doc.Stats["reserved_bytes.all.peak"])
		}
	}
	_, doc := packed(t, file, "--policy", "packing", "--capacity", "1048575B")
	if doc.Completed || !strings.Contains(strings.Join(doc.Notes, " "), "No placement fits in 1.00 MiB (1048575 bytes): that is proved.") {
		t.Errorf("one byte less: completed %v, %q", doc.Completed, doc.Notes)
	}
}

// TestMinimalloc runs MiniMalloc's challenging instances through the command:
// all fit in their capacity, given or not.
func TestMinimalloc(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/data/minimalloc/[A-K].1048576.csv")
	if len(files) == 0 {
		t.Skip("MiniMalloc's instances are other people's and not part of the repository")
	}
	for _, file := range files {
		for _, args := range [][]string{nil, {"--capacity", "1048576"}} {
			code, doc := packed(t, append([]string{file, "--policy", "packing"}, args...)...)
			if peak := doc.Stats["reserved_bytes.all.peak"]; code != exitOK || !doc.Completed || peak > 1048576 || doc.Bound > peak || doc.Bound == 0 {
				t.Errorf("%s %v: exit code %d, completed %v, %d bytes, bound %d", filepath.Base(file), args, code, doc.Completed, peak, doc.Bound)
			}
		}
	}
}
