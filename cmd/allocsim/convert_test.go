package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
