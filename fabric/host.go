package fabric

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// HostConfig describes a host.
type HostConfig struct {
	Link       Link
	Congestion congestion.Factory
	CNP        congestion.NotificationPoint
	// MaxBatch bounds the batches of paced pairs, see transport.Config.
	MaxBatch int
}

// Host is an engine behind a port.
type Host struct {
	Engine *transport.Engine
	Port   *Port
	Addr   netip.Addr

	sim     *Sim
	pd      *mr.Domain
	mem     *mr.Region // source and sink of all flows
	burst   *bth.Burst
	in      bth.Datagram
	timerAt time.Duration
	sending []*Flow
	arrived map[bth.QPN]*Flow
}

// Flows transfer messages of this many bytes, of which several wait: the next
// one starts as soon as the window allows.
const (
	messageLen = 256 << 10
	messages   = 64
)

// backlog is how many packets a host hands to its port ahead of time.
const backlog = 4

// AddHost adds a host and links it to a switch.
func (s *Sim) AddHost(sw *Switch, c HostConfig) *Host {
	n := len(s.Hosts) + 1
	h := &Host{
		sim: s, Addr: netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}),
		burst: bth.NewBurst(backlog, 4096), timerAt: never, arrived: map[bth.QPN]*Flow{},
	}
	keys := mr.NewTable(1<<10, s.rng.Uint32)
	h.pd = keys.NewDomain()
	var err error
	if h.mem, err = h.pd.Register(make([]byte, messageLen), mr.LocalWrite|mr.RemoteWrite); err != nil {
		panic(err)
	}
	h.Engine = transport.New(transport.Config{
		Local: h.Addr, SrcPorts: []uint16{bth.Port}, Random: s.rng.Uint32, MaxQP: 1 << 16, PortMTU: 4096,
		Congestion: c.Congestion, CNP: c.CNP, MaxBatch: c.MaxBatch,
		OnEvent: func(transport.Event) {},
	})
	s.Hosts = append(s.Hosts, h)
	s.byAddr[h.Addr] = h
	s.connect(h, sw, c.Link)
	return h
}

func (h *Host) attach(p *Port) { h.Port = p }

// receive hands a packet to the engine.
func (h *Host) receive(k *packet) {
	if f := h.arrived[bth.QPN(uint32(k.data[5])<<16|uint32(k.data[6])<<8|uint32(k.data[7]))]; f != nil && !k.control {
		f.Arrived += uint64(k.length)
	}
	h.in = bth.Datagram{Src: k.path.Src, Dst: k.path.Dst, SrcPort: k.path.SrcPort, TrafficClass: k.path.TrafficClass, Data: k.data}
	h.Engine.Receive(h.sim.now, &h.in)
	h.sim.release(k)
	for _, f := range h.sending {
		f.repost()
	}
	h.pump()
}

func (h *Host) left(*Port, *packet) { h.pump() }

func (h *Host) act(kind, *packet) {
	if h.timerAt > h.sim.now {
		return // moved since
	}
	h.timerAt = never
	h.Engine.Timers(h.sim.now)
	h.pump()
}

// pump hands what the engine has to the port, but little ahead of time: a rate
// that changes then takes effect at once.
func (h *Host) pump() {
	for h.Port.data.n < backlog && h.Engine.Pending() {
		h.burst.Reset()
		h.Engine.Transmit(h.sim.now, h.burst)
		frames := h.burst.Frames()
		for i := range frames {
			h.Port.enqueue(h.sim.packet(&frames[i]))
		}
	}
	if at, ok := h.Engine.Deadline(); ok && at < h.timerAt {
		h.timerAt = max(at, h.sim.now)
		h.sim.at(h.timerAt, h, timer, nil)
	}
}

// Flow is a stream of RDMA WRITEs that never ends.
type Flow struct {
	From, To *Host
	QP       *transport.QP // of From
	Peer     *transport.QP // of To
	Start    time.Duration
	// Arrived is how many bytes of its packets have come to To, Completed how
	// many bytes of messages have been acknowledged.
	Arrived, Completed uint64
	// Failed is set when the connection has ended with an error.
	Failed bool

	running bool
	wr      qp.SendWR
	waiting int // messages posted
}

// AddFlow connects two hosts and starts the flow at a time.
func (s *Sim) AddFlow(from, to *Host, mtu int, at time.Duration) *Flow {
	f := &Flow{From: from, To: to, Start: at}
	f.QP, f.Peer = from.newQP(), to.newQP()
	f.wr = qp.SendWR{Op: qp.RDMAWrite, Flags: qp.Signaled, SGE: []mr.SGE{from.mem.SGE(0, messageLen)}, RemoteAddr: to.mem.Addr(), RKey: to.mem.Key()}
	s.join(from, f.QP, to, f.Peer, mtu)
	s.join(to, f.Peer, from, f.QP, mtu)
	to.arrived[f.Peer.QPN] = f
	from.sending = append(from.sending, f)
	s.Flows = append(s.Flows, f)
	s.at(at, f, start, nil)
	return f
}

func (f *Flow) act(kind, *packet) {
	f.running = true
	f.repost()
	f.From.pump()
}

// repost posts messages in place of those that are complete.
func (f *Flow) repost() {
	if !f.running || f.Failed {
		return
	}
	var wc [16]cq.WC
	for f.waiting > 0 {
		n := f.QP.SendCQ.Poll(wc[:])
		for _, c := range wc[:n] {
			f.waiting--
			if c.Status != cq.Success {
				f.Failed = true
				return
			}
			f.Completed += messageLen
		}
		if n < len(wc) {
			break
		}
	}
	if f.waiting == messages {
		return
	}
	for ; f.waiting < messages; f.waiting++ {
		if err := f.From.Engine.PostSend(f.QP, &f.wr); err != nil {
			panic(err) // the queue has room for them
		}
	}
}

func (h *Host) newQP() *transport.QP {
	q, err := h.Engine.Create(h.pd, qp.Config{Type: qp.RC, SendCQ: cq.New(2*messages, nil), RecvCQ: cq.New(16, nil), MaxSendWR: messages, MaxRecvWR: 1})
	if err != nil {
		panic(err)
	}
	return q
}

// join takes one end of a connection to RTS.
func (s *Sim) join(h *Host, q *transport.QP, peer *Host, pq *transport.QP, mtu int) {
	a := qp.Attr{
		Port: 1, Access: mr.RemoteWrite, AV: qp.AddressVector{DGID: peer.Addr}, PathMTU: mtu,
		DestQPN: pq.QPN, MaxRDAtomic: 1, MaxDestRDAtomic: 1, MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7,
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
		if err := h.Engine.Modify(s.now, q, &a, qp.AttrState|step.mask); err != nil {
			panic(fmt.Sprintf("fabric: %v", err))
		}
	}
}
