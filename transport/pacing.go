package transport

import (
	"math"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
)

// This file has what a pair's congestion controller does to its packets.

// pacer spreads the packets of a pair over time, if its controller gives a rate.
// They leave in batches; between two the pair waits in the heap of timers:
//
//	batch ████      ████      ████
//	      next at the end of the time that the bytes take at the rate
//
// A batch that starts late, because the host woke up late, moves the ones after
// it by less than that: lateness up to maxLate is made up for. Time in which
// there was nothing to send is not.
type pacer struct {
	rate congestion.BitRate // of the batch, 0 when there is no pace
	left int                // bytes of the batch
	next time.Duration      // when the next batch may start,
	frac float64            // and the fraction of its nanosecond
	held bool               // something has waited for next since the last batch
	wait bool               // and the timer that ends that runs
	late time.Duration      // by how much the last wait was too long
	full int                // length of a packet with the whole MTU
	most int                // bytes of a batch
}

const maxLate = 200 * time.Microsecond

// maySend reports whether the controller's pace lets a packet go now. If not, a
// timer will say when.
func (q *QP) maySend(now time.Duration) bool {
	p := &q.pace
	if p.left > 0 {
		return true
	}
	if p.rate = q.ctl.Rate(now); p.rate == 0 {
		p.held, p.wait = false, false
		return true
	}
	if now < p.next {
		p.held, p.wait = true, true
		return false
	}
	if p.held {
		p.late = min(maxLate, now-p.next)
	}
	if p.next < now-p.late {
		p.next, p.frac = now-p.late, 0
	}
	p.held, p.wait = false, false
	p.left = min(p.rate.Batch(p.full), p.most)
	return true
}

// paced accounts for the packet that was put last into the burst.
func (q *QP) paced(now time.Duration, b *bth.Burst) {
	frames := b.Frames()
	n := frames[len(frames)-1].Len() + q.overhead()
	q.ctl.Sent(now, n)
	p := &q.pace
	if p.rate == 0 {
		return
	}
	whole, frac := math.Modf(p.rate.Time(n) + p.frac)
	p.next, p.frac = p.next+time.Duration(whole), frac
	// What is left is for whole packets.
	if p.left -= n; p.left < n {
		p.left = 0
	}
}

// overhead returns the length of IP and UDP headers.
func (q *QP) overhead() int {
	if q.path.Dst.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// deadline returns when the pair may go on, if it waits.
func (p *pacer) deadline() time.Duration {
	if p.wait {
		return p.next
	}
	return never
}

// due reports once that the pair was held and may go on.
func (p *pacer) due(now time.Duration) bool {
	if !p.wait || now < p.next {
		return false
	}
	p.wait = false
	return true
}

// ackEvery bounds how many packets pass without asking for an acknowledgement:
// a slow pair must not wait for longer than slowAck, or its timer would expire.
func (p *pacer) ackEvery() int {
	if p.rate == 0 {
		return ackInterval
	}
	return int(min(ackInterval, p.rate.Bytes(slowAck)/float64(p.full)))
}

const slowAck = time.Millisecond

// controller makes the congestion controller of a pair.
func (e *Engine) controller(q *QP) congestion.Controller {
	make := q.Congestion
	if make == nil {
		make = e.cfg.Congestion
	}
	full := q.Attr.PathMTU + bth.BTHLen + bth.RETHLen + bth.ICRCLen + q.overhead()
	q.pace = pacer{full: full, most: math.MaxInt}
	if e.cfg.MaxBatch != 0 {
		q.pace.most = max(full, e.cfg.MaxBatch)
	}
	return make(q.Attr.PathMTU)
}
