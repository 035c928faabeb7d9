package verbs

import (
	"net/netip"
	"testing"

	"github.com/goroce/goroce/bth"
)

// A packet that another shard hands over while the driver is awake, but past
// the point where it looks for such, keeps it from sleeping.
func TestStrayFromBeforeTheSleepEndsIt(t *testing.T) {
	d, err := Open(Config{Addr: netip.MustParseAddr("127.0.12.9"), Shards: 2, Polled: true})
	if err != nil {
		t.Skipf("needs UDP port 4791 on loopback: %v", err)
	}
	defer d.Close()
	s := d.shards[1]
	if len(d.shards) != 2 {
		t.Skip("needs sockets that share a port: SO_REUSEPORT with a BPF program, on Linux")
	}
	s.receive(0)
	if timeout, _ := s.announceSleep(maxIdle); timeout == 0 {
		t.Error("no sleep although nothing waits")
	}
	s.sleeping.Store(0)
	if s.strays.put(&bth.Datagram{Data: make([]byte, bth.BTHLen)}) {
		s.rouse() // nobody sleeps
	}
	if timeout, _ := s.announceSleep(maxIdle); timeout != 0 {
		t.Errorf("the driver sleeps for %v on a packet", timeout)
	}
	s.receive(0)
	if timeout, _ := s.announceSleep(maxIdle); timeout == 0 {
		t.Error("no sleep although the packet was taken")
	}
}
