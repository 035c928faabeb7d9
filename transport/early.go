package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// The local ACK timeout of a connection is a coarse affair, tens of
// milliseconds at least, and counts against RetryCount. A silence of a few round
// trips says as well that something was lost. What is resent then costs no
// retry, and the local ACK timer runs on: a peer that is gone is reported when
// the standard says.

// startEarlyTimer starts to wait for a sign of life.
func (r *requester) startEarlyTimer(now time.Duration) {
	r.earlyTimer = never
	d := r.rtt.silence(r.early)
	if r.doubt {
		d = min(d, r.rtt.usual())
	}
	if d != 0 && !r.coarse && r.una.Before(r.max) {
		r.earlyTimer = now + d
	}
}

// earlyTimeout resends one packet: first the last one in flight, which brings an
// ACK if only that or its answer was lost, and a NAK if there is a gap before
// it; then, ever more slowly, the oldest one, and the rest after its answer.
func (e *Engine) earlyTimeout(now time.Duration, q *QP) {
	r := &q.req
	e.Counters[EarlyTimeout]++
	if r.early == 0 && !r.probing && r.next == r.max && r.lastIsProbe(q) {
		r.tailProbe = true
	} else {
		r.cause = RetransmittedProbe
		r.wentBack = false
		e.probe(q, r.standing())
		if r.early <= 1 && !r.left.on {
			q.ctl.Lost(now)
		}
	}
	r.early = min(r.early+1, 20)
	r.earlyTimer = now + r.rtt.silence(r.early)
}

// standing is where the requester was before it went back for a probe.
type standing struct {
	on    bool
	next  bth.PSN
	cur   uint64
	reads int
}

// standing returns where the requester is, or was before its probe.
func (r *requester) standing() standing {
	if r.left.on {
		return r.left
	}
	return standing{true, r.next, r.cur, r.reads}
}

// probe goes back to the oldest packet, which is sent alone. A READ is asked for
// one packet. If the peer is slow, that costs it little, where a repetition of the
// whole request would keep it busy with what nobody needs while the next timer
// runs; and the answer tells what it is an answer to: see probeAnswered.
func (e *Engine) probe(q *QP, was standing) {
	r := &q.req
	e.rewind(q)
	r.probing = true
	if q.SQ.Len() > 0 && q.SQ.At(q.SQ.Head()).Op == qp.RDMARead && !r.coarse {
		r.left = was
		r.board() // notes what the probe asks for: nothing else need ask for it
	}
}

// probeAnswered takes packet k of a READ's data while a READ is being probed. A
// request for one packet is answered by ONLY, or by rxe's LAST. Any other answer is
// to an earlier request: the peer was slow, nothing is known to be lost, and the
// requester goes on where it was. After the probe's own answer none to an earlier
// request can follow, so the rest is asked for again.
//
// Where an earlier request ended at the same packet, the answer does not tell. Then
// the requester goes on as well, once: if there is silence again, things are lost.
func (e *Engine) probeAnswered(now time.Duration, q *QP, w *qp.SendWQE, k int, ends bool) {
	r := &q.req
	psn := w.Track.First.Add(k)
	if ends && psn == r.una {
		r.rtt.forget(psn)
		r.doubt = !r.doubt && (chunkEnds(w, k) || psn == r.lastRepair)
		if !r.doubt {
			if r.timeouts == 0 { // else it is known already
				q.ctl.Lost(now)
			}
			return
		}
	} else {
		r.doubt = false
		r.rtt.waited(now)
		r.spurious++
		e.Counters[SpuriousRetransmits]++
	}
	r.resume(now, &q.Attr)
}

// resume ends a probe, or the wait for one's turn to send it. After one for a READ
// the requester goes on where it was.
func (r *requester) resume(now time.Duration, a *qp.Attr) {
	r.probing = false
	if was := r.left; was.on && r.next.Before(was.next) {
		r.next, r.cur, r.reads = was.next, was.cur, was.reads
		if r.ackTimer == never {
			r.startAckTimer(now, a)
		}
	}
	r.left.on = false
}

// stillBusy notes READ data that are of no use (what is used starts all timers): a peer that sends them is
// not silent, and may do what was asked last when it has done with them.
func (r *requester) stillBusy(now time.Duration) {
	if r.earlyTimer != never {
		r.startEarlyTimer(now)
	}
}

// lastIsProbe reports whether the last packet in flight can be resent as a
// probe. A READ cannot: a request for its end could move a peer past its start.
func (r *requester) lastIsProbe(q *QP) bool {
	w, _ := q.owner(r.next.Add(-1))
	return w != nil && w.Op != qp.RDMARead
}

// owner returns the work request that a PSN in flight belongs to, and which of
// its packets it is.
func (q *QP) owner(psn bth.PSN) (w *qp.SendWQE, k int) {
	for c := q.SQ.Head(); c != q.SQ.Tail(); c++ {
		w = q.SQ.At(c)
		if w.Track.Packets == 0 {
			return nil, 0
		}
		if k = psn.Sub(w.Track.First); k < w.Track.Packets {
			return w, k
		}
	}
	return nil, 0
}

// sendTailProbe resends the last packet in flight. It returns false when there
// is none any more.
func (e *Engine) sendTailProbe(now time.Duration, q *QP, b *bth.Burst) bool {
	r := &q.req
	r.tailProbe = false
	if r.next != r.max || !r.una.Before(r.next) {
		return false
	}
	w, k := q.owner(r.next.Add(-1))
	if w == nil {
		return false
	}
	return e.resend(now, q, w, k, 1, RetransmittedProbe, b)
}

// resend sends packet k of a work request in flight once more, or asks for n
// responses again, without going back.
func (e *Engine) resend(now time.Duration, q *QP, w *qp.SendWQE, k, n int, cause Counter, b *bth.Burst) bool {
	r := &q.req
	was := r.sinceAck
	r.sinceAck = ackInterval // ask for an answer
	status := e.build(q, w, k, n, b)
	r.sinceAck = was
	if status != cq.Success { // the memory is gone: the work request fails when it is the oldest
		return false
	}
	r.cause = cause
	e.resent(now, q, w.Track.First.Add(k))
	if r.ackTimer == never {
		r.startAckTimer(now, &q.Attr)
	}
	return true
}

// resent counts a packet that was sent again.
func (e *Engine) resent(now time.Duration, q *QP, psn bth.PSN) {
	r := &q.req
	if !r.left.on { // else its answer will tell
		r.rtt.again(now, psn)
	}
	r.retransmitted++
	e.Counters[RetransmittedPkts]++
	e.Counters[r.cause]++
}
