package rxe_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// TestLossGoodput measures how fast data moves between goroce and rxe under loss, in
// both directions and with both ways to repair it. Its figures depend on the machine,
// so it only demands that all arrives; the numbers of packets sent again do not, and
// show what a way is worth. Run it with -v.
func TestLossGoodput(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: takes minutes")
	}
	l := requireLab(t)
	for _, percent := range []string{"0", "0.1", "1", "3"} {
		run(t, l.script("loss", "-n", l.guest, percent))
		for _, d := range []direction{toRXE, fromRXE} {
			for _, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead} {
				for _, how := range []transport.Recovery{transport.GoBackN, transport.Selective} {
					who := map[direction]string{toRXE: "goroce", fromRXE: "rxe"}[d]
					t.Run(fmt.Sprintf("loss=%s/%s asks/%v/%v", percent, who, op, how), func(t *testing.T) { l.goodput(t, d, op, how) })
				}
			}
		}
	}
	run(t, l.script("loss", "-n", l.guest, "0"))
}

// goodput runs one stream and logs what became of it.
func (l *lab) goodput(t *testing.T, d direction, op qp.Op, how transport.Recovery) {
	const (
		message  = 128 << 10
		messages = 32
		queued   = 4
	)
	r := l.record(t)
	p := d.openWith(t, r, families[0], how)
	local, remote := p.requester.register(t, message, allAccess), p.responder.register(t, message, allAccess)
	o := defaultOptions(faultMTU)
	o.timeout = 14
	p.connect(t, o, o)
	data := randomBytes(message)
	from, to, at, target := p.requester, p.responder, local.addr, remote.addr
	if op == qp.RDMARead {
		from, to, at, target = to, from, target, at
	}
	from.write(t, at, data)
	wr := qp.SendWR{Op: op, SGE: []mr.SGE{local.sge(0, message)}, RemoteAddr: remote.addr, RKey: remote.key}
	before := l.rxeCounters(t)
	start := time.Now()
	for posted, done := 0, 0; done < messages; {
		for ; posted < messages && posted < done+queued; posted++ {
			p.requester.postSend(t, wr)
		}
		wcs := p.requester.poll(t, 1, completionLimit)
		if len(wcs) == 0 || wcs[0].Status != cq.Success {
			t.Fatalf("%v: %+v after %d of %d messages", op, wcs, done, messages)
		}
		done += len(wcs)
	}
	elapsed := time.Since(start)
	expectMemory(t, "what was moved", to, target, data)
	ours, rxe := p.host().dev.Stats(), l.rxeCounters(t).since(before)
	again := ours["retransmitted_pkts"]
	if d == fromRXE {
		again = rxe["sent_pkts"] - messages*message/faultMTU
		if op == qp.RDMARead {
			again = rxe["sent_pkts"] - messages
		}
	}
	t.Logf("%.1f Mbit/s; %d request packets sent again, %d timeouts and %d silences of goroce", 8*messages*message/elapsed.Seconds()/1e6, again, ours["local_ack_timeout_err"], ours["early_timeout"])
}
