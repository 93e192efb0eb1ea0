package dryrun_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"allocsim/traces"
	"allocsim/traces/dryrun"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden.txt again")

func unpack(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	b, err = z.DecodeAll(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// common is the length of the longest common subsequence.
func common(a, b []int64) int {
	prev, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for _, x := range a {
		for j, y := range b {
			switch {
			case x == y:
				row[j+1] = prev[j] + 1
			default:
				row[j+1] = max(prev[j+1], row[j])
			}
		}
		prev, row = row, prev
	}
	return prev[len(b)]
}

// TestGolden compares dry runs with real runs of the same programs on an H200
// (torch 2.11.0+cu130), request by request in blocks of 512 bytes: at least 97 %
// of the real requests must be made, in their order, and no more than 3 %
// besides; 92 % and 8 % where most requests are workspaces that are fitted.
// testdata/golden.txt lists how many were, so that a change shows.
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.requests.zst")
	if err != nil || len(paths) < 6 {
		t.Fatalf("%d real runs: %v", len(paths), err)
	}
	var list strings.Builder
	list.WriteString("# program: real requests, made, common in order\n")
	for _, p := range paths {
		name := strings.TrimSuffix(filepath.Base(p), ".requests.zst")
		block := func(n int64) int64 { return (n + 511) / 512 }
		var real, made []int64
		for s := bufio.NewScanner(bytes.NewReader(unpack(t, p))); s.Scan(); {
			n, err := strconv.ParseInt(s.Text(), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			real = append(real, block(n))
		}
		rec, err := dryrun.Read(context.Background(), bytes.NewReader(unpack(t, "testdata/"+name+".dryrun.zst")), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range rec.Devices[0].Events {
			if e.Kind == traces.Alloc {
				made = append(made, block(e.Size))
			}
		}
		c := common(real, made)
		fmt.Fprintf(&list, "%s: %d %d %d\n", name, len(real), len(made), c)
		share := 0.97
		if fitted[name] {
			share = 0.92
		}
		least, most := int(math.Ceil(share*float64(len(real)))), int((2-share)*float64(len(real)))
		if c < least || len(made) > most {
			t.Errorf("%s: %d of %d real requests, %d made", name, c, len(real), len(made))
		}
	}
	if *rewrite {
		if err := os.WriteFile("testdata/golden.txt", []byte(list.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != list.String() {
		t.Errorf("got\n%swant\n%s", list.String(), want)
	}
}

// fitted are programs whose requests are mostly workspaces of convolutions or
// recurrent layers, which are approximated.
var fitted = map[string]bool{"unet3d_fp32": true, "dcgan": true, "lstm_lm_fp32": true, "gru_lm_amp": true, "vgg16_bn_fp32": true}
