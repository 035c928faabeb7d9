package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

func TestMain(m *testing.M) {
	maybeSwitch()
	os.Exit(m.Run())
}

func TestDebug(t *testing.T) {
	n, err := newNetwork(5, 1500)
	if err != nil {
		t.Skip(err)
	}
	defer n.Close()
	var all []traffic
	switch os.Getenv("DBG") {
	case "loss":
		for _, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead} {
			for _, how := range []transport.Recovery{transport.Selective, transport.GoBackN} {
				for _, l := range []float64{0, 1e-4, 1e-3, 1e-2} {
					all = append(all, overLoss(op, l, how, 1200*time.Millisecond))
				}
			}
		}
	case "reorder":
		for _, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead} {
			for _, by := range []int{0, 3, 16} {
				all = append(all, reordered(op, by, 1200*time.Millisecond))
			}
		}
	case "cc1":
		all = append(all, incast(qp.RDMAWrite, 2, slowDCQCN, 2*time.Second), incast(qp.RDMAWrite, 2, uncontrolled, 2*time.Second))
	case "r1":
		all = append(all, reordered(qp.RDMARead, 3, 1000*time.Millisecond), overLoss(qp.RDMARead, 1e-3, transport.Selective, 1000*time.Millisecond))
	case "one":
		all = append(all, overLoss(qp.RDMAWrite, 1e-2, transport.Selective, 1200*time.Millisecond), overLoss(qp.RDMAWrite, 0, transport.Selective, 1200*time.Millisecond), overLoss(qp.RDMARead, 1e-2, transport.Selective, 1200*time.Millisecond))
	default:
		for _, c := range []control{byDefault, slowDCQCN, adapters, uncontrolled, named("aimd")} {
			for _, n := range []int{2, 4} {
				all = append(all, incast(qp.RDMAWrite, n, c, 3*time.Second))
			}
		}
	}
	for _, tr := range all {
		o, err := n.run(tr)
		if err != nil {
			t.Fatal(tr.name, err)
		}
		p := o.sw.Ports[tr.flows[0][1]]
		t.Logf("%-35s %.1f Mb/s util %.3f jain %.4f queue %.0f/%d/%d marked %d red %d full %d lost %d | cnp sent %d handled %d switch %d", tr.name, o.bits()/1e6, o.utilisation(tr.flows[0][1]), o.jain(),
			p.Queue.Mean, p.Queue.P99, p.Queue.Max, p.Marked, p.DroppedRED, p.DroppedFull, p.Lost, o.stat("np_cnp_sent"), o.stat("rp_cnp_handled"), o.sw.Ports[1].CNPs)
		if os.Getenv("DBG") == "one" || os.Getenv("DBG") == "cc1" || os.Getenv("DBG") == "r1" {
			for h := range 2 {
				for k, v := range o.stats[h] {
					if v == 0 {
						delete(o.stats[h], k)
					}
				}
				t.Log(o.stats[h])
			}
			w := ""
			for _, x := range o.flows[0].trace {
				w += fmt.Sprintf(" %d", x.window)
			}
			t.Log(w)
			w = ""
			for _, x := range p.Rows {
				w += fmt.Sprintf(" %d", x.Bytes[tr.flows[0][0]]/1082)
			}
			t.Log(w, o.flows[0].repairs)
		}
		s := ""
		for _, f := range o.flows {
			s += " " + congestion.BitRate(f.bits).String()
		}
		t.Logf("    %s cpu %v retr %d spurious %d; over %d late %v %v", s, o.cpu, o.stat("retransmitted_pkts"), o.stat("spurious_retransmissions"), o.sw.Overrun+o.sw.NoFrame+o.sw.SendErrors+o.sw.TooLong, o.sw.LateMean, o.sw.LateMax)
	}
}
