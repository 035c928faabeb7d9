package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// sender is a socket that sends from a UDP port of its own.
type sender struct {
	port uint16
	fd   int
}

// openSenders opens the sockets that packets leave from: the link's own if one
// source port is enough, else others. Nothing is received on them.
func (s *socket) openSenders(c Config) error {
	if c.SrcPorts == 1 {
		s.from = []sender{{bth.Port, s.fd}}
	}
	for len(s.from) < c.SrcPorts {
		f, err := s.openSender(c)
		if err != nil {
			return err
		}
		s.from = append(s.from, f)
	}
	for _, f := range s.from {
		s.info.SrcPorts = append(s.info.SrcPorts, f.port)
	}
	if s.v6 {
		return nil
	}
	// Multicast leaves through the interface that has the address.
	return s.eachSender(func(fd int) error {
		_ = unix.SetsockoptInet4Addr(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, c.Addr.As4())
		return nil
	})
}

func (s *socket) eachSender(f func(fd int) error) (err error) {
	for _, from := range s.from {
		err = errors.Join(err, f(from.fd))
	}
	return err
}

// portTries is how many source ports are tried before giving up.
const portTries = 64

func (s *socket) openSender(c Config) (sender, error) {
	one := &socket{info: s.info, fd: -1, v6: s.v6}
	family := unix.AF_INET
	if s.v6 {
		family = unix.AF_INET6
	}
	var err error
	if one.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return sender{}, fmt.Errorf("udp: cannot create a socket: %w", err)
	}
	if err = errors.Join(one.setOptions(), dropAll(one.fd)); err == nil {
		one.sizeBuffer(unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, c.SendBuffer)
		for range portTries {
			port := bth.SrcPort(rand.N(bth.NumSrcPorts))
			if err = unix.Bind(one.fd, s.sockaddr(c.Addr, port)); err == nil {
				return sender{port, one.fd}, nil
			}
		}
	}
	_ = unix.Close(one.fd)
	return sender{}, fmt.Errorf("udp: cannot get a source port; ask for one only (SrcPorts: 1): %w", err)
}

// dropAll makes a socket receive nothing.
func dropAll(fd int) error {
	return attachFilter(fd, unix.SO_ATTACH_FILTER, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}})
}

// attachFilter attaches a classic BPF program.
func attachFilter(fd, option int, program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, option, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// sender returns the socket for a source port; the first one for a port that is
// not the link's.
func (s *socket) sender(port uint16) int {
	for i := range s.from {
		if s.from[i].port == port {
			return s.from[i].fd
		}
	}
	return s.from[0].fd
}
