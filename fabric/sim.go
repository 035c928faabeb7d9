package fabric

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
)

// Sim is a fabric and its clock. It is not safe for concurrent use; several
// may run at a time.
type Sim struct {
	Hosts    []*Host
	Switches []*Switch
	Flows    []*Flow

	now    time.Duration
	serial uint64
	events events
	rng    *rand.Rand
	byAddr map[netip.Addr]*Host
	free   []*packet
}

// New returns an empty fabric whose choices follow from seed.
func New(seed uint64) *Sim {
	return &Sim{rng: rand.New(rand.NewPCG(seed, 0xfab41c)), byAddr: map[netip.Addr]*Host{}}
}

// Now returns the virtual time.
func (s *Sim) Now() time.Duration { return s.now }

// Rand returns the fabric's source of chance.
func (s *Sim) Rand() *rand.Rand { return s.rng }

// Run lets time pass until a time.
func (s *Sim) Run(until time.Duration) {
	for len(s.events) > 0 && s.events[0].at <= until {
		e := s.events.pop()
		s.now = e.at
		e.actor.act(e.kind, e.packet)
	}
	s.now = max(s.now, until)
}

// at plans an event.
func (s *Sim) at(t time.Duration, a actor, k kind, p *packet) {
	s.events.push(event{at: t, serial: s.serial, actor: a, packet: p, kind: k})
	s.serial++
}

// packet is a packet on its way.
type packet struct {
	data    []byte // BTH to pad
	path    bth.Path
	to      *Host
	from    *Port // over whose link it came
	length  int   // of the IP packet
	control bool  // a CNP: it has priority, and no pause stops it
}

// overhead returns how much longer an IP packet is than its BTH, payload and pad.
func overhead(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8 + bth.ICRCLen
	}
	return 40 + 8 + bth.ICRCLen
}

// packet makes a packet of a frame.
func (s *Sim) packet(f *bth.Frame) *packet {
	var p *packet
	if n := len(s.free); n > 0 {
		p, s.free = s.free[n-1], s.free[:n-1]
	} else {
		p = new(packet)
	}
	pad := f.Len() - len(f.Header()) - len(f.Payload) - bth.ICRCLen
	p.data = append(append(append(p.data[:0], f.Header()...), f.Payload...), make([]byte, pad)...)
	p.path, p.to, p.from = *f.Path, s.byAddr[f.Path.Dst], nil
	p.length = len(p.data) + overhead(f.Path.Dst)
	p.control = bth.Opcode(p.data[0]) == bth.CNP
	if p.to == nil {
		panic(fmt.Sprintf("fabric: a packet to %v, which is no host", f.Path.Dst))
	}
	return p
}

func (s *Sim) release(p *packet) { s.free = append(s.free, p) }

// never is later than everything.
const never = time.Duration(math.MaxInt64)

// Link describes a link, both ways.
type Link struct {
	Rate  congestion.BitRate
	Delay time.Duration // of propagation
}

// connect lays a link between two nodes and returns the ports at its ends.
func (s *Sim) connect(a, b node, l Link) (pa, pb *Port) {
	pa, pb = &Port{sim: s, owner: a, peer: b, Link: l}, &Port{sim: s, owner: b, peer: a, Link: l}
	a.attach(pa)
	b.attach(pb)
	return pa, pb
}

// node is a host or a switch.
type node interface {
	attach(p *Port)
	receive(p *packet)
	// left tells that a packet of this node has left through the port.
	left(port *Port, p *packet)
}

// Connect lays a link between two switches and returns their ports, the first
// one's first.
func (s *Sim) Connect(a, b *Switch, l Link) (pa, pb *Port) { return s.connect(a, b, l) }

// Route finds the shortest ways from all switches to all hosts. Call it when the
// fabric is complete.
func (s *Sim) Route() {
	for _, sw := range s.Switches {
		clear(sw.routes)
	}
	for _, h := range s.Hosts {
		// From the host's switch outwards; of equal ways the first one found.
		todo := []node{h}
		for len(todo) > 0 {
			n := todo[0]
			todo = todo[1:]
			for _, sw := range s.Switches {
				for _, p := range sw.Ports {
					if p.peer == n && sw.routes[h] == nil {
						sw.routes[h] = p
						todo = append(todo, sw)
					}
				}
			}
		}
	}
}
