// Command plot reads what BenchmarkHandover prints, and writes the picture of it as SVG:
//
//	go run ./plot < results/results.txt > results/handover.svg
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"image/color"
	"io"
	"log"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// libraries are what the picture shows, in colours that the colour-blind can tell apart (Okabe and Ito).
var libraries = []struct {
	name  string
	color color.RGBA
}{
	{"joblock", color.RGBA{0, 0x72, 0xb2, 255}},
	{"redislock", color.RGBA{0xd5, 0x5e, 0, 255}},
	{"redsync", color.RGBA{0, 0x9e, 0x73, 255}},
	{"rueidislock", color.RGBA{0xcc, 0x79, 0xa7, 255}},
}

// crowd is one case of one library.
type crowd struct {
	waiters int
	several bool // processes
	library string
}

// latencies are of several runs, in ms.
type latencies struct{ p50, p99 []float64 }

func main() {
	log.SetFlags(0)
	found, err := read(os.Stdin)
	if err == nil {
		err = write(os.Stdout, found)
	}
	if err != nil {
		log.Fatal("plot: ", err)
	}
}

func read(r io.Reader) (map[crowd]*latencies, error) {
	found := make(map[crowd]*latencies)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "BenchmarkHandover/") {
			continue
		}
		var c crowd
		var processes int
		name := strings.NewReplacer("/", " ", "-", " ").Replace(fields[0])
		if _, err := fmt.Sscanf(name, "BenchmarkHandover waiters=%d processes=%d lib=%s", &c.waiters, &processes, &c.library); err != nil {
			return nil, fmt.Errorf("%s: %w", fields[0], err)
		}
		c.several = processes > 1
		if found[c] == nil {
			found[c] = &latencies{}
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, err
			}
			switch fields[i+1] {
			case "p50-ns":
				found[c].p50 = append(found[c].p50, v/1e6)
			case "p99-ns":
				found[c].p99 = append(found[c].p99, v/1e6)
			}
		}
	}
	return found, lines.Err()
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// write draws a panel for one process and one for several, with equal axes.
func write(w io.Writer, found map[crowd]*latencies) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	one, err := panel("Hand-over latency within one process: p50 to p99", found, false)
	if err != nil {
		return err
	}
	several, err := panel("…among several processes", found, true)
	if err != nil {
		return err
	}
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
	_, err = w.Write(bytes.ReplaceAll(svg.Bytes(), []byte("Liberation Sans"), []byte("Liberation Sans,Arial,sans-serif")))
	return err
}

// panel has a line through the medians of each library, and from each median a whisker up to the 99th percentile.
func panel(title string, found map[crowd]*latencies, several bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "waiters", "ms"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top = true
	all := make(map[int]string) // of waiters
	for c := range found {
		if c.several == several {
			all[c.waiters] = strconv.Itoa(c.waiters)
		}
	}
	waiters := slices.Sorted(maps.Keys(all))
	var ticks []string
	for _, n := range waiters {
		ticks = append(ticks, all[n])
	}
	p.NominalX(ticks...)
	for i, library := range libraries {
		var points struct {
			plotter.XYs
			plotter.YErrors
		}
		for x, n := range waiters {
			l := found[crowd{n, several, library.name}]
			if l == nil {
				return nil, fmt.Errorf("%s with %d waiters was not measured", library.name, n)
			}
			p50 := median(l.p50)
			points.XYs = append(points.XYs, plotter.XY{X: float64(x) + 0.03*float64(i), Y: p50}) // so that no whisker hides another
			points.YErrors = append(points.YErrors, struct{ Low, High float64 }{0, median(l.p99) - p50})
		}
		line, marks, err := plotter.NewLinePoints(points.XYs)
		if err != nil {
			return nil, err
		}
		bars, err := plotter.NewYErrorBars(points)
		if err != nil {
			return nil, err
		}
		line.Color, marks.Color, bars.Color, marks.Shape = library.color, library.color, library.color, draw.CircleGlyph{}
		p.Add(line, marks, bars)
		p.Legend.Add(library.name, line, marks)
	}
	return p, nil
}
