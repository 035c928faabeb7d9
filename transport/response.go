package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/mr"
)

// response is an answer that waits to be sent.
type response struct {
	kind     responseKind
	syndrome bth.Syndrome
	psn      bth.PSN // of the ACK or NAK; of the first packet of a READ or atomic answer
	msn      bth.MSN
	reth     bth.RETH // READ: what to answer with
	sent     int      // READ: packets sent so far
	value    uint64   // atomic: the word before
	again    bool     // answers a duplicate
}

type responseKind uint8

const (
	ackKind responseKind = iota
	readKind
	atomicKind
)

// responseQueue holds answers in the order of their requests: an ACK may not
// overtake the data of an earlier READ. Its length is fixed; ACKs for adjoining
// requests merge into one.
type responseQueue struct {
	ring    []response
	head, n int
	answers int // READ and atomic answers in the queue, first ones
	repeats int // the same, to duplicates
	limit   int // of each
}

// resize sets how many READs and atomics are taken, and as many repeated ones.
// With two ACKs or NAKs before each and two at the end the queue holds at most
// six times as many and two; it grows as it is needed.
func (u *responseQueue) resize(answers int) { u.limit = answers }

const firstResponses = 4

func (u *responseQueue) grow() {
	ring := make([]response, max(firstResponses, 2*len(u.ring)))
	for i := range u.n {
		ring[i] = *u.at(i)
	}
	u.ring, u.head = ring, 0
}

func (u *responseQueue) clear() { u.head, u.n, u.answers, u.repeats = 0, 0, 0, 0 }

func (u *responseQueue) at(i int) *response { return &u.ring[(u.head+i)%len(u.ring)] }

// full reports whether as many READs and atomics wait as the peer may have
// outstanding; fullAgain the same for its duplicates.
func (u *responseQueue) full() bool      { return u.answers >= u.limit }
func (u *responseQueue) fullAgain() bool { return u.repeats >= u.limit }

// onlyACK reports whether a positive acknowledgement is all there is to send.
func (u *responseQueue) onlyACK() bool {
	return u.n == 1 && u.at(0).kind == ackKind && u.at(0).syndrome.Kind() == bth.KindACK
}

func (u *responseQueue) push(v response) {
	if u.n == len(u.ring) {
		u.grow()
	}
	u.n++
	*u.at(u.n - 1) = v
	u.count(&v, 1)
}

func (u *responseQueue) pop() {
	u.count(u.at(0), -1)
	u.head = (u.head + 1) % len(u.ring)
	u.n--
}

func (u *responseQueue) count(v *response, by int) {
	switch {
	case v.kind == ackKind:
	case v.again:
		u.repeats += by
	default:
		u.answers += by
	}
}

// ack adds a positive acknowledgement, or moves the one at the end forward.
func (u *responseQueue) ack(psn bth.PSN, msn bth.MSN) {
	if u.n > 0 {
		if last := u.at(u.n - 1); last.kind == ackKind && last.syndrome.Kind() == bth.KindACK {
			if last.psn.Before(psn) {
				last.psn = psn
			}
			last.msn = msn
			return
		}
	}
	u.pushAck(response{kind: ackKind, syndrome: bth.SyndromeACK, psn: psn, msn: msn})
}

// pushAck adds an ACK or NAK. Of two that are at the end already the older one
// goes: what it says follows from the other two. So their number is bounded,
// whatever a peer sends between two bursts of ours.
func (u *responseQueue) pushAck(v response) {
	if u.n > 1 && u.at(u.n-1).kind == ackKind && u.at(u.n-2).kind == ackKind {
		*u.at(u.n - 2) = *u.at(u.n - 1)
		u.n--
	}
	u.push(v)
}

// nak adds a negative acknowledgement. One that is still in the queue is
// replaced.
func (u *responseQueue) nak(psn bth.PSN, s bth.Syndrome, msn bth.MSN) {
	if u.n > 0 {
		if last := u.at(u.n - 1); last.kind == ackKind && last.syndrome.Kind() != bth.KindACK {
			u.n--
		}
	}
	u.pushAck(response{kind: ackKind, syndrome: s, psn: psn, msn: msn})
}

func (u *responseQueue) read(psn bth.PSN, msn bth.MSN, h bth.RETH) {
	u.push(response{kind: readKind, psn: psn, msn: msn, reth: h})
}

func (u *responseQueue) atomic(psn bth.PSN, msn bth.MSN, value uint64, again bool) {
	u.push(response{kind: atomicKind, psn: psn, msn: msn, value: value, again: again})
}

// waiting reports whether the answer with this first PSN is still in the queue.
func (u *responseQueue) waiting(psn bth.PSN) bool {
	for i := range u.n {
		if v := u.at(i); v.kind != ackKind && v.psn == psn {
			return true
		}
	}
	return false
}

// repeat arranges that the READ is answered again from psn on. An answer in the
// queue that will still come to psn serves as it is, and one that is past it
// starts over there; otherwise a new answer is queued.
func (u *responseQueue) repeat(psn bth.PSN, msn bth.MSN, h bth.RETH, mtu int) bool {
	for i := range u.n {
		v := u.at(i)
		if v.kind != readKind || psn.Before(v.psn) {
			continue
		}
		if sentTo := v.psn.Add(v.sent); !psn.Before(sentTo) {
			if v.covers(psn, h, mtu) {
				return true
			}
			continue
		}
		if !v.endsWith(psn, h, mtu) {
			continue // it has to go on where it is
		}
		*v = response{kind: readKind, psn: psn, msn: msn, reth: h, again: v.again}
		return true
	}
	if u.fullAgain() {
		return false
	}
	u.push(response{kind: readKind, psn: psn, msn: msn, reth: h, again: true})
	return true
}

// covers reports whether the answer includes the bytes that h asks for, at psn.
func (v *response) covers(psn bth.PSN, h bth.RETH, mtu int) bool {
	k := psn.Sub(v.psn)
	off := uint64(k) * uint64(mtu)
	return k < packets(uint64(v.reth.Length), mtu) && h.RKey == v.reth.RKey &&
		h.VA == v.reth.VA+off && uint64(h.Length)+off <= uint64(v.reth.Length)
}

// endsWith reports whether the answer ends no later than one to h at psn.
func (v *response) endsWith(psn bth.PSN, h bth.RETH, mtu int) bool {
	return packets(uint64(v.reth.Length), mtu) <= psn.Sub(v.psn)+packets(uint64(h.Length), mtu)
}

// sendResponse sends the next packet that answers the peer. It returns false
// when there is none, or when READ data have to wait for their turn.
func (e *Engine) sendResponse(now time.Duration, q *QP, b *bth.Burst) bool {
	u := &q.rsp.queue
	if u.n == 0 {
		return false
	}
	switch v := u.at(0); v.kind {
	case ackKind:
		if e.cfg.Recovery != GoBackN && v.syndrome == bth.NAKSequence && v.psn.Before(q.rsp.expect) {
			// Its packet has come meanwhile: it would make the requester go back
			// for what was kept.
			u.pop()
			return e.sendResponse(now, q, b)
		}
		if q.rsp.selectively(v.syndrome) {
			e.sendSelective(q, v, b)
			u.pop()
			return true
		}
		p := e.header(q, bth.Acknowledge, v.psn)
		p.AETH = bth.AETH{Syndrome: v.syndrome, MSN: v.msn}
		e.answer(q, b)
		u.pop()
	case atomicKind:
		p := e.header(q, bth.AtomicAcknowledge, v.psn)
		p.AETH = bth.AETH{Syndrome: bth.SyndromeACK, MSN: v.msn}
		p.AtomicAck = v.value
		e.answer(q, b)
		u.pop()
	case readKind:
		if !q.maySend(now) {
			return false
		}
		e.sendReadResponse(now, q, v, b)
	}
	return true
}

// answer sends the packet in e.out, an answer without payload.
func (e *Engine) answer(q *QP, b *bth.Burst) {
	f := b.Next()
	e.frame(q, f, nil)
	f.Path = &q.quietPath
}

// sendReadResponse sends the next packet of READ data, straight from the region.
func (e *Engine) sendReadResponse(now time.Duration, q *QP, v *response, b *bth.Burst) {
	mtu := uint64(q.Attr.PathMTU)
	off := uint64(v.sent) * mtu
	n := min(mtu, uint64(v.reth.Length)-off)
	total := packets(uint64(v.reth.Length), q.Attr.PathMTU)
	pos := position(v.sent, total)
	psn := v.psn.Add(v.sent)
	var data []byte
	if n > 0 {
		var f mr.Fault
		if data, f = q.remote(v.reth.RKey, mr.RemoteRead, v.reth.VA+off, n); f != 0 {
			e.readRefused(q, v, psn)
			return
		}
	}
	p := e.header(q, readOpcodes[pos], psn)
	p.AETH = bth.AETH{Syndrome: bth.SyndromeACK, MSN: v.msn}
	e.frame(q, b.Next(), data)
	q.paced(now, b)
	if v.sent++; v.sent == total {
		q.rsp.queue.pop()
	}
}

var readOpcodes = [4]bth.Opcode{
	bth.Only: bth.ReadRespOnly, bth.First: bth.ReadRespFirst, bth.Middle: bth.ReadRespMiddle, bth.Last: bth.ReadRespLast,
}

// readRefused ends a READ whose region went away while it was being answered:
// the NAK takes the place of the response (IBA 9.7.5.1.3).
func (e *Engine) readRefused(q *QP, v *response, psn bth.PSN) {
	e.countRefusal(noAccess)
	msn := v.msn
	q.rsp.queue.clear()
	q.rsp.queue.nak(psn, bth.NAKRemoteAccess, msn)
	e.cfg.OnEvent(Event{Type: EventQPAccessErr, QPN: q.QPN})
	e.fail(q)
}

// replayCache remembers the READs and atomics that a peer may repeat: the most
// recent ones, as many as it may have outstanding.
type replayCache struct {
	ring    []result
	next, n int
}

// result is one executed READ or atomic.
type result struct {
	first  bth.PSN
	psns   int
	atomic bool
	done   bool // FLUSH or ATOMIC WRITE: answered without data
	msn    bth.MSN
	value  uint64 // atomic: the word before
}

// resize changes how many are remembered; the newest stay.
func (c *replayCache) resize(size int) {
	old := *c
	*c = replayCache{ring: make([]result, size)}
	for i := max(0, old.n-size); i < old.n; i++ {
		c.add(*old.at(i))
	}
}

func (c *replayCache) at(i int) *result {
	return &c.ring[(c.next-c.n+i+len(c.ring))%len(c.ring)]
}

func (c *replayCache) add(r result) {
	c.ring[c.next] = r
	c.next = (c.next + 1) % len(c.ring)
	c.n = min(c.n+1, len(c.ring))
}

// find returns the newest result whose PSNs include p, or nil.
func (c *replayCache) find(p bth.PSN) *result {
	for i := c.n - 1; i >= 0; i-- {
		if r := c.at(i); p.InWindow(r.first, r.psns) {
			return r
		}
	}
	return nil
}
