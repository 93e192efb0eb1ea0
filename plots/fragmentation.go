package plots

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"allocsim/internal/bytesize"
)

// Fragmentation shows what reserved memory consists of over time (blocks,
// stranded and cached space) and external fragmentation below.
type Fragmentation struct {
	// Source names the trace.
	Source string
	Runs   []FragmentationRun
}

// FragmentationRun is one run in a Fragmentation.
type FragmentationRun struct {
	Name      string
	Fragments *Fragments
}

func (f *Fragmentation) title() (string, string) {
	below := "; external fragmentation is 1 – largest free block / all free bytes"
	if len(f.Runs) == 1 {
		return "Fragmentation over time", f.Source + " under " + f.Runs[0].Name + below
	}
	return "Fragmentation over time", f.Source + below
}

func (f *Fragmentation) draw(s *sheet) error {
	if len(f.Runs) == 0 {
		return ErrNothing
	}
	var top int64
	for _, r := range f.Runs {
		top = max(top, r.Fragments.Reserved.Max())
	}
	if top == 0 {
		return ErrNothing
	}
	th := s.theme
	reserved := s.line(th.reserved, 1)
	external := s.line(th.text, 0.7)
	stranded := "stranded"
	if len(f.Runs) == 1 {
		stranded += " (peak " + bytesize.Format(f.Runs[0].Fragments.Stranded.Max()) + ")"
	}
	s.legend([]key{
		{text: "reserved", line: &reserved},
		{text: "in blocks", fill: th.live},
		{text: stranded, fill: th.stranded},
		{text: "cached, can be returned", fill: th.cached},
	})
	// Each run is a column of two plots with one time axis.
	c := s.c
	n := len(f.Runs)
	pad := s.size * 1.6
	w := (c.Max.X - c.Min.X - pad*vg.Length(n-1)) / vg.Length(n)
	for i, r := range f.Runs {
		x := c.Min.X + vg.Length(i)*(w+pad)
		cell := draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: x, Y: c.Min.Y}, Max: vg.Point{X: x + w, Y: c.Max.Y}}}
		if n > 1 {
			sty := s.bold(1.02, th.text)
			cell.Max.Y -= sty.Font.Size * 1.3
			cell.FillText(sty, vg.Point{X: cell.Min.X, Y: cell.Max.Y}, s.cut(sty, r.Name, w))
			sty = s.style(0.92, th.muted)
			cell.Max.Y -= sty.Font.Size * 1.35
			cell.FillText(sty, vg.Point{X: cell.Min.X, Y: cell.Max.Y}, s.cut(sty, fmt.Sprintf("stranded at most %s", bytesize.Format(r.Fragments.Stranded.Max())), w))
			cell.Max.Y -= s.gap * 0.5
		}
		h := cell.Max.Y - cell.Min.Y
		g := r.Fragments
		upper, lower := s.axes(), s.axes()
		s.timeAxis(upper, g.Scale, w)
		// The lower plot needs some height; without it there is only the upper.
		share := max(0.34, 8.5*float64(s.size/h))
		two := share <= 0.45
		if two {
			upper.X.Label.Text = ""
			upper.X.Tick.Marker = noLabels{upper.X.Tick.Marker}
		}
		s.byteAxis(upper, float64(top)*1.04, h*0.6, "Memory")
		span := g.Scale.Span
		upper.Add(s.area(span, g.Reserved, nil, th.cached), s.area(span, g.Held, nil, th.stranded), s.area(span, g.Used, nil, th.live),
			s.grid(false), s.stroke(span, g.Reserved, reserved))
		s.timeAxis(lower, g.Scale, w)
		lower.Y.Min, lower.Y.Max = 0, 1e6
		step := 25.0
		if h*vg.Length(share) < s.size*10 {
			step = 50
		}
		lower.Y.Tick.Marker = ticks{unit: unit{"%", 1e4}, step: step * 1e4}
		lower.Y.Label.Text = "External (%)"
		lower.Add(s.grid(false), s.stroke(span, g.External, external))
		stacked, shares := []*plot.Plot{upper, lower}, []float64{1 - share, share}
		if !two {
			stacked, shares = stacked[:1], []float64{1}
		}
		if err := s.stack(cell, stacked, shares); err != nil {
			return err
		}
	}
	return nil
}

// noLabels are ticks without their numbers.
type noLabels struct{ of plot.Ticker }

func (n noLabels) Ticks(low, high float64) []plot.Tick {
	out := n.of.Ticks(low, high)
	for i := range out {
		if !out[i].IsMinor() {
			out[i].Label = " "
		}
	}
	return out
}

// stack draws plots above one another with their data areas aligned left and
// right; shares are their parts of the height.
func (s *sheet) stack(c draw.Canvas, ps []*plot.Plot, shares []float64) error {
	// The labels of either axis take what the widest needs.
	left, right := c.Min.X, c.Max.X
	for _, p := range ps {
		if err := s.fits(p, c); err != nil {
			return err
		}
		d := p.DataCanvas(c)
		left, right = max(left, d.Min.X), min(right, d.Max.X)
	}
	y := c.Max.Y
	h := c.Max.Y - c.Min.Y
	for i, p := range ps {
		cell := c
		cell.Max.Y = y
		cell.Min.Y = y - h*vg.Length(shares[i])
		y = cell.Min.Y
		if i > 0 {
			cell.Max.Y -= s.size * 0.5
		}
		d := p.DataCanvas(cell)
		cell.Min.X += left - d.Min.X
		cell.Max.X -= d.Max.X - right
		if err := s.fits(p, cell); err != nil {
			return err
		}
		if !s.dry {
			p.Draw(cell)
		}
	}
	return nil
}
