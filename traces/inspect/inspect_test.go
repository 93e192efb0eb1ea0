package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"allocsim/internal/bytesize"
	"allocsim/traces"
	"allocsim/traces/formats"
)

// program interprets a small language for programs that repeat:
//
//	setup SIZE [xN]            N blocks that stay for good
//	loop N … end               N iterations of the lines between
//	  mark NAME                the program's own mark; % becomes the iteration
//	  tmp SIZE                 allocated and freed at once
//	  keep SIZE [every=K]      never freed, in every K-th iteration
//	  hold SIZE [for=K]        freed K iterations later, at the same place
//	  open SIZE / close        a block for part of the iteration
//	release                    frees everything that was kept
//
// In a size, + adds what follows times the iteration: 1MiB+512B.
func program(script string) (*traces.Trace, error) {
	b := traces.NewBuilder(0)
	stream := b.Stream(0)
	var (
		now    int64
		marks  []traces.Annotation
		kept   []traces.BlockID
		opened []traces.BlockID
		stacks = &traces.Stacks{}
		at     = make(map[traces.BlockID]traces.StackID)
		sites  = make(map[string]traces.StackID)
	)
	tick := func() int64 { now += 10; return now }
	type line struct {
		words []string
		opts  map[string]int
		site  string
	}
	parse := func(s string) line {
		l := line{opts: map[string]int{}}
		for _, w := range strings.Fields(s) {
			if k, v, ok := strings.Cut(w, "="); ok && k != "at" {
				n, _ := strconv.Atoi(v)
				l.opts[k] = n
			} else if ok {
				l.site = v
			} else {
				l.words = append(l.words, w)
			}
		}
		return l
	}
	alloc := func(l line, i int) traces.BlockID {
		base, slope, _ := strings.Cut(l.words[1], "+")
		size, err := bytesize.Parse(base)
		if err != nil {
			panic(err)
		}
		if slope != "" {
			s, err := bytesize.Parse(slope)
			if err != nil {
				panic(err)
			}
			size += int64(i) * s
		}
		id := b.Alloc(tick(), size, stream, 0)
		if l.site != "" {
			if _, ok := sites[l.site]; !ok {
				sites[l.site] = traces.StackID(len(stacks.Stack))
				stacks.Stack = append(stacks.Stack, []uint32{uint32(len(stacks.Frames))})
				file, no, _ := strings.Cut(l.site, ":")
				n, _ := strconv.Atoi(no)
				stacks.Frames = append(stacks.Frames, traces.Frame{Function: "f", File: file, Line: n})
			}
			at[id] = sites[l.site]
		}
		return id
	}
	lines := strings.Split(script, "\n")
	for p := 0; p < len(lines); p++ {
		l := parse(lines[p])
		if len(l.words) == 0 {
			continue
		}
		switch l.words[0] {
		case "setup":
			n := 1
			if len(l.words) > 2 {
				n, _ = strconv.Atoi(strings.TrimPrefix(l.words[2], "x"))
			}
			for range n {
				alloc(l, 0)
			}
		case "release":
			for _, id := range kept {
				b.Free(tick(), id)
			}
			kept = nil
		case "oom":
			b.OOM(tick(), 1<<40, stream, 0)
		case "loop":
			n, _ := strconv.Atoi(l.words[1])
			end := p + 1
			for strings.TrimSpace(lines[end]) != "end" {
				end++
			}
			held := make(map[int][]traces.BlockID) // by line
			for i := range n {
				for q := p + 1; q < end; q++ {
					l := parse(lines[q])
					switch l.words[0] {
					case "mark":
						marks = append(marks, traces.Annotation{TimeUS: tick(), Name: strings.ReplaceAll(strings.Join(l.words[1:], " "), "%", strconv.Itoa(i))})
					case "tmp":
						id := alloc(l, i)
						b.Free(tick(), id)
					case "keep":
						if k := max(1, l.opts["every"]); i%k == 0 && i >= l.opts["from"] && (l.opts["until"] == 0 || i < l.opts["until"]) {
							kept = append(kept, alloc(l, i))
						}
					case "hold":
						held[q] = append(held[q], alloc(l, i))
						if k := max(1, l.opts["for"]); len(held[q]) > k {
							b.Free(tick(), held[q][0])
							held[q] = held[q][1:]
						}
					case "open":
						opened = append(opened, alloc(l, i))
					case "close":
						b.Free(tick(), opened[len(opened)-1])
						opened = opened[:len(opened)-1]
					default:
						return nil, fmt.Errorf("unknown word %q", l.words[0])
					}
				}
			}
			p = end
		default:
			return nil, fmt.Errorf("unknown word %q", l.words[0])
		}
	}
	t, _, err := b.Build()
	if err != nil {
		return nil, err
	}
	t.Annotations = marks
	if len(sites) > 0 {
		for id := range t.NumBlocks {
			s, ok := at[traces.BlockID(id)]
			if !ok {
				s = traces.NoStack
			}
			stacks.ByBlock = append(stacks.ByBlock, s)
		}
		t.Stacks = stacks
	}
	return t, nil
}

func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			tr, err := program(d.Input)
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			var b strings.Builder
			switch d.Cmd {
			case "leaks":
				capacity := int64(0)
				if d.HasArg("capacity") {
					var s string
					d.ScanArgs(t, "capacity", &s)
					if capacity, err = bytesize.Parse(s); err != nil {
						t.Fatal(err)
					}
				}
				r := FindLeaks(tr, capacity)
				fmt.Fprintln(&b, r.Iterations.String())
				if r.Note != "" {
					fmt.Fprintln(&b, "note:", r.Note)
				}
				for _, l := range r.Leaks {
					fmt.Fprintf(&b, "%s since %d µs in %d iterations", l, l.SinceUS, l.Iterations)
					if l.ProjectedOOMUS > 0 {
						fmt.Fprintf(&b, ", out of memory at %d µs of %d", l.ProjectedOOMUS, tr.Duration())
					}
					b.WriteByte('\n')
				}
			case "top":
				r := Top(tr)
				fmt.Fprintf(&b, "after event %d at %d µs: %d bytes in %d blocks\n", r.Event, r.TimeUS, r.Bytes, r.Blocks)
				for _, h := range r.Holders {
					fmt.Fprintf(&b, "%12d %3d %-13s %s\n", h.Bytes, h.Blocks, h.Lifetime, h.Where)
				}
			case "summary":
				s := Summarize(tr)
				out, err := json.MarshalIndent(s, "", " ")
				if err != nil {
					t.Fatal(err)
				}
				b.Write(out)
				b.WriteByte('\n')
			}
			return b.String()
		})
	})
}

// openLeak is the recording of a loop that keeps every loss with its graph, at
// line 244 of its program.
func openLeak(t *testing.T) *traces.Trace {
	t.Helper()
	rec, err := formats.Open(context.Background(), "testdata/leak.parquet", formats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rec.Devices[0]
}

func TestLeakRecording(t *testing.T) {
	tr := openLeak(t)
	// What the line really leaves behind, counted from the blocks: those made
	// between the second and third step that live until the loop has ended.
	var steps []int64
	for _, a := range tr.Annotations {
		if !a.End && strings.HasPrefix(a.Name, "Optimizer.step") {
			steps = append(steps, a.TimeUS)
		}
	}
	size := map[traces.BlockID]int64{}
	for _, e := range tr.Events {
		switch {
		case e.Kind == traces.Alloc && e.TimeUS >= steps[2] && e.TimeUS < steps[3]:
			size[e.ID] = e.Size
		case e.Kind == traces.Free && e.TimeUS < steps[len(steps)-1]:
			delete(size, e.ID)
		}
	}
	var want int64
	for _, s := range size {
		want += s
	}
	const line = "/home/user/workloads.py:244 (leak_outputs)"
	check := func(how string, r LeakReport) {
		t.Helper()
		if len(r.Leaks) != 1 || r.Leaks[0].Where != line || r.Leaks[0].BytesPerIteration != want || r.Leaks[0].Iterations != 8 {
			t.Errorf("%s: %v; want %d bytes per iteration at %s", how, r.Leaks, want, line)
		}
	}
	if want < 300<<20 {
		t.Fatalf("%d bytes", want)
	}
	marked := FindLeaks(tr, 16<<30)
	check("by marks", marked)
	if at := marked.Leaks[0].ProjectedOOMUS; at <= tr.Duration() {
		t.Errorf("projected to run out at %d µs", at)
	}
	bare := *tr
	bare.Annotations = nil
	check("by pattern", FindLeaks(&bare, 0))
	bare.Stacks = nil
	sum := int64(0)
	for _, l := range FindLeaks(&bare, 0).Leaks {
		sum += l.BytesPerIteration
	}
	if sum < want-want/1000 || sum > want+want/100 {
		t.Errorf("without frames: %d bytes per iteration, want %d", sum, want)
	}
	// Half of it is too little to judge, and must not be judged.
	short := *tr
	i := 0
	for i < len(tr.Events) && tr.Events[i].TimeUS < steps[5] {
		i++
	}
	short.Events = tr.Events[:i]
	if r := FindLeaks(&short, 0); len(r.Leaks) > 0 || r.Note == "" {
		t.Errorf("from 5 steps: %v, %q", r.Leaks, r.Note)
	}
}

// TestNoLeakInRecordings holds every recording of a program without a leak to
// having none, by its marks, by pattern and without frames.
func TestNoLeakInRecordings(t *testing.T) {
	var files []string
	for _, g := range []string{"recordings/workloads", "recordings/scale", "recordings/fuzz", "recordings/ring", "recordings/kineto", "data/snapshots", "data/kineto"} {
		for _, e := range []string{"*.zst", "*.gz"} {
			m, _ := filepath.Glob(filepath.Join("../../../shared", g, e))
			files = append(files, m...)
		}
	}
	if len(files) == 0 {
		t.Skip("no shared recordings here")
	}
	for _, path := range files {
		rec, err := formats.Open(context.Background(), path, formats.Options{})
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		for _, tr := range rec.Devices {
			bare := *tr
			bare.Annotations = nil
			plain := bare
			plain.Stacks = nil
			for how, tr := range map[string]*traces.Trace{"marks": tr, "pattern": &bare, "sizes": &plain} {
				if r := FindLeaks(tr, 0); len(r.Leaks) > 0 {
					t.Errorf("%s by %s: %s, %v", path, how, r.Iterations.String(), r.Leaks)
				}
			}
		}
	}
	t.Logf("%d recordings", len(files))
}

// TestLoops draws programs that repeat, and leaks of them.
func TestLoops(t *testing.T) {
	sizes := []string{"512B", "3KiB", "1MiB", "20MiB", "77MiB"}
	rapid.Check(t, func(rt *rapid.T) {
		var b strings.Builder
		fmt.Fprintf(&b, "setup 4MiB x%d\nsetup 7MiB\n", rapid.IntRange(0, 5).Draw(rt, "setup"))
		iterations := rapid.IntRange(minJudged+3, 30).Draw(rt, "n")
		fmt.Fprintf(&b, "loop %d\n", iterations)
		marked := rapid.Bool().Draw(rt, "marked")
		if marked {
			b.WriteString("mark Optimizer.step#SGD.step\n")
		}
		// A big one first, so that every iteration breathes.
		b.WriteString("tmp 300MiB\n")
		for range rapid.IntRange(1, 8).Draw(rt, "ops") {
			size := rapid.SampledFrom(sizes).Draw(rt, "size")
			switch rapid.IntRange(0, 1).Draw(rt, "op") {
			case 0:
				fmt.Fprintf(&b, "tmp %s\n", size)
			case 1:
				fmt.Fprintf(&b, "hold %s for=%d\n", size, rapid.IntRange(1, 2).Draw(rt, "for"))
			}
		}
		every := rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(rt, "leak")
		if every == 2 && iterations < 20 {
			every = 1
		}
		if every > 0 {
			fmt.Fprintf(&b, "keep 5MiB every=%d at=train.py:7\n", every)
		}
		b.WriteString("end\n")
		tr, err := program(b.String())
		if err != nil {
			rt.Fatal(err)
		}
		r := FindLeaks(tr, 0)
		if every == 0 {
			if len(r.Leaks) > 0 {
				rt.Fatalf("a leak in\n%s%v", b.String(), r.Leaks)
			}
			return
		}
		if len(r.Leaks) != 1 || r.Leaks[0].Where != "train.py:7 (f)" {
			rt.Fatalf("no leak in\n%s%s, %q, %v", b.String(), r.Iterations.String(), r.Note, r.Leaks)
		}
		got, want := r.Leaks[0].BytesPerIteration, int64(5<<20)/int64(every)
		if !marked {
			// The pattern repeats with the leak.
			want = 5 << 20
		}
		if got < want*9/10 || got > want*11/10 {
			rt.Fatalf("%d bytes per iteration, want %d, in\n%s", got, want, b.String())
		}
	})
}

// TestTopAddsUp holds the holders to the total, and the total to the summary.
func TestTopAddsUp(t *testing.T) {
	tr := openLeak(t)
	top, sum := Top(tr), Summarize(tr)
	var total int64
	blocks := 0
	for _, h := range top.Holders {
		total += h.Bytes
		blocks += h.Blocks
	}
	if total != top.Bytes || blocks != top.Blocks || top.Bytes != sum.Peak.Requested || top.TimeUS != sum.Peak.TimeUS {
		t.Errorf("%d of %d bytes, %d of %d blocks, summary %+v", total, top.Bytes, blocks, top.Blocks, sum.Peak)
	}
	if h := top.Holders[0]; h.Lifetime != Persistent || !strings.Contains(h.Where, ":244") {
		t.Errorf("the first is %+v", h)
	}
}

func TestSites(t *testing.T) {
	datadriven.RunTest(t, "testdata/sites.txt", func(t *testing.T, d *datadriven.TestData) string {
		s := &traces.Stacks{}
		var stack []uint32
		for _, l := range strings.Split(d.Input, "\n") {
			fn, loc, _ := strings.Cut(l, " @ ")
			i := strings.LastIndexByte(loc, ':')
			n, err := strconv.Atoi(loc[i+1:])
			if err != nil {
				t.Fatal(err)
			}
			stack = append(stack, uint32(len(s.Frames)))
			s.Frames = append(s.Frames, traces.Frame{Function: fn, File: loc[:i], Line: n})
		}
		return siteOf(s, stack) + "\n"
	})
}

// TestSummaryOfRecording compares what the summary says of a recording with
// what the real allocator counted.
func TestSummaryOfRecording(t *testing.T) {
	path := "../../../shared/recordings/leak/leak_outputs__leakpy.pickle.zst"
	if _, err := os.Stat(path); err != nil {
		t.Skip("no shared recordings here: ", err)
	}
	rec, err := formats.Open(context.Background(), path, formats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := Summarize(rec.Devices[0])
	if s.Peak.Allocated != 4589109248 || s.Peak.Reserved == nil || !s.Peak.Counted || s.Events["alloc"] != 3353 {
		t.Errorf("%+v, %v", s.Peak, s.Events)
	}
	// The driver events alone must give the peak that the counters had.
	bare := *rec.Devices[0]
	r := *bare.Recorded
	r.Stats = nil
	bare.Recorded = &r
	if got := Summarize(&bare).Peak.Reserved; got == nil || *got != *s.Peak.Reserved {
		t.Errorf("from segment events %v, from counters %d", got, *s.Peak.Reserved)
	}
	if !bytes.Contains(must(json.Marshal(s)), []byte(`"conf":""`)) {
		t.Error("a known empty conf must be told from an unknown one")
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func BenchmarkFindLeaks(b *testing.B) {
	rec, err := formats.Open(context.Background(), "testdata/leak.parquet", formats.Options{})
	if err != nil {
		b.Fatal(err)
	}
	tr := rec.Devices[0]
	for b.Loop() {
		FindLeaks(tr, 0)
	}
	b.ReportMetric(float64(len(tr.Events)*b.N)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkFindIterationsByPattern(b *testing.B) {
	rec, err := formats.Open(context.Background(), "testdata/leak.parquet", formats.Options{})
	if err != nil {
		b.Fatal(err)
	}
	tr := *rec.Devices[0]
	tr.Annotations = nil
	for b.Loop() {
		FindIterations(&tr)
	}
	b.ReportMetric(float64(len(tr.Events)*b.N)/b.Elapsed().Seconds(), "events/s")
}
