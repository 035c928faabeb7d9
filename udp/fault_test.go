package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
)

// wire is a link whose other side is the test.
type wire struct {
	Link                 // for what the tests do not call
	sent    []bth.Packet // parsed, if the ICRC was good
	classes []uint8
	bad     int // with a wrong ICRC
	arrive  []bth.Datagram
	waits   []time.Duration
	wakes   int
}

func (w *wire) Info() Info { return Info{Kind: "test"} }
func (w *wire) Receive() []bth.Datagram {
	in := w.arrive
	w.arrive = nil
	return in
}

func (w *wire) Send(b *bth.Burst) {
	for i := range b.Frames() {
		f := &b.Frames()[i]
		f.Seal(0)
		raw := f.AppendTo(nil)
		if _, ok := f.Path.CheckICRC(raw); !ok {
			w.bad++
			continue
		}
		w.sent = append(w.sent, parsed(raw[:len(raw)-bth.ICRCLen]))
		w.classes = append(w.classes, f.Path.TrafficClass)
	}
}

// parsed reads a packet even if its opcode or version is none.
func parsed(raw []byte) bth.Packet {
	var p bth.Packet
	if p.Parse(raw) != nil {
		p.BTH, p.Payload, _ = bth.ParseBTH(raw)
	}
	return p
}

func (w *wire) Wait(_ Waiter, d time.Duration) { w.waits = append(w.waits, d) }
func (w *wire) Wake()                          { w.wakes++ }
func (w *wire) Counters(func(string, uint64))  {}
func (w *wire) Close() error                   { return nil }

// rig is a faulty link on a wire, with a clock that the test moves.
type rig struct {
	t     testing.TB
	wire  wire
	link  Link
	clock atomic.Int64
	burst *bth.Burst
	path  bth.Path
	raw   [][]byte
}

func newRig(t testing.TB, spec string) *rig {
	t.Helper()
	rules, err := ParseFaults(spec)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, burst: bth.NewBurst(burstSize, 4096), path: bth.Path{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: bth.Port, TrafficClass: 0x40,
	}}
	if r.link, err = WithFaults(&r.wire, FaultConfig{Rules: rules, Seed: 1, Clock: r.now}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) now() time.Duration { return time.Duration(r.clock.Load()) }

// send sends packets as one burst and returns what reached the wire with a good
// ICRC.
func (r *rig) send(ps ...bth.Packet) []bth.Packet {
	r.t.Helper()
	r.wire.sent, r.wire.classes = nil, nil
	r.burst.Reset()
	for i := range ps {
		p := ps[i]
		f := r.burst.Next()
		f.Path, f.Payload = &r.path, p.Payload
		p.PadCount = bth.Pad(len(p.Payload))
		f.SetHeaders(&p)
	}
	r.link.Send(r.burst)
	// What the engine does with its memory afterwards must not matter.
	for i := range ps {
		clear(ps[i].Payload)
	}
	return r.wire.sent
}

// receive lets packets arrive and returns what the link hands up.
func (r *rig) receive(ps ...bth.Packet) (got []bth.Packet) {
	r.t.Helper()
	r.wire.classes = nil
	for _, raw := range r.raw {
		clear(raw) // as a link uses its buffers again
	}
	r.raw = r.raw[:0]
	for i := range ps {
		p := ps[i]
		raw := p.AppendTo(nil)
		r.raw = append(r.raw, raw)
		r.wire.arrive = append(r.wire.arrive, bth.Datagram{Src: r.path.Dst, Dst: r.path.Src, SrcPort: bth.Port, TrafficClass: 0x40, Data: raw})
	}
	for _, d := range r.link.Receive() {
		p := parsed(d.Data)
		p.Payload = bytes.Clone(p.Payload)
		got = append(got, p)
		r.wire.classes = append(r.wire.classes, d.TrafficClass)
	}
	return got
}

// pass moves packets through the link in a direction.
func (r *rig) pass(d Direction, ps ...bth.Packet) []bth.Packet {
	if d == DirRX {
		return r.receive(ps...)
	}
	return r.send(ps...)
}

func (r *rig) counter(name string) (value uint64) {
	r.t.Helper()
	found := false
	r.link.Counters(func(n string, v uint64) {
		if n == name {
			value, found = v, true
		}
	})
	if !found {
		r.t.Fatalf("there is no counter %q", name)
	}
	return value
}

func packet(op bth.Opcode, qp bth.QPN, psn int) bth.Packet {
	p := bth.Packet{BTH: bth.BTH{Opcode: op, DestQP: qp, PSN: bth.NewPSN(uint32(psn)), MigReq: true, PKey: bth.PKeyDefault}}
	if p.Opcode.Info().Payload {
		p.Payload = []byte{byte(psn), 2, 3, 4, 5}
	}
	return p
}

// middles returns n consecutive packets.
func middles(n int) (ps []bth.Packet) {
	for i := range n {
		ps = append(ps, packet(bth.WriteMiddle, 7, i))
	}
	return ps
}

// psns lists the PSNs of packets. A payload that is not the packet's own, because
// its memory was used again, shows as !.
func psns(ps []bth.Packet) string {
	var s []string
	for i := range ps {
		n := ps[i].PSN.String()
		if p := ps[i].Payload; ps[i].Opcode == bth.WriteMiddle && (len(p) != 5 || p[4] != 5) {
			n += "!"
		}
		s = append(s, n)
	}
	return strings.Join(s, " ")
}

// inDirection adds dir=rx to the rules if that is meant.
func inDirection(spec string, d Direction) string {
	if d == DirTX {
		return spec
	}
	return strings.ReplaceAll(spec, ";", " dir=rx;") + " dir=rx"
}

func TestWithFaultsWithoutRulesIsTheLinkItself(t *testing.T) {
	w := &wire{}
	l, err := WithFaults(w, FaultConfig{})
	if err != nil || l != w {
		t.Errorf("%v, %v", l, err)
	}
}

// Each selector and each action, by what becomes of a row of ten packets.
func TestFaultsOnARowOfPackets(t *testing.T) {
	for _, row := range []struct {
		spec, want string
		counter    string
		count      uint64
	}{
		{"drop n=3", "0 1 3 4 5 6 7 8 9", "fault_dropped", 1},
		{"drop n=3-5", "0 1 5 6 7 8 9", "fault_dropped", 3},
		{"drop n=3-", "0 1", "fault_dropped", 8},
		{"drop every=4", "0 1 2 4 5 6 8 9", "fault_dropped", 2},
		{"drop n=5- every=4", "0 1 2 3 4 5 6 8 9", "fault_dropped", 1},
		{"drop max=2", "2 3 4 5 6 7 8 9", "fault_dropped", 2},
		{"drop every=2 max=3", "0 2 4 6 7 8 9", "fault_dropped", 3},
		{"drop p=0", "0 1 2 3 4 5 6 7 8 9", "fault_dropped", 0},
		{"drop p=1", "", "fault_dropped", 10},
		{"drop psn=3", "0 1 2 4 5 6 7 8 9", "fault_dropped", 1},
		{"drop psn=+2-4", "0 1 5 6 7 8 9", "fault_dropped", 3},
		{"drop qp=7 n=1", "1 2 3 4 5 6 7 8 9", "fault_dropped", 1},
		{"drop qp=8", "0 1 2 3 4 5 6 7 8 9", "fault_dropped", 0},
		{"drop op=write_middle n=1", "1 2 3 4 5 6 7 8 9", "fault_dropped", 1},
		{"drop op=write_first|ack", "0 1 2 3 4 5 6 7 8 9", "fault_dropped", 0},
		{"drop try=1", "", "fault_dropped", 10},
		{"drop try=2", "0 1 2 3 4 5 6 7 8 9", "fault_dropped", 0},
		{"dup n=2", "0 1 1 2 3 4 5 6 7 8 9", "fault_duplicated", 1},
		{"dup=3 n=2", "0 1 1 1 1 2 3 4 5 6 7 8 9", "fault_duplicated", 1},
		{"reorder=1 n=2", "0 2 1 3 4 5 6 7 8 9", "fault_reordered", 1},
		{"reorder=3 n=2", "0 2 3 4 1 5 6 7 8 9", "fault_reordered", 1},
		{"reorder=2 n=2-3", "0 3 4 1 2 5 6 7 8 9", "fault_reordered", 2},
		{"reorder=1 n=1; reorder=4 n=2", "2 0 3 4 5 1 6 7 8 9", "fault_reordered", 2},
		{"reorder=1; drop n=2-", "", "fault_reordered", 1},
		{"set psn=+100 n=2", "0 101 2 3 4 5 6 7 8 9", "fault_rewritten", 1},
		// Several rules: each sees the packets as they came and counts all.
		{"drop n=2; drop n=3", "0 3 4 5 6 7 8 9", "fault_dropped", 2},
		{"drop n=2; dup n=2-3", "0 2 2 3 4 5 6 7 8 9", "fault_duplicated", 1},
		{"set psn=9 n=1; drop psn=9", "9 1 2 3 4 5 6 7 8", "fault_rewritten", 1},
		// The original at once, the copy late.
		{"dup n=2; reorder=2 n=2", "0 1 2 3 1 4 5 6 7 8 9", "fault_reordered", 1},
	} {
		for d := DirTX; d <= DirRX; d++ {
			for _, at := range []int{10, 1} { // packets per burst
				t.Run(fmt.Sprintf("%s/%v/%d", row.spec, d, at), func(t *testing.T) {
					r := newRig(t, inDirection(row.spec, d))
					var got []bth.Packet
					for i := 0; i < 10; i += at {
						got = append(got, r.pass(d, middles(10)[i:i+at]...)...)
					}
					if s := psns(got); s != row.want {
						t.Errorf("got  %s\nwant %s", s, row.want)
					}
					if n := r.counter(row.counter); n != row.count {
						t.Errorf("%s is %d, want %d", row.counter, n, row.count)
					}
				})
			}
		}
	}
}

// What reaches neither the engine nor the peer: a good ICRC.
func TestFaultCorrupt(t *testing.T) {
	r := newRig(t, "corrupt n=2; corrupt dir=rx n=3")
	if got := psns(r.send(middles(3)...)); got != "0 2" || r.wire.bad != 1 {
		t.Errorf("sent well: %s, badly: %d; want 0 2 and 1", got, r.wire.bad)
	}
	if got := psns(r.send(middles(3)...)); got != "0 1 2" || r.wire.bad != 1 {
		t.Errorf("the frame that was corrupted is used again: sent well: %s, badly: %d", got, r.wire.bad)
	}
	if got := psns(r.receive(middles(4)...)); got != "0 1 3" {
		t.Errorf("received %s, want 0 1 3", got)
	}
	if n := r.counter("fault_corrupted"); n != 2 {
		t.Errorf("fault_corrupted is %d, want 2", n)
	}
	// Held copies are corrupt as well, and the original with them.
	r = newRig(t, "corrupt n=1; dup n=1; delay=1ms n=1")
	r.send(middles(1)...)
	r.clock.Store(int64(time.Millisecond))
	r.link.Receive()
	if r.wire.bad != 2 {
		t.Errorf("%d bad packets, want 2", r.wire.bad)
	}
}

func TestFaultCE(t *testing.T) {
	for d := DirTX; d <= DirRX; d++ {
		r := newRig(t, inDirection("ce n=2; delay=1ms n=2-3; dup n=2-3", d))
		r.pass(d, middles(4)...)
		if want := []uint8{0x40, 0x43, 0x40, 0x40}; !slices.Equal(r.wire.classes, want) {
			t.Errorf("%v: traffic classes %#x, want %#x", d, r.wire.classes, want)
		}
		r.clock.Store(int64(time.Millisecond))
		r.wire.classes = nil
		if r.receive(); !slices.Equal(r.wire.classes, []uint8{0x43, 0x40}) {
			t.Errorf("%v: traffic classes of the copies %#x, want 0x43 0x40", d, r.wire.classes)
		}
		if r.path.TrafficClass != 0x40 {
			t.Error("the engine's path was changed")
		}
		if n := r.counter("fault_marked"); n != 1 {
			t.Errorf("%v: fault_marked is %d, want 1", d, n)
		}
	}
}

func TestFaultCERefusedWhereTheLinkHasNoECN(t *testing.T) {
	portable := &portable{info: Info{Kind: "portable socket", NoTrafficClass: true}}
	_, err := WithFaults(portable, FaultConfig{Rules: []FaultRule{{Fault: FaultCE}}})
	want := `fault rule 1, word 1 "ce": a portable socket cannot mark what it sends; it can with dir=rx`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := WithFaults(portable, FaultConfig{Rules: []FaultRule{{Fault: FaultCE, Dir: DirRX}}}); err != nil {
		t.Error(err)
	}
}

// Every field of the grammar, set and added to, in the headers of a packet that
// has it; the headers around it stay as they were.
func TestFaultSetChangesTheFieldAndNothingElse(t *testing.T) {
	base := bth.Packet{
		BTH:  bth.BTH{Opcode: bth.WriteOnlyImm, DestQP: 7, PSN: bth.NewPSN(0xFFFFFF), MigReq: true, PKey: bth.PKeyDefault, AckReq: true},
		RETH: bth.RETH{VA: 0x1000, RKey: 0xFFFFFFFF, Length: 3}, Imm: 5, Payload: []byte{1, 2, 3, 4, 5},
		Atomic: bth.AtomicETH{VA: 0x2000, RKey: 9, SwapAdd: 1, Compare: 2}, AETH: bth.AETH{Syndrome: bth.SyndromeACK, MSN: bth.NewMSN(4)},
		AtomicAck: 8, InvKey: 6, DETH: bth.DETH{QKey: 11, SrcQP: 12}, XRCSRQ: 13, FETH: bth.FETH{Selectivity: 1, Placement: 2},
	}
	for _, row := range []struct {
		set    string
		opcode bth.Opcode
		change func(p *bth.Packet)
	}{
		{"opcode=0x15", bth.SendOnly, func(p *bth.Packet) { p.Opcode = 0x15 }},
		{"opcode=+1", bth.SendFirst, func(p *bth.Packet) { p.Opcode = bth.SendMiddle }},
		{"se=1", bth.SendOnly, func(p *bth.Packet) { p.Solicited = true }},
		{"migreq=0", bth.SendOnly, func(p *bth.Packet) { p.MigReq = false }},
		{"migreq=+1", bth.SendOnly, func(p *bth.Packet) { p.MigReq = false }},
		{"pad=1", bth.SendOnly, func(p *bth.Packet) { p.PadCount = 1; p.Payload = append(p.Payload, 0, 0) }},
		{"tver=1", bth.SendOnly, func(p *bth.Packet) { p.Version = 1 }},
		{"pkey=0x7fff", bth.SendOnly, func(p *bth.Packet) { p.PKey = 0x7FFF }},
		{"fecn=1", bth.SendOnly, func(p *bth.Packet) { p.FECN = true }},
		{"becn=1", bth.SendOnly, func(p *bth.Packet) { p.BECN = true }},
		{"resv6=0x3f", bth.SendOnly, func(*bth.Packet) {}}, // ignored by every reader
		{"resv7=0x7f", bth.SendOnly, func(*bth.Packet) {}},
		{"destqp=0x123456", bth.SendOnly, func(p *bth.Packet) { p.DestQP = 0x123456 }},
		{"ackreq=0", bth.SendOnly, func(p *bth.Packet) { p.AckReq = false }},
		{"psn=+1", bth.SendOnly, func(p *bth.Packet) { p.PSN = bth.NewPSN(0) }},
		{"psn=-2", bth.SendOnly, func(p *bth.Packet) { p.PSN = bth.NewPSN(0xFFFFFD) }},
		{"va=0xffffffffffffffff", bth.WriteFirst, func(p *bth.Packet) { p.RETH.VA = 1<<64 - 1 }},
		{"va=-0x1001", bth.ReadRequest, func(p *bth.Packet) { p.RETH.VA = 1<<64 - 1 }},
		{"rkey=+1", bth.WriteOnlyImm, func(p *bth.Packet) { p.RETH.RKey = 0 }},
		{"length=7", bth.ReadRequest, func(p *bth.Packet) { p.RETH.Length = 7 }},
		{"length=7", bth.Flush, func(p *bth.Packet) { p.RETH.Length = 7 }},
		{"va=8", bth.CmpSwap, func(p *bth.Packet) { p.Atomic.VA = 8 }},
		{"rkey=8", bth.FetchAdd, func(p *bth.Packet) { p.Atomic.RKey = 8 }},
		{"rkey=8", bth.FetchAdd.On(bth.XRC), func(p *bth.Packet) { p.Atomic.RKey = 8 }},
		{"swap=8", bth.CmpSwap, func(p *bth.Packet) { p.Atomic.SwapAdd = 8 }},
		{"compare=+8", bth.CmpSwap, func(p *bth.Packet) { p.Atomic.Compare = 10 }},
		{"syndrome=0x62", bth.Acknowledge, func(p *bth.Packet) { p.AETH.Syndrome = bth.NAKRemoteAccess }},
		{"msn=0", bth.ReadRespLast, func(p *bth.Packet) { p.AETH.MSN = bth.NewMSN(0) }},
		{"orig=1", bth.AtomicAcknowledge, func(p *bth.Packet) { p.AtomicAck = 1 }},
		{"imm=0xffffffff", bth.WriteOnlyImm, func(p *bth.Packet) { p.Imm = 1<<32 - 1 }},
		{"invkey=0", bth.SendOnlyInv, func(p *bth.Packet) { p.InvKey = 0 }},
		{"qkey=0", bth.UDSendOnlyImm, func(p *bth.Packet) { p.DETH.QKey = 0 }},
		{"srcqp=0", bth.UDSendOnly, func(p *bth.Packet) { p.DETH.SrcQP = 0 }},
		{"srq=0", bth.SendOnly.On(bth.XRC), func(p *bth.Packet) { p.XRCSRQ = 0 }},
		{"sel=0", bth.Flush, func(p *bth.Packet) { p.FETH.Selectivity = 0 }},
		{"plt=15", bth.Flush, func(p *bth.Packet) { p.FETH.Placement = 15 }},
	} {
		for d := DirTX; d <= DirRX; d++ {
			p := base
			p.Opcode = row.opcode
			if p.Payload = bytes.Clone(base.Payload); !p.Opcode.Info().Payload {
				p.Payload = nil
			}
			want := parsed(p.AppendTo(nil))
			row.change(&want)
			got := newRig(t, inDirection("set "+row.set, d)).pass(d, p)
			if len(got) != 1 {
				t.Errorf("set %s, %v: %d packets with a good ICRC, want 1", row.set, d, len(got))
				continue
			}
			if row.opcode.Info().Op != want.Opcode.Info().Op || want.Version != 0 { // no more than a BTH to read
				got[0].Payload, want.Payload = nil, nil
			}
			if g, w := fmt.Sprintf("%+v", got[0]), fmt.Sprintf("%+v", want); g != w {
				t.Errorf("set %s of %v, %v:\n got %s\nwant %s", row.set, row.opcode, d, g, w)
			}
		}
	}
}

// A packet without the field is not chosen, and so not counted.
func TestFaultSetSkipsPacketsWithoutTheField(t *testing.T) {
	r := newRig(t, "set rkey=1 n=2; set syndrome=0x62 max=1")
	got := r.send(packet(bth.WriteFirst, 7, 0), packet(bth.WriteMiddle, 7, 1), packet(bth.Acknowledge, 7, 1), packet(bth.FetchAdd, 7, 2))
	if got[0].RETH.RKey != 0 || got[2].AETH.Syndrome != bth.NAKRemoteAccess || got[3].Atomic.RKey != 1 {
		t.Errorf("got %v", got)
	}
	if a, b := r.counter("fault_rule_1"), r.counter("fault_rule_2"); a != 1 || b != 1 {
		t.Errorf("the rules happened %d and %d times, want once each", a, b)
	}
}

// A received packet too short for the field of its opcode is left alone.
func TestFaultSetOnATruncatedPacket(t *testing.T) {
	r := newRig(t, "set length=1 dir=rx; set pkey=1 dir=rx n=1")
	p := packet(bth.ReadRequest, 7, 0)
	raw := p.AppendTo(nil)
	for n := range raw {
		r.wire.arrive = append(r.wire.arrive, bth.Datagram{Src: r.path.Dst, Data: raw[:n:n]})
	}
	if got := r.link.Receive(); len(got) != len(raw) {
		t.Errorf("%d of %d datagrams", len(got), len(raw))
	}
	if n := r.counter("fault_rewritten"); n != 1 {
		t.Errorf("fault_rewritten is %d, want 1", n)
	}
}

func TestFaultDelayIsReleasedByTime(t *testing.T) {
	for d := DirTX; d <= DirRX; d++ {
		r := newRig(t, inDirection("delay=5ms n=2; delay=2ms n=3", d))
		if got := psns(r.pass(d, middles(4)...)); got != "0 3" {
			t.Errorf("%v: at once %s, want 0 3", d, got)
		}
		if r.link.Wait(ForLoop, time.Hour); r.wire.waits[0] != 2*time.Millisecond {
			t.Errorf("%v: waited for %v, want 2ms", d, r.wire.waits[0])
		}
		if r.wire.wakes == 0 {
			t.Errorf("%v: a Wait that ran would not have been ended", d)
		}
		r.clock.Store(int64(2*time.Millisecond) - 1)
		if got := psns(r.pass(d)); got != "" {
			t.Errorf("%v: too early: %s", d, got)
		}
		r.clock.Store(int64(2 * time.Millisecond))
		if got := psns(r.pass(d, middles(1)...)); got != "2 0" {
			t.Errorf("%v: after 2 ms: %s, want 2 0", d, got)
		}
		if r.link.Wait(ForLoop, -1); r.wire.waits[1] != 3*time.Millisecond {
			t.Errorf("%v: waited for %v, want 3ms", d, r.wire.waits[1])
		}
		r.clock.Store(int64(time.Second))
		if r.link.Wait(ForLoop, -1); r.wire.waits[2] != 0 {
			t.Errorf("%v: waited for %v, want 0", d, r.wire.waits[2])
		}
		r.wire.sent = nil
		got := r.receive() // lets both directions go
		if d == DirTX {
			got = r.wire.sent
		}
		if s := psns(got); s != "1" {
			t.Errorf("%v: after a second: %s, want 1", d, s)
		}
		if r.link.Wait(ForLoop, -1); r.wire.waits[3] != -1 {
			t.Errorf("%v: waited for %v with nothing held", d, r.wire.waits[3])
		}
		if n := r.counter("fault_delayed"); n != 2 {
			t.Errorf("%v: fault_delayed is %d, want 2", d, n)
		}
	}
}

// A packet that nothing overtakes is not kept for ever.
func TestFaultReorderIsReleasedByTime(t *testing.T) {
	for d := DirTX; d <= DirRX; d++ {
		r := newRig(t, inDirection("reorder=3 n=1", d))
		other := func() bth.Packet { return packet(bth.WriteMiddle, 8, 9) } // of another flow: overtakes nothing
		if got := psns(r.pass(d, append(middles(3), other(), other())...)); got != "1 2 9 9" {
			t.Errorf("%v: %s, want 1 2 9 9", d, got)
		}
		r.clock.Store(int64(ReorderWait))
		if got := psns(r.pass(d, other())); got != "0 9" {
			t.Errorf("%v: %s, want 0 9", d, got)
		}
	}
}

func TestFaultHeldPacketsAreBounded(t *testing.T) {
	for d := DirTX; d <= DirRX; d++ {
		r := newRig(t, inDirection("delay=1s", d))
		var got []bth.Packet
		for i := range MaxHeld + 40 {
			got = append(got, r.pass(d, packet(bth.WriteMiddle, 7, i))...)
		}
		if len(got) != 40 || got[0].PSN.Value() != 0 || got[39].PSN.Value() != 39 {
			t.Errorf("%v: %s left early, want 0 to 39", d, psns(got))
		}
		if n := r.counter("fault_released_early"); n != 40 {
			t.Errorf("%v: fault_released_early is %d, want 40", d, n)
		}
		f := r.link.(*faulty)
		if n := f.tx.held.len() + f.rx.held.len(); n != MaxHeld {
			t.Errorf("%v: %d packets held, want %d", d, n, MaxHeld)
		}
		r.clock.Store(int64(time.Second))
		if got := r.pass(d); len(got) != MaxHeld || got[0].PSN.Value() != 40 || strings.Contains(psns(got), "!") {
			t.Errorf("%v: then %s", d, psns(got))
		}
		if n := len(f.tx.held.free) + len(f.rx.held.free) + len(f.rx.held.taken); n > MaxHeld+2 {
			t.Errorf("%v: %d slots", d, n)
		}
	}
}

// dir=both counts both directions together.
func TestFaultBothDirections(t *testing.T) {
	r := newRig(t, "drop dir=both every=2")
	got := psns(r.send(middles(3)...)) + " | " + psns(r.receive(middles(3)...))
	if want := "0 2 | 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Requests and answers have PSNs of their own, and so has each queue pair and
// each peer.
func TestFaultRelativePSNIsOfTheFlow(t *testing.T) {
	r := newRig(t, "drop psn=+1")
	got := psns(r.send(
		packet(bth.SendOnly, 7, 0xFFFFFF), packet(bth.Acknowledge, 7, 500), packet(bth.SendOnly, 8, 30),
		packet(bth.CNP, 7, 1), packet(0x15, 7, 1), // in no sequence
		packet(bth.SendOnly, 7, 0), packet(bth.Acknowledge, 7, 501), packet(bth.SendOnly, 8, 31),
		packet(bth.SendOnly, 7, 1), packet(bth.Acknowledge, 7, 502), packet(bth.SendOnly, 8, 32),
	))
	if want := "16777215 500 30 1 1 1 502 32"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestFaultTryCountsTransmissions(t *testing.T) {
	r := newRig(t, "drop psn=+1 try=2; drop psn=+2 try=1; drop op=ack try=2")
	var got []string
	for range 3 {
		got = append(got, psns(r.send(append(middles(4), packet(bth.Acknowledge, 7, 3))...)))
	}
	want := []string{"0 1 3 3", "0 2 3", "0 1 2 3 3"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// What is remembered of flows is bounded, and the one in use stays.
func TestFaultFlowsAreBounded(t *testing.T) {
	r := newRig(t, "drop psn=+1 try=2")
	r.send(packet(bth.SendOnly, 1, 100), packet(bth.SendOnly, 1, 101))
	for i := range 2 * maxFlows {
		r.send(packet(bth.SendOnly, bth.QPN(i+10), 0), packet(bth.SendOnly, 1, 102))
	}
	if got := psns(r.send(packet(bth.SendOnly, 1, 101), packet(bth.SendOnly, 1, 102))); got != "102" {
		t.Errorf("got %s, want 102: the flow in use was forgotten", got)
	}
	if n := len(r.link.(*faulty).tx.flows.m); n != maxFlows {
		t.Errorf("%d flows, want %d", n, maxFlows)
	}
	// A slot of PSN 0 belongs to a flow that was forgotten: it must count anew.
	if got := psns(r.send(packet(bth.SendOnly, 10, 0), packet(bth.SendOnly, 10, 1))); got != "0 1" {
		t.Errorf("got %s, want 0 1", got)
	}
}

// The same seed and packets give the same faults, however the packets come in
// bursts; another seed gives others; so do rules without a seed of their own.
func TestFaultChanceFollowsFromTheSeed(t *testing.T) {
	run := func(spec string, seed uint64, burst int) string {
		rules, err := ParseFaults(spec)
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, "")
		if r.link, err = WithFaults(&r.wire, FaultConfig{Rules: rules, Seed: seed, Clock: r.now}); err != nil {
			t.Fatal(err)
		}
		var got []bth.Packet
		for i := 0; i < 60; i += burst {
			got = append(got, r.send(middles(60)[i:i+burst]...)...)
		}
		return psns(got)
	}
	const spec = "drop p=20%; dup p=20%"
	first := run(spec, 1, 60)
	if again := run(spec, 1, 1); again != first {
		t.Errorf("one by one %s\ntogether   %s", again, first)
	}
	if run(spec, 2, 60) == first {
		t.Error("another seed, the same faults")
	}
	if a, b := run("drop p=20%", 1, 60), run("drop n=1000; drop p=20%", 1, 60); a == b {
		t.Error("two rules share their chance")
	}
	if a, b := run("drop p=20% seed=5", 1, 60), run("drop n=1000; drop p=20% seed=5", 2, 60); a != b {
		t.Error("the seed of a rule does not decide alone")
	}
	if a, b := run("set rkey=0 n=1; set se=1 p=20% seed=5; drop p=20% seed=5", 1, 60), run("drop p=20% seed=5", 1, 60); a != b {
		t.Error("two rules with one seed do not hit the same packets")
	}
}

func TestFaultProbabilityIsAboutRight(t *testing.T) {
	r := newRig(t, "drop p=5%")
	lost := 0
	for range 1000 {
		lost += 10 - len(r.send(middles(10)...))
	}
	if lost < 400 || lost > 600 {
		t.Errorf("%d of 10000 packets lost, want about 500", lost)
	}
}

// Rules that were not parsed are checked as well.
func TestWithFaultsRefusesARuleThatCannotBeWritten(t *testing.T) {
	for _, row := range []struct {
		rule FaultRule
		want string
	}{
		{FaultRule{}, `fault rule 2, word 1 "fault0": there is no action "fault0": use drop, dup, delay, reorder, corrupt, ce or set`},
		{FaultRule{Fault: FaultDelay}, `fault rule 2, word 1 "delay=0s": it needs a time above 0 and up to 1m0s, such as delay=5ms, not "0s"`},
		{FaultRule{Fault: FaultSet, Set: Assignment{Field: "se", Value: 2}}, `fault rule 2, word 2 "se=2": se has 1 bit: give it a value of 0 to 1, or +N or -N to add to it`},
		{FaultRule{Fault: FaultDrop, Nth: Range{Last: 3}}, `fault rule 2, word 2 "n=0-3": it counts the chosen packets from 1: n=3, n=3-7 or n=3- (from the third on), not "0-3"`},
		{FaultRule{Fault: FaultDrop, Dir: 9}, `fault rule 2, word 2 "dir=dir9": it must be tx (sent, the default), rx (received) or both, not "dir9"`},
	} {
		_, err := WithFaults(&wire{}, FaultConfig{Rules: []FaultRule{{Fault: FaultDrop}, row.rule}})
		var fe *FaultError
		if !errors.As(err, &fe) || err.Error() != row.want {
			t.Errorf("got  %v\nwant %s", err, row.want)
		}
	}
}

func TestFaultsThatHitNothingDoNotAllocate(t *testing.T) {
	for _, spec := range []string{
		"drop n=1000000000; set rkey=1 n=1000000000; delay=1ms dir=both op=ack; ce p=0",
		"drop psn=+5000 try=3 dir=both; drop p=0.000000001 dir=both",
	} {
		r := newRig(t, spec)
		r.link.(*faulty).Link = &sink{}
		p := packet(bth.WriteOnly, 7, 1)
		in := []bth.Datagram{{Src: r.path.Dst, Data: p.AppendTo(nil)}}
		r.link.(*faulty).Link.(*sink).in = in
		n := testing.AllocsPerRun(100, func() {
			r.fill(&p)
			r.link.Send(r.burst)
			r.link.Receive()
		})
		if n != 0 {
			t.Errorf("%q: %v allocations per burst", spec, n)
		}
	}
}

// Held packets and copies use their memory again.
func TestFaultsInSteadyStateDoNotAllocate(t *testing.T) {
	r := newRig(t, "dup dir=both every=2; delay=1ms dir=both every=3; reorder=2 dir=both every=5; ce every=7; set psn=+1 dir=both; corrupt every=11")
	s := &sink{}
	r.link.(*faulty).Link = s
	p := packet(bth.WriteOnly, 7, 1)
	for range burstSize {
		s.in = append(s.in, bth.Datagram{Src: r.path.Dst, Data: p.AppendTo(nil)})
	}
	round := func() {
		for range burstSize {
			r.fill(&p)
		}
		r.link.Send(r.burst)
		r.burst.Reset()
		r.link.Receive()
		r.clock.Add(int64(time.Millisecond / 3))
	}
	for range 1000 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations per burst", n)
	}
}

// fill puts one packet into the burst.
func (r *rig) fill(p *bth.Packet) {
	f := r.burst.Next()
	if f == nil {
		r.burst.Reset()
		f = r.burst.Next()
	}
	f.Path, f.Payload = &r.path, p.Payload
	f.SetHeaders(p)
}

// sink is a link on which the same datagrams arrive for ever.
type sink struct {
	wire
	in []bth.Datagram
}

func (s *sink) Receive() []bth.Datagram { return s.in }
func (s *sink) Send(b *bth.Burst) {
	for i := range b.Frames() {
		b.Frames()[i].Seal(0)
	}
}
func (s *sink) Wake() {}
