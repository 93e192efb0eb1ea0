package report

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"allocsim/internal/bytesize"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/planner/words"
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

// TestParts: a line may break inside a setting or a path.
func TestParts(t *testing.T) {
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

// TestVerdictPanel: the report says what the commands say, shows each setting
// once, and tells what the present one suffers from.
func TestVerdictPanel(t *testing.T) {
	now, best := planner.Candidate{Completed: true, ReservedPeak: 4 * gib}, planner.Candidate{Conf: "best", Completed: true, ReservedPeak: 3 * gib}
	answer := &planner.Tuning{Baseline: now, Best: best, Export: "export X", Verdict: planner.Improved, Depends: []string{"Keep Y."},
		Evidence: planner.Evidence{Doubt: "It differs."}, Reason: "It differs. Because.", Modelled: &planner.Modelled{ReservedPeak: 5 * gib}, Candidates: []planner.Candidate{best, {Conf: "other", Known: true}}}
	v, err := small(t, answer).verdict()
	if err != nil {
		t.Fatal(err)
	}
	if want := words.Advise(answer); !reflect.DeepEqual(v.Advice, want) || len(v.Before.Rows) != 2 || len(v.Wrong) != 1 || v.Before.Note != words.Modelled(answer) || v.Before.Note == "" {
		t.Errorf("%+v, want %+v", v, want)
	}
	var out strings.Builder
	if err := page.Execute(&out, &view{Verdict: v}); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, w := range []string{"One line saves 1 GiB of GPU memory (25 %).", "It differs.", "export X", "Keep Y.", "<p>Because.</p>", "now", "4 GiB", "best", "3 GiB", "reserves 5 GiB for it"} {
		i := strings.Index(out.String()[at+1:], w)
		if i < 0 {
			t.Fatalf("%q is missing or at another place", w)
		}
		at += 1 + i
	}
	answer.Best = now
	if v, err = small(t, answer).verdict(); err != nil || len(v.Before.Rows) != 1 {
		t.Errorf("the best is the present setting: %+v, %v", v.Before, err)
	}
}

// TestSettingsTable: the rows are those of the tune command, and what is left
// out is counted.
func TestSettingsTable(t *testing.T) {
	many := &planner.Tuning{Baseline: planner.Candidate{Conf: "0"}, Best: planner.Candidate{Conf: "1"}}
	for i := range 62 {
		many.Candidates = append(many.Candidates, planner.Candidate{Conf: fmt.Sprint(i)})
	}
	tab := candidates(many)
	rows, _ := words.Settings(many, 60)
	if len(tab.Rows) != 61 || len(rows) != 61 || !strings.HasPrefix(tab.Note, "1 setting left out") {
		t.Errorf("%d rows of 62, note %q", len(tab.Rows), tab.Note)
	}
	for i, r := range tab.Rows {
		if len(r) != len(tab.Heads) || words.Cell(r[0]) != rows[i].Name || words.Cell(r[len(r)-1]) != rows[i].Setting {
			t.Errorf("row %d is %+v, want %+v", i, r, rows[i])
		}
	}
	many.Candidates = many.Candidates[:61]
	if tab := candidates(many); len(tab.Rows) != 61 || tab.Note != "" {
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
			out = append(out, fmt.Sprint(r[0].Text, " ", r[2].Text, " ", r[3].Text, r[4].Text, " ", r[5].Text))
		}
		return append(out, f.Lead[:20])
	}
	want := []string{"6 no -2 GiB best", "9 fits 1 GiB best", "12 fits 1 GiB present", "Judged by the reserv"}
	if got := rows(now, best); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A run that failed has no peak that counts: 5 MiB live at once, which is
	// less than two decimals show.
	now.NumOOMs = 1
	want = []string{"6 fits 6.00 GiB present", "9 fits 9.00 GiB present", "12 fits 12.00 GiB present", "The program ran out "}
	if got := rows(now, best); !slices.Equal(got, want) {
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
