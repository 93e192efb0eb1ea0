package plots

import (
	"image/color"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// theme is the colours of a figure. Hues are Okabe and Ito's, which readers
// with any colour vision tell apart (https://jfly.uni-koeln.de/color/); lines
// also differ in their dashes, areas in their lightness, so that a print in
// grey can be read.
type theme struct {
	background, text, muted, axis, grid color.RGBA

	reserved, allocated, active, limit, bound color.RGBA
	slack, live                               color.RGBA // areas
	alarm, retry                              color.RGBA
	// stranded and cached are free memory in segments that something keeps or
	// nothing does; life are blocks, short-lived to long-lived.
	stranded, cached color.RGBA
	life             [4]color.RGBA
	// series are colours for any number of things side by side.
	series []color.RGBA
	good   color.RGBA
}

func rgb(hex uint32) color.RGBA {
	return color.RGBA{uint8(hex >> 16), uint8(hex >> 8), uint8(hex), 255}
}

// blend is a over b with opacity t.
func blend(a, b color.RGBA, t float64) color.RGBA {
	mix := func(x, y uint8) uint8 { return uint8(float64(x)*t + float64(y)*(1-t) + 0.5) }
	return color.RGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 255}
}

var light = &theme{
	background: rgb(0xffffff), text: rgb(0x1a1a1a), muted: rgb(0x5c5c5c), axis: rgb(0x404040), grid: rgb(0xe4e4e4),
	reserved: rgb(0xd55e00), allocated: rgb(0x0072b2), active: rgb(0x333333), limit: rgb(0x1a1a1a), bound: rgb(0x007a5a),
	slack: rgb(0xfbe3d2), live: rgb(0xb5d6ea),
	alarm: rgb(0xb3003c), retry: rgb(0x8a3f70),
	stranded: rgb(0xf0a35c), cached: rgb(0xdedede),
	life:   [4]color.RGBA{rgb(0xa6d3ee), rgb(0x5aa9d6), rgb(0x0072b2), rgb(0x0b3d63)},
	series: []color.RGBA{rgb(0x0072b2), rgb(0xd55e00), rgb(0x009e73), rgb(0xcc79a7), rgb(0xe69f00), rgb(0x56b4e9), rgb(0x4d4d4d)},
	good:   rgb(0x009e73),
}

var dark = &theme{
	background: rgb(0x15181c), text: rgb(0xececec), muted: rgb(0xa9adb3), axis: rgb(0xb4b8bd), grid: rgb(0x2e3338),
	reserved: rgb(0xf28e4a), allocated: rgb(0x56b4e9), active: rgb(0xd8d8d8), limit: rgb(0xf2f2f2), bound: rgb(0x38c99b),
	slack: rgb(0x46301f), live: rgb(0x1e4660),
	alarm: rgb(0xff6f91), retry: rgb(0xe3a3c7),
	stranded: rgb(0xc2722b), cached: rgb(0x3a3f45),
	life:   [4]color.RGBA{rgb(0x255d80), rgb(0x2f86b8), rgb(0x5fb6ea), rgb(0xa3d5f3)},
	series: []color.RGBA{rgb(0x56b4e9), rgb(0xf28e4a), rgb(0x2fc08f), rgb(0xe3a3c7), rgb(0xf0c04a), rgb(0x3d8fd1), rgb(0xb4b8bd)},
	good:   rgb(0x2fc08f),
}

// fonts are the faces of figures; they come with the program, so that a figure
// looks the same everywhere.
var fonts = font.NewCache(faces())

var (
	sans = font.Font{Typeface: "Liberation", Variant: "Sans"}
	// strong is bold as a variant of its own, told from sans by its name.
	strong = font.Font{Typeface: "Liberation", Variant: "SansBold"}
)

// faces are the two faces used.
func faces() font.Collection {
	var out font.Collection
	for _, f := range liberation.Collection() {
		if f.Font.Variant != sans.Variant || f.Font.Style != xfont.StyleNormal {
			continue
		}
		switch f.Font.Weight {
		case xfont.WeightNormal:
			out = append(out, f)
		case xfont.WeightBold:
			f.Font = strong
			out = append(out, f)
		}
	}
	return out
}

// sheet is a figure being drawn: c is what is left of the canvas.
type sheet struct {
	c       draw.Canvas
	theme   *theme
	options Options
	// dots is the resolution in which columns are drawn, per point.
	dots float64
	size vg.Length // of text
	gap  vg.Length
	// dry only finds out whether there is room.
	dry bool
}

// fits reports errRoom when a plot in a cell would have next to no room for its
// data between the axes.
func (s *sheet) fits(p *plot.Plot, cell draw.Canvas) error {
	least := vg.Point{X: s.size * 5, Y: s.size * 2}
	// What the labels of a cell without room leave is not defined.
	if c := cell.Size(); c.X < least.X || c.Y < least.Y {
		return errRoom
	}
	if d := p.DataCanvas(cell).Size(); d.X < least.X || d.Y < least.Y {
		return errRoom
	}
	return nil
}

// begin draws background, title and footer and leaves the middle.
func (s *sheet) begin(title, below string) {
	c := &s.c
	c.SetColor(s.theme.background)
	c.Fill(c.Rectangle.Path())
	w := c.Max.X - c.Min.X
	// Text of 7 to 14 points: a figure of one column stays legible and a
	// poster does not look empty.
	s.size = min(max(w/60, 7), 16)
	s.gap = s.size * 0.8
	*c = draw.Crop(*c, s.gap*1.2, -s.gap*1.4, s.gap, -s.gap)
	if s.options.Footer != "" {
		sty := s.style(0.72, s.theme.muted)
		lines := s.wrap(sty, s.options.Footer, c.Max.X-c.Min.X, 3)
		y := c.Min.Y
		for i := len(lines) - 1; i >= 0; i-- {
			sty.YAlign = draw.YBottom
			c.FillText(sty, vg.Point{X: c.Min.X, Y: y}, lines[i])
			y += sty.Font.Size * 1.25
		}
		c.Min.Y = y + s.gap*0.3
	}
	if title != "" {
		s.paragraph(s.bold(1.25, s.theme.text), title, 2)
	}
	if below != "" {
		s.paragraph(s.style(0.95, s.theme.muted), below, 2)
	}
	c.Max.Y -= s.gap * 0.4
}

// style is text of a size relative to the figure's own.
func (s *sheet) style(scale float64, c color.Color) text.Style {
	f := sans
	f.Size = s.size * vg.Length(scale)
	return text.Style{Color: c, Font: f, Handler: text.Plain{Fonts: fonts}, YAlign: draw.YBottom}
}

// bold is style in bold. The PDF writer can embed one face only, so that
// there it is the usual one.
func (s *sheet) bold(scale float64, c color.Color) text.Style {
	sty := s.style(scale, c)
	if s.options.Format != PDF {
		sty.Font.Variant = strong.Variant
	}
	return sty
}

// paragraph draws text at the top of what is left and takes its room.
func (s *sheet) paragraph(sty text.Style, txt string, most int) {
	c := &s.c
	for _, line := range s.wrap(sty, txt, c.Max.X-c.Min.X, most) {
		c.Max.Y -= sty.Font.Size * 1.3
		sty.YAlign = draw.YBottom
		c.FillText(sty, vg.Point{X: c.Min.X, Y: c.Max.Y}, line)
	}
}

// wrap breaks text into at most `most` lines of a width; what is left over is
// cut with "…".
func (s *sheet) wrap(sty text.Style, txt string, width vg.Length, most int) []string {
	var lines []string
	words := strings.Fields(winAnsi(printable(txt)))
	for len(words) > 0 {
		n := 1
		for n < len(words) && sty.Width(strings.Join(words[:n+1], " ")) <= width {
			n++
		}
		line := strings.Join(words[:n], " ")
		words = words[n:]
		if len(lines)+1 == most && len(words) > 0 {
			return append(lines, s.cut(sty, line+" "+words[0], width))
		}
		if sty.Width(line) > width { // one long word: break it anywhere
			r := []rune(line)
			n := len(r)
			for n > 1 && sty.Width(string(r[:n])) > width {
				n--
			}
			if len(lines)+1 == most {
				return append(lines, s.cut(sty, line, width))
			}
			line = string(r[:n])
			words = append([]string{string(r[n:])}, words...)
		}
		lines = append(lines, line)
	}
	return lines
}

// cut shortens text to a width with "…".
func (s *sheet) cut(sty text.Style, txt string, width vg.Length) string {
	txt = winAnsi(printable(txt))
	if sty.Width(txt) <= width {
		return txt
	}
	r := []rune(txt)
	for len(r) > 0 && sty.Width(string(r)+"…") > width {
		r = r[:len(r)-1]
	}
	return strings.TrimRight(string(r), " ") + "…"
}

// cutMiddle shortens text to a width, keeping both ends.
func (s *sheet) cutMiddle(sty text.Style, txt string, width vg.Length) string {
	txt = winAnsi(printable(txt))
	if sty.Width(txt) <= width {
		return txt
	}
	r := []rune(txt)
	head, tail := (len(r)+1)/2, len(r)/2
	for head+tail > 2 && sty.Width(string(r[:head])+"…"+string(r[len(r)-tail:])) > width {
		if head > tail {
			head--
		} else {
			tail--
		}
	}
	return string(r[:head]) + "…" + string(r[len(r)-tail:])
}

// winAnsi replaces what the PDF writer's encoding (Windows code page 1252)
// lacks, in every format alike.
func winAnsi(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x100 || strings.ContainsRune(windows1252, r) {
			return r
		}
		return '?'
	}, s)
}

// key is an entry of a legend.
type key struct {
	text  string
	line  *draw.LineStyle
	fill  color.Color
	glyph *draw.GlyphStyle
}

// legend draws entries in rows at the top of what is left.
func (s *sheet) legend(keys []key) {
	if len(keys) == 0 {
		return
	}
	c := &s.c
	sty := s.style(0.92, s.theme.text)
	sample, space := s.size*2, s.size*1.3
	row := sty.Font.Size * 1.5
	x := c.Min.X
	y := c.Max.Y - row
	for _, k := range keys {
		txt := s.cut(sty, k.text, c.Max.X-c.Min.X-sample-s.size*0.5)
		w := sample + s.size*0.5 + sty.Width(txt)
		if x > c.Min.X && x+w > c.Max.X {
			x = c.Min.X
			y -= row
		}
		mid := y + row*0.45
		if k.fill != nil {
			h := sty.Font.Size * 0.8
			c.SetColor(k.fill)
			c.Fill(vg.Rectangle{Min: vg.Point{X: x, Y: mid - h/2}, Max: vg.Point{X: x + sample, Y: mid + h/2}}.Path())
		}
		if k.line != nil {
			at := mid
			if k.fill != nil {
				at = mid + sty.Font.Size*0.4
			}
			c.StrokeLine2(*k.line, x, at, x+sample, at)
		}
		if k.glyph != nil {
			c.DrawGlyphNoClip(*k.glyph, vg.Point{X: x + sample/2, Y: mid})
		}
		sty.YAlign = draw.YCenter
		c.FillText(sty, vg.Point{X: x + sample + s.size*0.5, Y: mid}, txt)
		x += w + space
	}
	c.Max.Y = y - s.gap*0.5
}

// line is a style of line.
func (s *sheet) line(c color.Color, width float64, dashes ...vg.Length) draw.LineStyle {
	u := s.size / 8
	d := make([]vg.Length, len(dashes))
	for i := range d {
		d[i] = dashes[i] * u
	}
	return draw.LineStyle{Color: c, Width: vg.Length(width) * u, Dashes: d}
}

// axes is a plot with the figure's styles and no data.
func (s *sheet) axes() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.TextHandler = text.Plain{Fonts: fonts}
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Padding = 0
		a.LineStyle = s.line(s.theme.axis, 0.6)
		a.Tick.LineStyle = s.line(s.theme.axis, 0.6)
		a.Tick.Length = s.size * 0.4
		label := s.style(0.95, s.theme.text)
		label.XAlign, label.YAlign = a.Label.TextStyle.XAlign, a.Label.TextStyle.YAlign
		label.Rotation = a.Label.TextStyle.Rotation
		a.Label.TextStyle = label
		a.Label.Padding = s.size * 0.3
		tick := s.style(0.9, s.theme.text)
		tick.XAlign, tick.YAlign = a.Tick.Label.XAlign, a.Tick.Label.YAlign
		a.Tick.Label = tick
	}
	return p
}

// grid draws lines at the main ticks of the y axis, and with x of the x axis.
type grid struct {
	style draw.LineStyle
	x     bool
}

func (g grid) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		if y := trY(t.Value); !t.IsMinor() && c.ContainsY(y) {
			c.StrokeLine2(g.style, c.Min.X, y, c.Max.X, y)
		}
	}
	if g.x {
		for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
			if x := trX(t.Value); !t.IsMinor() && c.ContainsX(x) {
				c.StrokeLine2(g.style, x, c.Min.Y, x, c.Max.Y)
			}
		}
	}
}

func (s *sheet) grid(x bool) grid { return grid{style: s.line(s.theme.grid, 0.5), x: x} }

// plotterFunc is a function as a plotter.
type plotterFunc func(c draw.Canvas, p *plot.Plot)

func (f plotterFunc) Plot(c draw.Canvas, p *plot.Plot) { f(c, p) }
