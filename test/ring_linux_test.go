package test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/test/netns"
	"github.com/goroce/goroce/udp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	tapHost = "198.18.0.1"
	tapPeer = "198.18.0.2"
	// virtio_net_hdr's gso_type for UDP that IP fragments (UFO).
	vnetUFO = 3
)

// tap is a network interface whose frames come from this test, with the header in
// which a virtual machine says how a frame is to be segmented.
type tap struct {
	file *os.File
	mac  []byte
}

// openTap makes a tap in the calling thread's namespace.
func openTap() (*tap, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	p := &tap{file: os.NewFile(uintptr(fd), "tun")}
	var req [40]byte
	copy(req[:], "tap0")
	binary.NativeEndian.PutUint16(req[16:], unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&req))); e != 0 {
		return p, e
	}
	l, err := netlink.LinkByName("tap0")
	if err != nil {
		return p, err
	}
	p.mac = l.Attrs().HardwareAddr
	a, err := netlink.ParseAddr(tapHost + "/24")
	if err != nil {
		return p, err
	}
	return p, errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
}

// send puts a packet with n bytes of payload on the wire.
func (p *tap) send(t *testing.T, from, to string, n int, gso byte, size uint16) {
	t.Helper()
	path := bth.Path{Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr(to), SrcPort: bth.Port}
	b := bth.NewBurst(1, 8192)
	f := b.Next()
	f.Path, f.Payload = &path, make([]byte, n)
	f.SetHeaders(&bth.Packet{BTH: bth.BTH{Opcode: bth.SendMiddle, DestQP: 0x100, PKey: bth.PKeyDefault}})
	f.Seal(0)
	frame := make([]byte, 10, 10+14+n+100)
	frame[1] = gso
	binary.NativeEndian.PutUint16(frame[4:], size)
	if gso != 0 { // the kernel wants to know where the checksum goes
		frame[0] = 1
		binary.NativeEndian.PutUint16(frame[6:], 14+20)
		binary.NativeEndian.PutUint16(frame[8:], 6)
	}
	frame = append(append(frame, p.mac...), 2, 0, 0, 0, 0, 2, 8, 0)
	if _, err := p.file.Write(path.AppendDatagram(frame, 0, f.AppendTo(nil))); err != nil {
		t.Fatal(err)
	}
}

// ringOnTap opens a link with a packet ring, in a namespace that has a tap.
func ringOnTap(t *testing.T, addr string) (udp.Link, *tap) {
	ns, err := netns.New()
	if err != nil {
		t.Skipf("needs root: %v", err)
	}
	t.Cleanup(ns.Close)
	var p *tap
	if err := ns.Do(func() (err error) { p, err = openTap(); return err }); err != nil {
		t.Skipf("needs /dev/net/tun: %v", err)
	}
	t.Cleanup(func() { _ = p.file.Close() })
	var l udp.Link
	err = ns.Do(func() (err error) {
		l, err = udp.Open(udp.Config{Addr: netip.MustParseAddr(addr), Ring: true})
		return err
	})
	if errors.Is(err, udp.ErrRing) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, p
}

// drain receives until nothing comes any more.
func drain(l udp.Link) (n int) {
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		if k := len(l.Receive()); k > 0 {
			n, end = n+k, time.Now().Add(20*time.Millisecond)
		}
	}
	return n
}

// A packet that the kernel cannot describe to a ring makes it stop. It is made anew,
// by who polls and by who sleeps.
func TestRingGoesOnAfterAPacketThatStopsIt(t *testing.T) {
	for name, wait := range map[string]func(udp.Link){
		"polled": func(l udp.Link) {
			for range 1 << 17 {
				l.Receive()
			}
		},
		"asleep": func(l udp.Link) { l.Wait(udp.ForLoop, time.Hour); l.Receive() },
	} {
		t.Run(name, func(t *testing.T) {
			l, p := ringOnTap(t, tapHost)
			good := func() { t.Helper(); p.send(t, tapPeer, tapHost, 20, 0, 0) }
			for range 3 {
				good()
			}
			if n := drain(l); n != 3 {
				t.Fatalf("%d of 3 packets", n)
			}
			wait(l)
			p.send(t, tapPeer, tapHost, 3000, vnetUFO, 1480)
			good()
			wait(l)
			wait(l)
			for range 5 {
				good()
			}
			if n := drain(l); n != 5 {
				t.Errorf("%d of 5 packets afterwards", n)
			}
			resets := uint64(0)
			l.Counters(func(name string, v uint64) {
				if name == "link_ring_resets" {
					resets = v
				}
			})
			t.Logf("%d resets", resets)
		})
	}
}

// Loopback addresses are not to be had from the network, nor is anybody there who has
// one.
func TestRingOnLoopbackHearsNoNetwork(t *testing.T) {
	l, p := ringOnTap(t, "127.0.6.2")
	p.send(t, "127.0.6.9", "127.0.6.2", 20, 0, 0)
	p.send(t, tapPeer, "127.0.6.2", 20, 0, 0)
	if n := drain(l); n != 0 {
		t.Errorf("%d packets came from the network", n)
	}
	l, p = ringOnTap(t, tapHost)
	p.send(t, "127.0.6.9", tapHost, 20, 0, 0)
	p.send(t, tapPeer, tapHost, 20, 0, 0)
	if n := drain(l); n != 1 {
		t.Errorf("%d packets were received, want the one of the peer", n)
	}
}
