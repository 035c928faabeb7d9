package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/bth"
)

// portable is the link for systems without a faster one: net.UDPConn with a
// reading goroutine.
type portable struct {
	inbox
	info  Info
	conn  *net.UDPConn
	stats counters
	out   []byte
	done  chan struct{}
}

func openPortable(c Config) (Link, error) {
	at := netip.AddrPortFrom(c.Addr, bth.Port)
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, portableBindError(at, err)
	}
	dontFragment(conn, c.Addr.Is6()) // best effort: see the package comment
	_ = conn.SetReadBuffer(c.RecvBuffer)
	_ = conn.SetWriteBuffer(c.SendBuffer)
	p := &portable{
		inbox: newInbox(c.Addr.WithZone("")),
		info:  Info{Addr: c.Addr, SrcPorts: onePort, RecvBuffer: c.RecvBuffer, SendBuffer: c.SendBuffer, Kind: "portable socket", NoTrafficClass: true},
		conn:  conn,
		done:  make(chan struct{}),
	}
	go p.read()
	return p, nil
}

func portableBindError(at netip.AddrPort, err error) error {
	var sys *os.SyscallError
	// The text is the same on every system, the error number is not.
	if errors.As(err, &sys) && strings.Contains(strings.ToLower(sys.Err.Error()), "in use") || strings.Contains(err.Error(), "Only one usage") {
		return &InUseError{Addr: at, Holder: "another RoCE program holds it; stop that program or use another address of this host", Err: err}
	}
	return fmt.Errorf("udp: cannot bind %v; `roce info` lists the usable addresses: %w", at, err)
}

// read moves datagrams into the inbox until the socket is closed.
func (p *portable) read() {
	defer close(p.done)
	buf := make([]byte, slotBytes)
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			afterReceive()
			p.put(from.Addr().Unmap().WithZone(""), p.local, from.Port(), 0, buf[:n])
		}
	}
}

// Info implements Link.
func (p *portable) Info() Info { return p.info }

// Counters implements Link.
func (p *portable) Counters(f func(string, uint64)) {
	p.stats[rxQueueFull] = p.full.Load()
	p.stats.each(f)
}

// Receive implements Link.
func (p *portable) Receive() []bth.Datagram { return p.take(&p.stats) }

// Send implements Link.
func (p *portable) Send(b *bth.Burst) {
	beforeSend()
	for i := range b.Frames() {
		f := &b.Frames()[i]
		f.Seal(0)
		p.out = f.AppendTo(p.out[:0])
		if _, err := p.conn.WriteToUDPAddrPort(p.out, netip.AddrPortFrom(f.Path.Dst, bth.Port)); err != nil {
			p.stats[txErrors]++
			continue
		}
		p.stats[txPackets]++
		p.stats[txBytes] += uint64(len(p.out))
	}
}

// Join implements Link.
func (p *portable) Join(netip.Addr) error { return ErrMulticast }

// Leave implements Link.
func (p *portable) Leave(netip.Addr) error { return ErrMulticast }

// Close implements Link.
func (p *portable) Close() error {
	err := p.conn.Close()
	<-p.done
	return err
}

// inbox is a bounded queue of received packets with a doorbell, for links whose
// packets come from another goroutine.
type inbox struct {
	local netip.Addr
	bells *bells
	full  atomic.Uint64

	mu         sync.Mutex
	slots      []slot
	head, tail int

	taken [burstSize]slot
	out   [burstSize]bth.Datagram
}

type slot struct {
	src   netip.Addr
	dst   netip.Addr
	port  uint16
	tc    uint8
	n     int
	bytes []byte
}

const (
	inboxSize = 4096
	slotBytes = 65536 // of the reading buffer: to notice what is too long
)

func newInbox(local netip.Addr) inbox {
	return inbox{local: local, bells: newBells(), slots: make([]slot, inboxSize)}
}

// put copies a packet in, or counts it as lost when the inbox is full.
func (b *inbox) put(src, dst netip.Addr, port uint16, tc uint8, packet []byte) {
	b.mu.Lock()
	if b.tail-b.head == len(b.slots) {
		b.mu.Unlock()
		b.full.Add(1)
		return
	}
	s := &b.slots[b.tail%len(b.slots)]
	s.src, s.dst, s.port, s.tc, s.n = src, dst, port, tc, len(packet)
	s.bytes = append(s.bytes[:0], packet[:min(len(packet), maxPacket)]...)
	b.tail++
	b.mu.Unlock()
	b.Wake()
}

// take returns a burst of checked datagrams.
func (b *inbox) take(c *counters) []bth.Datagram {
	b.mu.Lock()
	n := min(b.tail-b.head, burstSize)
	for i := range n {
		// Exchange, so that the writer may reuse the queue's slot at once.
		s := &b.slots[(b.head+i)%len(b.slots)]
		b.taken[i], *s = *s, b.taken[i]
	}
	b.head += n
	b.mu.Unlock()
	good := 0
	for i := range n {
		s, d := &b.taken[i], &b.out[good]
		if s.n > maxPacket {
			c[rxPackets]++
			c[rxTruncated]++
			continue
		}
		*d = bth.Datagram{Src: s.src, Dst: s.dst, SrcPort: s.port, TrafficClass: s.tc, HopLimit: defaultHopLimit, Data: s.bytes}
		if c.accept(d) {
			good++
		}
	}
	return b.out[:good]
}

const defaultHopLimit = 64

// Wait implements Link.
func (b *inbox) Wait(who Waiter, timeout time.Duration) {
	b.mu.Lock()
	waiting := b.tail > b.head
	b.mu.Unlock()
	if waiting || timeout == 0 {
		return
	}
	b.bells.wait(who, timeout)
}

// Wake implements Link.
func (b *inbox) Wake() { b.bells.ring() }

// bells wake those who wait on a link.
type bells [waiters]chan struct{}

func newBells() *bells {
	b := new(bells)
	for i := range b {
		b[i] = make(chan struct{}, 1)
	}
	return b
}

// ring ends the waits that are running, and the next one of each bell.
func (b *bells) ring() {
	for _, rung := range b {
		select {
		case rung <- struct{}{}:
		default:
		}
	}
}

func (b *bells) wait(who Waiter, timeout time.Duration) {
	if timeout < 0 {
		<-b[who]
		return
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-b[who]:
	case <-t.C:
	}
}
