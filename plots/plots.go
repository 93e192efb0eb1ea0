// Package plots turns what the simulator and the planner found out into
// figures for papers and reports: PNG, SVG and PDF, drawn with gonum/plot.
//
// Each kind of figure is a struct that holds its data (Timeline, Map,
// Fragmentation, Sizes, Compare, Pareto, Fit). The data over time come from
// observers of a run (Recorder, Space, Blocks) whose memory is bounded by the
// number of columns asked for and which keep peaks: however many events fall
// into one column of a figure, its lowest and highest value are drawn.
//
//	rec := plots.NewRecorder(tr, plots.ByTime, plots.Columns)
//	res, err := sim.Run(ctx, tr, cfg, rec)
//	err = plots.Render(w, &plots.Timeline{Runs: []plots.Run{{Name: "default", Memory: rec.Memory()}}}, plots.Options{})
//
// A figure is a function of its data and options: the same input gives the
// same bytes. The HTML report is the sub-package report.
package plots

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/recorder"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgpdf"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Columns is how many columns observers keep by default: more than any usual
// figure has pixels.
const Columns = 8192

// Format is a file format.
type Format string

// The formats.
const (
	PNG Format = "png"
	SVG Format = "svg"
	PDF Format = "pdf"
)

// FormatOf is the format that a file's name asks for by its ending.
func FormatOf(name string) (Format, error) {
	for _, f := range []Format{PNG, SVG, PDF} {
		if strings.HasSuffix(strings.ToLower(name), "."+string(f)) {
			return f, nil
		}
	}
	return "", fmt.Errorf("%s: the name of a figure ends in .png, .svg or .pdf", name)
}

// Sizes of a figure. Below the least ones labels would not fit; above the most
// an image would not fit into memory.
const (
	DefaultWidth  = 7 * vg.Inch
	DefaultHeight = 4.2 * vg.Inch
	DefaultDPI    = 150

	minWidth, minHeight = 2.4 * vg.Inch, 1.6 * vg.Inch
	maxSide             = 200 * vg.Inch
	maxPixels           = 100e6
)

// Options say how a figure is drawn. The zero value is a light PNG of the
// default size.
type Options struct {
	Format Format
	// Width and Height are the figure's size on paper; text keeps a readable
	// size on it whatever they are.
	Width, Height vg.Length
	// DPI is the dots per inch of a PNG.
	DPI int
	// Dark draws light on dark.
	Dark bool
	// Title replaces the figure's own title.
	Title string
	// Footer says how the figure can be made again: command, hash of the
	// input, version. Empty for none.
	Footer string
}

// Figure is one of the kinds of figure.
type Figure interface {
	// title is the figure's own title and a line below it.
	title() (title, below string)
	// draw fills the sheet.
	draw(*sheet) error
}

// Render writes a figure. The error says why it cannot be drawn, such as that
// there is nothing to show or that the size is impossible.
func Render(w io.Writer, f Figure, o Options) error {
	if o.Format == "" {
		o.Format = PNG
	}
	if o.Width == 0 {
		o.Width = DefaultWidth
	}
	if o.Height == 0 {
		o.Height = DefaultHeight
	}
	if o.DPI == 0 {
		o.DPI = DefaultDPI
	}
	if err := o.check(); err != nil {
		return err
	}
	th := light
	if o.Dark {
		th = dark
	}
	var c vg.CanvasWriterTo
	s := &sheet{theme: th, options: o}
	switch o.Format {
	case PNG:
		img := vgimg.NewWith(vgimg.UseWH(o.Width, o.Height), vgimg.UseDPI(o.DPI), vgimg.UseBackgroundColor(th.background))
		c, s.dots = vgimg.PngCanvas{Canvas: img}, float64(o.DPI)/72
	case SVG:
		c, s.dots = vgsvg.New(o.Width, o.Height), 1.5
	case PDF:
		c, s.dots = pdfCanvas{vgpdf.New(o.Width, o.Height)}, 1.5
	default:
		return fmt.Errorf("unknown format %q; known: png, svg, pdf", o.Format)
	}
	s.c = draw.New(c.(vg.CanvasSizer))
	title, below := f.title()
	if o.Title != "" {
		title = o.Title
	}
	s.begin(title, below)
	if err := f.draw(s); errors.Is(err, errRoom) {
		return roomFor(f, o, th, title, below)
	} else if err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	out := b.Bytes()
	switch o.Format {
	case SVG:
		out = finishSVG(out, title, below)
	case PDF:
		out = pdfDates.ReplaceAll(out, []byte("${1}20000101000000"))
	}
	_, err := w.Write(out)
	return err
}

// errRoom is returned by a figure's draw when a panel would have no room for
// its data.
var errRoom = errors.New("too little room")

// roomFor is the error for a figure that is too small for its parts: it says
// what is enough, in height if that does, else in width, else in both.
func roomFor(f Figure, o Options, th *theme, title, below string) error {
	enough := func(w, h vg.Length) bool {
		o := o
		o.Width, o.Height = w, h
		s := &sheet{theme: th, options: o, dots: 1, dry: true}
		s.c = draw.NewCanvas(&recorder.Canvas{}, w, h)
		s.begin(title, below)
		return f.draw(s) == nil
	}
	const step = vg.Inch / 10
	up := func(x, scale vg.Length) vg.Length { return vg.Length(math.Ceil(float64(x*scale/step))) * step }
	// No more than a page is high or a poster is wide.
	const tallest, widest = 12 * vg.Inch, 48 * vg.Inch
	for k := vg.Length(1); up(o.Height, k) <= tallest; k *= 1.03 {
		if h := up(o.Height, k); enough(o.Width, h) {
			return fmt.Errorf("the figure is too small for its parts: it needs --height %.1fin or more", h.Points()/72)
		}
	}
	for k := vg.Length(1); up(o.Width, k) <= widest; k *= 1.03 {
		if w := up(o.Width, k); enough(w, o.Height) {
			return fmt.Errorf("the figure is too small for its parts: it needs --width %.1fin or more", w.Points()/72)
		}
	}
	for k := vg.Length(1); max(up(o.Width, k), up(o.Height, k)) <= maxSide; k *= 1.03 {
		if w, h := up(o.Width, k), up(o.Height, k); enough(w, h) {
			return fmt.Errorf("the figure is too small for its parts: it needs --width %.1fin --height %.1fin or more", w.Points()/72, h.Points()/72)
		}
	}
	return errors.New("no figure has room for so many parts; show fewer")
}

func (o *Options) check() error {
	bad := func(x vg.Length) bool { return math.IsNaN(float64(x)) || x > maxSide }
	switch {
	case bad(o.Width) || bad(o.Height) || o.Width < minWidth || o.Height < minHeight:
		return fmt.Errorf("a figure of %.4g × %.4g in cannot be drawn; width is %.3g to %.3g in, height %.3g to %.3g in",
			o.Width.Points()/72, o.Height.Points()/72, minWidth.Points()/72, maxSide.Points()/72, minHeight.Points()/72, maxSide.Points()/72)
	case o.DPI < 30 || o.DPI > 2400:
		return fmt.Errorf("%d dots per inch: 30 to 2400 are possible", o.DPI)
	case o.Format == PNG && float64(o.Width.Points()/72)*float64(o.Height.Points()/72)*float64(o.DPI)*float64(o.DPI) > maxPixels:
		return fmt.Errorf("%.0f × %.0f pixels are too many (at most %.0f million in all); lower --dpi or the size",
			o.Width.Points()/72*float64(o.DPI), o.Height.Points()/72*float64(o.DPI), maxPixels/1e6)
	}
	return nil
}

// pdfCanvas hands texts to the PDF writer in the encoding that its fonts have.
type pdfCanvas struct{ *vgpdf.Canvas }

// FillString draws a text.
func (c pdfCanvas) FillString(f font.Face, pt vg.Point, txt string) {
	var b []byte
	for _, r := range txt {
		switch i := strings.IndexRune(windows1252, r); {
		case r < 0x100:
			b = append(b, byte(r))
		case i >= 0:
			b = append(b, windows1252Codes[utf8.RuneCountInString(windows1252[:i])])
		default:
			b = append(b, '?')
		}
	}
	c.Canvas.FillString(f, pt, string(b))
}

// The characters of Windows code page 1252 that are not those of Latin-1.
const (
	windows1252      = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
	windows1252Codes = "\x80\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8e\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9e\x9f"
)

// pdfDates are the times that the PDF writer stamps; a fixed one of the same
// length takes their place, so that offsets stay right.
var pdfDates = regexp.MustCompile(`(/(?:CreationDate|ModDate) \(D:)\d{14}`)

// svgText is a text as vgsvg writes it.
var svgText = regexp.MustCompile(`(<text [^>]*?)\s*style="font-family:[^;]*;font-variant:([^;]*);font-weight:[^;]*;(font-style:[^;]*;font-size:([0-9.e+-]+)px)([^>]*>)([^<]*)</text>`)

// finishSVG gives an SVG a name for screen readers, and texts that keep their
// width where other fonts have to stand in for Liberation.
func finishSVG(b []byte, title, below string) []byte {
	b = bytes.ReplaceAll(b, []byte("data:image/jpg;"), []byte("data:image/png;")) // which it is
	b = svgText.ReplaceAllFunc(b, func(m []byte) []byte {
		// before, variant, style and size, size, end of the tag, text
		p := svgText.FindSubmatch(m)
		f, weight := sans, "normal"
		if bytes.EqualFold(p[2], []byte(strong.Variant)) {
			f, weight = strong, "bold"
		}
		size, err := strconv.ParseFloat(string(p[4]), 64)
		if err != nil {
			return m
		}
		txt := html.UnescapeString(string(p[6]))
		f.Size = vg.Length(size)
		face := fonts.Lookup(f, f.Size)
		w := face.Width(txt)
		return fmt.Appendf(nil, `%s textLength="%.4g" lengthAdjust="spacingAndGlyphs" style="font-family:'Liberation Sans',Arial,Helvetica,sans-serif;font-weight:%s;%s%s%s</text>`,
			bytes.TrimSpace(p[1]), w.Points(), weight, p[3], p[5], p[6])
	})
	i := bytes.Index(b, []byte("<svg "))
	j := bytes.IndexByte(b[max(i, 0):], '>')
	if i < 0 || j < 0 {
		return b
	}
	j += i
	var out bytes.Buffer
	out.Write(b[:i])
	out.WriteString(`<svg role="img" aria-label="`)
	out.WriteString(escape(strings.TrimSpace(title + ". " + below)))
	out.WriteString(`" `)
	out.Write(b[i+len("<svg ") : j+1])
	out.WriteString("\n<title>" + escape(title) + "</title>")
	out.Write(b[j+1:])
	return out.Bytes()
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

func escape(s string) string { return escaper.Replace(printable(s)) }

// printable replaces control characters, which neither XML nor a font has.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0xfffe || r == 0xffff {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// ErrNothing is returned by Render for a figure without data: the trace has no
// allocations, or all of them failed.
var ErrNothing = errors.New("there is nothing to draw")
