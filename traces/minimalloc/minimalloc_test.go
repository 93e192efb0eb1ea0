package minimalloc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"allocsim/traces"
)

// TestRead shows what is made of files, right and wrong.
func TestRead(t *testing.T) {
	datadriven.RunTest(t, "testdata/read.txt", func(t *testing.T, d *datadriven.TestData) string {
		rec, err := Read(context.Background(), strings.NewReader(d.Input), "file")
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		var out strings.Builder
		tr := rec.Devices[0]
		for _, e := range tr.Events {
			fmt.Fprintf(&out, "%d %s block %d", e.TimeUS, e.Kind, e.ID)
			if e.Size > 0 {
				fmt.Fprintf(&out, " size %d", e.Size)
			}
			out.WriteByte('\n')
		}
		for _, n := range tr.Notes {
			fmt.Fprintf(&out, "note: %s\n", n)
		}
		return out.String()
	})
}

// TestRoundTrip reads and writes a file with every column.
func TestRoundTrip(t *testing.T) {
	golden, err := os.ReadFile("testdata/small.csv")
	if err != nil {
		t.Fatal(err)
	}
	if !Detect(golden) {
		t.Error("not detected")
	}
	buffers, err := ReadBuffers(context.Background(), bytes.NewReader(golden))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := WriteBuffers(&out, buffers); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), out.String()); diff != "" {
		t.Error(diff)
	}
	if b := buffers[2]; b.ID != "act,1" || len(b.Gaps) != 2 || b.Gaps[1] != (Gap{9, 10, 0, 128}) {
		t.Errorf("%+v", b)
	}
}

func TestDetect(t *testing.T) {
	for head, want := range map[string]bool{
		"id,lower,upper,size\n1,2,3,4\n":        true,
		"\n Size , START,Buffer , end\n":        true,
		"time_us,action,id,size,stream\n":       false,
		"Thread,Time,Action,Pointer,Size\n":     false,
		"":                                      false,
		"id,lower,upper\n":                      false,
		"\xef\xbb\xbfid,lower,upper,size":       true,
		"{\"id\":1,\"lower\":2}":                false,
		"id,lower,upper,size,\"alignment\"\r\n": true,
	} {
		if got := Detect([]byte(head)); got != want {
			t.Errorf("Detect(%q) = %v", head, got)
		}
	}
}

// draw makes buffers in the order in which a trace numbers them.
func draw(t *rapid.T) []Buffer {
	n := rapid.IntRange(0, 20).Draw(t, "n")
	buffers := make([]Buffer, n)
	at := int64(0)
	for i := range buffers {
		at += rapid.Int64Range(0, 3).Draw(t, "wait")
		buffers[i] = Buffer{
			ID: fmt.Sprint(i), Lower: at, Upper: at + rapid.Int64Range(1, 9).Draw(t, "life"),
			Size: rapid.Int64Range(1, 1000).Draw(t, "size"), Alignment: 1, Hint: -1, Offset: -1,
		}
	}
	return buffers
}

// TestTraceRoundTrip: buffers to a trace and back are the same.
func TestTraceRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		buffers := draw(t)
		tr, err := Trace(buffers, "drawn")
		if err != nil {
			t.Fatal(err)
		}
		back, ordinal := Buffers(tr)
		if ordinal {
			t.Fatal("times were not kept")
		}
		if diff := cmp.Diff(buffers, back); len(buffers) > 0 && diff != "" {
			t.Fatal(diff)
		}
		var out bytes.Buffer
		if err := Write(context.Background(), &out, tr); err != nil {
			t.Fatal(err)
		}
		again, err := ReadBuffers(context.Background(), &out)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(buffers, again); len(buffers) > 0 && diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestSharedMicrosecond: where times do not tell the order, the file's times
// are the events' numbers, and nothing that was apart overlaps.
func TestSharedMicrosecond(t *testing.T) {
	b := traces.NewBuilder(8)
	s := b.Stream(0)
	x := b.Alloc(5, 100, s, 0)
	b.Free(5, x)
	y := b.Alloc(5, 200, s, 0)
	b.OOM(6, 1<<40, s, 0)
	b.FreeRequested(7, y)
	b.EmptyCache(7)
	z := b.Alloc(7, 300, s, 0)
	b.FreeCompleted(8, y)
	_ = z
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Write(context.Background(), &out, tr); err != nil {
		t.Fatal(err)
	}
	if want := "id,lower,upper,size\n0,0,1,100\n1,2,7,200\n3,6,8,300\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	want := []string{
		"The minimalloc CSV holds lifetimes and requested sizes only: no streams, pools, call sites or configuration.",
		"Several events share a µs, so times in the file are the numbers of events.",
		"Every lifetime ends in the file: the 1 block alive at the end of the trace is written as freed there.",
		"Frees that were requested before they completed (1) count when they completed.",
		"1 failed request is left out.",
		"1 call to empty the cache is left out.",
	}
	if diff := cmp.Diff(want, Losses(tr)); diff != "" {
		t.Error(diff)
	}
}

// TestShared reads other people's files, which are not part of the repository,
// and writes them back byte for byte.
func TestShared(t *testing.T) {
	names, _ := filepath.Glob("../../../shared/data/minimalloc/*.csv")
	more, _ := filepath.Glob("../../../shared/data/packing/*.csv")
	names = append(names, more...)
	if len(names) == 0 {
		t.Skip("other people's instances are absent")
	}
	for _, name := range names {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		buffers, err := ReadBuffers(context.Background(), bytes.NewReader(want))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var out bytes.Buffer
		if err := WriteBuffers(&out, buffers); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.TrimSpace(bytes.ReplaceAll(want, []byte("\r"), nil)), bytes.TrimSpace(out.Bytes())) {
			t.Errorf("%s: not the same when written back", name)
		}
		if _, err := Read(context.Background(), bytes.NewReader(want), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRead: no input panics, and what is read can be written and read again.
func FuzzRead(f *testing.F) {
	golden, err := os.ReadFile("testdata/small.csv")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add([]byte("start,size,buffer,end,alignment,gaps\n6,18,1,11,2,7-8 \n5,15,0,9,1,-9--8\n"))
	f.Add([]byte("id,lower,upper,size\n\"a\"\"b\",0,1,1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		buffers, err := ReadBuffers(context.Background(), bytes.NewReader(data))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := WriteBuffers(&out, buffers); err != nil {
			if strings.Contains(err.Error(), "line end") {
				return
			}
			t.Fatal(err)
		}
		again, err := ReadBuffers(context.Background(), &out)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(buffers, again); diff != "" {
			t.Fatal(diff)
		}
		if _, err := Trace(buffers, "fuzz"); err != nil {
			t.Fatal(err)
		}
	})
}

// TestNoLife: a buffer must live for a while; where the end is the last step
// that it lives in, one step is enough.
func TestNoLife(t *testing.T) {
	for text, want := range map[string]bool{
		"id,lower,upper,size\na,5,6,4\n": true, "id,lower,upper,size\na,5,5,4\n": false, "id,lower,upper,size\na,6,5,4\n": false,
		"id,lower,end,size\na,5,5,4\n": true, "id,lower,end,size\na,6,5,4\n": false,
	} {
		if _, err := ReadBuffers(context.Background(), strings.NewReader(text)); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}
