package plots

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"allocsim/internal/bytesize"
	"allocsim/internal/text"
)

// Run is one run of a trace in a figure.
type Run struct {
	// Name is the policy or what the run is about.
	Name   string
	Memory *Memory
	// Limit is the memory limit or the capacity in bytes; 0 = none.
	Limit int64
}

// Timeline shows reserved, allocated and active bytes over time, the limit,
// and where requests failed or were retried; several runs side by side on one
// scale.
type Timeline struct {
	// Source names the trace.
	Source string
	Runs   []Run
	// Bound is the most bytes that live at once; 0 = not shown.
	Bound int64
}

func (t *Timeline) title() (string, string) {
	if len(t.Runs) == 1 {
		return "GPU memory over time", t.Source + " under " + t.Runs[0].Name
	}
	return "GPU memory over time", t.Source
}

func (t *Timeline) draw(s *sheet) error {
	if len(t.Runs) == 0 {
		return ErrNothing
	}
	th := s.theme
	var top, limit int64
	var pending, ooms, retries, bySpace bool
	for _, r := range t.Runs {
		top = max(top, r.Memory.Reserved.Max(), r.Memory.Active.Max())
		limit = max(limit, r.Limit)
		ooms = ooms || r.Memory.NumOOMs > 0
		retries = retries || r.Memory.NumRetries > 0
		pending = pending || differ(r.Memory.Active, r.Memory.Allocated)
	}
	if top == 0 {
		return ErrNothing
	}
	// A limit far above everything would flatten the curves; it is named in
	// the legend all the same.
	far := limit > 3*top
	if limit > 0 && !far {
		top = max(top, limit)
	}
	bySpace = t.Bound > 0
	reserved := s.line(th.reserved, 1.1)
	allocated := s.line(th.allocated, 0.7)
	active := s.line(th.active, 0.7, 3, 1.5)
	limitLine := s.line(th.limit, 1, 6, 2, 1.5, 2)
	bound := s.line(th.bound, 1, 1.5, 1.8)
	oom := draw.GlyphStyle{Color: th.alarm, Radius: s.size * 0.38, Shape: thickCross{}}
	retry := draw.GlyphStyle{Color: th.retry, Radius: s.size * 0.34, Shape: draw.PyramidGlyph{}}
	one := t.Runs[0]
	keys := []key{
		{text: "reserved", line: &reserved, fill: th.slack},
		{text: "allocated", line: &allocated, fill: th.live},
	}
	if len(t.Runs) == 1 {
		keys[0].text += " (peak " + bytesize.Format(one.Memory.Reserved.Max()) + ")"
		keys[1].text += " (peak " + bytesize.Format(one.Memory.Allocated.Max()) + ")"
	}
	if pending {
		keys = append(keys, key{text: "active (with pending frees)", line: &active})
	}
	if bySpace {
		keys = append(keys, key{text: "bound: most live at once, " + bytesize.Format(t.Bound), line: &bound})
	}
	if limit > 0 {
		k := key{text: "limit " + bytesize.Format(limit), line: &limitLine}
		if far {
			k.text += " (above the figure)"
		}
		keys = append(keys, k)
	}
	if ooms {
		k := key{text: "out of memory", glyph: &oom}
		if len(t.Runs) == 1 {
			k.text += fmt.Sprintf(" (%s)", text.Count(one.Memory.NumOOMs))
		}
		keys = append(keys, k)
	}
	if retries {
		k := key{text: "retry after a flush", glyph: &retry}
		if len(t.Runs) == 1 {
			k.text += fmt.Sprintf(" (%s)", text.Count(one.Memory.NumRetries))
		}
		keys = append(keys, k)
	}
	s.legend(keys)
	return s.panels(len(t.Runs), func(i int) (string, string) {
		if len(t.Runs) == 1 {
			return "", ""
		}
		m := t.Runs[i].Memory
		below := fmt.Sprintf("peak: %s reserved, %s allocated", bytesize.Format(m.Reserved.Max()), bytesize.Format(m.Allocated.Max()))
		if m.NumOOMs > 0 {
			below += fmt.Sprintf("; %s OOM", text.Count(m.NumOOMs))
		}
		return t.Runs[i].Name, below
	}, func(i int, w, h vg.Length) *plot.Plot {
		r := t.Runs[i]
		m := r.Memory
		p := s.axes()
		s.timeAxis(p, m.Scale, w)
		s.byteAxis(p, float64(top)*1.06, h, "Memory")
		p.Add(s.area(m.Scale.Span, m.Reserved, nil, th.slack), s.area(m.Scale.Span, m.Allocated, nil, th.live), s.grid(false))
		if r.Limit > 0 {
			p.Add(level(r.Limit, limitLine))
		}
		if bySpace {
			p.Add(level(t.Bound, bound))
		}
		// The thinner line on top, so that neither hides the other where they
		// rise together.
		p.Add(s.stroke(m.Scale.Span, m.Reserved, reserved), s.stroke(m.Scale.Span, m.Allocated, allocated))
		if pending {
			p.Add(s.stroke(m.Scale.Span, m.Active, active))
		}
		p.Add(marks(m.Retries, 0.93, retry, s.line(th.retry, 0.4, 1, 2)))
		p.Add(marks(m.OOMs, 0.97, oom, s.line(th.alarm, 0.5, 2, 2)))
		return p
	})
}

func differ(a, b Curve) bool {
	for i := range a {
		if a[i].Max != b[i].Max || a[i].Min != b[i].Min {
			return true
		}
	}
	return false
}

// thickCross is an × that stays visible when small.
type thickCross struct{}

func (thickCross) DrawGlyph(c *draw.Canvas, sty draw.GlyphStyle, pt vg.Point) {
	r := sty.Radius
	line := draw.LineStyle{Color: sty.Color, Width: r * 0.5}
	c.StrokeLine2(line, pt.X-r, pt.Y-r, pt.X+r, pt.Y+r)
	c.StrokeLine2(line, pt.X-r, pt.Y+r, pt.X+r, pt.Y-r)
}

// panels draws n plots of one kind in a grid that suits the sheet, each with a
// heading, their axes aligned. make gets the room of a panel, axes included.
func (s *sheet) panels(n int, heading func(i int) (name, below string), make_ func(i int, w, h vg.Length) *plot.Plot) error {
	c := s.c
	w, h := c.Max.X-c.Min.X, c.Max.Y-c.Min.Y
	// As many columns as make panels nearest to the shape 1.6 : 1.
	cols, best := 1, 0.0
	for k := 1; k <= n; k++ {
		rows := (n + k - 1) / k
		shape := float64(w) / float64(k) / (float64(h) / float64(rows))
		fit := min(shape/1.6, 1.6/shape) * float64(n) / float64(rows*k)
		if fit > best {
			cols, best = k, fit
		}
	}
	rows := (n + cols - 1) / cols
	pad := s.size * 1.6
	pw, ph := (w-pad*vg.Length(cols-1))/vg.Length(cols), (h-pad*0.6*vg.Length(rows-1))/vg.Length(rows)
	type panel struct {
		plot *plot.Plot
		cell draw.Canvas
	}
	var ps []panel
	for i := range n {
		col, row := i%cols, i/cols
		x := c.Min.X + vg.Length(col)*(pw+pad)
		y := c.Max.Y - vg.Length(row)*(ph+pad*0.6)
		cell := draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: x, Y: y - ph}, Max: vg.Point{X: x + pw, Y: y}}}
		if name, below := heading(i); name != "" {
			sty := s.bold(1.02, s.theme.text)
			cell.Max.Y -= sty.Font.Size * 1.3
			cell.FillText(sty, vg.Point{X: cell.Min.X, Y: cell.Max.Y}, s.cut(sty, name, pw))
			if below != "" {
				sty = s.style(0.92, s.theme.muted)
				cell.Max.Y -= sty.Font.Size * 1.35
				cell.FillText(sty, vg.Point{X: cell.Min.X, Y: cell.Max.Y}, s.cut(sty, below, pw))
			}
			cell.Max.Y -= s.gap * 0.5
		}
		p := make_(i, pw, cell.Max.Y-cell.Min.Y)
		if err := s.fits(p, cell); err != nil {
			return err
		}
		ps = append(ps, panel{p, cell})
	}
	if s.dry {
		return nil
	}
	for _, p := range ps {
		p.plot.Draw(p.cell)
	}
	return nil
}
