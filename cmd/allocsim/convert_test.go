package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"allocsim/traces/formats"
	"allocsim/traces/perfetto"
)

// TestSimulationFlags makes convert refuse what would change nothing in OUT.
func TestSimulationFlags(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "n.csv")
	if err := os.WriteFile(in, []byte("time_us,action,id,size\n0,alloc,1,512\n1,free,1,\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{"--gpu nope", "--gpu=T4", "--conf=", "--policy bfc", "--capacity 1GiB", "--torch 2.11", "--memory-fraction 0.5", "--catalogue cards.csv"} {
		for _, out := range []string{"x.csv", "x.parquet.zst", "x.json"} {
			out = filepath.Join(dir, out)
			_, stderr, code := execute(t, "", append([]string{"convert", in, out}, strings.Fields(flags)...)...)
			name, _, _ := strings.Cut(strings.Fields(flags)[0], "=")
			if code != exitUsage || !strings.Contains(stderr, name+" says how to simulate, which only OUT.perfetto.json needs") || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s %s: exit code %d, stderr %q", out, flags, code, stderr)
			}
			if _, err := os.Stat(out); err == nil {
				t.Errorf("%s %s: the file was written", out, flags)
			}
		}
	}
	for _, out := range []string{"y.perfetto.json", "y.perfetto.json.gz"} {
		if _, stderr, code := execute(t, "", "convert", in, filepath.Join(dir, out), "--capacity", "1GiB", "--torch", "2.11"); code != 0 {
			t.Errorf("%s: exit code %d, stderr %q", out, code, stderr)
		}
	}
}

// TestKeepInput makes commands that write files refuse to write over what they
// read: the input, the same file by another name, and its sidecar.
func TestKeepInput(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	contents := map[string][]byte{}
	put := func(name string, data []byte) {
		contents[name] = data
		if err := os.WriteFile(file(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{"gnn__default.pickle.zst": "job.pickle.zst", "gnn__default.json": "job.json"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "testdata", "recordings", from))
		if err != nil {
			t.Fatal(err)
		}
		put(to, data)
	}
	put("other.json", contents["job.json"])
	put("model.json", []byte(`{"family": "gpt2", "layers": 1, "hidden": 64, "heads": 1, "vocab": 100, "positions": 64}`))
	put("n.csv", []byte("id,size,alloc_event,free_event\n1,512,0,1\n"))
	if err := os.Link(file("n.csv"), file("linked.csv")); err != nil {
		t.Skip("no hard links here: ", err)
	}
	const input, sidecar = " is the input; write to another file", " is the sidecar of "
	for _, c := range []struct {
		line, want string
	}{
		{"convert job.pickle.zst job.json", sidecar},
		{"convert job.pickle.zst other.json --sidecar other.json", " is what --sidecar names; write to another file"},
		{"convert n.csv n.csv", input},
		{"convert n.csv ./n.csv", input},
		{"convert n.csv linked.csv", input},
		{"plot n.csv -o n.csv", "ends in .png"},
		{"report n.csv -o n.csv", "ends in .html"},
		{"synth model.json -o model.json", input},
	} {
		args := strings.Fields(c.line)
		for i, a := range args {
			if strings.Contains(a, ".") {
				args[i] = dir + string(filepath.Separator) + a
			}
		}
		stdout, stderr, code := execute(t, "", args...)
		if code != exitUsage || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, want 2; stdout %q, stderr %q, want %q", c.line, code, stdout, stderr, c.want)
		}
	}
	for name, want := range contents {
		if got, err := os.ReadFile(file(name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s changed (%v)", name, err)
		}
	}
	// An old output may go, even under the sidecar's name.
	if err := os.Remove(file("job.json")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, stderr, code := execute(t, "", "convert", file("job.pickle.zst"), file("job.json"), "--quiet"); code != exitOK {
			t.Errorf("convert over an old output: exit code %d, %s", code, stderr)
		}
	}
}

// TestInto adds curves to the profiler trace that they come from: what was
// there stays, and the curves lie within its times.
func TestInto(t *testing.T) {
	profile, err := filepath.Abs("../../traces/kineto/testdata/resnet50_cut.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for range 2 { // the second time over the first
		if _, stderr, code := execute(t, "", "convert", profile, "both.perfetto.json", "--into", profile); code != exitOK {
			t.Fatalf("exit code %d, %s", code, stderr)
		}
	}
	type event struct {
		Name string  `json:"name"`
		TS   float64 `json:"ts"`
		PID  any     `json:"pid"`
	}
	read := func(path string) (ours, others []event) {
		t.Helper()
		r, err := formats.Content(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var doc struct {
			TraceEvents []event `json:"traceEvents"`
		}
		if err := json.NewDecoder(r).Decode(&doc); err != nil {
			t.Fatal(err)
		}
		for _, e := range doc.TraceEvents {
			if e.PID == float64(perfetto.DefaultPID) {
				ours = append(ours, e)
			} else {
				others = append(others, e)
			}
		}
		return ours, others
	}
	ours, others := read("both.perfetto.json")
	_, before := read(profile)
	if !slices.Equal(others, before) || len(before) == 0 {
		t.Errorf("%d events of the profile, %d before", len(others), len(before))
	}
	first, last := math.Inf(1), 0.0
	for _, e := range before {
		if e.Name == "[memory]" {
			first, last = min(first, e.TS), max(last, e.TS)
		}
	}
	names := make(map[string]int)
	for _, e := range ours {
		names[e.Name]++
		if e.TS != 0 && (e.TS < first-1 || e.TS > last+1) {
			t.Errorf("%s at %f, but the memory events are from %f to %f", e.Name, e.TS, first, last)
		}
	}
	for _, name := range []string{"reserved", "allocated", "active"} {
		if names[name] < 2 {
			t.Errorf("%d points of %s", names[name], name)
		}
	}
	for line, want := range map[string]string{
		"x.csv --into " + profile:                                        "--into goes with OUT.perfetto.json only",
		"x.perfetto.json --into nowhere.json":                            "--into: there is no file nowhere.json",
		"x.perfetto.json --into x.txt":                                   "not a Chrome trace",
		"x.perfetto.json --into=":                                        "--into is empty",
		"both.perfetto.json --into both.perfetto.json":                   "is what --into names",
		"both.perfetto.json --into ./both.perfetto.json --policy direct": "is what --into names",
	} {
		if err := os.WriteFile("x.txt", []byte("milk"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, stderr, code := execute(t, "", append([]string{"convert", profile}, strings.Fields(line)...)...)
		if code != exitUsage || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, %s; want %q", line, code, stderr, want)
		}
	}
}
