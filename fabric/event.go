package fabric

import "time"

// An event is something that happens at a time, to an actor. Events at the same
// time happen in the order in which they were planned.
type event struct {
	at     time.Duration
	serial uint64
	actor  actor
	packet *packet
	kind   kind
}

type actor interface {
	act(k kind, p *packet)
}

type kind uint8

const (
	arrival  kind = iota // a packet has come over a link
	sent                 // the port has sent its packet
	timer                // of a host's engine
	pause                // the port may not send data
	resume               // and may again
	start                // of a flow
	sampling             // of a recorder
)

// events is a heap of events, the first one at 0. It allocates only to grow.
type events []event

func (h events) before(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}

func (h *events) push(e event) {
	*h = append(*h, e)
	l := *h
	for i := len(l) - 1; i > 0; {
		up := (i - 1) / 2
		if !l.before(i, up) {
			return
		}
		l[i], l[up] = l[up], l[i]
		i = up
	}
}

func (h *events) pop() event {
	l := *h
	first, last := l[0], len(l)-1
	l[0] = l[last]
	l[last] = event{}
	l = l[:last]
	*h = l
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(l) {
			return first
		}
		if c+1 < len(l) && l.before(c+1, c) {
			c++
		}
		if !l.before(c, i) {
			return first
		}
		l[i], l[c] = l[c], l[i]
		i = c
	}
}
