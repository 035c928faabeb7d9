package transport

import (
	"encoding/binary"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/qp"
)

// Two pairs of this package that face each other can do better than a NAK: the
// responder tells which packets behind a gap have come, and the requester sends
// only the others again. The packet that tells is not in the standard, so it
// goes only to a peer that has shown that it understands it:
//
//  1. The peer's packets come from a UDP source port that this package uses: see
//     bth.OwnSrcPort. This is a hint; few others have it, and without it nothing
//     happens.
//  2. The requester sends an offer: a WRITE of no bytes, with a PSN that the peer
//     has acknowledged. Any peer takes it for a duplicate, which is decided by
//     the PSN alone and before anything else in the packet is looked at; it has
//     to acknowledge it and may not execute it (IBA 9.7.4.1.1, 9.7.5.1.1). And
//     if it looked, it would find a WRITE of length 0, whose address and key mean
//     nothing (C9-88): they hold 96 bits by which this package knows an offer.
//  3. A responder that has seen an offer answers it with a selective
//     acknowledgement, and uses them from then on. With that the requester knows.
//
// The two directions of a connection agree apart. A selective acknowledgement is
// an ACK or NAK with a bitmap; what it says about the packets before its PSN is
// what the standard says, and the bitmap is only believed until the next local
// ACK timeout.
const (
	offerVA  = 0x676F_726F_6365_5341
	offerKey = 0xC8A9_5E1F
	// maxOffers bounds the offers of one connection: the first, and one with each
	// loss while there is no answer.
	maxOffers = 8
)

// The payload of a selective acknowledgement, numbers big-endian:
//
//	0   version 0
//	3   tolerance: how many packets behind a gap are no sign of a loss
//	4   PSN that bit 0 stands for, in the low 24 bits
//	8   bitmap of reorderSpan bits, bit 0 the lowest of byte 8
const (
	sackTolerance = 3
	sackBase      = 4
	sackBitmap    = 8
	sackLen       = sackBitmap + reorderSpan/8
)

// ackEarly is how many early packets pass between two selective acknowledgements.
const ackEarly = 8

// offer arranges that the peer is offered selective acknowledgements, if it has
// not answered yet.
func (e *Engine) offer(q *QP) {
	r := &q.req
	if q.hinted && !r.selective && r.offers < maxOffers && e.cfg.Recovery == Selective {
		r.offering = true
	}
}

// sendOffer sends an offer. It returns false when there is nothing yet that the
// peer has acknowledged.
func (e *Engine) sendOffer(q *QP, b *bth.Burst) bool {
	r := &q.req
	r.offering = false
	p := e.header(q, bth.WriteOnly, r.una.Add(-1))
	p.AckReq = true
	p.RETH = bth.RETH{VA: offerVA, RKey: offerKey}
	e.frame(q, b.Next(), nil)
	r.offers++
	return true
}

// agreed reports that the peer has shown to be of this package.
func (q *QP) agreed() bool { return q.req.selective || q.rsp.selective }

// offered takes a duplicate that is an offer, and reports whether it is one.
func (e *Engine) offered(q *QP, p *bth.Packet) bool {
	if p.Opcode != bth.WriteOnly || p.RETH != (bth.RETH{VA: offerVA, RKey: offerKey}) {
		return false
	}
	if q.hinted && e.cfg.Recovery == Selective {
		q.rsp.selective, q.rsp.confirm = true, true
	}
	return true
}

// selectively reports whether an ACK or sequence NAK is to be sent as a
// selective acknowledgement.
func (r *responder) selectively(s bth.Syndrome) bool {
	return r.selective && (r.confirm || r.ahead != nil) && (s == bth.SyndromeACK || s == bth.NAKSequence)
}

// sendSelective sends an ACK or sequence NAK that tells what has come early.
func (e *Engine) sendSelective(q *QP, v *response, b *bth.Burst) {
	r := &q.rsp
	r.confirm = false
	body := b.Scratch(sackLen)
	clear(body)
	body[sackTolerance] = byte(r.tolerance)
	binary.BigEndian.PutUint32(body[sackBase:], r.expect.Value())
	if u := r.ahead; u != nil {
		for i := range u.high.Sub(r.expect) + 1 {
			if psn := r.expect.Add(i); u.has(psn) {
				body[sackBitmap+i/8] |= 1 << (i % 8)
			} else {
				r.told.add(psn)
			}
		}
	}
	p := e.header(q, bth.SelectiveAck, v.psn)
	p.AETH = bth.AETH{Syndrome: v.syndrome, MSN: v.msn}
	e.frame(q, b.Next(), body)
	e.Counters[SentSelectiveAcks]++
}

// tellEarly reports a packet that has come early to a peer that understands it:
// the first ones, then now and then.
func (e *Engine) tellEarly(now time.Duration, q *QP, p *bth.Packet, newGap bool) {
	r := &q.rsp
	switch {
	case r.early <= r.tolerance:
		if r.nakTimer == never {
			r.nakTimer = now + reorderWait
		}
	case !r.quiet:
		e.outOfSequence(now, q)
	case newGap || p.AckReq || r.early%ackEarly == 0:
		r.queue.nak(r.expect, bth.NAKSequence, r.msn)
	}
}

// selectiveAck handles what a peer tells about packets behind a gap.
func (e *Engine) selectiveAck(now time.Duration, q *QP, p *bth.Packet) {
	r := &q.req
	if len(p.Payload) != sackLen || p.Payload[0] != 0 || r.offers == 0 {
		e.Counters[DropSelectiveAck]++
		return
	}
	e.Counters[RcvdSelectiveAcks]++
	r.selective, r.offering = true, false
	if p.PSN.Before(r.una) || !p.PSN.Before(r.max) {
		return // the answer to an offer, or late
	}
	upTo := p.PSN
	switch p.AETH.Syndrome {
	case bth.SyndromeACK:
		upTo = p.PSN.Next()
	case bth.NAKSequence:
		e.Counters[PacketSeqErr]++
	default:
		return
	}
	if e.ackBefore(now, q, upTo); q.Attr.State != qp.Err && r.una.Before(r.max) {
		e.noteEarly(now, q, p.Payload)
	}
}

// noteEarly takes over the bitmap, and lets what it lacks be resent.
func (e *Engine) noteEarly(now time.Duration, q *QP, body []byte) {
	r := &q.req
	b := r.board()
	base := bth.NewPSN(binary.BigEndian.Uint32(body[sackBase:]))
	top := -1
	for i := reorderSpan - 1; i >= 0 && top < 0; i-- {
		if body[sackBitmap+i/8]>>(i%8)&1 != 0 {
			top = i
		}
	}
	if top < 0 {
		return
	}
	seen := base.Add(top)
	if !seen.Before(r.max) || seen.Sub(r.una) < 0 || seen.Sub(r.una) >= sendSpan {
		return
	}
	was := b.n
	for c := q.SQ.Head(); c != q.SQ.Tail(); c++ {
		w := q.SQ.At(c)
		if w.Track.Packets == 0 || seen.Before(w.Track.First) {
			break
		}
		r.noteRequest(w, base, top, body[sackBitmap:])
	}
	if b.seen.Before(seen) {
		b.seen = seen
	}
	b.reported = int(body[sackTolerance])
	if b.n != was {
		r.startAckTimer(now, &q.Attr) // the peer lives
	}
	r.resume(now, &q.Attr)
	r.repair = r.rnrTimer == never
}

// noteRequest notes which packets of a work request have arrived. A READ whose
// request has arrived is not answered yet, but not lost either.
func (r *requester) noteRequest(w *qp.SendWQE, base bth.PSN, top int, bitmap []byte) {
	first := max(0, w.Track.First.Sub(base))
	last := min(top, w.Track.First.Add(w.Track.Packets-1).Sub(base))
	for i := first; i <= last; i++ {
		psn := base.Add(i)
		if bitmap[i/8]>>(i%8)&1 == 0 || psn.Before(r.una) {
			continue
		}
		if !w.Op.Answered() {
			r.score.set(psn)
			continue
		}
		k := psn.Sub(w.Track.First)
		for to := min(w.Track.Packets, (k/w.Track.Piece+1)*w.Track.Piece); k < to && w.Track.First.Add(k).Sub(r.una) < sendSpan; k++ {
			r.score.resent(w.Track.First.Add(k), r.max)
		}
	}
}

// nextLostRequest finds the next request packet of w that a selective
// acknowledgement shows to be lost, from packet k on.
func (r *requester) nextLostRequest(w *qp.SendWQE) (k, n int) {
	b := r.score
	from := r.una
	if from.Before(b.heard) {
		from = b.heard
	}
	k = max(0, from.Sub(w.Track.First))
	last := min(w.Track.Packets, b.seen.Sub(w.Track.First))
	step := 1
	if w.Op == qp.RDMARead {
		step = w.Track.Piece
		k = (k + step - 1) / step * step
	}
	for ; k < last; k += step {
		if b.lostBefore(w.Track.First.Add(k), b.seen, max(b.tolerance, b.reported)) {
			return k, min(step, w.Track.Packets-k)
		}
	}
	return 0, 0
}

// forget stops to believe what the peer told about packets behind a gap. Answers
// are no hearsay: they are in memory already. To ask for them again is worse than
// needless, since a responder may have forgotten what lies before the start of a
// READ's last repetition (rxe has), and drops the request each time.
func (r *requester) forget(q *QP) {
	b := r.score
	if b == nil {
		return
	}
	now := scoreboard{heard: b.heard, seen: r.una, tolerance: b.tolerance, late: b.late}
	for psn := r.una; psn.Before(r.max) && psn.Sub(r.una) < sendSpan; psn = psn.Next() {
		if !b.has(psn) {
			continue
		}
		if w, _ := q.owner(psn); w != nil && w.Op.Answered() {
			now.set(psn)
		}
	}
	*b = now
}
