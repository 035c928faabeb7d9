package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
)

// open opens a link on a loopback address of this package's tests.
func open(t testing.TB, last byte, c Config) *socket {
	t.Helper()
	c.Addr = netip.AddrFrom4([4]byte{127, 0, 6, last})
	l, err := Open(c)
	if errors.Is(err, ErrRing) {
		t.Skipf("needs CAP_NET_RAW and Linux 6.2: %v", err)
	}
	if err != nil {
		t.Skipf("needs UDP port 4791 on loopback: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*socket)
}

// fill puts packets with the given payload lengths into a burst, on one path.
func fill(b *bth.Burst, path *bth.Path, lengths ...int) {
	for k, n := range lengths {
		p := bth.Packet{BTH: bth.BTH{Opcode: bth.SendMiddle, DestQP: bth.QPN(0x100 + k), PSN: bth.NewPSN(uint32(k)), PKey: bth.PKeyDefault, PadCount: bth.Pad(n)}}
		f := b.Next()
		f.Path, f.Payload = path, bytes.Repeat([]byte{byte(k + 1)}, n)
		f.SetHeaders(&p)
	}
}

func pathTo(from, to *socket) *bth.Path {
	return &bth.Path{Src: from.info.Addr, Dst: to.info.Addr, SrcPort: from.info.SrcPorts[0]}
}

func repeat(n, length int) []int { return slices.Repeat([]int{length}, n) }

// A run is equally long packets to one place, and one shorter at its end.
func TestRunsAreEqualPacketsAndOneShorter(t *testing.T) {
	for _, row := range []struct {
		lengths, runs []int
	}{
		{[]int{64}, []int{1}},
		{[]int{64, 64, 64}, []int{3}},
		{[]int{64, 64, 32}, []int{3}},
		{[]int{64, 32, 64}, []int{2, 1}},
		{[]int{64, 32, 32}, []int{2, 1}},
		{[]int{32, 64, 64}, []int{1, 2}},
		{[]int{80, 64, 64, 64, 60}, []int{2, 3}}, // the first packet of a WRITE is longer
		{repeat(130, 8), []int{128, 2}},          // the kernel's limit
		{repeat(33, 4096), []int{15, 15, 3}},     // the longest datagram
	} {
		s := &socket{info: Info{GSO: maxSegments}}
		b := bth.NewBurst(256, 4096)
		fill(b, &bth.Path{Src: netip.MustParseAddr("127.0.6.1"), Dst: netip.MustParseAddr("127.0.6.2")}, row.lengths...)
		var got []int
		for frames := b.Frames(); len(frames) > 0; {
			n := s.run(frames)
			got, frames = append(got, n), frames[n:]
		}
		if !slices.Equal(got, row.runs) {
			t.Errorf("%v: runs %v, want %v", row.lengths, got, row.runs)
		}
	}
}

func TestRunEndsWhereThePathChanges(t *testing.T) {
	base := bth.Path{Src: netip.MustParseAddr("127.0.6.1"), Dst: netip.MustParseAddr("127.0.6.2"), SrcPort: 4791}
	same, class, port, dst := base, base, base, base
	class.TrafficClass, port.SrcPort, dst.Dst = 2, 4792, netip.MustParseAddr("127.0.6.3")
	for name, row := range map[string]struct {
		path *bth.Path
		want int
	}{"equal": {&same, 2}, "traffic class": {&class, 1}, "source port": {&port, 1}, "destination": {&dst, 1}} {
		s := &socket{info: Info{GSO: maxSegments}}
		b := bth.NewBurst(2, 64)
		fill(b, &base, 64)
		fill(b, row.path, 64)
		if got := s.run(b.Frames()); got != row.want {
			t.Errorf("%s: a run of %d, want %d", name, got, row.want)
		}
	}
}

// Whatever the offloads do, the packets arrive as they were sent, in order. A
// segment's ICRC was made for its place in the run, which is the identification
// that the kernel gives it.
func TestRunsArriveAsTheyWereSent(t *testing.T) {
	lengths := slices.Concat([]int{4080}, repeat(40, 4096), []int{17, 0, 1, 2, 3}, repeat(130, 8), []int{4})
	for _, row := range []struct {
		name   string
		from   Config
		to     Config
		gso    bool
		merged bool
	}{
		{name: "all", gso: true, merged: true},
		{name: "no GSO", from: Config{NoGSO: true}},
		{name: "no GRO", to: Config{NoGRO: true}, gso: true},
		{name: "neither", from: Config{NoGSO: true}, to: Config{NoGRO: true}},
		{name: "source ports", from: Config{SrcPorts: 4}, gso: true, merged: true},
		{name: "ring", to: Config{Ring: true}, gso: true, merged: true},
		{name: "ring, no GSO", from: Config{NoGSO: true}, to: Config{Ring: true}},
	} {
		t.Run(row.name, func(t *testing.T) {
			a, z := open(t, 1, row.from), open(t, 2, row.to)
			if row.gso && a.info.GSO == 1 || row.merged && !z.info.GRO {
				t.Skip("the kernel has no segmentation offload for UDP")
			}
			sent := exchange(t, a, z, lengths)
			if got := a.stats[txSegmented] > 0; got != row.gso {
				t.Errorf("%d runs were sent", a.stats[txSegmented])
			}
			if got := z.stats[rxCoalesced] > 0; got != row.merged {
				t.Errorf("%d runs were received", z.stats[rxCoalesced])
			}
			for i, d := range sent {
				if !row.gso && d.ID != 0 {
					t.Errorf("packet %d has identification %d", i, d.ID)
				}
			}
			if n := z.stats[rxSolvedID]; row.gso && !row.merged && n == 0 || row.merged && n > uint64(len(lengths)/10) {
				t.Errorf("%d identifications had to be solved for", n)
			}
		})
	}
}

// exchange sends packets and checks that they arrive.
func exchange(t *testing.T, from, to *socket, lengths []int) (got []bth.Datagram) {
	t.Helper()
	b := bth.NewBurst(256, 4096)
	fill(b, pathTo(from, to), lengths...)
	from.Send(b)
	for end := time.Now().Add(2 * time.Second); len(got) < len(lengths); {
		for _, d := range to.Receive() {
			k := len(got)
			f := &b.Frames()[k]
			want := slices.Concat(f.Header(), f.Payload, make([]byte, bth.Pad(len(f.Payload))))
			if !bytes.Equal(d.Data, want) || d.Src != from.info.Addr || d.SrcPort != f.Path.SrcPort {
				t.Fatalf("packet %d of %d bytes from %v:%d, want %d bytes", k, len(d.Data), d.Src, d.SrcPort, len(want))
			}
			d.Data = nil
			got = append(got, d)
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d packets arrived; %v", len(got), len(lengths), to.stats)
		}
	}
	return got
}

// A kernel that refuses a run gets its packets one by one, sealed again: alone
// they have identification 0.
func TestRefusedRunIsSentPacketByPacket(t *testing.T) {
	a, z := open(t, 1, Config{}), open(t, 2, Config{})
	if a.info.GSO == 1 {
		t.Skip("the kernel has no segmentation offload for UDP")
	}
	a.info.GSO = 200 // more than any kernel takes
	for _, d := range exchange(t, a, z, repeat(200, 8)) {
		if d.ID != 0 {
			t.Fatalf("identification %d", d.ID)
		}
	}
	if a.stats[txFallback] != 1 || a.info.GSO != 1 || a.stats[txErrors] != 0 {
		t.Errorf("%d fallbacks, limit %d, %d errors", a.stats[txFallback], a.info.GSO, a.stats[txErrors])
	}
}

// A run that fails for where it goes says nothing about runs to others: the
// kernel gives the same error for both.
func TestRunToBadAddressLeavesOffloadOn(t *testing.T) {
	s, z := open(t, 1, Config{}), open(t, 2, Config{})
	if s.info.GSO == 1 {
		t.Skip("the kernel has no segmentation offload for UDP")
	}
	gso := s.info.GSO
	b := bth.NewBurst(64, 4096)
	bad := pathTo(s, z)
	bad.Dst = netip.MustParseAddr("0.0.0.5") // "this network": EINVAL
	good := pathTo(s, z)
	fill(b, bad, repeat(3, 100)...)
	fill(b, good, repeat(5, 100)...)
	s.Send(b)
	if s.info.GSO != gso {
		t.Errorf("runs are now of %d packets, %d before", s.info.GSO, gso)
	}
	if s.stats[txErrors] != 3 || s.stats[txPackets] != 5 || s.stats[txFallback] != 0 {
		t.Errorf("%d failed, want 3; %d sent, want 5; %d fallbacks", s.stats[txErrors], s.stats[txPackets], s.stats[txFallback])
	}
}

func TestOffloadsAreSwitchedOffByEnvironment(t *testing.T) {
	t.Setenv("GOROCE_GSO", "0")
	t.Setenv("GOROCE_GRO", "0")
	if i := open(t, 1, Config{}).Info(); i.GSO != 1 || i.GRO {
		t.Errorf("GSO %d, GRO %v", i.GSO, i.GRO)
	}
}

// The longest datagram there is does no harm, with or without coalescing.
func TestDatagramLongerThanAnyPacketIsCounted(t *testing.T) {
	for _, c := range []Config{{}, {NoGRO: true}, {Ring: true}} {
		t.Run(fmt.Sprintf("no GRO %v, ring %v", c.NoGRO, c.Ring), func(t *testing.T) {
			a, z := open(t, 1, Config{}), open(t, 2, c)
			raw := make([]byte, maxRun)
			b := bth.NewBurst(1, 4096)
			fill(b, pathTo(a, z), 8)
			b.Frames()[0].Payload = raw[:maxRun-100]
			a.Send(b)
			for end := time.Now().Add(time.Second); z.stats[rxTruncated] == 0; {
				if len(z.Receive()) > 0 || time.Now().After(end) {
					t.Fatal(z.stats)
				}
			}
		})
	}
}

// Sending and receiving bursts allocates nothing.
func TestSocketDoesNotAllocate(t *testing.T) {
	for _, c := range []Config{{}, {Ring: true}} {
		t.Run(fmt.Sprintf("ring %v", c.Ring), func(t *testing.T) { doesNotAllocate(t, open(t, 1, Config{}), open(t, 2, c)) })
	}
}

func doesNotAllocate(t *testing.T, a, z *socket) {
	b := bth.NewBurst(64, 4096)
	fill(b, pathTo(a, z), slices.Concat(repeat(32, 4096), repeat(32, 8))...)
	round := func() {
		a.Send(b)
		for n := 0; n < 64; n += len(z.Receive()) {
		}
	}
	round()
	if n := testing.AllocsPerRun(20, round); n != 0 {
		t.Errorf("%v allocations per burst", n)
	}
}

// The kernel gives a packet to the socket that its destination QPN names.
func TestShardsGetThePacketsOfTheirQueuePairs(t *testing.T) {
	for _, ring := range []bool{false, true} {
		t.Run(fmt.Sprintf("ring %v", ring), func(t *testing.T) {
			shardsGetTheirs(t, Config{Addr: netip.MustParseAddr("127.0.6.3"), NoGRO: true, Ring: ring})
		})
	}
}

func shardsGetTheirs(t *testing.T, c Config) {
	const n = 4
	links, err := OpenShards(c, n)
	if errors.Is(err, ErrRing) {
		t.Skipf("needs CAP_NET_RAW and Linux 6.2: %v", err)
	}
	if err != nil {
		t.Skipf("needs UDP port 4791 on loopback: %v", err)
	}
	for _, l := range links {
		t.Cleanup(func() { _ = l.Close() })
	}
	if len(links) != n {
		t.Fatalf("%d links", len(links))
	}
	if _, err := Open(c); err == nil {
		t.Fatal("another link got the address of the shards")
	}
	if _, err := OpenShards(c, n); err == nil {
		t.Fatal("other shards joined")
	}
	a := open(t, 1, Config{NoGSO: true})
	b := bth.NewBurst(64, 64)
	fill(b, pathTo(a, links[0].(*socket)), repeat(64, 8)...)
	a.Send(b)
	total := 0
	for end := time.Now().Add(2 * time.Second); total < 64 && time.Now().Before(end); {
		for i, l := range links {
			for _, d := range l.Receive() {
				total++
				if got := int(d.Data[7]) % n; got != i {
					t.Errorf("shard %d got a packet for QPN %#x", i, d.Data[5:8])
				}
			}
		}
	}
	if total != 64 {
		t.Errorf("%d of 64 packets arrived", total)
	}
}

// Source ports are those by which this stack knows itself, and 4791 alone on
// loopback unless asked for more.
func TestSourcePorts(t *testing.T) {
	for asked, want := range map[int]int{0: 1, 1: 1, 3: 4, 1000: 64} {
		t.Run(fmt.Sprint(asked), func(t *testing.T) {
			ports := open(t, 1, Config{SrcPorts: asked}).Info().SrcPorts
			if len(ports) != want {
				t.Fatalf("ports %v", ports)
			}
			for _, p := range ports {
				if !bth.OwnSrcPort(p) || (want == 1) != (p == bth.Port) {
					t.Errorf("port %d", p)
				}
			}
		})
	}
}

// Every packet arrives with the traffic class of its path, whichever is the
// socket's default by now.
func TestTrafficClassArrives(t *testing.T) {
	a, z := open(t, 1, Config{}), open(t, 2, Config{})
	classes := []uint8{0, 2, 0x6A}
	for round := range 300 {
		path := pathTo(a, z)
		path.TrafficClass = classes[round/100]
		if round%10 == 9 {
			path.TrafficClass = classes[round%3]
		}
		other := *path
		other.TrafficClass ^= 0x80
		b := bth.NewBurst(2, 64)
		fill(b, path, 8)
		fill(b, &other, 8)
		a.Send(b)
		var got []uint8
		for end := time.Now().Add(time.Second); len(got) < 2 && time.Now().Before(end); {
			for _, d := range z.Receive() {
				got = append(got, d.TrafficClass)
			}
		}
		if want := []uint8{path.TrafficClass, other.TrafficClass}; !slices.Equal(got, want) {
			t.Fatalf("round %d: classes %#x, want %#x", round, got, want)
		}
	}
	if a.class != classes[2] {
		t.Errorf("the default is %#x, not the most frequent %#x", a.class, classes[2])
	}
}
