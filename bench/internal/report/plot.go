package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// Series is one line of a plot.
type Series struct {
	Name   string
	Points []Point
}

// Point is a value and how far it reaches up, both above zero, at a position
// along the axis.
type Point struct {
	X        int // index into Plot.Ticks
	Mid, Top float64
}

// Panel is one pair of axes.
type Panel struct {
	Title  string
	Series []Series
}

// Plot is a row of panels with equal axes; the vertical one is logarithmic.
type Plot struct {
	Title  string
	X, Y   string   // what the axes are
	Ticks  []string // along X, at equal distances
	Panels []Panel
}

// The layout, in pixels.
const (
	panelWidth  = 330
	panelHeight = 250
	marginLeft  = 62
	marginTop   = 64
	marginRight = 92 // the names at the ends of the lines
	marginFoot  = 50
	inset       = 28 // of the first and last tick
	labelHeight = 13
)

// palette can be told apart by the colour-blind as well (Okabe and Ito).
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// WriteSVG draws the plot: a line through the middle values, and from each a
// whisker up to its top. Without a point there is nothing to draw, an error.
func (p *Plot) WriteSVG(w io.Writer) error {
	low, high, ok := p.decades()
	if !ok {
		return fmt.Errorf("plot %q: no points", p.Title)
	}
	var b strings.Builder
	step := marginLeft + panelWidth + marginRight
	width, height := step*len(p.Panels), marginTop+panelHeight+marginFoot
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	text(&b, 16, 24, "start", "#111", `font-size="15" font-weight="bold"`, p.Title)
	for i, panel := range p.Panels {
		f := frame{left: float64(i*step + marginLeft), low: low, high: high, ticks: len(p.Ticks)}
		p.axes(&b, f, panel.Title)
		labels := make([]label, 0, len(panel.Series))
		for n, s := range panel.Series {
			color := palette[n%len(palette)]
			s.draw(&b, f, color)
			if len(s.Points) > 0 {
				labels = append(labels, label{f.y(s.Points[len(s.Points)-1].Mid), s.Name, color})
			}
		}
		for _, l := range apart(labels) {
			text(&b, f.left+panelWidth+6, l.y+4, "start", l.color, "", l.name)
		}
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// decades returns the powers of ten that enclose all points.
func (p *Plot) decades() (low, high int, ok bool) {
	least, most := math.Inf(1), math.Inf(-1)
	for _, panel := range p.Panels {
		for _, s := range panel.Series {
			for _, pt := range s.Points {
				least, most = min(least, pt.Mid), max(most, pt.Top)
			}
		}
	}
	if least > most {
		return 0, 0, false
	}
	low, high = int(math.Floor(math.Log10(least))), int(math.Ceil(math.Log10(most)))
	return low, max(high, low+1), true
}

// frame maps values to pixels of one panel.
type frame struct {
	left             float64
	low, high, ticks int
}

func (f frame) x(tick int) float64 {
	return f.left + inset + float64(tick)*(panelWidth-2*inset)/float64(max(1, f.ticks-1))
}

func (f frame) y(v float64) float64 {
	return marginTop + panelHeight*(float64(f.high)-math.Log10(v))/float64(f.high-f.low)
}

func (p *Plot) axes(b *strings.Builder, f frame, title string) {
	const foot = marginTop + panelHeight
	text(b, f.left, marginTop-12, "start", "#111", `font-weight="bold"`, title)
	for d := f.low; d <= f.high; d++ {
		y := f.y(math.Pow10(d))
		line(b, f.left, y, f.left+panelWidth, y, "#ddd", 1)
		text(b, f.left-8, y+4, "end", "#444", "", fmt.Sprintf("%g", math.Pow10(d)))
	}
	for i, tick := range p.Ticks {
		line(b, f.x(i), foot, f.x(i), foot+5, "#444", 1)
		text(b, f.x(i), foot+20, "middle", "#444", "", tick)
	}
	line(b, f.left, foot, f.left+panelWidth, foot, "#444", 1)
	text(b, f.left+panelWidth/2, foot+40, "middle", "#111", "", p.X)
	y := marginTop + panelHeight/2.0
	text(b, f.left-44, y, "middle", "#111", fmt.Sprintf(`transform="rotate(-90 %.1f %.1f)"`, f.left-44, y), p.Y)
}

func (s Series) draw(b *strings.Builder, f frame, color string) {
	var path strings.Builder
	for _, pt := range s.Points {
		x, y, top := f.x(pt.X), f.y(pt.Mid), f.y(pt.Top)
		fmt.Fprintf(&path, "%.1f,%.1f ", x, y)
		line(b, x, y, x, top, color, 1)
		line(b, x-4, top, x+4, top, color, 1)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`+"\n", x, y, color)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
		strings.TrimSpace(path.String()), color)
}

func line(b *strings.Builder, x1, y1, x2, y2 float64, color string, width float64) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g"/>`+"\n",
		x1, y1, x2, y2, color, width)
}

func text(b *strings.Builder, x, y float64, anchor, color, attrs, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" %s>%s</text>`+"\n",
		x, y, anchor, color, attrs, html.EscapeString(s))
}
