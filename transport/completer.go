package transport

import (
	"encoding/binary"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// response handles an answer to one of our requests (IBA 9.7.5, 9.7.6).
func (e *Engine) response(now time.Duration, q *QP, p *bth.Packet, info *bth.Info) {
	r := &q.req
	if info.Op != bth.OpSelectiveAck && !e.plausible(q, p, info) {
		e.Counters[DropStaleResponse]++
		if info.Op == bth.OpReadResponse {
			r.stillBusy(now)
			e.answerAgain(q, p.PSN)
		}
		return
	}
	switch info.Op {
	case bth.OpReadResponse:
		e.readResponse(now, q, p, info)
	case bth.OpAtomicAck:
		e.atomicAck(now, q, p)
	case bth.OpAcknowledge:
		e.acknowledge(now, q, p)
	case bth.OpSelectiveAck:
		e.selectiveAck(now, q, p)
	}
	if q.Attr.State == qp.Err {
		return
	}
	if r.next.Before(r.una) {
		// An answer ran ahead of what is being resent: it is not needed.
		e.rewind(q)
	}
	e.checkFailed(q)
	e.checkDrained(q)
}

// plausible reports whether an answer's PSN belongs to something outstanding.
// One kind lies before una and is still valid: a NAK for a READ that names the
// request's PSN although some responses have arrived (seen with rxe).
func (e *Engine) plausible(q *QP, p *bth.Packet, info *bth.Info) bool {
	r := &q.req
	if p.PSN.Sub(r.una) >= 0 {
		return p.PSN.Before(r.max)
	}
	if info.Op != bth.OpAcknowledge || p.AETH.Syndrome.Kind() != bth.KindNAK || q.SQ.Len() == 0 {
		return false
	}
	w := q.SQ.At(q.SQ.Head())
	return w.Op == qp.RDMARead && w.Track.Packets > 0 && p.PSN.Sub(w.Track.First) >= 0
}

// acknowledge handles an ACK or NAK packet.
func (e *Engine) acknowledge(now time.Duration, q *QP, p *bth.Packet) {
	r, syn := &q.req, p.AETH.Syndrome
	switch syn.Kind() {
	case bth.KindACK:
		e.ackBefore(now, q, p.PSN.Next())
	case bth.KindRNR:
		e.Counters[RcvdRNR]++
		switch e.ackBefore(now, q, p.PSN); {
		case q.Attr.State == qp.Err:
		case r.una == p.PSN:
			e.receiverNotReady(now, q, syn)
		default:
			e.repeatFrom(now, q, p.PSN)
		}
	case bth.KindNAK:
		e.nak(now, q, p)
	default:
		e.Counters[DropReservedNAK]++
	}
}

// nak handles a NAK: everything before its PSN has arrived (IBA 9.7.5.1.3).
func (e *Engine) nak(now time.Duration, q *QP, p *bth.Packet) {
	r, syn := &q.req, p.AETH.Syndrome
	status := cq.Success
	switch syn {
	case bth.NAKSequence:
		e.Counters[PacketSeqErr]++
	case bth.NAKInvalid:
		status = cq.RemInvReqErr
	case bth.NAKRemoteAccess:
		status = cq.RemAccessErr
	case bth.NAKRemoteOp:
		status = cq.RemOpErr
	default:
		e.Counters[DropReservedNAK]++
		return
	}
	if p.PSN.Before(r.una) && status == cq.Success {
		e.Counters[DropStaleResponse]++
		return
	}
	if e.ackBefore(now, q, p.PSN); q.Attr.State == qp.Err {
		return
	}
	if r.una.Before(p.PSN) {
		e.repeatFrom(now, q, p.PSN)
		return
	}
	if status != cq.Success {
		e.countRemoteError(status)
		e.failOldest(q, status, syn)
		return
	}
	// While waiting after an RNR NAK a sequence NAK is about the packets that
	// were in flight behind it; rxe sends one.
	if r.rnrTimer != never {
		return
	}
	switch {
	case r.left.on: // it left before the probe came: that will be answered
	case !r.wentBack:
		r.cause = RetransmittedNAK
		e.goBack(now, q)
	case !r.coarse && r.rtt.later(now): // what was resent has been lost too
		r.cause = RetransmittedNAK
		e.goBackFree(now, q)
	}
}

// repeatFrom handles a NAK behind an incomplete READ or atomic: both are resent,
// what was answered in part only in part, before the NAK can take effect.
func (e *Engine) repeatFrom(now time.Duration, q *QP, p bth.PSN) {
	r := &q.req
	if r.una.Before(p) && !r.wentBack && r.rnrTimer == never {
		e.Counters[ImpliedNAKSeqErr]++
		r.cause = RetransmittedNAK
		e.goBack(now, q)
	}
}

func (e *Engine) countRemoteError(s cq.Status) {
	switch s {
	case cq.RemInvReqErr:
		e.Counters[ReqRemoteInvalidRequest]++
	case cq.RemAccessErr:
		e.Counters[ReqRemoteAccess]++
	case cq.RemOpErr:
		e.Counters[ReqRemoteOperation]++
	}
}

// receiverNotReady waits as long as the RNR NAK asks, then resends from its
// PSN. RNRRetry 7 never gives up (IBA 9.7.5.2.8).
func (e *Engine) receiverNotReady(now time.Duration, q *QP, syn bth.Syndrome) {
	r := &q.req
	if r.rnrTimer != never {
		return // a duplicate of the NAK that is being waited for
	}
	if r.rnrRetries == 0 {
		e.Counters[RNRRetryExceeded]++
		e.failOldest(q, cq.RNRRetryExcErr, syn)
		return
	}
	if r.rnrRetries < 7 {
		r.rnrRetries--
	}
	r.cause = RetransmittedNAK
	e.rewind(q)
	r.ackTimer, r.earlyTimer = never, never
	r.rnrTimer = now + syn.RNRDelay()
}

// ackBefore handles that the peer has executed everything before p: it
// completes work requests in order and moves una. A READ or atomic whose own
// answer is missing stops it: the answer was lost and is asked for again, an
// implied NAK (IBA 9.7.5.1.4).
func (e *Engine) ackBefore(now time.Duration, q *QP, p bth.PSN) {
	r := &q.req
	was := r.una
	for q.SQ.Len() > 0 {
		w := q.SQ.At(q.SQ.Head())
		if w.Track.Packets == 0 || w.Op.Answered() {
			break
		}
		end := w.Track.First.Add(w.Track.Packets)
		if p.Before(end) {
			break
		}
		r.una = end
		e.complete(q, w, 0)
		if q.Attr.State == qp.Err {
			return
		}
	}
	missing := false
	if q.SQ.Len() > 0 {
		w := q.SQ.At(q.SQ.Head())
		if w.Track.Packets > 0 && r.una.Before(p) {
			if missing = w.Op.Answered(); !missing {
				r.una = p
			}
		}
	}
	if r.una != was {
		e.progress(now, q, was)
	}
	if missing {
		e.answersMissing(now, q, p)
	}
}

// progress notes that una moved: counters reload, timers start anew.
func (e *Engine) progress(now time.Duration, q *QP, was bth.PSN) {
	r := &q.req
	if r.score != nil {
		r.score.moved(was, r.una)
	}
	if r.lossFrom.Before(r.una) {
		r.lossFrom = r.una
	}
	if r.offers == 0 {
		e.offer(q)
	}
	r.retries, r.rnrRetries = q.Attr.RetryCount, q.Attr.RNRRetry
	r.wentBack, r.probing, r.tailProbe, r.timeouts, r.early, r.heard = false, false, false, 0, 0, true
	r.left.on = false
	r.rnrTimer = never
	sample, early := r.rtt.answered(now, r.una)
	if early {
		r.spurious++
		e.Counters[SpuriousRetransmits]++
	}
	r.startAckTimer(now, &q.Attr)
	q.ctl.Acked(now, r.una.Sub(was), sample)
}

// complete retires the oldest work request, which succeeded.
func (e *Engine) complete(q *QP, w *qp.SendWQE, byteLen uint32) {
	if w.Op.Kind() == bth.OpSend {
		e.Counters[SendWQEs]++
	}
	if q.req.cur == q.SQ.Head() {
		q.req.cur++ // it was being resent
	}
	if w.Flags&qp.Signaled == 0 {
		q.SQ.Retire()
		return
	}
	e.pushSend(q, w, &cq.WC{Status: cq.Success, ByteLen: byteLen})
}

// answered returns the work request that an answer belongs to, and which of its
// packets, after acknowledging everything before it; nil if it is of no use.
func (e *Engine) answered(now time.Duration, q *QP, psn bth.PSN) (w *qp.SendWQE, k int) {
	e.ackBefore(now, q, psn)
	if q.Attr.State == qp.Err || q.req.una != psn && !e.usable(q, psn) {
		return nil, 0
	}
	return q.owner(psn)
}

// readResponse handles one packet of READ data.
func (e *Engine) readResponse(now time.Duration, q *QP, p *bth.Packet, info *bth.Info) {
	r := &q.req
	w, k := e.answered(now, q, p.PSN)
	if w == nil {
		r.stillBusy(now)
		return
	}
	s := e.placeResponse(q, w, k, p, info)
	switch {
	case s != cq.Success:
		r.stillBusy(now)
	case r.left.on:
		e.probeAnswered(now, q, w, k, info.Pos.Ends())
	default:
		r.doubt = false
	}
	e.used(now, q, w, k, p.PSN, s)
}

// used moves on after an answer to packet k was used, or not: an error takes
// effect once the work request is the oldest, when the answer has come again.
func (e *Engine) used(now time.Duration, q *QP, w *qp.SendWQE, k int, psn bth.PSN, s cq.Status) {
	r := &q.req
	switch {
	case r.una != psn && s != cq.Success:
		e.Counters[DropStaleResponse]++
	case r.una != psn:
		e.hold(now, q, psn)
		e.answersMissing(now, q, psn)
	case s == errUnexpected:
		e.unexpected(q)
	case s != cq.Success:
		e.failOldest(q, s, 0)
	default:
		e.gotAnswer(now, q, w, chunkEnds(w, k))
		e.advance(now, q)
	}
}

// errUnexpected stands for BadRespErr where the answer is of the wrong kind.
const errUnexpected = cq.Status(255)

// placeResponse checks packet k of a READ's data and copies it to its place.
func (e *Engine) placeResponse(q *QP, w *qp.SendWQE, k int, p *bth.Packet, info *bth.Info) cq.Status {
	if info.Headers&bth.HasAETH != 0 && p.AETH.Syndrome.Kind() != bth.KindACK {
		return errUnexpected
	}
	switch w.Op {
	case qp.RDMARead:
	case qp.Flush, qp.AtomicWrite: // answered by an empty READ response
		if info.Pos != bth.Only || len(p.Payload) != 0 {
			return errUnexpected
		}
		return cq.Success
	default:
		return errUnexpected
	}
	mtu := q.Attr.PathMTU
	off := uint64(k) * uint64(mtu)
	// The last packet of each request is LAST or ONLY. The others are MIDDLE,
	// or FIRST where a request starts; rxe starts a repeated one with MIDDLE. A
	// request for what was missing may have ended anywhere.
	if info.Pos.Ends() != chunkEnds(w, k) && !w.Track.Cut {
		return cq.BadRespErr
	}
	if uint64(len(p.Payload)) != min(uint64(mtu), uint64(w.Length)-off) {
		return cq.LocLenErr
	}
	if q.Domain.Scatter(w.SGE, off, p.Payload) != 0 {
		return cq.LocProtErr
	}
	return cq.Success
}

// unexpected fails the oldest work request: the answer is not to what was asked.
func (e *Engine) unexpected(q *QP) {
	e.Counters[DropUnexpectedResponse]++
	e.failOldest(q, cq.BadRespErr, 0)
}

// atomicAck handles the result of an atomic.
func (e *Engine) atomicAck(now time.Duration, q *QP, p *bth.Packet) {
	w, k := e.answered(now, q, p.PSN)
	if w == nil {
		return
	}
	e.used(now, q, w, k, p.PSN, e.placeAtomic(q, w, p))
}

func (e *Engine) placeAtomic(q *QP, w *qp.SendWQE, p *bth.Packet) cq.Status {
	if !w.Op.Atomic() || p.AETH.Syndrome.Kind() != bth.KindACK {
		return errUnexpected
	}
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], p.AtomicAck)
	if q.Domain.Scatter(w.SGE, 0, word[:]) != 0 {
		return cq.LocProtErr
	}
	return cq.Success
}

// gotAnswer notes one answer of a READ or atomic; last tells that it was the
// last one of its request packet.
func (e *Engine) gotAnswer(now time.Duration, q *QP, w *qp.SendWQE, last bool) {
	r := &q.req
	was := r.una
	r.una = r.una.Next()
	w.Track.Got++
	if last && r.reads > 0 && !r.next.Before(r.una) {
		r.reads--
	}
	if w.Track.Got == w.Track.Packets {
		e.complete(q, w, w.Length)
	}
	if q.Attr.State != qp.Err {
		e.progress(now, q, was)
	}
}
