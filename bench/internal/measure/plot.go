package measure

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
)

// palette can be told apart by the colour-blind as well (Okabe and Ito).
var palette = []color.RGBA{{0, 0x72, 0xb2, 255}, {0xd5, 0x5e, 0, 255}, {0, 0x9e, 0x73, 255}, {0xcc, 0x79, 0xa7, 255}}

// PlotHandover draws the section on hand-overs that crowds gave as SVG: a panel for one
// process and one for several, latency by number of waiters.
func PlotHandover(w io.Writer, s *report.Section, crowds []Crowd) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	one, err := handoverPanel("Hand-over latency within one process: p50 to p99", s, crowds, func(c Crowd) bool { return c.Processes == 1 })
	if err != nil {
		return err
	}
	several, err := handoverPanel("…among several processes", s, crowds, func(c Crowd) bool { return c.Processes > 1 })
	if err != nil {
		return err
	}
	// Equal axes, of whole powers of ten.
	low := math.Pow10(int(math.Floor(math.Log10(min(one.Y.Min, several.Y.Min)))))
	high := math.Pow10(int(math.Ceil(math.Log10(max(one.Y.Max, several.Y.Max)))))
	panels := [][]*plot.Plot{{one, several}}
	canvas := vgsvg.New(24*vg.Centimeter, 10*vg.Centimeter)
	width, height := canvas.Size()
	canvas.SetColor(color.White)
	canvas.Fill(vg.Rectangle{Max: vg.Point{X: width, Y: height}}.Path())
	tiles := plot.Align(panels, draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Centimeter, PadTop: vg.Millimeter, PadRight: vg.Centimeter}, draw.New(canvas))
	for i, p := range panels[0] {
		p.Y.Min, p.Y.Max = low, high
		p.Draw(tiles[0][i])
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// Who has not this font gets one that looks alike.
	_, err = w.Write(bytes.ReplaceAll(svg.Bytes(), []byte("Liberation Sans"), []byte("Liberation Sans,Arial,sans-serif")))
	return err
}

// handoverPanel has a line through the medians of each library, and from each median a
// whisker up to the 99th percentile.
func handoverPanel(title string, s *report.Section, crowds []Crowd, in func(Crowd) bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "waiters", "ms"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top = true
	crowds = slices.DeleteFunc(slices.Clone(crowds), func(c Crowd) bool { return !in(c) })
	ticks := make([]string, len(crowds))
	for i, c := range crowds {
		ticks[i] = fmt.Sprint(c.Waiters)
	}
	p.NominalX(ticks...)
	for n, name := range peer.Libraries() {
		var points struct {
			plotter.XYs
			plotter.YErrors
		}
		for x, c := range crowds {
			if median := s.Cell(c.String(), string(name), columnP50); median != nil {
				p50, p99 := median.Value, s.Cell(c.String(), string(name), columnP99).Value
				beside := 0.03 * float64(n) // so that one whisker does not hide another
				points.XYs = append(points.XYs, plotter.XY{X: float64(x) + beside, Y: p50})
				points.YErrors = append(points.YErrors, struct{ Low, High float64 }{0, p99 - p50})
			}
		}
		line, marks, err := plotter.NewLinePoints(points.XYs)
		if err != nil {
			return nil, fmt.Errorf("plot of %s: %w", name, err)
		}
		bars, err := plotter.NewYErrorBars(points)
		if err != nil {
			return nil, fmt.Errorf("plot of %s: %w", name, err)
		}
		c := palette[n%len(palette)]
		line.Color, marks.Color, bars.Color, marks.Shape = c, c, c, draw.CircleGlyph{}
		p.Add(line, marks, bars)
		p.Legend.Add(string(name), line, marks)
	}
	return p, nil
}
