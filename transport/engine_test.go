package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

var v6 = netip.MustParseAddr("2001:db8::1")

// IBA 9.7.4: what is dropped before any protocol state, each under its name,
// and nothing else is touched.
func TestEngineDropsWhatIsNotForIt(t *testing.T) {
	send := func(s *script) bth.Packet { return s.pkt(bth.SendOnly, 0, fill(5), asks) }
	with := func(f func(p *bth.Packet)) func(s *script) []byte {
		return func(s *script) []byte {
			p := send(s)
			f(&p)
			return p.AppendTo(nil)
		}
	}
	plain := with(func(*bth.Packet) {})
	raw := func(i int, v byte) func(s *script) []byte {
		return func(s *script) []byte {
			b := plain(s)
			b[i] = v
			return b
		}
	}
	cut := func(n int) func(s *script) []byte { return func(s *script) []byte { return plain(s)[:n] } }
	for _, row := range []struct {
		name     string
		state    qp.State
		src, dst netip.Addr
		b        func(s *script) []byte
		want     transport.Counter
	}{
		{"other source", qp.RTS, there.Next(), here, plain, transport.DropAddress},
		{"other destination", qp.RTS, there, here.Next(), plain, transport.DropAddress},
		{"IPv6 source", qp.RTS, v6, here, plain, transport.DropAddress},
		{"request in INIT", qp.Init, there, here, plain, transport.DropState},
		{"response in RTR", qp.RTR, there, here, func(s *script) []byte { p := s.ack(0); return p.AppendTo(nil) }, transport.DropState},
		{"UC opcode", qp.RTS, there, here, with(func(p *bth.Packet) { p.Opcode = p.Opcode.On(bth.UC) }), transport.DropTransport},
		{"UD opcode", qp.RTS, there, here, with(func(p *bth.Packet) { p.Opcode = bth.UDSendOnly }), transport.DropTransport},
		{"XRC opcode", qp.RTS, there, here, with(func(p *bth.Packet) { p.Opcode = p.Opcode.On(bth.XRC) }), transport.DropTransport},
		{"unknown QPN", qp.RTS, there, here, with(func(p *bth.Packet) { p.DestQP++ }), transport.DropQPN},
		{"QPN 0", qp.RTS, there, here, with(func(p *bth.Packet) { p.DestQP = 0 }), transport.DropQPN},
		{"multicast QPN", qp.RTS, there, here, with(func(p *bth.Packet) { p.DestQP = bth.QPNMulticast }), transport.DropQPN},
		{"P_Key of another partition", qp.RTS, there, here, with(func(p *bth.Packet) { p.PKey = 0x8001 }), transport.DropPKey},
		{"P_Key 0", qp.RTS, there, here, with(func(p *bth.Packet) { p.PKey = 0 }), transport.DropPKey},
		{"P_Key 0x8000", qp.RTS, there, here, with(func(p *bth.Packet) { p.PKey = 0x8000 }), transport.DropPKey},
		{"TVer", qp.RTS, there, here, raw(1, 0x71), transport.DropVersion},
		{"reserved opcode", qp.RTS, there, here, raw(0, 0x15), transport.DropOpcode},
		{"RD opcode", qp.RTS, there, here, raw(0, 0x44), transport.DropOpcode},
		{"manufacturer opcode", qp.RTS, there, here, raw(0, 0xC0), transport.DropOpcode},
		{"pad beyond the payload", qp.RTS, there, here, func(s *script) []byte {
			b := with(func(p *bth.Packet) { p.Payload = nil })(s)
			b[1] |= 0x30
			return b
		}, transport.DropPad},
		{"payload on an ACK", qp.RTS, there, here, func(s *script) []byte {
			p := s.ack(0)
			return append(p.AppendTo(nil), 1, 2, 3, 4)
		}, transport.DropPayload},
		{"empty", qp.RTS, there, here, cut(0), transport.DropTruncated},
		{"half a BTH", qp.RTS, there, here, cut(11), transport.DropTruncated},
		{"half a RETH", qp.RTS, there, here, func(s *script) []byte { p := s.pkt(bth.WriteOnly, 0, nil); return p.AppendTo(nil)[:27] }, transport.DropTruncated},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, setup{state: row.state}, func(s *script) {
				s.postRecv(1, 0, 10)
				check := s.unchanged()
				s.feed(row.src, row.dst, row.b(s))
				s.wantCount(row.want, 1)
				s.wantCount(transport.RcvdPkts, 0)
				s.wantSilence()
				s.wantNoCompletion()
				s.wantState(row.state)
				check()
				if row.state == qp.RTS { // and the connection is as it was
					s.hear(send(s))
					s.wantACK(0, 1)
					s.wantRecv(1, cq.Success)
				}
			})
		})
	}
}

// IBA 10.9.3: partial members of the default partition may talk to a full one.
func TestEngineTakesPartialMember(t *testing.T) {
	play(t, setup{}, func(s *script) {
		p := s.pkt(bth.WriteOnly, 0, nil, asks)
		p.PKey = 0x7FFF
		p.MigReq = false // rxe
		s.hear(p)
		s.wantACK(0, 1)
	})
}

// IBA 16.1.3.5: received packets and marks are counted.
func TestEngineCountsTraffic(t *testing.T) {
	play(t, setup{}, func(s *script) {
		p := s.pkt(bth.WriteOnly, 0, fill(5), s.into(0, 5), asks)
		b := p.AppendTo(nil)
		s.e.Receive(0, &bth.Datagram{Src: there, Dst: here, TrafficClass: 3, Data: b})
		s.want(op(bth.CNP))
		s.wantACK(0, 1)
		s.wantCount(transport.RcvdPkts, 1)
		s.wantCount(transport.RcvdBytes, uint64(len(b)+4))
		s.wantCount(transport.CERcvd, 1)
		s.wantCount(transport.SentPkts, 2)
		s.wantCount(transport.SentBytes, 12+16+4+16+4)
	})
}

func TestCountersHaveDistinctNames(t *testing.T) {
	seen := map[string]bool{}
	var c transport.Counters
	c.Each(func(name string, _ uint64) {
		if name == "" || seen[name] {
			t.Errorf("counter name %q is empty or used twice", name)
		}
		seen[name] = true
	})
}

// another creates and connects one more pair on the engine.
func (s *script) another(attr func(*qp.Attr)) *transport.QP {
	s.Helper()
	q, err := s.e.Create(s.pd, qp.Config{Type: qp.RC, SendCQ: cq.New(64, nil), RecvCQ: cq.New(64, nil)})
	if err != nil {
		s.Fatal(err)
	}
	first, keep := s.q, s.attr
	s.q = q
	if attr != nil {
		attr(&s.attr)
	}
	s.connect(qp.RTS)
	s.q, s.attr = first, keep
	return q
}

// Pairs take turns: one with much to send does not hold up the others.
func TestEnginePairsTakeTurns(t *testing.T) {
	play(t, setup{window: 256}, func(s *script) {
		const pairs = 4
		qs := []*transport.QP{s.q}
		for range pairs - 1 {
			qs = append(qs, s.another(func(a *qp.Attr) { a.DestQPN += bth.QPN(len(qs)) }))
		}
		for i, q := range qs {
			n := 4096 * 4
			if i == pairs-1 {
				n = 100 // one packet only
			}
			if err := s.e.PostSend(q, &qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{s.mem.SGE(0, n)}}); err != nil {
				s.Fatal(err)
			}
		}
		s.burst.Reset()
		s.e.Transmit(0, s.burst) // 64 frames
		var turns []bth.QPN
		perPair := map[bth.QPN]int{}
		for i := range s.burst.Frames() {
			var p bth.Packet
			f := &s.burst.Frames()[i]
			if err := p.Parse(append(bytes.Clone(f.Header()), f.Payload...)); err != nil {
				s.Fatal(err)
			}
			if len(turns) == 0 || turns[len(turns)-1] != p.DestQP {
				turns = append(turns, p.DestQP)
			}
			perPair[p.DestQP]++
		}
		want := []bth.QPN{peerQPN, peerQPN + 1, peerQPN + 2, peerQPN + 3, peerQPN}
		if fmt.Sprint(turns) != fmt.Sprint(want) {
			s.Fatalf("turns %x, want %x", turns, want)
		}
		if perPair[peerQPN+1] != 16 || perPair[peerQPN+2] != 16 || perPair[peerQPN+3] != 1 {
			s.Fatalf("packets per turn %v", perPair)
		}
		for _, q := range qs {
			s.e.Destroy(q)
		}
	})
}

// Every pair's timer runs on its own, in the order of time.
func TestEngineTimersOfManyPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := newScript(t, setup{}, 0)
	type pair struct {
		q   *transport.QP
		due time.Duration
	}
	var pairs []pair
	for range 300 {
		code := uint8(5 + r.IntN(10))
		q := s.another(func(a *qp.Attr) { a.Timeout, a.RetryCount = code, 0 })
		pairs = append(pairs, pair{q: q, due: qp.AckTimeout(code)})
	}
	r.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	for i := range pairs {
		p := &pairs[i]
		s.now += time.Duration(r.IntN(1000))
		if err := s.e.PostSend(p.q, &qp.SendWR{Op: qp.Send}); err != nil {
			t.Fatal(err)
		}
		s.burst.Reset()
		s.e.Transmit(s.now, s.burst)
		switch r.IntN(4) {
		case 0: // acknowledged: no timer
			b := bth.Packet{BTH: bth.BTH{Opcode: bth.Acknowledge, PKey: bth.PKeyDefault, DestQP: p.q.QPN}, AETH: bth.AETH{Syndrome: bth.SyndromeACK}}
			s.hear(b)
			p.due = -1
		case 1: // acknowledged, and posted again later
			b := bth.Packet{BTH: bth.BTH{Opcode: bth.Acknowledge, PKey: bth.PKeyDefault, DestQP: p.q.QPN}, AETH: bth.AETH{Syndrome: bth.SyndromeACK}}
			s.hear(b)
			s.now += time.Duration(r.IntN(1000))
			if err := s.e.PostSend(p.q, &qp.SendWR{Op: qp.Send}); err != nil {
				t.Fatal(err)
			}
			s.burst.Reset()
			s.e.Transmit(s.now, s.burst)
			p.due += s.now
		default:
			p.due += s.now
		}
	}
	late := 0
	for {
		at, ok := s.e.Deadline()
		if !ok {
			break
		}
		if at < s.now {
			late++ // due while the others were posted
		}
		s.now = max(s.now, at)
		s.e.Timers(s.now)
		for _, p := range pairs {
			failed := p.q.State() == qp.Err
			if failed != (p.due >= 0 && p.due <= s.now) {
				t.Fatalf("at %v: pair %x, due %v, failed %v", s.now, p.q.QPN, p.due, failed)
			}
		}
	}
	if late > 100 {
		t.Fatalf("%d deadlines were in the past", late)
	}
}

// Numbers are handed out in turn; those with a meaning are left out, and those
// in use; one that is free again comes back last.
func TestEngineQPNs(t *testing.T) {
	s := newScript(t, setup{}, 0)
	at := uint32(0xFFFFFC) // the first number is the next one
	e := transport.New(transport.Config{Local: here, Random: func() uint32 { return at }, MaxQP: 5, OnEvent: func(transport.Event) {}})
	create := func() *transport.QP {
		q, err := e.Create(s.pd, qp.Config{Type: qp.RC, SendCQ: cq.New(1, nil), RecvCQ: cq.New(1, nil)})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	var qs []*transport.QP
	for _, want := range []bth.QPN{0xFFFFFD, 0xFFFFFE, 16, 17, 18} {
		q := create()
		if q.QPN != want {
			t.Fatalf("QPN %x, want %x", q.QPN, want)
		}
		qs = append(qs, q)
	}
	if _, err := e.Create(s.pd, qp.Config{Type: qp.RC}); !errors.Is(err, transport.ErrTooManyQPs) {
		t.Fatalf("one too many: %v", err)
	}
	e.Destroy(qs[3])
	e.Destroy(qs[3]) // again: nothing
	if e.Len() != 4 {
		t.Fatalf("%d pairs", e.Len())
	}
	if q := create(); q.QPN != 19 {
		t.Fatalf("QPN %x, want 13", q.QPN)
	}
	if _, err := e.Create(s.pd, qp.Config{Type: 9}); !errors.Is(err, transport.ErrType) {
		t.Fatalf("unknown type: %v", err)
	}
}

// A pair that is destroyed with work, answers, timers and a turn pending leaves
// nothing behind.
func TestEngineDestroyWithPendingWork(t *testing.T) {
	play(t, setup{window: 2}, func(s *script) {
		other := s.another(nil)
		s.postWrite(1, 0, 600)
		s.postRead(2, 0, 600)
		s.postRecv(3, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 600)))
		s.e.Destroy(s.q)
		s.wantSilence()
		s.wantNoTimer()
		s.wantNoCompletion()
		s.hear(s.ack(0), s.pkt(bth.WriteOnly, 3, nil))
		s.wantCount(transport.DropQPN, 2)
		for _, err := range []error{
			s.e.PostSend(s.q, &qp.SendWR{Op: qp.Send}), s.e.PostRecv(s.q, &qp.RecvWR{}),
			s.e.Modify(0, s.q, &qp.Attr{State: qp.Init}, qp.AttrState),
		} {
			if !errors.Is(err, transport.ErrDestroyed) {
				s.Fatalf("call on a destroyed pair: %v", err)
			}
		}
		s.q = other
		s.postWrite(4, 0, 10)
		s.want(at(0))
		s.hear(s.ack(0))
		s.wantSent(4, cq.Success)
		s.e.Destroy(other)
		if s.pd.Release(); s.pd.InUse() { // the one region is left
			s.Fatal("the domain is still in use")
		}
		s.pd.Retain()
	})
}

// A burst that is too small is continued by the next one, without loss.
func TestEngineSmallBurstsContinue(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.burst = bth.NewBurst(3, 4096)
		s.postWrite(1, 0, 10*256)
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 10*256)))
		s.drain()
		if len(s.sent) != 20 {
			s.Fatalf("%d packets, want 20", len(s.sent))
		}
		for k := range 10 { // answers first
			s.want(at(k))
		}
		for k := range 10 {
			s.want(at(k), ask(k == 9))
		}
		s.hear(s.ack(9))
		s.wantSent(1, cq.Success)
	})
}
