package rmmlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"allocsim/traces"
)

func TestTranscripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/rmm.txt", func(t *testing.T, d *datadriven.TestData) string {
		in, name := d.Input+"\n", "log.csv"
		for _, a := range d.CmdArgs {
			switch a.Key {
			case "crlf":
				in = strings.ReplaceAll(in, "\n", "\r\n")
			case "torn":
				in = d.Input
			case "name":
				name = a.Vals[0]
			}
		}
		rec, err := Read(context.Background(), strings.NewReader(in), name)
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		return dump(rec.Devices[0])
	})
}

func dump(t *traces.Trace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "device=%d blocks=%d streams=%#x start_events=%d\n", t.Device, t.NumBlocks, t.Streams, t.StartEvents)
	for _, e := range t.Events {
		fmt.Fprintf(&b, "%d %s #%d", e.TimeUS, e.Kind, e.ID)
		if e.Size != 0 {
			fmt.Fprintf(&b, " %d B stream %d", e.Size, e.Stream)
		}
		b.WriteByte('\n')
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	return b.String()
}

// TestGolden reads a log as RMM writes it.
func TestGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/golden.csv")
	if err != nil {
		t.Fatal(err)
	}
	if !Detect(data) {
		t.Error("not detected")
	}
	rec, err := Read(context.Background(), bytes.NewReader(data), "golden.csv")
	if err != nil {
		t.Fatal(err)
	}
	tr := rec.Devices[0]
	got := fmt.Sprintf("%v %d blocks %d streams %d µs %d notes", tr.CountByKind(), tr.NumBlocks, len(tr.Streams), tr.Duration(), len(tr.Notes))
	want := "map[alloc:60 free:52 oom:2] 62 blocks 3 streams 3479208 µs 3 notes"
	if got != want {
		t.Errorf("got %s, want %s; notes %q", got, want, tr.Notes)
	}
}

// TestRoundTrip writes any history as RMM would and reads it back.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var b strings.Builder
		b.WriteString("Thread,Time,Action,Pointer,Size,Stream\n")
		type block struct {
			id           int
			size, stream int64
		}
		live := map[uint64]block{}
		var want []string
		blocks := 0
		now := rapid.Int64Range(0, day-1).Draw(rt, "start")
		first := int64(-1)
		stamp := func() string {
			now += rapid.Int64Range(0, halfDay-1).Draw(rt, "dt")
			if first < 0 {
				first = now
			}
			s := now % day / 1_000_000
			return fmt.Sprintf("%d,%02d:%02d:%02d.%06d", rapid.IntRange(1, 3).Draw(rt, "thread"), s/3600, s/60%60, s%60, now%1_000_000)
		}
		for range rapid.IntRange(1, 40).Draw(rt, "n") {
			addr := rapid.Uint64Range(1, 6).Draw(rt, "addr")
			at := stamp()
			if l, ok := live[addr]; ok {
				fmt.Fprintf(&b, "%s,free,%#x,%d,%#x\n", at, addr, l.size, l.stream)
				want = append(want, fmt.Sprintf("%d free #%d", now-first, l.id))
				delete(live, addr)
				continue
			}
			l := block{blocks, rapid.Int64Range(1, 1<<40).Draw(rt, "size"), rapid.SampledFrom([]int64{0, 2, 0x55d0}).Draw(rt, "stream")}
			blocks++
			if rapid.IntRange(0, 9).Draw(rt, "fails") == 0 {
				fmt.Fprintf(&b, "%s,allocate failure,(nil),%d,%#x\n", at, l.size, l.stream)
				want = append(want, fmt.Sprintf("%d oom #%d %d", now-first, l.id, l.size))
				continue
			}
			live[addr] = l
			fmt.Fprintf(&b, "%s,allocate,%#x,%d,%#x\n", at, addr, l.size, l.stream)
			want = append(want, fmt.Sprintf("%d alloc #%d %d", now-first, l.id, l.size))
		}
		rec, err := Read(context.Background(), strings.NewReader(b.String()), "x")
		if err != nil {
			rt.Fatalf("%v\n%s", err, b.String())
		}
		tr := rec.Devices[0]
		for i, e := range tr.Events {
			got := fmt.Sprintf("%d %s #%d", e.TimeUS, e.Kind, e.ID)
			if e.Size > 0 {
				got += fmt.Sprintf(" %d", e.Size)
			}
			if got != want[i] {
				rt.Fatalf("event %d: got %s, want %s\n%s", i, got, want[i], b.String())
			}
		}
		if len(tr.Events) != len(want) {
			rt.Fatalf("%d events, want %d", len(tr.Events), len(want))
		}
	})
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, strings.NewReader("Action,Pointer,Size\n"), "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func FuzzRead(f *testing.F) {
	data, err := os.ReadFile("testdata/golden.csv")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data[:400])
	f.Add([]byte("Action,Pointer,Size\nfree,1,5\nallocate,1,9"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := Read(context.Background(), bytes.NewReader(data), "f.dev2.csv")
		if err == nil && len(rec.Devices[0].Events) > 2*len(data) {
			t.Fatalf("%d events from %d bytes", len(rec.Devices[0].Events), len(data))
		}
	})
}

// BenchmarkRead reports bytes of log per second.
func BenchmarkRead(b *testing.B) {
	var w bytes.Buffer
	w.WriteString("Thread,Time,Action,Pointer,Size,Stream\n")
	for i := range 50_000 {
		fmt.Fprintf(&w, "2342727,%02d:47:02.841961,allocate,0x7f%010x,%d,0x55d0c8a3f2e0\n", i*20/50_000, i*512, i+1)
		fmt.Fprintf(&w, "2342727,%02d:47:02.841961,free,0x7f%010x,%d,0x55d0c8a3f2e0\n", i*20/50_000, i*512, i+1)
	}
	b.SetBytes(int64(w.Len()))
	for b.Loop() {
		if _, err := Read(context.Background(), bytes.NewReader(w.Bytes()), "b"); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLegacyStream: 0x1 is cudaStreamLegacy, the default stream by another
// name; 0x10 is a stream of its own.
func TestLegacyStream(t *testing.T) {
	log := "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.000000,allocate,0x100,512,0x0\n1,10:00:00.000001,allocate,0x200,512,0x1\n1,10:00:00.000002,allocate,0x300,512,0x10\n"
	rec, err := Read(context.Background(), strings.NewReader(log), "log.csv")
	if err != nil {
		t.Fatal(err)
	}
	tr := rec.Devices[0]
	if e := tr.Events; len(tr.Streams) != 2 || e[0].Stream != e[1].Stream || e[2].Stream == e[0].Stream || tr.Streams[e[2].Stream] != 0x10 {
		t.Errorf("streams %v of %v", tr.Streams, tr.Events)
	}
}

// TestFailureWithoutPointer: a request that failed has no pointer.
func TestFailureWithoutPointer(t *testing.T) {
	const log = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00:000001,allocate,0x1000,1024,0\n1,10:00:00:000002,allocate failure,,4096,0\n"
	rec, err := Read(context.Background(), strings.NewReader(log), "x")
	if err != nil {
		t.Fatal(err)
	}
	if n := rec.Devices[0].CountByKind()["oom"]; n != 1 {
		t.Errorf("%d failures", n)
	}
	if _, err := Read(context.Background(), strings.NewReader(strings.Replace(log, "0x1000", "", 1)), "x"); err == nil {
		t.Error("an allocation without a pointer passes")
	}
}
