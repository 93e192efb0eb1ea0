package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"allocsim/traces"
)

// A smallWorld is a random trace of up to a dozen blocks and, for each block,
// when it is made, given back and out of use (event indices; the number of
// events = never).
type smallWorld struct {
	trace            *traces.Trace
	size             []int64
	born, back, done []int
}

// drawWorld draws a world. Everything in it is decided here, block by block,
// so that a judge needs no event loop.
func drawWorld(t *rapid.T) smallWorld {
	sizes := []int64{1, 2, 3, 512, 513, 1024, 1025, 1 << 20, 1<<20 + 1, 3 << 20}
	tr := &traces.Trace{Streams: []uint64{0, 7}, Pools: []traces.PoolID{{}}}
	w := smallWorld{trace: tr}
	var held, waiting []int // blocks
	take := func(list *[]int) int {
		i := rapid.IntRange(0, len(*list)-1).Draw(t, "which")
		id := (*list)[i]
		*list = slices.Delete(*list, i, i+1)
		return id
	}
	event := func(kind traces.Kind, id int, size int64) int {
		tr.Events = append(tr.Events, traces.Event{Kind: kind, TimeUS: int64(len(tr.Events) * 10), ID: traces.BlockID(id), Size: size})
		return len(tr.Events) - 1
	}
	alloc := func() {
		size := rapid.SampledFrom(sizes).Draw(t, "size")
		id := len(w.size)
		w.size = append(w.size, size)
		w.born = append(w.born, event(traces.Alloc, id, size))
		w.back, w.done = append(w.back, -1), append(w.done, -1)
		held = append(held, id)
	}
	for range rapid.IntRange(0, 2).Draw(t, "before") {
		alloc()
	}
	tr.StartEvents = len(tr.Events)
	for range rapid.IntRange(1, 24).Draw(t, "steps") {
		switch rapid.IntRange(0, 5).Draw(t, "step") {
		case 0, 1, 2:
			if len(w.size) < 12 {
				alloc()
			}
		case 3:
			if len(held) > 0 {
				id := take(&held)
				w.back[id] = event(traces.Free, id, 0)
				w.done[id] = w.back[id]
			}
		case 4:
			if len(held) > 0 {
				id := take(&held)
				w.back[id] = event(traces.FreeRequested, id, 0)
				waiting = append(waiting, id)
			}
		case 5:
			if len(waiting) > 0 {
				id := take(&waiting)
				w.done[id] = event(traces.FreeCompleted, id, 0)
			}
		}
	}
	tr.NumBlocks = len(w.size)
	for id := range w.size {
		if w.back[id] < 0 {
			w.back[id] = len(tr.Events)
		}
		if w.done[id] < 0 {
			w.done[id] = len(tr.Events)
		}
	}
	return w
}

// sum adds up the sizes of the blocks that live right after event i, up to
// the event that until gives for each.
func (w *smallWorld) sum(i int, until []int) (bytes int64) {
	for id, size := range w.size {
		if w.born[id] <= i && i < until[id] {
			bytes += size
		}
	}
	return bytes
}

// TestSummaryOfSmallWorlds adds up every moment of small worlds from scratch.
func TestSummaryOfSmallWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		var want Peak
		for i, e := range w.trace.Events {
			if live := w.sum(i, w.back); live > want.Requested {
				want.Requested, want.TimeUS = live, e.TimeUS
			}
			want.Active = max(want.Active, w.sum(i, w.done))
		}
		want.Allocated = want.Requested
		s := Summarize(w.trace)
		if s.Peak != want {
			t.Fatalf("peak %+v, want %+v", s.Peak, want)
		}
		if s.StartBlocks != w.trace.StartEvents {
			t.Fatalf("%d blocks from before, want %d", s.StartBlocks, w.trace.StartEvents)
		}
		asked := slices.Clone(w.size[w.trace.StartEvents:])
		slices.SortFunc(asked, func(x, y int64) int { return cmp.Compare(y, x) })
		sizes := slices.Compact(slices.Clone(asked))
		if len(s.Largest) != min(10, len(sizes)) {
			t.Fatalf("%d largest sizes of %d", len(s.Largest), len(sizes))
		}
		for i, r := range s.Largest {
			count := 0
			for _, size := range asked {
				if size == r.Size {
					count++
				}
			}
			first := slices.Index(w.size[w.trace.StartEvents:], r.Size) + w.trace.StartEvents
			if r.Size != sizes[i] || r.Count != count || r.TimeUS != int64(10*w.born[first]) {
				t.Fatalf("largest %d is %+v of %v", i, r, asked)
			}
		}
		for i, b := range s.Sizes {
			count, bytes := 0, int64(0)
			for _, size := range asked {
				if b.Above < size && size <= b.UpTo {
					count++
					bytes += size
				}
			}
			if b.Count != count || b.Bytes != bytes || b.UpTo > 1 && b.UpTo != 2*b.Above || i > 0 && b.Above < s.Sizes[i-1].UpTo {
				t.Fatalf("bin %+v has %d requests of %d bytes of %v", b, count, bytes, asked)
			}
			asked = slices.DeleteFunc(asked, func(size int64) bool { return b.Above < size && size <= b.UpTo })
		}
		if len(asked) > 0 {
			t.Fatalf("in no bin: %v", asked)
		}
	})
}

// TestTopOfSmallWorlds adds up the blocks at the peak from scratch.
func TestTopOfSmallWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		tr := w.trace
		if rapid.Bool().Draw(t, "fails") { // a request at the end that gets nothing
			tr.Events = append(tr.Events, traces.Event{Kind: traces.OOM, TimeUS: int64(len(tr.Events) * 10), ID: traces.BlockID(tr.NumBlocks), Size: 1 << 40})
			tr.NumBlocks++
		}
		at, peak := 0, int64(0)
		for i := range tr.Events {
			if live := w.sum(i, w.back); live > peak {
				at, peak = i, live
			}
		}
		want := make(map[string]int64)
		blocks := 0
		for id, size := range w.size {
			if w.born[id] <= at && at < w.back[id] {
				lo, hi := int64(0), int64(512)
				for size > hi {
					lo, hi = hi, 2*hi
				}
				where := fmt.Sprintf("%d to %d", lo, hi)
				want[where] += size
				blocks++
			}
		}
		r := Top(tr)
		if len(tr.Events) > 0 && (r.Event != at && peak > 0 || r.Bytes != peak || r.Blocks != blocks) {
			t.Fatalf("%d bytes in %d blocks after event %d; want %d in %d after %d", r.Bytes, r.Blocks, r.Event, peak, blocks, at)
		}
		names := map[string]string{"up to 512 B": "0 to 512", "512 B to 1 KiB": "512 to 1024", "1 KiB to 2 KiB": "1024 to 2048",
			"512 KiB to 1 MiB": "524288 to 1048576", "1 MiB to 2 MiB": "1048576 to 2097152", "2 MiB to 4 MiB": "2097152 to 4194304"}
		got := make(map[string]int64)
		for _, h := range r.Holders {
			name, ok := names[strings.TrimPrefix(h.Where, "requests of ")]
			if !ok {
				t.Fatalf("held by %q", h.Where)
			}
			got[name] += h.Bytes
		}
		if d := gocmp.Diff(want, got); d != "" {
			t.Fatalf("after event %d: %s", at, d)
		}
	})
}

// TestOOMsInSummary: each failed request shows what the driver had left at that
// moment, if the recording says so.
func TestOOMsInSummary(t *testing.T) {
	tr := &traces.Trace{Streams: []uint64{0}, Pools: []traces.PoolID{{}}, NumBlocks: 4, Recorded: &traces.Recorded{OOMDeviceFree: []int64{100, -1, 300}}}
	for i := range int64(4) {
		tr.Events = append(tr.Events, traces.Event{Kind: traces.OOM, TimeUS: i, ID: traces.BlockID(i), Size: 1000 + i})
	}
	n := func(x int64) *int64 { return &x }
	want := []OOM{{0, 1000, n(100)}, {1, 1001, nil}, {2, 1002, n(300)}, {3, 1003, nil}}
	if d := gocmp.Diff(want, Summarize(tr).OOMs); d != "" {
		t.Error(d)
	}
}

// TestReservedPeak: from most to least trusted, the reserved peak is that of
// the allocator's statistics, of the segments that it took and gave back, or of
// the segments at the end.
func TestReservedPeak(t *testing.T) {
	const mib = 1 << 20
	segment := func(size int64, blocks ...traces.SegmentBlock) traces.Segment {
		return traces.Segment{Size: size, Blocks: blocks}
	}
	start := &traces.State{Segments: []traces.Segment{segment(20 * mib), segment(2 * mib)}}
	// 22 at the start, 42, 62, 42, 40, 60: the peak is 62 MiB.
	driver := []traces.DriverEvent{
		{Action: traces.SegmentAlloc, Size: 20 * mib}, {Action: traces.SegmentMap, Size: 20 * mib}, {Action: traces.SegmentUnmap, Size: 20 * mib},
		{Action: traces.SegmentFree, Size: 2 * mib}, {Action: traces.SegmentAlloc, Size: 20 * mib},
	}
	final := &traces.State{Segments: []traces.Segment{segment(20*mib,
		traces.SegmentBlock{Size: 3 * mib, State: traces.ActiveAllocated}, traces.SegmentBlock{Size: 5 * mib, State: traces.ActivePendingFree}, traces.SegmentBlock{Size: 12 * mib, State: traces.Inactive})}}
	stats := map[string]int64{"reserved_bytes.all.peak": 70 * mib, "allocated_bytes.all.peak": 50 * mib, "active_bytes.all.peak": 60 * mib}
	event := []traces.Event{{Kind: traces.Alloc, Size: mib}}
	for name, c := range map[string]struct {
		tr                          traces.Trace
		reserved, allocated, active int64 // MiB
	}{
		"statistics":                 {traces.Trace{Events: event, NumBlocks: 1, Start: start, Recorded: &traces.Recorded{Stats: stats, Driver: driver, Final: final}}, 70, 50, 60},
		"a statistic lacks":          {traces.Trace{Events: event, NumBlocks: 1, Start: start, Recorded: &traces.Recorded{Stats: map[string]int64{"reserved_bytes.all.peak": 1}, Driver: driver, Final: final}}, 62, 1, 1},
		"segment events":             {traces.Trace{Events: event, NumBlocks: 1, Start: start, Recorded: &traces.Recorded{Driver: driver, Final: final}}, 62, 1, 1},
		"nothing before":             {traces.Trace{Events: event, NumBlocks: 1, Recorded: &traces.Recorded{Driver: driver[:2]}}, 40, 1, 1},
		"segments at the start":      {traces.Trace{Events: event, NumBlocks: 1, Start: start, Recorded: &traces.Recorded{Final: final}}, 22, 1, 1},
		"segments at the end":        {traces.Trace{Events: event, NumBlocks: 1, Recorded: &traces.Recorded{Final: final}}, 20, 1, 1},
		"segments at the end, alone": {traces.Trace{Recorded: &traces.Recorded{Final: final}}, 20, 3, 8},
	} {
		p := Summarize(&c.tr).Peak
		if p.Reserved == nil {
			t.Errorf("%s: no reserved peak", name)
		} else if *p.Reserved != c.reserved*mib || p.Allocated != c.allocated*mib || p.Active != c.active*mib {
			t.Errorf("%s: reserved %d, allocated %d, active %d", name, *p.Reserved/mib, p.Allocated/mib, p.Active/mib)
		}
	}
	if p := Summarize(&traces.Trace{Events: event, NumBlocks: 1, Recorded: &traces.Recorded{}}).Peak; p.Reserved != nil {
		t.Errorf("without segments: reserved %d", *p.Reserved)
	}
}

// TestLeaking: from how many blocks each iteration left, what is a leak: four
// iterations at least, at regular distances, and up to the end.
func TestLeaking(t *testing.T) {
	for pattern, want := range map[string]int{ // -1 = none
		"1111":         0,
		"0111":         -1, // three are too few
		"0001111":      3,
		"101010101":    0,
		"1001001001":   0,
		"10010010010":  0,
		"111100000":    -1, // it has stopped
		"1100110011":   -1, // the gap of 3 is more than twice the usual 1
		"1101101101":   0,
		"0000000":      -1,
		"111110000111": -1,
	} {
		var blocks []int
		for _, c := range pattern {
			blocks = append(blocks, int(c-'0'))
		}
		from, ok := leaking(blocks)
		if !ok {
			from = -1
		}
		if from != want {
			t.Errorf("%s: since %d, want %d", pattern, from, want)
		}
	}
}

// TestProjection: 12 steps of 40 µs each, 40 MiB before them, 100 MiB that come
// and go in each and 1 MiB that stays.
//
// The last bound is the first request after the twelfth mark, at 40 + 11×40 +
// 20 = 500 µs. In the step before it 10 MiB have stayed, so its peak is 40 + 10
// + 100 = 150 MiB. A capacity of C MiB lasts C - 150 steps more.
func TestProjection(t *testing.T) {
	tr, err := program("setup 10MiB x4\nloop 12\nmark ProfilerStep#%\ntmp 100MiB\nkeep 1MiB at=train.py:30\nend")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		capacity        int64 // MiB
		left            int
		usedUp, project int64
	}{
		{1024, 874, -1, 500 + 874*40},
		{151, 1, -1, 540},
		{150, 0, -1, 500},
		// 145 MiB are exceeded by the 100 of the seventh step, with 6 kept: at
		// 40 + 6×40 + 20 µs.
		{145, 0, 300, 300},
		{0, 0, -1, 0},
	} {
		r := FindLeaks(tr, c.capacity<<20)
		if len(r.Leaks) != 1 || r.Leaks[0].ProjectedOOMUS != c.project || r.IterationsLeft != c.left || r.UsedUpUS != c.usedUp {
			t.Errorf("%d MiB: %+v; want %d iterations, used up at %d µs, projected for %d µs", c.capacity, r, c.left, c.usedUp, c.project)
		}
	}
}

// TestLeaksByStream: two streams that leak the same size are two leaks; the
// larger one comes first.
func TestLeaksByStream(t *testing.T) {
	b := traces.NewBuilder(0)
	streams := []uint16{b.Stream(0), b.Stream(0x20)}
	var marks []traces.Annotation
	now := int64(0)
	for i := range 10 {
		now += 10
		marks = append(marks, traces.Annotation{TimeUS: now, Name: fmt.Sprintf("ProfilerStep#%d", i)})
		b.Alloc(now, 1<<20, streams[0], 0)
		b.Alloc(now, 1<<20, streams[1], 0)
		b.Alloc(now, 1<<20, streams[1], 0)
		id := b.Alloc(now, 100<<20, streams[0], 0)
		b.Free(now+5, id)
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Annotations = marks
	r := FindLeaks(tr, 0)
	if len(r.Leaks) != 2 || r.Leaks[0].BytesPerIteration != 2<<20 || !strings.HasSuffix(r.Leaks[0].Where, "on stream 0x20") || r.Leaks[1].BytesPerIteration != 1<<20 || strings.Contains(r.Leaks[1].Where, "stream") {
		t.Errorf("%v", r.Leaks)
	}
}

// TestMarks: PyTorch's own steps count for most, then its optimizers, then
// names that say step; among equals the outermost loop.
func TestMarks(t *testing.T) {
	for _, c := range []struct{ loop, from string }{
		{"mark ProfilerStep#%\nmark Optimizer.step#Adam.step", "ProfilerStep"},
		{"mark Optimizer.step#Adam.step\nmark train step %", "Optimizer.step#Adam.step"},
		{"mark Optimizer.zero_grad#Adam.zero_grad\nmark Optimizer.step#Adam.step", "Optimizer.step#Adam.step"},
		{"mark layer %\nmark train step %", "train step"},
		{"mark micro_step %\ntmp 1MiB\nmark micro_step 1\ntmp 1MiB\nmark step %", "step"},
	} {
		tr, err := program("loop 8\n" + c.loop + "\ntmp 100MiB\nend")
		if err != nil {
			t.Fatal(err)
		}
		// Marks end as well as start; only starts bound iterations.
		for _, a := range tr.Annotations {
			tr.Annotations = append(tr.Annotations, traces.Annotation{TimeUS: a.TimeUS + 15, Name: a.Name, End: true})
		}
		slices.SortStableFunc(tr.Annotations, func(x, y traces.Annotation) int { return cmp.Compare(x.TimeUS, y.TimeUS) })
		it := FindIterations(tr)
		if it.From != c.from || it.Count() != 7 {
			t.Errorf("%q: %s", c.loop, it.String())
		}
	}
}
