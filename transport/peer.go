package transport

import (
	"net/netip"

	"github.com/goroce/goroce/qp"
)

// peer is what all RC pairs that send to one address share: the room in its
// socket buffer. A thousand pairs with a window each would overflow it at once,
// and every loss costs more than the wait for one's turn.
//
//	in flight: [ pair A ][ pair B ][ pair C ]   promised: D   limit
//	waiting:   E, F, G … go on in this order as answers to the others make room
//
// Who waits longest is passed by no more packets than the limit: a READ that asks
// for more answers than one turn would never find the room else, nor anybody while
// a pair whose packets are answered one by one refills what it has freed. And a promise ends with the
// next Transmit, used or not: whoever cannot send after all, in ERR or behind a
// window of its own, does not keep the room from the next.
type peer struct {
	addr     netip.Addr
	pairs    int // that refer to it
	inFlight int // packets of all pairs, sent and unanswered
	promised int // packets that pairs may send whose turn has come
	passed   int // packets sent past the first that waits
	waiting  fifoWaiting
}

// join makes q share the peer at its address.
func (e *Engine) join(q *QP) {
	e.part(q)
	if q.Type != qp.RC || e.cfg.PeerWindow <= 0 {
		return
	}
	p := e.peers[q.peer]
	if p == nil {
		p = &peer{addr: q.peer}
		e.peers[q.peer] = p
	}
	p.pairs++
	q.shared = p
}

// part ends join.
func (e *Engine) part(q *QP) {
	p := q.shared
	if p == nil {
		return
	}
	if p.waiting.first == q {
		p.passed = 0
	}
	p.waiting.remove(q)
	p.inFlight -= q.counted
	p.promised -= q.promise
	q.counted, q.promise, q.shared = 0, 0, nil
	if p.pairs--; p.pairs == 0 {
		delete(e.peers, p.addr)
	}
	e.admitWaiting(p)
}

// account takes note of what q has in flight now, and lets others go on if that
// has become less.
func (e *Engine) account(q *QP) {
	p := q.shared
	if p == nil {
		return
	}
	n := 0
	if q.Attr.State.CanSend() {
		n = max(0, q.req.next.Sub(q.req.una))
	}
	more := n - q.counted
	p.inFlight += more
	q.counted = n
	p.take(q, max(0, more))
	e.admitWaiting(p)
}

// turnOver ends q's turn at its peer: it has sent all it could.
func (e *Engine) turnOver(q *QP) {
	if p := q.shared; p != nil {
		p.take(q, q.promise)
	}
}

// take ends the promise of n packets to q.
func (p *peer) take(q *QP, n int) {
	n = min(n, q.promise)
	q.promise -= n
	p.promised -= n
}

// admitWaiting makes pairs ready for which there is room again, a turn for each.
// When nothing is under way the first goes on however much it needs.
func (e *Engine) admitWaiting(p *peer) {
	for q := p.waiting.first; q != nil; q = p.waiting.first {
		turn, taken := max(q.needs, quota), p.inFlight+p.promised
		if taken > 0 && taken+turn > e.cfg.PeerWindow {
			return
		}
		p.waiting.remove(q)
		p.passed = 0
		q.promise = turn
		p.promised += turn
		e.ready.push(q)
	}
}

// crowded reports that n more packets of q, which has inFlight, have to wait for
// their turn. A pair that is alone is never held up.
func (e *Engine) crowded(q *QP, inFlight, n int) bool {
	p := q.shared
	if p == nil {
		return false
	}
	others := p.inFlight - q.counted + p.promised - q.promise
	switch {
	case inFlight-q.counted+n <= q.promise:
		return false
	case others == 0 && inFlight == 0:
		return false
	case (others == 0 || others+inFlight+n <= e.cfg.PeerWindow) && p.passed < e.cfg.PeerWindow:
		if p.waiting.first != nil {
			p.passed += n
		}
		return false
	}
	q.needs = n
	p.waiting.push(q)
	return true
}

// turn returns how many packets a pair may send in a row without asking for an
// acknowledgement, when all pairs together have more to send than fits.
func (e *Engine) turn(q *QP) int {
	if p := q.shared; p != nil && p.pairs > 1 && p.pairs*q.ctl.Window() > e.cfg.PeerWindow {
		return quota
	}
	return ackInterval
}

// fifoWaiting is an intrusive queue of pairs that wait for a peer.
type fifoWaiting struct{ first, last *QP }

func (f *fifoWaiting) push(q *QP) {
	if q.waits {
		return
	}
	q.waits, q.waitsBehind, q.waitsBefore = true, f.last, nil
	if f.last == nil {
		f.first = q
	} else {
		f.last.waitsBefore = q
	}
	f.last = q
}

func (f *fifoWaiting) remove(q *QP) {
	if !q.waits {
		return
	}
	before, behind := q.waitsBehind, q.waitsBefore
	if before == nil {
		f.first = behind
	} else {
		before.waitsBefore = behind
	}
	if behind == nil {
		f.last = before
	} else {
		behind.waitsBehind = before
	}
	q.waits, q.waitsBehind, q.waitsBefore = false, nil, nil
}
