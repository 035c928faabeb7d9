package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/qp"
)

// Request packets that arrive before the expected one are kept, bytes and all,
// and are executed in their turn once the gap is filled. So a gap costs the
// packets that are missing, not those behind them, whatever the requester does;
// and since nothing is executed early, memory never shows a later byte before
// an earlier one.

const (
	// reorderSpan is how far ahead of the expected PSN a packet may be, and so the
	// most packets that one pair keeps.
	reorderSpan = 256
	// maxStored is the most packets that all pairs of an engine keep together.
	maxStored = 4096
	// spareStored is how many of their buffers stay for the next time.
	spareStored = 256

	maxPacket = bth.MaxHeaderLen + 4096 + 3
)

// storedPacket is a request packet that arrived early: BTH to pad.
type storedPacket struct {
	n     int
	bytes [maxPacket]byte
}

// reorderBuffer holds a pair's early packets by PSN.
type reorderBuffer struct {
	ring [reorderSpan]*storedPacket
	n    int
	high bth.PSN // the highest that was kept
	last bth.PSN // the one that arrived last
}

func (u *reorderBuffer) slot(psn bth.PSN) **storedPacket {
	return &u.ring[psn.Value()%reorderSpan]
}

// has reports whether the packet is kept.
func (u *reorderBuffer) has(psn bth.PSN) bool { return u != nil && *u.slot(psn) != nil }

// packetStore lends buffers to the pairs.
type packetStore struct {
	spare   []*storedPacket
	buffers []*reorderBuffer
	lent    int
}

func (s *packetStore) take() *storedPacket {
	if s.lent == maxStored {
		return nil
	}
	s.lent++
	last := len(s.spare) - 1
	if last < 0 {
		return new(storedPacket)
	}
	p := s.spare[last]
	s.spare = s.spare[:last]
	return p
}

func (s *packetStore) give(p *storedPacket) {
	s.lent--
	if len(s.spare) < spareStored {
		s.spare = append(s.spare, p)
	}
}

func (s *packetStore) takeBuffer(high bth.PSN) *reorderBuffer {
	last := len(s.buffers) - 1
	if last < 0 {
		return &reorderBuffer{high: high, last: high}
	}
	u := s.buffers[last]
	s.buffers = s.buffers[:last]
	u.high, u.last = high, high
	return u
}

func (s *packetStore) giveBuffer(u *reorderBuffer) {
	if len(s.buffers) < spareStored/8 {
		s.buffers = append(s.buffers, u)
	}
}

// ahead handles a packet behind a gap.
func (e *Engine) ahead(now time.Duration, q *QP, p *bth.Packet, d *bth.Datagram) {
	r := &q.rsp
	if r.notReady { // what follows an RNR NAK is sent again (IBA 9.7.5.2.8)
		e.Counters[DropOutOfSequence]++
		return
	}
	newGap := r.ahead != nil && r.ahead.high.Next().Before(p.PSN)
	again := r.ahead.has(p.PSN) && p.PSN.Sub(r.expect) < reorderSpan
	if again {
		e.Counters[DropDuplicate]++
		if r.selective {
			r.cameTwice(p.PSN)
		}
	} else if !e.keep(q, p, d) {
		e.outOfSequence(now, q)
		return
	}
	// A packet that is here already, and not in ascending order, shows that the
	// requester has gone back: what it resent first should have come before.
	wentBack := again && !r.ahead.last.Before(p.PSN)
	r.ahead.last = p.PSN
	if r.early++; r.selective {
		e.tellEarly(now, q, p, newGap)
		return
	}
	if wentBack && r.quiet {
		r.quiet = false
		e.Counters[NAKRepeated]++
	}
	switch {
	case r.quiet:
	case r.early > r.tolerance:
		e.outOfSequence(now, q)
	case r.nakTimer == never:
		r.nakTimer = now + reorderWait
	}
}

// keep stores an early packet. It returns false when that is not possible.
func (e *Engine) keep(q *QP, p *bth.Packet, d *bth.Datagram) bool {
	r := &q.rsp
	if e.cfg.Recovery == GoBackN || p.PSN.Sub(r.expect) >= reorderSpan || len(d.Data) > maxPacket {
		return false
	}
	s := e.store.take()
	if s == nil {
		return false
	}
	if r.ahead == nil {
		r.ahead = e.store.takeBuffer(p.PSN)
	}
	s.n = copy(s.bytes[:], d.Data)
	*r.ahead.slot(p.PSN) = s
	r.ahead.n++
	if r.ahead.high.Before(p.PSN) {
		r.ahead.high = p.PSN
	}
	e.Counters[ReorderedPkts]++
	return true
}

// drainAhead executes the packets that the one before it has let through, then
// asks for what is missing next. If that one had been asked for, the requester
// has gone back and comes past the next gap anyway: another NAK would make it go
// back twice. That the next packet is lost again shows when those behind it come
// again.
func (e *Engine) drainAhead(now time.Duration, q *QP, asked bool) {
	r := &q.rsp
	start := r.expect
	for r.ahead != nil && r.ahead.has(r.expect) {
		s, at := e.takeAhead(q, r.expect), r.expect
		if p := &e.held; p.Parse(s.bytes[:s.n]) == nil { // it did when it came
			e.inSequence(now, q, p, p.Opcode.Info())
		}
		e.store.give(s)
		if q.Attr.State == qp.Err || r.expect == at {
			break
		}
	}
	if q.Attr.State == qp.Err {
		return
	}
	switch {
	case r.notReady:
	case r.ahead != nil && asked && !r.selective:
		r.quiet = true
		r.startNAKTimer(now, &q.req.rtt, true)
		r.ackJump(start)
	case r.ahead != nil:
		r.early = r.ahead.n
		if r.early > r.tolerance {
			e.outOfSequence(now, q)
			r.asked = false // it may be on its way
		} else if r.nakTimer == never {
			r.nakTimer = now + reorderWait
		}
	default:
		r.ackJump(start)
	}
}

// ackJump acknowledges everything, so that a requester may stop resending.
func (r *responder) ackJump(start bth.PSN) {
	if last := r.expect.Add(-1); r.expect != start && r.replay.find(last) == nil {
		r.queue.ack(last, r.msn)
	}
}

// takeAhead takes a packet out of the buffer, which goes back with the last one.
func (e *Engine) takeAhead(q *QP, psn bth.PSN) *storedPacket {
	u := q.rsp.ahead
	s := *u.slot(psn)
	*u.slot(psn) = nil
	if u.n--; u.n == 0 {
		q.rsp.ahead = nil
		e.store.giveBuffer(u)
	}
	return s
}

// passed frees what is kept for PSNs that were executed: from to before to.
func (e *Engine) passed(q *QP, from, to bth.PSN) {
	if to.Sub(from) >= reorderSpan {
		e.dropAhead(q)
		return
	}
	for ; q.rsp.ahead != nil && from != to; from = from.Next() {
		if q.rsp.ahead.has(from) {
			e.store.give(e.takeAhead(q, from))
		}
	}
}

// dropAhead frees everything that is kept for the pair.
func (e *Engine) dropAhead(q *QP) {
	for i := 0; q.rsp.ahead != nil && i < reorderSpan; i++ {
		if s := q.rsp.ahead.ring[i]; s != nil {
			e.store.give(e.takeAhead(q, bth.NewPSN(uint32(i))))
		}
	}
}

// A network that reorders packets makes gaps that fill by themselves. Such a
// one is found out when packets that were asked for come twice: both the first
// copy, late, and the one resent. Where that happens to more than a few, the NAK
// waits for more early packets, or for a while; every so often it is tried with
// fewer.
const (
	minTolerance   = 4
	maxTolerance   = 64
	toleranceDecay = 1 << 14 // packets
	reorderWait    = time.Millisecond
)

// suspicion that packets are late, not lost: a packet that came twice adds to
// it, each one asked for takes away.
type suspicion int

const (
	cameTwice      suspicion = 4
	suspicionLimit suspicion = 8
)

func (s *suspicion) asked() { *s = max(0, *s-1) }

// twice reports whether the tolerance has to grow.
func (s *suspicion) twice() bool {
	if *s += cameTwice; *s < suspicionLimit {
		return false
	}
	*s -= cameTwice
	return true
}

// cameTwice notes a duplicate of a packet, which may be one that was asked for.
// Others come twice as well: probes, and what follows one although it is here,
// because no acknowledgement has told that yet.
func (r *responder) cameTwice(psn bth.PSN) {
	if r.selective && !r.told.remove(psn) || !r.selective && (!r.asked || psn != r.askedFor) {
		return
	}
	r.asked = false
	if !r.late.twice() || r.tolerance > 0 && r.got-r.toleratedAt < maxTolerance {
		return
	}
	r.tolerance = min(max(minTolerance, 2*r.tolerance), maxTolerance)
	r.toleratedAt = r.got
}

// toldMissing are PSNs that selective acknowledgements have reported missing, as
// far as later ones have not taken their places: marked, at their remainder.
type toldMissing [64]uint32

func (t *toldMissing) add(psn bth.PSN) { t[psn.Value()%uint32(len(t))] = psn.Value() | marked }

// remove takes a PSN out, and reports whether it was there.
func (t *toldMissing) remove(psn bth.PSN) bool {
	at := &t[psn.Value()%uint32(len(t))]
	if *at != psn.Value()|marked {
		return false
	}
	*at = 0
	return true
}

// askFor notes that a packet was asked for: once, else a duplicate says nothing.
func (r *responder) askFor(psn bth.PSN) {
	if r.asked = psn != r.askedFor; r.asked {
		r.late.asked()
	}
	r.askedFor = psn
	if r.tolerance > 0 && r.got-r.toleratedAt > toleranceDecay {
		r.tolerance /= 2
		r.toleratedAt = r.got
	}
}
