package sim

import (
	"bytes"
	"encoding/binary"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// This file posts work requests, good and bad ones, and tells the model.

var opsOf = map[qp.Type][]qp.Op{
	qp.RC: {qp.RDMAWrite, qp.RDMAWriteImm, qp.Send, qp.SendImm, qp.SendInv, qp.RDMARead, qp.RDMARead, qp.CmpSwap, qp.FetchAdd, qp.FetchAdd, qp.AtomicWrite, qp.Flush},
	qp.UC: {qp.RDMAWrite, qp.RDMAWriteImm, qp.Send, qp.SendImm},
	qp.UD: {qp.Send, qp.SendImm},
}

// rights are those that the peer's pair needs for an operation.
var rights = map[qp.Op]mr.Access{
	qp.RDMAWrite: mr.RemoteWrite, qp.RDMAWriteImm: mr.RemoteWrite, qp.AtomicWrite: mr.RemoteWrite, qp.RDMARead: mr.RemoteRead,
	qp.CmpSwap: mr.RemoteAtomic, qp.FetchAdd: mr.RemoteAtomic, qp.Flush: mr.FlushGlobal,
}

const qkey bth.QKey = 0x1234567

// post posts up to three random requests.
func (e *end) post() {
	for range 1 + e.w.r.IntN(3) {
		ops := opsOf[e.c.typ]
		e.postOne(ops[e.w.r.IntN(len(ops))])
	}
}

// canPost reports whether the end takes one more request. An end in ERR takes
// and flushes it.
func (e *end) canPost() bool {
	return e.q != nil && e.q.State() >= qp.RTS && len(e.sendq) < maxQueued && len(e.free) > 0 && (e.state != dead || e.q.State() == qp.Err)
}

// newRequest returns a request of n bytes with a slot for them, and its work
// request.
func (e *end) newRequest(op qp.Op, n int) (*request, *qp.SendWR) {
	w := e.w
	x := &request{id: uint64(len(w.requests)), end: e, seq: len(w.requests), op: op, n: n, slot: -1, qpn: uint32(e.q.QPN)}
	x.signaled = w.r.IntN(3) > 0 || len(e.sendq) >= maxQueued/2
	s := &qp.SendWR{ID: x.id, Op: op, Imm: w.r.Uint32()}
	if x.imm = s.Imm; x.signaled {
		s.Flags = qp.Signaled
	}
	if w.oneIn(8) {
		s.Flags |= qp.Solicited
	}
	x.takesRecv = op == qp.Send || op == qp.SendImm || op == qp.SendInv || op == qp.RDMAWriteImm
	return x, s
}

// source fills the request's slot with what is sent.
func (e *end) source(x *request, s *qp.SendWR) {
	buf := e.takeSlot(x)
	for i := 0; i < x.n; i += 8 {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], e.w.r.Uint64())
		copy(buf[i:], b[:])
	}
	if x.n >= 8 && x.takesRecv {
		binary.BigEndian.PutUint64(buf, x.id)
	}
	x.data = bytes.Clone(buf)
	if x.n <= 256 && e.w.oneIn(3) {
		s.Inline, s.SGE = append([]byte{}, buf...), nil
	}
	if s.Inline == nil {
		s.SGE = splitSGE(e.w.r, e.local, x.slot*soakSlot, x.n)
	}
}

func getID(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// takeSlot gives the request a slot, which nothing has touched since its last
// use, and returns its first bytes.
func (e *end) takeSlot(x *request) []byte {
	x.slot = e.free[0]
	e.free = e.free[1:]
	buf := e.slot(x.slot)
	if !restIs(buf, 0, nothing) {
		e.w.fail("%s: a buffer was changed after its request had ended", e)
	}
	return buf[:x.n]
}

func (e *end) slot(i int) []byte { return e.local.Bytes()[i*soakSlot : (i+1)*soakSlot] }

func nothing(int, byte) bool { return false }

// length returns a random length for the operation.
func (e *end) length(op qp.Op) int {
	mtu, r := e.c.mtu, e.w.r
	n := []int{0, 1, 7, 8, mtu, mtu + 1, 2*mtu - 1, 1 + r.IntN(soakSlot-1), r.IntN(64)}[r.IntN(9)] & (soakSlot - 1)
	switch {
	case !e.w.harm:
		return 8
	case e.c.typ == qp.UD:
		return max(8, n)
	case op.Atomic() || op == qp.AtomicWrite:
		return 8
	case op == qp.Flush:
		return 0
	}
	return n
}

func (e *end) postOne(op qp.Op) {
	granted := e.c.typ == qp.UD || rights[op]&^e.peer().link.Access == 0
	if !e.canPost() || !granted && !(e.w.harm && e.w.oneIn(20)) {
		return
	}
	x, s := e.newRequest(op, e.length(op))
	ok := true
	switch op {
	case qp.Send, qp.SendImm:
		e.source(x, s)
	case qp.SendInv:
		ok = e.invalidation(x, s)
	default:
		ok = e.remote(x, s)
	}
	if !ok {
		return
	}
	if e.c.typ == qp.UD {
		p := e.peer()
		s.AH, s.RemoteQPN, s.RemoteQKey = &qp.AddressVector{DGID: p.host.Addr}, p.q.QPN, qkey
	}
	if !granted {
		x.stops = true
		if e.c.typ == qp.RC {
			x.must, x.may = cq.RemInvReqErr, 0
		}
	}
	if e.w.harm && !x.stops && e.w.oneIn(30) {
		e.spoil(x, s)
	}
	e.give(x, s)
}

// give posts the request and tells the model.
func (e *end) give(x *request, s *qp.SendWR) {
	w := e.w
	if x.stops {
		x.effect = noEffect
	}
	if e.c.typ != qp.UD && !x.op.Local() && x.word == nil {
		e.peer().lane.post(x)
	}
	if x.takesRecv {
		e.peer().msgs = append(e.peer().msgs, x)
	}
	if x.risky() && e.c.typ == qp.RC {
		e.peer().cause = true
	}
	w.requests = append(w.requests, x)
	e.sendq = append(e.sendq, x)
	w.posted++
	w.ops[x.op]++
	if err := e.host.Post(e.q, s); err != nil {
		w.fail("%s: posting %v: %v", e, x, err)
	}
}

// remote aims a request at the peer's memory.
func (e *end) remote(x *request, s *qp.SendWR) bool {
	if x.op == qp.FetchAdd && e.w.oneIn(2) {
		e.count(x, s)
		return true
	}
	g := e.peer().grants[e.w.r.IntN(3)]
	if !e.w.harm && g.state != open || g.state == closed && !e.w.oneIn(20) || g.key == 0 {
		g = e.peer().grants[0]
	}
	if g.key == 0 || g.state == closed && (x.n == 0 && x.op != qp.Flush || !e.w.harm) {
		return false
	}
	x.off = g.lo + e.w.r.IntN(g.n-x.n+1)
	if x.n == 8 {
		x.off &^= 7
	}
	s.RKey, s.RemoteAddr = g.key, g.base+uint64(x.off-g.lo)
	if g.use(x); g.state == closed {
		x.stops = true
		if e.c.typ == qp.RC {
			x.must = cq.RemAccessErr
		}
	}
	e.operands(x, s)
	e.fence(x, s)
	return true
}

// operands fills in what the operation needs.
func (e *end) operands(x *request, s *qp.SendWR) {
	r := e.w.r
	switch x.op {
	case qp.Flush:
		s.FlushLength, s.FlushType, s.FlushRegion = uint32(r.IntN(8)), qp.FlushGlobal, e.w.oneIn(2)
		if x.off+8 > x.grant.lo+x.grant.n {
			s.FlushLength = 0
		}
	case qp.RDMARead:
		e.sink(x, s)
	case qp.CmpSwap:
		e.sink(x, s)
		x.effect, x.compare, x.swap = swaps, r.Uint64(), r.Uint64()
		if e.w.oneIn(2) {
			x.compare = binary.NativeEndian.Uint64(e.peer().lane.now[x.off:])
		}
		s.CompareAdd, s.Swap = x.compare, x.swap
	case qp.FetchAdd:
		e.sink(x, s)
		x.effect, x.compare = adds, r.Uint64()
		s.CompareAdd = x.compare
	default:
		e.source(x, s)
		x.effect = writes
	}
}

func (e *end) sink(x *request, s *qp.SendWR) {
	e.takeSlot(x)
	s.SGE = splitSGE(e.w.r, e.local, x.slot*soakSlot, x.n)
}

// fence keeps a request that changes what a READ before it covers behind it:
// the READ may be executed again.
func (e *end) fence(x *request, s *qp.SendWR) {
	overlap := false
	for _, r := range e.reads {
		overlap = overlap || x.off < r[0]+r[1] && r[0] < x.off+x.n
	}
	if overlap && x.effect != noEffect || e.w.oneIn(10) {
		s.Flags |= qp.Fence
		e.reads = nil
	}
	if x.op == qp.RDMARead {
		e.reads = append(e.reads, [2]int{x.off, x.n})
	}
}

// count adds 1 to a counter that pairs of all hosts share.
func (e *end) count(x *request, s *qp.SendWR) {
	h := e.peer().host
	i := e.w.r.IntN(words)
	x.word = new(uint64)
	*x.word = uint64(i)
	s.RKey, s.RemoteAddr, s.CompareAdd = h.counters.Key(), h.counters.Addr()+uint64(8*i), 1
	e.sink(x, s)
	x.op = qp.FetchAdd
}

// invalidation makes a SEND that ends one of the peer's keys.
func (e *end) invalidation(x *request, s *qp.SendWR) bool {
	var able []*grant
	for i, g := range e.peer().grants[1:] {
		if g.state == open && (i == 1 || e.peer().win.Type() == mr.Type2B) {
			able = append(able, g)
		}
	}
	if len(able) == 0 || e.q.State() == qp.Err {
		return false
	}
	g := able[e.w.r.IntN(len(able))]
	e.source(x, s)
	s.InvKey, x.grant = g.key, g
	if !e.w.oneIn(3) { // else a READ that is executed again may find the key ended
		s.Flags |= qp.Fence
		e.reads = nil
		g.keepReads(x)
	}
	g.ending()
	e.peer().cause = true
	return true
}

// keepReads forgets the users that a fence protects.
func (g *grant) keepReads(x *request) {
	kept := g.users[:0]
	for _, u := range g.users {
		if u.end != x.end {
			kept = append(kept, u)
		}
	}
	g.users = kept
}

// spoil makes a request bad, in one of the ways that its operation has.
func (e *end) spoil(x *request, s *qp.SendWR) {
	w := e.w
	switch kind := w.r.IntN(4); {
	case kind == 0 && len(s.SGE) > 0 && x.n > 0:
		s.SGE[0].LKey ^= 0x5A5A5A00
		x.must = cq.LocProtErr
		x.stops = !x.op.Answered() || x.op == qp.AtomicWrite // a bad sink is found with the answer
	case e.c.typ == qp.UD:
		e.spoilDatagram(x, s)
	case x.op == qp.SendInv:
		s.InvKey = [...]uint32{e.peer().host.foreign.Key(), e.peer().host.counters.Key()}[w.r.IntN(2)]
		x.badInv = true
	case x.op == qp.Send || x.op == qp.SendImm:
	case e.c.typ == qp.UC:
		if x.n > 0 {
			e.wrongKey(x, s)
			x.stops = true
		}
	case kind == 1 && x.n == 8 && x.op != qp.RDMAWrite && x.op != qp.RDMAWriteImm && x.op != qp.RDMARead:
		s.RemoteAddr |= 1
		x.must, x.stops = cq.RemInvReqErr, true
	case kind == 1 && x.op == qp.Flush:
		s.FlushType = [...]qp.FlushType{0, qp.FlushPersistent}[w.r.IntN(2)]
		x.must, x.stops = cq.RemInvReqErr, true
	case x.n > 0 || x.op == qp.Flush:
		e.wrongKey(x, s)
		x.must, x.stops = cq.RemAccessErr, true
	}
}

// wrongKey names memory that the peer does not offer.
func (e *end) wrongKey(x *request, s *qp.SendWR) {
	p := e.peer()
	switch e.w.r.IntN(6) {
	case 5: // a window that belongs to another pair
		if o := p.host.otherWindow(p); o != nil {
			s.RKey, s.RemoteAddr = o.key, o.base+s.RemoteAddr%8
			return
		}
		fallthrough
	case 0:
		s.RKey, s.RemoteAddr = p.host.foreign.Key(), p.host.foreign.Addr()
	case 1: // a region that only windows may use
		s.RKey = p.base.Key()
	case 2:
		s.RemoteAddr += laneLen &^ 7
		s.FlushRegion = false
	case 3:
		for _, g := range p.grants {
			if len(g.dead) > 0 {
				s.RKey = g.dead[e.w.r.IntN(len(g.dead))]
				return
			}
		}
		fallthrough
	default:
		s.RKey ^= 0x3C3C3C00
	}
}

// otherWindow returns an open type 2 window of another pair, or nil.
func (h *station) otherWindow(p *end) *grant {
	for _, e := range h.ends {
		if e != p && e.c.typ != qp.UD && e.win != nil && e.win.Type() == mr.Type2B && e.grants[1].state == open {
			return e.grants[1]
		}
	}
	return nil
}

// surprise posts a long WRITE to a region that goes away in the middle of it.
func (e *end) surprise() {
	p := e.peer()
	g := p.grants[0]
	if e.c.typ == qp.UD || !e.canPost() || g.state != open || p.link.Access&mr.RemoteWrite == 0 {
		return
	}
	x, s := e.newRequest(qp.RDMAWrite, soakSlot)
	x.off, s.RKey, s.RemoteAddr = g.lo, g.key, g.base
	g.use(x)
	e.operands(x, s)
	e.fence(x, s)
	e.give(x, s)
	e.w.later = append(e.w.later, func() {
		if g.state == open && !e.c.down {
			p.takeAway()
		}
	})
}

func (e *end) spoilDatagram(x *request, s *qp.SendWR) {
	if e.w.oneIn(2) {
		s.RemoteQKey++
		x.stops = true
		return
	}
	whole := e.local.SGE(0, soakSlot)
	s.Inline, s.SGE = nil, []mr.SGE{whole, whole, e.local.SGE(0, 1)}
	x.must, x.stops = cq.LocLenErr, true
}

// postReceives posts a few receives, of which a few are bad.
func (e *end) postReceives() {
	if e.onSRQ {
		e.host.postShared()
		return
	}
	if e.q == nil || e.q.State() == qp.Reset {
		return
	}
	for range 1 + e.w.r.IntN(4) {
		if len(e.recvs) == 0 {
			return
		}
		i := e.recvs[0]
		e.recvs = e.recvs[1:]
		v, wr := e.w.newReceive(e.recv, i, e.w.harm)
		v.end, v.host = e, e.host
		e.badRecv = e.badRecv || v.bad || v.n < soakSlot
		e.recvq = append(e.recvq, v)
		e.w.must(e.host.PostRecv(e.q, wr), "posting a receive")
	}
}

// newReceive makes a receive for slot i of a region.
func (w *world) newReceive(reg *mr.Region, i int, mayBeBad bool) (*receive, *qp.RecvWR) {
	v := &receive{id: uint64(len(w.receives)), slot: i, n: soakSlot}
	if !restIs(reg.Bytes()[i*soakSlot:(i+1)*soakSlot], 0, nothing) {
		w.fail("a receive buffer was changed after its receive had ended")
	}
	if mayBeBad && w.oneIn(60) {
		v.n = 48
	}
	wr := &qp.RecvWR{ID: v.id | idBit, SGE: splitSGE(w.r, reg, i*soakSlot, v.n)}
	if mayBeBad && w.oneIn(60) {
		v.bad = true
		wr.SGE[0].LKey ^= 0x5A5A5A00
	}
	w.receives = append(w.receives, v)
	return v, wr
}

func (h *station) postShared() {
	for range 1 + h.w.r.IntN(6) {
		if len(h.srqFree) == 0 || h.srq.Full() {
			return
		}
		i := h.srqFree[0]
		v, wr := h.w.newReceive(h.srqMem, i, h.w.harm && h.w.oneIn(3))
		v.host = h
		if v.bad || v.n < soakSlot {
			h.badRecv = true
		}
		h.srqFree = h.srqFree[1:]
		h.shared = append(h.shared, v)
		h.w.must(h.srq.PostRecv(wr), "posting to the SRQ")
	}
}
