// Package plot draws and tabulates what a scenario of package fabric recorded:
// rates, queues and CNPs over time, as SVG and as CSV.
package plot

import (
	"encoding/csv"
	"fmt"
	"iter"
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
// SVG and as CSV.
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
			if err := c.save(title, name); err != nil {
				return files, fmt.Errorf("plot: cannot write the curve: %w", err)
			}
			files = append(files, name)
		}
		for name, t := range tables(base, run) {
			if err := t.save(name); err != nil {
				return files, fmt.Errorf("plot: cannot write the table: %w", err)
			}
			files = append(files, name)
		}
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
	times      []time.Duration
	curves     [][]float64
	legend     string // of a curve, with its number
}

// maxLegend is how many curves a legend names.
const maxLegend = 8

func charts(r *fabric.Run) []chart {
	return []chart{
		{"rate", "arrived, Gb/s", 1e-9, r.Time, r.Rate, "flow"},
		{"queue", "queue, KB", 1e-3, r.QueueTime, r.Queue, "port"},
		{"cnp", "CNPs handled", 1, r.Time, r.CNPs, "flow"},
	}
}

func (c *chart) save(title, name string) error {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, vg.Points(11)
	p.X.Label.Text, p.Y.Label.Text = "time, ms", c.axis
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, curve := range c.curves {
		points := make(plotter.XYs, len(curve))
		for k, v := range curve {
			points[k] = plotter.XY{X: c.times[k].Seconds() * 1e3, Y: v * c.scale}
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
	p.X.Min, p.Y.Min = 0, 0
	p.Y.Max = c.top()
	return p.Save(18*vg.Centimeter, 9*vg.Centimeter, name)
}

// top returns the end of the axis: above all rates and CNPs, with room for the
// legend. A queue that is far longer at the start than in the second half leaves
// the picture there; else nothing but that would be seen.
func (c *chart) top() float64 {
	top := 0.
	for _, curve := range c.curves {
		if c.name == "queue" {
			curve = curve[len(curve)/2:]
		}
		for _, v := range curve {
			top = max(top, v*c.scale)
		}
	}
	return max(1, 1.25*top)
}

// sheet is a CSV file: one row for each time.
type sheet struct {
	times   []time.Duration
	header  []string
	columns [][]float64
}

func (s *sheet) add(name string, curves [][]float64) {
	for i, c := range curves {
		s.header, s.columns = append(s.header, fmt.Sprintf("%s_%d", name, i+1)), append(s.columns, c)
	}
}

// tables yields the names and contents of a run's tables: queues by port, and
// what belongs to flows.
func tables(base string, r *fabric.Run) iter.Seq2[string, *sheet] {
	queues, flows := &sheet{times: r.QueueTime}, &sheet{times: r.Time}
	queues.add("queue_bytes", r.Queue)
	flows.add("arrived_bps", r.Rate)
	flows.add("rate_bps", r.Pace)
	flows.add("window_packets", r.Window)
	flows.add("cnps", r.CNPs)
	return func(yield func(string, *sheet) bool) {
		_ = yield(base+"-queues.csv", queues) && yield(base+"-flows.csv", flows)
	}
}

func (s *sheet) save(name string) (err error) {
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
	if err := w.Write(append([]string{"time_ms"}, s.header...)); err != nil {
		return err
	}
	row := make([]string, 1+len(s.columns))
	for k, t := range s.times {
		row[0] = strconv.FormatFloat(t.Seconds()*1e3, 'f', 3, 64)
		for i, c := range s.columns {
			row[i+1] = strconv.FormatFloat(c[k], 'f', 0, 64)
		}
		if err := w.Write(row); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}
