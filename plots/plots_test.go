package plots

import (
	"bytes"
	"context"
	"encoding/xml"
	"image"
	"image/png"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg"
	"pgregory.net/rapid"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/plots/internal/plotstest"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces"
)

var ctx = context.Background()

// memoryOf runs a trace and records its memory.
func memoryOf(t testing.TB, tr *traces.Trace, cfg sim.Config, axis Axis) (*Memory, *sim.Result) {
	t.Helper()
	r := NewRecorder(tr, axis, Columns)
	res, err := sim.Run(ctx, tr, cfg, r)
	if err != nil {
		t.Fatal(err)
	}
	return r.Memory(), res
}

// figures makes one figure of each kind of a recording.
func figures(t testing.TB, name string) map[string]Figure {
	t.Helper()
	rec := plotstest.Recording(t, "..", name)
	tr := rec.Trace
	out := make(map[string]Figure)
	line, frag, addr := &Timeline{Source: name, Bound: sim.Bound(tr)}, &Fragmentation{Source: name}, &Map{Source: name}
	cmp := &Compare{Source: name, Bound: sim.Bound(tr)}
	var needs []int64
	for i, p := range []string{"torch", "torch:expandable_segments:True"} {
		cfg := rec.Config()
		cfg.Policy = plotstest.Spec(t, p)
		m, res := memoryOf(t, tr, cfg, ByTime)
		s := NewSpaceRecorder(tr, cfg.Policy, ByTime, Columns, true)
		z := NewSizeRecorder()
		if _, err := sim.Run(ctx, tr, cfg, s, z); err != nil {
			t.Fatal(err)
		}
		line.Runs = append(line.Runs, Run{Name: p, Memory: m, Limit: cfg.Limit})
		frag.Runs = append(frag.Runs, FragmentationRun{p, s.Fragments()})
		addr.Runs = append(addr.Runs, MapRun{p, s.Layout()})
		o := OutcomeOf(p, res)
		o.Low, o.High = o.Reserved-o.Reserved/9, o.Reserved+o.Reserved/8
		cmp.Outcomes = append(cmp.Outcomes, o)
		needs = append(needs, o.Reserved)
		if i == 0 {
			marks := SizeMarks(plotstest.Spec(t, "torch:max_split_size_mb:128,roundup_power2_divisions:[256:2,512:4,>:8]"))
			out["sizes"] = &Sizes{Source: name, Policy: p, Bins: z.Bins(), Marks: marks}
		}
	}
	tuning, err := planner.Tune(ctx, []planner.Case{{Trace: tr, Policy: rec.Policy, Machine: rec.Machine(), Recovered: rec}}, planner.TuneOptions{Budget: 60, Finalists: -1})
	if err != nil {
		t.Fatal(err)
	}
	out["timeline"], out["fragmentation"], out["map"], out["compare"] = line, frag, addr, cmp
	out["one"] = &Timeline{Source: name, Runs: line.Runs[:1]}
	out["pareto"] = ParetoOf(name, tuning)
	out["fit"] = &Fit{Source: name, Settings: []string{"PyTorch's defaults", "expandable_segments:True,garbage_collection_threshold:0.8"}, Needs: needs, Cards: FitCards(gpus.All(), needs, 8)}
	return out
}

func render(t testing.TB, f Figure, o Options) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Render(&b, f, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSpikeStaysVisible: one event among 350,000 is seen in a figure of 500
// columns, in PNG and SVG alike.
func TestSpikeStaysVisible(t *testing.T) {
	const n, spike = 350_000, 900 << 20
	b := traces.NewBuilder(n)
	for i := range n / 2 {
		size := int64(1 << 20)
		if i == 123_456 {
			size = spike
		}
		id := b.Alloc(int64(4*i), size, 0, 0)
		b.Free(int64(4*i+1), id)
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, axis := range []Axis{ByTime, ByEvent} {
		m, res := memoryOf(t, tr, sim.Config{Policy: plotstest.Spec(t, "torch")}, axis)
		if got, want := m.Allocated.Max(), res.Stats.AllocatedBytes[policies.All].Peak; got != want || want != spike {
			t.Fatalf("the recorder's peak is %d, the run's %d", got, want)
		}
		if got := m.Allocated.Fold(500).Max(); got != spike {
			t.Fatalf("500 columns keep %d of the spike", got)
		}
		fig := &Timeline{Source: "spike", Runs: []Run{{Name: "x", Memory: m}}}
		// Without the spike's own column, nothing of `allocated` is above 10 %.
		img, err := png.Decode(bytes.NewReader(render(t, fig, Options{Width: 4 * vg.Inch, Height: 3 * vg.Inch, DPI: 150})))
		if err != nil {
			t.Fatal(err)
		}
		if x, n := columnsOf(img, light.allocated.R, light.allocated.G, light.allocated.B, img.Bounds().Dy()/2); n == 0 || n > 4 {
			t.Errorf("the spike covers %d pixel columns (near %d) at half the figure's height; want 1 to 4", n, x)
		}
		low, high := polylineRange(t, render(t, fig, Options{Format: SVG}), "#0072B2")
		if high-low < 100 {
			t.Errorf("the curve in the SVG is %.0f points high", high-low)
		}
	}
}

// columnsOf counts pixels near a colour in a row.
func columnsOf(img image.Image, r, g, b uint8, y int) (at, n int) {
	for x := range img.Bounds().Dx() {
		pr, pg, pb, _ := img.At(x, y).RGBA()
		near := func(a uint32, b uint8) bool { return math.Abs(float64(a>>8)-float64(b)) < 70 }
		// The legend's sample is far above half the height.
		if near(pr, r) && near(pg, g) && near(pb, b) {
			at, n = x, n+1
		}
	}
	return at, n
}

// polylineRange is the range of y of the longest stroke of a colour.
func polylineRange(t *testing.T, svg []byte, stroke string) (low, high float64) {
	t.Helper()
	longest := ""
	for _, p := range strings.Split(string(svg), "<path d=\"")[1:] {
		d, rest, _ := strings.Cut(p, "\"")
		style, _, _ := strings.Cut(rest, "/>")
		if strings.Contains(style, "stroke:"+stroke) && len(d) > len(longest) {
			longest = d
		}
	}
	low, high = math.Inf(1), math.Inf(-1)
	for _, pt := range strings.FieldsFunc(longest, func(r rune) bool { return r == 'M' || r == 'L' || r == 'Z' }) {
		_, ys, _ := strings.Cut(pt, ",")
		y, err := strconv.ParseFloat(ys, 64)
		if err != nil {
			t.Fatalf("%q: %v", pt, err)
		}
		low, high = min(low, y), max(high, y)
	}
	return low, high
}

// TestPeaksOfRecordings: the curves' peaks are those of the statistics.
func TestPeaksOfRecordings(t *testing.T) {
	for _, name := range []string{"gnn__default", "gnn__exp", "fuzz0051", "oom_retry__f12", "streams_prefetch__default"} {
		rec := plotstest.Recording(t, "..", name)
		m, res := memoryOf(t, rec.Trace, rec.Config(), ByTime)
		s := &res.Stats
		for _, c := range []struct {
			name string
			c    Curve
			want int64
		}{
			{"reserved", m.Reserved, s.ReservedBytes[policies.All].Peak},
			{"allocated", m.Allocated, s.AllocatedBytes[policies.All].Peak},
			{"active", m.Active, s.ActiveBytes[policies.All].Peak},
		} {
			for _, k := range []int{len(c.c), 300, 7, 1} {
				if got := c.c.Fold(k).Max(); got != c.want {
					t.Errorf("%s: peak %s in %d columns is %d, want %d", name, c.name, k, got, c.want)
				}
			}
		}
		if int64(m.NumOOMs) != s.NumOOMs || int64(m.NumRetries) != s.NumAllocRetries {
			t.Errorf("%s: %d OOMs and %d retries marked; %d and %d happened", name, m.NumOOMs, m.NumRetries, s.NumOOMs, s.NumAllocRetries)
		}
	}
}

// TestFold: folding keeps ends and extremes, whatever the number of columns.
func TestFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 200).Draw(t, "values")
		tr := newTracer(rapid.IntRange(1, 50).Draw(t, "columns"))
		for i, v := range values {
			tr.move(i * len(tr.curve) / len(values))
			tr.set(v)
		}
		tr.move(len(tr.curve) - 1)
		c := tr.curve.Fold(rapid.IntRange(1, 60).Draw(t, "fold"))
		if c.Max() != slices.Max(values) {
			t.Fatalf("peak %d, want %d", c.Max(), slices.Max(values))
		}
		if c[len(c)-1].Last != values[len(values)-1] {
			t.Fatalf("last %d, want %d", c[len(c)-1].Last, values[len(values)-1])
		}
		for i, col := range c {
			if col.Min > col.First || col.Max < col.First || col.Min > col.Last || col.Max < col.Last {
				t.Fatalf("column %d is torn: %+v", i, col)
			}
		}
	})
}

// TestSameInputSameBytes: figures depend on nothing but their data.
func TestSameInputSameBytes(t *testing.T) {
	figs, again := figures(t, "fuzz0021"), figures(t, "fuzz0021")
	for kind, f := range figs {
		for _, o := range []Options{{Format: PNG, DPI: 60}, {Format: SVG}, {Format: PDF}, {Format: SVG, Dark: true, Footer: "x"}} {
			if !bytes.Equal(render(t, f, o), render(t, again[kind], o)) {
				t.Errorf("%s as %s differs from one time to the next", kind, o.Format)
			}
		}
	}
}

// TestSVG: every figure is well-formed, names its axes with units, its input
// and how it was made; no text overlaps another or leaves the figure, at three
// sizes.
func TestSVG(t *testing.T) {
	const footer = "allocsim plot gnn.pickle --kind x | input sha256 0123456789abcdef | allocsim v1"
	want := map[string][]string{
		"timeline":      {"Memory (GiB)", "Time (ms)", "reserved", "allocated", "bound"},
		"one":           {"Memory (GiB)", "Time (ms)", "reserved (peak 12.87 GiB)"},
		"fragmentation": {"Memory (GiB)", "Time (ms)", "stranded", "cached"},
		"map":           {"Address, compact (GiB)", "Time (ms)", "stranded"},
		"sizes":         {"Requests", "Sum (GiB)", "Size of the request", "lost to rounding"},
		"compare":       {"Memory (GiB)", "12.87 GiB reserved", "peak allocated"},
		"pareto":        {"Peak reserved (GiB)", "now", "recommended"},
		"fit":           {"usable", "fits", "GiB"},
	}
	figs := figures(t, "gnn__default")
	for kind, f := range figs {
		for _, size := range [][2]vg.Length{{3.4, 2.8}, {7, 4.2}, {14, 9}} {
			svg := render(t, f, Options{Format: SVG, Width: size[0] * vg.Inch, Height: size[1] * vg.Inch, Footer: footer})
			texts := textsOf(t, svg)
			var all []string
			for _, x := range texts {
				all = append(all, x.text)
			}
			joined := strings.Join(all, "\n")
			for _, w := range append(want[kind], "gnn__default") {
				if !strings.Contains(joined, w) {
					t.Errorf("%s of %v in: no text %q", kind, size, w)
				}
			}
			if !strings.Contains(strings.ReplaceAll(joined, "\n", " "), "0123456789abcdef") {
				t.Errorf("%s of %v in: the footer is missing", kind, size)
			}
			if !bytes.Contains(svg, []byte(`role="img" aria-label="`)) {
				t.Errorf("%s has no name for screen readers", kind)
			}
			w, h := float64(size[0])*72, float64(size[1])*72
			for i, a := range texts {
				if a.x0 < -0.5 || a.x1 > w+0.5 || a.y0 < -0.5 || a.y1 > h+0.5 {
					t.Errorf("%s of %v in: %q leaves the figure: %.1f…%.1f × %.1f…%.1f", kind, size, a.text, a.x0, a.x1, a.y0, a.y1)
				}
				for _, b := range texts[:i] {
					if a.x0 < b.x1-0.3 && b.x0 < a.x1-0.3 && a.y0 < b.y1-0.3 && b.y0 < a.y1-0.3 {
						t.Errorf("%s of %v in: %q and %q overlap", kind, size, a.text, b.text)
					}
				}
			}
		}
	}
}

// box is a text and the rectangle of its letters.
type box struct {
	text           string
	x0, x1, y0, y1 float64
}

// textsOf reads the texts of an SVG with their places; it fails if the SVG is
// not well-formed.
func textsOf(t *testing.T, svg []byte) []box {
	t.Helper()
	type matrix [6]float64
	mul := func(a, b matrix) matrix {
		return matrix{
			a[0]*b[0] + a[2]*b[1], a[1]*b[0] + a[3]*b[1], a[0]*b[2] + a[2]*b[3], a[1]*b[2] + a[3]*b[3],
			a[0]*b[4] + a[2]*b[5] + a[4], a[1]*b[4] + a[3]*b[5] + a[5],
		}
	}
	parse := func(s string) matrix {
		m := matrix{1, 0, 0, 1, 0, 0}
		for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
			name, rest, _ := strings.Cut(s, "(")
			args, tail, _ := strings.Cut(rest, ")")
			s = tail
			var v []float64
			for _, a := range strings.FieldsFunc(args, func(r rune) bool { return r == ',' || r == ' ' }) {
				x, err := strconv.ParseFloat(a, 64)
				if err != nil {
					t.Fatalf("transform %q: %v", name, err)
				}
				v = append(v, x)
			}
			switch strings.TrimSpace(name) {
			case "scale":
				m = mul(m, matrix{v[0], 0, 0, v[len(v)-1], 0, 0})
			case "translate":
				m = mul(m, matrix{1, 0, 0, 1, v[0], v[1]})
			case "rotate":
				sin, cos := math.Sincos(v[0] * math.Pi / 180)
				m = mul(m, matrix{cos, sin, -sin, cos, 0, 0})
			default:
				t.Fatalf("transform %q", name)
			}
		}
		return m
	}
	stack := []matrix{{1, 0, 0, 1, 0, 0}}
	var out []box
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatalf("not well-formed: %v\n%.300s", err, svg)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			attr := make(map[string]string)
			for _, a := range e.Attr {
				attr[a.Name.Local] = a.Value
			}
			m := mul(stack[len(stack)-1], parse(attr["transform"]))
			stack = append(stack, m)
			if e.Name.Local != "text" {
				continue
			}
			var text string
			if tok, err = d.Token(); err == nil {
				if c, ok := tok.(xml.CharData); ok {
					text = string(c)
				}
			}
			num := func(s string) float64 {
				x, err := strconv.ParseFloat(s, 64)
				if err != nil {
					t.Fatalf("text %q: %v", text, err)
				}
				return x
			}
			if strings.TrimSpace(text) == "" {
				continue
			}
			_, size, _ := strings.Cut(attr["style"], "font-size:")
			size, _, _ = strings.Cut(size, "px")
			x, y, w, h := num(attr["x"]), num(attr["y"]), num(attr["textLength"]), num(size)
			b := box{text: text, x0: math.Inf(1), x1: math.Inf(-1), y0: math.Inf(1), y1: math.Inf(-1)}
			// From a little below the base line to the height of capitals.
			for _, c := range [][2]float64{{x, y + 0.15*h}, {x + w, y + 0.15*h}, {x, y - 0.7*h}, {x + w, y - 0.7*h}} {
				px, py := m[0]*c[0]+m[2]*c[1]+m[4], m[1]*c[0]+m[3]*c[1]+m[5]
				b.x0, b.x1, b.y0, b.y1 = min(b.x0, px), max(b.x1, px), min(b.y0, py), max(b.y1, py)
			}
			out = append(out, b)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		}
	}
}

// TestHostileNames: what comes from a file name or a setting ends up as text.
func TestHostileNames(t *testing.T) {
	rec := plotstest.Recording(t, "..", "gnn__tight")
	m, _ := memoryOf(t, rec.Trace, rec.Config(), ByTime)
	evil := "</text><script>alert(1)</script>\x00\x1b[31m\xff \u202e ∀x&\"'" + strings.Repeat("W", 400)
	f := &Timeline{Source: evil, Runs: []Run{{Name: evil, Memory: m}, {Name: evil, Memory: m}}}
	for _, format := range []Format{SVG, PNG, PDF} {
		out := render(t, f, Options{Format: format, Title: evil, Footer: evil, DPI: 50})
		if format == SVG {
			textsOf(t, out)
			if bytes.Contains(out, []byte("<script")) {
				t.Error("a name became markup")
			}
		}
	}
}

// TestStrandedStaysVisible: a sliver of stranded space, a hundredth of a pixel,
// still tints its pixel.
func TestStrandedStaysVisible(t *testing.T) {
	l := &Layout{Scale: Scale{Span: 1000}, Height: 100_000, Segments: []RangeSpan{{0, 100_000, 0, 1000}},
		Blocks: []BlockSpan{{Offset: 0, Size: 50_000, X1: 1000}, {Offset: 50_010, Size: 49_990, X1: 1000}}}
	img := l.raster(100, 100, light)
	plain, tinted := img.RGBAAt(50, 20), img.RGBAAt(50, 49)
	if plain == tinted {
		t.Errorf("the pixel with stranded space, %v, looks like any other", tinted)
	}
	if want := light.life[3]; plain != want {
		t.Errorf("a pixel inside a block is %v, want %v", plain, want)
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		tick ticks
		top  float64
		want string
	}{
		{byteTicks(13.2*(1<<30), 7), 13.2 * (1 << 30), "GiB 0 2 4 6 8 10 12"},
		{byteTicks(900, 4), 900, "B 0 256 512 768"},
		{byteTicks(1.5*(1<<30), 5), 1.5 * (1 << 30), "MiB 0 512 1024 1536"},
		{byteTicks(3*(1<<40), 3), 3 * (1 << 40), "TiB 0 1 2 3"},
		{byteTicks(50*(1<<40), 5), 50 * (1 << 40), "TiB 0 10 20 30 40 50"},
		{byteTicks(1, 5), 1, "B 0 1"},
		{timeTicks(638_000, 5), 638_000, "ms 0 200 400 600"},
		{timeTicks(7_200_000_000, 4), 7_200_000_000, "s 0 2000 4000 6000"},
		{timeTicks(7, 4), 7, "µs 0 2 4 6"},
	} {
		got := c.tick.unit.name
		for _, x := range c.tick.Ticks(0, c.top) {
			got += " " + x.Label
		}
		if got != c.want {
			t.Errorf("ticks up to %g: %s, want %s", c.top, got, c.want)
		}
	}
}

func TestImpossibleFigures(t *testing.T) {
	f := &Compare{Source: "x", Bound: 1, Outcomes: []Outcome{{Name: "a", Reserved: 1}}}
	for _, o := range []Options{
		{Width: 1}, {Height: 1e9}, {DPI: 5}, {DPI: 1 << 20}, {Width: 150 * vg.Inch, Height: 150 * vg.Inch, DPI: 600}, {Format: "gif"},
		{Width: vg.Length(math.NaN())},
	} {
		if err := Render(io.Discard, f, o); err == nil {
			t.Errorf("%+v was drawn", o)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %q is not one line", o, err)
		}
	}
	for _, f := range []Figure{&Timeline{}, &Map{}, &Fragmentation{}, &Sizes{}, &Compare{}, &Pareto{}, &Fit{}} {
		if err := Render(io.Discard, f, Options{}); err == nil {
			t.Errorf("%T without data was drawn", f)
		}
	}
	if _, err := FormatOf("figure.gif"); err == nil {
		t.Error("FormatOf takes .gif")
	}
}

// TestTooSmall: a figure too small for its parts is refused in one line with a
// size that is enough.
func TestTooSmall(t *testing.T) {
	footer := strings.Repeat("allocsim plot gnn.pickle --kind x ", 12)
	figs := figures(t, "gnn__default")
	many := *figs["fragmentation"].(*Fragmentation)
	for len(many.Runs) < 20 {
		many.Runs = append(many.Runs, many.Runs[0])
	}
	figs["twenty"] = &many
	read := regexp.MustCompile(`^[^\n]*? (?:--width ([0-9.]+)in )?(?:--height ([0-9.]+)in )?or more$`)
	for kind, f := range figs {
		o := Options{Format: SVG, Width: minWidth, Height: minHeight, Footer: footer}
		if kind == "twenty" {
			o.Width, o.Height = DefaultWidth, DefaultHeight
		}
		err := Render(io.Discard, f, o)
		if err == nil {
			t.Errorf("%s of %v × %v points was drawn", kind, o.Width, o.Height)
			continue
		}
		m := read.FindStringSubmatch(err.Error())
		if m == nil || m[1]+m[2] == "" {
			t.Errorf("%s: %q does not say what is enough", kind, err)
			continue
		}
		for i, to := range []*vg.Length{&o.Width, &o.Height} {
			if m[i+1] != "" {
				x, _ := strconv.ParseFloat(m[i+1], 64)
				*to = vg.Length(x) * vg.Inch
			}
		}
		if again := Render(io.Discard, f, o); again != nil {
			t.Errorf("%s: %q, and then: %v", kind, err, again)
		}
	}
}

// TestTraceWithoutClock is drawn by event.
func TestTraceWithoutClock(t *testing.T) {
	b := traces.NewBuilder(4)
	for range 40 {
		b.Free(0, b.Alloc(0, 1<<21, 0, 0))
	}
	tr, _, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	m, _ := memoryOf(t, tr, sim.Config{Policy: plotstest.Spec(t, "torch")}, ByTime)
	var all []string
	for _, x := range textsOf(t, render(t, &Timeline{Source: "x", Runs: []Run{{Name: "y", Memory: m}}}, Options{Format: SVG})) {
		all = append(all, x.text)
	}
	if !slices.Contains(all, "Event") {
		t.Errorf("no axis of events in %q", all)
	}
}

// BenchmarkTimelinePNG is the work beyond loading of
// `allocsim plot --kind timeline`: the run and the figure.
func BenchmarkTimelinePNG(b *testing.B) { benchmark(b, PNG) }

// BenchmarkTimelineSVG is the same for an SVG.
func BenchmarkTimelineSVG(b *testing.B) { benchmark(b, SVG) }

func benchmark(b *testing.B, format Format) {
	tr := plotstest.Training(b, 350_000)
	cfg := sim.Config{Policy: plotstest.Spec(b, "torch")}
	for b.Loop() {
		m, _ := memoryOf(b, tr, cfg, ByTime)
		render(b, &Timeline{Source: "x", Runs: []Run{{Name: "y", Memory: m}}}, Options{Format: format})
	}
}

// BenchmarkMapPNG is the run and the map of 175,000 blocks.
func BenchmarkMapPNG(b *testing.B) {
	tr := plotstest.Training(b, 350_000)
	cfg := sim.Config{Policy: plotstest.Spec(b, "torch")}
	for b.Loop() {
		r := NewSpaceRecorder(tr, cfg.Policy, ByTime, 1, true)
		if _, err := sim.Run(ctx, tr, cfg, r); err != nil {
			b.Fatal(err)
		}
		render(b, &Map{Source: "x", Runs: []MapRun{{"y", r.Layout()}}}, Options{})
	}
}

// TestPDFText: what a PDF says can be read, dashes and signs included. It needs
// pdftotext.
func TestPDFText(t *testing.T) {
	tool, err := exec.LookPath("pdftotext")
	if err != nil {
		t.Skip("no pdftotext found in PATH (Debian: poppler-utils)")
	}
	f := &Compare{Source: "1–2 × 3 µs … é", Bound: 1 << 20, Outcomes: []Outcome{{Name: "PyTorch's defaults", Reserved: 1 << 21}}}
	path := filepath.Join(t.TempDir(), "a.pdf")
	if err := os.WriteFile(path, render(t, f, Options{Format: PDF}), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, "-enc", "UTF-8", path, "-").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"1–2 × 3 µs … é", "2 MiB reserved, 2.00 × bound", "Allocators compared"} {
		if !strings.Contains(string(out), w) {
			t.Errorf("the PDF does not say %q but %q", w, out)
		}
	}
}
