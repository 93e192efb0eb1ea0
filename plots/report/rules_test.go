package report

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"allocsim/internal/bytesize"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/plots"
	"allocsim/plots/internal/plotstest"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

const (
	mib = bytesize.MiB
	gib = bytesize.GiB
)

// TestWrongByHand: what a run suffers from, in numbers that are worked out here.
func TestWrongByHand(t *testing.T) {
	result := func(peak int64, change func(r *sim.Result)) *sim.Result {
		r := &sim.Result{Completed: true}
		r.Stats.ReservedBytes[policies.All].Peak = peak
		if change != nil {
			change(r)
		}
		return r
	}
	for _, c := range []struct {
		name  string
		r     *sim.Result
		bound int64
		want  string
	}{
		// 10 GiB are a quarter more than 8.
		{"more than needed", result(10*gib, nil), 8 * gib, "At its peak it reserves 10 GiB, though never more than 8 GiB live at once (25 % more than needed)."},
		{"twice", result(16*gib, nil), 8 * gib, "(100 % more than needed)."},
		{"as much as needed", result(8*gib, nil), 8 * gib, "At its peak it reserves 8 GiB, though never more than 8 GiB live at once."},
		{"retries", result(8*gib, func(r *sim.Result) { r.Stats.NumAllocRetries = 2 }), 8 * gib, "It has to flush its cache 2 times to go on, which stalls the program."},
		{"at the peak", result(8*gib, func(r *sim.Result) {
			r.AtPeak = &sim.Fragmentation{ReservedUnallocated: 2 * gib, LargestFree: gib}
		}), 8 * gib, "At that moment 2 GiB of the reserved memory are not allocated; the largest free block is 1 GiB."},
		{"too small", result(8*gib, func(r *sim.Result) {
			r.OOMs = []sim.OOM{{TimeUS: 1500, Requested: 3 * gib, Reserved: 8 * gib, Allocated: 7 * gib, LargestFree: gib, Cause: sim.CauseCapacity}, {Cause: sim.CauseLimit}}
		}), 8 * gib, "At 1.5 ms a request of 3 GiB fails, with 8 GiB reserved, 7 GiB of it allocated, and a largest free block of 1 GiB. The device is too small for it."},
		{"limit", result(8*gib, func(r *sim.Result) { r.OOMs = []sim.OOM{{Cause: sim.CauseLimit}} }), 8 * gib, "The allocator's own memory limit is too low for it."},
		{"fragmentation", result(8*gib, func(r *sim.Result) { r.OOMs = []sim.OOM{{Cause: sim.CauseFragmentation}} }), 8 * gib, "The memory is there, but in pieces (fragmentation)."},
	} {
		if got := wrong(c.r, c.bound, false); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestCells: numbers as people read them, and as a table sorts them.
func TestCells(t *testing.T) {
	for _, c := range []struct {
		got  cell
		want cell
	}{
		{headroom(10*gib, 2*gib), cell{"+2 GiB", "2147483648"}},
		{headroom(10*gib, -2*gib), cell{"−2 GiB", "-2147483648"}},
		{headroom(10*gib, 0), cell{"+0 B", "0"}},
		{headroom(0, -2*gib), cell{"unknown", ""}},
		{sizeCell(1536 * mib), cell{"1.50 GiB", "1610612736"}},
		{numberCell(1234567), cell{"1,234,567", "1234567"}},
		{timeCell(999), cell{"999 µs", "999"}},
		{timeCell(1500), cell{"1.5 ms", "1500"}},
		{timeCell(2_500_000), cell{"2.50 s", "2500000"}},
		{cell{orDefault(""), ""}, cell{"(default)", ""}},
	} {
		if c.got != c.want {
			t.Errorf("%q sorted by %q, want %q by %q", c.got.Text, c.got.Value, c.want.Text, c.want.Value)
		}
	}
	if got := (cell{Text: "a:1,b/c"}).Parts(); !slices.Equal(got, []string{"a:", "1,", "b/", "c"}) {
		t.Errorf("parts %q", got)
	}
}

// small is a builder for one trace of three requests, with a search's answer
// put in by hand.
func small(t *testing.T, answer *planner.Tuning) *builder {
	t.Helper()
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	x := b.Alloc(1, 3*mib, s, 0)
	b.Free(2, x)
	b.Alloc(3, 5*mib, s, 0)
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	tr.Source = "small"
	in := made(t, tr)
	return &builder{ctx: context.Background(), inputs: []Input{in}, jobs: []planner.Case{in.Job}, events: len(tr.Events), tuning: answer}
}

// TestHeadlines: which of two settings is better decides what is said first.
func TestHeadlines(t *testing.T) {
	works := func(peak int64) planner.Candidate { return planner.Candidate{Completed: true, ReservedPeak: peak} }
	fails := func() planner.Candidate { return planner.Candidate{Completed: true, NumOOMs: 1, ReservedPeak: gib} }
	cut := planner.Candidate{Completed: false, ReservedPeak: gib}
	for _, c := range []struct {
		name           string
		now, best      planner.Candidate
		export         string
		verdict        planner.Verdict
		tone, headline string
	}{
		{"cannot fit", fails(), fails(), "", planner.CannotFit, "bad", "No setting can help: 3 GiB are missing."},
		{"no cure", fails(), fails(), "", "", "bad", "It runs out of memory, and no setting was found that cures it."},
		{"ends early whatever is set", cut, cut, "", "", "bad", "It runs out of memory, and no setting was found that cures it."},
		{"a part of a run", works(4 * gib), works(3 * gib), "", planner.Undecidable, "same", "Undecidable: the recording does not hold what would show it."},
		{"only just", works(4 * gib), works(4 * gib), "", planner.Tight, "same", "It works as recorded, but only just, and nothing reliable was found."},
		{"cured", fails(), works(gib), "export X", "", "good", "It runs out of memory. One line cures it."},
		{"ended early, cured", cut, works(gib), "export X", "", "good", "It runs out of memory. One line cures it."},
		// 1 of 4 GiB is a quarter.
		{"saves", works(4 * gib), works(3 * gib), "export X", "", "good", "One line saves 1 GiB of GPU memory (25 %)."},
		{"fewer calls", works(4 * gib), works(4 * gib), "export X", "", "good", "One line makes it better."},
		{"nothing to do", works(4 * gib), works(4 * gib), "", "", "same", "Nothing to change: the present setting is as good as any."},
		{"nothing to do although less is possible", works(4 * gib), works(3 * gib), "", "", "same", "Nothing to change: the present setting is as good as any."},
	} {
		c.best.Conf = "best"
		v, err := small(t, &planner.Tuning{Baseline: c.now, Best: c.best, Export: c.export, Verdict: c.verdict, Short: 3 * gib}).verdict()
		if err != nil {
			t.Fatal(err)
		}
		if v.Tone != c.tone || v.Headline != c.headline {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, v.Tone, v.Headline, c.tone, c.headline)
		}
		if len(v.Before.Rows) != 2 || v.Before.Rows[0][2].Text != "not sampled" {
			t.Errorf("%s: before and after are %+v", c.name, v.Before.Rows)
		}
	}
	same := works(gib)
	v, err := small(t, &planner.Tuning{Baseline: same, Best: same}).verdict()
	if err != nil || len(v.Before.Rows) != 1 || len(v.Wrong) != 1 {
		t.Errorf("the best is the present setting: %+v, %v", v, err)
	}
}

// TestSettingsTable: what was ended early has a lower bound for a peak and no
// other figures.
func TestSettingsTable(t *testing.T) {
	span := &sim.Span{ReservedPeak: [2]int64{3 * gib, 5 * gib}}
	tab := candidates(&planner.Tuning{Searched: 4, Candidates: []planner.Candidate{
		{Conf: "", ReservedPeak: 4 * gib, NumAllocRetries: 2, NumOOMs: 1, Span: span},
		{Conf: "a", ReservedPeak: 2 * gib, NumAllocRetries: 7, Stopped: true},
		{Conf: "b", Approximate: true}, {Conf: "c", Limits: true},
	}})
	rows := make([]string, len(tab.Rows))
	for i, r := range tab.Rows {
		var texts []string
		for _, c := range r {
			texts = append(texts, c.Text)
		}
		rows[i] = strings.Join(texts, "|")
	}
	want := []string{"1|4 GiB|5 GiB|0 µs|2|1|(default)", "2|≥ 2 GiB|||||a", "3|0 B||0 µs|0|0|b (an approximation)", "4|0 B||0 µs|0|0|c (a limit)"}
	if !slices.Equal(rows, want) || tab.Note != "" {
		t.Errorf("rows %q, want %q", rows, want)
	}
	many := &planner.Tuning{Candidates: make([]planner.Candidate, 61)}
	if tab := candidates(many); len(tab.Rows) != 60 || tab.Note == "" {
		t.Errorf("%d rows of 61, note %q", len(tab.Rows), tab.Note)
	}
}

// TestCardsOfALongTrace: 10 GiB now and 7 with the best setting, at most 11
// and 8, on cards of 6, 9 and 12 GiB without overhead.
func TestCardsOfALongTrace(t *testing.T) {
	card := func(n int64) gpus.Card {
		return gpus.Card{Name: fmt.Sprint(n / gib), Total: n, Low: n, High: n, Confidence: gpus.Measured}
	}
	now := planner.Candidate{Conf: "now", Completed: true, ReservedPeak: 10 * gib, Span: &sim.Span{ReservedPeak: [2]int64{9 * gib, 11 * gib}}}
	best := planner.Candidate{Conf: "best", Completed: true, ReservedPeak: 7 * gib, Span: &sim.Span{ReservedPeak: [2]int64{7 * gib, 8 * gib}}}
	rows := func(now, best planner.Candidate) (out []string) {
		b := small(t, &planner.Tuning{Baseline: now, Best: best})
		b.events = 100_000
		b.o.Cards = []gpus.Card{card(6 * gib), card(9 * gib), card(12 * gib)}
		f, err := b.fit()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range f.Table.Rows {
			out = append(out, fmt.Sprint(r[0].Text, " ", r[2].Text, " ", r[3].Text, " ", r[5].Text))
		}
		return append(out, f.Lead[:20])
	}
	want := []string{"6 no −2 GiB best", "9 fits +1 GiB best", "12 fits +1 GiB now", "Judged by the reserv"}
	if got := rows(now, best); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A run that failed has no peak that counts: 5 MiB live at once.
	now.NumOOMs = 1
	want = []string{"6 fits +5.99 GiB now", "9 fits +8.99 GiB now", "12 fits +11.99 GiB now", "The program ran out "}
	if got := rows(now, best); got[3] != want[3] || !strings.HasPrefix(got[0], "6 fits +") {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSearchKeptShort: 60,000 events are usual; more are searched shortly,
// unless asked otherwise.
func TestSearchKeptShort(t *testing.T) {
	for events, want := range map[int]bool{60_000: false, 60_001: true} {
		b := &builder{events: events}
		if b.short() != want {
			t.Errorf("%d events: short is %v", events, b.short())
		}
		b.o.Thorough = true
		if b.short() {
			t.Errorf("%d events, thorough: kept short", events)
		}
	}
}

// TestSettingsShown: the present setting first, the best, PyTorch's own, and
// expandable segments, each once.
func TestSettingsShown(t *testing.T) {
	b := small(t, &planner.Tuning{})
	names, specs, err := b.policies(0)
	if err != nil || len(names) != 2 || !strings.HasPrefix(names[0], "now: ") || specs[1].String() != "torch:expandable_segments:True" {
		t.Errorf("%q, %v", names, err)
	}
	b.jobs[0].Policy = plotstest.Spec(t, "torch:max_split_size_mb:128")
	names, specs, err = b.policies(0)
	if err != nil || len(names) != 3 || specs[0].String() != "torch:max_split_size_mb:128" || specs[1].String() != "torch" {
		t.Errorf("%q, %v", names, err)
	}
}

// TestPickOfSmallWorlds: of all blocks those with the most size × lifetime, in
// the order of their start.
func TestPickOfSmallWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := traces.NewBuilder(0)
		s := b.Stream(0)
		type block struct{ start, end, size int64 }
		var blocks []block
		var ids []traces.BlockID
		var live []int
		n := int64(0)
		for range rapid.IntRange(1, 24).Draw(t, "events") {
			if len(live) == 0 || len(blocks) < 12 && rapid.Bool().Draw(t, "alloc") {
				size := 512 * rapid.Int64Range(1, 9).Draw(t, "size")
				ids = append(ids, b.Alloc(n, size, s, 0))
				live = append(live, len(blocks))
				blocks = append(blocks, block{n, -1, size})
			} else {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				b.Free(n, ids[live[i]])
				blocks[live[i]].end = n
				live = slices.Delete(live, i, i+1)
			}
			n++
		}
		tr, _, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		for i := range blocks {
			if blocks[i].end < 0 {
				blocks[i].end = n
			}
		}
		most := rapid.IntRange(1, 12).Draw(t, "most")
		got, start, end := pick(tr, most)
		if len(got) != min(most, len(blocks)) || !slices.IsSorted(got) {
			t.Fatalf("%v, at most %d of %d", got, most, len(blocks))
		}
		area := func(k block) int64 { return k.size * (k.end - k.start) }
		least := int64(1) << 62
		for _, id := range got {
			k := blocks[id]
			if start[id] != k.start || end[id] != k.end {
				t.Fatalf("block %d lives from %d to %d, want %+v", id, start[id], end[id], k)
			}
			least = min(least, area(k))
		}
		for id, k := range blocks {
			if area(k) > least && !slices.Contains(got, traces.BlockID(id)) {
				t.Fatalf("%v of %+v: block %d is left out", got, blocks, id)
			}
		}
	})
}

// TestCurvesKeepPeaks: a trace with five times as many events as a curve has
// columns, in which one block of 900 MiB lives for a single event. In the data
// for the browser the peaks are those of the run, and so is the lowest value
// between two steps.
func TestCurvesKeepPeaks(t *testing.T) {
	const columns = 4096
	b := traces.NewBuilder(0)
	s := b.Stream(0)
	for i := range int64(10_000) {
		size := int64(mib)
		if i == 6543 {
			size = 900 * mib
		}
		b.Free(2*i+1, b.Alloc(2*i, size, s, 0))
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Events) < 4*columns {
		t.Fatalf("%d events", len(tr.Events))
	}
	var d struct {
		Policies []struct {
			Name    string
			Columns int
			Top     int64
			Curves  map[string]string
		}
	}
	if err := json.Unmarshal([]byte(dataOf(t, write(t, made(t, tr)))), &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Policies {
		spec := plotstest.Spec(t, "torch")
		if strings.Contains(p.Name, "expandable") {
			spec = plotstest.Spec(t, "torch:expandable_segments:True")
		}
		r, err := sim.Run(context.Background(), tr, sim.Config{Policy: spec})
		if err != nil {
			t.Fatal(err)
		}
		values := func(name string) (out []int64) {
			sum := int64(0)
			for _, x := range signedOf(unsigned(t, p.Curves[name])) {
				sum += x
				out = append(out, sum*unit)
			}
			if len(out) != p.Columns || p.Columns != columns {
				t.Fatalf("%s has %d values, %d columns", name, len(out), p.Columns)
			}
			return out
		}
		allocated, reserved := r.Stats.AllocatedBytes[policies.All].Peak, r.Stats.ReservedBytes[policies.All].Peak
		if got := slices.Max(values("allocatedMax")); got != allocated || got != 900*mib {
			t.Errorf("%s: allocated %d, want %d", p.Name, got, allocated)
		}
		if got := slices.Max(values("reservedMax")); got != reserved || p.Top != reserved {
			t.Errorf("%s: reserved %d, top %d, want %d", p.Name, got, p.Top, reserved)
		}
		if got := slices.Max(values("allocatedMin")); got != 0 {
			t.Errorf("%s: the lowest allocated bytes of a column are %d; every block is freed at once", p.Name, got)
		}
		if last := values("allocatedLast"); last[columns-1] != 0 {
			t.Errorf("%s: %d allocated at the end", p.Name, last[columns-1])
		}
	}
}

// TestRanges: those of most area, by their start, in units.
func TestRanges(t *testing.T) {
	spans := []plots.RangeSpan{{Offset: 0, Size: 512, X0: 5, X1: 6}, {Offset: 1024, Size: 2048, X0: 3, X1: 9}, {Offset: 4096, Size: 1024, X0: 1, X1: 9}}
	if got := unsigned(t, ranges(spans, 2).String()); !slices.Equal(got, []int64{1, 8, 8, 2, 2, 6, 2, 4}) {
		t.Errorf("%v", got)
	}
	if got := unsigned(t, ranges(spans, 3).String()); len(got) != 12 || got[8] != 2 || got[9] != 1 {
		t.Errorf("%v", got)
	}
	if spans[0].X0 != 5 {
		t.Error("the spans given are put into another order")
	}
}
