package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// requester is the sending side of a queue pair. Its work requests lie in the
// send queue; each takes a run of PSNs:
//
//	SQ:   [ done ][ answered in part ][ being sent ][ waiting … ]
//	PSN:              una ─────────────── next ──── max
//
// una is the oldest PSN without an answer, next the one to send, max one past
// the highest ever sent. Going back sets next to una and nothing else: what to
// send at a PSN follows from the work request that owns it.
type requester struct {
	una, next, max bth.PSN
	cur            uint64 // counter of the work request that next falls into
	reads          int    // READ requests and atomics sent and unanswered
	sinceAck       int    // packets since the last AckReq
	heard          bool   // something was answered
	mustAsk        bool   // the next packet asks for an acknowledgement

	chunk int // packets that a READ request may ask for at any time: what the first window allows

	retries, rnrRetries uint8
	wentBack            bool // already resending from una; no second time before progress or timeout

	// After a timeout the peer may be slow, not gone: one packet goes out and
	// the rest waits for its answer, and the next timeout comes later.
	probing  bool
	timeouts uint8    // in a row
	left     standing // what a probe for a READ has interrupted
	doubt    bool     // the last probe's answer may have been to an earlier request

	ackTimer, rnrTimer time.Duration // deadlines

	// Long before the local ACK timeout a silence is taken for a loss, once the
	// round trip time is known: see earlyTimeout.
	rtt        roundTrip
	earlyTimer time.Duration
	early      uint8 // expiries in a row
	coarse     bool  // GoBackN: never
	tailProbe  bool  // the last packet in flight is to be sent once more

	selective, offering bool // see offer
	offers              uint8

	score  *scoreboard // nil until something is answered out of order
	repair bool        // lost answers have to be asked for
	// lastRepair is the first PSN of the last ones, repaired its first answer.
	lastRepair bth.PSN
	lossFrom   bth.PSN // losses from here on are news to the controller

	cause         Counter // why packets are being resent
	retransmitted uint64
	spurious      uint64

	// A local error waits until all older work requests are complete.
	failed   cq.Status
	failedAt uint64
}

// ackInterval is the most packets between two AckReqs, if a quarter of the
// window is not less: a peer acknowledges only when asked, and its answers open
// the window.
const ackInterval = 64

// firstInterval is the same before the first answer, which tells the round trip
// time: without it, a loss at the start of a connection costs a whole timeout.
const firstInterval = 16

func (r *requester) start(a *qp.Attr, window int, how Recovery) {
	*r = requester{
		una: a.SQPSN, next: a.SQPSN, max: a.SQPSN, cur: r.cur,
		retries: a.RetryCount, rnrRetries: a.RNRRetry,
		ackTimer: never, rnrTimer: never, earlyTimer: never, cause: RetransmittedNAK, lossFrom: a.SQPSN, lastRepair: a.SQPSN.Add(-1), coarse: how == GoBackN,
	}
	r.chunk = pieceOf(window, a)
}

// pieceOf returns how many packets one READ request asks for at most: a long READ
// is asked for in pieces, each a READ request of its own, so that its responses
// never exceed the window. Two pieces overlap if the peer takes two requests at a
// time.
func pieceOf(window int, a *qp.Attr) int {
	if a.MaxRDAtomic < 2 {
		return window
	}
	return max(1, window/2)
}

// sendRequest sends the next request packet. It returns false when there is
// nothing to send, or when it has to wait for an answer or a timer.
func (e *Engine) sendRequest(now time.Duration, q *QP, b *bth.Burst) bool {
	r := &q.req
	if !q.Attr.State.CanSend() || r.rnrTimer != never {
		return false
	}
	if r.tailProbe && e.sendTailProbe(now, q, b) {
		return true
	}
	if r.offering && e.sendOffer(q, b) || r.repair && e.sendRepair(now, q, b) {
		return true
	}
	if r.failed != 0 && r.cur == r.failedAt || !e.doLocal(q) {
		return false
	}
	w := q.SQ.At(r.cur)
	if w.Track.Packets == 0 && !e.begin(now, q, w) {
		return false
	}
	k := r.next.Sub(w.Track.First)
	n := 1
	if w.Op == qp.RDMARead {
		n = r.ask(w, k)
	}
	if inFlight := r.next.Sub(r.una); inFlight > 0 && (r.probing || r.blocked(inFlight+n, windowFor(w, n, q.ctl.Window())) && !r.unasked(w, inFlight)) {
		return false
	}
	if w.Op.Answered() && r.reads >= int(q.Attr.MaxRDAtomic) {
		return false
	}
	r.mustAsk = false
	if inFlight := r.next.Sub(r.una); e.crowded(q, inFlight, n) {
		if inFlight == 0 { // the wait for one's turn is no silence of the peer
			r.ackTimer, r.earlyTimer = never, never
			return false
		}
		if !r.unasked(w, inFlight) {
			return false
		}
		r.mustAsk = true
	}
	off, rest := r.missing(w, r.next, n)
	if rest == 0 { // all of it has been answered, while older packets were resent
		e.moveOn(q, w, n)
		return true
	}
	if !q.maySend(now) {
		return false
	}
	if status := e.build(q, w, k+off, rest, b); status != cq.Success {
		e.failLocal(q, status)
		return false
	}
	q.paced(now, b)
	e.sent(now, q, w, n)
	return true
}

// ask returns how many answers the READ request at packet k asks for: all that
// are left of its piece, or one as a probe.
func (r *requester) ask(w *qp.SendWQE, k int) int {
	if r.left.on {
		return 1
	}
	return min(w.Track.Packets, (k/w.Track.Piece+1)*w.Track.Piece) - k
}

// blocked reports whether a packet has to wait until others are answered, those
// that were answered early not counted.
func (r *requester) blocked(span, window int) bool {
	early := r.needless()
	return span-early > window || early > 0 && span > max(window, sendSpan)
}

// windowFor returns the window for a request packet that n answers belong to. A READ
// is asked for in pieces whose size was chosen when it began; when the window has
// shrunk below two of them, the next one is still asked for before the last answer
// to the one before has come, else each would cost a round trip of silence.
func windowFor(w *qp.SendWQE, n, window int) int {
	if w.Op != qp.RDMARead {
		return window
	}
	return max(window, n+min(n, window-1))
}

// unasked reports that no packet in flight asks for an acknowledgement, since
// the window has shrunk below them. One more goes out then, and asks.
func (r *requester) unasked(w *qp.SendWQE, inFlight int) bool {
	return r.sinceAck >= inFlight && !w.Op.Answered()
}

// begin starts a work request: it checks what can be checked before the first
// packet and assigns PSNs. It returns false when the request has to wait or has
// failed.
func (e *Engine) begin(now time.Duration, q *QP, w *qp.SendWQE) bool {
	r := &q.req
	if q.Attr.State == qp.SQD || w.Flags&qp.Fence != 0 && r.reads > 0 {
		return false
	}
	if w.Op.Answered() && q.Attr.MaxRDAtomic == 0 {
		e.failLocal(q, cq.LocQPOpErr) // it could never start
		return false
	}
	n := packets(uint64(w.Length), q.Attr.PathMTU)
	if w.Op.Answered() && w.Op != qp.RDMARead {
		n = 1
	}
	// The sink of a READ or atomic is checked when the answer comes: a wrong
	// remote key then wins over a wrong local one, as on NICs. What makes up one
	// packet is checked when that is built.
	if n > 1 && !w.Op.Answered() && w.Inline == nil && q.Domain.Check(w.SGE, 0) != 0 {
		e.failLocal(q, cq.LocProtErr)
		return false
	}
	w.Track.First, w.Track.Packets, w.Track.Piece = r.max, n, r.chunk
	if w.Op == qp.RDMARead {
		w.Track.Piece = max(r.chunk, pieceOf(q.ctl.Window(), &q.Attr))
	}
	return true
}

// askEvery returns how many packets pass without asking for an acknowledgement.
func (e *Engine) askEvery(q *QP) int {
	n := min(e.turn(q), q.ctl.Window()/4, q.pace.ackEvery())
	if !q.req.heard {
		n = min(n, firstInterval)
	}
	return max(1, n)
}

// bit is 1 for true.
func bit(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}

// packets returns how many packets, and so PSNs, a message takes.
func packets(length uint64, mtu int) int {
	return max(1, int((length+uint64(mtu)-1)/uint64(mtu)))
}

// build puts packet k of the work request into the burst; for a READ, the
// request for n response packets from k on.
func (e *Engine) build(q *QP, w *qp.SendWQE, k, n int, b *bth.Burst) cq.Status {
	f := b.Next()
	mtu := q.Attr.PathMTU
	off := uint64(k) * uint64(mtu)
	pos := position(k, w.Track.Packets)
	p := e.header(q, requestOpcode(w.Op, pos), w.Track.First.Add(k))
	p.AckReq = pos.Ends() && !q.req.unhurried(w) || q.req.probing || q.req.mustAsk || q.req.sinceAck+1 >= e.askEvery(q)
	var payload []byte
	switch w.Op {
	case qp.RDMARead:
		length := min(uint64(w.Length), off+uint64(n)*uint64(mtu)) - off
		if !chunkEnds(w, k+n-1) {
			w.Track.Cut = true
		}
		p.RETH = bth.RETH{VA: w.RemoteAddr + off, RKey: w.RKey, Length: uint32(length)}
	case qp.CmpSwap:
		p.Atomic = bth.AtomicETH{VA: w.RemoteAddr, RKey: w.RKey, SwapAdd: w.Swap, Compare: w.CompareAdd}
	case qp.Flush:
		p.RETH = bth.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: w.FlushLength}
		p.FETH = bth.FETH{Placement: uint8(w.FlushType), Selectivity: bit(w.FlushRegion)}
	case qp.FetchAdd:
		p.Atomic = bth.AtomicETH{VA: w.RemoteAddr, RKey: w.RKey, SwapAdd: w.CompareAdd}
	default:
		var fault mr.Fault
		payload, fault = gather(q, w, off, min(uint64(mtu), uint64(w.Length)-off), b)
		if fault != 0 {
			b.Drop()
			return cq.LocProtErr
		}
		p.RETH = bth.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: w.Length}
		p.Imm, p.InvKey = w.Imm, w.InvKey
		p.Solicited = solicited(w, pos)
	}
	e.frame(q, f, payload)
	return cq.Success
}

// lazyInterval is the most packets without a completion that do not ask for an
// acknowledgement at their message's end.
const lazyInterval = 16

// unhurried reports whether the end of the message need not ask for an
// acknowledgement: nobody waits for its completion, and a peer of this package
// acknowledges it a little later all the same. Others need not, and rxe does not.
func (r *requester) unhurried(w *qp.SendWQE) bool {
	return r.selective && w.Flags&qp.Signaled == 0 && !w.Op.Answered() && r.sinceAck+1 < lazyInterval
}

// solicited returns the SE bit: it belongs to packets that complete a receive.
func solicited(w *qp.SendWQE, pos bth.Position) bool {
	return w.Flags&qp.Solicited != 0 && pos.Ends() && w.Op != qp.RDMAWrite && w.Op != qp.AtomicWrite
}

// gather returns n bytes of the message from off: the registered memory itself
// where they lie in one piece, else a copy.
func gather(q *QP, w *qp.SendWQE, off, n uint64, b *bth.Burst) ([]byte, mr.Fault) {
	if n == 0 {
		return nil, 0
	}
	if w.Inline != nil {
		// The slot of an inline request is reused once it completes, which can
		// be before the burst is sealed: copy.
		return append(b.Scratch(int(n))[:0], w.Inline[off:off+n]...), 0
	}
	piece, fault := q.Domain.Piece(w.SGE, off, n, 0)
	if fault != 0 || uint64(len(piece)) == n {
		return piece, fault
	}
	if fault := q.Domain.Check(w.SGE, 0); fault != 0 { // before scratch memory is taken
		return nil, fault
	}
	s := b.Scratch(int(n))
	return s, q.Domain.Gather(s, w.SGE, off)
}

func position(k, n int) bth.Position {
	switch {
	case n == 1:
		return bth.Only
	case k == 0:
		return bth.First
	case k == n-1:
		return bth.Last
	}
	return bth.Middle
}

// requestOpcode returns the RC opcode of a packet by operation and position.
func requestOpcode(op qp.Op, pos bth.Position) bth.Opcode {
	switch op {
	case qp.RDMARead:
		return bth.ReadRequest
	case qp.CmpSwap:
		return bth.CmpSwap
	case qp.FetchAdd:
		return bth.FetchAdd
	case qp.Flush:
		return bth.Flush
	case qp.AtomicWrite:
		return bth.AtomicWrite
	}
	return segmentOpcodes[op][pos]
}

// segmentOpcodes is indexed by operation and position.
var segmentOpcodes = [...][4]bth.Opcode{
	qp.RDMAWrite:    {bth.Only: bth.WriteOnly, bth.First: bth.WriteFirst, bth.Middle: bth.WriteMiddle, bth.Last: bth.WriteLast},
	qp.RDMAWriteImm: {bth.Only: bth.WriteOnlyImm, bth.First: bth.WriteFirst, bth.Middle: bth.WriteMiddle, bth.Last: bth.WriteLastImm},
	qp.Send:         {bth.Only: bth.SendOnly, bth.First: bth.SendFirst, bth.Middle: bth.SendMiddle, bth.Last: bth.SendLast},
	qp.SendImm:      {bth.Only: bth.SendOnlyImm, bth.First: bth.SendFirst, bth.Middle: bth.SendMiddle, bth.Last: bth.SendLastImm},
	qp.SendInv:      {bth.Only: bth.SendOnlyInv, bth.First: bth.SendFirst, bth.Middle: bth.SendMiddle, bth.Last: bth.SendLastInv},
}

// sent moves on after a packet that took n PSNs.
func (e *Engine) sent(now time.Duration, q *QP, w *qp.SendWQE, n int) {
	r := &q.req
	r.sinceAck++
	if e.out.AckReq {
		r.sinceAck = 0
	}
	first := r.next
	e.moveOn(q, w, n)
	if r.max.Before(r.next) {
		r.max = r.next
		if e.out.AckReq || w.Op.Answered() {
			r.rtt.start(now, first)
		}
	} else {
		e.resent(now, q, first)
		if r.score != nil {
			for i := range min(n, sendSpan) {
				r.score.resent(first.Add(i), r.max)
			}
		}
	}
	if r.ackTimer == never {
		r.startAckTimer(now, &q.Attr)
	}
}

// moveOn moves next over n PSNs.
func (e *Engine) moveOn(q *QP, w *qp.SendWQE, n int) {
	r := &q.req
	if w.Op.Answered() && chunkEnds(w, r.next.Sub(w.Track.First)+n-1) {
		r.reads++ // a probe does not count besides what it is a part of
	}
	r.next = r.next.Add(n)
	if r.next == w.Track.First.Add(w.Track.Packets) {
		r.cur++
	}
}

// startAckTimer starts the local ACK timer anew if anything is unanswered. The
// standard lets it expire after up to four times its nominal value (IBA
// 9.7.6.1.3); that room is used for repeated timeouts.
func (r *requester) startAckTimer(now time.Duration, a *qp.Attr) {
	r.ackTimer, r.earlyTimer = never, never
	if r.rnrTimer != never { // the wait after an RNR NAK is no silence
		return
	}
	r.startEarlyTimer(now)
	if t := qp.AckTimeout(a.Timeout); t != 0 && r.una.Before(r.max) {
		r.ackTimer = now + t<<min(r.timeouts, 2)
	}
}

// goBack resends from the oldest unanswered PSN. It costs one retry; with none
// left the oldest work request fails.
func (e *Engine) goBack(now time.Duration, q *QP) {
	r := &q.req
	if r.retries == 0 {
		e.Counters[RetryExceeded]++
		e.failOldest(q, cq.RetryExcErr, 0)
		return
	}
	r.retries--
	e.goBackFree(now, q)
	r.ackTimer, r.earlyTimer = never, never // started again with the first packet
}

// goBackFree does the same without a retry, while the local ACK timer runs on.
func (e *Engine) goBackFree(now time.Duration, q *QP) {
	r := &q.req
	r.wentBack, r.probing = true, false
	q.ctl.Lost(now)
	r.rtt.again(now, r.una)
	r.rtt.backAt = now
	e.rewind(q)
	r.startEarlyTimer(now)
	e.offer(q)
}

// rewind sets next to una.
func (e *Engine) rewind(q *QP) {
	r := &q.req
	r.next, r.cur, r.reads, r.sinceAck = r.una, q.SQ.Head(), 0, 0
	r.tailProbe, r.repair, r.left.on = false, false, false
}

// expire handles the pair's timers that are due.
func (e *Engine) expire(now time.Duration, q *QP) {
	r := &q.req
	if q.pace.due(now) {
		e.ready.push(q)
	}
	if r.rnrTimer <= now {
		r.rnrTimer = never
		e.ready.push(q)
	}
	if r.ackTimer <= now {
		e.Counters[LocalAckTimeout]++
		r.cause = RetransmittedTimeout
		r.forget(q)
		was := r.standing()
		e.goBack(now, q)
		r.wentBack = false // a NAK for what is resent now is news
		e.probe(q, was)
		r.timeouts = min(r.timeouts+1, 2)
		e.ready.push(q)
	} else if r.earlyTimer <= now {
		e.earlyTimeout(now, q)
		e.ready.push(q)
	}
	if q.rsp.lazyTimer <= now {
		q.rsp.ackLazily()
		e.ready.push(q)
	}
	if q.rsp.nakTimer <= now {
		e.repeatNAK(now, q)
		e.ready.push(q)
	}
}

// failLocal notes an error found in the work request that is to be sent. It
// takes effect when all older ones are complete: an error on one work request
// implies the success of those before it (IBA 10.7.3).
func (e *Engine) failLocal(q *QP, s cq.Status) {
	q.req.failed, q.req.failedAt = s, q.req.cur
	e.checkFailed(q)
}

// checkFailed lets a waiting local error take effect once it is the oldest.
func (e *Engine) checkFailed(q *QP) {
	if q.req.failed != 0 && q.req.failedAt == q.SQ.Head() && q.SQ.Len() > 0 {
		e.failOldest(q, q.req.failed, 0)
	}
}

// failOldest completes the oldest work request with an error and moves the pair
// to ERR.
func (e *Engine) failOldest(q *QP, s cq.Status, syndrome bth.Syndrome) {
	if q.SQ.Len() == 0 {
		return
	}
	q.rsp.queue.clear()
	e.pushSend(q, q.SQ.At(q.SQ.Head()), &cq.WC{Status: s, VendorErr: uint32(syndrome)})
	e.fail(q)
}
