// Package torchengine replays a trace's requests inside PyTorch's own CUDA
// caching allocator, in a Python process that is fed by an embedded script, and
// brings back what that allocator did: every statistic, every segment and block
// event.
//
// It needs a Python with PyTorch and an NVIDIA GPU. The script runs no kernel
// and touches no tensor: only the allocator is at work. Streams are real ones,
// in the order of the trace's stream indices; a free that other streams delay
// waits behind a stream that stands still until the trace says that it has
// finished.
package torchengine

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"allocsim/traces"
)

//go:embed replay.py
var script []byte

// Job is one replay.
type Job struct {
	// Trace has the requests. Blocks of the start state are requested like any
	// other.
	Trace *traces.Trace
	// Conf is PYTORCH_CUDA_ALLOC_CONF.
	Conf string
	// Limit is the allocator's memory limit in bytes; 0 = none.
	Limit int64
	// Card is the bytes to leave free on the card; 0 = the whole card.
	Card int64
	// Need is the predicted peak of reserved bytes. Without Card, the replay
	// does not start unless Need + Reserve bytes are free.
	Need, Reserve int64
	// Force allows a card that other processes use.
	Force bool
	// Device is the CUDA device number.
	Device int
	// Waits reports, by event index, that the request waits for pending frees
	// of other streams (it flushes the cache or frees memory meanwhile). It
	// may be nil when no free of the trace is pending.
	Waits func(event int) bool
	// Measure are event indices, ascending, after which to measure the device
	// memory in use.
	Measure []int
	// Python is the interpreter; empty = python3.
	Python string
	// Timeout ends a replay that hangs; 0 = ten minutes.
	Timeout time.Duration
}

// Answer is what PyTorch's allocator did.
type Answer struct {
	Torch  string `json:"torch"`  // PyTorch's version
	Device string `json:"device"` // the card's name
	Total  int64  `json:"total"`  // its bytes
	// Available is the bytes free on the card before the first request.
	Available int64 `json:"available"`
	// Stats is torch.cuda.memory_stats().
	Stats map[string]int64 `json:"stats"`
	// Events is the allocator's own history, in order.
	Events Events `json:"events"`
	// Samples are the bytes in use on the card more than before the first
	// request, at each of Job.Measure.
	Samples []int64  `json:"samples"`
	Notes   []string `json:"notes"`
}

// Events are the entries of the allocator's history, column by column. Actions
// are PyTorch's names; the address of an "oom" is 0; streams are the trace's
// indices, -1 for a stream that the trace does not have.
type Events struct {
	Action []string `json:"action"`
	Addr   []uint64 `json:"addr"`
	Size   []int64  `json:"size"`
	Stream []int    `json:"stream"`
}

// Len is the number of entries.
func (e *Events) Len() int { return len(e.Action) }

// ErrNoTorch is returned (wrapped) when there is no Python with PyTorch or no
// card for it.
var ErrNoTorch = errors.New("the torch engine cannot run here")

// Replay runs the job. Cancelling ctx ends the Python process, with which the
// driver takes back all memory it held.
func Replay(ctx context.Context, job Job) (*Answer, error) {
	python := job.Python
	if python == "" {
		python = "python3"
	}
	path, err := exec.LookPath(python)
	if err != nil {
		return nil, fmt.Errorf("%w: no %s on this machine; install Python with PyTorch, or name the interpreter with --python", ErrNoTorch, python)
	}
	// Python imports from the folder of its script first. This one is the
	// user's alone and holds nothing else.
	dir, err := os.MkdirTemp("", "allocsim-replay-*")
	if err != nil {
		return nil, fmt.Errorf("write the replay script: %w", err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "replay.py")
	if err := os.WriteFile(name, script, 0o600); err != nil {
		return nil, fmt.Errorf("write the replay script: %w", err)
	}

	cmd := exec.CommandContext(ctx, path, name)
	cmd.Env = environment(os.Environ(), job.Conf)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var stderr tail
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	// A process that has ended early says why on standard output, so a broken
	// pipe is no error by itself.
	ferr := feed(in, job)
	werr := cmd.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var answer struct {
		Answer
		Error string `json:"error"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil {
		return nil, fmt.Errorf("PyTorch's replay gave no answer: %w; %s", errors.Join(werr, ferr, err), stderr.last())
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%w: %s", ErrNoTorch, answer.Error)
	}
	return &answer.Answer, answer.check()
}

// check refuses an answer with columns of different lengths.
func (a *Answer) check() error {
	if n := a.Events.Len(); len(a.Events.Addr) != n || len(a.Events.Size) != n || len(a.Events.Stream) != n {
		return fmt.Errorf("PyTorch's replay answered with %d actions, %d addresses, %d sizes and %d streams",
			n, len(a.Events.Addr), len(a.Events.Size), len(a.Events.Stream))
	}
	return nil
}

// environment is the user's own for the interpreter, with conf set.
func environment(env []string, conf string) []string {
	// Other variables would set options as well, and the user's own
	// PYTORCH_NO_CUDA_MEMORY_CACHING would bypass the allocator.
	env = without(env, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
	// An empty entry means the working folder, which may be anyone's.
	for i, kv := range env {
		name, list, _ := strings.Cut(kv, "=")
		if name == "PYTHONPATH" || name == "LD_LIBRARY_PATH" {
			entries := slices.DeleteFunc(filepath.SplitList(list), func(s string) bool { return s == "" })
			env[i] = name + "=" + strings.Join(entries, string(os.PathListSeparator))
		}
	}
	// Since Python 3.11 the script's folder is not imported from at all; older
	// ones do not know the variable (they would refuse the option -P). Option
	// -I would hide what the user installed for themselves.
	return append(env, "PYTHONUNBUFFERED=1", "PYTHONSAFEPATH=1", "PYTORCH_CUDA_ALLOC_CONF="+conf)
}

func without(env []string, names ...string) []string {
	kept := env[:0]
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		drop := false
		for _, n := range names {
			drop = drop || n == name
		}
		if !drop {
			kept = append(kept, kv)
		}
	}
	return kept
}

// tail keeps the end of what a process says.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 4096
	t.buf = append(t.buf, p...)
	if len(t.buf) > most {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-most:]...)
	}
	return len(p), nil
}

func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(string(t.buf)), "\n")
	if s := strings.TrimSpace(lines[len(lines)-1]); s != "" {
		return "it said: " + s
	}
	return "it said nothing"
}

// feed writes the job for the script and closes w.
func feed(w io.WriteCloser, job Job) error {
	bw := bufio.NewWriterSize(w, 1<<16)
	err := write(bw, job)
	return errors.Join(err, bw.Flush(), w.Close())
}

func write(w *bufio.Writer, job Job) error {
	tr := job.Trace
	timeout := job.Timeout
	if timeout == 0 {
		timeout = 10 * time.Minute
	}
	pending := make([]bool, tr.NumBlocks)
	some := false
	for _, e := range tr.Events {
		if e.Kind == traces.FreeRequested {
			pending[e.ID], some = true, true
		}
	}
	defaultStream := 0
	if len(tr.Streams) > 0 && tr.Streams[0] == 0 {
		defaultStream = 1
	}
	header, err := json.Marshal(map[string]any{
		"limit": job.Limit, "card": job.Card, "need": job.Need, "reserve": job.Reserve,
		"force": job.Force, "device": job.Device, "pending": some,
		"streams": len(tr.Streams), "default_stream": defaultStream, "pools": max(len(tr.Pools), 1),
		// Every request makes at most three entries and each segment event
		// one; the history is a ring, so give it room.
		"entries": 1<<20 + 8*len(tr.Events),
		"timeout": timeout.Seconds(),
	})
	if err != nil {
		return err
	}
	w.Write(header)
	w.WriteByte('\n')
	measure := job.Measure
	var ended []uint8 // pools that end with the next EmptyCache
	var line []byte
	num := func(xs ...int64) {
		for _, x := range xs {
			line = strconv.AppendInt(append(line, ' '), x, 10)
		}
	}
	for k, e := range tr.Events {
		line = line[:0]
		if job.Waits != nil && job.Waits(k) {
			line = append(line, "s\n"...)
		}
		id, stream, pool := int64(e.ID), int64(e.Stream), int64(e.Pool)
		switch e.Kind {
		case traces.Alloc:
			op := byte('a')
			if pending[e.ID] {
				op = 't'
			}
			line = append(line, op)
			num(id, e.Size, stream, pool)
		case traces.OOM:
			line = append(line, 'o')
			num(e.Size, stream, pool)
		case traces.Free:
			line = append(line, 'f')
			num(id)
		case traces.FreeRequested:
			line = append(line, 'r')
			num(id)
		case traces.FreeCompleted:
			line = append(line, 'c')
			num(id)
		case traces.ReleasePool:
			// PyTorch empties a MemPool when it drops it; a graph's pool goes
			// with the next EmptyCache, behind the default pool.
			ended = append(ended, e.Pool)
			continue
		case traces.EmptyCache:
			if e.Pool == 0 {
				line = append(line, "e\n"...)
			}
			for _, p := range ended {
				line = append(line, 'p')
				num(int64(p))
				line = append(line, '\n')
			}
			ended = ended[:0]
		default:
			return fmt.Errorf("%s: event %d is of an unknown kind %d", tr.Source, k, e.Kind)
		}
		if len(line) > 0 && line[len(line)-1] != '\n' {
			line = append(line, '\n')
		}
		for len(measure) > 0 && measure[0] <= k {
			line = append(line, "m\n"...)
			measure = measure[1:]
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return nil
}
