package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/udp"
)

// ladder collects the packets of a small exchange and draws them as a sequence
// diagram, one rung per packet.
type ladder struct {
	mu    sync.Mutex
	on    bool
	rungs []rung
}

type rung struct {
	sent bool
	text string
}

// tap returns the tap of device A: it feeds the ladder while it is on, and the
// capture file always, if there is one.
func (l *ladder) tap(capture *packetFile) udp.Tap {
	return func(at time.Time, sent bool, datagram []byte) {
		if capture != nil {
			capture.write(at, sent, datagram)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.on {
			l.rungs = append(l.rungs, rung{sent, rungText(datagram)})
		}
	}
}

// rungText says of a packet what a learner needs.
func rungText(datagram []byte) string {
	header := 28 // IPv4 and UDP
	if datagram[0]>>4 == 6 {
		header = 48
	}
	var p bth.Packet
	if err := p.Parse(datagram[header : len(datagram)-bth.ICRCLen]); err != nil {
		return err.Error()
	}
	info := p.Opcode.Info()
	s := fmt.Sprintf("%s  PSN %d", strings.TrimPrefix(info.Name, "RC "), p.PSN.Value())
	if info.Headers&bth.HasAETH != 0 && info.Op == bth.OpAcknowledge {
		s += fmt.Sprintf("  %v, MSN %d", p.AETH.Syndrome, p.AETH.MSN.Value())
	}
	if info.Headers&bth.HasRETH != 0 {
		s += fmt.Sprintf("  key 0x%08x, %d bytes", p.RETH.RKey, p.RETH.Length)
	}
	if len(p.Payload) > 0 {
		s += fmt.Sprintf("  [%d]", len(p.Payload))
	}
	if p.AckReq && info.Request {
		s += "  AckReq"
	}
	return s
}

// showLadder runs a WRITE and a READ of two and a half packets and draws them.
func (d *demoPair) showLadder(ctx context.Context, out io.Writer) error {
	n := min(d.f.size, d.f.mtu*5/2)
	for _, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead} {
		d.lad.start()
		err := d.do(ctx, &qp.SendWR{Op: op, SGE: []mr.SGE{d.a.mem.SGE(0, n)}, RemoteAddr: d.b.mem.Addr(), RKey: d.b.mem.Key()})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\nThe packets of one %v of %d bytes, path MTU %d:\n\n", op, n, d.f.mtu)
		d.lad.draw(out)
	}
	_, err := fmt.Fprintln(out, "\nPSN: each request packet has the next number; a READ takes one for each packet of\n"+
		"its answer. AckReq asks for an acknowledgement, which covers all earlier packets.\n"+
		"[n]: bytes of payload. A packet that is lost leaves a gap in the PSNs; the receiver\n"+
		"asks for it (NAK), or the sender's timer expires.")
	return err
}

func (l *ladder) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on, l.rungs = true, nil
}

// rungWidth is how many columns lie between the two ends.
const rungWidth = 70

func (l *ladder) draw(out io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on = false
	fmt.Fprintf(out, "    A%sB\n", strings.Repeat(" ", rungWidth+2))
	for _, r := range l.rungs {
		text := " " + r.text + " "
		dashes := max(2, rungWidth-len([]rune(text)))
		left := strings.Repeat("─", 2)
		right := strings.Repeat("─", max(0, dashes-3))
		if r.sent {
			fmt.Fprintf(out, "    │ %s%s%s▶ │\n", left, text, right)
		} else {
			fmt.Fprintf(out, "    │ ◀%s%s%s │\n", left, text, right)
		}
	}
}
