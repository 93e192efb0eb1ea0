package diagnose

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"allocsim/internal/bytesize"
	"allocsim/policies/torch/conf"
)

// TestTranscripts runs testdata/transcripts. The command "diagnose [conf=C]"
// takes a text and prints the report; "verdicts" takes one message a line and
// prints one line each; "facts" takes NAME=SIZE words.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var o Options
			for _, a := range d.CmdArgs {
				if a.Key == "conf" {
					o.Conf, _ = conf.ParseLenient(strings.Join(a.Vals, ","), o.Version)
				}
			}
			var b strings.Builder
			switch d.Cmd {
			case "diagnose":
				m, err := Parse(strings.ReplaceAll(d.Input, `\e`, "\x1b"))
				if err != nil {
					return err.Error() + "\n"
				}
				report(&b, Diagnose(m, o))
			case "verdicts":
				for _, line := range strings.Split(d.Input, "\n") {
					m, err := Parse(line)
					if err != nil {
						fmt.Fprintf(&b, "%v\n", err)
						continue
					}
					r := Diagnose(m, o)
					fmt.Fprintf(&b, "%s: %s\n", r.Verdict, r.Reason)
				}
			case "facts":
				f := Facts{Requested: -1, Reserved: -1, Allocated: -1, DeviceFree: -1, LargestFree: -1}
				for _, word := range strings.Fields(d.Input) {
					name, value, _ := strings.Cut(word, "=")
					n, err := bytesize.Parse(value)
					if err != nil {
						if n = math.MaxInt64; value != "unlimited" {
							t.Fatal(err)
						}
					}
					*map[string]*int64{"requested": &f.Requested, "reserved": &f.Reserved, "allocated": &f.Allocated, "free": &f.DeviceFree,
						"total": &f.Total, "limit": &f.Limit, "largest": &f.LargestFree}[name] = n
				}
				report(&b, Diagnose(FromFacts(f), o))
			default:
				t.Fatalf("%s: unknown command", d.Pos)
			}
			return b.String()
		})
	})
}

func report(b *strings.Builder, r Report) {
	gpu := ""
	if r.GPU != nil {
		gpu = fmt.Sprintf(", GPU %d", *r.GPU)
	}
	fmt.Fprintf(b, "%s (%s%s): %s\n", r.Verdict, r.Framework, gpu, r.Reason)
	if len(r.Also) > 0 {
		fmt.Fprintf(b, "also: %v\n", r.Also)
	}
	numbers, _ := json.Marshal(r.Numbers)
	fmt.Fprintf(b, "%s\n", numbers)
	if r.UnusedShare != nil {
		fmt.Fprintf(b, "unused share %v\n", *r.UnusedShare)
	}
	for i, a := range r.Advice {
		fmt.Fprintf(b, "%d. %s\n", i+1, a)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(b, "note: %s\n", n)
	}
}

// checkReport holds for any message.
func checkReport(t interface{ Fatalf(string, ...any) }, m Message, r Report) {
	switch r.Verdict {
	case Fragmentation, Capacity, OtherProcess, Limit, Undecidable, PrivatePool, OutsideAllocator, HostMemory:
	default:
		t.Fatalf("verdict %q", r.Verdict)
	}
	if r.Reason == "" || len(r.Advice) < 2 || r.Next == "" || r.Advice[len(r.Advice)-1] != "next: "+r.Next {
		t.Fatalf("incomplete: %+v", r)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Fatalf("%v", err)
	}
	if m.Framework != PyTorch && m.Framework != Recorded {
		return
	}
	// The central inequality binds in both directions.
	room := m.Unallocated.plus(m.Free)
	if room.Known && m.Requested.Known && m.Requested.Bytes < 1<<60 {
		if m.Requested.surelyMore(room) && r.Verdict == Fragmentation {
			t.Fatalf("fragmentation although %+v > %+v", m.Requested, room)
		}
		// What is unused and would do is fragmentation unless it is a few
		// percent of the card, which every job has.
		if m.Requested.surelyAtMost(room) && r.Verdict == Capacity && m.Requested.surelyAtMost(m.Total) && m.Unallocated.Bytes >= m.Total.Bytes/20 && m.Total.Known {
			t.Fatalf("capacity although %+v ≤ %+v", m.Requested, room)
		}
	}
}

// TestRounding: a message written from known bytes gives intervals that hold
// them, and a verdict that does not contradict the exact one.
func TestRounding(t *testing.T) {
	format := func(n int64) string {
		switch {
		case n <= 1024:
			return fmt.Sprintf("%d bytes", n)
		case n <= bytesize.MiB:
			return fmt.Sprintf("%.2f KiB", float64(n)/1024)
		case n <= bytesize.GiB:
			return fmt.Sprintf("%.2f MiB", float64(n)/bytesize.MiB)
		}
		return fmt.Sprintf("%.2f GiB", float64(n)/bytesize.GiB)
	}
	bytes := func(t *rapid.T, name string, most int64) int64 {
		return min(most, int64(math.Exp2(rapid.Float64Range(0, 37).Draw(t, name))))
	}
	rapid.Check(t, func(t *rapid.T) {
		total := bytes(t, "total", 1<<37) + bytesize.GiB
		reserved := bytes(t, "reserved", total)
		allocated := bytes(t, "allocated", reserved)
		free := bytes(t, "free", total-reserved)
		requested := bytes(t, "requested", 1<<38)
		texts := []string{
			fmt.Sprintf("RuntimeError: CUDA out of memory. Tried to allocate %s (GPU 1; %s total capacity; %s already allocated; %s free; %s reserved in total by PyTorch)",
				format(requested), format(total), format(allocated), format(free), format(reserved)),
			fmt.Sprintf("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU 1 has a total capacity of %s of which %s is free. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.",
				format(requested), format(total), format(free), format(allocated), format(reserved-allocated)),
		}
		exact := Diagnose(FromFacts(Facts{Requested: requested, Total: total, Reserved: reserved, Allocated: allocated, DeviceFree: free, LargestFree: -1}), Options{})
		for _, text := range texts {
			m, err := Parse(text)
			if err != nil || m.Truncated || m.GPU != 1 {
				t.Fatalf("%s: %v %+v", text, err, m)
			}
			for _, x := range []struct {
				q    Quantity
				true int64
			}{{m.Requested, requested}, {m.Total, total}, {m.Free, free}, {m.Allocated, allocated}, {m.Reserved, reserved}, {m.Unallocated, reserved - allocated}} {
				if !x.q.Known || x.true < x.q.Low() || x.true > x.q.High() {
					t.Fatalf("%s: %+v does not hold %d", text, x.q, x.true)
				}
			}
			r := Diagnose(m, Options{})
			checkReport(t, m, r)
			if r.Verdict == Capacity && exact.Verdict == Fragmentation || r.Verdict == Fragmentation && exact.Verdict == Capacity {
				t.Fatalf("%s: %s from the text, %s from the numbers", text, r.Verdict, exact.Verdict)
			}
		}
	})
}

// TestPlace: the message is found in a log, wherever it stands and however it
// is broken.
func TestPlace(t *testing.T) {
	const message = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 15.90 GiB of which 8.44 MiB is free. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large"
	rapid.Check(t, func(t *rapid.T) {
		words := strings.Fields(message)
		var b strings.Builder
		b.WriteString("epoch 3 loss 0.1\n[rank0]: Traceback:\n")
		at := b.Len()
		for i, w := range words {
			if i > 0 {
				b.WriteString(rapid.SampledFrom([]string{" ", " ", " ", "\n", "\n> ", "\r\n", "  ", "\n[rank0]: "}).Draw(t, "gap"))
			}
			b.WriteString(w)
		}
		b.WriteString("\nmore lines\n")
		m, err := Parse(b.String())
		if err != nil || !m.Requested.Known || !m.Total.Known || !m.Free.Known || !m.Allocated.Known || !m.Unallocated.Known || m.GPU != 3 || m.Truncated {
			t.Fatalf("%q: %v %+v", b.String(), err, m)
		}
		if m.Offset < int64(at) || m.Offset+int64(m.Length) > int64(b.Len()) {
			t.Fatalf("place %d+%d of %d, message at %d", m.Offset, m.Length, b.Len(), at)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"CUDA out of memory. Tried to allocate 1.79 GiB (GPU 0; 12.00 GiB total capacity; 8.93 GiB already allocated; 0 bytes free; 11.21 GiB reserved in total by PyTorch)",
		"CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of 139.80 GiB of which 127.95 GiB is free. Process 3245 has 3.62 GiB memory in use. 6.11 GiB allowed; Of the allocated memory 1.47 GiB is allocated by PyTorch, and 2.37 GiB is reserved by PyTorch but unallocated.",
		"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.",
		"OOM when allocating tensor with shape[500,17,17,4032] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
		"Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes).",
		"Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 15.16 GiB\nRequested               : 512.00 KiB",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := Parse(s)
		if err != nil {
			return
		}
		if m.Offset < 0 || m.Length < 0 || m.Offset+int64(m.Length) > int64(len(s)) {
			t.Fatalf("place %d+%d of %d", m.Offset, m.Length, len(s))
		}
		checkReport(t, m, Diagnose(m, Options{}))
	})
}

// BenchmarkParse finds a message at the end of a log of 8 MiB.
func BenchmarkParse(b *testing.B) {
	line := "INFO 2026-11-29 12:00:00 step 17 loss 3.2 memory 12.00 GiB out of 24.00 GiB reserved\n"
	text := strings.Repeat(line, (8<<20)/len(line)) + "CUDA out of memory. Tried to allocate 1.79 GiB (GPU 0; 12.00 GiB total capacity; 8.93 GiB already allocated; 0 bytes free; 11.21 GiB reserved in total by PyTorch)"
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
