package verbs_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

// Every controller by name carries all operations.
func TestCongestionByName(t *testing.T) {
	names, _ := congestion.Names()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			a, b := openPair(t, inMemory(t, verbs.Config{CongestionName: name}), 1<<20, verbs.ConnectConfig{})
			checkAllOperations(t, a, b)
			flow := a.qp.Flow()
			if paced := strings.HasPrefix(name, "dcqcn"); flow.Window < 1 || (flow.Rate > 0) != paced {
				t.Errorf("%+v", flow)
			}
		})
	}
	if _, err := verbs.Open(verbs.Config{CongestionName: "cubic"}); err == nil || !strings.Contains(err.Error(), "cubic") {
		t.Errorf("an unknown controller: %v", err)
	}
}

// A paced pair keeps its rate on a real socket, WRITE and READ, and takes its
// turns without keeping the loop busy: what it may not send yet waits for a timer.
func TestCongestionPaceOnASocket(t *testing.T) {
	c := verbs.Config{CongestionName: "dcqcn", LineRate: 400 * congestion.Mbps}
	cfg := [2]verbs.Config{c, c}
	cfg[0].Addr, cfg[1].Addr = netip.MustParseAddr("127.0.9.1"), netip.MustParseAddr("127.0.9.2")
	a, b := openPair(t, cfg, 2<<20, verbs.ConnectConfig{})
	for _, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead} {
		start := time.Now()
		a.must(t, &qp.SendWR{Op: op, SGE: []mr.SGE{a.mem.SGE(0, 2<<20)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key()})
		// 2 MiB take 42 ms without headers; a batch needs no time.
		if took := time.Since(start); took < 41*time.Millisecond {
			t.Errorf("%v: 2 MiB at 400 Mb/s in %v", op, took)
		}
	}
}

// A pair may have another controller than its device; marked packets make the
// receiver send CNPs and the sender slow down.
func TestCongestionMarksSlowTheSender(t *testing.T) {
	cfg := inMemory(t, verbs.Config{CongestionName: "none", CNP: congestion.NotificationPoint{MinTimeBetweenCNPs: -1}, Polled: true})
	cfg[0].Faults = parseFaults(t, "ce op=write n=1-3")
	a, b := openPair(t, cfg, 1<<16, verbs.ConnectConfig{PathMTU: 1024})
	f, err := a.dev.CongestionByName("dcqcn-paper")
	if err != nil {
		t.Fatal(err)
	}
	q, err := a.pd.CreateQP(verbs.QPConfig{SendCQ: a.cq, RecvCQ: a.cq, Congestion: f})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.qp.Modify(&qp.Attr{State: qp.Reset}, qp.AttrState); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.Destroy(); err != nil {
		t.Fatal(err)
	}
	a.qp = q
	if err := a.qp.Connect(b.qp.Local(), verbs.ConnectConfig{PathMTU: 1024}); err != nil {
		t.Fatal(err)
	}
	if err := b.qp.Connect(a.qp.Local(), verbs.ConnectConfig{PathMTU: 1024, Access: mr.RemoteWrite}); err != nil {
		t.Fatal(err)
	}
	if a.qp.Flow().Rate != congestion.DefaultLineRate || b.qp.Flow().Rate != 0 {
		t.Fatalf("%+v, %+v", a.qp.Flow(), b.qp.Flow())
	}
	start := time.Now()
	checkFaulted(t, a, b, qp.RDMAWrite, 0)
	fa, fb := a.qp.Flow(), b.qp.Flow()
	// A millisecond after one CNP the rate is what it was.
	recovered := time.Since(start) > 500*time.Microsecond
	if fb.CEMarked == 0 || fb.CNPsSent == 0 || fa.CNPsHandled != fb.CNPsSent || fa.Rate >= congestion.DefaultLineRate && !recovered {
		t.Errorf("A %+v, B %+v", fa, fb)
	}
	expect(t, "B", b.dev.Stats(), counts{"np_cnp_sent": fb.CNPsSent, "np_ecn_marked_roce_packets": fb.CEMarked})
	expect(t, "A", a.dev.Stats(), counts{"rp_cnp_handled": fb.CNPsSent})
}
