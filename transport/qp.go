package transport

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// QP is the engine's record of a queue pair: the pair itself and the state of
// its requester and responder.
type QP struct {
	*qp.Pair
	// Congestion makes the pair's controller when it enters RTR; nil is
	// Config.Congestion. It belongs to the engine's owner.
	Congestion congestion.Factory

	path      bth.Path // of requests and READ responses
	quietPath bth.Path // of other answers: no switch need mark them
	cnpPath   bth.Path
	peer      netip.Addr // path.Dst without zone, as received packets have it
	ctl       congestion.Controller
	pace      pacer
	np        notifier
	req       requester
	rsp       responder

	destroyed bool

	hinted  bool // the peer's source port is one of ours: see offer
	commEst bool // COMM_EST was raised
	drained bool // SQ_DRAINED was raised since SQD was entered
	queued  bool
	owing   bool // in Engine.owing

	shared      *peer // RC past INIT: who it sends to
	counted     int   // packets of it that the peer counts
	needs       int   // packets that have to fit before it goes on
	promise     int   // packets that it may send although others wait
	waits       bool  // in the peer's queue, between these
	waitsBehind *QP
	waitsBefore *QP
	nextReady   *QP
	sentAll     bool // in Engine.finished
	wakeAt      time.Duration
	timerPos    int // in the heap, -1 when not
}

func newQP(p *qp.Pair) *QP {
	q := &QP{Pair: p, timerPos: -1}
	q.reset()
	return q
}

// reset clears queues and protocol state, as RESET does.
func (q *QP) reset() {
	q.ClearQueues()
	q.req = requester{ackTimer: never, rnrTimer: never, earlyTimer: never}
	q.rsp = responder{lazyTimer: never, nakTimer: never}
	q.path, q.peer, q.ctl = bth.Path{}, netip.Addr{}, congestion.Fixed(1)
	q.pace, q.np = pacer{}, notifier{next: q.np.next}
	q.hinted, q.commEst, q.drained = false, false, false
	q.req.cur = q.SQ.Head()
}

// Modify changes attributes and state (IBA 11.2.5.2). It applies the whole call
// or nothing.
func (e *Engine) Modify(now time.Duration, q *QP, a *qp.Attr, mask qp.AttrMask) error {
	if q.destroyed {
		return ErrDestroyed
	}
	if mask&qp.AttrAV != 0 && (a.AV.DGID.Is4() || a.AV.DGID.Is4In6()) != e.cfg.Local.Is4() {
		return ErrFamily
	}
	from, to := q.Attr.State, q.Attr.State
	if mask&qp.AttrState != 0 {
		to = a.State
	}
	if from == qp.SQD && !q.drained && to != qp.Err && to != qp.Reset {
		return &qp.AttrError{Type: q.Type, From: from, To: to, Value: "the send queue is still draining; wait for SQ_DRAINED"}
	}
	if err := q.Pair.Modify(a, mask); err != nil {
		return err
	}
	if mask&qp.AttrAV != 0 {
		e.setPath(q)
	}
	if from == qp.SQD && to == qp.SQD {
		q.adjust(mask)
	}
	if q.Attr.State != from {
		e.entered(now, q, from)
	}
	e.kick(q)
	return nil
}

// adjust lets attributes take effect that were changed in SQD.
func (q *QP) adjust(mask qp.AttrMask) {
	if mask&qp.AttrMaxDestRDAtomic != 0 {
		q.rsp.resize(int(q.Attr.MaxDestRDAtomic))
	}
	q.req.retries, q.req.rnrRetries = q.Attr.RetryCount, q.Attr.RNRRetry
}

// entered does what a change of state means.
func (e *Engine) entered(now time.Duration, q *QP, from qp.State) {
	switch q.Attr.State {
	case qp.Reset:
		e.dropAhead(q)
		e.part(q)
		q.reset()
	case qp.RTR:
		if q.Type.Connected() {
			q.ctl = e.controller(q)
			e.setPath(q) // the controller decides its ECN bits
		}
		q.rsp.start(&q.Attr)
	case qp.RTS:
		if from == qp.RTR {
			q.req.start(&q.Attr, q.ctl.Window(), e.cfg.Recovery)
		}
	case qp.SQD:
		q.drained = false
		e.checkDrained(q)
	case qp.Err:
		q.rsp.queue.clear()
		e.flush(q)
	}
}

func (e *Engine) setPath(q *QP) {
	p := e.path(q.Attr.AV, q.Attr.DestQPN)
	if peer := p.Dst.WithZone(""); peer != q.peer || q.shared == nil {
		q.peer = peer
		e.join(q)
	}
	q.path, q.quietPath, q.cnpPath = p, p, p
	q.cnpPath.TrafficClass = e.cfg.CNP.TrafficClass()
	if q.ctl.ECN() && p.TrafficClass&congestion.ECNMask == 0 {
		q.path.TrafficClass |= congestion.ECT0
	}
}

// InFlight returns how many packets have been sent whose answer is under way: they, or
// a later one, asked for it.
func (q *QP) InFlight() int { return max(0, q.req.next.Sub(q.req.una)-q.req.sinceAck) }

// path returns the way to a queue pair at an address.
func (e *Engine) path(av qp.AddressVector, to bth.QPN) bth.Path {
	ports := e.cfg.SrcPorts
	return bth.Path{
		Src: e.cfg.Local, Dst: av.DGID.Unmap(), SrcPort: ports[int(to)&(len(ports)-1)],
		TrafficClass: av.TrafficClass, HopLimit: av.HopLimit,
	}
}

// deadline returns the earliest of the pair's timers.
func (q *QP) deadline() time.Duration {
	return min(q.req.ackTimer, q.req.rnrTimer, q.req.earlyTimer, q.rsp.nakTimer, q.rsp.lazyTimer, q.pace.deadline())
}

// fail moves the pair to ERR and flushes everything. The completion of the work
// request that failed has been pushed by the caller.
func (e *Engine) fail(q *QP) {
	q.Attr.State = qp.Err
	e.flush(q)
}

// FailConnected moves every connected pair that is past INIT to ERR, because
// of what happened to the port: QP_FATAL with the reason, then the flush.
func (e *Engine) FailConnected(reason string) {
	for _, qpn := range slices.Sorted(maps.Keys(e.qps)) {
		q := e.qps[qpn]
		if q.Type.Connected() && q.Attr.State.CanReceive() {
			e.cfg.OnEvent(Event{Type: EventQPFatal, QPN: qpn, Reason: reason})
			q.rsp.queue.clear()
			e.fail(q)
		}
	}
}

// failSend moves a UC or UD pair to SQE: its send queue is flushed, its receive
// side goes on (IBA 10.3.1.6).
func (e *Engine) failSend(q *QP) {
	q.Attr.State = qp.SQE
	e.flushSend(q)
}

// flush completes all work requests with WRFlushErr, in order, signaled or not
// (IBA 10.3.1.7).
func (e *Engine) flush(q *QP) {
	e.flushSend(q)
	e.dropAhead(q)
	if q.SRQ != nil && !q.rsp.lastWQE {
		// The pair takes nothing more from its SRQ (IBA 11.6.3.2).
		q.rsp.lastWQE = true
		e.cfg.OnEvent(Event{Type: EventLastWQEReached, QPN: q.QPN})
	}
	if q.rsp.haveRecv {
		q.rsp.haveRecv = false
		e.pushRecv(q, &cq.WC{ID: q.rsp.recv.ID, Status: cq.WRFlushErr}, false)
	}
	for q.RQ.Len() > 0 {
		id := q.RQ.At(q.RQ.Head()).ID
		q.RQ.Retire()
		e.pushRecv(q, &cq.WC{ID: id, Status: cq.WRFlushErr}, false)
	}
}

func (e *Engine) flushSend(q *QP) {
	q.req.ackTimer, q.req.rnrTimer, q.req.earlyTimer = never, never, never
	q.rsp.nakTimer, q.rsp.lazyTimer = never, never
	for q.SQ.Len() > 0 {
		w := q.SQ.At(q.SQ.Head())
		e.pushSend(q, w, &cq.WC{Status: cq.WRFlushErr})
	}
	q.req.cur = q.SQ.Tail()
}

// pushSend retires the oldest send work request with the completion wc.
func (e *Engine) pushSend(q *QP, w *qp.SendWQE, wc *cq.WC) {
	wc.ID, wc.QPN, wc.Opcode = w.ID, q.QPN, w.Op.WCOpcode()
	q.SQ.Retire()
	e.push(q, q.SendCQ, wc, false)
}

func (e *Engine) pushRecv(q *QP, wc *cq.WC, solicited bool) {
	wc.QPN = q.QPN
	e.push(q, q.RecvCQ, wc, solicited)
}

// push adds a completion. A full queue loses it, is in error from then on, and
// takes the pair with it (IBA 10.7.2).
func (e *Engine) push(q *QP, c *cq.Queue, wc *cq.WC, solicited bool) {
	was := c.Overflowed()
	if c.Push(wc, solicited) {
		return
	}
	e.Counters[CQOverflow]++
	if !was {
		e.cfg.OnEvent(Event{Type: EventCQErr, QPN: q.QPN, CQ: c})
	}
	if q.Attr.State != qp.Err {
		e.cfg.OnEvent(Event{Type: EventQPFatal, QPN: q.QPN})
		e.fail(q)
	}
}

// checkDrained raises SQ_DRAINED once the started work requests are complete.
func (e *Engine) checkDrained(q *QP) {
	if q.Attr.State != qp.SQD || q.drained {
		return
	}
	if q.SQ.Len() > 0 && q.SQ.At(q.SQ.Head()).Track.Packets > 0 {
		return
	}
	q.drained = true
	if q.Attr.EnSQDNotify {
		e.cfg.OnEvent(Event{Type: EventSQDrained, QPN: q.QPN})
	}
}
