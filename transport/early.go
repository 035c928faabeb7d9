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
	if d := r.rtt.silence(r.early); d != 0 && !r.coarse && r.una.Before(r.max) {
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
		if r.early <= 1 {
			q.ctl.Lost(now)
		}
		r.cause = RetransmittedProbe
		r.wentBack, r.probing = false, true
		e.rewind(q)
	}
	r.early = min(r.early+1, 20)
	r.earlyTimer = now + r.rtt.silence(r.early)
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
	r.rtt.again(now, psn)
	r.retransmitted++
	e.Counters[RetransmittedPkts]++
	e.Counters[r.cause]++
}
