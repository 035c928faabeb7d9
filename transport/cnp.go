package transport

import (
	"net/netip"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
)

// This file is the notification point: marked packets are answered by CNPs (IBA
// A17), and the other side, CNPs that arrive.

// notifier is a pair's part of the notification point.
type notifier struct {
	due  bool     // a CNP is to be sent
	pkey bth.PKey // of the packet it answers
	next time.Duration

	marked, sent, handled uint64
}

// cnpGaps are the gaps that pairs share: when the next CNP may be sent. Only
// peers of existing pairs have an entry.
type cnpGaps struct {
	port  time.Duration
	peers map[netip.Addr]time.Duration
}

// marked takes note that a packet of q's peer was marked. It arranges a CNP if
// the last one is long enough ago; otherwise the next marked packet after the
// gap does. A CNP is never answered, nor is what arrives on a pair whose peer
// has no rate to reduce.
//
// How much READ data is under way is up to who asks for it. So a controller here
// that limits by a window is told of a marked response as of a CNP; the one at the
// other end may limit the rate, or nothing.
func (e *Engine) marked(now time.Duration, q *QP, p *bth.Packet, info *bth.Info) {
	if info.Transport == bth.CNPClass || !q.Type.Connected() {
		return
	}
	q.np.marked++
	if q.np.due || now < e.nextCNP(q) {
		return
	}
	e.setNextCNP(q, now+e.cfg.CNP.Gap())
	q.np.due, q.np.pkey = true, p.PKey
	if info.Op == bth.OpReadResponse && q.ctl.Rate(now) == 0 {
		q.ctl.Notified(now)
	}
}

func (e *Engine) nextCNP(q *QP) time.Duration {
	switch e.cfg.CNP.Scope {
	case congestion.PerPort:
		return e.cnpGaps.port
	case congestion.PerDestination:
		return e.cnpGaps.peers[q.peer]
	}
	return q.np.next
}

func (e *Engine) setNextCNP(q *QP, at time.Duration) {
	g := &e.cnpGaps
	switch e.cfg.CNP.Scope {
	case congestion.PerPort:
		g.port = at
	case congestion.PerDestination:
		if g.peers == nil {
			g.peers = make(map[netip.Addr]time.Duration)
		}
		if len(g.peers) > 2*len(e.qps) { // of peers long gone; at worst a gap is cut short
			clear(g.peers)
		}
		g.peers[q.peer] = at
	default:
		q.np.next = at
	}
}

// sendCNP sends the CNP that is due: no PSN, no answer, no place in any window.
func (e *Engine) sendCNP(q *QP, b *bth.Burst) {
	q.np.due = false
	q.np.sent++
	e.Counters[CNPSent]++
	e.out.BTH = bth.BTH{Opcode: bth.CNP, PKey: q.np.pkey, BECN: true, DestQP: q.Attr.DestQPN}
	f := b.Next()
	e.frame(q, f, nil)
	f.Path = &q.cnpPath
}

// notified handles a CNP.
func (e *Engine) notified(now time.Duration, q *QP) {
	e.Counters[CNPHandled]++
	q.np.handled++
	q.ctl.Notified(now)
}
