package verbs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/udp"
)

// A caller that polls only now and then is no driver: what its poll begins, an
// acknowledgement or a timer, is the loop's, which is asleep and has to be told.
func TestLonePollLeavesNothingUndone(t *testing.T) {
	for name, lose := range map[string]string{"nothing lost": "", "first packet lost": "drop op=write_only n=1"} {
		t.Run(name, func(t *testing.T) {
			rules, err := udp.ParseFaults(lose)
			if lose != "" && err != nil {
				t.Fatal(err)
			}
			ends := twoEnds(t, [2]Config{{Faults: rules}}, ConnectConfig{Timeout: 10})
			a, b := &ends[0], &ends[1]
			var wcs [4]cq.WC
			for round := range 30 {
				time.Sleep(5 * time.Millisecond) // the loops are asleep, leases over
				wr := qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.m.SGE(0, 8)}, RemoteAddr: b.m.Addr(), RKey: b.m.Key(), Flags: qp.Signaled}
				if err := a.q.PostSend(&wr); err != nil {
					t.Fatal(err)
				}
				b.c.Poll(wcs[:]) // one poll each, and no more
				a.c.Poll(wcs[:0])
				for start := time.Now(); a.c.Len() == 0; time.Sleep(100 * time.Microsecond) {
					if time.Since(start) > 2*time.Second {
						t.Fatalf("round %d: no completion: %v", round, a.d.Stats())
					}
				}
				a.c.take(wcs[:])
			}
		})
	}
}

// Without a notification point of its own a device has the one that goes with its
// controller.
func TestNotificationPointGoesWithTheController(t *testing.T) {
	own := congestion.NotificationPoint{MinTimeBetweenCNPs: time.Millisecond}
	for _, row := range []struct {
		name        string
		given, want congestion.NotificationPoint
	}{{"dcqcn", congestion.NotificationPoint{}, congestion.Mlx5NP}, {"", congestion.NotificationPoint{}, congestion.NotificationPoint{}}, {"dcqcn", own, own}} {
		l, err := udp.NewSwitch().Link(netip.MustParseAddr("198.18.0.1"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := Open(Config{Link: l, CongestionName: row.name, CNP: row.given})
		if err != nil {
			t.Fatal(err)
		}
		if d.cfg.CNP != row.want {
			t.Errorf("%q with %+v: %+v, want %+v", row.name, row.given, d.cfg.CNP, row.want)
		}
		_ = d.Close()
	}
}
