package udp

import (
	"bytes"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setOffloads finds out what the kernel can do for runs of equal packets and
// switches it on, as far as c and the environment allow.
func (s *socket) setOffloads(c Config) {
	s.info.GSO = 1
	if !c.NoGSO && os.Getenv("GOROCE_GSO") != "0" {
		s.info.GSO = segmentation(s.v6)
	}
	if !c.NoGRO && os.Getenv("GOROCE_GRO") != "0" {
		s.info.GRO = unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	}
}

// segmentation returns how many packets the kernel cuts from one message, 1 if
// it cannot. The answer is the same for all sockets of a family.
func segmentation(v6 bool) int {
	if v6 {
		return segmentation6()
	}
	return segmentation4()
}

var (
	segmentation4 = sync.OnceValue(func() int { return probeSegmentation(netip.AddrFrom4([4]byte{127, 0, 0, 1})) })
	segmentation6 = sync.OnceValue(func() int { return probeSegmentation(netip.IPv6Loopback()) })
)

// probeSegmentation sends runs to a socket of its own and compares what
// arrives. Trying is the only way to know: there are kernels that refuse, whose
// limit is 64 packets, and some between 7.0 and 7.1 that damage the headers of
// a run whose packets are all equal.
func probeSegmentation(a netip.Addr) int {
	from, to := probeSocket(a), probeSocket(a)
	defer unix.Close(from)
	defer unix.Close(to)
	if from < 0 || to < 0 {
		return 1
	}
	name, err := unix.Getsockname(to)
	if err != nil {
		return 1
	}
	for _, n := range []int{maxSegments, untestedSegments} {
		if probeRun(from, to, name, n) {
			return n
		}
	}
	if !probeRun(from, to, name, 1) {
		return untestedSegments // the loopback interface is down
	}
	return 1
}

// untestedSegments is the limit of all kernels that segment.
const untestedSegments = 64

func probeSocket(a netip.Addr) int {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: a.As16()})
	if a.Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: a.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if unix.Bind(fd, sa) != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// probeRun reports whether n packets sent as one run arrive as they are.
func probeRun(from, to int, name unix.Sockaddr, n int) bool {
	const size = 48
	run := make([]byte, n*size)
	for i := range run {
		run[i] = byte(i/size*31 + i)
	}
	var space [24]byte
	control := appendSegmentSize(space[:0], size)
	if n == 1 {
		control = nil
	}
	if _, err := unix.SendmsgN(from, run, control, name, unix.MSG_DONTWAIT); err != nil {
		return false
	}
	got := make([]byte, size+1)
	for ; len(run) > 0; run = run[size:] {
		ready := []unix.PollFd{{Fd: int32(to), Events: unix.POLLIN}}
		if k, err := unix.Poll(ready, probeWait); k != 1 || err != nil {
			return false
		}
		k, _, err := unix.Recvfrom(to, got, unix.MSG_DONTWAIT)
		if err != nil || !bytes.Equal(got[:k], run[:size]) {
			return false
		}
	}
	return true
}

// probeWait bounds the wait for one packet of a probe, in ms. They are there
// when the send returns.
const probeWait = 20

// socketDrops returns how many datagrams the socket's full buffer has cost.
func socketDrops(fd int) uint64 {
	var info [9]uint32 // the kernel's sk_meminfo; drops are the last
	size := uint32(unsafe.Sizeof(info))
	_, _, err := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if err != 0 || size < uint32(unsafe.Sizeof(info)) {
		return 0
	}
	return uint64(info[8])
}
