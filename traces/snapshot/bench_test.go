package snapshot

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"allocsim/internal/pickle/pickletest"
)

// writeTraining writes the snapshot of a training loop with Python frames, at
// least size bytes long, as PyTorch and Python's pickle module write it: 400
// tensors a step, each allocated from a call stack of its own, one new list of
// frames per entry whose frames are shared through the memo. It returns the
// number of trace entries.
func writeTraining(out io.Writer, size int64) (entries int, err error) {
	const tensors = 400
	kv := pickletest.KV
	w := pickletest.NewWriter(4)
	written := int64(0)
	flush := func() error {
		n, err := out.Write(w.Buf)
		written += int64(n)
		w.Buf = w.Buf[:0]
		return err
	}
	frame := func(name string, line int) *pickletest.Dict {
		return &pickletest.Dict{kv("name", name), kv("filename", "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"), kv("line", line)}
	}
	var outer pickletest.List
	for i := range 12 {
		outer = append(outer, frame(fmt.Sprintf("outer%d", i), 100+i))
	}
	stacks := make([]pickletest.List, tensors)
	for i := range stacks {
		for j := range 8 {
			stacks[i] = append(stacks[i], frame(fmt.Sprintf("layer%d", i/10), 1000+10*i+j))
		}
		stacks[i] = append(stacks[i], outer...)
	}
	const base, block = 0x7f0000000000, 3 << 20
	now := 1_700_000_000_000_000
	entry := func(action string, tensor int) pickletest.Dict {
		now += 3
		entries++
		return pickletest.Dict{
			kv("action", action), kv("addr", base+tensor*block), kv("size", block-100), kv("stream", 0), kv("time_us", now),
			kv("compile_context", "N/A"), kv("user_metadata", ""), kv("frames", stacks[tensor]),
		}
	}

	w.BeginDict()
	w.Buf = append(w.Buf, '(')
	w.Value("segments")
	w.Value(pickletest.List{pickletest.Dict{
		kv("device", 0), kv("address", base), kv("total_size", tensors*block), kv("stream", 0), kv("segment_type", "large"),
		kv("segment_pool_id", pickletest.Tuple{0, 0}), kv("is_expandable", false), kv("frames", pickletest.List{}),
		kv("blocks", pickletest.List{pickletest.Dict{kv("address", base), kv("size", tensors*block), kv("requested_size", 0), kv("state", "inactive"), kv("frames", pickletest.List{})}}),
	}})
	w.Value("device_traces")
	w.BeginList()
	w.BeginList()
	first := pickletest.Dict{kv("action", "segment_alloc"), kv("addr", base), kv("size", tensors*block), kv("stream", 0), kv("time_us", now)}
	w.Items(pickletest.List{first})
	entries++
	for written < size {
		var step pickletest.List
		for i := range tensors {
			step = append(step, entry("alloc", i))
		}
		for i := range tensors {
			step = append(step, entry("free_requested", tensors-1-i), entry("free_completed", tensors-1-i))
		}
		w.Items(step)
		if err := flush(); err != nil {
			return 0, err
		}
	}
	w.Buf = append(w.Buf, 'a', 'u')
	w.Stop()
	return entries, flush()
}

// TestGenerated keeps the benchmark's generator honest.
func TestGenerated(t *testing.T) {
	var buf bytes.Buffer
	entries, err := writeTraining(&buf, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := Read(context.Background(), &buf, Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr := rec.Devices[0]
	checkTrace(t, tr)
	if got := (entries - 1) / 3 * 2; len(tr.Events) != got || tr.Start != nil {
		t.Fatalf("%d events of %d entries", len(tr.Events), entries)
	}
	if n := len(tr.Stacks.Stack); n != 400 {
		t.Fatalf("%d stacks", n)
	}
}

// BenchmarkRead reads recordings from memory: MB/s are those of the
// decompressed snapshot.
func BenchmarkRead(b *testing.B) {
	for _, name := range []string{
		"bert_large_varlen__default", "resnet50_amp__default", "resnet50_amp__pystack", "resnet50_amp__ring",
		"leak_outputs__leakpy", "streams_prefetch__default",
	} {
		data, side := load(b, filepath.Join(bundled, name+".pickle.zst"))
		b.Run(name, func(b *testing.B) { benchmarkRead(b, data, side) })
	}
	b.Run("generated-32MB", func(b *testing.B) {
		var buf bytes.Buffer
		if _, err := writeTraining(&buf, 32_000_000); err != nil {
			b.Fatal(err)
		}
		benchmarkRead(b, buf.Bytes(), nil)
	})
}

func benchmarkRead(b *testing.B, data []byte, side *Sidecar) {
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(context.Background(), bytes.NewReader(data), Options{Sidecar: side}); err != nil {
			b.Fatal(err)
		}
	}
}

// readFile names the snapshot that this test program reads instead of testing,
// for BenchmarkProcess.
const readFile = "ALLOCSIM_BENCHMARK_READ"

func TestMain(m *testing.M) {
	path := os.Getenv(readFile)
	if path == "" {
		os.Exit(m.Run())
	}
	if err := readProcess(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// readProcess reads a snapshot and prints the bytes that the process has from
// the system.
func readProcess(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := Read(context.Background(), f, Options{}); err != nil {
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	_, err = fmt.Println(m.Sys)
	return err
}

// BenchmarkProcess times whole processes, from start to exit, that load a file:
// this reader, and Python's pickle module (its C unpickler) where there is a
// python3. cpu-ms is user and system time.
func BenchmarkProcess(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	var generated bytes.Buffer
	if _, err := writeTraining(&generated, 25_000_000); err != nil {
		b.Fatal(err)
	}
	files := map[string][]byte{"generated-25MB": generated.Bytes()}
	names := []string{"bert_large_varlen__default", "resnet50_amp__pystack", "generated-25MB"}
	for _, name := range names[:2] {
		files[name], _ = load(b, filepath.Join(bundled, name+".pickle.zst"))
	}
	for _, name := range names {
		path := filepath.Join(b.TempDir(), name+".pickle")
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/allocsim", func(b *testing.B) {
			b.Setenv(readFile, path)
			out := benchmarkProcess(b, self)
			var bytes float64
			if _, err := fmt.Sscan(out, &bytes); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(bytes/(1<<20), "MiB")
		})
		b.Run(name+"/python", func(b *testing.B) {
			python, err := exec.LookPath("python3")
			if err != nil {
				b.Skip("no python3")
			}
			benchmarkProcess(b, python, "-c", "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))", path)
		})
	}
}

// benchmarkProcess runs a command b.N times and returns the last output.
func benchmarkProcess(b *testing.B, name string, args ...string) string {
	var cpu time.Duration
	var out bytes.Buffer
	for b.Loop() {
		out.Reset()
		c := exec.Command(name, args...)
		c.Stdout, c.Stderr = &out, os.Stderr
		if err := c.Run(); err != nil {
			b.Fatal(err)
		}
		cpu += c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	b.ReportMetric(float64(cpu.Microseconds())/1000/float64(b.N), "cpu-ms")
	return out.String()
}

// BenchmarkReadLarge reads a generated file of 1 GB with frames and reports
// the most memory that the process had from the system while it did, in MiB
// above what it had before.
func BenchmarkReadLarge(b *testing.B) {
	if testing.Short() {
		b.Skip("writes a file of 1 GB")
	}
	path := filepath.Join(b.TempDir(), "large.pickle")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if _, err := writeTraining(w, 1_000_000_000); err != nil {
		b.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	var before, peak runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		b.StopTimer()
		runtime.GC() // the result of the round before
		b.StartTimer()
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			b.Fatal(err)
		}
		if _, err := Read(context.Background(), f, Options{}); err != nil {
			b.Fatal(err)
		}
	}
	runtime.ReadMemStats(&peak)
	b.ReportMetric(float64(peak.Sys-before.Sys)/(1<<20), "MiB-peak")
	f.Close()
}
