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
	if !e.plausible(q, p, info) {
		e.Counters[DropStaleResponse]++
		return
	}
	switch info.Op {
	case bth.OpReadResponse:
		e.readResponse(now, q, p, info)
	case bth.OpAtomicAck:
		e.atomicAck(now, q, p)
	case bth.OpAcknowledge:
		e.acknowledge(now, q, p)
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
		if e.ackBefore(now, q, p.PSN); r.una == p.PSN && q.Attr.State != qp.Err {
			e.receiverNotReady(now, q, syn)
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
	if e.ackBefore(now, q, p.PSN); q.Attr.State == qp.Err || r.una.Before(p.PSN) {
		return // an older READ is incomplete: it was asked for again
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
	switch r.cause = RetransmittedNAK; {
	case !r.wentBack:
		e.goBack(now, q)
	case !r.coarse && r.rtt.later(now): // what was resent has been lost too
		e.goBackFree(now, q)
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
	if missing && !r.wentBack && r.rnrTimer == never {
		e.Counters[ImpliedNAKSeqErr]++
		r.cause = RetransmittedNAK
		e.goBack(now, q)
	}
}

// progress notes that una moved: counters reload, timers start anew.
func (e *Engine) progress(now time.Duration, q *QP, was bth.PSN) {
	r := &q.req
	r.retries, r.rnrRetries = q.Attr.RetryCount, q.Attr.RNRRetry
	r.wentBack, r.probing, r.tailProbe, r.timeouts, r.early = false, false, false, 0, 0
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

// answered returns the work request that an answer with PSN p completes or
// continues, after acknowledging everything before it; nil if the answer is
// not the next one.
func (e *Engine) answered(now time.Duration, q *QP, p bth.PSN) *qp.SendWQE {
	e.ackBefore(now, q, p)
	if q.Attr.State == qp.Err || q.req.una != p || q.SQ.Len() == 0 {
		return nil
	}
	w := q.SQ.At(q.SQ.Head())
	if w.Track.Packets == 0 {
		return nil
	}
	return w
}

// readResponse places one packet of READ data.
func (e *Engine) readResponse(now time.Duration, q *QP, p *bth.Packet, info *bth.Info) {
	r := &q.req
	w := e.answered(now, q, p.PSN)
	if w == nil {
		return
	}
	if info.Headers&bth.HasAETH != 0 && p.AETH.Syndrome.Kind() != bth.KindACK {
		e.unexpected(q)
		return
	}
	switch w.Op {
	case qp.RDMARead:
	case qp.Flush, qp.AtomicWrite: // answered by an empty READ response
		if info.Pos != bth.Only || len(p.Payload) != 0 {
			e.unexpected(q)
			return
		}
		e.gotAnswer(now, q, w, true)
		return
	default:
		e.unexpected(q)
		return
	}
	k, mtu := w.Track.Got, q.Attr.PathMTU
	off := uint64(k) * uint64(mtu)
	// The last packet of each request is LAST or ONLY. The others are MIDDLE,
	// or FIRST where a request starts; rxe starts a repeated one with MIDDLE.
	chunkEnds := k+1 == w.Track.Packets || (k+1)%r.chunk == 0
	if info.Pos.Ends() != chunkEnds {
		e.failOldest(q, cq.BadRespErr, 0)
		return
	}
	if uint64(len(p.Payload)) != min(uint64(mtu), uint64(w.Length)-off) {
		e.failOldest(q, cq.LocLenErr, 0)
		return
	}
	if q.Domain.Scatter(w.SGE, off, p.Payload) != 0 {
		e.failOldest(q, cq.LocProtErr, 0)
		return
	}
	e.gotAnswer(now, q, w, chunkEnds)
}

// unexpected fails the oldest work request: the answer is not to what was asked.
func (e *Engine) unexpected(q *QP) {
	e.Counters[DropUnexpectedResponse]++
	e.failOldest(q, cq.BadRespErr, 0)
}

// atomicAck delivers the result of an atomic.
func (e *Engine) atomicAck(now time.Duration, q *QP, p *bth.Packet) {
	w := e.answered(now, q, p.PSN)
	if w == nil {
		return
	}
	if !w.Op.Atomic() || p.AETH.Syndrome.Kind() != bth.KindACK {
		e.unexpected(q)
		return
	}
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], p.AtomicAck)
	if q.Domain.Scatter(w.SGE, 0, word[:]) != 0 {
		e.failOldest(q, cq.LocProtErr, 0)
		return
	}
	e.gotAnswer(now, q, w, true)
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
