package main

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// chartSpec is one drawing.
type chartSpec struct {
	name string
	// series are drawn by size or number of queue pairs, if there are several
	// points; else as bars.
	series func(*results) []*series
	make   func(*results, []*series) (*plot.Plot, error)
}

var chartSpecs = []chartSpec{
	{"bandwidth", func(r *results) []*series { return r.seriesOf(loopback, bandwidth) }, func(_ *results, all []*series) (*plot.Plot, error) {
		return lines(all, "Bandwidth, loopback", "message size in bytes", "Gb/s", bySize, false)
	}},
	{"latency", func(r *results) []*series { return r.seriesOf(loopback, latency) }, func(_ *results, all []*series) (*plot.Plot, error) {
		return lines(all, "Latency, loopback", "message size in bytes", "half a round trip in µs", bySize, true)
	}},
	{"rate", func(r *results) []*series { return r.seriesOf(loopback, rate) }, func(_ *results, all []*series) (*plot.Plot, error) {
		return bars(all, "Messages of 8 bytes, loopback", "million per second", func(s *series) float64 { return s.Sum.Median })
	}},
	{"cpu", func(r *results) []*series { return r.withCPU(loopback) }, func(_ *results, all []*series) (*plot.Plot, error) {
		return bars(all, "CPU time of both processes, 1 MiB, loopback", "seconds per gigabyte", func(s *series) float64 { return spreadOf(s.CPU).Median })
	}},
	{"queues", func(r *results) []*series { return r.seriesOf(loopback, queues) }, func(_ *results, all []*series) (*plot.Plot, error) {
		return lines(all, "WRITEs of 4 KiB over several queue pairs, loopback", "queue pairs", "Gb/s together", func(s *series) float64 { return float64(s.QPs) }, false)
	}},
}

func bySize(s *series) float64 { return float64(s.Size) }

// chartNames returns the files of the charts for which there are figures, relative
// to the page.
func chartNames(r *results) map[string]string {
	names := map[string]string{}
	for _, c := range chartSpecs {
		if len(measured(c.series(r))) > 0 {
			names[c.name] = "benchmark/" + c.name + ".svg"
		}
	}
	return names
}

// drawCharts writes them into a folder.
func drawCharts(r *results, folder string) error {
	for _, c := range chartSpecs {
		all := measured(c.series(r))
		if len(all) == 0 {
			continue
		}
		p, err := c.make(r, all)
		if err != nil {
			return fmt.Errorf("chart %s: %w", c.name, err)
		}
		if err := p.Save(24*vg.Centimeter, 14*vg.Centimeter, filepath.Join(folder, c.name+".svg")); err != nil {
			return fmt.Errorf("chart %s: %w", c.name, err)
		}
	}
	return nil
}

func measured(all []*series) []*series {
	return slices.DeleteFunc(slices.Clone(all), func(s *series) bool { return !known(s.Sum.Median) })
}

// colours can be told apart by colour-blind readers; a contestant has the same one
// in all charts.
var colours = map[string]color.Color{
	"goroce":      color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
	"floor":       color.RGBA{R: 0x44, G: 0x44, B: 0x44, A: 0xff},
	"iperf3":      color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
	"UCX":         color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
	"libfabric":   color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	"net.UDPConn": color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
}

// lines draws a line per contestant, with least and most at each point; the values
// by their logarithms where they differ by orders of magnitude.
func lines(all []*series, title, x, y string, at func(*series) float64, logarithmic bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = ticksAt(all, at, x)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(3)
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Add(plotter.NewGrid())
	for i, name := range namesOf(all) {
		var pts errorPoints
		for _, s := range all {
			if s.name() == name {
				pts.XYs = append(pts.XYs, plotter.XY{X: at(s), Y: s.Sum.Median})
				pts.YErrors = append(pts.YErrors, struct{ Low, High float64 }{s.Sum.Median - s.Sum.Least, s.Sum.Most - s.Sum.Median})
			}
		}
		line, dots, err := plotter.NewLinePoints(pts.XYs)
		if err != nil {
			return nil, err
		}
		spans, err := plotter.NewYErrorBars(pts)
		if err != nil {
			return nil, err
		}
		tool, _, _ := strings.Cut(name, " ")
		line.Color, dots.Color, spans.Color = colours[tool], colours[tool], colours[tool]
		line.Width = 1.5 * vg.Points(1)
		line.Dashes = dashes(all, name)
		dots.Shape = plotutil.Shape(i)
		p.Add(line, dots, spans)
		p.Legend.Add(name, line, dots)
	}
	p.X.Min, p.X.Max = p.X.Min*0.8, p.X.Max*1.25
	if logarithmic {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Min, p.Y.Max = p.Y.Min*0.8, p.Y.Max*10 // room for the legend
	} else {
		p.Y.Min, p.Y.Max = 0, p.Y.Max*1.6
	}
	return p, nil
}

type errorPoints struct {
	plotter.XYs
	plotter.YErrors
}

// ticksAt labels the values that there are.
func ticksAt(all []*series, at func(*series) float64, what string) plot.ConstantTicks {
	var values []float64
	for _, s := range all {
		if !slices.Contains(values, at(s)) {
			values = append(values, at(s))
		}
	}
	slices.Sort(values)
	var ticks plot.ConstantTicks
	for _, v := range values {
		label := fmt.Sprint(int(v))
		if strings.Contains(what, "bytes") {
			label = bytesText(int(v))
		}
		ticks = append(ticks, plot.Tick{Value: v, Label: label})
	}
	return ticks
}

// namesOf returns the contestants in order of appearance.
func namesOf(all []*series) []string {
	var names []string
	for _, s := range all {
		if !slices.Contains(names, s.name()) {
			names = append(names, s.name())
		}
	}
	return names
}

// dashes tells the lines of one contestant apart.
func dashes(all []*series, name string) []vg.Length {
	tool, _, _ := strings.Cut(name, " ")
	n := 0
	for _, other := range namesOf(all) {
		if other == name {
			break
		}
		if t, _, _ := strings.Cut(other, " "); t == tool {
			n++
		}
	}
	return [][]vg.Length{nil, {vg.Points(6), vg.Points(3)}, {vg.Points(2), vg.Points(2)}, {vg.Points(8), vg.Points(2), vg.Points(2), vg.Points(2)}}[n%4]
}

// bars draws a bar per contestant.
func bars(all []*series, title, y string, value func(*series) float64) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = title, y
	p.Y.Min = 0
	most := 0.0
	for i, s := range all {
		v := value(s)
		bar, err := plotter.NewBarChart(plotter.Values{v}, vg.Centimeter)
		if err != nil {
			return nil, err
		}
		bar.XMin = float64(i)
		bar.Color = colours[s.Tool]
		bar.LineStyle.Width = 0
		label, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: float64(i), Y: v}}, Labels: []string{number(v)}})
		if err != nil {
			return nil, err
		}
		label.Offset.Y = vg.Points(3)
		for j := range label.TextStyle {
			label.TextStyle[j].XAlign = -0.5
		}
		p.Add(bar, label)
		most = math.Max(most, v)
	}
	var names []string
	for _, s := range all {
		names = append(names, strings.ReplaceAll(s.name(), " (", "\n("))
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.6, float64(len(all))-0.4
	p.Y.Max = most * 1.1
	return p, nil
}
