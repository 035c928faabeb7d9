package sim

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// goodput runs one stream over a link of 10 Gb/s with 20 µs each way, which is
// lossy in both directions, and returns its goodput in bits per second of virtual
// time. The window is fixed at 64 packets of 1 KiB, a little more than fits on
// the way: it shows recovery alone, whatever a congestion control makes of it.
func goodput(t testing.TB, how transport.Recovery, op qp.Op, f Faults, bytes int) (bps float64, n *Net) {
	const (
		window  = lossWindow
		message = 256 << 10
		queued  = 4
	)
	f.Delay, f.Rate = 20*time.Microsecond, 10e9
	n = New(1, f)
	n.Recovery = how
	a, b := n.AddHost(window), n.AddHost(window)
	qa := a.NewQP(qp.Config{MaxSendWR: queued, MaxRecvWR: 2 * queued})
	qb := b.NewQP(qp.Config{MaxSendWR: queued, MaxRecvWR: 2 * queued})
	if err := Connect(a, qa, DefaultLink(), b, qb, DefaultLink()); err != nil {
		t.Fatal(err)
	}
	ma, _ := a.PD.Register(make([]byte, message), mr.LocalWrite)
	mb, _ := b.PD.Register(make([]byte, message), mr.LocalWrite|mr.RemoteRead|mr.RemoteWrite)
	posted, done := 0, 0
	var wcs, rcs [8]cq.WC
	err := n.Run(10*time.Minute, func() bool {
		k := qa.SendCQ.Poll(wcs[:])
		for _, wc := range wcs[:k] {
			if wc.Status != cq.Success {
				t.Fatalf("%v", wc.Status)
			}
		}
		for range qb.RecvCQ.Poll(rcs[:]) {
		}
		for qb.RQ.Len() < 2*queued && op == qp.Send {
			if err := b.PostRecv(qb, &qp.RecvWR{SGE: []mr.SGE{mb.SGE(0, message)}}); err != nil {
				t.Fatal(err)
			}
		}
		for done += k; posted < done+queued; posted++ {
			err := a.Post(qa, &qp.SendWR{Op: op, Flags: qp.Signaled, SGE: []mr.SGE{ma.SGE(0, message)}, RemoteAddr: mb.Addr(), RKey: mb.Key()})
			if err != nil {
				t.Fatal(err)
			}
		}
		return done*message >= bytes
	})
	if err != nil {
		t.Fatal(err)
	}
	return float64(8*done*message) / n.Now().Seconds(), n
}

const (
	lossWindow = 64
	lossPacket = 8 * (1024 + 12 + 4 + wireOverhead) / 10e9 // seconds, of 1 KiB at 10 Gb/s
)

// lossModel is the share of the lossless goodput that a simple model predicts:
// each loss wastes a window of packets, and one whose repetition is lost too a
// timeout besides.
func lossModel(p, window, timeout float64) float64 {
	return 1 / (1/(1-p) + p*window + p*p*timeout/lossPacket)
}

var lossRates = []float64{1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2}

// lossPoint is one figure of docs/loss.csv.
type lossPoint struct {
	op   qp.Op
	how  transport.Recovery
	p    float64
	bps  float64
	part float64 // of the lossless goodput of the same kind
}

var lossOps = []qp.Op{qp.RDMAWrite, qp.RDMARead, qp.Send}

var chartDir = flag.String("chart", "", "directory to which TestLossGoodput writes loss.csv and loss.svg")

// Goodput under random loss, of each way to repair it. The shares of Selective
// are what the design promises; the others have to be near the model.
func TestLossGoodput(t *testing.T) {
	bytes, slack := 96<<20, .8
	switch {
	case testing.Short():
		bytes, slack = 32<<20, .7
	case *chartDir != "":
		bytes = 256 << 20
	}
	var points []lossPoint
	for _, op := range lossOps {
		for how := range transport.GoBackN + 1 {
			base, _ := goodput(t, how, op, Faults{}, 16<<20)
			points = append(points, lossPoint{op, how, 0, base, 1})
			line := fmt.Sprintf("%-11v %-9v lossless %.2f Gb/s;", op, how, base/1e9)
			for _, p := range lossRates {
				// A timeout of 67 ms now and then makes GoBackN slow to simulate.
				bps, _ := goodput(t, how, op, Faults{Loss: p}, bytes)
				points = append(points, lossPoint{op: op, how: how, p: p, bps: bps, part: bps / base})
				line += fmt.Sprintf("  %g: %.3f", p, bps/base)
				if least := leastGoodput(how, op, p, slack); bps/base < least {
					t.Errorf("%v, %v, loss %g: %.3f of the lossless goodput, want at least %.3f", op, how, p, bps/base, least)
				}
			}
			t.Log(line)
		}
	}
	if *chartDir != "" {
		writeLossChart(t, *chartDir, points)
	}
}

// leastGoodput is what must be reached.
func leastGoodput(how transport.Recovery, op qp.Op, p, slack float64) float64 {
	switch {
	case how != transport.GoBackN && (how == transport.Selective || op == qp.RDMARead) && p <= 1e-2:
		return map[float64]float64{1e-5: .99, 1e-4: .99, 1e-3: .95, 3e-3: .95, 1e-2: .80}[p]
	case how == transport.Alone && op != qp.RDMARead:
		return slack * lossModel(p, lossWindow, 0)
	}
	return 0
}

// A network that reorders packets without losing any costs little once that is
// noticed, and goes back to nothing without.
func TestReorderingGoodput(t *testing.T) {
	for _, op := range lossOps {
		for how := range transport.GoBackN {
			base, _ := goodput(t, how, op, Faults{}, 16<<20)
			for _, by := range []int{3, 16} {
				for _, share := range []float64{.001, .01, .1} {
					bps, n := goodput(t, how, op, Faults{Displace: share, DisplaceBy: by}, 32<<20)
					again := n.order[0].Counters[transport.RetransmittedPkts]
					t.Logf("%-11v %-9v %5.1f %% of the packets %2d late: %.3f, %d packets resent", op, how, 100*share, by, bps/base, again)
					least := .8
					if how == transport.Alone {
						least = .7 // one NAK at a time takes longer to learn from
					}
					if bps/base < least {
						t.Errorf("%v, %v: %g of the packets %d late: %.3f of the goodput, want %g", op, how, share, by, bps/base, least)
					}
				}
			}
		}
	}
}

// Messages of a few packets, one at a time: what is lost is often the end of one,
// and nothing behind it tells. The time per message must not be that of the
// local ACK timeout.
func TestLossOfTails(t *testing.T) {
	for how := range transport.GoBackN + 1 {
		n := New(1, Faults{Loss: .01, Delay: 20 * time.Microsecond, Rate: 10e9})
		n.Recovery = how
		a, b := n.AddHost(lossWindow), n.AddHost(lossWindow)
		qa, qb := a.NewQP(qp.Config{MaxSendWR: 1}), b.NewQP(qp.Config{MaxSendWR: 1})
		if err := Connect(a, qa, DefaultLink(), b, qb, DefaultLink()); err != nil {
			t.Fatal(err)
		}
		ma, _ := a.PD.Register(make([]byte, 4096), mr.LocalWrite)
		mb, _ := b.PD.Register(make([]byte, 4096), mr.LocalWrite|mr.RemoteWrite)
		const messages = 5000
		done := 0
		var wcs [1]cq.WC
		err := n.Run(time.Hour, func() bool {
			if done += qa.SendCQ.Poll(wcs[:]); qa.SQ.Len() == 0 {
				_ = a.Post(qa, &qp.SendWR{Op: qp.RDMAWrite, Flags: qp.Signaled, SGE: []mr.SGE{ma.SGE(0, 4096)}, RemoteAddr: mb.Addr(), RKey: mb.Key()})
			}
			return done == messages
		})
		if err != nil {
			t.Fatal(err)
		}
		each := n.Now() / messages
		t.Logf("%-9v %v for each message", how, each)
		if limit := 150 * time.Microsecond; how != transport.GoBackN && each > limit {
			t.Errorf("%v: %v for each message, want at most %v", how, each, limit)
		}
	}
}
