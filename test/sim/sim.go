// Package sim connects protocol engines by a simulated network in virtual time.
//
// Everything is decided by one seed: which packets are lost, doubled, delayed,
// overtaken or corrupted. The same seed gives the same run, and hours of
// protocol time take milliseconds.
package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// Faults are the probabilities, per packet, of what a network does wrong.
type Faults struct {
	Loss, Duplicate, Reorder, Corrupt, Mark float64
	// Delay is the time a packet takes; a reordered one takes up to Jitter more.
	Delay, Jitter time.Duration
	// Rate is what each host's link carries, in bits per second, 0 for no limit:
	// packets wait for it in a queue without end. With it, a packet in Displace
	// of all is delayed by the time of DisplaceBy packets of its length, besides
	// those of Reorder.
	Rate       float64
	Displace   float64
	DisplaceBy int
}

// wireOverhead is what a packet takes on an Ethernet besides what is between
// BTH and ICRC: preamble and gap, MAC header and FCS, IPv4, UDP.
const wireOverhead = 20 + 18 + 20 + 8

// Net is the network and its clock.
type Net struct {
	Faults Faults
	// Filter, if set, sees every packet before the faults and may take it away
	// (return false). It may change the bytes, but not the length.
	Filter func(from *Host, packet []byte) bool
	// Trace, if set, sees every packet that is sent.
	Trace func(at time.Duration, from *Host, p *bth.Packet, lost bool)
	// Copied, if set, learns how many copies of a packet are on their way.
	Copied func(packet []byte, copies int)

	Seed   uint64
	rng    *rand.Rand
	now    time.Duration
	hosts  map[netip.Addr]*Host
	order  []*Host
	queue  deliveries
	serial uint64
	// BadICRC counts packets that a host refused as corrupt.
	BadICRC uint64
	// Recovery is how the hosts added from now on repair losses.
	Recovery transport.Recovery
	// PeerWindow is how many packets the pairs of a host added from now on may
	// have unanswered at one peer, see transport.Config.
	PeerWindow int
}

// Host is one engine with memory.
type Host struct {
	*transport.Engine
	Addr   netip.Addr
	Keys   *mr.Table
	PD     *mr.Domain
	Events []transport.Event
	net    *Net
	burst  *bth.Burst
	paused time.Duration // until then the host stands still
	sentAt time.Duration // when the last packet will have left
}

// New returns an empty network whose choices follow from seed.
func New(seed uint64, f Faults) *Net {
	return &Net{Faults: f, Seed: seed, rng: rand.New(rand.NewPCG(seed, 0x601d)), hosts: map[netip.Addr]*Host{}}
}

// Rand returns the network's source of randomness.
func (n *Net) Rand() *rand.Rand { return n.rng }

// Now returns the virtual time.
func (n *Net) Now() time.Duration { return n.now }

// AddHost adds a host whose queue pairs have the given window in packets.
func (n *Net) AddHost(window int) *Host {
	return n.AddHostWith(func(int) congestion.Controller { return congestion.Fixed(window) })
}

// AddHostWith adds a host whose queue pairs have congestion control.
func (n *Net) AddHostWith(f congestion.Factory) *Host {
	h := &Host{Addr: netip.AddrFrom4([4]byte{198, 18, 0, byte(len(n.order) + 1)}), net: n, burst: bth.NewBurst(8, 4096)}
	h.Keys = mr.NewTable(1<<16, n.rng.Uint32)
	h.PD = h.Keys.NewDomain()
	h.Engine = transport.New(transport.Config{
		Local: h.Addr, SrcPorts: []uint16{bth.Port}, Random: n.rng.Uint32, MaxQP: 1 << 16, PortMTU: 4096,
		Congestion: f, Recovery: n.Recovery, PeerWindow: n.PeerWindow,
		OnEvent: func(e transport.Event) { h.Events = append(h.Events, e) },
	})
	n.hosts[h.Addr] = h
	n.order = append(n.order, h)
	return h
}

// Pause makes the host stand still for d: it sends nothing, its timers do not
// run, and what arrives waits.
func (h *Host) Pause(d time.Duration) { h.paused = max(h.paused, h.net.now+d) }

// Link describes one side of a connection: see Connect.
type Link struct {
	MTU                          int
	PSN                          bth.PSN // first one sent
	Access                       mr.Access
	MaxRDAtomic, MaxDestRDAtomic uint8
	Timeout, Retry, RNRRetry     uint8
	MinRNRTimer                  uint8
}

// DefaultLink has the attributes of the standard tools and all rights.
func DefaultLink() Link {
	return Link{MTU: 1024, Access: mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic,
		MaxRDAtomic: 4, MaxDestRDAtomic: 4, Timeout: 14, Retry: 7, RNRRetry: 7, MinRNRTimer: 12}
}

// NewQP creates an RC queue pair with completion queues of its own.
func (h *Host) NewQP(c qp.Config) *transport.QP {
	c.Type = qp.RC
	if c.SendCQ == nil {
		c.SendCQ = cq.New(1024, nil)
	}
	if c.RecvCQ == nil {
		c.RecvCQ = cq.New(1024, nil)
	}
	q, err := h.Create(h.PD, c)
	if err != nil {
		panic(err)
	}
	return q
}

// Connect moves a and b to RTS, facing each other.
func Connect(ha *Host, a *transport.QP, la Link, hb *Host, b *transport.QP, lb Link) error {
	if err := ha.connect(a, la, hb, b, lb); err != nil {
		return err
	}
	return hb.connect(b, lb, ha, a, la)
}

func (h *Host) connect(q *transport.QP, l Link, peer *Host, pq *transport.QP, pl Link) error {
	a := qp.Attr{
		State: qp.Init, Port: 1, Access: l.Access,
		AV: qp.AddressVector{DGID: peer.Addr}, PathMTU: l.MTU, DestQPN: pq.QPN, RQPSN: pl.PSN, SQPSN: l.PSN,
		MaxRDAtomic: l.MaxRDAtomic, MaxDestRDAtomic: l.MaxDestRDAtomic, MinRNRTimer: l.MinRNRTimer,
		Timeout: l.Timeout, RetryCount: l.Retry, RNRRetry: l.RNRRetry,
	}
	for _, step := range []struct {
		to   qp.State
		mask qp.AttrMask
	}{
		{qp.Init, qp.AttrPKeyIndex | qp.AttrPort | qp.AttrAccess},
		{qp.RTR, qp.AttrAV | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRDAtomic | qp.AttrMinRNRTimer},
		{qp.RTS, qp.AttrTimeout | qp.AttrRetryCount | qp.AttrRNRRetry | qp.AttrSQPSN | qp.AttrMaxRDAtomic},
	} {
		a.State = step.to
		if err := h.Modify(h.net.now, q, &a, qp.AttrState|step.mask); err != nil {
			return err
		}
	}
	return nil
}

// Post posts a send work request at the present time.
func (h *Host) Post(q *transport.QP, wr *qp.SendWR) error { return h.PostSend(q, wr) }

// Run lets time pass until done, which may post work, reports true. It fails
// when nothing more can happen or when virtual time reaches limit.
func (n *Net) Run(limit time.Duration, done func() bool) error {
	for idle := 0; ; {
		n.transmit()
		if done() {
			return nil
		}
		n.transmit()
		if n.step() {
			idle = 0
		} else if n.now, idle = n.now+idleStep, idle+1; idle == maxIdle {
			return fmt.Errorf("seed %d: nothing is left to happen at %v, and the run is not done", n.Seed, n.now)
		}
		if n.now > limit {
			return fmt.Errorf("seed %d: not done after %v", n.Seed, limit)
		}
	}
}

// An idle network lets time pass in small steps, so that done may do something
// later; after many of them nothing will happen.
const (
	idleStep = 100 * time.Microsecond
	maxIdle  = 100
)

// RunFor lets time pass for d.
func (n *Net) RunFor(d time.Duration) {
	end := n.now + d
	for n.transmit(); n.next() <= end && n.step(); n.transmit() {
	}
	n.now = end
}

// transmit sends what all engines have.
func (n *Net) transmit() {
	for _, h := range n.order {
		for h.paused <= n.now {
			h.burst.Reset()
			h.Transmit(n.now, h.burst)
			for i := range h.burst.Frames() {
				n.send(h, &h.burst.Frames()[i])
			}
			if !h.Pending() {
				break
			}
		}
	}
}

func (n *Net) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }

func (n *Net) send(h *Host, f *bth.Frame) {
	f.Seal(0)
	b := f.AppendTo(nil)
	leaves, takes := n.now, time.Duration(0)
	if n.Faults.Rate > 0 {
		takes = time.Duration(float64(8*(len(b)+wireOverhead)) / n.Faults.Rate * 1e9)
		leaves = max(n.now, h.sentAt) + takes
		h.sentAt = leaves
	}
	lost := n.Filter != nil && !n.Filter(h, b) || n.chance(n.Faults.Loss)
	if n.Trace != nil {
		var p bth.Packet
		if p.Parse(b[:len(b)-bth.ICRCLen]) == nil {
			n.Trace(n.now, h, &p, lost)
		}
	}
	if lost {
		return
	}
	copies := 1
	if n.chance(n.Faults.Duplicate) {
		copies = 2
	}
	if n.Copied != nil {
		n.Copied(b, copies)
	}
	for range copies {
		d := &delivery{at: leaves + n.Faults.Delay, path: *f.Path, bytes: b, serial: n.serial}
		n.serial++
		if n.chance(n.Faults.Reorder) && n.Faults.Jitter > 0 {
			d.at += time.Duration(n.rng.Int64N(int64(n.Faults.Jitter)))
		}
		if n.chance(n.Faults.Displace) {
			d.at += takes*time.Duration(n.Faults.DisplaceBy) + takes/2
		}
		if n.chance(n.Faults.Corrupt) {
			d.bytes = append([]byte(nil), b...)
			d.bytes[n.rng.IntN(len(b))] ^= byte(1 << n.rng.IntN(8))
		}
		if n.chance(n.Faults.Mark) {
			d.path.TrafficClass |= 3
		}
		heap.Push(&n.queue, d)
	}
}

// next returns when the next thing happens.
func (n *Net) next() time.Duration {
	at := time.Duration(1<<63 - 1)
	if len(n.queue) > 0 {
		at = n.queue[0].at
	}
	for _, h := range n.order {
		if t, ok := h.Deadline(); ok {
			at = min(at, max(t, h.paused))
		}
		if h.paused > n.now {
			at = min(at, h.paused)
		}
	}
	return at
}

// step moves the clock to the next thing that happens and lets it happen.
func (n *Net) step() bool {
	at := n.next()
	if at == 1<<63-1 {
		return false
	}
	n.now = max(n.now, at)
	for len(n.queue) > 0 && n.queue[0].at <= n.now {
		n.deliver(heap.Pop(&n.queue).(*delivery))
	}
	for _, h := range n.order {
		if h.paused <= n.now {
			h.Timers(n.now)
		}
	}
	return true
}

// deliver checks a packet's ICRC as a link does and hands it to its host.
func (n *Net) deliver(d *delivery) {
	h := n.hosts[d.path.Dst]
	if h == nil {
		return
	}
	if h.paused > n.now {
		d.at = h.paused
		heap.Push(&n.queue, d)
		return
	}
	body := d.bytes[:len(d.bytes)-bth.ICRCLen]
	// The simulated link knows the identification to be 0: all 32 bits check.
	if got := bth.AppendICRC(nil, d.path.ICRC(0, body, nil, 0)); string(got) != string(d.bytes[len(body):]) {
		n.BadICRC++
		return
	}
	h.Receive(n.now, &bth.Datagram{Src: d.path.Src, Dst: d.path.Dst, SrcPort: d.path.SrcPort, TrafficClass: d.path.TrafficClass, Data: body})
}

type delivery struct {
	at     time.Duration
	serial uint64
	path   bth.Path
	bytes  []byte
}

// deliveries is a heap by time, then by the order of sending.
type deliveries []*delivery

func (d deliveries) Len() int { return len(d) }
func (d deliveries) Less(i, j int) bool {
	return d[i].at < d[j].at || d[i].at == d[j].at && d[i].serial < d[j].serial
}
func (d deliveries) Swap(i, j int) { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface.
func (d *deliveries) Push(x any) { *d = append(*d, x.(*delivery)) }

// Pop implements heap.Interface.
func (d *deliveries) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}
