package plots

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/internal/text"
)

// Outcome is what one policy made of a trace.
type Outcome struct {
	Name                string
	Reserved, Allocated int64 // peaks, bytes
	StallUS             float64
	Retries, OOMs       int64
	// Low and High are the range of the reserved peak over address orders; 0
	// when not sampled.
	Low, High int64
}

// Compare shows policies side by side against the bound.
type Compare struct {
	// Source names the trace.
	Source   string
	Outcomes []Outcome
	// Bound is the most bytes that live at once, or would have to.
	Bound int64
	// Limit is the bytes the allocator may take; 0 = none.
	Limit int64
}

func (p *Compare) title() (string, string) { return "Allocators compared", p.Source }

func (p *Compare) draw(s *sheet) error {
	n := len(p.Outcomes)
	if n == 0 {
		return ErrNothing
	}
	th := s.theme
	top := p.Bound
	var spans, ooms bool
	for _, o := range p.Outcomes {
		top = max(top, o.Reserved, o.High)
		spans = spans || o.High > o.Low
		ooms = ooms || o.OOMs > 0
	}
	if top == 0 {
		return ErrNothing
	}
	bound := s.line(th.bound, 1.1, 1.5, 1.8)
	limit := s.line(th.limit, 1, 6, 2, 1.5, 2)
	span := s.line(th.text, 1)
	keys := []key{
		{text: "peak allocated", fill: th.allocated},
		{text: "peak reserved", fill: blend(th.reserved, th.background, 0.75)},
		{text: "bound: most live at once, " + bytesize.Format(p.Bound), line: &bound},
	}
	far := p.Limit > 3*top
	if p.Limit > 0 {
		k := key{text: "limit " + bytesize.Format(p.Limit), line: &limit}
		if far {
			k.text += " (outside the figure)"
		} else {
			top = max(top, p.Limit)
		}
		keys = append(keys, k)
	}
	if spans {
		keys = append(keys, key{text: "range over the driver's address orders", line: &span})
	}
	s.legend(keys)
	pl := s.axes()
	w, h := s.c.Max.X-s.c.Min.X, s.c.Max.Y-s.c.Min.Y
	pl.X.Min, pl.X.Max = 0, float64(top)*1.04
	t := byteTicks(pl.X.Max, max(int(w/(s.size*6)), 2))
	pl.X.Tick.Marker = t
	pl.X.Label.Text = "Memory (" + t.unit.name + ")"
	pl.Y.Min, pl.Y.Max = 0, float64(n)
	pl.Y.LineStyle.Width = 0
	pl.Y.Tick.Marker = ticks{marks: []plot.Tick{}}
	pl.Y.Tick.LineStyle.Width = 0
	row := (h - s.size*3) / vg.Length(n)
	// Text shrinks before rows run into each other.
	scale := min(0.95, float64(row/s.size)/2.6)
	if scale < 0.55 {
		return errRoom
	}
	m := &compareMarks{bound: bound, limit: limit, span: span, inside: !far, scale: scale}
	pl.Add(gridX{s.line(th.grid, 0.5)}, plotterFunc(func(c draw.Canvas, p2 *plot.Plot) {
		trX, trY := p2.Transforms(&c)
		for i, o := range p.Outcomes {
			yTop := trY(float64(n - i))
			p.row(s, c, m, o, yTop, yTop-trY(float64(n-i-1)), trX)
		}
	}))
	if err := s.fits(pl, s.c); err != nil || s.dry {
		return err
	}
	pl.Draw(s.c)
	return nil
}

// compareMarks are how the lines of a row look, whether the limit is inside the
// figure, and the size of its text.
type compareMarks struct {
	bound, limit, span draw.LineStyle
	inside             bool
	scale              float64
}

// row draws one policy between yTop and rowH below it: its name, what it came
// to, the bars, and the lines over them.
func (p *Compare) row(s *sheet, c draw.Canvas, m *compareMarks, o Outcome, yTop, rowH vg.Length, trX func(float64) vg.Length) {
	th := s.theme
	name := s.bold(m.scale, th.text)
	facts := s.style(m.scale*0.95, th.muted)
	if o.OOMs > 0 {
		facts.Color = th.alarm
	}
	says := p.says(o)
	all := c.Max.X - c.Min.X
	tw := min(facts.Width(says), all*0.62)
	y := yTop - name.Font.Size*1.25
	c.FillText(name, vg.Point{X: c.Min.X, Y: y}, s.cutMiddle(name, o.Name, all-tw-s.size))
	facts.XAlign = draw.XRight
	c.FillText(facts, vg.Point{X: c.Max.X, Y: y}, s.cut(facts, says, tw+0.1))
	y0, y1 := yTop-rowH*0.94, y-s.size*0.25
	bar := func(v int64, y0, y1 vg.Length, col color.Color) {
		c.FillPolygon(col, []vg.Point{{X: c.Min.X, Y: y0}, {X: trX(float64(v)), Y: y0}, {X: trX(float64(v)), Y: y1}, {X: c.Min.X, Y: y1}})
	}
	bar(o.Reserved, y0, y1, blend(th.reserved, th.background, 0.75))
	inset := (y1 - y0) * 0.22
	bar(o.Allocated, y0+inset, y1-inset, th.allocated)
	if o.High > o.Low {
		mid := (y0 + y1) / 2
		a, b := trX(float64(o.Low)), trX(float64(o.High))
		tick := (y1 - y0) * 0.3
		c.StrokeLine2(m.span, a, mid, b, mid)
		c.StrokeLine2(m.span, a, mid-tick, a, mid+tick)
		c.StrokeLine2(m.span, b, mid-tick, b, mid+tick)
	}
	if p.Bound > 0 {
		c.StrokeLine2(m.bound, trX(float64(p.Bound)), y0, trX(float64(p.Bound)), y1)
	}
	if p.Limit > 0 && m.inside {
		c.StrokeLine2(m.limit, trX(float64(p.Limit)), y0, trX(float64(p.Limit)), y1)
	}
}

// says is what a policy came to.
func (p *Compare) says(o Outcome) string {
	says := fmt.Sprintf("%s reserved", bytesize.Format(o.Reserved))
	if p.Bound > 0 && o.OOMs == 0 { // what failed is missing from the peak
		says += fmt.Sprintf(", %.2f × bound", float64(o.Reserved)/float64(p.Bound))
	}
	says += ", stall " + text.Duration(o.StallUS)
	if o.Retries > 0 {
		says += fmt.Sprintf(", %s %s", text.Count(o.Retries), plural.Noun(o.Retries, "retry", "retries"))
	}
	if o.OOMs > 0 {
		says += fmt.Sprintf(", %s OOM", text.Count(o.OOMs))
	}
	return says
}

// gridX draws lines at the ticks of the x axis.
type gridX struct{ style draw.LineStyle }

func (g gridX) Plot(c draw.Canvas, p *plot.Plot) {
	trX, _ := p.Transforms(&c)
	for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		if x := trX(t.Value); !t.IsMinor() && c.ContainsX(x) {
			c.StrokeLine2(g.style, x, c.Min.Y, x, c.Max.Y)
		}
	}
}
