package plots

import (
	"fmt"
	"image/color"
	"math"
	"math/bits"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/sim"
)

// SizeBin sums up the requests of some sizes.
type SizeBin struct {
	// From and To are requested bytes: From ≤ size < To.
	From, To int64
	Requests int64
	// Requested is the bytes asked for, Charged those of the blocks given:
	// the difference is rounding and remainders too small to split off.
	Requested, Charged int64
}

// perOctave is how many bins a doubling of the size has.
const perOctave = 2

// SizeRecorder is an observer that counts requests by size.
type SizeRecorder struct {
	bins [64 * perOctave]SizeBin
}

// NewSizeRecorder makes a recorder.
func NewSizeRecorder() *SizeRecorder { return new(SizeRecorder) }

// binOf is the bin of a size > 0.
func binOf(n int64) int {
	k := bits.Len64(uint64(n)) - 1
	// The upper half of an octave starts at √2 of it.
	if float64(n) >= math.Ldexp(math.Sqrt2, k) {
		return k*perOctave + 1
	}
	return k * perOctave
}

// Observe follows a run.
func (r *SizeRecorder) Observe(_ sim.At, e *policies.Event) {
	if e.Action != policies.ActionAlloc || e.Requested <= 0 {
		return
	}
	b := &r.bins[binOf(e.Requested)]
	b.Requests++
	b.Requested += e.Requested
	b.Charged += e.Size
}

// Bins are the sizes seen, ascending, empty ones in between included.
func (r *SizeRecorder) Bins() []SizeBin {
	first, last := -1, -1
	for i := range r.bins {
		if r.bins[i].Requests > 0 {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first < 0 {
		return nil
	}
	edge := func(i int) int64 {
		return int64(math.Ceil(math.Ldexp(math.Pow(2, float64(i%perOctave)/perOctave), i/perOctave)))
	}
	out := make([]SizeBin, 0, last-first+1)
	for i := first; i <= last; i++ {
		b := r.bins[i]
		b.From, b.To = edge(i), edge(i+1)
		out = append(out, b)
	}
	return out
}

// SizeMark is a size at which an allocator's rule changes.
type SizeMark struct {
	At   int64 // bytes
	Name string
}

// Sizes shows how often each size is asked for, how many bytes that makes and
// how many of them are lost to rounding, with the sizes at which the
// allocator's rules change.
type Sizes struct {
	// Source names the trace, Policy the allocator whose rounding is shown.
	Source, Policy string
	Bins           []SizeBin
	Marks          []SizeMark
}

func (z *Sizes) title() (string, string) {
	return "Sizes of requests", z.Source + ", blocks as given by " + z.Policy
}

func (z *Sizes) draw(s *sheet) error {
	if len(z.Bins) == 0 {
		return ErrNothing
	}
	th := s.theme
	low, high := float64(z.Bins[0].From), float64(z.Bins[len(z.Bins)-1].To)
	var most, mostBytes, requested, charged int64
	for _, b := range z.Bins {
		most = max(most, b.Requests)
		mostBytes = max(mostBytes, b.Charged)
		requested += b.Requested
		charged += b.Charged
	}
	lost := "lost to rounding and unsplit rests"
	if charged > 0 {
		lost += fmt.Sprintf(" (%s, %.2g %% of all)", bytesize.Format(charged-requested), 100*float64(charged-requested)/float64(charged))
	}
	s.legend([]key{{text: "requests, bytes requested", fill: th.life[1]}, {text: lost, fill: th.reserved}})
	// The rules' names are a list of numbers below the legend: at their lines
	// there is no room for them.
	marks := slices.Clone(z.Marks)
	for i := range marks { // a rule for all sizes begins with the smallest shown
		if marks[i].At == 1 {
			marks[i].At = z.Bins[0].From
		}
	}
	slices.SortStableFunc(marks, func(a, b SizeMark) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		return 0
	})
	marks = slices.DeleteFunc(marks, func(m SizeMark) bool { return float64(m.At) < low || float64(m.At) > high })
	letters := make([]string, len(marks))
	room := s.c.Max.Y-s.c.Min.Y > s.size*vg.Length(20+1.2*float64(len(marks)))
	var short []string
	for i, m := range marks {
		letters[i] = string(rune('A' + i%26))
		short = append(short, letters[i]+" "+bytesize.Format(m.At))
		if room {
			s.paragraph(s.style(0.88, th.muted), letters[i]+"  "+m.Name, 1)
		}
	}
	if len(marks) > 0 {
		if !room {
			s.paragraph(s.style(0.88, th.muted), "rules change at "+strings.Join(short, ", "), 1)
		}
		s.c.Max.Y -= s.gap*0.5 + s.size*1.2
	}
	w, h := s.c.Max.X-s.c.Min.X, s.c.Max.Y-s.c.Min.Y
	upper, lower := s.axes(), s.axes()
	for _, p := range []*plot.Plot{upper, lower} {
		p.X.Scale = plot.LogScale{}
		p.X.Min, p.X.Max = low, high
		p.X.Tick.Marker = s.sizeTicks(low, high, w)
	}
	upper.X.Tick.Marker = noLabels{upper.X.Tick.Marker}
	upper.Y.Min, upper.Y.Max = 0, float64(most)*1.08
	t := decimalTicks(unit{"", 1}, upper.Y.Max, max(int(h*0.5/(s.size*2.6)), 2))
	t.step = max(t.step, 1)
	upper.Y.Tick.Marker = grouped{t}
	upper.Y.Label.Text = "Requests"
	s.byteAxis(lower, float64(mostBytes)*1.08, h*0.5, "Sum")
	lower.X.Label.Text = "Size of the request"
	line := s.line(th.axis, 0.6, 3, 2)
	lines := func(named bool) plot.Plotter {
		return plotterFunc(func(c draw.Canvas, p *plot.Plot) {
			trX, _ := p.Transforms(&c)
			sty := s.style(0.85, th.text)
			sty.XAlign = draw.XCenter
			free := c.Min.X - vg.Inch
			for i, m := range marks {
				x := trX(float64(m.At))
				c.StrokeLine2(line, x, c.Min.Y, x, c.Max.Y)
				if named {
					at := max(x, free)
					c.FillText(sty, vg.Point{X: at, Y: c.Max.Y + s.size*0.2}, letters[i])
					free = at + sty.Width(letters[i])*1.3
				}
			}
		})
	}
	upper.Add(s.grid(false), bars(z.Bins, func(b *SizeBin) (float64, float64) { return 0, float64(b.Requests) }, th.life[1]), lines(true))
	lower.Add(s.grid(false), bars(z.Bins, func(b *SizeBin) (float64, float64) { return 0, float64(b.Requested) }, th.life[1]),
		bars(z.Bins, func(b *SizeBin) (float64, float64) { return float64(b.Requested), float64(b.Charged) }, th.reserved), lines(false))
	return s.stack(s.c, []*plot.Plot{upper, lower}, []float64{0.45, 0.55})
}

// bars draws a bar from low to high for each bin.
func bars(bins []SizeBin, f func(*SizeBin) (low, high float64), fill color.Color) plot.Plotter {
	return plotterFunc(func(c draw.Canvas, p *plot.Plot) {
		trX, trY := p.Transforms(&c)
		for i := range bins {
			low, high := f(&bins[i])
			if high <= low {
				continue
			}
			x0, x1 := trX(float64(bins[i].From)), trX(float64(bins[i].To))
			pad := (x1 - x0) * 0.08
			y0, y1 := trY(low), trY(high)
			if bins[i].Requests > 0 && low == 0 {
				y1 = max(y1, y0+0.6) // seen however rare
			}
			c.FillPolygon(fill, []vg.Point{{X: x0 + pad, Y: y0}, {X: x1 - pad, Y: y0}, {X: x1 - pad, Y: y1}, {X: x0 + pad, Y: y1}})
		}
	})
}

// sizeTicks are powers of two, as many as have room.
func (s *sheet) sizeTicks(low, high float64, w vg.Length) ticks {
	octaves := math.Log2(high / low)
	n := max(float64(w/(s.size*5)), 2)
	step := 1
	for float64(step) < octaves/n {
		step *= 2
	}
	t := ticks{marks: []plot.Tick{}}
	for k := 0; k < 62; k++ {
		v := math.Ldexp(1, k)
		if v < low || v > high {
			continue
		}
		tick := plot.Tick{Value: v}
		if k%step == 0 {
			tick.Label = bytesize.Format(int64(v))
		}
		t.marks = append(t.marks, tick)
	}
	return t
}
