package plots

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"allocsim/internal/text"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// TestParetoOf: runs that were ended early have reached no peak, and those that
// failed none that counts; neither is a point of the figure.
func TestParetoOf(t *testing.T) {
	candidate := func(conf string, peak int64, stall int64) planner.Candidate {
		c := planner.Candidate{Conf: conf, Completed: true, ReservedPeak: peak}
		c.Driver.StallUS = stall
		return c
	}
	stopped, failed, fitted := candidate("stopped", 1, 1), candidate("failed", 2, 2), candidate("fitted", 7, 3)
	stopped.Stopped, failed.Completed, fitted.Approximate = true, false, true
	got := ParetoOf("job", &planner.Tuning{
		Baseline: candidate("now", 10, 5), Best: candidate("best", 8, 6), Bound: 6,
		Candidates: []planner.Candidate{candidate("best", 8, 6), stopped, failed, fitted, candidate("now", 10, 5)},
		Pareto:     []planner.Candidate{candidate("best", 8, 6), fitted},
	})
	point := func(name string, reserved int64, stall float64) Point { return Point{name, reserved, stall} }
	want := &Pareto{Source: "job", Now: point("now", 10, 5), Best: point("best", 8, 6), Bound: 6,
		All:   []Point{point("best", 8, 6), point("fitted (an approximation)", 7, 3), point("now", 10, 5)},
		Front: []Point{point("best", 8, 6), point("fitted (an approximation)", 7, 3)}}
	if d := gocmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestOutcomeOf takes each figure from its own place.
func TestOutcomeOf(t *testing.T) {
	var r sim.Result
	r.Stats.ReservedBytes[policies.All].Peak, r.Stats.AllocatedBytes[policies.All].Peak = 7, 6
	r.Stats.ReservedBytes[policies.All].Current, r.Stats.ActiveBytes[policies.All].Peak = 1, 2
	r.Stats.NumAllocRetries, r.Stats.NumOOMs, r.Driver.StallUS = 3, 4, 5
	if got, want := OutcomeOf("x", &r), (Outcome{Name: "x", Reserved: 7, Allocated: 6, StallUS: 5, Retries: 3, OOMs: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestFitCards: a job that needs 10 GiB now and 7 under another setting, on
// cards of 4, 8, 8.2, 12, 16 and 24 GiB (measured, without overhead): the row
// of the two cards of 8 is judged by the smaller.
func TestFitCards(t *testing.T) {
	card := func(name string, gibibytes float64) gpus.Card {
		n := int64(gibibytes * gib)
		return gpus.Card{Name: name, Total: n, Low: n, High: n, Confidence: gpus.Measured}
	}
	shared := card("shared", 10)
	shared.MemoryKind = "unified"
	cards := []gpus.Card{card("24", 24), card("8.2", 8.2), card("12", 12), shared, {Name: "unknown"}, card("8", 8), card("4", 4), card("16", 16)}
	text := func(rows []FitCard) (out []string) {
		for _, r := range rows {
			s := fmt.Sprintf("%s %.1f", r.Name, float64(r.Usable)/gib)
			for _, c := range r.Cells {
				s += fmt.Sprintf(", %s %.1f", c.Verdict, float64(c.Headroom)/gib)
			}
			out = append(out, s)
		}
		return out
	}
	needs := []int64{10 * gib, 7 * gib}
	for most, want := range map[int][]string{
		// One row in four, at least one, may be too small.
		3: {"4 4.0, no -6.0, no -3.0", "8, 8.2 8.0, no -2.0, fits 1.0", "12 12.0, fits 2.0, fits 5.0"},
		4: {"4 4.0, no -6.0, no -3.0", "8, 8.2 8.0, no -2.0, fits 1.0", "12 12.0, fits 2.0, fits 5.0", "16 16.0, fits 6.0, fits 9.0"},
		9: {"4 4.0, no -6.0, no -3.0", "8, 8.2 8.0, no -2.0, fits 1.0", "12 12.0, fits 2.0, fits 5.0", "16 16.0, fits 6.0, fits 9.0", "24 24.0, fits 14.0, fits 17.0"},
	} {
		if d := gocmp.Diff(want, text(FitCards(cards, needs, most))); d != "" {
			t.Errorf("%d rows: %s", most, d)
		}
	}
	if got := text(FitCards(cards, []int64{20 * gib}, 2)); !slices.Equal(got, []string{"16 16.0, no -4.0", "24 24.0, fits 4.0"}) {
		t.Errorf("for 20 GiB: %q", got)
	}
}

// textIn is the texts of a figure, a line each.
func textIn(t *testing.T, f Figure) string {
	t.Helper()
	var out []string
	for _, b := range textsOf(t, render(t, f, Options{Format: SVG, Width: 1000, Height: 500})) {
		out = append(out, b.text)
	}
	return strings.Join(out, "\n")
}

// TestFitSaysWhatIsMissing: headroom that is missing has a minus, and what a
// card gives is not rounded up, nor what a job needs down.
func TestFitSaysWhatIsMissing(t *testing.T) {
	f := &Fit{Source: "job", Settings: []string{"now"}, Needs: []int64{8*gib + 1},
		Cards: []FitCard{{"A", 10*gib - 1, []FitCell{{"fits", 2 * gib}}}, {"B", 4 * gib, []FitCell{{"no", -4 * gib}}}, {"C", 6 * gib, []FitCell{{"tight", 0}}}}}
	s := textIn(t, f)
	for _, w := range []string{"fits  +2 GiB", "no  –4 GiB", "tight  +0 B", "9.99 GiB", "needs 8.01 GiB"} {
		if !strings.Contains(s, w) {
			t.Errorf("the figure does not say %q but\n%s", w, s)
		}
	}
}

// TestCompareSays: the ratio to the bound, where nothing failed.
func TestCompareSays(t *testing.T) {
	f := &Compare{Source: "job", Bound: 4 * gib, Limit: 12 * gib, Outcomes: []Outcome{
		{Name: "a", Reserved: 6 * gib, Allocated: 4 * gib, StallUS: 999, Retries: 1},
		{Name: "b", Reserved: 5 * gib, Allocated: 4 * gib, StallUS: 1000, Retries: 1234},
		{Name: "c", Reserved: 3 * gib, Allocated: 2 * gib, StallUS: 2_500_000, OOMs: 2},
	}}
	s := textIn(t, f)
	for _, w := range []string{"6 GiB reserved, 1.50 × bound, stall 999 µs, 1 retry", "5 GiB reserved, 1.25 × bound, stall 1.0 ms, 1,234 retries", "3 GiB reserved, stall 2.50 s, 2 OOM", "limit 12 GiB"} {
		if !strings.Contains(s, w+"\n") && !strings.HasSuffix(s, w) {
			t.Errorf("the figure does not say %q but\n%s", w, s)
		}
	}
	f.Limit = 18*gib + 1 // three times the longest bar
	if s := textIn(t, f); !strings.Contains(s, "(outside the figure)") {
		t.Errorf("a limit far outside: \n%s", s)
	}
}

// TestTimelineSays: peaks, failures and a limit that would flatten the curves.
func TestTimelineSays(t *testing.T) {
	curve := func(v ...int64) (c Curve) {
		for _, x := range v {
			c = append(c, Column{x, x, x, x})
		}
		return c
	}
	m := &Memory{Scale: Scale{ByEvent, 4, 4}, Reserved: curve(0, 2*gib, 4*gib, 4*gib), Allocated: curve(0, gib, 3*gib, 2*gib), Active: curve(0, gib, 3*gib, 2*gib),
		NumOOMs: 1500, OOMs: []Mark{{1, 1}}}
	say := func(limit int64) string {
		return textIn(t, &Timeline{Source: "job", Bound: 3 * gib, Runs: []Run{{Name: "now", Memory: m, Limit: limit}}})
	}
	s := say(8 * gib)
	for _, w := range []string{"reserved (peak 4 GiB)", "allocated (peak 3 GiB)", "out of memory (1,500)", "limit 8 GiB", "live at once, 3 GiB"} {
		if !strings.Contains(s, w) {
			t.Errorf("the figure does not say %q but\n%s", w, s)
		}
	}
	if strings.Contains(s, "active") || strings.Contains(s, "retry") || strings.Contains(s, "above the figure") {
		t.Errorf("the figure explains what it does not show:\n%s", s)
	}
	if s := say(12*gib + 1); !strings.Contains(s, "(above the figure)") {
		t.Errorf("a limit far above:\n%s", s)
	}
	m.Active = curve(0, gib, 3*gib, 3*gib)
	if s := say(0); !strings.Contains(s, "active (with pending frees)") {
		t.Errorf("pending frees are not shown:\n%s", s)
	}
}

// TestRecorderOfSmallWorlds looks at every column of small worlds from scratch:
// its first value is that of before, its extremes all that were reached in it.
func TestRecorderOfSmallWorlds(t *testing.T) {
	actions := []policies.Action{policies.ActionAlloc, policies.ActionFreeRequested, policies.ActionFreeCompleted, policies.ActionSegmentAlloc,
		policies.ActionSegmentMap, policies.ActionSegmentFree, policies.ActionSegmentUnmap, policies.ActionOOM, policies.ActionRetry}
	sign := map[string]map[policies.Action]int64{
		"reserved":  {policies.ActionSegmentAlloc: 1, policies.ActionSegmentMap: 1, policies.ActionSegmentFree: -1, policies.ActionSegmentUnmap: -1},
		"allocated": {policies.ActionAlloc: 1, policies.ActionFreeRequested: -1},
		"active":    {policies.ActionAlloc: 1, policies.ActionFreeCompleted: -1},
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "events")
		columns := rapid.IntRange(1, 15).Draw(t, "columns")
		axis := rapid.SampledFrom([]Axis{ByTime, ByEvent}).Draw(t, "axis")
		tr := &traces.Trace{Events: make([]traces.Event, n)}
		for i := range tr.Events {
			if i > 0 {
				tr.Events[i].TimeUS = tr.Events[i-1].TimeUS + rapid.Int64Range(0, 40).Draw(t, "later")
			}
		}
		type seen struct {
			event int
			a     policies.Action
			size  int64
		}
		var log []seen
		r := NewRecorder(tr, axis, columns)
		for i := range tr.Events {
			for range rapid.IntRange(0, 3).Draw(t, "actions") {
				s := seen{i, rapid.SampledFrom(actions).Draw(t, "action"), rapid.Int64Range(1, 9).Draw(t, "size")}
				log = append(log, s)
				r.Observe(sim.At{Event: i, TimeUS: tr.Events[i].TimeUS}, &policies.Event{Action: s.a, Size: s.size, Requested: s.size})
			}
		}
		m := r.Memory()
		if want := NewScale(tr, axis, columns); m.Scale != want || want.Columns != columns {
			t.Fatalf("scale %+v, want %+v", m.Scale, want)
		}
		// The column of an event: how far it is along the axis.
		place := func(event int) int {
			if axis == ByTime && tr.Duration() > 0 {
				return min(int(tr.Events[event].TimeUS*int64(columns)/tr.Duration()), columns-1)
			}
			return event * columns / n
		}
		for name, c := range map[string]Curve{"reserved": m.Reserved, "allocated": m.Allocated, "active": m.Active} {
			if len(c) != columns {
				t.Fatalf("%d columns, want %d", len(c), columns)
			}
			value := int64(0)
			for k := range columns {
				want := Column{value, value, value, value}
				for _, s := range log {
					if by, moves := sign[name][s.a]; moves && place(s.event) == k {
						value += by * s.size
						want.Min, want.Max, want.Last = min(want.Min, value), max(want.Max, value), value
					}
				}
				if c[k] != want {
					t.Fatalf("%s, column %d of %d is %+v, want %+v after %+v of %v", name, k, columns, c[k], want, log, tr.Events)
				}
			}
		}
		var ooms, retries []Mark
		for _, s := range log {
			x := int64(s.event)
			if m.Scale.Axis == ByTime {
				x = tr.Events[s.event].TimeUS
			}
			switch s.a {
			case policies.ActionOOM:
				ooms = append(ooms, Mark{x, s.size})
			case policies.ActionRetry:
				retries = append(retries, Mark{x, s.size})
			}
		}
		if !slices.Equal(m.OOMs, ooms) || !slices.Equal(m.Retries, retries) || m.NumOOMs != len(ooms) || m.NumRetries != len(retries) {
			t.Fatalf("marks %v and %v, want %v and %v", m.OOMs, m.Retries, ooms, retries)
		}
	})
}

// TestSizesOfSmallWorlds: every request lies in the one bin that holds its
// size, two of which make an octave.
func TestSizesOfSmallWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asked := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) int64 {
			k := rapid.IntRange(0, 40).Draw(t, "octave")
			return max(int64(1)<<k+rapid.Int64Range(-2, 2).Draw(t, "off"), 1) + rapid.SampledFrom([]int64{0, int64(1) << k * 2 / 5, int64(1) << k * 3 / 7}).Draw(t, "half")
		}), 1, 12).Draw(t, "sizes")
		r := NewSizeRecorder()
		for _, n := range asked {
			r.Observe(sim.At{}, &policies.Event{Action: policies.ActionAlloc, Requested: n, Size: 2 * n})
			r.Observe(sim.At{}, &policies.Event{Action: policies.ActionFreeCompleted, Requested: n, Size: 2 * n})
		}
		bins := r.Bins()
		for i, b := range bins {
			count, bytes := int64(0), int64(0)
			for _, n := range asked {
				if b.From <= n && n < b.To {
					count++
					bytes += n
				}
			}
			if b.Requests != count || b.Requested != bytes || b.Charged != 2*bytes {
				t.Fatalf("%+v has %d requests of %d bytes of %v", b, count, bytes, asked)
			}
			if i > 0 && bins[i-1].To != b.From || i > 1 && b.From > 2*bins[i-2].From+1 {
				t.Fatalf("bins %+v", bins)
			}
		}
		var all int64
		for _, b := range bins {
			all += b.Requests
		}
		if all != int64(len(asked)) || bins[0].Requests == 0 || bins[len(bins)-1].Requests == 0 {
			t.Fatalf("%d of %d requests in %+v", all, len(asked), bins)
		}
	})
}

// TestFragmentsByHand: a segment of 20 MiB in which 2 MiB live from the third
// event to the fifth, and one of 10 MiB that is free all the time.
//
//	event  reserved  held  used  stranded  free pieces  external
//	0      20        0     0     0         20           0
//	1      30        0     0     0         20, 10       1/3
//	2      30        20    2     18        18, 10       10/28
//	3      30        20    2     18        8, 10, 10    18/28
//	5      30        0     0     0         20, 10       1/3
func TestFragmentsByHand(t *testing.T) {
	tr := &traces.Trace{Events: make([]traces.Event, 6), NumBlocks: 2}
	r := NewSpaceRecorder(tr, nil, ByEvent, 6, true)
	const a, b = 0x100000000, 0x200000000
	see := func(at int, action policies.Action, addr uint64, size int64) {
		r.Observe(sim.At{Event: at, ID: 0}, &policies.Event{Action: action, Addr: addr, Size: size * mib, Requested: size * mib})
	}
	see(0, policies.ActionSegmentAlloc, a, 20)
	see(1, policies.ActionSegmentAlloc, b, 10)
	see(2, policies.ActionAlloc, a, 2)
	see(3, policies.ActionAlloc, a+10*mib, 2)
	see(3, policies.ActionFreeRequested, a, 2)
	see(3, policies.ActionFreeCompleted, a, 2)
	see(5, policies.ActionFreeCompleted, a+10*mib, 2)
	f := r.Fragments()
	type row struct{ reserved, held, used, stranded, external int64 }
	part := func(n, of int64) int64 { return 1_000_000 * n / of }
	want := []row{
		{20, 0, 0, 0, 0}, {30, 0, 0, 0, part(1, 3)}, {30, 20, 2, 18, part(10, 28)}, {30, 20, 2, 18, part(18, 28)},
		{30, 20, 2, 18, part(18, 28)}, {30, 0, 0, 0, part(1, 3)},
	}
	for i, w := range want {
		got := row{f.Reserved[i].Last / mib, f.Held[i].Last / mib, f.Used[i].Last / mib, f.Stranded[i].Last / mib, f.External[i].Last}
		if got.external >= w.external-1 && got.external <= w.external+1 {
			got.external = w.external
		}
		if got != w {
			t.Errorf("after event %d: %+v, want %+v", i, got, w)
		}
	}
	l := r.Layout()
	// The addresses between the segments are left out, and what of a segment
	// could be given back is cached.
	wantCached := []RangeSpan{{0, 20 * mib, 0, 2}, {0, 20 * mib, 5, 6}, {20 * mib, 10 * mib, 1, 6}}
	sortSpans := func(s []RangeSpan) []RangeSpan {
		slices.SortFunc(s, func(x, y RangeSpan) int { return int(x.Offset-y.Offset)*10 + int(x.X0-y.X0) })
		return s
	}
	if l.Height != 30*mib || !slices.Equal(sortSpans(l.Cached), wantCached) {
		t.Errorf("height %d, cached %+v, want %+v", l.Height/mib, l.Cached, wantCached)
	}
	if len(l.Blocks) != 2 || l.Blocks[0].X0 != 2 || l.Blocks[0].X1 != 3 || l.Blocks[1].X1 != 5 || l.Blocks[1].Offset != 10*mib {
		t.Errorf("blocks %+v", l.Blocks)
	}
}

// TestPagesOfExpandableSegments: of three mapped pages of 20 MiB the middle one
// holds a block; the others can be given back.
func TestPagesOfExpandableSegments(t *testing.T) {
	tr := &traces.Trace{Events: make([]traces.Event, 3)}
	r := NewSpaceRecorder(tr, nil, ByEvent, 3, false)
	const a = 0x100000000
	for k := range uint64(3) {
		r.Observe(sim.At{Event: 0}, &policies.Event{Action: policies.ActionSegmentMap, Addr: a + k*20*mib, Size: 20 * mib})
	}
	r.Observe(sim.At{Event: 1}, &policies.Event{Action: policies.ActionAlloc, Addr: a + 25*mib, Size: mib})
	f := r.Fragments()
	if got := [3]int64{f.Reserved[1].Last / mib, f.Held[1].Last / mib, f.Stranded[1].Last / mib}; got != [3]int64{60, 20, 19} {
		t.Errorf("reserved, held, stranded: %v", got)
	}
}

// TestLives: a block's class is its share of the axis.
func TestLives(t *testing.T) {
	l := &Layout{Scale: Scale{Span: 1000}}
	for life, want := range map[int64]int{0: 0, 9: 0, 10: 1, 99: 1, 100: 2, 499: 2, 500: 3, 1000: 3} {
		if got := l.life(&BlockSpan{X0: 0, X1: life}); got != want {
			t.Errorf("%d of 1000: class %d, want %d", life, got, want)
		}
	}
}

// TestNumberedSettings: as many as have room, both ends of the front first.
func TestNumberedSettings(t *testing.T) {
	front := make([]Point, 9)
	for n, want := range map[int][]int{1: {0}, 2: {0, 8}, 3: {0, 4, 8}, 9: {0, 1, 2, 3, 4, 5, 6, 7, 8}} {
		if got := pickFront(front, n); !slices.Equal(got, want) {
			t.Errorf("%d of 9: %v, want %v", n, got, want)
		}
	}
}

// TestStepsGoThroughExtremes: a column in which a curve rises and falls is a
// line through both of its extremes.
func TestStepsGoThroughExtremes(t *testing.T) {
	f := &Timeline{Source: "job", Runs: []Run{{Name: "now", Memory: &Memory{Scale: Scale{ByEvent, 40, 40},
		Reserved: spikes(40, 17), Allocated: spikes(40, 23), Active: spikes(40, 23)}}}}
	svg := render(t, f, Options{Format: SVG})
	low, high := polylineRange(t, svg, "#D55E00")
	if high-low < 100 {
		t.Errorf("the curve of reserved bytes is %.0f points high", high-low)
	}
	if !bytes.Contains(svg, []byte("GPU memory over time")) {
		t.Error("no title")
	}
}

// spikes is a curve of 1 GiB that touches 5 GiB within one column.
func spikes(n, at int) Curve {
	c := make(Curve, n)
	for i := range c {
		c[i] = Column{gib, gib, gib, gib}
	}
	c[at].Max = 5 * gib
	return c
}

// TestStrandedCountsThreefold: a tenth of a pixel of stranded space has three
// tenths of its colour, and more than a pixel all of it.
func TestStrandedCountsThreefold(t *testing.T) {
	l := &Layout{Scale: Scale{Span: 1000}, Height: 100_000, Segments: []RangeSpan{{0, 100_000, 0, 1000}},
		Blocks: []BlockSpan{{Offset: 47_000, Size: 3_000, X1: 1000}, {Offset: 50_100, Size: 2_900, X1: 1000}}} // too low for edges
	img := l.raster(100, 100, light)
	if got := img.RGBAAt(50, 10); got != light.stranded {
		t.Errorf("stranded space is %v, want %v", got, light.stranded)
	}
	mixed := blend(light.stranded, light.life[3], 0.3)
	got := img.RGBAAt(50, 49)
	for _, d := range []int{int(got.R) - int(mixed.R), int(got.G) - int(mixed.G), int(got.B) - int(mixed.B)} {
		if d < -3 || d > 3 {
			t.Fatalf("a pixel with a tenth of stranded space is %v, want about %v", got, mixed)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 123456: "123,456", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := text.Count(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
