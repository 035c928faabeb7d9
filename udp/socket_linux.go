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
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// socket is the Linux link: an unconnected UDP socket of its own, never
// registered with the runtime's poller.
type socket struct {
	info  Info
	fd    int
	bells [waiters]bell
	zone  uint32
	v6    bool
	stats counters
	ring  *packetRing // nil: the socket itself receives
	rx    receiveRing
	tx    sendRing
	from  []sender
	// The traffic class of messages that do not name one, and how many more
	// have had another of late.
	class      uint8
	otherClass int

	groups []*groupSocket
	next   int           // of groups, to receive from first
	polls  []unix.PollFd // socket, doorbell, groups; changed under pollMu
	pollMu sync.Mutex
}

func openNative(c Config) (Link, error) {
	s, err := openSocket(c, share{})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openSocket opens one link. If it is one of several shards, they share the address.
func openSocket(c Config, of share) (*socket, error) {
	s := &socket{info: Info{Addr: c.Addr, Kind: "socket"}, fd: -1, bells: [waiters]bell{{fd: -1}, {fd: -1}}, v6: c.Addr.Is6()}
	if err := s.open(c, of); err != nil {
		s.Close()
		return nil, err
	}
	s.rx.init(c.Addr.WithZone(""), s.info.GRO)
	s.tx.init()
	s.watch()
	return s, nil
}

func (s *socket) open(c Config, of share) (err error) {
	family := unix.AF_INET
	if s.v6 {
		family = unix.AF_INET6
	}
	if s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("udp: cannot create a socket: %w", err)
	}
	for i := range s.bells {
		if s.bells[i].fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
			return fmt.Errorf("udp: cannot create an eventfd: %w", err)
		}
	}
	if err := s.setOptions(); err != nil {
		return err
	}
	if of.n > 0 {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("udp: cannot share a port between shards: %w", err)
		}
	}
	s.info.RecvBuffer = s.sizeBuffer(unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, c.RecvBuffer)
	s.info.SendBuffer = s.sizeBuffer(unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, c.SendBuffer)
	s.setOffloads(c)
	ring := c.Ring || os.Getenv("GOROCE_RING") == "1"
	if ring {
		err = dropAll(s.fd)
	}
	if err := errors.Join(err, s.bind(c.Addr)); err != nil {
		return err
	}
	if ring {
		if err := s.openRing(c, of); err != nil {
			return err
		}
	}
	return s.openSenders(c)
}

// openRing makes the link receive through a ring.
func (s *socket) openRing(c Config, of share) (err error) {
	if err := RingError(); err != nil {
		return err
	}
	s.info.Kind = "packet ring"
	s.ring, err = openRing(c.Addr.WithZone(""), s.zone, bth.Port, c.RecvBuffer, of)
	return err
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
	if s.v6 {
		s.zone = zoneID(a.Zone())
	}
	err := unix.Bind(s.fd, s.sockaddr(a, bth.Port))
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

func (s *socket) sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if s.v6 {
		return &unix.SockaddrInet6{Port: int(port), Addr: a.As16(), ZoneId: s.zone}
	}
	return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
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
func (s *socket) Counters(f func(string, uint64)) {
	if s.ring != nil {
		s.stats[rxSocketFull] = s.ring.drops()
	} else {
		s.stats[rxSocketFull] = socketDrops(s.fd)
	}
	s.stats.each(f)
}

// Close implements Link.
func (s *socket) Close() error {
	for _, g := range s.groups {
		_ = unix.Close(g.fd)
	}
	for _, f := range s.from {
		if f.fd != s.fd {
			_ = unix.Close(f.fd)
		}
	}
	if s.ring != nil {
		s.ring.close()
	}
	for i := range s.bells {
		s.bells[i].close()
	}
	if s.fd < 0 {
		return nil
	}
	return unix.Close(s.fd)
}

// bell wakes one of those who wait on the link.
type bell struct {
	mu    sync.Mutex // who rings may come late: see close
	fd    int        // eventfd
	taken atomic.Bool
	rung  atomic.Bool
	fds   []unix.PollFd
}

// Wait implements Link.
func (s *socket) Wait(who Waiter, timeout time.Duration) {
	b := &s.bells[who]
	b.taken.Store(true)
	defer b.taken.Store(false)
	if b.rung.Swap(false) {
		return
	}
	s.pollMu.Lock()
	b.fds = append(b.fds[:0], s.polls...)
	s.pollMu.Unlock()
	b.fds[1].Fd = int32(b.fd)
	bounded := s.ring != nil && (timeout < 0 || timeout > ringCheck)
	if bounded {
		timeout = ringCheck
	}
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	if n, err := unix.Ppoll(b.fds, ts, nil); err != nil || n == 0 {
		if bounded {
			s.ring.check.Store(true)
		}
		return
	}
	if b.fds[1].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(b.fd, count[:])
	}
}

// Wake implements Link. A bell whose owner sleeps is rung; one that nobody
// listens to keeps that in mind for the next wait.
func (s *socket) Wake() {
	for i := range s.bells {
		b := &s.bells[i]
		b.rung.Store(true)
		if b.taken.Load() && b.rung.Swap(false) {
			b.ring()
		}
	}
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if one := [8]byte{1}; b.fd >= 0 {
		_, _ = unix.Write(b.fd, one[:])
	}
}

// close ends the bell. A Wake may still be under way, of a context that ended or
// another shard: it must not write into whatever gets the number next.
func (b *bell) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		_ = unix.Close(b.fd)
		b.fd = -1
	}
}
