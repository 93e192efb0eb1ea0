package plots

import (
	"fmt"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"allocsim/internal/bytesize"
	"allocsim/internal/text"
)

// Point is a setting with its peak and the time it spends in driver calls.
type Point struct {
	Name     string
	Reserved int64   // peak, bytes
	StallUS  float64 // µs
}

// Pareto shows what less memory costs: the reserved peak against the time in
// driver calls, for every setting that was simulated to the end.
type Pareto struct {
	// Source names the trace.
	Source string
	// All are the settings; Front those that no other beats in both, numbered
	// in the figure.
	All, Front []Point
	// Now and Best are the present setting and the one recommended.
	Now, Best Point
	// Bound is the most bytes that live at once.
	Bound int64
}

func (p *Pareto) title() (string, string) {
	return "What less memory costs", fmt.Sprintf("%s, %s settings", p.Source, text.Count(len(p.All)))
}

func (p *Pareto) draw(s *sheet) error {
	if p.Now.Reserved == 0 {
		return ErrNothing
	}
	front := slices.Clone(p.Front)
	slices.SortStableFunc(front, func(a, b Point) int {
		switch {
		case a.StallUS < b.StallUS:
			return -1
		case a.StallUS > b.StallUS:
			return 1
		}
		return 0
	})
	m := newParetoMarks(s)
	s.legend(m.keys(p.Bound))
	shown := p.list(s, front)
	pl := p.axes(s, front)
	pl.Add(s.grid(true))
	if p.Bound > 0 {
		pl.Add(level(p.Bound, m.bound))
	}
	pl.Add(plotterFunc(func(c draw.Canvas, p2 *plot.Plot) {
		trX, trY := p2.Transforms(&c)
		at := func(q Point) vg.Point { return vg.Point{X: trX(q.StallUS), Y: trY(float64(q.Reserved))} }
		p.points(c, m, front, at)
		var numbered []vg.Point
		for _, k := range shown {
			numbered = append(numbered, at(front[k]))
		}
		s.numbers(c, numbered)
	}))
	if err := s.fits(pl, s.c); err != nil || s.dry {
		return err
	}
	pl.Draw(s.c)
	return nil
}

// paretoMarks are how the settings look.
type paretoMarks struct {
	dot, onFront, now, best draw.GlyphStyle
	line, bound             draw.LineStyle
}

func newParetoMarks(s *sheet) *paretoMarks {
	th := s.theme
	return &paretoMarks{
		dot:     draw.GlyphStyle{Color: blend(th.muted, th.background, 0.55), Radius: s.size * 0.2, Shape: draw.CircleGlyph{}},
		onFront: draw.GlyphStyle{Color: th.allocated, Radius: s.size * 0.32, Shape: draw.CircleGlyph{}},
		now:     draw.GlyphStyle{Color: th.reserved, Radius: s.size * 0.5, Shape: thickCross{}},
		best:    draw.GlyphStyle{Color: th.good, Radius: s.size * 0.55, Shape: ring{}},
		line:    s.line(th.allocated, 0.8),
		bound:   s.line(th.bound, 1, 1.5, 1.8),
	}
}

func (m *paretoMarks) keys(bound int64) []key {
	keys := []key{
		{text: "now", glyph: &m.now}, {text: "recommended", glyph: &m.best},
		{text: "Pareto front", glyph: &m.onFront, line: &m.line}, {text: "other settings", glyph: &m.dot},
	}
	if bound > 0 {
		keys = append(keys, key{text: "bound " + bytesize.Format(bound), line: &m.bound})
	}
	return keys
}

// list writes the numbered settings below the figure, as many as leave it its
// room, and returns which of the front they are.
func (p *Pareto) list(s *sheet, front []Point) []int {
	sty := s.style(0.85, s.theme.text)
	rows := min(len(front), max(int((s.c.Max.Y-s.c.Min.Y)*0.3/(sty.Font.Size*1.4)), 1))
	shown := pickFront(front, rows)
	for i := len(shown) - 1; i >= 0; i-- {
		q := front[shown[i]]
		name := q.Name
		if name == "" {
			name = "(default)"
		}
		txt := fmt.Sprintf("%d  %s, %s: %s", i+1, bytesize.Format(q.Reserved), text.Duration(q.StallUS), name)
		s.c.FillText(sty, vg.Point{X: s.c.Min.X, Y: s.c.Min.Y}, s.cut(sty, txt, s.c.Max.X-s.c.Min.X))
		s.c.Min.Y += sty.Font.Size * 1.4
	}
	if len(shown) > 0 {
		s.c.Min.Y += s.gap * 0.6
	}
	return shown
}

// axes spans all settings, and the bound.
func (p *Pareto) axes(s *sheet, front []Point) *plot.Plot {
	low, high := p.Now.Reserved, p.Now.Reserved
	stall := max(p.Now.StallUS, p.Best.StallUS)
	for _, q := range slices.Concat(p.All, front, []Point{p.Best}) {
		low, high = min(low, q.Reserved), max(high, q.Reserved)
	}
	for _, q := range slices.Concat(p.All, front) {
		stall = max(stall, q.StallUS)
	}
	if p.Bound > 0 {
		low = min(low, p.Bound)
	}
	w, h := s.c.Max.X-s.c.Min.X, s.c.Max.Y-s.c.Min.Y
	pl := s.axes()
	pl.X.Min, pl.X.Max = 0, max(stall*1.06, 1)
	t := timeTicks(pl.X.Max, max(int(w/(s.size*6)), 2))
	pl.X.Tick.Marker = t
	pl.X.Label.Text = "Time in driver calls over the trace (" + t.unit.name + ", modelled)"
	pad := float64(high-low)*0.08 + 1
	s.byteAxis(pl, float64(high)+pad, h, "Peak reserved")
	if float64(low)-pad > 0.5*float64(high) { // a break is better than a crowd at the top
		pl.Y.Min = float64(low) - pad
		b := byteTicks(float64(high)-float64(low)+2*pad, max(int(h/(s.size*1.9)), 2))
		b.unit = pick(byteUnits, float64(high))
		pl.Y.Tick.Marker = b
		pl.Y.Label.Text = "Peak reserved (" + b.unit.name + ")"
	}
	return pl
}

// points draws the settings, and the front as steps.
func (p *Pareto) points(c draw.Canvas, m *paretoMarks, front []Point, at func(Point) vg.Point) {
	for _, q := range p.All {
		c.DrawGlyphNoClip(m.dot, at(q))
	}
	var pts []vg.Point
	for i, q := range front {
		if i > 0 {
			pts = append(pts, vg.Point{X: at(q).X, Y: pts[len(pts)-1].Y})
		}
		pts = append(pts, at(q))
	}
	if len(pts) > 1 {
		c.StrokeLines(m.line, pts)
	}
	for _, q := range front {
		c.DrawGlyphNoClip(m.onFront, at(q))
	}
	c.DrawGlyphNoClip(m.now, at(p.Now))
	c.DrawGlyphNoClip(m.best, at(p.Best))
}

// numbers writes 1, 2 … beside some points: to the right, or where no other
// number is.
func (s *sheet) numbers(c draw.Canvas, points []vg.Point) {
	num := s.bold(0.85, s.theme.text)
	var taken []vg.Point
	for i, a := range points {
		spot := vg.Point{X: a.X + s.size*0.7, Y: a.Y + s.size*0.2}
		for _, o := range []vg.Point{{X: 0.7, Y: 0.2}, {X: 0.7, Y: -1.1}, {X: -1.2, Y: 0.2}, {X: -1.2, Y: -1.1}, {X: 1.6, Y: 0.2}, {X: 1.6, Y: -1.1}, {X: 2.5, Y: 0.2}, {X: 2.5, Y: -1.1}} {
			try := vg.Point{X: a.X + o.X*s.size, Y: a.Y + o.Y*s.size}
			if try.Y >= c.Min.Y && try.X >= c.Min.X && !near(taken, try, s.size*0.9) {
				spot = try
				break
			}
		}
		taken = append(taken, spot)
		c.FillText(num, spot, fmt.Sprint(i+1))
	}
}

func near(ps []vg.Point, p vg.Point, d vg.Length) bool {
	for _, q := range ps {
		if dx, dy := q.X-p.X, q.Y-p.Y; dx < d && dx > -d && dy < d && dy > -d {
			return true
		}
	}
	return false
}

// pickFront chooses n of a front's points, both ends first.
func pickFront(front []Point, n int) []int {
	var out []int
	for i := range n {
		k := 0
		if n > 1 {
			k = i * (len(front) - 1) / (n - 1)
		}
		if len(out) == 0 || out[len(out)-1] != k {
			out = append(out, k)
		}
	}
	return out
}

// ring is a thick circle.
type ring struct{}

func (ring) DrawGlyph(c *draw.Canvas, sty draw.GlyphStyle, pt vg.Point) {
	c.SetLineStyle(draw.LineStyle{Color: sty.Color, Width: sty.Radius * 0.35})
	var p vg.Path
	p.Move(vg.Point{X: pt.X + sty.Radius, Y: pt.Y})
	p.Arc(pt, sty.Radius, 0, 2*3.141592653589793)
	p.Close()
	c.Stroke(p)
}
