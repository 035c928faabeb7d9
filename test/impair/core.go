package main

import (
	"math/rand/v2"
	"time"
)

// core is the switch without its sockets: frames come in with the time, and lie on
// the wires when they have to go out.
type core struct {
	ports []*port
	macs  map[[6]byte]int
	free  []*frame // not in use
	size  int      // of a frame
	made  int
	// NoFrame counts frames dropped since all were in use.
	NoFrame uint64
}

const (
	maxFrames = 8192
	maxMACs   = 1024
)

func newCore(ports, frameSize int) *core {
	c := &core{macs: make(map[[6]byte]int), size: frameSize}
	for range ports {
		c.ports = append(c.ports, &port{})
	}
	c.reset(0, 0, nil)
	return c
}

// reset sets the conditions of all ports, those that are missing to none, and
// starts the counts anew. What waits in queues stays there.
func (c *core) reset(now time.Duration, seed uint64, conds []Conditions) {
	c.NoFrame = 0
	for i, p := range c.ports {
		p.Conditions, p.Counts = Conditions{}, Counts{}
		if i < len(conds) {
			p.Conditions = conds[i]
		}
		p.in.rate, p.out.rate = p.In, p.Rate
		p.rng = rand.New(rand.NewPCG(seed, uint64(i)))
		p.record = newRecord(now, len(c.ports))
	}
}

// mark starts counts and summaries anew.
func (c *core) mark() {
	for _, p := range c.ports {
		p.Counts = Counts{}
		p.record.hist, p.record.most = nil, 0
	}
}

// take returns an unused frame, nil if there is none.
func (c *core) take() *frame {
	if n := len(c.free); n > 0 {
		f := c.free[n-1]
		c.free = c.free[:n-1]
		return f
	}
	if c.made == maxFrames {
		return nil
	}
	c.made++
	return &frame{buf: make([]byte, c.size)}
}

func (c *core) give(f *frame) { c.free = append(c.free, f) }

// arrive takes a frame that a host has sent, and owns it from then on. Times never
// decrease.
func (c *core) arrive(now time.Duration, from int, f *frame) {
	f.in, f.kind = from, classify(f.data)
	c.ports[from].in.accept(now, f)
}

// advance lets everything happen that happens until now, in its order.
func (c *core) advance(now time.Duration) {
	for {
		at, from, leaving := now, -1, false
		for i, p := range c.ports {
			if f := p.in.queue.first(); f != nil && f.at <= at {
				at, from, leaving = f.at, i, false
			}
			if f := p.out.queue.first(); f != nil && f.at <= at {
				at, from, leaving = f.at, i, true
			}
		}
		switch {
		case from < 0:
			for _, p := range c.ports {
				p.release(now)
				p.record.until(now, p.out.bytes)
			}
			return
		case leaving:
			c.ports[from].leave()
		default:
			c.forward(at, c.ports[from].in.pop())
		}
	}
}

// forward puts a frame into the queues that it has to go to.
func (c *core) forward(now time.Duration, f *frame) {
	if len(f.data) < ethLen {
		c.give(f)
		return
	}
	dst, src := [6]byte(f.data[:6]), [6]byte(f.data[6:12])
	if len(c.macs) < maxMACs {
		c.macs[src] = f.in
	}
	to, known := c.macs[dst]
	if dst[0]&1 == 0 && known {
		if to == f.in || !c.ports[to].enqueue(now, f) {
			c.give(f)
		}
		return
	}
	for i, p := range c.ports {
		if i == f.in {
			continue
		}
		if g := c.clone(f); g != nil && !p.enqueue(now, g) {
			c.give(g)
		}
	}
	c.give(f)
}

func (c *core) clone(f *frame) *frame {
	g := c.take()
	if g == nil {
		c.NoFrame++
		return nil
	}
	g.data, g.in, g.kind = append(g.buf[:0], f.data...), f.in, f.kind
	return g
}

// next returns when there is something to do next.
func (c *core) next() time.Duration {
	at := never
	for _, p := range c.ports {
		at = min(at, p.next())
	}
	return at
}
