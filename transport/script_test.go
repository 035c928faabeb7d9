package transport_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// The tests of this package are transcripts. A script owns one engine with one
// queue pair and plays the peer on the wire by hand:
//
//	s.postWrite(1, 0, 600)                          the application posts
//	s.want(op(bth.WriteFirst), at(0), ask(false))   the next packet sent
//	s.hear(s.ack(2))                                the peer's packets, one batch
//	s.wantSent(1, cq.Success)                       the next completion
//	s.expire()                                      time passes until a timer
//
// PSNs are offsets from the first of their direction; each script runs twice,
// starting at 0 and shortly before the wrap of the 24 bits. What a script does
// not ask for must not happen: packets, completions or events that are left
// over at its end fail it, and so does a changed byte outside the regions.

var (
	here  = netip.MustParseAddr("192.0.2.1")
	there = netip.MustParseAddr("192.0.2.2")
)

const (
	peerQPN    bth.QPN = 0x000777
	remoteVA           = 0x7F00_0000_1000 // memory of the peer, as our requests name it
	remoteKey          = 0xABCD1234
	memLen             = 64 << 10
	guardLen           = 64
	guardValue         = 0xA5
)

// setup says how a script starts. Zero fields take the defaults of play.
type setup struct {
	mtu     int      // 256
	window  int      // 64 packets
	state   qp.State // RTS
	attr    func(*qp.Attr)
	config  func(*qp.Config)
	sendCQ  int // capacity: 512 completions
	recvCQ  int
	control func() congestion.Controller // instead of a fixed window
	cnp     congestion.NotificationPoint

	recovery transport.Recovery
}

// script is one run of a transcript.
type script struct {
	testing.TB
	e        *transport.Engine
	q        *transport.QP
	now      time.Duration
	base     uint32
	mtu      int
	attr     qp.Attr
	ecn      bool // the controller heeds CNPs
	table    *mr.Table
	pd       *mr.Domain
	mem      *mr.Region // all rights
	arenas   [][]byte
	burst    *bth.Burst
	sent     []bth.Packet // by the engine, not yet asked for
	events   []transport.Event
	peerPort uint16 // that the peer's packets come from
	sendDone []cq.WC
	recvDone []cq.WC
}

// play runs the transcript at both start PSNs.
func play(t *testing.T, c setup, f func(s *script)) {
	t.Helper()
	for _, base := range []uint32{0, 0xFFFFFD} {
		t.Run(fmt.Sprintf("psn=%06x", base), func(t *testing.T) {
			s := newScript(t, c, base)
			f(s)
			s.end()
		})
	}
}

func newScript(t testing.TB, c setup, base uint32) *script {
	if c.mtu == 0 {
		c.mtu = 256
	}
	if c.window == 0 {
		c.window = 64
	}
	if c.state == qp.Reset {
		c.state = qp.RTS
	}
	if c.sendCQ == 0 {
		c.sendCQ = 512
	}
	if c.recvCQ == 0 {
		c.recvCQ = 512
	}
	if c.control == nil {
		c.control = func() congestion.Controller { return congestion.Fixed(c.window) }
	}
	s := &script{TB: t, peerPort: 49152, base: base, mtu: c.mtu, ecn: c.control().ECN(), burst: bth.NewBurst(64, 4096)}
	random := counter(0x1234567)
	s.table = mr.NewTable(100, random)
	s.pd = s.table.NewDomain()
	s.mem = s.register(memLen, mr.LocalWrite|mr.RemoteRead|mr.RemoteWrite|mr.RemoteAtomic)
	s.e = transport.New(transport.Config{
		Local: here, SrcPorts: []uint16{0xC000}, Random: random, MaxQP: 1 << 16, Recovery: c.recovery,
		Congestion: func(int) congestion.Controller { return c.control() }, CNP: c.cnp,
		OnEvent: func(ev transport.Event) { s.events = append(s.events, ev) },
	})
	config := qp.Config{Type: qp.RC, SendCQ: cq.New(c.sendCQ, nil), RecvCQ: cq.New(c.recvCQ, nil), MaxSendWR: 512, MaxRecvWR: 512}
	if c.config != nil {
		c.config(&config)
	}
	q, err := s.e.Create(s.pd, config)
	if err != nil {
		t.Fatal(err)
	}
	s.q = q
	s.attr = qp.Attr{
		Port: 1, Access: mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic,
		AV: qp.AddressVector{DGID: there, TrafficClass: 0x68, HopLimit: 33}, PathMTU: c.mtu, DestQPN: peerQPN,
		RQPSN: bth.NewPSN(base), SQPSN: bth.NewPSN(base), MaxRDAtomic: 4, MaxDestRDAtomic: 4,
		Timeout: 14, RetryCount: 7, RNRRetry: 6, MinRNRTimer: 12,
	}
	if c.attr != nil {
		c.attr(&s.attr)
	}
	s.connect(c.state)
	return s
}

// counter returns a source of well spread, repeatable numbers.
func counter(seed uint32) func() uint32 {
	return func() uint32 { seed = seed*1664525 + 1013904223; return seed }
}

// The attributes that each step of a connection needs (IBA 11.2.5.2).
const (
	initMask = qp.AttrState | qp.AttrPKeyIndex | qp.AttrPort | qp.AttrAccess
	rtrMask  = qp.AttrState | qp.AttrAV | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRDAtomic | qp.AttrMinRNRTimer
	rtsMask  = qp.AttrState | qp.AttrTimeout | qp.AttrRetryCount | qp.AttrRNRRetry | qp.AttrSQPSN | qp.AttrMaxRDAtomic
)

// connect takes the pair from RESET to the state, at most RTS.
func (s *script) connect(to qp.State) {
	s.Helper()
	for _, step := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{{qp.Init, initMask}, {qp.RTR, rtrMask}, {qp.RTS, rtsMask}} {
		if step.state > to {
			return
		}
		a := s.attr
		a.State = step.state
		s.modify(&a, step.mask)
	}
}

func (s *script) modify(a *qp.Attr, mask qp.AttrMask) {
	s.Helper()
	if err := s.e.Modify(s.now, s.q, a, mask); err != nil {
		s.Fatal(err)
	}
}

// state moves the pair to a state without further attributes.
func (s *script) state(to qp.State) {
	s.Helper()
	s.modify(&qp.Attr{State: to}, qp.AttrState)
}

// register makes a region with guards around it, filled with a pattern.
func (s *script) register(n int, access mr.Access) *mr.Region {
	return s.registerIn(s.pd, n, access)
}

func (s *script) registerIn(pd *mr.Domain, n int, access mr.Access) *mr.Region {
	arena := make([]byte, n+2*guardLen)
	for i := range arena {
		arena[i] = guardValue
	}
	mem := arena[guardLen : guardLen+n : guardLen+n]
	for i := range mem {
		mem[i] = byte(i*31 + i>>8)
	}
	r, err := pd.Register(mem, access)
	if err != nil {
		s.Fatal(err)
	}
	s.arenas = append(s.arenas, arena)
	return r
}

// end checks that the transcript was complete.
func (s *script) end() {
	s.Helper()
	s.wantSilence()
	s.poll()
	for _, wc := range append(s.sendDone, s.recvDone...) {
		s.Errorf("completion that nobody asked for: %+v", wc)
	}
	for _, ev := range s.events {
		if ev.Type != transport.EventCommEst {
			s.Errorf("event that nobody asked for: %v", ev.Type)
		}
	}
	for _, a := range s.arenas {
		for i := range guardLen {
			if a[i] != guardValue || a[len(a)-1-i] != guardValue {
				s.Fatal("a byte outside a region was changed")
			}
		}
	}
}

func (s *script) psn(k int) bth.PSN { return bth.NewPSN(s.base).Add(k) }

// ---- the application -------------------------------------------------------

// data returns the bytes of mem.
func (s *script) data(off, n int) []byte { return s.mem.Bytes()[off : off+n] }

func (s *script) va(off int) uint64 { return s.mem.Addr() + uint64(off) }

type wrMod func(*qp.SendWR)

func unsignaled(wr *qp.SendWR) { wr.Flags &^= qp.Signaled }
func fenced(wr *qp.SendWR)     { wr.Flags |= qp.Fence }
func solicited(wr *qp.SendWR)  { wr.Flags |= qp.Solicited }

func withImm(v uint32) wrMod {
	return func(wr *qp.SendWR) {
		wr.Imm = v
		if wr.Op == qp.Send {
			wr.Op = qp.SendImm
		} else {
			wr.Op = qp.RDMAWriteImm
		}
	}
}

func inline(b []byte) wrMod { return func(wr *qp.SendWR) { wr.Inline, wr.SGE = b, nil } }

func sges(l ...mr.SGE) wrMod { return func(wr *qp.SendWR) { wr.SGE = l } }

func (s *script) post(wr qp.SendWR, mods []wrMod) {
	s.Helper()
	wr.Flags |= qp.Signaled
	wr.RemoteAddr, wr.RKey = remoteVA, remoteKey
	for _, m := range mods {
		m(&wr)
	}
	if err := s.e.PostSend(s.q, &wr); err != nil {
		s.Fatal(err)
	}
}

func (s *script) postSend(id uint64, off, n int, mods ...wrMod) {
	s.Helper()
	s.post(qp.SendWR{ID: id, Op: qp.Send, SGE: []mr.SGE{s.mem.SGE(off, n)}}, mods)
}

func (s *script) postWrite(id uint64, off, n int, mods ...wrMod) {
	s.Helper()
	s.post(qp.SendWR{ID: id, Op: qp.RDMAWrite, SGE: []mr.SGE{s.mem.SGE(off, n)}}, mods)
}

func (s *script) postRead(id uint64, off, n int, mods ...wrMod) {
	s.Helper()
	s.post(qp.SendWR{ID: id, Op: qp.RDMARead, SGE: []mr.SGE{s.mem.SGE(off, n)}}, mods)
}

func (s *script) postFetchAdd(id uint64, off int, add uint64, mods ...wrMod) {
	s.Helper()
	s.post(qp.SendWR{ID: id, Op: qp.FetchAdd, CompareAdd: add, SGE: []mr.SGE{s.mem.SGE(off, 8)}}, mods)
}

func (s *script) postCmpSwap(id uint64, off int, compare, swap uint64, mods ...wrMod) {
	s.Helper()
	s.post(qp.SendWR{ID: id, Op: qp.CmpSwap, CompareAdd: compare, Swap: swap, SGE: []mr.SGE{s.mem.SGE(off, 8)}}, mods)
}

// postRecv posts a receive of n bytes of mem; other entries may be given.
func (s *script) postRecv(id uint64, off, n int, other ...mr.SGE) {
	s.Helper()
	l := []mr.SGE{s.mem.SGE(off, n)}
	if other != nil {
		l = other
	}
	if err := s.e.PostRecv(s.q, &qp.RecvWR{ID: id, SGE: l}); err != nil {
		s.Fatal(err)
	}
}

func (s *script) poll() {
	var wcs [64]cq.WC
	for n := s.q.SendCQ.Poll(wcs[:]); n > 0; n = s.q.SendCQ.Poll(wcs[:]) {
		s.sendDone = append(s.sendDone, wcs[:n]...)
	}
	for n := s.q.RecvCQ.Poll(wcs[:]); n > 0; n = s.q.RecvCQ.Poll(wcs[:]) {
		s.recvDone = append(s.recvDone, wcs[:n]...)
	}
}

// wantSent takes the next send completion.
func (s *script) wantSent(id uint64, st cq.Status) cq.WC {
	s.Helper()
	s.poll()
	return s.wantWC(&s.sendDone, "send", id, st)
}

// wantRecv takes the next receive completion.
func (s *script) wantRecv(id uint64, st cq.Status) cq.WC {
	s.Helper()
	s.poll()
	return s.wantWC(&s.recvDone, "receive", id, st)
}

func (s *script) wantWC(from *[]cq.WC, what string, id uint64, st cq.Status) cq.WC {
	s.Helper()
	if len(*from) == 0 {
		s.Fatalf("no %s completion, want %d %v", what, id, st)
	}
	wc := (*from)[0]
	*from = (*from)[1:]
	if wc.ID != id || wc.Status != st || wc.QPN != s.q.QPN {
		s.Fatalf("%s completion %d %v of QP %x, want %d %v", what, wc.ID, wc.Status, wc.QPN, id, st)
	}
	return wc
}

// wantNoCompletion checks that nothing has completed.
func (s *script) wantNoCompletion() {
	s.Helper()
	s.poll()
	if len(s.sendDone)+len(s.recvDone) > 0 {
		s.Fatalf("completions %+v %+v, want none", s.sendDone, s.recvDone)
	}
}

func (s *script) wantState(st qp.State) {
	s.Helper()
	if got := s.q.State(); got != st {
		s.Fatalf("state %v, want %v", got, st)
	}
}

// wantEvent takes the next event other than COMM_EST.
func (s *script) wantEvent(t transport.EventType) transport.Event {
	s.Helper()
	for len(s.events) > 0 {
		ev := s.events[0]
		s.events = s.events[1:]
		if ev.Type == transport.EventCommEst && t != ev.Type {
			continue
		}
		if ev.Type != t || ev.QPN != s.q.QPN {
			s.Fatalf("event %v of QP %x, want %v", ev.Type, ev.QPN, t)
		}
		return ev
	}
	s.Fatalf("no event, want %v", t)
	return transport.Event{}
}

func (s *script) wantCount(c transport.Counter, n uint64) {
	s.Helper()
	if got := s.e.Counters[c]; got != n {
		s.Fatalf("%v is %d, want %d", c, got, n)
	}
}

// ---- time ------------------------------------------------------------------

// pass lets time pass.
func (s *script) pass(d time.Duration) {
	s.now += d
	if at, ok := s.e.Deadline(); ok && at <= s.now {
		s.e.Timers(s.now)
	}
}

// expire lets time pass until a timer does something, and returns how long
// that took.
func (s *script) expire() time.Duration {
	s.Helper()
	s.drain()
	start := s.now
	for !s.e.Pending() {
		at, ok := s.e.Deadline()
		if !ok {
			s.Fatal("no timer runs")
		}
		s.now = max(s.now, at)
		s.e.Timers(s.now)
	}
	return s.now - start
}

// wantNoTimer checks that a day passes without anything happening.
func (s *script) wantNoTimer() {
	s.Helper()
	s.wantSilence()
	end := s.now + 24*time.Hour
	for at, ok := s.e.Deadline(); ok && at < end; at, ok = s.e.Deadline() {
		s.now = max(s.now, at)
		s.e.Timers(s.now)
		s.wantSilence()
	}
	s.now = end
}

// ---- the peer --------------------------------------------------------------

type mod func(*bth.Packet)

func asks(p *bth.Packet) { p.AckReq = true }

func carrying(v uint32) mod { return func(p *bth.Packet) { p.Imm = v } }

// to addresses memory of the engine.
func to(va uint64, key uint32, n int) mod {
	return func(p *bth.Packet) { p.RETH = bth.RETH{VA: va, RKey: key, Length: uint32(n)} }
}

// into addresses mem from off.
func (s *script) into(off, n int) mod { return to(s.va(off), s.mem.Key(), n) }

// pkt makes a packet of the peer.
func (s *script) pkt(o bth.Opcode, k int, payload []byte, mods ...mod) bth.Packet {
	p := bth.Packet{BTH: bth.BTH{Opcode: o, MigReq: true, PKey: bth.PKeyDefault, DestQP: s.q.QPN, PSN: s.psn(k)}, Payload: payload}
	for _, m := range mods {
		m(&p)
	}
	return p
}

func (s *script) ack(k int, mods ...mod) bth.Packet { return s.nak(k, bth.SyndromeACK, mods...) }

func (s *script) nak(k int, syn bth.Syndrome, mods ...mod) bth.Packet {
	p := s.pkt(bth.Acknowledge, k, nil)
	p.AETH.Syndrome = syn
	for _, m := range mods {
		m(&p)
	}
	return p
}

func (s *script) resp(o bth.Opcode, k int, payload []byte) bth.Packet {
	p := s.pkt(o, k, payload)
	p.AETH.Syndrome = bth.SyndromeACK
	return p
}

// respond makes the n READ responses from PSN k on that carry data.
func (s *script) respond(k int, data []byte) (l []bth.Packet) {
	n := max(1, (len(data)+s.mtu-1)/s.mtu)
	for i := range n {
		o := bth.ReadRespMiddle
		switch {
		case n == 1:
			o = bth.ReadRespOnly
		case i == 0:
			o = bth.ReadRespFirst
		case i == n-1:
			o = bth.ReadRespLast
		}
		l = append(l, s.resp(o, k+i, data[i*s.mtu:min(len(data), (i+1)*s.mtu)]))
	}
	return l
}

func (s *script) atomicAck(k int, old uint64) bth.Packet {
	p := s.resp(bth.AtomicAcknowledge, k, nil)
	p.AtomicAck = old
	return p
}

func (s *script) atomic(o bth.Opcode, k int, va uint64, key uint32, swapAdd, compare uint64) bth.Packet {
	p := s.pkt(o, k, nil)
	p.Atomic = bth.AtomicETH{VA: va, RKey: key, SwapAdd: swapAdd, Compare: compare}
	return p
}

// hear gives the packets to the engine as one batch: nothing is sent between.
func (s *script) hear(l ...bth.Packet) {
	for i := range l {
		s.hearFrom(there, here, l[i])
	}
}

func (s *script) hearFrom(src, dst netip.Addr, p bth.Packet) {
	s.feed(src, dst, p.AppendTo(nil))
}

func (s *script) feed(src, dst netip.Addr, b []byte) {
	s.e.Receive(s.now, &bth.Datagram{Src: src, Dst: dst, SrcPort: s.peerPort, Data: b})
}

// drain takes all packets that the engine has to send.
func (s *script) drain() {
	s.Helper()
	for {
		s.burst.Reset()
		s.e.Transmit(s.now, s.burst)
		for i := range s.burst.Frames() {
			s.sent = append(s.sent, s.check(&s.burst.Frames()[i]))
		}
		if s.burst.Free() > 0 {
			return
		}
	}
}

// check parses a frame and tests what holds for every packet (IBA A17, 3.1).
func (s *script) check(f *bth.Frame) bth.Packet {
	s.Helper()
	b := append(bytes.Clone(f.Header()), f.Payload...)
	b = append(b, make([]byte, bth.Pad(len(f.Payload)))...)
	var p bth.Packet
	if err := p.Parse(b); err != nil {
		s.Fatalf("the engine sent a packet that does not parse: %v", err)
	}
	info := p.Opcode.Info()
	switch {
	case info.Op == bth.OpCNP:
		s.checkCNP(f, &p)
	case f.Path.Src != here || f.Path.Dst != there || f.Path.SrcPort != 0xC000 || f.Path.TrafficClass != s.trafficClass(info) || f.Path.HopLimit != s.attr.AV.HopLimit:
		s.Fatalf("path %+v", *f.Path)
	case p.DestQP != peerQPN, p.PKey != bth.PKeyDefault, !p.MigReq, p.FECN, p.BECN, p.Version != 0:
		s.Fatalf("BTH %+v", p.BTH)
	case int(p.PadCount) != -len(p.Payload)&3:
		s.Fatalf("pad count %d with %d bytes", p.PadCount, len(p.Payload))
	case p.Solicited && !(info.Op == bth.OpSend && info.Pos.Ends() || info.Headers&bth.HasImmDt != 0):
		s.Fatalf("SE on %v", p.Opcode)
	case !info.Request && p.AckReq:
		s.Fatalf("AckReq on %v", p.Opcode)
	case len(p.Payload) > s.mtu, !info.Pos.Ends() && len(p.Payload) != s.mtu:
		s.Fatalf("%d bytes in %v", len(p.Payload), p.Opcode)
	}
	return p
}

// trafficClass returns the traffic class of the pair's packets: those with data
// may be marked if the controller heeds CNPs.
func (s *script) trafficClass(info *bth.Info) uint8 {
	if s.ecn && (info.Request || info.Op == bth.OpReadResponse) {
		return s.attr.AV.TrafficClass | 2
	}
	return s.attr.AV.TrafficClass
}

// checkCNP tests what holds for every CNP (IBA A17.9): BECN, no PSN, no request
// for an answer, 16 zero bytes.
func (s *script) checkCNP(f *bth.Frame, p *bth.Packet) {
	s.Helper()
	want := bth.Packet{BTH: bth.BTH{Opcode: bth.CNP, PKey: p.PKey, BECN: true, DestQP: peerQPN}}
	if !bytes.Equal(f.Header(), want.AppendHeaders(nil)) || len(f.Payload) != 0 {
		s.Fatalf("CNP % x", f.Header())
	}
	if f.Path.TrafficClass != 0xC2 || f.Path.Src != here || f.Path.Dst != there {
		s.Fatalf("CNP on path %+v", *f.Path)
	}
}

// ---- checkers --------------------------------------------------------------

// checker tests one property of a packet; it returns "" or what is wrong.
type checker func(s *script, p *bth.Packet) string

// want takes the next packet that the engine sends and checks it.
func (s *script) want(l ...checker) bth.Packet {
	s.Helper()
	if len(s.sent) == 0 {
		s.drain()
	}
	if len(s.sent) == 0 {
		s.Fatal("no packet was sent")
	}
	p := s.sent[0]
	s.sent = s.sent[1:]
	for _, c := range l {
		if wrong := c(s, &p); wrong != "" {
			s.Fatalf("%v PSN %+d: %s", p.Opcode, p.PSN.Sub(bth.NewPSN(s.base)), wrong)
		}
	}
	return p
}

// wantSilence checks that the engine has nothing to send.
func (s *script) wantSilence() {
	s.Helper()
	s.drain()
	for i := range s.sent {
		s.Fatalf("%v PSN %+d AckReq %v %v was sent, want silence", s.sent[i].Opcode, s.sent[i].PSN.Sub(bth.NewPSN(s.base)), s.sent[i].AckReq, s.sent[i].AETH)
	}
}

func op(o bth.Opcode) checker {
	return func(_ *script, p *bth.Packet) string {
		if p.Opcode != o {
			return fmt.Sprintf("want opcode %v", o)
		}
		return ""
	}
}

func at(k int) checker {
	return func(s *script, p *bth.Packet) string {
		if p.PSN != s.psn(k) {
			return fmt.Sprintf("want PSN %+d", k)
		}
		return ""
	}
}

func ask(v bool) checker {
	return func(_ *script, p *bth.Packet) string {
		if p.AckReq != v {
			return fmt.Sprintf("AckReq is %v", p.AckReq)
		}
		return ""
	}
}

func se(v bool) checker {
	return func(_ *script, p *bth.Packet) string {
		if p.Solicited != v {
			return fmt.Sprintf("SE is %v", p.Solicited)
		}
		return ""
	}
}

func syndrome(v bth.Syndrome) checker {
	return func(_ *script, p *bth.Packet) string {
		if p.AETH.Syndrome != v {
			return fmt.Sprintf("syndrome 0x%02x, want 0x%02x", uint8(p.AETH.Syndrome), uint8(v))
		}
		return ""
	}
}

func count(v uint32) checker {
	return func(_ *script, p *bth.Packet) string {
		if p.AETH.MSN != bth.NewMSN(v) {
			return fmt.Sprintf("MSN %d, want %d", p.AETH.MSN.Value(), v)
		}
		return ""
	}
}

// reth checks the address and length of a WRITE or READ of the peer's memory.
func reth(off, n int) checker {
	return func(_ *script, p *bth.Packet) string {
		if want := (bth.RETH{VA: remoteVA + uint64(off), RKey: remoteKey, Length: uint32(n)}); p.RETH != want {
			return fmt.Sprintf("RETH %+v, want %+v", p.RETH, want)
		}
		return ""
	}
}

func payload(b []byte) checker {
	return func(_ *script, p *bth.Packet) string {
		if !bytes.Equal(p.Payload, b) {
			return fmt.Sprintf("payload of %d bytes %.20x, want %d bytes %.20x", len(p.Payload), p.Payload, len(b), b)
		}
		return ""
	}
}

func imm(v uint32) checker {
	return func(_ *script, p *bth.Packet) string {
		if p.Imm != v {
			return fmt.Sprintf("immediate 0x%x, want 0x%x", p.Imm, v)
		}
		return ""
	}
}

func old(v uint64) checker {
	return func(_ *script, p *bth.Packet) string {
		if p.AtomicAck != v {
			return fmt.Sprintf("old value 0x%x, want 0x%x", p.AtomicAck, v)
		}
		return ""
	}
}

// wantACK and wantNAK take an acknowledge packet.
func (s *script) wantACK(k int, n uint32) {
	s.Helper()
	s.want(op(bth.Acknowledge), at(k), syndrome(bth.SyndromeACK), count(n))
}

func (s *script) wantNAK(k int, syn bth.Syndrome, n uint32) {
	s.Helper()
	s.want(op(bth.Acknowledge), at(k), syndrome(syn), count(n))
}
