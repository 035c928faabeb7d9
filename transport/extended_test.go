package transport_test

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// These scripts are about annex A19 (FLUSH, ATOMIC WRITE) and about keys that
// are opened and closed through send queues (IBA 9.2.1, 5.2, 7.7).

// extended lets the peer do all that there is.
var extended = setup{attr: func(a *qp.Attr) { a.Access |= mr.FlushGlobal | mr.FlushPersist }}

func flush(s *script, k int, r *mr.Region, f bth.FETH, off, n int) bth.Packet {
	p := s.pkt(bth.Flush, k, nil, to(r.Addr()+uint64(off), r.Key(), n))
	p.FETH = f
	return p
}

// IBA 9.2.1: FLUSH and ATOMIC WRITE are answered by an empty READ response.
func TestResponderFlushAndAtomicWriteAreAnswered(t *testing.T) {
	play(t, extended, func(s *script) {
		r := s.register(64, mr.LocalWrite|mr.FlushGlobal|mr.FlushPersist)
		s.hear(flush(s, 0, r, bth.FETH{Placement: 1}, 0, 64), flush(s, 1, r, bth.FETH{Placement: 3}, 8, 8),
			flush(s, 2, r, bth.FETH{Placement: 2, Selectivity: 1}, 1<<20, 1<<20), // the region: its range means nothing
			s.pkt(bth.AtomicWrite, 3, fill(8), s.into(64, 8)))
		for k := range 4 {
			s.want(op(bth.ReadRespOnly), at(k), syndrome(bth.SyndromeACK), count(uint32(k+1)), payload(nil))
		}
		if string(s.data(64, 8)) != string(fill(8)) {
			s.Fatal("the word was not written")
		}
	})
}

// IBA 9.7.5.1.1: a duplicate is answered again and not executed again; an unknown
// one is dropped.
func TestResponderDuplicateFlushAndAtomicWriteAreAnsweredAgain(t *testing.T) {
	play(t, extended, func(s *script) {
		r := s.register(64, mr.LocalWrite|mr.FlushGlobal)
		in := l(s.pkt(bth.AtomicWrite, 0, fill(8), s.into(64, 8)), flush(s, 1, r, bth.FETH{Placement: 1}, 0, 8),
			s.pkt(bth.AtomicWrite, 2, fill(8), s.into(64, 8)))
		s.hear(in...)
		for k := range 3 {
			s.want(at(k))
		}
		clear(s.data(64, 8))
		s.hear(in...) // all in one batch
		for k := range 3 {
			s.want(op(bth.ReadRespOnly), at(k), count(uint32(k+1)))
		}
		if string(s.data(64, 8)) != string(make([]byte, 8)) {
			s.Fatal("a duplicate was executed")
		}
		s.hear(s.pkt(bth.AtomicWrite, -1, fill(8), s.into(64, 8)), flush(s, 0x7000, r, bth.FETH{}, 0, 8))
		s.wantNAK(3, bth.NAKSequence, 3)
		s.wantCount(transport.DropDuplicate, 1)
	})
}

func TestResponderRefusesFlushAndAtomicWrite(t *testing.T) {
	for _, row := range []struct {
		name  string
		hear  func(s *script, r *mr.Region) bth.Packet
		nak   bth.Syndrome
		event transport.EventType
	}{
		{"ATOMIC WRITE of 7 bytes", func(s *script, _ *mr.Region) bth.Packet { return s.pkt(bth.AtomicWrite, 0, fill(7), s.into(0, 8)) }, 0x61, transport.EventQPReqErr},
		{"ATOMIC WRITE announced as 16", func(s *script, _ *mr.Region) bth.Packet { return s.pkt(bth.AtomicWrite, 0, fill(8), s.into(0, 16)) }, 0x61, transport.EventQPReqErr},
		{"ATOMIC WRITE unaligned", func(s *script, _ *mr.Region) bth.Packet { return s.pkt(bth.AtomicWrite, 0, fill(8), s.into(4, 8)) }, 0x61, transport.EventQPReqErr},
		{"ATOMIC WRITE out of range", func(s *script, _ *mr.Region) bth.Packet { return s.pkt(bth.AtomicWrite, 0, fill(8), s.into(memLen, 8)) }, 0x62, transport.EventQPAccessErr},
		{"FLUSH of nothing", func(s *script, r *mr.Region) bth.Packet { return flush(s, 0, r, bth.FETH{}, 0, 8) }, 0x61, transport.EventQPReqErr},
		{"FLUSH of a kind unknown", func(s *script, r *mr.Region) bth.Packet { return flush(s, 0, r, bth.FETH{Placement: 4}, 0, 8) }, 0x61, transport.EventQPReqErr},
		{"FLUSH selects unknown", func(s *script, r *mr.Region) bth.Packet {
			return flush(s, 0, r, bth.FETH{Placement: 1, Selectivity: 2}, 0, 8)
		}, 0x61, transport.EventQPReqErr},
		{"FLUSH out of range", func(s *script, r *mr.Region) bth.Packet { return flush(s, 0, r, bth.FETH{Placement: 1}, 60, 8) }, 0x62, transport.EventQPAccessErr},
		{"FLUSH without the region's right", func(s *script, r *mr.Region) bth.Packet { return flush(s, 0, r, bth.FETH{Placement: 2}, 0, 8) }, 0x62, transport.EventQPAccessErr},
		{"FLUSH of a whole region without right", func(s *script, r *mr.Region) bth.Packet {
			return flush(s, 0, r, bth.FETH{Placement: 2, Selectivity: 1}, 0, 8)
		}, 0x62, transport.EventQPAccessErr},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, extended, func(s *script) {
				check := s.unchanged()
				s.hear(row.hear(s, s.register(64, mr.LocalWrite|mr.FlushGlobal)))
				s.wantNAK(0, row.nak, 0)
				s.wantEvent(row.event)
				s.wantState(qp.Err)
				check()
			})
		})
	}
}

// As requester: one PSN each, answered like a READ, resent identically.
func TestRequesterFlushAndAtomicWrite(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.MaxRDAtomic = 2 }}, func(s *script) {
		s.post(qp.SendWR{ID: 1, Op: qp.AtomicWrite, SGE: []mr.SGE{s.mem.SGE(8, 8)}}, nil)
		s.post(qp.SendWR{ID: 2, Op: qp.Flush, FlushLength: 5000, FlushType: qp.FlushGlobal | qp.FlushPersistent}, nil)
		s.post(qp.SendWR{ID: 3, Op: qp.Flush, FlushType: qp.FlushGlobal, FlushRegion: true}, []wrMod{fenced})
		for range 2 {
			s.want(op(bth.AtomicWrite), at(0), reth(0, 8), payload(s.data(8, 8)))
			p := s.want(op(bth.Flush), at(1), reth(0, 5000))
			if p.FETH != (bth.FETH{Placement: 3}) {
				s.Fatalf("FETH %+v", p.FETH)
			}
			s.wantSilence() // fence and depth
			s.hear(s.nak(0, bth.NAKSequence))
		}
		s.drain() // what the second NAK would bring is ignored
		s.hear(s.resp(bth.ReadRespOnly, 0, nil), s.resp(bth.ReadRespOnly, 1, nil))
		p := s.want(op(bth.Flush), at(2), reth(0, 0))
		if p.FETH != (bth.FETH{Placement: 1, Selectivity: 1}) {
			s.Fatalf("FETH %+v", p.FETH)
		}
		s.hear(s.resp(bth.ReadRespOnly, 2, nil))
		for id, o := range []cq.Opcode{cq.OpAtomicWrite, cq.OpFlush, cq.OpFlush} {
			if wc := s.wantSent(uint64(id+1), cq.Success); wc.Opcode != o {
				s.Fatalf("completion %+v", wc)
			}
		}
	})
	for _, wrong := range []func(s *script) bth.Packet{
		func(s *script) bth.Packet { return s.resp(bth.ReadRespOnly, 0, fill(1)) },
		func(s *script) bth.Packet { return s.resp(bth.ReadRespFirst, 0, fill(256)) },
		func(s *script) bth.Packet { return s.atomicAck(0, 1) },
	} {
		play(t, setup{}, func(s *script) {
			s.post(qp.SendWR{ID: 1, Op: qp.Flush, FlushType: qp.FlushGlobal}, nil)
			s.want(op(bth.Flush))
			s.hear(wrong(s))
			s.wantSent(1, cq.BadRespErr)
		})
	}
}

// IBA 9.9.3, 7.7: a SEND with invalidate ends a fast registration's key and
// says which; a key that cannot be ended so fails the receive and the pair,
// although the SEND has been acknowledged.
func TestResponderSendWithInvalidate(t *testing.T) {
	inv := func(s *script, o bth.Opcode, k int, b []byte, key uint32) bth.Packet {
		p := s.pkt(o, k, b, asks)
		p.InvKey = key
		return p
	}
	play(t, setup{}, func(s *script) {
		fast, err := s.pd.AllocFastRegion(64)
		if err != nil {
			s.Fatal(err)
		}
		mem := make([]byte, 64)
		if err := fast.Register(mem, mr.LocalWrite|mr.RemoteWrite, fast.Key()|5); err != nil {
			s.Fatal(err)
		}
		s.postRecv(1, 0, 600)
		s.hear(s.pkt(bth.WriteOnly, 0, fill(8), to(fast.Addr(), fast.Key(), 8), asks))
		s.wantACK(0, 1)
		s.hear(s.pkt(bth.SendFirst, 1, fill(256)), inv(s, bth.SendLastInv, 2, fill(3), fast.Key()))
		s.wantACK(2, 2)
		if wc := s.wantRecv(1, cq.Success); wc.Flags != cq.WithInv || wc.InvKey != fast.Key() || wc.ByteLen != 259 {
			s.Fatalf("completion %+v", wc)
		}
		s.hear(s.pkt(bth.WriteOnly, 3, fill(8), to(fast.Addr(), fast.Key(), 8)))
		s.wantNAK(3, bth.NAKRemoteAccess, 2)
		s.wantEvent(transport.EventQPAccessErr)
	})
	for _, row := range []struct {
		name string
		key  func(s *script) uint32
	}{
		{"plain region", func(s *script) uint32 { return s.mem.Key() }},
		{"unknown key", func(s *script) uint32 { return 1 }},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				s.postRecv(1, 0, 10)
				s.postRecv(2, 0, 10)
				s.hear(inv(s, bth.SendOnlyInv, 0, fill(5), row.key(s)))
				s.wantACK(0, 1)
				s.wantRecv(1, cq.RemInvReqErr)
				s.wantRecv(2, cq.WRFlushErr)
				s.wantState(qp.Err)
			})
		})
	}
}

// IBA 10.6: a local operation waits for all that was posted before it; a
// window can be bound, and a registration made, on pairs of its domain only.
func TestRequesterLocalOperations(t *testing.T) {
	play(t, setup{}, func(s *script) {
		r := s.register(256, mr.LocalWrite|mr.MWBind)
		w, err := s.pd.AllocWindow(mr.Type2B)
		if err != nil {
			s.Fatal(err)
		}
		s.postWrite(1, 0, 10)
		s.post(qp.SendWR{ID: 2, Op: qp.BindMW, Bind: &qp.Bind{Window: w, Region: r, Addr: r.Addr() + 8, Length: 16, Access: mr.RemoteWrite, Key: 9}}, nil)
		s.postSend(3, 0, 10)
		s.want(op(bth.WriteOnly), at(0))
		s.wantSilence()
		key := w.Key()
		s.hear(s.ack(0))
		s.want(op(bth.SendOnly), at(1))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
		if w.Key() != key&^0xFF|9 {
			s.Fatalf("key %x after %x", w.Key(), key)
		}
		s.hear(s.ack(1))
		s.wantSent(3, cq.Success)
		s.hear(s.pkt(bth.WriteOnly, 0, fill(16), to(r.Addr()+8, w.Key(), 16), asks))
		s.wantACK(0, 1)
		s.hear(s.pkt(bth.WriteOnly, 1, fill(8), to(r.Addr(), w.Key(), 8)))
		s.wantNAK(1, bth.NAKRemoteAccess, 1)
		s.wantEvent(transport.EventQPAccessErr)
	})
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same domain %v", same), func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				pd := s.pd
				if !same {
					pd = s.table.NewDomain()
				}
				r := s.registerIn(pd, 64, mr.LocalWrite|mr.MWBind)
				w, err := pd.AllocWindow(mr.Type1)
				if err != nil {
					s.Fatal(err)
				}
				fast, err := pd.AllocFastRegion(64)
				if err != nil {
					s.Fatal(err)
				}
				s.post(qp.SendWR{ID: 1, Op: qp.BindMW, Bind: &qp.Bind{Window: w, Region: r, Addr: r.Addr(), Length: 8, Access: mr.RemoteRead}}, nil)
				s.wantSilence()
				if same {
					s.wantSent(1, cq.Success)
				} else {
					s.wantSent(1, cq.MWBindErr)
					s.state(qp.Reset)
					s.connect(qp.RTS)
				}
				s.post(qp.SendWR{ID: 2, Op: qp.RegMR, Reg: &qp.FastReg{Region: fast, Mem: make([]byte, 8), Key: fast.Key()}}, nil)
				s.wantSilence()
				if same {
					s.wantSent(2, cq.Success)
				} else {
					s.wantSent(2, cq.LocQPOpErr)
				}
			})
		})
	}
}
