package fabric

import (
	"math"
	"time"
)

// Port is the sending end of a link: two queues, of which the one for CNPs goes
// first, and the packet on the line.
type Port struct {
	Link
	// ECN marks packets, if set.
	ECN *RED
	// Queue is the number of bytes that wait, Peak the most that ever did. Sent
	// and Marked count what has left, CNPs those that were among it.
	Queue, Peak  int
	Sent, Marked uint64
	SentBytes    uint64
	CNPs         uint64
	// Paused is how long a pause has kept data waiting.
	Paused time.Duration

	sim         *Sim
	owner, peer node
	data, high  queue
	line        *packet // being sent
	frac        float64 // of a ns, that the line is behind
	stopped     bool    // by a pause
	stoppedAt   time.Duration
	held        int  // bytes in the peer that came from here
	pausing     bool // the peer has asked for a pause
}

// RED marks a packet as congested with a probability that grows with the queue:
// 0 up to Kmin bytes, Pmax at Kmax, and 1 above.
type RED struct {
	Kmin, Kmax int
	Pmax       float64
	// Enqueue marks packets when they come; otherwise when they leave, which
	// tells the sender earlier.
	Enqueue bool
}

func (r *RED) probability(queue int) float64 {
	switch {
	case queue <= r.Kmin:
		return 0
	case queue > r.Kmax:
		return 1
	}
	return r.Pmax * float64(queue-r.Kmin) / float64(r.Kmax-r.Kmin)
}

// enqueue adds a packet to its queue.
func (p *Port) enqueue(k *packet) {
	if p.ECN != nil && p.ECN.Enqueue {
		p.mark(k)
	}
	if k.control {
		p.high.push(k)
	} else {
		p.data.push(k)
	}
	p.Queue += k.length
	p.Peak = max(p.Peak, p.Queue)
	p.next()
}

// mark lets the queue decide whether the packet is marked.
func (p *Port) mark(k *packet) {
	const ect, ce = 2, 3
	if ecn := k.path.TrafficClass & 3; ecn == 0 || ecn == ce {
		return
	}
	if q := p.ECN.probability(p.Queue); q > 0 && p.sim.rng.Float64() < q {
		k.path.TrafficClass |= ce
		p.Marked++
	}
}

// next puts the next packet on the line, if it is free.
func (p *Port) next() {
	if p.line != nil {
		return
	}
	k := p.high.pop()
	if k == nil && !p.stopped {
		k = p.data.pop()
	}
	if k == nil {
		return
	}
	p.line = k
	p.Queue -= k.length
	if p.ECN != nil && !p.ECN.Enqueue {
		p.mark(k)
	}
	whole, frac := math.Modf(p.Rate.Time(k.length) + p.frac)
	p.frac = frac
	p.sim.at(p.sim.now+time.Duration(whole), p, sent, nil)
}

func (p *Port) act(k kind, at *packet) {
	switch k {
	case sent:
		done := p.line
		p.line = nil
		p.Sent++
		p.SentBytes += uint64(done.length)
		if done.control {
			p.CNPs++
		}
		p.owner.left(p, done)
		done.from = p
		p.sim.at(p.sim.now+p.Delay, p, arrival, done)
		p.next()
	case arrival:
		p.peer.receive(at)
	case pause:
		if !p.stopped {
			p.stopped, p.stoppedAt = true, p.sim.now
		}
	case resume:
		if p.stopped {
			p.stopped = false
			p.Paused += p.sim.now - p.stoppedAt
			p.next()
		}
	}
}

// queue is a ring of packets that grows as it must.
type queue struct {
	ring    []*packet
	head, n int
}

func (q *queue) push(p *packet) {
	if q.n == len(q.ring) {
		ring := make([]*packet, max(16, 2*len(q.ring)))
		for i := range q.n {
			ring[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = p
	q.n++
}

func (q *queue) pop() *packet {
	if q.n == 0 {
		return nil
	}
	p := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	return p
}
