package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// full is a disk with room for so many bytes.
type full int

func (f *full) Write(p []byte) (int, error) {
	if len(p) > int(*f) {
		n := int(*f)
		*f = 0
		return n, syscall.ENOSPC
	}
	*f -= full(len(p))
	return len(p), nil
}

// TestFullDisk holds that no command says yes, or no, when its answer could not
// be written.
func TestFullDisk(t *testing.T) {
	job := filepath.Join("..", "..", "testdata", "recordings", "gnn__tight.pickle.zst")
	for _, line := range []string{
		"inspect " + job, "inspect --json " + job, "replay " + job, "check " + job, "tune " + job, "plan --gpu T4 " + job,
		"compare --conf= --conf expandable_segments:True " + job, "compare --json --conf= " + job,
		"conf --explain max_split_size_mb:128", "conf max_split_size_mb:1", "conf --json a:b",
		"help", "help tune", "help words", "tune --help", "--version", "record", "synth --list", "completion bash",
		"validate --engine sim " + job, "diagnose " + job,
	} {
		for _, room := range []full{0, 10} {
			var stderr bytes.Buffer
			left := room
			if code := run(t.Context(), append(strings.Fields(line), "-q"), strings.NewReader(""), &left, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "no space left on device") {
				t.Errorf("%s with room for %d bytes: exit code %d, %q", line, room, code, stderr.String())
			}
		}
	}
}

// TestCounts holds that 0 workers and batches of 0 are refused wherever they can
// be given.
func TestCounts(t *testing.T) {
	tried := 0
	for _, c := range newRoot(strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}).Commands() {
		for name := range atLeastOne {
			if c.Flags().Lookup(name) == nil {
				continue
			}
			for _, n := range []string{"0", "-1"} {
				tried++
				args := []string{c.Name(), "--" + name, n, "--at", "4=a.csv"}
				if c.Name() != "scale" {
					args = []string{c.Name(), "--" + name, n, "x"}
				}
				_, stderr, code := execute(t, "", args...)
				if code != exitUsage || !strings.HasPrefix(stderr, "allocsim: --"+name+" "+n+": give the number of ") {
					t.Errorf("%v: exit code %d, %s", args, code, stderr)
				}
			}
		}
	}
	if tried < 10 {
		t.Errorf("%d tries only", tried)
	}
}
