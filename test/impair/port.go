package main

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/goroce/goroce/congestion"
)

// Conditions are what a port does to the frames that leave by it. The zero value
// does nothing to them.
type Conditions struct {
	// In is the rate of the host's link into the switch, Rate the one out of it; 0
	// takes no time. Bytes are those of the Ethernet frame without its checksum.
	In, Rate congestion.BitRate
	// Delay is how long a frame is under way after it has left the queue.
	Delay time.Duration
	// Limit bounds the queue, in bytes; 0 leaves it to the number of frames.
	Limit int
	// Kmin and Kmax, in bytes, and Pmax are RED's: the share of IP packets that
	// are marked grows from 0 at Kmin to Pmax at Kmax; above it all are, and
	// those that may not be marked are dropped. Kmax 0: no RED.
	Kmin, Kmax int
	Pmax       float64
	// Loss is the share of RoCE packets that vanish before the queue.
	Loss float64
	// Reorder is the share of RoCE packets that are held back after the queue
	// until ReorderBy others have gone past, or would have at the port's rate: a
	// longer way takes longer, but does not wait for company.
	Reorder   float64
	ReorderBy int
}

// Counts are what a port has done.
type Counts struct {
	Frames, Bytes  uint64 // that have left the queue
	CNPs           uint64 // among them
	Marked         uint64
	Lost           uint64 // by chance
	DroppedFull    uint64 // no room in the queue
	DroppedRED     uint64 // above Kmax, and not to be marked
	Held, Overtook uint64 // frames held back, and the most that went past one
}

// line sends frames one after the other at a rate.
type line struct {
	rate  congestion.BitRate
	queue fifo
	bytes int // in the queue, with the one that is being sent
	free  time.Duration
	frac  float64 // of a nanosecond
}

// accept takes a frame at a time not before the last one's.
func (l *line) accept(now time.Duration, f *frame) {
	f.at = max(now, l.free)
	if l.rate > 0 {
		whole, frac := math.Modf(l.rate.Time(len(f.data)) + l.frac)
		f.at, l.frac = f.at+time.Duration(whole), frac
	}
	l.free = f.at
	l.bytes += len(f.data)
	l.queue.push(f)
}

func (l *line) pop() *frame {
	f := l.queue.pop()
	l.bytes -= len(f.data)
	return f
}

// port is one port of the switch.
type port struct {
	Conditions
	Counts
	in, out line
	held    []heldFrame
	wire    fifo // on the way to the host
	rng     *rand.Rand
	record  record
}

type heldFrame struct {
	*frame
	past  int
	until time.Duration
}

// enqueue takes a frame that is to leave by the port. It returns false if the frame
// is dropped.
func (p *port) enqueue(now time.Duration, f *frame) bool {
	switch {
	case f.kind != other && p.Loss > 0 && p.rng.Float64() < p.Loss:
		p.Lost++
		return false
	case p.Limit > 0 && p.out.bytes+len(f.data) > p.Limit:
		p.DroppedFull++
		return false
	case !p.red(f):
		p.DroppedRED++
		return false
	}
	p.record.until(now, p.out.bytes)
	p.out.accept(now, f)
	return true
}

// red marks the frame if the queue says so. It returns false for a frame to be
// dropped instead.
func (p *port) red(f *frame) bool {
	bits, ip := ecn(f.data)
	share := p.share(p.out.bytes)
	if !ip || share == 0 || bits == markCE || share < 1 && p.rng.Float64() >= share {
		return true
	}
	if bits == notECT {
		return share < 1
	}
	mark(f.data)
	p.Marked++
	return true
}

// share returns the share of packets that a queue of so many bytes marks.
func (p *port) share(queue int) float64 {
	switch {
	case p.Kmax == 0 || queue <= p.Kmin:
		return 0
	case queue > p.Kmax:
		return 1
	}
	return p.Pmax * float64(queue-p.Kmin) / float64(p.Kmax-p.Kmin)
}

// leave takes the frame that the line has sent from the queue to the wire, ahead of
// it those that were held for too long, after it those that it was the last to
// overtake.
func (p *port) leave() {
	p.record.until(p.out.queue.first().at, p.out.bytes)
	f := p.out.pop()
	now := f.at
	p.Frames++
	p.Bytes += uint64(len(f.data))
	p.record.sent(f)
	if f.kind == cnp {
		p.CNPs++
	}
	p.release(now)
	if f.kind == other || p.Reorder == 0 || p.ReorderBy == 0 {
		p.send(now, f)
		return
	}
	if p.rng.Float64() < p.Reorder {
		p.Held++
		p.held = append(p.held, heldFrame{f, 0, now + p.detour(len(f.data))})
		return
	}
	p.send(now, f)
	for i := range p.held {
		p.held[i].past++
	}
	p.release(now)
}

// detour returns how long a frame is held at most.
func (p *port) detour(bytes int) time.Duration {
	if p.Rate == 0 {
		return time.Millisecond
	}
	return time.Duration(float64(p.ReorderBy) * p.Rate.Time(bytes) * 1.2)
}

// release sends the held frames whose time has come.
func (p *port) release(now time.Duration) {
	keep := p.held[:0]
	for _, h := range p.held {
		if h.past < p.ReorderBy && now < h.until {
			keep = append(keep, h)
			continue
		}
		p.Overtook = max(p.Overtook, uint64(h.past))
		p.send(now, h.frame)
	}
	p.held = keep
}

// send puts a frame on the wire.
func (p *port) send(now time.Duration, f *frame) {
	f.at = now + p.Delay
	p.wire.push(f)
}

// next returns when the port has something to do next.
func (p *port) next() time.Duration {
	at := never
	for _, q := range []*fifo{&p.in.queue, &p.out.queue, &p.wire} {
		if f := q.first(); f != nil {
			at = min(at, f.at)
		}
	}
	for _, h := range p.held {
		at = min(at, h.until)
	}
	return at
}

const never = time.Duration(math.MaxInt64)

// fifo is a ring of frames that grows as it must.
type fifo struct {
	ring    []*frame
	head, n int
}

func (q *fifo) push(f *frame) {
	if q.n == len(q.ring) {
		ring := make([]*frame, max(256, 2*len(q.ring)))
		for i := range q.n {
			ring[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = f
	q.n++
}

func (q *fifo) first() *frame {
	if q.n == 0 {
		return nil
	}
	return q.ring[q.head]
}

func (q *fifo) pop() *frame {
	f := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	return f
}
