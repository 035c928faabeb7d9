package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// This file has the services without acknowledgement: UC (IBA 9.8.2) and UD
// (9.8.3). A request is complete when its last packet has left.

// sendUnreliable sends the next packet of a UC or UD pair.
func (e *Engine) sendUnreliable(now time.Duration, q *QP, b *bth.Burst) bool {
	r := &q.req
	if !q.Attr.State.CanSend() || r.failed != 0 || !e.doLocal(q) {
		return false
	}
	w := q.SQ.At(r.cur)
	if w.Track.Packets == 0 && !e.beginUnreliable(q, w) {
		return false
	}
	if !q.maySend(now) {
		return false
	}
	if s := e.buildUnreliable(q, w, r.next.Sub(w.Track.First), b); s != cq.Success {
		e.failUnreliable(q, s)
		return false
	}
	q.paced(now, b)
	r.next = r.next.Next()
	if r.next == w.Track.First.Add(w.Track.Packets) {
		r.cur++
		e.finish(q)
	}
	return true
}

func (e *Engine) beginUnreliable(q *QP, w *qp.SendWQE) bool {
	if q.Attr.State == qp.SQD {
		return false
	}
	n := 1
	if q.Type == qp.UC {
		n = packets(uint64(w.Length), q.Attr.PathMTU)
	} else if int(w.Length) > e.cfg.PortMTU { // C10-93.1.1
		e.failUnreliable(q, cq.LocLenErr)
		return false
	}
	if w.Inline == nil && q.Domain.Check(w.SGE, 0) != 0 {
		e.failUnreliable(q, cq.LocProtErr)
		return false
	}
	w.Track = qp.Track{First: q.req.next, Packets: n}
	return true
}

// buildUnreliable puts packet k of the work request into the burst.
func (e *Engine) buildUnreliable(q *QP, w *qp.SendWQE, k int, b *bth.Burst) cq.Status {
	mtu, path := q.Attr.PathMTU, &q.path
	if q.Type != qp.UC {
		mtu = e.cfg.PortMTU
		w.Dest.Path = e.path(w.Dest.AV, w.RemoteQPN)
		path = &w.Dest.Path
	}
	off := uint64(k) * uint64(mtu)
	payload, fault := gather(q, w, off, min(uint64(mtu), uint64(w.Length)-off), b)
	if fault != 0 {
		return cq.LocProtErr
	}
	pos := position(k, w.Track.Packets)
	p := e.header(q, requestOpcode(w.Op, pos).On(q.Type.Transport()), q.req.next)
	p.RETH = bth.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: w.Length}
	p.Imm = w.Imm
	p.Solicited = w.Flags&qp.Solicited != 0 && pos.Ends() && w.Op != qp.RDMAWrite
	if q.Type != qp.UC {
		p.DestQP = w.RemoteQPN
		p.DETH = bth.DETH{QKey: q.sendQKey(w.RemoteQKey), SrcQP: q.QPN}
	}
	f := b.Next()
	e.frame(q, f, payload)
	f.Path = path
	return cq.Success
}

// sendQKey returns the Q_Key for a datagram: the work request's, or the pair's
// own if the former is privileged, that is has bit 31 set (IBA 10.2.5).
func (q *QP) sendQKey(k bth.QKey) bth.QKey {
	if k>>31 != 0 {
		return q.Attr.QKey
	}
	return k
}

// finish notes that a request of q is wholly in the burst. It completes when
// the burst has been sent: until then its payload is read.
func (e *Engine) finish(q *QP) {
	if !q.sentAll {
		q.sentAll = true
		e.finished = append(e.finished, q)
	}
}

// finishSent completes the requests whose last packet was in the last burst.
func (e *Engine) finishSent() {
	for i, q := range e.finished {
		q.sentAll = false
		e.finished[i] = nil
		for q.SQ.Head() != q.req.cur && q.SQ.Len() > 0 {
			e.complete(q, q.SQ.At(q.SQ.Head()), 0)
		}
		if q.req.failed != 0 && q.SQ.Len() > 0 {
			s := q.req.failed
			q.req.failed = 0
			if e.pushSend(q, q.SQ.At(q.SQ.Head()), &cq.WC{Status: s}); q.Attr.State != qp.Err { // or its CQ was full
				e.failSend(q)
			}
		}
		e.checkDrained(q)
		e.ready.push(q) // a local operation may have waited for this
	}
	e.finished = e.finished[:0]
}

// failUnreliable notes that the request that is to be sent cannot be. It fails
// after those before it have completed.
func (e *Engine) failUnreliable(q *QP, s cq.Status) {
	q.req.failed = s
	e.finish(q)
}

// receiveUC handles a UC packet. What does not fit the sequence, the rights or
// the buffers loses its message, silently; the next message starts afresh.
func (e *Engine) receiveUC(q *QP, p *bth.Packet, info *bth.Info) {
	r := &q.rsp
	e.established(q)
	inMessage := r.msg.op != bth.OpNone
	if p.PSN != r.expect || info.Pos.Starts() == inMessage || inMessage && info.Op != r.msg.op {
		r.msg = message{}
		if !info.Pos.Starts() {
			e.Counters[DropUCSequence]++
			return
		}
		if p.PSN != r.expect {
			e.Counters[OutOfSequence]++
		}
		r.expect = p.PSN
	}
	drop := e.placeUC(q, p, info)
	if drop != admitted {
		r.msg = message{}
		e.Counters[drop]++
		return
	}
	r.expect = r.expect.Next()
	if info.Pos.Ends() {
		e.endMessage(q, p, info)
	}
}

// placeUC checks and places one packet in sequence.
func (e *Engine) placeUC(q *QP, p *bth.Packet, info *bth.Info) Counter {
	if v := e.checkOperation(q, p, info); v.nak != 0 {
		return DropUCRefused
	}
	if v := e.checkContents(q, p, info); v.nak != 0 {
		return DropUCRefused
	}
	if info.TakesRecv && !e.takeRecv(q) {
		return DropNoRecv
	}
	v := verdict{}
	if info.Op == bth.OpSend {
		v = e.placeSend(q, p)
	} else {
		v = e.placeWrite(q, p, info)
	}
	if v == badRecv { // ours to report, and no later message could be placed
		r := &q.rsp
		r.haveRecv = false
		e.pushRecv(q, &cq.WC{ID: r.recv.ID, Status: v.status}, true)
		e.fail(q)
	}
	if v.nak != 0 {
		return DropUCRefused
	}
	return admitted
}

// receiveUD delivers a datagram behind its GRH.
func (e *Engine) receiveUD(q *QP, p *bth.Packet, info *bth.Info, d *bth.Datagram) {
	r := &q.rsp
	if p.DETH.QKey != q.Attr.QKey {
		e.Counters[DropQKey]++
		return
	}
	if !e.takeRecv(q) {
		e.Counters[DropNoRecv]++
		return
	}
	n := uint64(bth.GRHLen + len(p.Payload))
	if n > mr.Total(r.recv.SGE) {
		e.Counters[DropUDTooLong]++ // the receive stays for the next datagram
		return
	}
	d.PutGRH(&e.grh)
	r.haveRecv = false
	if q.Domain.Scatter(r.recv.SGE, 0, e.grh[:]) != 0 || q.Domain.Scatter(r.recv.SGE, bth.GRHLen, p.Payload) != 0 {
		e.pushRecv(q, &cq.WC{ID: r.recv.ID, Status: cq.LocProtErr}, true)
		e.fail(q)
		return
	}
	wc := cq.WC{ID: r.recv.ID, Opcode: cq.OpRecv, ByteLen: uint32(n), Flags: cq.WithGRH, SrcQP: p.DETH.SrcQP}
	if info.Headers&bth.HasImmDt != 0 {
		wc.Flags |= cq.WithImm
		wc.Imm = p.Imm
	}
	e.Counters[RecvCompletions]++
	e.pushRecv(q, &wc, p.Solicited)
}
