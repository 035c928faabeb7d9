package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// groupSocket receives one multicast group. A socket bound to a unicast address
// does not get what is sent to a group, so each group has its own, bound to the
// group's address; several processes of a host may have it.
type groupSocket struct {
	addr netip.Addr
	fd   int
	uses int
}

// Join implements Link.
func (s *socket) Join(group netip.Addr) error {
	if !group.IsMulticast() || group.Is6() != s.v6 {
		return fmt.Errorf("udp: %v is not a multicast address of the link's family", group)
	}
	for _, g := range s.groups {
		if g.addr == group {
			g.uses++
			return nil
		}
	}
	g, err := s.openGroup(group)
	if err != nil {
		return err
	}
	s.groups = append(s.groups, g)
	s.watch()
	s.Wake() // a Wait that is running watches the old set
	return nil
}

func (s *socket) openGroup(group netip.Addr) (*groupSocket, error) {
	member := &socket{info: s.info, fd: -1, v6: s.v6}
	family := unix.AF_INET
	if s.v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("udp: cannot create a socket for %v: %w", group, err)
	}
	member.fd = fd
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), member.setOptions(), s.bindGroup(fd, group))
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("udp: cannot join %v: %w", group, err)
	}
	member.sizeBuffer(unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, DefaultRecvBuffer)
	return &groupSocket{addr: group.WithZone(""), fd: fd, uses: 1}, nil
}

// bindGroup binds to the group and joins it on the interface that has the
// link's address; sending to groups leaves through it, too.
func (s *socket) bindGroup(fd int, group netip.Addr) error {
	if s.v6 {
		ifIndex := int(s.zone)
		if ifIndex == 0 {
			ifIndex = interfaceOf(s.info.Addr)
		}
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrInet6{Port: bth.Port, Addr: group.As16(), ZoneId: uint32(ifIndex)}),
			unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(ifIndex)}),
			s.eachSender(func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, ifIndex) }))
	}
	return errors.Join(
		unix.Bind(fd, &unix.SockaddrInet4{Port: bth.Port, Addr: group.As4()}),
		unix.SetsockoptIPMreq(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreq{Multiaddr: group.As4(), Interface: s.info.Addr.As4()}))
}

// Leave implements Link.
func (s *socket) Leave(group netip.Addr) error {
	i := slices.IndexFunc(s.groups, func(g *groupSocket) bool { return g.addr == group.WithZone("") })
	if i < 0 {
		return fmt.Errorf("udp: the link is not in the group %v", group)
	}
	g := s.groups[i]
	if g.uses--; g.uses > 0 {
		return nil
	}
	s.groups = slices.Delete(s.groups, i, i+1)
	s.watch()
	// A Wait that is running may still poll the descriptor; that is harmless,
	// and the doorbell makes it look again.
	s.Wake()
	return unix.Close(g.fd)
}

// watch sets what Wait looks at.
func (s *socket) watch() {
	s.pollMu.Lock()
	defer s.pollMu.Unlock()
	own := s.fd
	if s.ring != nil {
		own = s.ring.fd
	}
	s.polls = append(s.polls[:0], unix.PollFd{Fd: int32(own), Events: unix.POLLIN}, unix.PollFd{Events: unix.POLLIN})
	for _, g := range s.groups {
		s.polls = append(s.polls, unix.PollFd{Fd: int32(g.fd), Events: unix.POLLIN})
	}
}
