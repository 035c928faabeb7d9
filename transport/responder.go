package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// responder is the receiving side of a queue pair.
type responder struct {
	expect bth.PSN // of the next request packet
	msn    bth.MSN // messages completed
	// quiet: a sequence or RNR NAK was sent and the packet it asked for has not
	// come; further packets ahead of it are dropped without a word.
	quiet bool
	// got counts the request packets executed, gotAtNAK its value at the last
	// sequence NAK.
	got, gotAtNAK uint64

	// When a message that did not ask for it is acknowledged, and its PSN.
	lazyTimer time.Duration
	lazyPSN   bth.PSN

	// A sequence NAK is repeated when its packet does not come.
	nakTimer time.Duration
	naks     uint8 // repetitions

	ahead       *reorderBuffer // nil when no packet is kept
	early       int            // packets that came early since the expected one is missing
	tolerance   int            // so many may, before it is asked for
	late        suspicion
	toleratedAt uint64  // got when the tolerance was changed
	askedFor    bth.PSN // the packet of the last sequence NAK
	asked       bool    // for the first time
	told        toldMissing
	selective   bool // the peer understands selective acknowledgements
	confirm     bool // the next ACK has to be one
	lastDup     bth.PSN
	notReady    bool // an RNR NAK was sent for the expected packet

	msg      message
	recv     qp.RecvWQE // taken for the message in progress
	haveRecv bool
	lastWQE  bool // LAST_WQE_REACHED was raised

	queue  responseQueue
	replay replayCache
}

// message is the SEND or WRITE that is arriving.
type message struct {
	op     bth.Operation // OpNone between messages
	got    uint64        // bytes placed
	va     uint64        // WRITE: where it started
	length uint64        // WRITE: as the RETH announced
	rkey   uint32
}

func (r *responder) start(a *qp.Attr) {
	*r = responder{expect: a.RQPSN, askedFor: a.RQPSN.Add(-1), lastDup: a.RQPSN, lazyTimer: never, nakTimer: never}
	r.resize(int(a.MaxDestRDAtomic))
}

// resize sets how many READs and atomics the peer may have outstanding.
func (r *responder) resize(n int) {
	r.queue.resize(n)
	r.replay.resize(n)
}

// verdict is what a check found: 0 to go on, else the NAK to send, with the
// completion that the receive work request in use gets.
type verdict struct {
	nak    bth.Syndrome
	status cq.Status
}

var (
	invalid  = verdict{bth.NAKInvalid, cq.RemInvReqErr}
	tooLong  = verdict{bth.NAKInvalid, cq.LocLenErr}
	noAccess = verdict{bth.NAKRemoteAccess, cq.LocAccessErr}
	badRecv  = verdict{bth.NAKRemoteOp, cq.LocProtErr}
)

// request handles one request packet in the order of IBA 9.7.4: sequence,
// opcode, rights, resources, length, key, execution, acknowledgement.
func (e *Engine) request(now time.Duration, q *QP, p *bth.Packet, info *bth.Info, d *bth.Datagram) {
	e.established(q)
	switch n := p.PSN.Sub(q.rsp.expect); {
	case n > 0:
		e.ahead(now, q, p, d)
		return
	case n < 0:
		e.duplicate(q, p, info)
		return
	}
	asked := q.rsp.quiet && !q.rsp.notReady
	e.inSequence(now, q, p, info)
	if q.rsp.ahead != nil && q.Attr.State != qp.Err {
		e.drainAhead(now, q, asked)
	}
}

// inSequence handles the expected packet.
func (e *Engine) inSequence(now time.Duration, q *QP, p *bth.Packet, info *bth.Info) {
	r := &q.rsp
	r.quiet, r.notReady, r.nakTimer, r.naks, r.early = false, false, never, 0, 0
	r.lastDup = r.expect // no run
	v := e.checkOperation(q, p, info)
	if v.nak == 0 && info.TakesRecv && !e.takeRecv(q) {
		e.receiveNotPosted(q)
		return
	}
	if v.nak == 0 {
		v = e.checkContents(q, p, info)
	}
	if v.nak == 0 {
		v = e.execute(now, q, p, info)
	}
	if v.nak != 0 {
		e.refuse(q, p, v)
	}
}

// established raises COMM_EST at the first request in RTR.
func (e *Engine) established(q *QP) {
	if q.Attr.State == qp.RTR && !q.commEst {
		q.commEst = true
		e.cfg.OnEvent(Event{Type: EventCommEst, QPN: q.QPN})
	}
}

// outOfSequence answers the first packet after a gap with one NAK that names
// the missing PSN (IBA 9.7.5.1.3, C9-113).
func (e *Engine) outOfSequence(now time.Duration, q *QP) {
	r := &q.rsp
	if r.quiet {
		e.Counters[DropOutOfSequence]++
		return
	}
	e.Counters[OutOfSequence]++
	e.sendNAK(now, q)
}

// sendNAK asks for the expected packet, and will do so again.
func (e *Engine) sendNAK(now time.Duration, q *QP) {
	r := &q.rsp
	r.quiet = true
	r.askFor(r.expect)
	r.startNAKTimer(now, &q.req.rtt, e.cfg.Recovery != GoBackN)
	// A NAK acknowledges what precedes it, but rxe that is resending already
	// ignores it, and waits for its timeout, unless an ACK has shown progress
	// since. So one goes ahead of the NAK, but never for a READ or an atomic: its
	// own answer shows progress, and if that is lost, rxe takes an ACK with the same
	// PSN for it and completes the work request without its data.
	if last := r.expect.Add(-1); !r.selective && r.got != r.gotAtNAK && r.replay.find(last) == nil {
		r.queue.ack(last, r.msn)
		r.gotAtNAK = r.got
	}
	r.queue.nak(r.expect, bth.NAKSequence, r.msn)
}

// A sequence NAK, or what it asked for, can be lost as well. The requester then
// waits for a timer that may be coarse, so the NAK is repeated a few times while
// nothing comes, as a network that duplicates packets would: it tells nothing
// new, and whoever has resent already ignores it.
const (
	nakInterval = 5 * time.Millisecond // doubled each time
	maxNAKs     = 6
)

func (r *responder) startNAKTimer(now time.Duration, t *roundTrip, recovers bool) {
	r.nakTimer = never
	if r.naks < maxNAKs && recovers {
		r.nakTimer = now + max(nakInterval, 2*t.smooth+4*t.variation)<<r.naks
	}
}

// repeatNAK sends the sequence NAK again.
func (e *Engine) repeatNAK(now time.Duration, q *QP) {
	r := &q.rsp
	if r.quiet {
		e.Counters[NAKRepeated]++
		r.naks++
	}
	e.sendNAK(now, q)
}

// checkOperation tests opcode sequence and rights.
func (e *Engine) checkOperation(q *QP, p *bth.Packet, info *bth.Info) verdict {
	r := &q.rsp
	if inMessage := r.msg.op != bth.OpNone; info.Pos.Starts() == inMessage || inMessage && info.Op != r.msg.op {
		return invalid
	}
	if need := neededRight(info.Op, p.FETH); q.Attr.Access&need != need {
		return invalid
	}
	return verdict{}
}

// checkContents tests length and key.
func (e *Engine) checkContents(q *QP, p *bth.Packet, info *bth.Info) verdict {
	mtu := q.Attr.PathMTU
	n := len(p.Payload)
	switch {
	case !info.Pos.Ends() && n != mtu, info.Pos == bth.Last && n == 0, n > mtu:
		return invalid
	}
	switch info.Op {
	case bth.OpSend:
		return verdict{}
	case bth.OpWrite:
		return e.checkWrite(q, p, info)
	case bth.OpRead:
		return e.checkRead(q, p)
	case bth.OpCmpSwap, bth.OpFetchAdd:
		return e.checkAtomic(q, p)
	case bth.OpFlush:
		return e.checkFlush(q, p)
	case bth.OpAtomicWrite:
		return e.checkAtomicWrite(q, p)
	}
	return invalid
}

// neededRight returns the access flag that a pair needs for the operation.
func neededRight(op bth.Operation, f bth.FETH) mr.Access {
	switch op {
	case bth.OpFlush:
		return flushRights(f)
	case bth.OpWrite, bth.OpAtomicWrite:
		return mr.RemoteWrite
	case bth.OpRead:
		return mr.RemoteRead
	case bth.OpCmpSwap, bth.OpFetchAdd:
		return mr.RemoteAtomic
	}
	return 0
}

func (e *Engine) checkWrite(q *QP, p *bth.Packet, info *bth.Info) verdict {
	m, n := &q.rsp.msg, uint64(len(p.Payload))
	got, length := m.got, m.length
	if info.Pos.Starts() {
		got, length = 0, uint64(p.RETH.Length)
	}
	if length > qp.MaxMessage || got+n > length || info.Pos.Ends() && got+n != length {
		return invalid
	}
	if !info.Pos.Starts() || length == 0 { // C9-88: no check of key and address without data
		return verdict{}
	}
	if _, f := q.remote(p.RETH.RKey, mr.RemoteWrite, p.RETH.VA, length); f != 0 {
		return noAccess
	}
	return verdict{}
}

func (e *Engine) checkRead(q *QP, p *bth.Packet) verdict {
	n := uint64(p.RETH.Length)
	// More than MaxDestRDAtomic is the requester's error (IBA 9.7.4.1.5).
	if n > qp.MaxMessage || q.rsp.queue.full() {
		return invalid
	}
	if n > 0 {
		if _, f := q.remote(p.RETH.RKey, mr.RemoteRead, p.RETH.VA, n); f != 0 {
			return noAccess
		}
	}
	return verdict{}
}

func (e *Engine) checkAtomic(q *QP, p *bth.Packet) verdict {
	if p.Atomic.VA&7 != 0 || q.rsp.queue.full() {
		return invalid
	}
	if _, f := q.remote(p.Atomic.RKey, mr.RemoteAtomic, p.Atomic.VA, 8); f != 0 {
		return noAccess
	}
	return verdict{}
}

// flushRights returns the rights that the placement types of a FLUSH need.
func flushRights(f bth.FETH) (a mr.Access) {
	if f.Placement&1 != 0 {
		a |= mr.FlushGlobal
	}
	if f.Placement&2 != 0 {
		a |= mr.FlushPersist
	}
	return a
}

// checkFlush: a FLUSH names at least one placement type that exists; a
// selectivity of 1 means the whole region (oA19-2 ff.).
func (e *Engine) checkFlush(q *QP, p *bth.Packet) verdict {
	f := p.FETH
	if f.Placement&3 == 0 || f.Placement&^3 != 0 || f.Selectivity > 1 || q.rsp.queue.full() {
		return invalid
	}
	_, fault := q.remote(p.RETH.RKey, flushRights(f), p.RETH.VA, uint64(p.RETH.Length))
	if fault == mr.FaultRange && f.Selectivity == 1 {
		fault = 0 // the whole region: the range means nothing
	}
	if fault != 0 {
		return noAccess
	}
	return verdict{}
}

// checkAtomicWrite: exactly 8 bytes to an address that is a multiple of 8.
func (e *Engine) checkAtomicWrite(q *QP, p *bth.Packet) verdict {
	if p.RETH.Length != 8 || len(p.Payload) != 8 || p.RETH.VA&7 != 0 || q.rsp.queue.full() {
		return invalid
	}
	if _, f := q.remote(p.RETH.RKey, mr.RemoteWrite, p.RETH.VA, 8); f != 0 {
		return noAccess
	}
	return verdict{}
}

// remote finds the memory that the peer names.
func (q *QP) remote(key uint32, need mr.Access, va, n uint64) ([]byte, mr.Fault) {
	return q.Domain.RemoteFor(uint32(q.QPN), key, need, va, n)
}

// takeRecv takes the next receive work request for the message. A message that
// already holds one, because its packet is repeated, keeps it.
func (e *Engine) takeRecv(q *QP) bool {
	r := &q.rsp
	if r.haveRecv {
		return true
	}
	if q.SRQ != nil {
		ok, limit := q.SRQ.Take(&r.recv)
		if limit {
			e.cfg.OnEvent(Event{Type: EventSRQLimitReached, QPN: q.QPN, SRQ: q.SRQ})
		}
		r.haveRecv = ok
		return ok
	}
	if q.RQ.Len() == 0 {
		return false
	}
	r.recv.CopyFrom(q.RQ.At(q.RQ.Head()))
	q.RQ.Retire()
	r.haveRecv = true
	return true
}

// receiveNotPosted answers with an RNR NAK for this PSN; the packet will be
// sent again. What follows it is dropped without a NAK (IBA 9.7.5.2.8).
func (e *Engine) receiveNotPosted(q *QP) {
	r := &q.rsp
	e.Counters[SentRNR]++
	r.quiet, r.notReady = true, true
	r.queue.nak(r.expect, bth.SyndromeRNR(q.Attr.MinRNRTimer), r.msn)
}

// execute does what the request says and moves on.
func (e *Engine) execute(now time.Duration, q *QP, p *bth.Packet, info *bth.Info) verdict {
	r := &q.rsp
	psns := 1
	switch info.Op {
	case bth.OpSend:
		if v := e.placeSend(q, p); v.nak != 0 {
			return v
		}
	case bth.OpWrite:
		if v := e.placeWrite(q, p, info); v.nak != 0 {
			return v
		}
	case bth.OpRead:
		psns = packets(uint64(p.RETH.Length), q.Attr.PathMTU)
		r.msn = r.msn.Next() // counted when accepted (C9-148)
		r.replay.add(result{first: p.PSN, psns: psns})
		r.queue.read(p.PSN, r.msn, p.RETH)
	case bth.OpFlush:
		// Memory of this host is visible to everyone once written, and whether it
		// outlives power is the owner's choice of memory: nothing is left to do.
		r.answerOnce(p.PSN)
	case bth.OpAtomicWrite:
		word, f := q.remote(p.RETH.RKey, mr.RemoteWrite, p.RETH.VA, 8)
		if f != 0 {
			return noAccess
		}
		mr.AtomicWrite(word, p.Payload)
		r.answerOnce(p.PSN)
	case bth.OpCmpSwap, bth.OpFetchAdd:
		word, f := q.remote(p.Atomic.RKey, mr.RemoteAtomic, p.Atomic.VA, 8)
		if f != 0 {
			return noAccess
		}
		r.msn = r.msn.Next()
		old := atomicOp(info.Op, word, &p.Atomic)
		r.replay.add(result{first: p.PSN, psns: 1, atomic: true, value: old, msn: r.msn})
		r.queue.atomic(p.PSN, r.msn, old, false)
	}
	was := r.expect
	r.expect = r.expect.Add(psns)
	r.got++
	if r.ahead != nil {
		e.passed(q, was, r.expect)
	}
	if (info.Op == bth.OpSend || info.Op == bth.OpWrite) && info.Pos.Ends() {
		e.endMessage(q, p, info)
	}
	switch {
	case q.Attr.State == qp.Err:
	case !r.msgAcked(info):
		r.lazyTimer = never // the answer acknowledges what precedes it
	case p.AckReq:
		r.lazyTimer = never
		r.queue.ack(p.PSN, r.msn)
	case info.Pos.Ends():
		r.ackLater(now, p.PSN)
	}
	return verdict{}
}

// lazyAck is how long a message is not acknowledged that does not ask for it. It is
// far below minTailProbe, from which on a requester takes silence for a loss.
const lazyAck = 50 * time.Microsecond

// ackLater arranges that a message is acknowledged that does not ask for it: a
// requester of this package leaves that out where nobody waits for a completion, see
// unhurried. To others that do so nothing is owed, and rxe sends nothing either.
func (r *responder) ackLater(now time.Duration, psn bth.PSN) {
	if !r.selective {
		return
	}
	r.lazyPSN = psn
	if r.lazyTimer == never {
		r.lazyTimer = now + lazyAck
	}
}

// ackLazily sends the acknowledgement whose time has come.
func (r *responder) ackLazily() {
	r.lazyTimer = never
	r.queue.ack(r.lazyPSN, r.msn)
}

// answerOnce answers FLUSH and ATOMIC WRITE by an empty READ response, and
// remembers that they are done.
func (r *responder) answerOnce(psn bth.PSN) {
	r.msn = r.msn.Next()
	r.replay.add(result{first: psn, psns: 1, done: true, msn: r.msn})
	r.queue.read(psn, r.msn, bth.RETH{})
}

// msgAcked reports whether the operation is acknowledged by an ACK packet;
// READ and atomics are by their own answer.
func (r *responder) msgAcked(info *bth.Info) bool {
	return info.Op == bth.OpSend || info.Op == bth.OpWrite
}

func atomicOp(op bth.Operation, word []byte, a *bth.AtomicETH) uint64 {
	if op == bth.OpCmpSwap {
		return mr.CompareSwap(word, a.Compare, a.SwapAdd)
	}
	return mr.FetchAdd(word, a.SwapAdd)
}

// placeSend copies a SEND's payload into the receive buffer.
func (e *Engine) placeSend(q *QP, p *bth.Packet) verdict {
	r := &q.rsp
	n := uint64(len(p.Payload))
	if r.msg.got+n > mr.Total(r.recv.SGE) {
		return tooLong
	}
	if q.Domain.Scatter(r.recv.SGE, r.msg.got, p.Payload) != 0 {
		return badRecv
	}
	r.msg.op = bth.OpSend
	r.msg.got += n
	return verdict{}
}

// placeWrite copies a WRITE's payload to where it belongs. The key is looked up
// for every packet: the region may be deregistered in the middle of a message.
func (e *Engine) placeWrite(q *QP, p *bth.Packet, info *bth.Info) verdict {
	m := &q.rsp.msg
	if info.Pos.Starts() {
		*m = message{op: bth.OpWrite, va: p.RETH.VA, length: uint64(p.RETH.Length), rkey: p.RETH.RKey}
	}
	n := uint64(len(p.Payload))
	if n == 0 {
		return verdict{}
	}
	b, f := q.remote(m.rkey, mr.RemoteWrite, m.va+m.got, n)
	if f != 0 {
		return noAccess
	}
	copy(b, p.Payload)
	m.got += n
	return verdict{}
}

// endMessage completes a SEND or WRITE.
func (e *Engine) endMessage(q *QP, p *bth.Packet, info *bth.Info) {
	r := &q.rsp
	r.msn = r.msn.Next()
	got := r.msg.got
	r.msg = message{}
	// A UC pair may hold a receive of a lost SEND: a WRITE leaves it alone.
	if !r.haveRecv || info.Op == bth.OpWrite && !info.TakesRecv {
		return
	}
	r.haveRecv = false
	wc := cq.WC{ID: r.recv.ID, Opcode: cq.OpRecv, ByteLen: uint32(got)}
	if info.Headers&bth.HasIETH != 0 {
		if q.Domain.Invalidate(uint32(q.QPN), p.InvKey) != nil {
			e.badInvalidate(q, p)
			return
		}
		wc.Flags, wc.InvKey = cq.WithInv, p.InvKey
	}
	if info.Op == bth.OpWrite {
		wc.Opcode = cq.OpRecvRDMAWithImm
	}
	if info.Headers&bth.HasImmDt != 0 {
		wc.Flags, wc.Imm = cq.WithImm, p.Imm
	}
	e.Counters[RecvCompletions]++
	e.pushRecv(q, &wc, p.Solicited)
}

// badInvalidate ends a SEND with invalidate whose key cannot be invalidated. The
// SEND has been executed and is acknowledged; the error is ours (class J).
func (e *Engine) badInvalidate(q *QP, p *bth.Packet) {
	r := &q.rsp
	e.Counters[RespInvalidRequest]++
	r.queue.ack(p.PSN, r.msn)
	e.pushRecv(q, &cq.WC{ID: r.recv.ID, Status: cq.RemInvReqErr}, true)
	e.fail(q)
}

// refuse answers a fatal error: the NAK, the completion of the receive work
// request in use or else an event, and the pair goes to ERR (IBA 9.9.3).
func (e *Engine) refuse(q *QP, p *bth.Packet, v verdict) {
	r := &q.rsp
	e.countRefusal(v)
	r.queue.nak(r.expect, v.nak, r.msn)
	if r.haveRecv {
		r.haveRecv = false
		e.pushRecv(q, &cq.WC{ID: r.recv.ID, Status: v.status}, true)
	} else if v.nak == bth.NAKRemoteAccess {
		e.cfg.OnEvent(Event{Type: EventQPAccessErr, QPN: q.QPN})
	} else {
		e.cfg.OnEvent(Event{Type: EventQPReqErr, QPN: q.QPN})
	}
	r.msg = message{}
	e.fail(q)
}

func (e *Engine) countRefusal(v verdict) {
	switch {
	case v.status == cq.LocLenErr:
		e.Counters[RespLocalLength]++
	case v.nak == bth.NAKInvalid:
		e.Counters[RespInvalidRequest]++
	case v.nak == bth.NAKRemoteAccess:
		e.Counters[RespRemoteAccess]++
	default:
		e.Counters[RespRemoteOperation]++
	}
}

// duplicate handles a request that was executed before (IBA 9.7.5.1.1): it is
// acknowledged again, READ is executed again, atomics are answered from memory.
// Nothing of the sequence state changes, but the peer may now hear again of a
// gap that it missed.
func (e *Engine) duplicate(q *QP, p *bth.Packet, info *bth.Info) {
	r := &q.rsp
	e.Counters[DuplicateRequest]++
	r.quiet = false
	switch info.Op {
	case bth.OpSend, bth.OpWrite:
		if !e.offered(q, p) {
			r.cameTwice(p.PSN)
		}
		if r.ackDuplicate(p, e.cfg.Recovery != GoBackN) {
			r.queue.ack(r.ackedUpTo(p.PSN), r.msn)
		}
	case bth.OpRead:
		e.repeatRead(q, p)
	case bth.OpCmpSwap, bth.OpFetchAdd:
		res := r.replay.find(p.PSN)
		if res == nil || !res.atomic || res.first != p.PSN || r.queue.fullAgain() {
			e.Counters[DropDuplicate]++
			return
		}
		if !r.queue.waiting(p.PSN) {
			r.queue.atomic(p.PSN, res.msn, res.value, true)
		}
	case bth.OpFlush, bth.OpAtomicWrite:
		res := r.replay.find(p.PSN)
		if res == nil || !res.done || !r.queue.repeat(p.PSN, res.msn, bth.RETH{}, q.Attr.PathMTU) {
			e.Counters[DropDuplicate]++
		}
	default:
		e.Counters[DropDuplicate]++
	}
}

// ackDuplicate reports whether a duplicate is to be acknowledged. One ACK is
// enough for several that come together (IBA 9.7.5.1.1); so it is for a run of
// them, of a requester that has gone back too far: only its first is
// acknowledged, and those that ask for it.
func (r *responder) ackDuplicate(p *bth.Packet, thin bool) bool {
	inRun := thin && r.lastDup.Next() == p.PSN
	r.lastDup = p.PSN
	return !inRun || p.AckReq
}

// ackedUpTo returns the PSN that answers a duplicate: the latest executed, but
// before any READ or atomic that follows the duplicate, whose answer the peer
// may be missing too (C9-105).
func (r *responder) ackedUpTo(dup bth.PSN) bth.PSN {
	ack := r.expect.Add(-1)
	for i := range r.replay.n {
		if f := r.replay.at(i).first; dup.Before(f) && f.Add(-1).Before(ack) {
			ack = f.Add(-1)
		}
	}
	return ack
}

// repeatRead answers a READ, or its tail, once more. Its range must lie inside
// one that was asked for before.
func (e *Engine) repeatRead(q *QP, p *bth.Packet) {
	r := &q.rsp
	n := packets(uint64(p.RETH.Length), q.Attr.PathMTU)
	res := r.replay.find(p.PSN)
	if res == nil || res.atomic || res.done || p.PSN.Sub(res.first)+n > res.psns {
		e.Counters[DropDuplicate]++
		return
	}
	if !r.queue.repeat(p.PSN, r.msn, p.RETH, q.Attr.PathMTU) {
		e.Counters[DropDuplicate]++
	}
}
