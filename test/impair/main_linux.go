package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

func main() {
	maybeSwitch()
	folder := flag.String("write", "", "write impaired.md and impaired.svg to this `folder`")
	length := flag.Duration("length", 3*time.Second, "how long each run counts")
	flag.Parse()
	if err := report(*folder, *length); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// report measures everything, prints the page, and writes it to a folder, if there is
// one.
func report(folder string, length time.Duration) error {
	n, err := newNetwork(5, etherMTU)
	if err != nil {
		return err
	}
	defer n.Close()
	p := &page{length: length}
	if err := p.measure(n); err != nil {
		return err
	}
	text := p.text()
	fmt.Print(text)
	if folder == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(folder, "impaired.md"), []byte(text), 0o666); err != nil {
		return err
	}
	return drawShares(filepath.Join(folder, "impaired.svg"), p.curves)
}

// page is what the page says.
type page struct {
	length  time.Duration
	loss    []lossRow
	reorder []*outcome
	shares  []*outcome
	curves  []*outcome
}

type lossRow struct {
	op  qp.Op
	how transport.Recovery
	by  map[float64]*outcome
}

// stagger is how long after each other the flows of the curves start.
const stagger = 500 * time.Millisecond

func (p *page) measure(n *network) error {
	run := func(t traffic) (*outcome, error) {
		o, err := n.run(t)
		if err == nil {
			err = o.valid()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		fmt.Fprintln(os.Stderr, o)
		return o, nil
	}
	for _, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead} {
		for _, how := range []transport.Recovery{transport.Selective, transport.GoBackN} {
			row := lossRow{op, how, map[float64]*outcome{}}
			for _, loss := range losses {
				o, err := run(overLoss(op, loss, how, p.length))
				if err != nil {
					return err
				}
				row.by[loss] = o
			}
			p.loss = append(p.loss, row)
		}
		for _, by := range []int{0, 3, 16} {
			o, err := run(reordered(op, by, p.length))
			if err != nil {
				return err
			}
			p.reorder = append(p.reorder, o)
		}
	}
	for _, c := range []control{byDefault, slowDCQCN, adapters, uncontrolled} {
		for _, flows := range []int{2, 4} {
			o, err := run(incast(qp.RDMAWrite, flows, c, p.length))
			if err != nil {
				return err
			}
			p.shares = append(p.shares, o)
		}
		if c.name == adapters.name {
			continue
		}
		t := incast(qp.RDMAWrite, 4, c, 8*stagger)
		t.warm = 0
		for i := range t.flows {
			t.starts = append(t.starts, time.Duration(i)*stagger)
		}
		o, err := run(t)
		if err != nil {
			return err
		}
		o.name = c.name
		p.curves = append(p.curves, o)
	}
	return nil
}

// losses are the columns of the table.
var losses = []float64{0, 1e-4, 1e-3, 1e-2}
