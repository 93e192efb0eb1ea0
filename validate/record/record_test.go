package record

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// python runs a program with the module and a stand-in for torch on its path,
// in a fresh folder, and returns the folder and what it printed.
func python(t *testing.T, program string, args []string, env ...string) (dir, out string) {
	t.Helper()
	python3, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "program.py"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python3, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "RANK=", "WORLD_SIZE=",
		"PYTHONPATH="+here+string(os.PathListSeparator)+filepath.Join(here, "testdata", "fake"))
	cmd.Env = append(cmd.Env, env...)
	b, err := cmd.CombinedOutput()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatal(err)
	}
	return dir, string(b)
}

type sidecar struct {
	Conf        string           `json:"conf"`
	Fraction    float64          `json:"fraction"`
	Device      string           `json:"device"`
	DeviceTotal int64            `json:"device_total"`
	Torch       string           `json:"torch"`
	MemGetInfo  []int64          `json:"mem_get_info"`
	Settings    map[string]any   `json:"settings"`
	Stats       map[string]int64 `json:"stats"`
	Entries     int              `json:"trace_entries"`
	Notes       []struct {
		Kind string `json:"kind"`
		T    int64  `json:"t"`
	} `json:"notes"`
	Recorder struct {
		Frames   bool `json:"frames"`
		Complete bool `json:"complete"`
	} `json:"recorder"`
}

func read(t *testing.T, path string) (s sidecar, kinds string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	var ks []string
	for _, n := range s.Notes {
		if n.T < last || n.T < 1e15 {
			t.Errorf("note %+v after %d: not µs since the epoch, in order", n, last)
		}
		last = n.T
		ks = append(ks, n.Kind)
	}
	return s, strings.Join(ks, " ")
}

const program = `
import sys
import torch
import allocsim_record
recorder = allocsim_record.start("job")
assert not torch.cuda.is_initialized()
torch.cuda.set_per_process_memory_fraction(0.5)
for i in range(3):
    torch.allocate(100)
    if i == 1:
        torch.cuda.empty_cache()
    recorder.step()
torch.cuda.reset_peak_memory_stats("cuda:0")
if "oom" in sys.argv:
    torch.run_out_of_memory(200)
print(torch.record_function.log, torch._state.history)
`

// TestRecord: a run that ends well, in the program's own way.
func TestRecord(t *testing.T) {
	dir, out := python(t, program, []string{"program.py"})
	s, kinds := read(t, filepath.Join(dir, "job.json"))
	if want := "fraction step empty_cache step step reset_peak"; kinds != want {
		t.Errorf("notes %s, want %s", kinds, want)
	}
	if s.Conf != "expandable_segments:True" || s.Fraction != 0.5 || s.Device != "Fake GPU" || s.DeviceTotal != 1<<30 || s.Torch == "" ||
		len(s.MemGetInfo) != 2 || s.Settings == nil || s.Entries != 3 || !s.Recorder.Complete || s.Recorder.Frames {
		t.Errorf("sidecar %+v", s)
	}
	if _, ok := s.Stats["num_ooms"]; !ok || len(s.Stats) != 2 {
		t.Errorf("stats %v: want the whole numbers only", s.Stats)
	}
	for _, want := range []string{"enter ProfilerStep#0", "exit ProfilerStep#2", "'context': None", "wrote job.pickle and job.json: 3 events"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "job.pickle")); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); left != nil {
		t.Errorf("left behind %v", left)
	}
}

// TestWays: the other ways a run can go.
func TestWays(t *testing.T) {
	const under = "import torch, allocsim_record\nallocsim_record.start()\n"
	script := "../allocsim_record.py"
	if abs, err := filepath.Abs(FileName); err == nil {
		script = abs
	}
	for _, test := range []struct {
		name, program string
		args, env     []string
		files, output []string
		kinds         string
	}{
		{"out of memory, caught by nobody", program, []string{"program.py", "oom"}, nil,
			[]string{"job.json", "job.pickle"}, []string{"wrote job.pickle and job.json: 4 events\n", "OutOfMemoryError"}, "fraction step empty_cache step step reset_peak oom"},
		{"as a wrapper", "import torch, sys, allocsim_record\nassert sys.argv[1:] == ['--lr', '1']\ntorch.allocate(1)\nallocsim_record.step()\n",
			[]string{script, "-o", "w", "program.py", "--lr", "1"}, nil, []string{"w.json", "w.pickle"}, []string{"wrote w.pickle and w.json: 1 events"}, "step"},
		{"as a wrapper, module, compressed, frames", "import torch\ntorch.allocate(1)\nprint(torch._state.history)\n",
			[]string{script, "-o", "w", "--compress", "--frames", "-m", "program"}, nil, []string{"w.json", "w.pickle.gz"}, []string{"'context': 'alloc'"}, ""},
		{"some steps only", under + "r = allocsim_record.start(steps=1)\n" + "torch.allocate(1)\nallocsim_record._recorder.steps = 2\n" +
			"for i in range(5): torch.allocate(1); allocsim_record.step()\nprint('history', torch._state.history)\n",
			[]string{"program.py"}, nil, []string{"allocsim.json", "allocsim.pickle"}, []string{"3 events", "history None"}, "step step"},
		{"a rank of several", under + "torch.allocate(1)\n", []string{"program.py"}, []string{"RANK=3", "WORLD_SIZE=8"},
			[]string{"allocsim.rank3.json", "allocsim.rank3.pickle"}, nil, ""},
		{"an older release", under + "torch._state.no_options = True\ntorch.allocate(1)\n", []string{"program.py"}, nil,
			[]string{"allocsim.json", "allocsim.pickle"}, nil, ""},
		{"no GPU used", under, []string{"program.py"}, nil, nil, []string{"CUDA was never used"}, ""},
		{"another backend", under + "torch._state.backend = 'cudaMallocAsync'\ntorch.allocate(1)\nprint('went on')\n", []string{"program.py"}, nil, nil,
			[]string{"only backend:native can be recorded", "went on"}, ""},
		{"too late", "import torch, allocsim_record\ntorch._state.reserved = 5\ntorch.allocate(1)\nallocsim_record.start()\n", []string{"program.py"}, nil,
			[]string{"allocsim.json", "allocsim.pickle"}, []string{"before recording started"}, ""},
		{"a full history", under + "allocsim_record._recorder.max_entries = 2\nfor i in range(2): torch.allocate(1)\n", []string{"program.py"}, nil,
			[]string{"allocsim.json", "allocsim.pickle"}, []string{"the beginning is lost"}, ""},
		{"no place to write", "import torch, allocsim_record\nallocsim_record.start('no/such/folder')\ntorch.allocate(1)\nprint('went on')\n", []string{"program.py"}, nil,
			nil, []string{"could not write no/such/folder", "went on"}, ""},
		{"ended by SIGTERM", under + "import os, signal, time\ntorch.allocate(1)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)\nprint('not stopped')\n", []string{"program.py"}, nil,
			[]string{"allocsim.json", "allocsim.pickle"}, nil, ""},
		{"a forked child", under + "import os, sys\ntorch.allocate(1)\npid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)\nassert not os.path.exists('allocsim.json')\n", []string{"program.py"}, nil,
			[]string{"allocsim.json", "allocsim.pickle"}, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir, out := python(t, test.program, test.args, test.env...)
			var files []string
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if n := e.Name(); n != "program.py" && n != "__pycache__" {
					files = append(files, n)
				}
			}
			if !slices.Equal(files, test.files) {
				t.Errorf("files %v, want %v\n%s", files, test.files, out)
			}
			for _, want := range test.output {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in:\n%s", want, out)
				}
			}
			if strings.Contains(out, "AssertionError") || strings.Contains(out, "not stopped") {
				t.Error(out)
			}
			if len(files) > 0 {
				if _, kinds := read(t, filepath.Join(dir, files[0])); kinds != test.kinds {
					t.Errorf("notes %q, want %q", kinds, test.kinds)
				}
			}
			if test.name == "too late" || test.name == "a full history" {
				if s, _ := read(t, filepath.Join(dir, files[0])); s.Recorder.Complete {
					t.Error("said to be complete")
				}
			}
		})
	}
}

func TestCost(t *testing.T) {
	plain, frames := Measured.MicrosecondsPerEvent()
	if !(plain > 0 && frames > plain && frames < 10) {
		t.Errorf("%v %v µs per event", plain, frames)
	}
}
