package udp

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A Wake that began before Close and is late rings nothing that was opened since.
func TestLateWakeWritesNowhere(t *testing.T) {
	l, err := Open(Config{Addr: netip.MustParseAddr("127.0.12.5")})
	if err != nil {
		t.Skipf("needs UDP port 4791 on loopback: %v", err)
	}
	s := l.(*socket)
	was := s.bells[0].fd
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for reused := false; !reused; {
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		reused = fd >= was
	}
	s.bells[0].taken.Store(true) // as the late one saw it
	l.Wake()
	var count [8]byte
	for _, fd := range fds {
		if n, err := unix.Read(fd, count[:]); n > 0 || err != unix.EAGAIN {
			t.Errorf("fd %d was written to: %d, %v", fd, n, err)
		}
	}
}
