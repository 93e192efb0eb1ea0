package main

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"allocsim/plots"
)

// TestGallery runs the commands of docs/gallery.md: each makes a figure of the
// size of the one shown, and those shown are small.
func TestGallery(t *testing.T) {
	atRoot(t)
	text, err := os.ReadFile("docs/gallery.md")
	if err != nil {
		t.Fatal(err)
	}
	dims := func(path string) [2]int {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c, err := png.DecodeConfig(f)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return [2]int{c.Width, c.Height}
	}
	tmp := t.TempDir()
	kinds := make(map[string]bool)
	for _, line := range strings.Split(string(text), "\n") {
		command, ok := strings.CutPrefix(line, "allocsim plot ")
		if !ok {
			continue
		}
		args := append([]string{"plot"}, argumentsOf(strings.ReplaceAll(command, "docs/img/", tmp+"/"))...)
		out := args[len(args)-1]
		if _, errs, code := execute(t, "", args...); code != 0 {
			t.Errorf("%s: exit code %d: %s", line, code, errs)
			continue
		}
		shown := filepath.Join("docs", "img", filepath.Base(out))
		if got, want := dims(out), dims(shown); got != want {
			t.Errorf("%s makes a figure of %v pixels; %s has %v", line, got, shown, want)
		}
		for i, a := range args {
			if a == "--kind" {
				kinds[args[i+1]] = true
			}
		}
	}
	for _, k := range plots.Kinds() {
		if !kinds[k] {
			t.Errorf("the gallery has no figure of kind %s", k)
		}
	}
	images, err := filepath.Glob("docs/img/*.png")
	if err != nil || len(images) == 0 {
		t.Fatalf("no images: %v", err)
	}
	for _, f := range images {
		if info, err := os.Stat(f); err != nil {
			t.Fatal(err)
		} else if info.Size() > 150_000 {
			t.Errorf("%s has %d bytes", f, info.Size())
		}
	}
}

// TestReport: the command writes the whole report, says what it found, and
// leaves nothing behind when it fails.
func TestReport(t *testing.T) {
	atRoot(t)
	out := filepath.Join(t.TempDir(), "r.html")
	in := "testdata/recordings/gnn__default.pickle.zst"
	stdout, errs, code := execute(t, "", "report", in, "testdata/recordings/cuda_graph__default.pickle.zst", "-o", out)
	if code != 0 || !strings.Contains(stdout, "export PYTORCH_CUDA_ALLOC_CONF=") {
		t.Fatalf("exit code %d: %s%s", code, stdout, errs)
	}
	page, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"da99e73f3544613e6956250358d9b70b936f44fa4be522db1acd440c419af3d8", "allocsim report testdata/recordings/gnn__default.pickle.zst", "cuda_graph__default.pickle.zst", "</html>"} {
		if !strings.Contains(string(page), w) {
			t.Errorf("the report lacks %q", w)
		}
	}
	for _, args := range [][]string{
		{"report", in, "-o", filepath.Join(filepath.Dir(out), "none", "r.html")},
		{"report", in, "nothing.pickle", "-o", filepath.Join(filepath.Dir(out), "s.html")},
		{"plot", in, "-o", filepath.Join(filepath.Dir(out), "s.png"), "--dpi", "1"},
		{"plot", out, "-o", out},
	} {
		if _, _, code := execute(t, "", args...); code != exitUsage {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
	left, err := os.ReadDir(filepath.Dir(out))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestCompareBound: the figure shows the bound that the compare command prints,
// also for a recording in which requests failed.
func TestCompareBound(t *testing.T) {
	atRoot(t)
	out := filepath.Join(t.TempDir(), "c.svg")
	in := "testdata/recordings/oom_retry__f12.pickle.zst"
	if _, errs, code := execute(t, "", "plot", in, "--kind", "compare", "--policy", "torch", "-o", out); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	stdout, errs, code := execute(t, "", "compare", in)
	_, rest, ok := strings.Cut(stdout, "bound: ")
	bound, _, ok2 := strings.Cut(rest, " live at once")
	if code != 0 || !ok || !ok2 {
		t.Fatalf("exit code %d: %s%s", code, stdout, errs)
	}
	fig, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if want := "bound: most live at once, " + bound; !strings.Contains(string(fig), want) {
		t.Errorf("the figure does not say %q", want)
	}
}
