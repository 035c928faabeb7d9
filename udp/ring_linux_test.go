package udp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// ipPacket returns a RoCE packet from one address to another, IP header to ICRC.
func ipPacket(from, to netip.Addr, id uint16, payload int) []byte {
	path := bth.Path{Src: from, Dst: to, SrcPort: bth.Port}
	b := bth.NewBurst(1, 4096)
	fill(b, &path, payload)
	f := &b.Frames()[0]
	f.Seal(id)
	return path.AppendDatagram(nil, id, f.AppendTo(nil))
}

// rawSender sends IP packets on the loopback interface as they are.
func rawSender(t *testing.T) (send func(mac [6]byte, ip []byte)) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	lo := interfaceOf(netip.MustParseAddr("127.0.0.1"))
	return func(mac [6]byte, ip []byte) {
		t.Helper()
		to := unix.SockaddrLinklayer{Protocol: swap16(unix.ETH_P_IP), Ifindex: lo, Halen: 6}
		copy(to.Addr[:], mac[:])
		if ip[0]>>4 == 6 {
			to.Protocol = swap16(unix.ETH_P_IPV6)
		}
		if err := unix.Sendto(fd, ip, 0, &to); err != nil {
			t.Fatal(err)
		}
	}
}

// received polls until n datagrams have come, or none more for a while.
func received(s *socket, n int) (got []bth.Datagram) {
	for end := time.Now().Add(20 * time.Millisecond); len(got) < n || time.Now().Before(end); {
		for _, d := range s.Receive() {
			d.Data = slices.Clone(d.Data)
			got = append(got, d)
			end = time.Now().Add(20 * time.Millisecond)
		}
		if time.Now().After(end.Add(2 * time.Second)) {
			break
		}
	}
	return got
}

// The ring sees whole IP packets of anybody: what the kernel's IP and UDP would not
// have handed to a socket of this address is left alone, and what is taken is as its
// headers say, whatever follows in the frame.
func TestRingTakesWhatASocketWould(t *testing.T) {
	z := open(t, 2, Config{Ring: true})
	send := rawSender(t)
	from, to := netip.MustParseAddr("127.0.6.1"), z.info.Addr
	good := func() []byte { return ipPacket(from, to, 0x1234, 20) }
	for _, row := range []struct {
		name    string
		mac     [6]byte
		damage  func(b []byte) []byte
		taken   bool
		badICRC uint64
	}{
		{name: "good", damage: func(b []byte) []byte { return b }, taken: true},
		{name: "padded frame", damage: func(b []byte) []byte { return append(b, 1, 2, 3, 4, 5, 6) }, taken: true},
		{name: "other host", mac: [6]byte{2, 1, 1, 1, 1, 1}, damage: func(b []byte) []byte { return b }},
		{name: "other address", damage: func(b []byte) []byte { b[19]++; return b }},
		{name: "other port", damage: func(b []byte) []byte { b[23]++; return b }},
		{name: "TCP", damage: func(b []byte) []byte { b[9] = unix.IPPROTO_TCP; return b }},
		{name: "options", damage: func(b []byte) []byte { b[0] = 0x46; return b }},
		{name: "first fragment", damage: func(b []byte) []byte { b[6] |= 0x20; return b }},
		{name: "later fragment", damage: func(b []byte) []byte { b[7] = 1; return b }},
		{name: "UDP longer than IP", damage: func(b []byte) []byte { b[25]++; return b }},
		{name: "UDP of no length", damage: func(b []byte) []byte { b[24], b[25] = 0, 7; return b }},
		{name: "IP longer than the frame", damage: func(b []byte) []byte { return b[:len(b)-8] }},
		{name: "headers only", damage: func(b []byte) []byte { return b[:28] }},
		{name: "half a header", damage: func(b []byte) []byte { return b[:24] }},
		// The identification is known, so nothing is solved for.
		{name: "other identification", damage: func(b []byte) []byte { b[5]++; return b }, badICRC: 1},
		{name: "damaged", damage: func(b []byte) []byte { b[40]++; return b }, badICRC: 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			bad := z.stats[rxBadICRC]
			send(row.mac, row.damage(good()))
			send([6]byte{}, ipPacket(from, to, 7, 24)) // what follows is received
			want := 1
			if row.taken {
				want = 2
			}
			got := received(z, want)
			if len(got) != want {
				t.Fatalf("%d packets were taken, want %d", len(got), want)
			}
			if d := got[len(got)-1]; d.ID != 7 || len(d.Data) != bth.BTHLen+24 {
				t.Errorf("the next packet has identification %d and %d bytes", d.ID, len(d.Data))
			}
			if d := got[0]; row.taken && (d.ID != 0x1234 || d.HopLimit != 64 || d.Src != from || d.SrcPort != bth.Port || len(d.Data) != bth.BTHLen+20) {
				t.Errorf("%+v", d)
			}
			if n := z.stats[rxBadICRC] - bad; n != row.badICRC {
				t.Errorf("%d bad ICRCs were counted, want %d", n, row.badICRC)
			}
		})
	}
}

func TestRingIPv6(t *testing.T) {
	l, err := Open(Config{Addr: netip.IPv6Loopback(), Ring: true})
	if err != nil {
		t.Skipf("needs UDP port 4791 of ::1, CAP_NET_RAW and Linux 6.2: %v", err)
	}
	z := l.(*socket)
	t.Cleanup(func() { _ = l.Close() })
	b := ipPacket(netip.IPv6Loopback(), netip.IPv6Loopback(), 0, 20)
	b[1] |= 0x20 // ECT(0)
	rawSender(t)([6]byte{}, b)
	b = ipPacket(netip.IPv6Loopback(), netip.IPv6Loopback(), 0, 20)
	binary.BigEndian.PutUint16(b[44:], 2000) // UDP longer than IP
	rawSender(t)([6]byte{}, b)
	got := received(z, 1)
	if len(got) != 1 || got[0].TrafficClass != 2 || got[0].HopLimit != 64 || len(got[0].Data) != bth.BTHLen+20 {
		t.Errorf("%+v", got)
	}
	exchange(t, z, z, slices.Concat(repeat(40, 4096), repeat(5, 8)))
}

// What finds no slot is lost and counted, and the ring goes on.
func TestRingOverflows(t *testing.T) {
	a, z := open(t, 1, Config{NoGSO: true}), open(t, 2, Config{Ring: true, RecvBuffer: 1 << 16})
	slots := len(z.ring.slots)
	b := bth.NewBurst(1, 64)
	fill(b, pathTo(a, z), 8)
	const more = 10
	for range slots + more {
		a.Send(b)
	}
	if n := len(received(z, slots)); n != slots {
		t.Errorf("%d packets were received, the ring has %d slots", n, slots)
	}
	lost := uint64(0)
	z.Counters(func(name string, v uint64) {
		if name == counterNames[rxSocketFull] {
			lost = v
		}
	})
	if lost != more {
		t.Errorf("%d losses were counted, want %d", lost, more)
	}
	for range 3 {
		exchange(t, a, z, repeat(slots/2, 8))
	}
}

// Long runs for which there is no room any more are lost and counted; their slots
// keep the order of those that found some.
func TestRingLosesLongRuns(t *testing.T) {
	a, z := open(t, 1, Config{}), open(t, 2, Config{Ring: true, RecvBuffer: 1 << 16})
	if a.info.GSO == 1 {
		t.Skip("the kernel has no segmentation offload for UDP")
	}
	b := bth.NewBurst(16, 4096)
	fill(b, pathTo(a, z), slices.Concat(repeat(14, 4096), []int{8})...)
	const runs = 20
	for range runs {
		a.Send(b)
	}
	got := received(z, 15)
	if len(got)%15 != 0 || len(got) == 0 || len(got) == 15*runs {
		t.Fatalf("%d packets were received", len(got))
	}
	if lost := z.ring.lost; lost != runs-uint64(len(got)/15) {
		t.Errorf("%d runs counted as lost, %d packets received", lost, len(got))
	}
	exchange(t, a, z, repeat(20, 4096))
}

func TestRingSleepsUntilAPacketComes(t *testing.T) {
	a, z := open(t, 1, Config{}), open(t, 2, Config{Ring: true})
	for _, lengths := range [][]int{{8}, repeat(15, 4096)} {
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			time.Sleep(20 * time.Millisecond)
			b := bth.NewBurst(16, 4096)
			fill(b, pathTo(a, z), lengths...)
			a.Send(b)
		}()
		start := time.Now()
		z.Wait(ForLoop, 5*time.Second)
		if took := time.Since(start); took < 10*time.Millisecond || took > 4*time.Second {
			t.Errorf("woken up after %v", took)
		}
		<-sent // the link belongs to one at a time
		if n := len(received(z, len(lengths))); n != len(lengths) {
			t.Errorf("%d of %d packets", n, len(lengths))
		}
	}
}

// The port is held as by any link, so two cannot have it.
func TestRingHoldsThePort(t *testing.T) {
	z := open(t, 2, Config{Ring: true})
	var busy *InUseError
	if l, err := Open(Config{Addr: z.info.Addr}); !errors.As(err, &busy) {
		t.Errorf("%v", err)
		_ = l.Close()
	}
	if z.info.Kind != "packet ring" {
		t.Errorf("kind %q", z.info.Kind)
	}
}

// FuzzRingHeaders: whatever the bytes, what is taken lies inside them.
func FuzzRingHeaders(f *testing.F) {
	v4, v6 := netip.MustParseAddr("127.0.6.2"), netip.IPv6Loopback()
	f.Add(ipPacket(v4, v4, 5, 20))
	f.Add(ipPacket(v6, v6, 0, 20))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, local := range []netip.Addr{v4, v6} {
			r := packetRing{local: local, port: bth.Port}
			var d bth.Datagram
			at, n, ok := r.headers(b, &d)
			if ok && (at > len(b) || n < 0 || n > 1<<16 || d.Dst != local) {
				t.Errorf("payload of %d bytes at %d of %d", n, at, len(b))
			}
		}
	})
}

// A burst ends with the run that fills it, however short the runs in the slots are.
func TestRingBurstIsBounded(t *testing.T) {
	a, z := open(t, 1, Config{}), open(t, 2, Config{Ring: true})
	if a.info.GSO == 1 {
		t.Skip("the kernel has no segmentation offload for UDP")
	}
	b := bth.NewBurst(64, 64)
	fill(b, pathTo(a, z), repeat(64, 8)...)
	const runs = 30
	for range runs {
		a.Send(b)
	}
	total := 0
	for range runs {
		n := len(z.Receive())
		if n > burstSize {
			t.Fatalf("a burst of %d datagrams", n)
		}
		total += n
	}
	if total != runs*64 {
		t.Errorf("%d datagrams in %d bursts, %d were sent", total, runs, runs*64)
	}
}
