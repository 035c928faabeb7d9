package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/qp"
)

// sendSpan is how far behind the oldest unanswered PSN answers are used out of
// order.
const sendSpan = 256

// scoreboard notes, for the PSNs from una on, what was answered early and what
// was resent. A pair gets one with the first answer that comes out of order.
type scoreboard struct {
	have [sendSpan / 64]uint64
	n    int // bits of have

	// mark is the PSN that was to be sent next when a PSN was resent, plus marked:
	// the answer to anything from there on tells that the resent one is lost too.
	mark [sendSpan]uint32

	// heard: the peer has executed everything before it. seen: it has told what
	// it has of the packets before it, and that it has this one.
	heard, seen bth.PSN
	reported    int // the peer's tolerance
	// tolerance is how many PSNs an answer may be late without being lost.
	tolerance int
	late      suspicion
}

const marked = 1 << 31

func (b *scoreboard) has(psn bth.PSN) bool {
	i := psn.Value() % sendSpan
	return b.have[i/64]>>(i%64)&1 != 0
}

func (b *scoreboard) set(psn bth.PSN) {
	if !b.has(psn) {
		i := psn.Value() % sendSpan
		b.have[i/64] |= 1 << (i % 64)
		b.n++
	}
}

// moved notes that una went from from to to: what lies before is answered now. The
// marks come along, so that they never fall half the PSN space behind.
func (b *scoreboard) moved(from, to bth.PSN) {
	b.clear(from, to)
	if b.heard.Before(to) {
		b.heard = to
	}
	if b.seen.Before(to) {
		b.seen = to
	}
}

// clear forgets the PSNs from from to before to.
func (b *scoreboard) clear(from, to bth.PSN) {
	if to.Sub(from) >= sendSpan {
		b.have, b.n, b.mark = [sendSpan / 64]uint64{}, 0, [sendSpan]uint32{}
		return
	}
	for ; from != to; from = from.Next() {
		i := from.Value() % sendSpan
		if b.has(from) {
			b.have[i/64] &^= 1 << (i % 64)
			b.n--
		}
		b.mark[i] = 0
	}
}

// lost reports whether the answer to a PSN has to be given up when those up to
// before heard have come.
func (b *scoreboard) lost(psn, heard bth.PSN) bool {
	return b.lostBefore(psn, heard, b.tolerance)
}

func (b *scoreboard) lostBefore(psn, seen bth.PSN, tolerance int) bool {
	if b.has(psn) || seen.Sub(psn) <= tolerance {
		return false
	}
	m := b.mark[psn.Value()%sendSpan]
	return m == 0 || seen.Sub(bth.NewPSN(m)) > tolerance
}

// resent marks a PSN; next is what will be sent for the first time next.
func (b *scoreboard) resent(psn, next bth.PSN) {
	if !b.has(psn) {
		b.mark[psn.Value()%sendSpan] = next.Value() | marked
	}
}

// board returns the requester's scoreboard, a new one if need be.
func (r *requester) board() *scoreboard {
	if r.score == nil {
		r.score = &scoreboard{heard: r.una, seen: r.una}
	}
	return r.score
}

// needless returns how many of the packets in flight have been answered early:
// they do not count against the window.
func (r *requester) needless() int {
	if r.score == nil {
		return 0
	}
	return r.score.n
}

// missing returns the part of the n PSNs from psn on that has no answer: from
// the first such PSN to the last one, as offsets. n is 0 if there is none.
func (r *requester) missing(w *qp.SendWQE, psn bth.PSN, n int) (off, rest int) {
	b := r.score
	if b == nil || r.next == r.max {
		return 0, n
	}
	if psn == r.una { // it had come early, but then met an RNR NAK
		b.clear(psn, psn.Next())
	}
	if !w.Op.Answered() && psn.Before(b.heard) {
		return 0, 0
	}
	for ; n > 0 && b.holds(r.una, psn.Add(n-1)); n-- {
	}
	for ; off < n && b.holds(r.una, psn.Add(off)); off++ {
	}
	return off, n - off
}

// holds is has for any PSN.
func (b *scoreboard) holds(una, psn bth.PSN) bool {
	return uint(psn.Sub(una)) < sendSpan && b.has(psn)
}

// answersMissing notes that everything before p was executed, although answers
// of the oldest work request, a READ or an atomic, have not come: an implied NAK
// (IBA 9.7.5.1.4).
func (e *Engine) answersMissing(now time.Duration, q *QP, p bth.PSN) {
	r := &q.req
	if r.coarse {
		if !r.wentBack && r.rnrTimer == never {
			e.Counters[ImpliedNAKSeqErr]++
			r.cause = RetransmittedNAK
			e.goBack(now, q)
		}
		return
	}
	if b := r.board(); b.heard.Before(p) {
		b.heard = p
	}
	r.repair = r.rnrTimer == never
}

// sendRepair asks once more for answers that are lost. It returns false when
// there is nothing to ask for.
func (e *Engine) sendRepair(now time.Duration, q *QP, b *bth.Burst) bool {
	r := &q.req
	w, k, n := r.nextLost(q)
	if n == 0 {
		r.repair = false
		return false
	}
	first := w.Track.First.Add(k)
	for i := range n {
		r.score.resent(first.Add(i), r.max)
	}
	r.lastRepair = first
	r.score.late.asked()
	if w.Op.Answered() && first.Before(r.score.heard) {
		e.Counters[ImpliedNAKSeqErr]++
	}
	if r.lossFrom == r.una { // once per window
		r.lossFrom = r.max
		q.ctl.Lost(now)
	}
	if !e.resend(now, q, w, k, n, RetransmittedSelective, b) {
		r.repair = false
		return false
	}
	return true
}

// nextLost finds the first n answers that are lost, from packet k of a work
// request on.
func (r *requester) nextLost(q *QP) (w *qp.SendWQE, k, n int) {
	end, seen := r.score.heard, r.score.seen
	if limit := r.una.Add(sendSpan); limit.Before(end) {
		end = limit
	}
	for c := q.SQ.Head(); c != q.SQ.Tail(); c++ {
		w = q.SQ.At(c)
		if w.Track.Packets == 0 || !w.Track.First.Before(end) && !w.Track.First.Before(seen) {
			break
		}
		if k, n = r.nextLostRequest(w); n > 0 {
			return w, k, n
		}
		if !w.Op.Answered() {
			continue
		}
		last := min(w.Track.Packets, end.Sub(w.Track.First))
		for k = max(0, r.una.Sub(w.Track.First)); k < last; {
			to := min(last, (k/w.Track.Piece+1)*w.Track.Piece)
			if k, n = r.lostIn(w, k, to); n > 0 {
				return w, k, n
			}
			if k++; !r.selective {
				k = to
			}
		}
	}
	return nil, 0, 0
}

// lostIn looks at the answers from k to before to, which belong to one request
// packet. The request for them has to start with the first one that is missing:
// a responder may forget what lies before the start of a repeated READ (rxe
// does), so the starts of a READ's repetitions only ever move forward.
func (r *requester) lostIn(w *qp.SendWQE, k, to int) (first, n int) {
	b := r.score
	for k < to && b.has(w.Track.First.Add(k)) {
		k++
	}
	if k == to || !b.lost(w.Track.First.Add(k), b.heard) {
		return k, 0
	}
	for i := k; i < to; i++ {
		if r.selective && b.has(w.Track.First.Add(i)) {
			break // our own kind of responder answers any part
		}
		if b.lost(w.Track.First.Add(i), b.heard) {
			n = i - k + 1
		}
	}
	return k, n
}

// hold notes an answer that came early, and was used.
func (e *Engine) hold(now time.Duration, q *QP, psn bth.PSN) {
	r := &q.req
	b := r.board()
	b.set(psn)
	e.Counters[ReorderedPkts]++
	r.retries, r.timeouts = q.Attr.RetryCount, 0 // what comes late for una is progress all the same
	r.startAckTimer(now, &q.Attr)                // the peer lives
}

// usable reports whether an answer that is not the next one can be used.
func (e *Engine) usable(q *QP, psn bth.PSN) bool {
	r := &q.req
	if r.coarse || psn.Sub(r.una) >= sendSpan || !psn.Before(r.max) {
		return false
	}
	b := r.board()
	if b.has(psn) {
		e.answerAgain(q, psn)
		return false
	}
	return true
}

// answerAgain notes an answer that was here already: if it was asked for again,
// the first copy was late, not lost.
func (e *Engine) answerAgain(q *QP, psn bth.PSN) {
	r := &q.req
	if b := r.score; b != nil && psn == r.lastRepair {
		r.lastRepair = r.una.Add(-1 << 22) // once
		if b.late.twice() {
			b.tolerance = min(max(minTolerance, 2*b.tolerance), maxTolerance)
		}
		r.spurious++
		e.Counters[SpuriousRetransmits]++
	}
}

// advance moves on over answers that came early, and over work requests that
// these show to be executed.
func (e *Engine) advance(now time.Duration, q *QP) {
	r := &q.req
	for q.Attr.State != qp.Err && r.score != nil && q.SQ.Len() > 0 {
		w := q.SQ.At(q.SQ.Head())
		was := r.una
		switch {
		case w.Track.Packets == 0:
			return
		case w.Op.Answered() && r.score.has(r.una) && r.score.n > 0:
			e.gotAnswer(now, q, w, chunkEnds(w, w.Track.Got))
		case r.una.Before(r.score.heard):
			e.ackBefore(now, q, r.score.heard)
		}
		if r.una == was {
			return
		}
	}
}

// chunkEnds reports whether packet k is the last one of its READ request.
func chunkEnds(w *qp.SendWQE, k int) bool {
	return k+1 == w.Track.Packets || (k+1)%w.Track.Piece == 0
}
