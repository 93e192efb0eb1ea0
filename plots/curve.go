package plots

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"allocsim/internal/text"
)

// fold is a curve with as many columns as a canvas has dots.
func (s *sheet) fold(c Curve, width vg.Length) Curve {
	return c.Fold(max(int(float64(width.Points())*s.dots), 16))
}

// stroke draws a curve as steps: a column in which the quantity moves is a
// vertical line from its lowest to its highest value.
func (s *sheet) stroke(span int64, curve Curve, sty draw.LineStyle) plot.Plotter {
	return plotterFunc(func(c draw.Canvas, p *plot.Plot) {
		trX, trY := p.Transforms(&c)
		pts := steps(s.fold(curve, c.Max.X-c.Min.X), span, trX, trY)
		lines := c.ClipLinesXY(pts)
		if s.options.Format != PNG || len(sty.Dashes) > 0 {
			c.StrokeLines(sty, lines...)
			return
		}
		// The rasterizer's work grows with the square of what a path has in
		// one row of pixels, so a long line is drawn in pieces.
		const piece = 64
		for _, l := range lines {
			for ; len(l) > piece+1; l = l[piece:] {
				c.StrokeLines(sty, l[:piece+1])
			}
			c.StrokeLines(sty, l)
		}
	})
}

func steps(curve Curve, span int64, trX, trY func(float64) vg.Length) []vg.Point {
	pts := make([]vg.Point, 0, 2*len(curve))
	add := func(x float64, v int64) {
		pt := vg.Point{X: trX(x), Y: trY(float64(v))}
		if n := len(pts); n >= 2 && pts[n-1].Y == pt.Y && pts[n-2].Y == pt.Y {
			pts[n-1] = pt
			return
		} else if n >= 2 && pts[n-1].X == pt.X && pts[n-2].X == pt.X && between(pts[n-2].Y, pts[n-1].Y, pt.Y) {
			pts[n-1] = pt
			return
		} else if n > 0 && pts[n-1] == pt {
			return
		}
		pts = append(pts, pt)
	}
	n := float64(len(curve))
	for i, col := range curve {
		x := (float64(i) + 0.5) / n * float64(span)
		if i == 0 {
			x = 0
		}
		add(x, col.First)
		if col.Min != col.Max {
			if col.Last >= col.First {
				add(x, col.Min)
				add(x, col.Max)
			} else {
				add(x, col.Max)
				add(x, col.Min)
			}
			add(x, col.Last)
		}
	}
	if len(curve) > 0 {
		add(float64(span), curve[len(curve)-1].Last)
	}
	return pts
}

// between reports a ≤ b ≤ c or a ≥ b ≥ c.
func between(a, b, c vg.Length) bool { return a <= b && b <= c || a >= b && b >= c }

// area fills below a curve's highest values, down to those of the curve
// below it (nil for zero).
func (s *sheet) area(span int64, curve, below Curve, fill color.Color) plot.Plotter {
	return plotterFunc(func(c draw.Canvas, p *plot.Plot) {
		trX, trY := p.Transforms(&c)
		top := s.fold(curve, c.Max.X-c.Min.X)
		pts := outline(top, span, trX, trY)
		if below == nil {
			pts = append(pts, vg.Point{X: trX(float64(span)), Y: trY(0)}, vg.Point{X: trX(0), Y: trY(0)})
		} else {
			low := outline(s.fold(below, c.Max.X-c.Min.X), span, trX, trY)
			for i := len(low) - 1; i >= 0; i-- {
				pts = append(pts, low[i])
			}
		}
		c.FillPolygon(fill, c.ClipPolygonXY(pts))
	})
}

func outline(curve Curve, span int64, trX, trY func(float64) vg.Length) []vg.Point {
	var pts []vg.Point
	n := float64(len(curve))
	for i, col := range curve {
		if i > 0 && col.Max == curve[i-1].Max {
			continue
		}
		x := trX(float64(i) / n * float64(span))
		if i > 0 {
			pts = append(pts, vg.Point{X: x, Y: pts[len(pts)-1].Y})
		}
		pts = append(pts, vg.Point{X: x, Y: trY(float64(col.Max))})
	}
	if len(pts) > 0 {
		pts = append(pts, vg.Point{X: trX(float64(span)), Y: pts[len(pts)-1].Y})
	}
	return pts
}

// level draws a horizontal line across.
func level(y int64, sty draw.LineStyle) plot.Plotter {
	return plotterFunc(func(c draw.Canvas, p *plot.Plot) {
		_, trY := p.Transforms(&c)
		if v := trY(float64(y)); c.ContainsY(v) {
			c.StrokeLine2(sty, c.Min.X, v, c.Max.X, v)
		}
	})
}

// marks draws glyphs for moments in a row near the top; share is the row's
// place from the bottom (0) to the top (1).
func marks(ms []Mark, share float64, sty draw.GlyphStyle, line draw.LineStyle) plot.Plotter {
	return plotterFunc(func(c draw.Canvas, p *plot.Plot) {
		trX, _ := p.Transforms(&c)
		y := c.Min.Y + (c.Max.Y-c.Min.Y)*vg.Length(share)
		last := c.Min.X - vg.Inch
		for _, m := range ms {
			x := trX(float64(m.X))
			if x-last < sty.Radius*0.7 {
				continue
			}
			last = x
			c.StrokeLine2(line, x, c.Min.Y, x, c.Max.Y)
			c.DrawGlyphNoClip(sty, vg.Point{X: x, Y: y})
		}
	})
}

// timeAxis sets the x axis of a scale on a plot that is w wide.
func (s *sheet) timeAxis(p *plot.Plot, sc Scale, w vg.Length) {
	p.X.Min, p.X.Max = 0, float64(sc.Span)
	n := max(int(w/(s.size*6)), 2)
	if sc.Axis == ByTime {
		t := timeTicks(float64(sc.Span), n)
		p.X.Tick.Marker = t
		p.X.Label.Text = "Time (" + t.unit.name + ")"
		return
	}
	t := decimalTicks(unit{"", 1}, float64(sc.Span), n)
	if t.step < 1 {
		t.step = 1
	}
	p.X.Tick.Marker = grouped{t}
	p.X.Label.Text = "Event"
}

// grouped writes numbers with their thousands apart.
type grouped struct{ ticks }

func (g grouped) Ticks(low, high float64) []plot.Tick {
	out := g.ticks.Ticks(low, high)
	for i := range out {
		out[i].Label = text.Count(int64(out[i].Value))
	}
	return out
}

// byteAxis sets the y axis in bytes on a plot that is h high.
func (s *sheet) byteAxis(p *plot.Plot, top float64, h vg.Length, label string) {
	p.Y.Min, p.Y.Max = 0, max(top, 1)
	t := byteTicks(p.Y.Max, max(int(h/(s.size*1.9)), 2))
	p.Y.Tick.Marker = t
	p.Y.Label.Text = label + " (" + t.unit.name + ")"
}
