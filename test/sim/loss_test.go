package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// goodput runs one stream over a link of 10 Gb/s with 20 µs each way and returns
// its goodput in bits per second of virtual time.
func goodput(t testing.TB, how transport.Recovery, op qp.Op, f Faults, bytes int) (bps float64, n *Net) {
	const (
		window  = 64
		message = 256 << 10
		queued  = 4
	)
	f.Delay, f.Rate = 20*time.Microsecond, 10e9
	n = New(1, f)
	n.Recovery = how; if dbg != nil { dbg(n) }
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

func TestDbgLoss(t *testing.T) {
	for _, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead, qp.Send} {
		for how := range transport.GoBackN + 1 {
			base, _ := goodput(t, how, op, Faults{}, 16<<20)
			s := fmt.Sprintf("%v %v: %.2f Gb/s", op, how, base/1e9)
			for _, p := range []float64{1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 5e-2} {
				g, n := goodput(t, how, op, Faults{Loss: p}, 64<<20)
				s += fmt.Sprintf("  %g: %.3f", p, g/base)
				_ = n
			}
			t.Log(s)
		}
	}
}
var dbg func(*Net)
