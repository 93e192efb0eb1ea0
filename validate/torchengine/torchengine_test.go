package torchengine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"allocsim/traces"
)

// sample has every kind of request, two streams (of which none is the default)
// and a private pool.
func sample(t *testing.T) *traces.Trace {
	t.Helper()
	b := traces.NewBuilder(0)
	s1, s2 := b.Stream(0x70), b.Stream(0x90)
	pool := b.Pool(traces.PoolID{0, 1})
	x := b.Alloc(0, 1000, s1, 0)
	y := b.Alloc(1, 3<<20, s2, 0)
	z := b.Alloc(2, 512, s1, pool)
	b.FreeRequested(3, y)
	b.OOM(4, 1<<40, s1, 0)
	b.FreeCompleted(5, y)
	b.Free(6, x)
	b.EmptyCache(7)
	b.Free(8, z)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	// The pool ends by itself, as a MemPool does.
	end := traces.Event{ID: traces.NoBlock, Pool: pool, Kind: traces.ReleasePool}
	empty := traces.Event{ID: traces.NoBlock, Pool: pool, Kind: traces.EmptyCache}
	n := len(tr.Events)
	return traces.WithEvents(tr, []traces.Insert{{Before: n, Event: end}, {Before: n, Event: empty}})
}

func TestFeed(t *testing.T) {
	datadriven.RunTest(t, "testdata/feed.txt", func(t *testing.T, d *datadriven.TestData) string {
		job := Job{
			Trace: sample(t), Limit: 1 << 30, Need: 20 << 20, Reserve: 512 << 20,
			Measure: []int{1, 4}, Waits: func(k int) bool { return k == 4 },
		}
		if d.HasArg("card") {
			job.Card, job.Force, job.Timeout = 2<<30, true, time.Minute
			job.Waits, job.Measure = nil, nil
		}
		var out strings.Builder
		w := bufio.NewWriter(&out)
		if err := write(w, job); err != nil {
			return err.Error()
		}
		w.Flush()
		return out.String()
	})
}

// TestMain lets this test program stand in for the interpreter: it reads the
// job and answers what the variable says.
func TestMain(m *testing.M) {
	if what := os.Getenv("TORCHENGINE_TEST_INTERPRETER"); what != "" {
		switch what {
		case "echo": // the job's first line comes back as the version
			r := bufio.NewReader(os.Stdin)
			line, _ := r.ReadString('\n')
			io.Copy(io.Discard, r)
			fmt.Printf(`{"torch": %q, "device": %q, "events": {"action": [], "addr": [], "size": [], "stream": []}}`,
				line, os.Getenv("PYTORCH_CUDA_ALLOC_CONF")+"|"+os.Getenv("PYTORCH_ALLOC_CONF"))
		case "columns":
			io.Copy(io.Discard, os.Stdin)
			fmt.Print(`{"events": {"action": ["oom"], "addr": [], "size": [1], "stream": [0]}}`)
		case "refuse":
			fmt.Print(`{"error": "PyTorch 9.9 sees no CUDA device"}`)
		case "crash":
			fmt.Fprintln(os.Stderr, "Traceback\nMemoryError: at the end")
			os.Exit(3)
		case "hang":
			time.Sleep(time.Minute)
		}
		return
	}
	os.Exit(m.Run())
}

func TestReplay(t *testing.T) {
	for what, want := range map[string]string{
		"echo":    "",
		"columns": "1 actions, 0 addresses",
		"refuse":  "cannot run here: PyTorch 9.9 sees no CUDA device",
		"crash":   "it said: MemoryError: at the end",
	} {
		t.Run(what, func(t *testing.T) {
			t.Setenv("TORCHENGINE_TEST_INTERPRETER", what)
			t.Setenv("PYTORCH_ALLOC_CONF", "must not be seen")
			a, err := Replay(context.Background(), Job{Trace: sample(t), Conf: "max_split_size_mb:64", Python: os.Args[0]})
			if want != "" {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("error %v", err)
				}
				if errors.Is(err, ErrNoTorch) != (what == "refuse") {
					t.Errorf("%v: ErrNoTorch is for what the machine lacks", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if a.Device != "max_split_size_mb:64|" || !strings.Contains(a.Torch, `"streams":2`) {
				t.Errorf("answer %+v", a)
			}
		})
	}
}

func TestReplayCancelled(t *testing.T) {
	t.Setenv("TORCHENGINE_TEST_INTERPRETER", "hang")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := Replay(ctx, Job{Trace: sample(t), Python: os.Args[0]}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestNoPython(t *testing.T) {
	_, err := Replay(context.Background(), Job{Trace: sample(t), Python: "python-that-does-not-exist"})
	if !errors.Is(err, ErrNoTorch) || !strings.Contains(err.Error(), "--python") {
		t.Errorf("error %v", err)
	}
}

// On a machine without a GPU or without PyTorch, the script itself says so.
func TestScriptWithoutGPU(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	_, err := Replay(context.Background(), Job{Trace: sample(t)})
	if err == nil {
		t.Skip("this machine has a GPU and PyTorch")
	}
	if !errors.Is(err, ErrNoTorch) || strings.Contains(err.Error(), "Error") {
		t.Errorf("not one clear line: %v", err)
	}
}
