package plots

import (
	"fmt"
	"image"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"allocsim/internal/bytesize"
	"allocsim/internal/text"
)

// Map shows what lay where: address over time, blocks in their segments.
// Colours tell how long a block lives; free space in a segment that something
// else keeps (stranded) stands out, free segments (cached) do not.
type Map struct {
	// Source names the trace.
	Source string
	Runs   []MapRun
}

// MapRun is one run in a Map.
type MapRun struct {
	Name   string
	Layout *Layout
}

// maxBoxes is up to how many blocks and segments a vector figure draws each as
// a box of its own; beyond it has an image.
const maxBoxes = 4000

func (m *Map) title() (string, string) {
	if len(m.Runs) == 1 {
		return "Where blocks lie over time", m.Source + " under " + m.Runs[0].Name
	}
	return "Where blocks lie over time", m.Source
}

// lives are the classes of lifetime: names and upper ends as shares of the
// axis.
var lives = [4]struct {
	name string
	to   float64
}{{"under 1 %", 0.01}, {"1–10 %", 0.1}, {"10–50 %", 0.5}, {"over 50 % of the trace", math.Inf(1)}}

// life is the class of a block's lifetime.
func (l *Layout) life(b *BlockSpan) int {
	share := float64(b.X1-b.X0) / float64(l.Scale.Span)
	for i := range lives {
		if share < lives[i].to {
			return i
		}
	}
	return len(lives) - 1
}

func (m *Map) draw(s *sheet) error {
	if len(m.Runs) == 0 {
		return ErrNothing
	}
	var top int64
	for _, r := range m.Runs {
		top = max(top, r.Layout.Height)
	}
	if top == 0 {
		return ErrNothing
	}
	keys := []key{{text: "stranded", fill: s.theme.stranded}, {text: "cached, can be returned", fill: s.theme.cached}}
	for i := range lives {
		k := key{text: lives[i].name, fill: s.theme.life[i]}
		if i == 0 {
			k.text = "block alive for " + k.text
		}
		keys = append(keys, k)
	}
	s.legend(keys)
	return s.panels(len(m.Runs), func(i int) (string, string) {
		if len(m.Runs) == 1 {
			return "", ""
		}
		l := m.Runs[i].Layout
		return m.Runs[i].Name, fmt.Sprintf("%s of addresses, %s blocks", bytesize.Format(l.Height), text.Count(len(l.Blocks)))
	}, func(i int, w, h vg.Length) *plot.Plot {
		l := m.Runs[i].Layout
		p := s.axes()
		s.timeAxis(p, l.Scale, w)
		s.byteAxis(p, float64(top), h, "Address, compact")
		p.Add(plotterFunc(func(c draw.Canvas, p *plot.Plot) {
			if s.options.Format != PNG && len(l.Blocks)+len(l.Segments)+len(l.Cached) <= maxBoxes {
				l.boxes(c, p, s)
				return
			}
			dots := s.dots
			if s.options.Format != PNG {
				dots = 200.0 / 72
			}
			trX, trY := p.Transforms(&c)
			r := vg.Rectangle{Min: vg.Point{X: trX(0), Y: trY(0)}, Max: vg.Point{X: trX(float64(l.Scale.Span)), Y: trY(float64(l.Height))}}
			size := r.Size()
			img := l.raster(max(int(float64(size.X.Points())*dots+0.5), 1), max(int(float64(size.Y.Points())*dots+0.5), 1), s.theme)
			c.DrawImage(r, img)
		}))
		return p
	})
}

// boxes draws every segment and block by itself.
func (l *Layout) boxes(c draw.Canvas, p *plot.Plot, s *sheet) {
	trX, trY := p.Transforms(&c)
	// Viewers blend the edges of neighbours with what lies below, which would
	// look like stranded space; boxes that touch therefore overlap by a hair.
	hair := vg.Length(0.1)
	box := func(off, size, x0, x1 int64, fill color.Color, grow vg.Length, edge bool) {
		r := vg.Rectangle{
			Min: vg.Point{X: trX(float64(x0)), Y: trY(float64(off))},
			Max: vg.Point{X: trX(float64(x1)), Y: trY(float64(off + size))},
		}
		if size := r.Size(); size.X > 4*grow && size.Y > 4*grow {
			r.Min = r.Min.Sub(vg.Point{X: grow, Y: grow})
			r.Max = r.Max.Add(vg.Point{X: grow, Y: grow})
		}
		c.SetColor(fill)
		c.Fill(r.Path())
		if e := s.size * 0.035; edge && r.Max.X-r.Min.X > 4*e && r.Max.Y-r.Min.Y > 4*e {
			c.SetColor(s.theme.background)
			c.SetLineWidth(e)
			c.SetLineDash(nil, 0)
			c.Stroke(r.Path())
		}
	}
	for i := range l.Segments {
		g := &l.Segments[i]
		box(g.Offset, g.Size, g.X0, g.X1, s.theme.stranded, 0, false)
	}
	for i := range l.Cached {
		g := &l.Cached[i]
		box(g.Offset, g.Size, g.X0, g.X1, s.theme.cached, hair, false)
	}
	for i := range l.Blocks {
		b := &l.Blocks[i]
		box(b.Offset, b.Size, b.X0, b.X1, s.theme.life[l.life(b)], hair, true)
	}
}

// raster is an image of w × h pixels. Colours add up by the area that they
// cover of a pixel, so that nothing vanishes however small it is; stranded
// space counts threefold where it is less than a pixel, because it is what the
// figure is about.
func (l *Layout) raster(w, h int, th *theme) *image.RGBA {
	g := newMixer(w, h, th.background)
	fx, fy := float64(w)/float64(l.Scale.Span), float64(h)/float64(max(l.Height, 1))
	stranded := make([]float32, w*h)
	for i := range l.Segments {
		s := &l.Segments[i]
		x0, x1, y0, y1 := float64(s.X0)*fx, float64(s.X1)*fx, float64(s.Offset)*fy, float64(s.Offset+s.Size)*fy
		cover(w, h, x0, y0, x1, y1, func(at int, a float32) { stranded[at] += a })
	}
	for i := range l.Cached {
		s := &l.Cached[i]
		x0, x1, y0, y1 := float64(s.X0)*fx, float64(s.X1)*fx, float64(s.Offset)*fy, float64(s.Offset+s.Size)*fy
		cover(w, h, x0, y0, x1, y1, func(at int, a float32) { stranded[at] -= a })
		g.add(x0, y0, x1, y1, th.background, th.cached)
	}
	for i := range l.Blocks {
		b := &l.Blocks[i]
		x0, x1, y0, y1 := float64(b.X0)*fx, float64(b.X1)*fx, float64(b.Offset)*fy, float64(b.Offset+b.Size)*fy
		c := th.life[l.life(b)]
		cover(w, h, x0, y0, x1, y1, func(at int, a float32) { stranded[at] -= a })
		g.add(x0, y0, x1, y1, th.background, c)
		if x1-x0 >= 5 && y1-y0 >= 5 { // an edge of half a pixel
			e := blend(th.background, c, 0.75)
			g.add(x0, y0, x1, y0+0.5, c, e)
			g.add(x0, y1-0.5, x1, y1, c, e)
			g.add(x0, y0+0.5, x0+0.5, y1-0.5, c, e)
			g.add(x1-0.5, y0+0.5, x1, y1-0.5, c, e)
		}
	}
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		row := img.Pix[(h-1-y)*img.Stride:]
		for x := range w {
			at := y*w + x
			// What is here besides stranded space, and the space itself.
			px := g.pix[at*3 : at*3+3]
			f := min(max(stranded[at], 0), 1)
			var shown float32
			if f > 0 {
				shown = min(3*f, max(f, 0.6))
			}
			for k, sc := range [3]uint8{th.stranded.R, th.stranded.G, th.stranded.B} {
				bg := [3]uint8{th.background.R, th.background.G, th.background.B}[k]
				rest := px[k]
				if f < 1 {
					// The colour of the rest alone, as if it filled the pixel.
					rest = (px[k] - f*float32(bg)) / (1 - f)
				}
				v := rest*(1-shown) + float32(sc)*shown
				row[x*4+k] = uint8(min(max(v+0.5, 0), 255))
			}
			row[x*4+3] = 255
		}
	}
	return img
}

// mixer is an image to which colours are added by area.
type mixer struct {
	w, h int
	pix  []float32 // red, green, blue; rows from the bottom
}

func newMixer(w, h int, c color.RGBA) *mixer {
	m := &mixer{w: w, h: h, pix: make([]float32, 3*w*h)}
	for i := 0; i < len(m.pix); i += 3 {
		m.pix[i], m.pix[i+1], m.pix[i+2] = float32(c.R), float32(c.G), float32(c.B)
	}
	return m
}

// add turns what is `from` within a box into `to`.
func (m *mixer) add(x0, y0, x1, y1 float64, from, to color.RGBA) {
	r, g, b := float32(to.R)-float32(from.R), float32(to.G)-float32(from.G), float32(to.B)-float32(from.B)
	cover(m.w, m.h, x0, y0, x1, y1, func(at int, a float32) {
		p := m.pix[at*3 : at*3+3]
		p[0] += a * r
		p[1] += a * g
		p[2] += a * b
	})
}

// cover calls f for each pixel that a box touches with the share of it that
// the box covers.
func cover(w, h int, x0, y0, x1, y1 float64, f func(at int, share float32)) {
	x0, x1 = max(x0, 0), min(x1, float64(w))
	y0, y1 = max(y0, 0), min(y1, float64(h))
	if x1 <= x0 || y1 <= y0 {
		return
	}
	for y := int(y0); y < h && float64(y) < y1; y++ {
		sy := min(y1, float64(y+1)) - max(y0, float64(y))
		for x := int(x0); x < w && float64(x) < x1; x++ {
			sx := min(x1, float64(x+1)) - max(x0, float64(x))
			f(y*w+x, float32(sx*sy))
		}
	}
}
