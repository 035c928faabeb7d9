package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// socket is the Linux link: an unconnected UDP socket of its own, never
// registered with the runtime's poller.
type socket struct {
	info  Info
	fd    int
	bell  int // eventfd
	zone  uint32
	v6    bool
	stats counters
	rx    receiveRing
	tx    sendRing

	groups []*groupSocket
	next   int           // of groups, to receive from first
	polls  []unix.PollFd // socket, doorbell, groups; changed under pollMu
	pollMu sync.Mutex
}

func openNative(c Config) (Link, error) {
	s := &socket{info: Info{Addr: c.Addr, SrcPort: bth.Port, Kind: "socket"}, fd: -1, bell: -1, v6: c.Addr.Is6()}
	if err := s.open(c); err != nil {
		s.Close()
		return nil, err
	}
	s.rx.init(c.Addr.WithZone(""))
	s.tx.init()
	s.watch()
	return s, nil
}

func (s *socket) open(c Config) (err error) {
	family := unix.AF_INET
	if s.v6 {
		family = unix.AF_INET6
	}
	if s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("udp: cannot create a socket: %w", err)
	}
	if s.bell, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return fmt.Errorf("udp: cannot create an eventfd: %w", err)
	}
	if err := s.setOptions(); err != nil {
		return err
	}
	if !s.v6 {
		// Multicast leaves through the interface that has the address.
		_ = unix.SetsockoptInet4Addr(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, c.Addr.As4())
	}
	s.info.RecvBuffer = s.sizeBuffer(unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, c.RecvBuffer)
	s.info.SendBuffer = s.sizeBuffer(unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, c.SendBuffer)
	return s.bind(c.Addr)
}

// setOptions makes the IP header predictable and its ECN bits visible.
func (s *socket) setOptions() error {
	type option struct{ level, name, value int }
	opts := []option{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
		{unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
		{unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
	}
	if s.v6 {
		opts = []option{
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			// RoCE peers send UDP checksum 0, which IPv6 sockets refuse otherwise.
			{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
	}
	for _, o := range opts {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("udp: cannot set socket option %d/%d: %w", o.level, o.name, err)
		}
	}
	return nil
}

// sizeBuffer asks for a buffer and returns what was granted. Beyond the
// system's limit only a privileged process gets it.
func (s *socket) sizeBuffer(name, force, bytes int) int {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, bytes) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, name, bytes)
	}
	got, _ := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, name)
	return got
}

func (s *socket) bind(a netip.Addr) error {
	var sa unix.Sockaddr
	if s.v6 {
		s.zone = zoneID(a.Zone())
		sa = &unix.SockaddrInet6{Port: bth.Port, Addr: a.As16(), ZoneId: s.zone}
	} else {
		sa = &unix.SockaddrInet4{Port: bth.Port, Addr: a.As4()}
	}
	err := unix.Bind(s.fd, sa)
	at := netip.AddrPortFrom(a, bth.Port)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EADDRINUSE):
		return &InUseError{Addr: at, Holder: portHolder(), Err: err}
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("udp: no interface of this host has the address %v; `roce info` lists the usable ones: %w", a, err)
	}
	return fmt.Errorf("udp: cannot bind %v: %w", at, err)
}

func zoneID(zone string) uint32 {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifi.Index)
	}
	return 0
}

// interfaceOf returns the index of the interface that has an address, or 0.
func interfaceOf(a netip.Addr) int {
	ifs, _ := net.Interfaces()
	for _, ifi := range ifs {
		addrs, _ := ifi.Addrs()
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Unmap() == a.WithZone("") {
				return ifi.Index
			}
		}
	}
	return 0
}

// portHolder guesses who holds UDP port 4791 in this network namespace.
func portHolder() string {
	mods, _ := os.ReadFile("/proc/modules")
	for line := range strings.Lines(string(mods)) {
		if strings.HasPrefix(line, "rdma_rxe ") {
			return "the kernel's rdma_rxe is loaded and holds it for all addresses; unload it (`rdma link delete …`, `modprobe -r rdma_rxe`) or use another network namespace"
		}
	}
	return "another RoCE program holds it (`ss -ulpn 'sport = :4791'` shows which); stop that program or use another address of this host"
}

// Info implements Link.
func (s *socket) Info() Info { return s.info }

// Counters implements Link.
func (s *socket) Counters(f func(string, uint64)) { s.stats.each(f) }

// Close implements Link.
func (s *socket) Close() error {
	for _, g := range s.groups {
		_ = unix.Close(g.fd)
	}
	if s.bell >= 0 {
		_ = unix.Close(s.bell)
	}
	if s.fd < 0 {
		return nil
	}
	return unix.Close(s.fd)
}

// Wait implements Link.
func (s *socket) Wait(timeout time.Duration) {
	s.pollMu.Lock()
	fds := append([]unix.PollFd(nil), s.polls...) // several may wait in polled mode
	s.pollMu.Unlock()
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	if n, err := unix.Ppoll(fds, ts, nil); err != nil || n == 0 {
		return
	}
	if fds[1].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(s.bell, b[:])
	}
}

// Wake implements Link.
func (s *socket) Wake() {
	one := [8]byte{1}
	_, _ = unix.Write(s.bell, one[:])
}

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// receiveRing holds what recvmmsg fills. Everything is allocated once.
type receiveRing struct {
	local netip.Addr
	msgs  [burstSize]mmsghdr
	iovs  [burstSize]unix.Iovec
	names [burstSize]unix.RawSockaddrInet6 // large enough for both families
	ctrl  [burstSize][64]byte
	buf   []byte
	out   [burstSize]bth.Datagram
}

// slotSize leaves room to notice datagrams that are too long.
const slotSize = (maxPacket + 64) &^ 63

func (r *receiveRing) init(local netip.Addr) {
	r.local = local
	r.buf = make([]byte, burstSize*slotSize)
	for i := range r.msgs {
		r.iovs[i].Base = &r.buf[i*slotSize]
		r.iovs[i].SetLen(slotSize)
		h := &r.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = &r.ctrl[i][0]
	}
}

// Receive implements Link.
func (s *socket) Receive() []bth.Datagram {
	if ds := s.receiveFrom(s.fd, s.rx.local); len(ds) > 0 || len(s.groups) == 0 {
		return ds
	}
	for range s.groups {
		g := s.groups[s.next%len(s.groups)]
		s.next++
		if ds := s.receiveFrom(g.fd, g.addr); len(ds) > 0 {
			return ds
		}
	}
	return nil
}

// receiveFrom receives a burst of what was sent to dst.
func (s *socket) receiveFrom(fd int, dst netip.Addr) []bth.Datagram {
	r := &s.rx
	for i := range r.msgs {
		h := &r.msgs[i].hdr
		h.Namelen, h.Flags = uint32(unsafe.Sizeof(r.names[i])), 0
		h.SetControllen(len(r.ctrl[i]))
	}
	n, _, err := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.msgs[0])), burstSize, unix.MSG_DONTWAIT, 0, 0)
	if err != 0 {
		return nil
	}
	afterReceive()
	good := 0
	for i := range int(n) {
		if s.datagram(i, dst, &r.out[good]) {
			good++
		}
	}
	return r.out[:good]
}

// datagram turns slot i into a datagram and checks it.
func (s *socket) datagram(i int, dst netip.Addr, d *bth.Datagram) bool {
	r := &s.rx
	m := &r.msgs[i]
	if m.hdr.Flags&unix.MSG_TRUNC != 0 || int(m.n) > maxPacket {
		s.stats[rxPackets]++
		s.stats[rxTruncated]++
		return false
	}
	*d = bth.Datagram{Dst: dst, Data: r.buf[i*slotSize : i*slotSize+int(m.n)]}
	if s.v6 {
		sa := &r.names[i]
		d.Src, d.SrcPort = netip.AddrFrom16(sa.Addr), swap16(sa.Port)
	} else {
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.names[i]))
		d.Src, d.SrcPort = netip.AddrFrom4(sa.Addr), swap16(sa.Port)
	}
	parseControl(r.ctrl[i][:m.hdr.Controllen], d)
	return s.stats.accept(d)
}

// parseControl reads traffic class and hop limit from control messages.
func parseControl(b []byte, d *bth.Datagram) {
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		end := int(h.Len)
		if end < unix.SizeofCmsghdr || end > len(b) {
			return
		}
		if data := b[unix.CmsgLen(0):end]; len(data) > 0 {
			switch {
			case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS:
				d.TrafficClass = lowByte(data)
			case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
				d.HopLimit = lowByte(data)
			}
		}
		b = b[min(len(b), unix.CmsgSpace(end-unix.CmsgLen(0))):]
	}
}

// lowByte returns a control value that is a byte, or a native int.
func lowByte(data []byte) byte {
	if len(data) >= 4 {
		return byte(*(*int32)(unsafe.Pointer(&data[0])))
	}
	return data[0]
}

// sendRing holds what sendmmsg reads: for each frame header, payload, trailer.
type sendRing struct {
	msgs  [burstSize]mmsghdr
	iovs  [burstSize][3]unix.Iovec
	names [burstSize]unix.RawSockaddrInet6
	ctrl  [burstSize][ctrlSpace]byte
}

// ctrlSpace holds two control messages with an int each.
const ctrlSpace = 2 * 24

func (t *sendRing) init() {
	for i := range t.msgs {
		h := &t.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&t.names[i]))
		h.Iov = &t.iovs[i][0]
	}
}

// Send implements Link.
func (s *socket) Send(b *bth.Burst) {
	for frames := b.Frames(); len(frames) > 0; {
		n := min(len(frames), burstSize)
		for i := range n {
			s.prepare(i, &frames[i])
		}
		s.sendAll(frames[:n])
		frames = frames[n:]
	}
}

// prepare seals a frame and fills slot i. Identification is 0: see the package
// comment.
func (s *socket) prepare(i int, f *bth.Frame) {
	t := &s.tx
	f.Seal(0)
	h := &t.msgs[i].hdr
	iov, n := &t.iovs[i], 0
	for _, part := range [3][]byte{f.Header(), f.Payload, f.Trailer()} {
		if len(part) > 0 {
			iov[n].Base = &part[0]
			iov[n].SetLen(len(part))
			n++
		}
	}
	h.SetIovlen(n)
	h.Namelen = s.setName(&t.names[i], f.Path.Dst)
	h.Control = nil
	h.SetControllen(0)
	if c := s.control(t.ctrl[i][:0], f.Path); len(c) > 0 {
		h.Control = &c[0]
		h.SetControllen(len(c))
	}
}

func (s *socket) setName(to *unix.RawSockaddrInet6, a netip.Addr) uint32 {
	if s.v6 {
		*to = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: swap16(bth.Port), Addr: a.As16()}
		if a.IsLinkLocalUnicast() {
			if to.Scope_id = s.zone; a.Zone() != "" {
				to.Scope_id = zoneID(a.Zone())
			}
		}
		return unix.SizeofSockaddrInet6
	}
	*(*unix.RawSockaddrInet4)(unsafe.Pointer(to)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: swap16(bth.Port), Addr: a.As4()}
	return unix.SizeofSockaddrInet4
}

// defaultHops is the hop limit of a packet whose path names none.
const defaultHops = 64

// control appends control messages for what differs from the socket's defaults:
// any of them makes the kernel look up the route again.
func (s *socket) control(b []byte, p *bth.Path) []byte {
	level, tos, ttl := int32(unix.IPPROTO_IP), int32(unix.IP_TOS), int32(unix.IP_TTL)
	if s.v6 {
		level, tos, ttl = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT
	}
	if p.TrafficClass != 0 {
		b = appendControl(b, level, tos, int32(p.TrafficClass))
	}
	if p.HopLimit != 0 && p.HopLimit != defaultHops {
		b = appendControl(b, level, ttl, int32(p.HopLimit))
	}
	return b
}

func appendControl(b []byte, level, kind, value int32) []byte {
	at := len(b)
	b = b[:at+unix.CmsgSpace(4)]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(4))
	*(*int32)(unsafe.Pointer(&b[at+unix.CmsgLen(0)])) = value
	return b
}

// sendAll sends the prepared slots. A full send buffer is waited for, briefly;
// an error belongs to the first message not sent, which is skipped.
func (s *socket) sendAll(frames []bth.Frame) {
	beforeSend()
	waited := false
	for at := 0; at < len(frames); {
		n, _, err := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.tx.msgs[at])), uintptr(len(frames)-at), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case err == 0:
			for i := range int(n) {
				s.stats[txPackets]++
				s.stats[txBytes] += uint64(frames[at+i].Len())
			}
			at += int(n)
		case err == unix.EINTR:
		case (err == unix.EAGAIN || err == unix.ENOBUFS) && !waited:
			s.stats[txBufferFull]++
			s.waitWritable()
			waited = true
		default:
			s.stats[txErrors]++
			at++
		}
	}
}

// sendWait bounds how long a full send buffer may hold up its owner.
const sendWait = 5 * time.Millisecond

func (s *socket) waitWritable() {
	ts := unix.NsecToTimespec(int64(sendWait))
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, &ts, nil)
}

// swap16 turns a port in network order into a number and back.
func swap16(v uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&v))
	return uint16(b[0])<<8 | uint16(b[1])
}
