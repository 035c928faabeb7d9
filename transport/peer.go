package transport

import (
	"net/netip"

	"github.com/goroce/goroce/qp"
)

// peer is what all RC pairs that send to one address share: the room in its
// socket buffer. A thousand pairs with a window each would overflow it at once,
// and every loss costs more than the wait for one's turn.
//
//	in flight: [ pair A ][ pair B ][ pair C ]   limit
//	waiting:   D, E, F … go on as answers to the others make room
type peer struct {
	addr     netip.Addr
	pairs    int // that refer to it
	inFlight int // packets of all pairs, sent and unanswered
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
	p.inFlight -= q.counted
	q.counted, q.shared = 0, nil
	if p.pairs--; p.pairs == 0 {
		delete(e.peers, p.addr)
		p.inFlight = 0
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
	if more < 0 {
		e.admitWaiting(p)
	}
}

// admitWaiting makes pairs ready for which there is room again, a turn for each.
func (e *Engine) admitWaiting(p *peer) {
	for room := e.cfg.PeerWindow - p.inFlight; room >= quota || p.pairs == 0; room -= quota {
		q := p.waiting.pop()
		if q == nil {
			return
		}
		e.ready.push(q)
	}
}

// crowded reports that n more packets of q, which has inFlight, would not fit;
// q then waits for its turn. A pair that is alone is never held up, and neither
// is one whose packets in flight do not ask for an answer.
func (e *Engine) crowded(q *QP, inFlight, n int) bool {
	p := q.shared
	if p == nil || p.inFlight-q.counted+inFlight+n <= e.cfg.PeerWindow || p.inFlight == q.counted {
		return false
	}
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
	q.waits, q.nextWaiting = true, nil
	if f.last == nil {
		f.first = q
	} else {
		f.last.nextWaiting = q
	}
	f.last = q
}

func (f *fifoWaiting) pop() *QP {
	q := f.first
	if q == nil {
		return nil
	}
	if f.first = q.nextWaiting; f.first == nil {
		f.last = nil
	}
	q.waits, q.nextWaiting = false, nil
	return q
}
