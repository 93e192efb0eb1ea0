package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"allocsim/internal/outfile"
	"allocsim/validate/cuda"
)

// writing are command lines for every output of every command; {OUT} is the
// output without its ending.
var writing = []struct {
	command, flag string // what writes; no flag for an argument
	line, ending  string
}{
	{"record", "output", "record -o {OUT}", ".py"},
	{"validate", "junit", "validate n.csv --engine sim --junit {OUT}", ".xml"},
	{"validate", "junit", "validate job.pickle.zst --engine sim --junit {OUT}", ".xml"},
	{"validate", "save-cost", "validate --save-cost {OUT}", ".json"},
	{"validate", "save-cost", "validate n.csv --engine sim --save-cost {OUT}", ".json"},
	{"plot", "output", "plot n.csv -o {OUT}", ".png"},
	{"plot", "output", "plot job.pickle.zst -o {OUT}", ".svg"},
	{"plot", "output", "plot n.csv -o {OUT}", ".pdf"},
	{"report", "output", "report n.csv -o {OUT}", ".html"},
	{"report", "output", "report n.csv job.pickle.zst -o {OUT}", ".htm"},
	{"convert", "", "convert n.csv {OUT}", ".csv"},
	{"convert", "", "convert n.csv {OUT}", ".csv.gz"},
	{"convert", "", "convert n.csv {OUT}", ".csv.zst"},
	{"convert", "", "convert n.csv {OUT}", ".minimalloc.csv"},
	{"convert", "", "convert n.csv {OUT}", ".parquet"},
	{"convert", "", "convert job.pickle.zst {OUT}", ".json"},
	{"convert", "", "convert job.pickle.zst {OUT}", ".perfetto.json"},
	{"synth", "output", "synth model.json -o {OUT}", ".csv"},
	{"synth", "output", "synth model.json -o {OUT}", ".parquet"},
}

// worth are files that nobody wants to lose, whatever name they have.
func worth(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{
		"n.csv":      []byte("time_us,action,id,size,stream\n0,alloc,1,512,0\n1,free,1,,0\n"),
		"model.json": []byte(`{"family": "gpt2", "layers": 1, "hidden": 64, "heads": 1, "vocab": 100, "positions": 64}`),
		"notes.txt":  []byte("milk\n"),
		"page.html":  []byte("<!DOCTYPE html>\n<html><body>mine</body></html>\n"),
		"train.py":   []byte("import torch\n"),
		"image.gif":  []byte("GIF89a"),
		"data.json":  []byte(`{"learning_rate": 0.1}`),
		"data.xml":   []byte("<?xml version=\"1.0\"?>\n<settings/>\n"),
		"table.csv":  []byte("name,size\nmilk,1\n"),
		"packed.gz":  {0x1f, 0x8b, 8, 0, 0},
	}
	for from, to := range map[string]string{"gnn__default.pickle.zst": "job.pickle.zst", "gnn__default.json": "job.json"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "testdata", "recordings", from))
		if err != nil {
			t.Fatal(err)
		}
		files[to] = data
	}
	return files
}

// own says which file of worth is of the kind that an ending names, so that it
// may go unless the command reads it.
var own = map[string]string{".csv": "n.csv", ".csv.gz": "n.csv", ".csv.zst": "n.csv", ".html": "page.html", ".htm": "page.html"}

// TestOutputsSpare tries every output of every command on what must not be
// replaced: files of other kinds under the output's name, and links of both
// sorts to what the command reads.
func TestOutputsSpare(t *testing.T) {
	files := worth(t)
	base := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(base, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(base)
	for _, w := range writing {
		out := "out" + w.ending
		args := strings.Fields(strings.ReplaceAll(w.line, "{OUT}", out))
		refused := func(t *testing.T, want []byte) {
			t.Helper()
			stdout, stderr, code := execute(t, "", args...)
			if code != exitUsage || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, out) || !strings.Contains(stderr, "write to another file") {
				t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
			}
			if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the file changed: %.60q (%v)", got, err)
			}
			if err := os.Remove(out); err != nil {
				t.Error(err)
			}
		}
		for name, data := range files {
			if own[w.ending] != name {
				t.Run(w.line+w.ending+" over "+name, func(t *testing.T) {
					if err := os.WriteFile(out, data, 0o644); err != nil {
						t.Fatal(err)
					}
					refused(t, data)
				})
			}
			if !strings.Contains(w.line, name) && !(name == "job.json" && strings.Contains(w.line, "job.pickle")) {
				continue
			}
			for how, link := range map[string]func(string, string) error{"hard": os.Link, "symbolic": os.Symlink} {
				t.Run(w.line+w.ending+" through a "+how+" link to "+name, func(t *testing.T) {
					if err := link(name, out); err != nil {
						t.Skip("no links here: ", err)
					}
					refused(t, data)
					if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, data) {
						t.Errorf("%s changed: %.60q (%v)", name, got, err)
					}
				})
			}
		}
		t.Run(w.line+w.ending+" over a protected file", func(t *testing.T) {
			if err := os.WriteFile(out, nil, 0o444); err != nil {
				t.Fatal(err)
			}
			refused(t, nil)
		})
	}
}

// TestOutputsAgain writes every output twice: what a command wrote before, it
// may replace.
func TestOutputsAgain(t *testing.T) {
	base := t.TempDir()
	for name, data := range worth(t) {
		if err := os.WriteFile(filepath.Join(base, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(base)
	for _, w := range writing {
		if w.flag == "save-cost" {
			continue // needs a GPU
		}
		t.Run(w.line+w.ending, func(t *testing.T) {
			out := "out" + w.ending
			if err := os.WriteFile(out, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			args := strings.Fields(strings.ReplaceAll(w.line, "{OUT}", out))
			for range 2 {
				if _, stderr, code := execute(t, "", append(args, "-q")...); code != exitOK {
					t.Fatalf("exit code %d, %s", code, stderr)
				}
			}
			if st, err := os.Stat(out); err != nil || st.Size() == 0 {
				t.Errorf("nothing was written (%v)", err)
			}
			if err := os.Remove(out); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOutputsOfOneCommand refuses two outputs in one file, and an output in
// any file that the command line names.
func TestOutputsOfOneCommand(t *testing.T) {
	base := t.TempDir()
	for name, data := range worth(t) {
		if err := os.WriteFile(filepath.Join(base, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(base)
	for line, want := range map[string]string{
		"validate n.csv --engine sim --junit a.json --save-cost a.json":        "what --",
		"validate n.csv --engine sim --junit a.json --save-cost ./x/../a.json": "what --",
		"convert - n.csv <n.csv":                "standard input",
		"validate n.csv --engine sim --junit=":  "--junit is empty",
		"validate n.csv --engine sim --junit .": "is a folder",
		"plot n.csv --catalogue n.csv -o n.csv": "ends in .png",
		"record -o rec.pickle":                  ".py",
		"record -o -.py":                        "",
	} {
		if err := os.MkdirAll("x", 0o755); err != nil {
			t.Fatal(err)
		}
		line, from, _ := strings.Cut(line, " <")
		var in *os.File
		if from != "" {
			f, err := os.Open(from)
			if err != nil {
				t.Fatal(err)
			}
			in = f
		}
		var out, errs bytes.Buffer
		var code int
		if in != nil {
			code = run(t.Context(), strings.Fields(line), in, &out, &errs)
			in.Close()
		} else {
			code = run(t.Context(), strings.Fields(line), strings.NewReader(""), &out, &errs)
		}
		if wantCode := map[bool]int{true: exitOK, false: exitUsage}[want == ""]; code != wantCode || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, %s; want %q", line, code, errs.String(), want)
		}
		if _, err := os.Stat("a.json"); err == nil {
			t.Errorf("%s: wrote a.json", line)
		}
	}
}

// What --save-cost writes is known again (writing it needs a GPU).
func TestCostKind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cost.json")
	file, err := outfile.New(path, costKind)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := file.Write(func(w io.Writer) error {
			return writeJSON(w, cuda.Cost{Driver: 13000, Source: strings.Repeat("a card, ", 100)})
		}); err != nil {
			t.Error(err)
		}
	}
}

// A folder of manual pages may hold other files, and pages of other programs.
func TestManualSpares(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "allocsim-tune.1")
	for _, c := range []struct {
		content string
		code    int
	}{{"my notes\n", exitUsage}, {"", exitOK}} {
		if err := os.WriteFile(page, []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, stderr, code := execute(t, "", "man", dir); code != c.code {
				t.Errorf("over %q: exit code %d, %s", c.content, code, stderr)
			}
		}
	}
	if data, err := os.ReadFile(page); err != nil || !bytes.Contains(data, []byte("allocsim-tune")) {
		t.Errorf("no page: %.100q, %v", data, err)
	}
}

// TestOutputsAreTried holds the table of outputs complete.
func TestOutputsAreTried(t *testing.T) {
	tried := make(map[[2]string]bool)
	for _, w := range writing {
		tried[[2]string{w.command, w.flag}] = true
	}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if isOutput(f) && !tried[[2]string{c.Name(), f.Name}] {
				t.Errorf("%s --%s writes a file, but no test tries it", c.CommandPath(), f.Name)
			}
			if !isOutput(f) && (f.Name == "output" || strings.Contains(f.Usage, "write")) && strings.Contains(f.Usage, "FILE") {
				t.Errorf("%s --%s writes a file: %q; declare it with addOutput", c.CommandPath(), f.Name, f.Usage)
			}
		})
		for _, s := range c.Commands() {
			visit(s)
		}
	}
	visit(newRoot(strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}))
}
