package diagnose

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"unicode/utf16"
)

// ask writes PyTorch's message for a request of gib GiB on a card that it does
// not fit on.
func ask(gib float64, gpu int) string {
	return fmt.Sprintf("CUDA out of memory. Tried to allocate %.2f GiB. GPU %d has a total capacity of 23.65 GiB of which 1.00 GiB is free. Of the allocated memory 21.00 GiB is allocated by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated.", gib, gpu)
}

// asked is the explained message's request in hundredths of a GiB.
func asked(t *testing.T, log Log) int64 {
	t.Helper()
	return (log.Messages[log.Fatal].Requested.Bytes*100 + 1<<29) >> 30
}

// TestFatal says of small logs which message ended the program.
func TestFatal(t *testing.T) {
	progress := strings.Repeat("step loss 1.0 it/s 3\n", 20000) // 420 kB
	for _, c := range []struct {
		name, text string
		messages   int
		asked      int64 // hundredths of a GiB
		rank       int
	}{
		{"one", "torch.OutOfMemoryError: " + ask(3, 0), 1, 300, -1},
		// The first was handled: the program says so and goes on.
		{"handled", "WARNING: caught " + ask(3, 0) + " Skipping batch\n" + progress + "torch.OutOfMemoryError: " + ask(5, 0), 2, 500, -1},
		// Nothing says that it was handled, but the program went on for long.
		{"went on", ask(3, 0) + "\n" + progress + ask(5, 0), 2, 500, -1},
		// The last one was handled: the one before ended it.
		{"handled last", ask(3, 0) + "\ncaught " + ask(5, 0) + " retrying with a smaller batch\n", 2, 300, -1},
		{"all handled", "caught " + ask(3, 0) + " skipping batch\n" + progress + "caught " + ask(5, 0) + " skipping batch\n", 2, 500, -1},
		// Ranks that die together: the first took the others with it.
		{"ranks", "[rank1]: " + ask(3, 1) + "\n[rank0]: " + ask(4, 0) + "\n[rank2]: " + ask(5, 2), 3, 300, 1},
		{"rank handled before", "[rank1]: " + ask(3, 1) + "\n" + progress + "[rank0]: " + ask(4, 0) + "\n[rank2]: " + ask(5, 2), 3, 400, 0},
		// A library's failure without numbers is a consequence.
		{"consequence", "[rank3]: " + ask(3, 3) + "\n[rank3]: Cuda failure 2 'out of memory'", 2, 300, 3},
		// Another minute is another failure.
		{"minutes", "2026-01-01 10:00:00 [rank0]: " + ask(3, 0) + "\n2026-01-01 10:05:00 [rank1]: " + ask(4, 1), 2, 400, 1},
		// The traceback, its summary and a retry of the launcher are one failure.
		{"repeats", strings.Repeat("[rank0]: "+ask(3, 0)+"\n", 5), 1, 300, 0},
		// Words about errors are no errors, if there is one.
		{"prose", "how to avoid CUDA out of memory errors\n" + ask(3, 0) + "\nsee: out of memory\n", 1, 300, -1},
		{"mpirun", "[1,2]<stderr>:" + ask(3, 0), 1, 300, 2},
		{"torchrun", "[default5]:torch.OutOfMemoryError: " + ask(3, 0), 1, 300, 5},
		{"srun", "7: RuntimeError: " + ask(3, 0), 1, 300, 7},
	} {
		log, err := Scan(strings.NewReader(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		m := log.Messages[log.Fatal]
		if len(log.Messages) != c.messages || asked(t, log) != c.asked || m.Rank != c.rank {
			t.Errorf("%s: %d messages, asked %d, rank %d; by hand %d, %d, %d", c.name, len(log.Messages), asked(t, log), m.Rank, c.messages, c.asked, c.rank)
		}
	}
}

// TestOfRank: one rank's messages, and which ranks there are.
func TestOfRank(t *testing.T) {
	log, err := Scan(strings.NewReader("[rank0]: " + ask(3, 0) + "\n[rank1]: " + ask(4, 1) + "\n[rank1]: " + ask(5, 1) + "\n[rank7]: " + ask(6, 1)))
	if err != nil {
		t.Fatal(err)
	}
	of, err := log.OfRank(1)
	if err != nil || len(of.Messages) != 2 || asked(t, of) != 500 {
		t.Errorf("rank 1: %v %+v", err, of)
	}
	if _, err = log.OfRank(4); err == nil || !strings.Contains(err.Error(), "rank 0-1, 7") {
		t.Errorf("rank 4: %v", err)
	}
	r := DiagnoseLog(log, Options{})
	// Rank 1 lived on after its first failure, so that is not what ended it.
	if len(r.Messages) != 4 || !r.Messages[2].Explained || *r.Rank != 1 || *r.Numbers.Requested != 5<<30 {
		t.Errorf("%+v", r)
	}
}

// TestWrapped: however terminals, shells, loggers and files break or encode a
// message, it is the same message.
func TestWrapped(t *testing.T) {
	text := "torch.OutOfMemoryError: " + ask(3, 2)
	want, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	prefixed := func(prefix string) string {
		return prefix + strings.ReplaceAll(text, " GPU", "\n"+prefix+"GPU") + "\n"
	}
	units := utf16.Encode([]rune(text))
	little, big := []byte{0xff, 0xfe}, []byte{0xfe, 0xff}
	for _, u := range units {
		little, big = binary.LittleEndian.AppendUint16(little, u), binary.BigEndian.AppendUint16(big, u)
	}
	cases := map[string]string{
		"CRLF":     strings.ReplaceAll(text, ". ", ".\r\n"),
		"colours":  "\x1b[31m\x1b[1m" + strings.ReplaceAll(text, "GiB", "\x1b[0;33mGiB\x1b[0m") + "\x1b[0m",
		"JSON":     `{"msg":"\u001b[31m` + strings.ReplaceAll(text, ". ", `.\n`) + `\u001b[0m"}`,
		"rank":     prefixed("[rank2]: "),
		"compose":  prefixed("worker-1  | "),
		"vLLM":     prefixed("(EngineCore_DP0 pid=12) ERROR 08-12 10:00:00 [core.py:700] "),
		"Ray":      prefixed("(RayTrainWorker pid=99, ip=10.0.0.1) "),
		"quoted":   prefixed("> "),
		"stamped":  prefixed("2026-01-02T03:04:05.678Z ERROR "),
		"UTF-16":   string(little),
		"UTF-16BE": string(big),
		"markdown": "**" + text + "**",
	}
	for _, width := range []int{20, 37, 64, 80, 132} {
		var b strings.Builder
		for i := 0; i < len(text); i += width {
			b.WriteString(text[i:min(len(text), i+width)] + "\n")
		}
		cases[fmt.Sprintf("%d columns", width)] = b.String()
	}
	for name, c := range cases {
		m, err := Parse(c)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if m.Requested != want.Requested || m.Total != want.Total || m.Free != want.Free || m.Allocated != want.Allocated || m.Unallocated != want.Unallocated || m.GPU != 2 || m.Truncated {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// TestNoMessage: what is no failure is not taken for one.
func TestNoMessage(t *testing.T) {
	for _, text := range []string{
		"", "hello\n", strings.Repeat("step 1 loss 2\n", 1000),
		"RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)",
		"grpc: RESOURCE_EXHAUSTED: quota exceeded for memory reads",
		"tensorflow: Allocation of 1179648000 exceeds 10% of free system memory.",
		"GPU memory: 12.00 GiB reserved, 3 GiB free",
		"the last five lines were allocated to others",
	} {
		if m, err := Parse(text); err == nil {
			t.Errorf("%q: %+v", text, m)
		}
	}
	// TensorFlow says itself that this is no failure.
	log, err := Scan(strings.NewReader("W bfc_allocator.cc:211] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available."))
	if err != nil || !log.Messages[0].Handled {
		t.Errorf("%v %+v", err, log)
	}
}

// endless yields a log of n bytes and then its end.
type endless struct {
	line []byte
	at   int
	left int
	end  *strings.Reader
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return e.end.Read(p)
	}
	n := 0
	for n < len(p) && e.left > 0 {
		k := copy(p[n:], e.line[e.at:])
		n, e.left, e.at = n+k, e.left-k, (e.at+k)%len(e.line)
	}
	return n, nil
}

// TestLongLog: the message at the end of a log beyond 64 MiB is found, in
// memory that does not grow with the log.
func TestLongLog(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 80 MB")
	}
	line := []byte("INFO 2026-11-29 12:00:00 step 17 loss 3.2 memory 12.00 GiB out of 24.00 GiB reserved\n")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	log, err := Scan(&endless{line: line, left: 80 << 20, end: strings.NewReader("torch.OutOfMemoryError: " + ask(3, 0) + "\n")})
	runtime.ReadMemStats(&after)
	if err != nil || len(log.Messages) != 1 || asked(t, log) != 300 {
		t.Fatalf("%v %+v", err, log)
	}
	if m := log.Messages[0]; m.Offset < 80<<20 || m.Offset > 80<<20+100 {
		t.Errorf("offset %d", m.Offset)
	}
	if held := int64(after.HeapSys) - int64(before.HeapSys); held > 64<<20 {
		t.Errorf("the heap grew by %d bytes", held)
	}
}

// TestPieces: where the pieces of a log are cut makes no difference.
func TestPieces(t *testing.T) {
	filler := bytes.Repeat([]byte("step 17 loss 3.2\n"), (chunk+ahead)/17)
	for _, at := range []int{chunk - 300, chunk - 150, chunk - 1, chunk, chunk + ahead - 200, chunk - ahead - 100, chunk - ahead - behind} {
		text := append(append(bytes.Clone(filler[:at]), "\ntorch.OutOfMemoryError: "+ask(3, 1)+"\n"...), filler...)
		log, err := Scan(bytes.NewReader(text))
		if err != nil || len(log.Messages) != 1 || log.Messages[0].Truncated || asked(t, log) != 300 || log.Messages[0].Repeats != 0 || log.Messages[0].Offset != int64(at+len("\ntorch.OutOfMemoryError: ")) {
			t.Errorf("at %d: %v %+v", at, err, log)
		}
	}
}

// TestManyMessages keeps the first and the last of too many.
func TestManyMessages(t *testing.T) {
	var b strings.Builder
	for i := range maxFirst + maxLast + 50 {
		fmt.Fprintf(&b, "caught %s retrying\n", ask(1+float64(i)/100, 0))
	}
	log, err := Scan(strings.NewReader(b.String()))
	if err != nil || len(log.Messages) != maxFirst+maxLast || log.Dropped != 50 {
		t.Fatalf("%v: %d messages, %d dropped", err, len(log.Messages), log.Dropped)
	}
	if asked(t, log) != int64(100+maxFirst+maxLast+50-1) || log.Messages[maxFirst].Requested.Bytes < log.Messages[maxFirst-1].Requested.Bytes+40<<20 {
		t.Errorf("the last is not explained, or the middle is not what was dropped: %d", asked(t, log))
	}
}

// TestReadError passes the reader's error on.
func TestReadError(t *testing.T) {
	if _, err := Scan(io.MultiReader(strings.NewReader(ask(3, 0)), &failing{fmt.Errorf("the disk is gone")})); err == nil || !strings.Contains(err.Error(), "the disk is gone") {
		t.Errorf("%v", err)
	}
}
