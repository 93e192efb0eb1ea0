package plots

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"allocsim/internal/bytesize"
)

// Fit shows on which cards a job runs under which settings, with the memory
// left over.
type Fit struct {
	// Source names the trace.
	Source string
	// Settings are the columns, Needs the smallest capacity that each works
	// on under every address order tried, in bytes.
	Settings []string
	Needs    []int64
	Cards    []FitCard
}

// FitCard is a row of a Fit.
type FitCard struct {
	Name   string
	Usable int64 // bytes that an allocator gets at least
	Cells  []FitCell
}

// FitCell is the verdict on a card under a setting.
type FitCell struct {
	Verdict  string // "fits", "tight", "no" or "unknown"
	Headroom int64  // bytes; negative when they are missing
}

func (f *Fit) title() (string, string) {
	return "Which card fits", f.Source + ": memory left on each card (usable by the allocator, less the smallest capacity that works)"
}

func (f *Fit) draw(s *sheet) error {
	n, m := len(f.Cards), len(f.Settings)
	if n == 0 || m == 0 {
		return ErrNothing
	}
	th := s.theme
	fits, tight, no := blend(th.good, th.background, 0.4), blend(th.series[4], th.background, 0.55), blend(th.reserved, th.background, 0.28)
	s.legend([]key{{text: "fits", fill: fits}, {text: "tight: driver and libraries decide", fill: tight}, {text: "does not fit", fill: no}})
	c := s.c
	w, h := c.Max.X-c.Min.X, c.Max.Y-c.Min.Y
	head := s.bold(0.9, th.text)
	name := s.style(0.95, th.text)
	left, usable := vg.Length(0), name.Width("usable")
	for _, card := range f.Cards {
		left = max(left, name.Width(printable(card.Name)))
		usable = max(usable, name.Width(bytesize.FormatDown(card.Usable)))
	}
	left = min(left+usable+s.size*1.6, w*0.5)
	colW := (w - left) / vg.Length(m)
	if colW < s.size*5 {
		return errRoom
	}
	headRows := 1
	for _, setting := range f.Settings {
		headRows = max(headRows, len(s.wrap(head, breakable(setting), colW-s.size*0.6, 3)))
	}
	headH := head.Font.Size*1.25*vg.Length(headRows) + s.size*1.6
	rowH := (h - headH) / vg.Length(n)
	size := min(0.95, float64(rowH/s.size)/1.25)
	if size < 0.55 {
		return fmt.Errorf("%d cards need a higher figure: --height %.1fin or more", n, (float64(headH)+float64(n)*float64(s.size)*0.55*1.3+float64(s.options.Height-h))/72)
	}
	if s.dry {
		return nil
	}
	name = s.style(size, th.text)
	label := s.style(0.82, th.muted)
	label.XAlign = draw.XRight
	c.FillText(label, vg.Point{X: c.Min.X + left - s.size*0.6, Y: c.Max.Y - headH + s.size*0.4}, "usable")
	for j, setting := range f.Settings {
		x := c.Min.X + left + vg.Length(j)*colW
		lines := s.wrap(head, breakable(setting), colW-s.size*0.6, headRows)
		y := c.Max.Y
		for _, l := range lines {
			y -= head.Font.Size * 1.25
			c.FillText(head, vg.Point{X: x + s.size*0.3, Y: y}, l)
		}
		sty := s.style(0.82, th.muted)
		c.FillText(sty, vg.Point{X: x + s.size*0.3, Y: c.Max.Y - headH + s.size*0.4}, s.cut(sty, "needs "+bytesize.FormatUp(f.Needs[j]), colW-s.size*0.6))
	}
	for i, card := range f.Cards {
		y1 := c.Max.Y - headH - vg.Length(i)*rowH
		y0 := y1 - rowH
		mid := (y0 + y1) / 2
		name.YAlign = draw.YCenter
		c.FillText(name, vg.Point{X: c.Min.X, Y: mid}, s.cut(name, card.Name, left-usable-s.size*1.2))
		room := name
		room.XAlign = draw.XRight
		c.FillText(room, vg.Point{X: c.Min.X + left - s.size*0.6, Y: mid}, bytesize.FormatDown(card.Usable))
		for j, cell := range card.Cells {
			x := c.Min.X + left + vg.Length(j)*colW
			var fill color.Color
			sign := "+"
			switch cell.Verdict {
			case "fits":
				fill = fits
			case "tight":
				fill = tight
			case "no":
				fill = no
			default:
				fill = th.cached
			}
			gap := s.size * 0.1
			c.FillPolygon(fill, []vg.Point{{X: x + gap, Y: y0 + gap}, {X: x + colW - gap, Y: y0 + gap}, {X: x + colW - gap, Y: y1 - gap}, {X: x + gap, Y: y1 - gap}})
			sty := s.style(size, th.text)
			sty.YAlign, sty.XAlign = draw.YCenter, draw.XCenter
			v := cell.Headroom
			if v < 0 {
				sign, v = "–", -v
			}
			txt := cell.Verdict + "  " + sign + bytesize.Format(v)
			if sty.Width(txt) > colW-s.size*0.4 {
				txt = sign + bytesize.Format(v)
			}
			c.FillText(sty, vg.Point{X: x + colW/2, Y: mid}, s.cut(sty, txt, colW-s.size*0.2))
		}
	}
	return nil
}

// breakable lets a setting be broken at its commas.
func breakable(s string) string {
	var out []rune
	for _, r := range s {
		out = append(out, r)
		if r == ',' {
			out = append(out, ' ')
		}
	}
	return string(out)
}
