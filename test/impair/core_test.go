package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	glayers "github.com/google/gopacket/layers"
	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/bth/layers"
	"github.com/goroce/goroce/congestion"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// packet is a RoCE packet of a path in an Ethernet frame of the length, from host src
// to host dst.
func packet(p bth.Path, src, dst byte, opcode bth.Opcode, length int) []byte {
	b := make([]byte, ethLen)
	b[5], b[11] = dst, src
	b[12], b[13] = 0x08, 0x00
	headers := 20 + 8
	if p.Src.Is6() {
		b[12], b[13] = 0x86, 0xdd
		headers = 40 + 8
	}
	hdr := (&bth.BTH{Opcode: opcode, DestQP: 7}).AppendTo(nil)
	payload := make([]byte, length-ethLen-headers-len(hdr)-bth.ICRCLen)
	icrc := bth.AppendICRC(nil, p.ICRC(0, hdr, payload, 0))
	return p.AppendDatagram(b, 0, hdr, payload, icrc)
}

var (
	v4 = bth.Path{Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"), SrcPort: 0xC001, TrafficClass: 0x6A, HopLimit: 64}
	v6 = bth.Path{Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2"), SrcPort: 0xC001, TrafficClass: 0x6A, HopLimit: 64}
)

// The mark changes the ECN bits alone; IPv4's checksum and the ICRC stay right.
func TestMarkKeepsChecksums(t *testing.T) {
	for _, p := range []bth.Path{v4, v6} {
		for class := range 64 {
			p.TrafficClass = byte(class<<2) | congestion.ECT0
			b := packet(p, 1, 2, bth.WriteMiddle, 300)
			if bits, ok := ecn(b); !ok || bits != congestion.ECT0 {
				t.Fatalf("ECN bits %d, %v", bits, ok)
			}
			mark(b)
			if bits, _ := ecn(b); bits != markCE {
				t.Fatalf("ECN bits %d after the mark", bits)
			}
			marked := p
			marked.TrafficClass |= congestion.CE
			if want := packet(marked, 1, 2, bth.WriteMiddle, 300); string(b) != string(want) {
				t.Fatalf("class %#x: got\n% x, want\n% x", p.TrafficClass, b[:60], want[:60])
			}
			if parsed := gopacket.NewPacket(b, glayers.LayerTypeEthernet, gopacket.Default); parsed.Layer(layers.LayerTypeBTH) == nil {
				t.Fatalf("gopacket finds no BTH: %v", parsed)
			}
		}
	}
}

func TestClassify(t *testing.T) {
	fragment := packet(v4, 1, 2, bth.WriteMiddle, 300)
	fragment[ethLen+7] = 1
	arp := make([]byte, 60)
	arp[12], arp[13] = 0x08, 0x06
	for _, row := range []struct {
		what string
		b    []byte
		want kind
	}{
		{"IPv4", packet(v4, 1, 2, bth.WriteMiddle, 300), roce},
		{"IPv6", packet(v6, 1, 2, bth.WriteMiddle, 300), roce},
		{"CNP", packet(v4, 1, 2, bth.CNP, 100), cnp},
		{"fragment", fragment, other},
		{"ARP", arp, other},
		{"cut", packet(v4, 1, 2, bth.WriteMiddle, 300)[:ethLen+28], other},
		{"empty", nil, other},
	} {
		if got := classify(row.b); got != row.want {
			t.Errorf("%s: %d, want %d", row.what, got, row.want)
		}
	}
}

// bench is a switch between hosts 0 and 1, which knows their addresses.
type bench struct {
	*core
	testing.TB
}

func newBench(t testing.TB, c Conditions) *bench {
	b := &bench{newCore(3, 2048), t}
	b.reset(0, 1, []Conditions{{}, c, {}})
	b.put(0, 1, 0, packet(v4, 1, 2, bth.Acknowledge, 100))
	b.advance(0)
	if got := b.out(0, 0) + b.out(2, 0); got != 2 {
		t.Fatalf("the first frame left by %d ports, want the 2 others", got)
	}
	b.mark()
	return b
}

// put lets a frame arrive from a port; the sequence number goes into the first bytes
// of its payload.
func (b *bench) put(now time.Duration, from, n int, data []byte) {
	f := b.take()
	if f == nil {
		b.Fatal("no frame is left")
	}
	f.data = append(f.buf[:0], data...)
	if len(data) > 62 {
		f.data[60], f.data[61] = byte(n>>8), byte(n)
	}
	b.arrive(now, from, f)
}

// out takes what has left by a port until now, and returns how many.
func (b *bench) out(to int, now time.Duration) int { return len(b.order(to, now)) }

func (b *bench) order(to int, now time.Duration) (l []int) {
	p := b.ports[to]
	for f := p.wire.first(); f != nil && f.at <= now; f = p.wire.first() {
		p.wire.pop()
		n := 0
		if len(f.data) > 62 {
			n = int(f.data[60])<<8 | int(f.data[61])
		}
		l = append(l, n)
		b.give(f)
	}
	return l
}

func data() []byte { return packet(v4, 2, 1, bth.WriteMiddle, 1000) } // from port 0 to port 1

// A line of 8 Mb/s takes 1 ms for 1000 bytes, whenever one comes to look; frames
// arrive after the delay.
func TestPortSendsAtItsRate(t *testing.T) {
	b := newBench(t, Conditions{Rate: 8 * congestion.Mbps, Delay: 10 * ms})
	for i := range 5 {
		b.put(0, 0, i, data())
	}
	b.advance(3500 * us)
	if n := b.out(1, 12999*us); n != 2 {
		t.Errorf("%d frames after 12.999 ms, want 2", n)
	}
	b.advance(20 * ms)
	if n := b.out(1, 13*ms); n != 1 {
		t.Errorf("%d frames at 13 ms, want 1", n)
	}
	if n := b.out(1, 20*ms); n != 2 {
		t.Errorf("%d frames later, want 2", n)
	}
	q := b.ports[1].record.queue()
	if q.Max != 5000 || q.Mean < 700 || q.Mean > 800 { // (5+4+3+2+1)/20 KB
		t.Errorf("queue %+v, want 5000 at most and 750 in the mean", q)
	}
}

// The queue takes what fits; RED marks between the thresholds by chance, beyond them
// always, and drops there what may not be marked.
func TestPortMarksAndDrops(t *testing.T) {
	b := newBench(t, Conditions{Rate: 8 * congestion.Mbps, Limit: 300_000, Kmin: 50_000, Kmax: 150_000, Pmax: .5})
	for i := range 400 {
		b.put(0, 0, i, data())
	}
	b.advance(0)
	p := b.ports[1]
	// 149 above Kmax, and of 100 between the thresholds a quarter in the mean.
	if p.DroppedFull != 100 || p.DroppedRED != 0 || p.Marked < 149+10 || p.Marked > 149+40 {
		t.Errorf("%+v", p.Counts)
	}
	b = newBench(t, Conditions{Rate: 8 * congestion.Mbps, Limit: 300_000, Kmin: 50_000, Kmax: 150_000, Pmax: .5})
	plain := v4
	plain.TrafficClass = 0
	for i := range 400 {
		b.put(0, 0, i, packet(plain, 2, 1, bth.WriteMiddle, 1000))
	}
	b.advance(0)
	if p := b.ports[1]; p.DroppedFull != 0 || p.DroppedRED != 400-151 || p.Marked != 0 {
		t.Errorf("not to be marked: %+v", p.Counts)
	}
}

// Losses come as often as they should, and never to ARP.
func TestPortLoses(t *testing.T) {
	b := newBench(t, Conditions{Loss: .1})
	arp := make([]byte, 60)
	copy(arp, data()[:12])
	arp[12], arp[13] = 0x08, 0x06
	for i := range 5000 {
		now := time.Duration(i) * us
		b.put(now, 0, i, data())
		b.put(now, 0, i, arp)
		b.advance(now)
		b.out(1, now)
	}
	if p := b.ports[1]; p.Lost < 400 || p.Lost > 600 || p.Frames != 10000-p.Lost {
		t.Errorf("%+v", p.Counts)
	}
}

// A frame that is held back comes out behind as many others as asked for; nothing is
// lost, and without company it waits no longer than they would have taken.
func TestPortHoldsBack(t *testing.T) {
	b := newBench(t, Conditions{Rate: 8 * congestion.Mbps, Reorder: .05, ReorderBy: 3})
	const n = 2000
	for i := range n {
		b.put(time.Duration(i)*ms, 0, i, data())
	}
	b.advance(n*ms + 10*ms)
	seen, late := map[int]bool{}, 0
	for at, k := range b.order(1, n*ms+10*ms) {
		if seen[k] {
			t.Fatalf("%d comes twice", k)
		}
		seen[k] = true
		if k < at-1 {
			late++
		}
	}
	p := b.ports[1]
	if len(seen) != n || p.Held < 60 || p.Held > 140 || late < int(p.Held)*8/10 || p.Overtook != 3 {
		t.Errorf("%d frames, %d late, %+v", len(seen), late, p.Counts)
	}

	b = newBench(t, Conditions{Rate: 8 * congestion.Mbps, Reorder: 1, ReorderBy: 3})
	b.put(0, 0, 1, data())
	b.advance(4 * ms)
	if b.out(1, 4*ms) != 0 {
		t.Error("not held back")
	}
	if next := b.next(); next > 5*ms {
		t.Errorf("next look at %v", next)
	}
	b.advance(5 * ms)
	if b.out(1, 5*ms) != 1 {
		t.Error("held back for ever")
	}
}

// Frames cost no memory once there were as many.
func TestCoreDoesNotAllocate(t *testing.T) {
	b := newBench(t, Conditions{Rate: congestion.Gbps, Kmin: 1000, Kmax: 100_000, Pmax: .1, Loss: .01, Reorder: .1, ReorderBy: 3})
	now, d := time.Duration(0), data()
	round := func() {
		for range 10 {
			f := b.take()
			f.data = append(f.buf[:0], d...)
			b.arrive(now, 0, f)
		}
		now += 100 * us
		b.advance(now)
		for f := b.ports[1].wire.first(); f != nil && f.at <= now; f = b.ports[1].wire.first() {
			b.give(b.ports[1].wire.pop())
		}
	}
	for range 50 {
		round()
	}
	// A row each 10 ms is what is recorded.
	if n := testing.AllocsPerRun(1000, round); n > .1 {
		t.Errorf("%v allocations for ten frames", n)
	}
}
