package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/bth"
)

// Link sends and receives packets for one local address. All methods except
// Wait and Wake belong to one owner at a time; Wait may run while another
// goroutine sends, and Wake may be called at any time.
type Link interface {
	// Info describes the link.
	Info() Info
	// Receive returns the datagrams that have arrived, at most a burst, without
	// blocking. They are valid until the next Receive. Packets with a bad ICRC
	// are counted and not returned.
	Receive() []bth.Datagram
	// Send seals and sends all frames of a burst. What cannot be sent is
	// counted and lost, like a packet on a wire; Send does not block beyond a
	// few milliseconds.
	Send(b *bth.Burst)
	// Wait returns when datagrams can be received, after Wake, or when timeout
	// has passed; a negative timeout is none. At most one call for each Waiter
	// may be running.
	Wait(who Waiter, timeout time.Duration)
	// Wake ends the Wait of each Waiter, or its next one if none is running.
	Wake()
	// Join makes the link receive the datagrams of a multicast group, Leave ends
	// that. Groups are counted: each Join needs its Leave.
	Join(group netip.Addr) error
	Leave(group netip.Addr) error
	// Counters calls f with the name and value of each statistic.
	Counters(f func(name string, value uint64))
	// Close releases the link. No other call may be running or follow, but for a
	// Wake, which does nothing then.
	Close() error
}

// Waiter is who may wait on a link. Each has a doorbell of its own: one that both
// listened to would be heard by either.
type Waiter int

const (
	ForLoop   Waiter = iota // the event loop
	ForCaller               // a caller that takes its place
	waiters
)

// Info describes a link.
type Info struct {
	Addr netip.Addr // local address
	// SrcPorts are the UDP source ports that packets can leave from, a power
	// of two of them; a frame's Path names one.
	SrcPorts []uint16
	// Socket buffers as granted, in bytes as the kernel accounts them (about
	// twice the payload); 0 where there is none.
	RecvBuffer, SendBuffer int
	// Kind says how packets are moved, e.g. "socket", "packet ring" or "portable socket".
	Kind string
	// NoTrafficClass: the traffic class of packets, and so ECN, is neither
	// sent nor seen.
	NoTrafficClass bool
	// GSO is how many packets of equal size the kernel takes as one when they
	// are sent (UDP_SEGMENT), 1 if it does not. GRO: it hands them over the
	// same way.
	GSO int
	GRO bool
}

// onePort are the source ports of a link that sends from its own port only.
var onePort = []uint16{bth.Port}

// Config is what Open needs. Only Addr is required.
type Config struct {
	Addr netip.Addr // local unicast address, with zone if link-local
	// RecvBuffer and SendBuffer are the socket buffer sizes to ask for, in
	// bytes: default 8 MiB and 4 MiB. The system may grant less; see Info.
	RecvBuffer, SendBuffer int
	// Portable uses net.UDPConn even where a faster way exists.
	Portable bool
	// Ring receives through a packet socket's ring: no system call for each look,
	// so a caller that polls sees a packet sooner. It needs CAP_NET_RAW and Linux
	// 6.2, see ErrRing, passes by the host's firewall, and takes 9 MiB of the
	// kernel's memory, or as RecvBuffer asks for. So does GOROCE_RING=1.
	Ring bool
	// NoGSO and NoGRO leave segmentation offload unused, sending and
	// receiving; so do the environment variables GOROCE_GSO=0 and
	// GOROCE_GRO=0. Linux only.
	NoGSO, NoGRO bool
	// SrcPorts is how many UDP source ports to send from, rounded up to a
	// power of two, at most 64. Switches and network cards spread flows by
	// them. 1 is port 4791 alone; more are taken from 0xC000…0xFFFF. Default 1
	// on loopback addresses, where there is nothing to spread, else 4. Linux
	// only: elsewhere it is 1.
	SrcPorts int
}

// The defaults of Config.
const (
	DefaultRecvBuffer = 8 << 20
	DefaultSendBuffer = 4 << 20
)

// burstSize is how many packets a link receives at a time.
const burstSize = 64

// maxPacket is the longest packet that can come: a path MTU of 4096 and all
// headers. Longer datagrams are counted and dropped.
const maxPacket = 4096 + bth.MaxHeaderLen + 3 + bth.ICRCLen

// InUseError reports that the address's port 4791 is taken.
type InUseError struct {
	Addr netip.AddrPort
	// Holder names who holds the port, as far as can be told.
	Holder string
	Err    error
}

// Error implements error. It says who holds the port and what to do.
func (e *InUseError) Error() string {
	return fmt.Sprintf("udp: UDP port 4791 of %v is in use: %s", e.Addr.Addr(), e.Holder)
}

// Unwrap returns the system's error.
func (e *InUseError) Unwrap() error { return e.Err }

// ErrMulticast is returned by Join where a link cannot receive multicast.
var ErrMulticast = errors.New("udp: this link does not receive multicast; on Linux the default socket does")

// ErrRing is why there is no packet ring, if that is what was asked for.
var ErrRing = errors.New("a packet ring needs Linux 6.2 and the right to open packet sockets (CAP_NET_RAW: root, or `setcap cap_net_raw+ep` on the program)")

var errAddr = errors.New("udp: Config.Addr is missing or not a unicast address; `roce info` lists the usable ones")

// Open binds UDP port 4791 of an address.
func Open(c Config) (Link, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	switch {
	case c.Portable && c.Ring:
		return nil, fmt.Errorf("udp: Config.Portable and Config.Ring exclude each other: %w", ErrRing)
	case c.Portable:
		return openPortable(c)
	}
	return openNative(c)
}

func (c *Config) fill() error {
	if !c.Addr.IsValid() || c.Addr.IsUnspecified() || c.Addr.IsMulticast() {
		return errAddr
	}
	c.Addr = c.Addr.Unmap()
	if c.RecvBuffer == 0 {
		c.RecvBuffer = DefaultRecvBuffer
	}
	if c.SendBuffer == 0 {
		c.SendBuffer = DefaultSendBuffer
	}
	if c.SrcPorts == 0 {
		c.SrcPorts = defaultSrcPorts
		if c.Addr.IsLoopback() {
			c.SrcPorts = 1
		}
	}
	c.SrcPorts = powerOfTwo(c.SrcPorts, maxSrcPorts)
	return nil
}

const (
	defaultSrcPorts = 4
	maxSrcPorts     = 64
	maxShards       = 64
)

// powerOfTwo rounds n up to a power of two, at least 1 and at most limit.
func powerOfTwo(n, limit int) int {
	p := 1
	for p < n && p < limit {
		p *= 2
	}
	return p
}

// OpenShards opens several links on one address, a power of two and at least n.
// The kernel gives a packet to the link with the index of its destination QPN
// modulo their number, except where it has coalesced it with others: expect
// strays. Where the system cannot do that, there is one link.
func OpenShards(c Config, n int) ([]Link, error) {
	if n = powerOfTwo(n, maxShards); n > 1 && !c.Portable {
		return openNativeShards(c, n)
	}
	l, err := Open(c)
	return []Link{l}, err
}

// counter names one statistic of a link.
type counter uint8

const (
	txPackets counter = iota
	txBytes
	txErrors
	txBufferFull
	txSegmented
	txFallback
	rxPackets
	rxBytes
	rxBadICRC
	rxTooShort
	rxTruncated
	rxSolvedID
	rxQueueFull
	rxCoalesced
	rxSocketFull
	rxRingReset
	numCounters
)

var counterNames = [numCounters]string{
	txPackets: "link_tx_packets", txBytes: "link_tx_bytes", txErrors: "link_send_err", txBufferFull: "link_send_buffer_full",
	rxPackets: "link_rx_packets", rxBytes: "link_rx_bytes", rxBadICRC: "drop_icrc_error", rxTooShort: "drop_too_short", rxTruncated: "drop_too_long",
	rxSolvedID: "link_rx_nonzero_ip_id", rxQueueFull: "drop_link_queue_full",
	txSegmented: "link_tx_gso_runs", txFallback: "link_gso_fallbacks", rxCoalesced: "link_rx_gro_runs", rxSocketFull: "drop_socket_buffer_full",
	rxRingReset: "link_ring_resets",
}

type counters [numCounters]uint64

func (c *counters) each(f func(string, uint64)) {
	for i, v := range c {
		f(counterNames[i], v)
	}
}

// accept checks a received packet and, if it is good, completes d: its Data
// becomes BTH to pad. d has its addresses and, in Data, the UDP payload.
func (c *counters) accept(d *bth.Datagram) bool {
	var crc bth.HeaderCRC
	return c.acceptNear(d, &crc, 0)
}

// acceptNear is accept with what crc remembers, and a guess at the IPv4
// identification.
func (c *counters) acceptNear(d *bth.Datagram, crc *bth.HeaderCRC, guess uint16) bool {
	c[rxPackets]++
	c[rxBytes] += uint64(len(d.Data))
	if len(d.Data) < bth.BTHLen+bth.ICRCLen {
		c[rxTooShort]++
		return false
	}
	path := bth.Path{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort}
	id, ok := crc.Check(&path, d.Data, guess)
	if !ok {
		c[rxBadICRC]++
		return false
	}
	if id != guess {
		c[rxSolvedID]++
	}
	d.ID = id
	d.Data = d.Data[:len(d.Data)-bth.ICRCLen]
	return true
}
