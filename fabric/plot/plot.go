// Package plot draws and tabulates what a scenario of package fabric recorded:
// rates, queues and CNPs over time, as SVG and as CSV.
package plot

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/goroce/goroce/fabric"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Write writes the curves of all runs into a folder, which it creates if need
// be, and returns the names of the files: for each run rates, queues and CNPs as
// SVG, and all of it as CSV.
func Write(dir string, r *fabric.Result) (files []string, err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("plot: cannot create the folder: %w", err)
	}
	for _, run := range r.Runs {
		base := filepath.Join(dir, fileName(r.Scenario.Name, run.Name))
		title := r.Scenario.Name + ": " + r.Scenario.Title
		if run.Name != "" {
			title += " (" + run.Name + ")"
		}
		for _, c := range charts(run) {
			name := base + "-" + c.name + ".svg"
			if err := c.save(title, name, run.Time); err != nil {
				return files, fmt.Errorf("plot: cannot write the curve: %w", err)
			}
			files = append(files, name)
		}
		name := base + ".csv"
		if err := table(name, run); err != nil {
			return files, fmt.Errorf("plot: cannot write the table: %w", err)
		}
		files = append(files, name)
	}
	return files, nil
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9.+-]+`)

func fileName(scenario, run string) string {
	if run == "" {
		return scenario
	}
	return scenario + "-" + unsafe.ReplaceAllString(run, "_")
}

// chart is one picture: curves over time.
type chart struct {
	name, axis string
	scale      float64 // of a value to the axis
	curves     [][]float64
	legend     string // of a curve, with its number
}

// maxLegend is how many curves a legend names.
const maxLegend = 8

func charts(r *fabric.Run) []chart {
	return []chart{
		{"rate", "arrived, Gb/s", 1e-9, r.Rate, "flow"},
		{"queue", "queue, KB", 1e-3, r.Queue, "port"},
		{"cnp", "CNPs handled", 1, r.CNPs, "flow"},
	}
}

func (c *chart) save(title, name string, times []time.Duration) error {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, vg.Points(11)
	p.X.Label.Text, p.Y.Label.Text = "time, ms", c.axis
	p.Y.Min = 0
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, curve := range c.curves {
		points := make(plotter.XYs, len(curve))
		for k, v := range curve {
			points[k] = plotter.XY{X: times[k].Seconds() * 1e3, Y: v * c.scale}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.Color = plotutil.Color(i)
		line.Width = vg.Points(1)
		p.Add(line)
		if len(c.curves) > 1 && i < maxLegend {
			p.Legend.Add(fmt.Sprintf("%s %d", c.legend, i+1), line)
		}
	}
	return p.Save(18*vg.Centimeter, 9*vg.Centimeter, name)
}

// table writes one row for each time: of each port the queue, of each flow what
// arrived, the controller's rate and window, and the CNPs.
func table(name string, r *fabric.Run) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	w := csv.NewWriter(f)
	header := []string{"time_ms"}
	columns := [][]float64{}
	add := func(name string, curves [][]float64) {
		for i, c := range curves {
			header, columns = append(header, fmt.Sprintf("%s_%d", name, i+1)), append(columns, c)
		}
	}
	add("queue_bytes", r.Queue)
	add("arrived_bps", r.Rate)
	add("rate_bps", r.Pace)
	add("window_packets", r.Window)
	add("cnps", r.CNPs)
	if err := w.Write(header); err != nil {
		return err
	}
	row := make([]string, len(header))
	for k, t := range r.Time {
		row[0] = strconv.FormatFloat(t.Seconds()*1e3, 'f', 3, 64)
		for i, c := range columns {
			row[i+1] = strconv.FormatFloat(c[k], 'f', 0, 64)
		}
		if err := w.Write(row); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}
