package sim

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// writeLossChart writes the figures as docs/loss.csv has them, and the chart of
// WRITE and READ.
func writeLossChart(t *testing.T, dir string, points []lossPoint) {
	var csv strings.Builder
	csv.WriteString("operation,recovery,loss,goodput_gbps,share_of_lossless\n")
	for _, x := range points {
		fmt.Fprintf(&csv, "%v,%v,%g,%.3f,%.4f\n", x.op, x.how, x.p, x.bps/1e9, x.part)
	}
	for name, text := range map[string]string{"loss.csv": csv.String(), "loss.svg": lossSVG(points)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The chart: two panels, loss on a logarithmic axis to the right.
const (
	panelW, panelH   = 300, 240
	panelX, panelY   = 60, 40
	panelGap         = 40
	firstP, lastP    = 1e-5, 3e-2
	chartW, chartH   = panelX + 2*panelW + panelGap + 20, panelY + panelH + 90
	chartInk, chartG = "#333", "#ddd"
)

func chartX(panel int, p float64) float64 {
	return float64(panelX+panel*(panelW+panelGap)) + panelW*math.Log(p/firstP)/math.Log(lastP/firstP)
}

func chartY(part float64) float64 { return panelY + panelH*(1-min(1, part)) }

func lossSVG(points []lossPoint) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="%s">`+"\n", chartW, chartH, chartInk)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartW, chartH)
	colors := map[transport.Recovery]string{transport.Selective: "#1b7837", transport.Alone: "#2166ac", transport.GoBackN: "#b2182b"}
	for panel, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead} {
		chartFrame(&b, panel, op.String())
		for how := range transport.GoBackN + 1 {
			var line []string
			for _, x := range points {
				if x.op == op && x.how == how && x.p > 0 {
					line = append(line, fmt.Sprintf("%.1f,%.1f", chartX(panel, x.p), chartY(x.part)))
				}
			}
			fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), colors[how])
		}
	}
	at := panelX
	for how := range transport.GoBackN + 1 {
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="20" height="3" fill="%s"/><text x="%d" y="%d">%v</text>`+"\n", at, chartH-22, colors[how], at+26, chartH-16, how)
		at += 130
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func chartFrame(b *strings.Builder, panel int, title string) {
	left, right := chartX(panel, firstP), chartX(panel, lastP)
	fmt.Fprintf(b, `<text x="%.0f" y="24" font-weight="bold">%s: share of the lossless goodput</text>`+"\n", left, title)
	for _, part := range []float64{0, .25, .5, .75, 1} {
		fmt.Fprintf(b, `<path d="M%.0f %.1fH%.0f" stroke="%s"/><text x="%.0f" y="%.1f" text-anchor="end">%g</text>`+"\n", left, chartY(part), right, chartG, left-6, chartY(part)+4, part)
	}
	for _, p := range []float64{1e-5, 1e-4, 1e-3, 1e-2} {
		x := chartX(panel, p)
		fmt.Fprintf(b, `<path d="M%.1f %dV%d" stroke="%s"/><text x="%.1f" y="%d" text-anchor="middle">%g %%</text>`+"\n", x, panelY, panelY+panelH, chartG, x, panelY+panelH+18, 100*p)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">packets lost, each way</text>`+"\n", (left+right)/2, panelY+panelH+38)
}
