package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// text is the page.
func (p *page) text() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, `# A damaged path

Real sockets, ECN bits and CNPs: goroce at both ends, in network namespaces of one host, and between
them a switch in user space (test/impair) that loses, holds back and marks what crosses it. As root:

    go run ./test/impair -write docs    # renews this page, about %d minutes
    go test ./test/impair -v            # holds what a busy host reaches, about a minute
    go test ./test/impair -v -strict    # the targets

Switch and both ends share the host's %d processors (%s), so other work on it shows: the
ratios are what to look at.

## Conditions

- All links have %v both ways, slow enough for the switch and both ends to keep up on two
  processors. A packet carries %d bytes; the link could carry %.1f Mb/s of payload. A round trip
  without queue takes 0.5 to 0.7 ms, most of it the switch, which looks every 100 µs, and waking up.
- Messages of 64 KiB, %d at a time, each with a pattern of its own, compared at the end of its way.
- Each row counted for %v. In none did a packet get lost that the switch did not lose on purpose, as
  far as its own sockets go.
- One QP is a flow. Flows that share a port are in a namespace each, and so is what they send to.

## Loss

Lost by chance, both ways. Share of the goodput without loss, of the same row; what the row's first
figure is, in Mb/s, is in the first column. Go-back-N is what the standard describes and no more.

| | no loss | 0.01 %% | 0.1 %% | 1 %% |
|---|---|---|---|---|
`, 2, runtime.NumCPU(), kernel(), linkRate, pathMTU, payloadShare*float64(linkRate)/1e6, depth, p.length)
	for _, r := range p.loss {
		whole := r.by[0].bits()
		fmt.Fprintf(b, "| %v, %s | %.1f |", r.op, recoveryNames[r.how], whole/1e6)
		for _, l := range losses[1:] {
			fmt.Fprintf(b, " %.3f |", r.by[l].bits()/whole)
		}
		b.WriteString("\n")
	}
	b.WriteString("| target | | .99 | .95 | .80 |\n")
	fmt.Fprintf(b, `
## Reordering

One packet in twenty is held back until 3 or 16 others have gone past, or the time for that has.
No packet is lost. The target is .80.

| | Mb/s | share of in order | resent packets |
|---|---|---|---|
`)
	whole := 0.
	for _, o := range p.reorder {
		if o.conditions[0].ReorderBy == 0 {
			whole = o.bits()
		}
		fmt.Fprintf(b, "| %s | %.1f | %.3f | %d |\n", o.name, o.bits()/1e6, o.bits()/whole, o.stat("retransmitted_pkts"))
	}
	fmt.Fprintf(b, `
## Flows that share a port

Hosts that send WRITEs to one. Its port marks by RED: none below %d KB of queue, %.0f %% at %d KB,
all above; what may not be marked is dropped there; the buffer ends at %d KB. Targets: Jain's index
≥ %.2f, utilisation ≥ %.2f.

| flows, control | Jain | used | queue: mean, p99, max KB | marked | CNPs | dropped | resent |
|---|---|---|---|---|---|---|---|
`, kmin/1000, 100*pmax, kmax/1000, limit/1000, jainTarget, utilisationTarget)
	for _, o := range p.shares {
		q := &o.sw.Ports[0]
		fmt.Fprintf(b, "| %s | %.4f | %.3f | %.1f, %.1f, %.1f | %d | %d | %d | %d |\n", o.name, o.jain(), o.utilisation(0),
			q.Queue.Mean/1e3, float64(q.Queue.P99)/1e3, float64(q.Queue.Max)/1e3, q.Marked, o.stat("rp_cnp_handled"), q.DroppedFull+q.DroppedRED, o.stat("retransmitted_pkts"))
	}
	fmt.Fprintf(b, `
- **delay** is the default.
- **dcqcn, slowed** has the published parameters of DCQCN with all times, the gap between CNPs as well,
  %d times as long, since a queue of Kmax takes that much longer here: 4 ms, where those parameters are
  from 40 µs. The rise is 1 Mb/s, the least that there is, and the line rate that of the link. A
  paced sender that was away from its processor makes up for 200 µs at most, so a busy host leaves
  the link idle. In a simulated fabric (package fabric, 2 and 4 flows, 0.6 ms) the same parameters
  use 0.996 and 0.997.
- **dcqcn**, with the parameters of adapters, does not control such a link: it expects CNPs every few
  microseconds and forgets them as fast, a receiver in user space sends one for each burst that it
  takes, and a rise of 5 to 50 Mb/s each 300 µs is more than they take away.
- **none** may not be marked, and loses instead.

Four flows that start %v after each other; what left the port, by flow, and its queue:

![rates and queue](impaired.svg)
`, slowness, stagger)
	return b.String()
}

// kernel returns the release of the system.
func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "Linux"
	}
	return "Linux " + strings.SplitN(string(b), "-", 2)[0]
}

// drawShares draws rates above the queue, a column for each run.
func drawShares(name string, runs []*outcome) (err error) {
	grid := [2][]*plot.Plot{}
	for _, o := range runs {
		rates, err := rateChart(o)
		if err != nil {
			return err
		}
		queue, err := queueChart(o)
		if err != nil {
			return err
		}
		grid[0], grid[1] = append(grid[0], rates), append(grid[1], queue)
	}
	canvas := vgsvg.New(vg.Length(len(runs))*9*vg.Centimeter, 13*vg.Centimeter)
	tiles := draw.Tiles{Rows: 2, Cols: len(runs), PadX: vg.Millimeter * 3, PadY: vg.Millimeter * 3}
	for r, row := range plot.Align(grid[:], tiles, draw.New(canvas)) {
		for c := range row {
			grid[r][c].Draw(row[c])
		}
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err = canvas.WriteTo(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

func newChart(title, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, vg.Points(11)
	p.X.Label.Text, p.Y.Label.Text = "time, s", y
	p.X.Min, p.Y.Min = 0, 0
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	return p
}

// smooth is how many rows make a point of a rate.
const smooth = 5

func rateChart(o *outcome) (*plot.Plot, error) {
	p := newChart(o.name, "Mb/s")
	rows := o.sw.Ports[0].Rows
	for i, f := range o.traffic.flows {
		var points plotter.XYs
		for k := 0; k+smooth <= len(rows); k += smooth {
			bytes := 0
			for _, r := range rows[k : k+smooth] {
				bytes += r.Bytes[f[0]]
			}
			points = append(points, plotter.XY{X: float64(k+smooth) * rowTime.Seconds(), Y: float64(bytes) * 8 / (smooth * rowTime.Seconds()) / 1e6})
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, err
		}
		line.Color = plotutil.Color(i)
		p.Add(line)
		p.Legend.Add(fmt.Sprintf("flow %d", i+1), line)
	}
	p.Y.Max = 1.25 * float64(linkRate) / 1e6
	return p, nil
}

func queueChart(o *outcome) (*plot.Plot, error) {
	p := newChart("", "queue, KB")
	var mean, peak plotter.XYs
	for k, r := range o.sw.Ports[0].Rows {
		at := float64(k+1) * rowTime.Seconds()
		mean = append(mean, plotter.XY{X: at, Y: r.Mean / 1e3})
		peak = append(peak, plotter.XY{X: at, Y: float64(r.Peak) / 1e3})
	}
	for i, c := range []struct {
		name   string
		points plotter.XYs
	}{{"mean of 10 ms", mean}, {"peak", peak}} {
		line, err := plotter.NewLine(c.points)
		if err != nil {
			return nil, err
		}
		line.Color = plotutil.Color(i)
		p.Add(line)
		p.Legend.Add(c.name, line)
	}
	for _, v := range []float64{kmin, kmax} {
		line, err := plotter.NewLine(plotter.XYs{{X: 0, Y: v / 1e3}, {X: float64(len(mean)) * rowTime.Seconds(), Y: v / 1e3}})
		if err != nil {
			return nil, err
		}
		line.Dashes = plotutil.Dashes(2)
		p.Add(line)
	}
	p.Y.Max = max(p.Y.Max, 1.3*kmax/1e3)
	return p, nil
}
