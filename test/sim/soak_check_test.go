package sim

import (
	"encoding/binary"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// This file holds completions and events against the model.

// pollSome polls some completions of the end's queues; small ones overflow
// because it happens rarely.
func (e *end) pollSome() {
	if e.small && !e.w.oneIn(4) {
		return
	}
	e.w.drainQueue(e.sendCQ, 1+e.w.r.IntN(8))
	e.w.drainQueue(e.recvCQ, 1+e.w.r.IntN(8))
}

// poll takes all completions, and checks that a pair in error has completed all
// it had.
func (e *end) poll() {
	e.w.drainQueue(e.sendCQ, 1<<20)
	e.w.drainQueue(e.recvCQ, 1<<20)
	if e.q.State() == qp.Err {
		e.flushedAll()
	}
}

func (w *world) pollAll() {
	for _, c := range w.conns {
		c.e[0].poll()
		c.e[1].poll()
	}
}

// flushedAll checks a pair in ERR after a poll.
func (e *end) flushedAll() {
	if !e.excused() {
		e.w.fail("%s is in ERR for no reason", e)
	}
	e.host.takeEvents()
	if n := e.events[transport.EventLastWQEReached]; e.onSRQ && n != 1 || !e.onSRQ && n != 0 {
		e.w.fail("%s is in ERR and has raised LAST_WQE_REACHED %d times", e, n)
	}
	if !e.sendCQ.Overflowed() {
		e.silent(0)
	}
	if len(e.recvq) > 0 && !e.recvCQ.Overflowed() {
		e.w.fail("%s is in ERR and receive %d has no completion", e, e.recvq[0].id)
	}
}

// silent notes that requests have succeeded without a completion, all but the
// last left ones.
func (e *end) silent(left int) {
	for len(e.sendq) > left {
		x := e.pop()
		if x.signaled || e.failed {
			e.w.fail("%s is in %v and %v has no completion", e, e.q.State(), x)
		}
		x.succeeded()
	}
}

// excused reports whether something has happened that may lead to ERR.
func (e *end) excused() bool {
	return e.cause || e.badRecv || e.onSRQ && e.host.badRecv || e.sendCQ.Overflowed() || e.recvCQ.Overflowed()
}

func (w *world) drainQueue(c *cq.Queue, limit int) {
	var wcs [16]cq.WC
	for limit > 0 {
		n := c.Poll(wcs[:min(limit, len(wcs))])
		if n == 0 {
			return
		}
		limit -= n
		for i := range wcs[:n] {
			w.completed(&wcs[i])
		}
	}
}

func (w *world) completed(wc *cq.WC) {
	w.statuses[wc.Status]++
	if wc.ID&idBit != 0 {
		w.receives[wc.ID&^idBit].complete(w, wc)
		return
	}
	w.requests[wc.ID].complete(wc)
}

// complete checks a send completion: at most one, in order, with a status that
// the model allows.
func (x *request) complete(wc *cq.WC) {
	e := x.end
	w := e.w
	if x.state != waiting {
		w.fail("%v completes with %v, but had ended already", x, wc.Status)
	}
	if uint32(wc.QPN) != x.qpn {
		w.fail("%v completes with pair number %v", x, wc.QPN)
	}
	for e.sendq[0] != x {
		y := e.sendq[0]
		if y.signaled || e.failed {
			w.fail("%v completes with %v before %v", x, wc.Status, y)
		}
		e.pop().succeeded()
	}
	e.pop()
	switch wc.Status {
	case cq.Success:
		if !x.signaled || e.failed || wc.Opcode != x.op.WCOpcode() {
			w.fail("%v (signaled %v) completes with %v %v, after an error %v", x, x.signaled, wc.Opcode, wc.Status, e.failed)
		}
		x.succeeded()
	case cq.WRFlushErr:
		if s := e.q.State(); s != qp.Err && s != qp.SQE {
			w.fail("%v is flushed in %v", x, s)
		}
		w.flushed++
		e.failed = true
		x.undone(ended)
	default:
		if e.failed || !x.allows(wc.Status) {
			w.fail("%v fails with %v, expected %v or any of %b, after an error %v", x, wc.Status, x.must, x.may, e.failed)
		}
		w.failed++
		e.failed, e.cause = true, true
		x.undone(ended)
	}
}

func (e *end) pop() *request {
	x := e.sendq[0]
	e.sendq = e.sendq[1:]
	return x
}

// allows reports whether the request may end with the status.
func (x *request) allows(s cq.Status) bool {
	e := x.end
	p := e.peer()
	if s == x.must || x.may&(1<<s) != 0 {
		return true
	}
	if e.c.typ != qp.RC {
		return false
	}
	switch s {
	case cq.RetryExcErr:
		if p.healthy() && e.link.Retry == 7 {
			e.w.unlucky++
		}
		return true
	case cq.RNRRetryExcErr:
		return x.takesRecv && e.link.RNRRetry < 7
	case cq.RemInvReqErr, cq.RemOpErr:
		return x.takesRecv && (p.badRecv || p.onSRQ && p.host.badRecv)
	}
	return false
}

func (e *end) healthy() bool { return e.q.State().CanReceive() && e.state != dead }

// succeeded checks what a request has fetched, and that it could succeed.
func (x *request) succeeded() {
	e := x.end
	w := e.w
	x.state = ended
	w.succeeded++
	if x.must != cq.Success {
		w.fail("%v succeeds, but has to fail with %v", x, x.must)
	}
	if x.sink != nil {
		if got := e.slot(x.slot)[:x.n]; string(got) != string(x.sink) {
			w.fail("%v fetched wrong bytes at %d", x, firstDiff(got, x.sink))
		}
	}
	if x.word != nil {
		e.counted(x)
	}
	if e.c.typ == qp.RC {
		e.peer().lane.executed(x.seq)
		if x.takesRecv {
			e.acked++
		}
	}
	if x.then != nil {
		x.then(true)
	}
	x.release()
}

// undone notes that a request has failed: it may have been executed or not.
func (x *request) undone(f fate) {
	e := x.end
	x.state = f
	if x.word != nil && !x.stops {
		e.peer().host.added[*x.word].doubtful++
	}
	if x.sink != nil && !restIs(e.slot(x.slot)[:x.n], 0, func(i int, b byte) bool { return b == x.sink[i] }) {
		e.w.fail("%v has failed and its buffer holds what it never asked for", x)
	}
	if x.then != nil && f == ended {
		x.then(false)
	}
	x.release()
}

// release clears the slot, so that late changes are seen, and gives it back.
func (x *request) release() {
	if x.slot < 0 {
		return
	}
	wipe(x.end.slot(x.slot))
	x.end.free = append(x.end.free, x.slot)
}

func wipe(b []byte) {
	for i := range b {
		b[i] = guardByte
	}
}

// counted checks the value that an addition of 1 has fetched: nobody else's.
func (e *end) counted(x *request) {
	h, i := e.peer().host, *x.word
	v := binary.NativeEndian.Uint64(e.slot(x.slot))
	if h.seen[i][v] {
		e.w.fail("%v fetched %d, as another one did", x, v)
	}
	h.seen[i][v] = true
	h.added[i].sure++
}

// complete checks a receive completion.
func (v *receive) complete(w *world, wc *cq.WC) {
	e := v.end
	if e == nil {
		e = v.host.find(wc.QPN)
	}
	if v.state != waiting || e == nil || e.q.QPN != wc.QPN {
		w.fail("receive %d of %v completes with %v, but had ended already (%d), or is not its", v.id, wc.QPN, wc.Status, v.state)
	}
	v.state = ended
	v.takeTurn(e)
	buf := v.buffer()
	if wc.Status == cq.Success {
		w.received++
		e.arrived++
		e.received(v, wc, buf)
	} else {
		e.notReceived(v, wc, buf)
	}
	wipe(buf)
	if v.end == nil {
		v.host.srqFree = append(v.host.srqFree, v.slot)
	} else {
		e.recvs = append(e.recvs, v.slot)
	}
}

func (v *receive) buffer() []byte {
	reg := v.host.srqMem
	if v.end != nil {
		reg = v.end.recv
	}
	return reg.Bytes()[v.slot*soakSlot:][:soakSlot]
}

// takeTurn checks the order of receives.
func (v *receive) takeTurn(e *end) {
	if v.end == nil {
		if v.id < e.lastSRQ {
			e.w.fail("%s completes receive %d of the SRQ after %d", e, v.id, e.lastSRQ)
		}
		e.lastSRQ = v.id
		return
	}
	if e.recvq[0] != v {
		e.w.fail("%s completes receive %d before %d", e, v.id, e.recvq[0].id)
	}
	e.recvq = e.recvq[1:]
}

func (h *station) find(qpn bth.QPN) *end {
	for _, e := range h.ends {
		if e.q != nil && e.q.QPN == qpn {
			return e
		}
	}
	return nil
}

// received checks a message that has arrived.
func (e *end) received(v *receive, wc *cq.WC, buf []byte) {
	switch e.c.typ {
	case qp.RC:
		e.receivedRC(v, wc, buf)
	case qp.UC:
		e.receivedUC(v, wc, buf)
	default:
		e.receivedUD(v, wc, buf)
	}
}

// receivedRC: the messages of the peer arrive all, in order, once.
func (e *end) receivedRC(v *receive, wc *cq.WC, buf []byte) {
	if e.got == len(e.msgs) {
		e.w.fail("%s receives more than was sent", e)
	}
	x := e.msgs[e.got]
	e.got++
	if x.stops || x.badInv || v.bad && x.n > 0 && x.op != qp.RDMAWriteImm || !x.fits(v, wc) || !v.holds(buf, x, nothing) {
		e.w.fail("%s receives %+v in %d bytes (bad: %v), which is not %v", e, wc, v.n, v.bad, x)
	}
	e.lane.executed(x.seq)
	if x.op == qp.SendInv {
		if wc.Flags != cq.WithInv || wc.InvKey != x.grant.key {
			e.w.fail("%s receives %+v for %v", e, wc, x)
		}
		x.grant.end()
	}
}

// fits reports whether the completion is one of the message in the buffer.
func (x *request) fits(v *receive, wc *cq.WC) bool {
	opcode, flags := cq.OpRecv, cq.Flags(0)
	if x.op == qp.RDMAWriteImm {
		opcode = cq.OpRecvRDMAWithImm
	} else if x.n > v.n {
		return false
	}
	if x.op.HasImm() {
		flags = cq.WithImm
	}
	return int(wc.ByteLen) == x.n && wc.Opcode == opcode && (x.op == qp.SendInv || wc.Flags == flags) && (flags == 0 || wc.Imm == x.imm)
}

// receivedUC: a message is one of the peer's, whole; in order and once, unless
// the network reorders or duplicates, which UC does not notice (IBA 9.8.2).
func (e *end) receivedUC(v *receive, wc *cq.WC, buf []byte) {
	x, at := e.findUC(v, wc, buf)
	if x == nil {
		e.w.fail("%s receives %+v, which was never sent like this", e, wc)
	}
	if at <= e.lastUC {
		e.w.lateUC++
	}
	if x.delivered++; e.w.orderly && at <= e.lastUC || x.delivered > 2 {
		e.w.fail("%s receives %v late or too often", e, x)
	}
	e.lastUC = at
}

// findUC looks for the message, first among those that may come next.
func (e *end) findUC(v *receive, wc *cq.WC, buf []byte) (*request, int) {
	for k := range e.msgs {
		at := (e.lastUC + 1 + k) % len(e.msgs)
		x := e.msgs[at]
		if !x.stops && x.delivered < 2 && x.fits(v, wc) && v.holds(buf, x, e.anyMessage) {
			return x, at
		}
	}
	return nil, 0
}

// anyMessage reports whether a byte belongs to a message of the peer.
func (e *end) anyMessage(i int, b byte) bool {
	for _, x := range e.msgs {
		if i < x.n && x.data[i] == b {
			return true
		}
	}
	return false
}

// receivedUD: as often as the network made copies.
func (e *end) receivedUD(v *receive, wc *cq.WC, buf []byte) {
	w := e.w
	w.datagrams++
	n := int(wc.ByteLen) - bth.GRHLen
	if n < 8 || n+bth.GRHLen > v.n || wc.Flags&cq.WithGRH == 0 {
		w.fail("%s receives %+v in %d bytes", e, wc, v.n)
	}
	id := getID(buf[bth.GRHLen:])
	if id >= uint64(len(w.requests)) {
		w.fail("%s receives a datagram that nobody sent", e)
	}
	x := w.requests[id]
	imm := wc.Flags&cq.WithImm != 0
	if x.stops || x.end != e.peer() || n != x.n || string(buf[bth.GRHLen:][:n]) != string(x.data) ||
		imm != x.op.HasImm() || imm && wc.Imm != x.imm || uint32(wc.SrcQP) != x.qpn {
		w.fail("%s receives %+v, which is not %v", e, wc, x)
	}
	if x.delivered++; x.delivered > x.copies {
		w.fail("%s receives %v %d times; the network carried %d", e, x, x.delivered, x.copies)
	}
	e.checkGRH(buf[:bth.GRHLen])
	if !restIs(buf, n+bth.GRHLen, nothing) {
		w.fail("%s: bytes behind a datagram were changed", e)
	}
}

// checkGRH tests the IPv4 header before a datagram: addresses and checksum.
func (e *end) checkGRH(b []byte) {
	ip := b[20:]
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xFFFF + sum>>16
	src, dst := e.peer().host.Addr.As4(), e.host.Addr.As4()
	if string(b[:20]) != string(make([]byte, 20)) || ip[0] != 0x45 || sum != 0xFFFF ||
		string(ip[12:16]) != string(src[:]) || string(ip[16:20]) != string(dst[:]) {
		e.w.fail("%s: wrong GRH %x", e, b)
	}
}

// notReceived checks a receive that has failed. Part of a message may lie in its
// buffer.
func (e *end) notReceived(v *receive, wc *cq.WC, buf []byte) {
	w := e.w
	var x *request
	if e.got < len(e.msgs) {
		x = e.msgs[e.got]
	}
	part := func(i int, b byte) bool { return x != nil && i < x.n && x.op != qp.RDMAWriteImm && x.data[i] == b }
	if e.c.typ != qp.RC {
		part = e.anyMessage
	}
	badInv := x != nil && x.badInv && wc.Status == cq.RemInvReqErr
	if badInv {
		e.got++
	}
	if wc.Status != cq.WRFlushErr {
		e.cause = true
	} else if e.q.State() != qp.Err {
		w.fail("%s flushes receive %d in %v", e, v.id, e.q.State())
	}
	ok := false
	switch wc.Status {
	case cq.WRFlushErr:
		ok = true
	case cq.LocLenErr:
		ok = e.c.typ == qp.RC && x != nil && x.n > v.n
	case cq.LocProtErr:
		ok = v.bad || v.doubtful
	case cq.LocAccessErr:
		ok = x != nil && x.op == qp.RDMAWriteImm && x.risky()
	case cq.RemInvReqErr:
		ok = badInv
	}
	if !ok || e.c.typ != qp.UD && !restIs(buf, 0, part) {
		w.fail("%s: receive %d (bad: %v) fails with %v; in turn was %v", e, v.id, v.bad, wc.Status, x)
	}
}

// watch checks what is true at all times.
func (w *world) watch() {
	for _, h := range w.hosts {
		h.takeEvents()
	}
	if w.oneIn(16) {
		w.checkBounds()
	}
}

func (h *station) takeEvents() {
	for ; h.lastEvent < len(h.Events); h.lastEvent++ {
		v := &h.Events[h.lastEvent]
		if v.Type == transport.EventSRQLimitReached {
			h.limitReached()
			continue
		}
		e := h.find(v.QPN)
		if e == nil {
			h.w.fail("%v of a pair that does not exist", v.Type)
		}
		e.events[v.Type]++
		e.event(v)
	}
}

func (h *station) limitReached() {
	if !h.armed {
		h.w.fail("an SRQ limit event although none is armed")
	}
	h.armed = false
}

// event checks an asynchronous event of a pair.
func (e *end) event(v *transport.Event) {
	w, n := e.w, e.events[v.Type]
	switch v.Type {
	case transport.EventCommEst:
		if n > 1 {
			w.fail("%s: COMM_EST twice", e)
		}
	case transport.EventSQDrained:
		e.checkDrained()
		if n > e.drains {
			w.fail("%s: SQ_DRAINED %d times for %d", e, n, e.drains)
		}
	case transport.EventCQErr:
		if w.overflows++; !e.small {
			w.fail("%s: the completion queue has overflowed", e)
		}
	case transport.EventQPFatal:
		if !e.small && !e.fatal {
			w.fail("%s: QP_FATAL", e)
		}
		if s := e.q.State(); s != qp.Err {
			w.fail("%s: QP_FATAL, but the pair is in %v", e, s)
		}
	}
}
