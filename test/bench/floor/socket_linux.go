package main

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is a UDP socket as goroce's: unconnected, not known to the runtime's
// poller, with a fixed IP identification.
type socket struct {
	fd   int
	peer unix.RawSockaddrInet4
}

const bufferBytes = 8 << 20

func open(local, remote netip.AddrPort) (*socket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	s := &socket{fd: fd}
	s.peer.Family = unix.AF_INET
	s.peer.Addr = remote.Addr().As4()
	port := remote.Port()
	*(*[2]byte)(unsafe.Pointer(&s.peer.Port)) = [2]byte{byte(port >> 8), byte(port)}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE); err != nil {
		s.close()
		return nil, fmt.Errorf("IP_MTU_DISCOVER: %w", err)
	}
	s.size(unix.SO_RCVBUF, unix.SO_RCVBUFFORCE)
	s.size(unix.SO_SNDBUF, unix.SO_SNDBUFFORCE)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(local.Port()), Addr: local.Addr().As4()}); err != nil {
		s.close()
		return nil, fmt.Errorf("bind %v: %w", local, err)
	}
	return s, nil
}

// size asks for a buffer; beyond the system's limit only a privileged process
// gets it.
func (s *socket) size(name, force int) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, bufferBytes) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, name, bufferBytes)
	}
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// send sends one datagram. The socket never blocks, so the scheduler need not
// know.
func (s *socket) send(b []byte) unix.Errno {
	_, _, err := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		0, uintptr(unsafe.Pointer(&s.peer)), unsafe.Sizeof(s.peer))
	return err
}

// receive receives one datagram; 0 if there is none.
func (s *socket) receive(b []byte) (int, unix.Errno) {
	n, _, err := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	if err == unix.EAGAIN || err == unix.EINTR {
		return 0, 0
	}
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

// sleep waits until something can be received.
func (s *socket) sleep(most time.Duration) {
	ts := unix.NsecToTimespec(int64(most))
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, &ts, nil)
}
