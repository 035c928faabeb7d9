package transport_test

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

const us = time.Microsecond

// hearMarked lets a packet arrive with the congestion mark.
func (s *script) hearMarked(p bth.Packet) {
	s.e.Receive(s.now, &bth.Datagram{Src: there, Dst: here, TrafficClass: 3, Data: p.AppendTo(nil)})
}

// A CNP's bytes are those that adapters send: opcode 0x81, no MigReq, BECN, no
// AckReq, PSN 0, 16 zero bytes; DSCP 48, ECT(0).
func TestCNPBytes(t *testing.T) {
	play(t, setup{}, func(s *script) {
		p := s.pkt(bth.WriteOnly, 0, fill(8), s.into(0, 8))
		p.PKey = 0x7FFF
		s.hearMarked(p)
		s.burst.Reset()
		s.e.Transmit(s.now, s.burst)
		if n := len(s.burst.Frames()); n != 1 {
			s.Fatalf("%d packets", n)
		}
		f := &s.burst.Frames()[0]
		want := append([]byte{0x81, 0, 0x7F, 0xFF, 0x40, 0, 0x07, 0x77, 0, 0, 0, 0}, make([]byte, 16)...)
		if f.Seal(0); !bytes.Equal(f.Header(), want) || f.Len() != 32 {
			s.Errorf("% x, %d bytes", f.Header(), f.Len())
		}
		if f.Path.TrafficClass != 0xC2 || f.Path.Dst != there || f.Path.Src != here {
			s.Errorf("path %+v", *f.Path)
		}
		s.wantCount(transport.CNPSent, 1)
		if st := s.q.Flow(s.now); st.CEMarked != 1 || st.CNPsSent != 1 || st.CNPsHandled != 0 {
			s.Errorf("%+v", st)
		}
	})
}

// All packets of a millisecond marked: 20 CNPs with the gap of the paper, 250
// with that of mlx5, one each without a gap.
func TestCNPGap(t *testing.T) {
	for _, row := range []struct {
		np   congestion.NotificationPoint
		want uint64
	}{
		{congestion.NotificationPoint{}, 20},
		{congestion.Mlx5NP, 250},
		{congestion.NotificationPoint{MinTimeBetweenCNPs: -1}, 2000},
	} {
		play(t, setup{cnp: row.np}, func(s *script) {
			for k := range 2000 {
				s.now = time.Duration(k) * us / 2
				s.hearMarked(s.pkt(bth.WriteOnly, k, fill(8), s.into(0, 8)))
				s.drain()
			}
			s.wantCount(transport.CERcvd, 2000)
			s.wantCount(transport.CNPSent, row.want)
			for range row.want {
				s.want(op(bth.CNP))
			}
		})
	}
}

// Several marked packets between two bursts are one CNP, whatever the gap: it
// bounds what a peer makes us owe.
func TestCNPOneWaitsAtATime(t *testing.T) {
	play(t, setup{cnp: congestion.NotificationPoint{MinTimeBetweenCNPs: -1}}, func(s *script) {
		for k := range 5 {
			s.hearMarked(s.pkt(bth.WriteOnly, k, fill(8), s.into(0, 8)))
		}
		s.want(op(bth.CNP))
		s.wantSilence()
	})
}

// CNPs, and packets that are refused, make none; answers with data do.
func TestCNPOnlyForWhatCounts(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hearMarked(s.pkt(bth.CNP, 0, nil))
		s.wantSilence()
		p := s.pkt(bth.WriteOnly, 0, fill(8), s.into(0, 8))
		p.PKey = 0x1234
		s.hearMarked(p)
		s.wantSilence()
		s.wantCount(transport.CNPHandled, 1)
		s.postRead(1, 0, 10)
		s.want(op(bth.ReadRequest))
		s.hearMarked(s.resp(bth.ReadRespOnly, 0, fill(10)))
		s.want(op(bth.CNP))
		s.wantSent(1, cq.Success)
	})
}

// A window limits the READ data that it asks for, so it hears of marks on them: as
// often as CNPs leave. A rate does not, and neither hears of marks on requests.
func TestMarkedReadResponsesShrinkTheWindow(t *testing.T) {
	play(t, setup{control: func() congestion.Controller { return congestion.NewAIMD(64) }}, func(s *script) {
		data := s.data(8192, 4*256)
		s.postRead(1, 0, len(data))
		s.want(op(bth.ReadRequest))
		for _, p := range s.respond(0, data) { // at one time
			s.hearMarked(p)
		}
		s.want(op(bth.CNP))
		s.wantSent(1, cq.Success)
		if w := s.q.Flow(s.now).Window; w != 32 {
			s.Errorf("window %d, want 32", w)
		}
		s.now += time.Millisecond
		s.hearMarked(s.pkt(bth.WriteOnly, 0, fill(8), s.into(0, 8)))
		s.want(op(bth.CNP))
		if w := s.q.Flow(s.now).Window; w != 32 {
			s.Errorf("window %d after a marked request, want 32", w)
		}
	})
	play(t, setup{control: func() congestion.Controller {
		f, err := congestion.ByName("dcqcn-paper", congestion.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return f(256)
	}}, func(s *script) {
		s.postRead(1, 0, 10)
		s.want(op(bth.ReadRequest))
		s.hearMarked(s.resp(bth.ReadRespOnly, 0, fill(10)))
		s.want(op(bth.CNP))
		s.wantSent(1, cq.Success)
		if r := s.q.Flow(s.now).Rate; r != congestion.DefaultLineRate {
			s.Errorf("rate %v after a marked answer, want the line rate", r)
		}
	})
}

// The gap is kept per queue pair, per peer or per port.
func TestCNPScope(t *testing.T) {
	far := netip.MustParseAddr("192.0.2.3")
	for _, row := range []struct {
		scope congestion.Scope
		want  uint64
	}{{congestion.PerQP, 3}, {congestion.PerDestination, 2}, {congestion.PerPort, 1}} {
		s := newScript(t, setup{cnp: congestion.NotificationPoint{Scope: row.scope}}, 0)
		qs := []*transport.QP{s.q, nil, nil}
		for i, peer := range []netip.Addr{there, there, far} {
			if i > 0 {
				q, err := s.e.Create(s.pd, qp.Config{Type: qp.RC, SendCQ: cq.New(8, nil), RecvCQ: cq.New(8, nil)})
				if err != nil {
					t.Fatal(err)
				}
				s.q, qs[i], s.attr.AV.DGID = q, q, peer
				s.connect(qp.RTS)
			}
		}
		for round := range uint64(3) {
			for i, peer := range []netip.Addr{there, there, far} {
				p := s.pkt(bth.WriteOnly, int(round), nil)
				p.DestQP = qs[i].QPN
				s.e.Receive(s.now, &bth.Datagram{Src: peer, Dst: here, TrafficClass: 3, Data: p.AppendTo(nil)})
				s.burst.Reset()
				s.e.Transmit(s.now, s.burst)
			}
			s.wantCount(transport.CNPSent, row.want*(round+1))
			s.now += 50 * us
		}
	}
}

// rated is a controller with a rate that the test turns; it records what it is told.
type rated struct {
	congestion.Fixed
	rate  congestion.BitRate
	bytes int
}

func (r *rated) Rate(time.Duration) congestion.BitRate { return r.rate }
func (r *rated) Sent(_ time.Duration, n int)           { r.bytes += n }
func (r *rated) ECN() bool                             { return true }

// At any rate the packets leave in batches of 50 µs or one packet, at most 64
// KiB, and keep the rate exactly.
func TestPacingKeepsTheRate(t *testing.T) {
	for _, rate := range []congestion.BitRate{5 * congestion.Mbps, 100 * congestion.Mbps, congestion.Gbps, 40 * congestion.Gbps, 100 * congestion.Gbps} {
		ctl := &rated{Fixed: 1 << 20, rate: rate}
		play(t, setup{mtu: 1024, control: func() congestion.Controller { *ctl = rated{Fixed: 1 << 20, rate: rate}; return ctl }, attr: func(a *qp.Attr) { a.Timeout = 0 }}, func(s *script) {
			const full = 1024 + 12 + 4 + 28
			batch := rate.Batch(full + 16)
			for id := range uint64(40) {
				s.postWrite(id, 0, 60<<10)
			}
			sent, start := 0, s.now
			for len(s.sent) == 0 || s.sent[len(s.sent)-1].PSN != s.psn(40*60-1) {
				before := len(s.sent)
				if s.drain(); s.e.Pending() {
					s.Fatal("the engine has more to send when it is not time for it")
				}
				n := 0
				for _, p := range s.sent[before:] {
					n += len(p.Payload) + full - 1024
					if p.Opcode.Info().Headers&bth.HasRETH != 0 {
						n += 16
					}
				}
				if n == 0 || n > max(batch, full+16) {
					s.Fatalf("a batch of %d bytes, want at most %d", n, batch)
				}
				// What has left before this batch has taken its time, to the ns.
				if want := rate.Time(sent); math.Abs(float64(s.now-start)-want) > 1.5 {
					s.Fatalf("after %d bytes it is %v, want %v ns", sent, s.now-start, want)
				}
				sent += n
				if p := s.sent[len(s.sent)-1]; p.PSN != s.psn(40*60-1) {
					s.expirePace()
				}
			}
			if ctl.bytes != sent {
				s.Errorf("the controller knows of %d bytes, %d were sent", ctl.bytes, sent)
			}
			s.sent = nil
			s.hear(s.ack(40*60 - 1))
			for id := range uint64(40) {
				s.wantSent(id, cq.Success)
			}
			s.wantNoTimer()
		})
	}
}

// expirePace lets time pass until the engine has something to send, which must
// not be a resend.
func (s *script) expirePace() {
	s.Helper()
	for !s.e.Pending() {
		at, ok := s.e.Deadline()
		if !ok {
			s.Fatal("nothing will ever be sent")
		}
		s.now = max(s.now, at)
		s.e.Timers(s.now)
	}
	s.wantCount(transport.LocalAckTimeout, 0)
}

// A host that wakes up late catches up; time with nothing to send earns nothing.
func TestPacingLateAndIdle(t *testing.T) {
	const full = 1024 + 12 + 4 + 28
	rate := congestion.BitRate(full * 8 / 100e-6) // a packet each 100 µs
	play(t, setup{mtu: 1024, control: func() congestion.Controller { return &rated{Fixed: 1000, rate: rate} }}, func(s *script) {
		send := func(k int) {
			for range k {
				s.want(op(bth.SendOnly))
			}
			s.wantSilence()
		}
		for id := range uint64(10) {
			s.postSend(id, 0, 1024)
		}
		send(1)
		s.pass(250 * us) // 150 late: the second one, then the third is 50 late
		send(2)
		s.pass(50 * us)
		send(1)
		s.pass(1000 * us) // far later than what is made up for
		send(3)
		s.pass(100 * us)
		send(1)
		for range 2 {
			s.pass(100 * us)
			send(1)
		}
		s.hear(s.ack(9))
		for id := range uint64(10) {
			s.wantSent(id, cq.Success)
		}
		s.pass(time.Second)
		for id := range uint64(3) {
			s.postSend(id, 0, 1024)
		}
		send(1)
		s.pass(200 * us) // late by 100
		send(2)
		s.hear(s.ack(12))
		for id := range uint64(3) {
			s.wantSent(id, cq.Success)
		}
	})
}

// READ responses keep the pace of their pair; ACKs and CNPs do not wait for it.
func TestPacingResponsesWaitAndAnswersDoNot(t *testing.T) {
	rate := congestion.BitRate((256 + 16 + 28) * 8 / 100e-6)
	play(t, setup{control: func() congestion.Controller { return &rated{Fixed: 1000, rate: rate} }}, func(s *script) {
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 3*256)))
		s.want(op(bth.ReadRespFirst))
		s.wantSilence()
		s.hearMarked(s.pkt(bth.WriteOnly, 3, fill(8), s.into(1024, 8), asks))
		s.want(op(bth.CNP)) // the ACK has to wait for the READ
		s.wantSilence()
		s.pass(102 * us) // FIRST and LAST have 4 bytes of AETH more
		s.want(op(bth.ReadRespMiddle))
		s.wantSilence()
		s.pass(102 * us)
		s.want(op(bth.ReadRespLast))
		s.want(op(bth.Acknowledge))
		s.hear(s.pkt(bth.WriteOnly, 4, fill(8), s.into(1024, 8), asks))
		s.want(op(bth.Acknowledge)) // the pace is used up, and an ACK leaves
		s.pass(time.Second)
		s.wantNoTimer()
	})
}

// A slow pair asks for an acknowledgement at least every millisecond: its timer
// starts with the first packet.
func TestPacingSlowPairAsksOften(t *testing.T) {
	for rate, every := range map[congestion.BitRate]int{
		congestion.Mbps: 1, 25.5 * congestion.Mbps: 10, congestion.Gbps: 64,
	} {
		play(t, setup{window: 1000, control: func() congestion.Controller { return &rated{Fixed: 1000, rate: rate} }}, func(s *script) {
			s.postWrite(2, 0, 256)
			s.want(at(0)) // before the first answer it asks more often
			s.hear(s.ack(0))
			s.wantSent(2, cq.Success)
			s.postWrite(1, 0, 100*256)
			for k := 1; k <= 100; k++ {
				if s.drain(); len(s.sent) == 0 {
					s.expirePace()
					s.drain()
				}
				p := s.want(at(k))
				if asked := p.AckReq; asked != (k%every == 0 || k == 100) {
					s.Fatalf("rate %v: packet %d asks: %v", rate, k, asked)
				}
				if p.AckReq {
					s.hear(s.ack(k))
				}
			}
			s.wantSent(1, cq.Success)
		})
	}
}

// The state of a pair that ends while it waits for its turn ends too.
func TestPacingEndsWithThePair(t *testing.T) {
	play(t, setup{control: func() congestion.Controller { return &rated{Fixed: 1000, rate: congestion.Mbps} }}, func(s *script) {
		s.postSend(1, 0, 256)
		s.postSend(2, 0, 256)
		s.want(op(bth.SendOnly))
		s.wantSilence()
		s.hearMarked(s.pkt(bth.WriteOnly, 0, nil))
		s.state(qp.Err)
		s.wantSent(1, cq.WRFlushErr)
		s.wantSent(2, cq.WRFlushErr)
		s.wantNoTimer()
	})
}

// UC has no window: CNPs reach it by the rate.
func TestPacingUC(t *testing.T) {
	s := newScript(t, setup{state: qp.Init, control: func() congestion.Controller { return &rated{Fixed: 1, rate: congestion.BitRate(300 * 8 / 100e-6)} }}, 0)
	q, err := s.e.Create(s.pd, qp.Config{Type: qp.UC, SendCQ: cq.New(8, nil), RecvCQ: cq.New(8, nil)})
	if err != nil {
		t.Fatal(err)
	}
	s.q = q
	a := s.attr
	for _, step := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{{qp.Init, initMask}, {qp.RTR, qp.AttrState | qp.AttrAV | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN}, {qp.RTS, qp.AttrState | qp.AttrSQPSN}} {
		a.State = step.state
		s.modify(&a, step.mask)
	}
	s.post(qp.SendWR{ID: 1, Op: qp.Send, SGE: []mr.SGE{s.mem.SGE(0, 5*256)}}, nil)
	for k := range 5 {
		s.drain()
		if len(s.sent) != 1 {
			t.Fatalf("%d packets at a time", len(s.sent))
		}
		s.sent = nil
		if k < 4 {
			s.expirePace()
		}
	}
	if s.now < 399*us || s.now > 401*us {
		t.Errorf("five packets took until %v", s.now)
	}
}

// A pair may have a controller of its own, from its next connection on.
func TestQPCongestionOverridesTheEngine(t *testing.T) {
	s := newScript(t, setup{window: 7}, 0)
	s.q.Congestion = func(mtu int) congestion.Controller { return congestion.Fixed(mtu) }
	if w := s.q.Flow(0).Window; w != 7 {
		t.Fatalf("window %d", w)
	}
	s.state(qp.Reset)
	s.connect(qp.RTS)
	if w := s.q.Flow(0).Window; w != 256 {
		t.Fatalf("window %d after reconnecting", w)
	}
}

// Packets with data leave as ECT(0) if the controller heeds CNPs; answers do
// not, nor does anything where the application chose the bits itself.
func TestECNBitsFollowTheController(t *testing.T) {
	for _, row := range []struct {
		ctl         congestion.Controller
		class, want uint8
	}{
		{congestion.Fixed(8), 0x68, 0x68}, {congestion.NewAIMD(8), 0x68, 0x6A}, {congestion.NewAIMD(8), 0x69, 0x69},
	} {
		s := newScript(t, setup{control: func() congestion.Controller { return row.ctl }, attr: func(a *qp.Attr) { a.AV.TrafficClass = row.class }}, 0)
		s.postSend(1, 0, 10)
		s.e.Receive(0, &bth.Datagram{Src: there, Dst: here, Data: func() []byte { p := s.pkt(bth.WriteOnly, 0, nil, asks); return p.AppendTo(nil) }()})
		s.burst.Reset()
		s.e.Transmit(0, s.burst)
		var got []uint8
		for i := range s.burst.Frames() {
			got = append(got, s.burst.Frames()[i].Path.TrafficClass)
		}
		if !slices.Equal(got, []uint8{row.class, row.want}) { // ACK, SEND
			t.Errorf("%T: %#x, want %#x", row.ctl, got, []uint8{row.class, row.want})
		}
	}
}

func TestCNPsAndPacingAllocateNothing(t *testing.T) {
	for _, scope := range []congestion.Scope{congestion.PerQP, congestion.PerDestination, congestion.PerPort} {
		f, err := congestion.ByName("dcqcn", congestion.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := newScript(t, setup{control: func() congestion.Controller { return f(256) }, cnp: congestion.NotificationPoint{Scope: scope}}, 0)
		k := 0
		data := fill(8)
		buf := make([]byte, 0, 256)
		wr := qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{s.mem.SGE(0, 4096)}, RemoteAddr: remoteVA, RKey: remoteKey}
		d := &bth.Datagram{Src: there, Dst: here}
		receive := func(p *bth.Packet, class uint8) {
			buf = p.AppendTo(buf[:0])
			d.Data, d.TrafficClass = buf, class
			s.e.Receive(s.now, d)
		}
		run := func() {
			s.now += 60 * us
			p := bth.Packet{BTH: bth.BTH{Opcode: bth.WriteOnly, PKey: bth.PKeyDefault, DestQP: s.q.QPN, PSN: s.psn(k)}, Payload: data}
			p.RETH = bth.RETH{VA: s.va(0), RKey: s.mem.Key(), Length: 8}
			receive(&p, 3)
			receive(&bth.Packet{BTH: bth.BTH{Opcode: bth.CNP, PKey: bth.PKeyDefault, DestQP: s.q.QPN}}, 0)
			if err := s.e.PostSend(s.q, &wr); err != nil {
				t.Fatal(err)
			}
			for range 100 {
				s.burst.Reset()
				s.e.Transmit(s.now, s.burst)
				at, ok := s.e.Deadline()
				if !ok || at > s.now+time.Millisecond {
					break
				}
				s.now = max(s.now, at)
				s.e.Timers(s.now)
			}
			k++
			ack := bth.Packet{BTH: bth.BTH{Opcode: bth.Acknowledge, PKey: bth.PKeyDefault, DestQP: s.q.QPN, PSN: s.psn(16*k - 1)}, AETH: bth.AETH{Syndrome: bth.SyndromeACK}}
			receive(&ack, 0)
		}
		run()
		if n := testing.AllocsPerRun(200, run); n != 0 {
			t.Errorf("scope %d: %v allocations", scope, n)
		}
		s.wantCount(transport.CNPSent, uint64(k))
		s.wantCount(transport.CNPHandled, uint64(k))
	}
}
