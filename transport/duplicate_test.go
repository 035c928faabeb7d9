package transport_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// IBA 9.7.5.1.1, C9-105: a duplicate SEND is not executed; the ACK names the
// latest PSN executed and the present MSN, whether it was asked for or not.
func TestResponderDuplicateSendIsAckedAgain(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRecv(1, 0, 600)
		s.postRecv(2, 1000, 600)
		in := l(s.pkt(bth.SendFirst, 0, fill(256)), s.pkt(bth.SendLast, 1, fill(9), asks), s.pkt(bth.WriteOnly, 2, nil, asks))
		s.hear(in...)
		s.wantACK(2, 2)
		s.wantRecv(1, cq.Success)
		check := s.unchanged()
		for i := range in {
			s.hear(in[i])
			s.wantACK(2, 2)
		}
		s.hear(in...) // one ACK for several
		s.wantACK(2, 2)
		s.wantNoCompletion()
		s.wantCount(transport.DuplicateRequest, 6)
		check()
	})
}

func TestResponderDuplicateWriteIsAckedAgain(t *testing.T) {
	play(t, setup{}, func(s *script) {
		p := s.pkt(bth.WriteOnly, 0, fill(8), s.into(0, 8))
		s.hear(p)
		s.wantSilence() // no AckReq
		copy(s.data(0, 8), "changed!")
		s.hear(p)
		s.wantACK(0, 1)
		if string(s.data(0, 8)) != "changed!" {
			s.Fatal("a duplicate WRITE was executed")
		}
	})
}

// A duplicate of a message in progress does not disturb it.
func TestResponderDuplicateInMessageLeavesItAlone(t *testing.T) {
	play(t, setup{}, func(s *script) {
		data := fill(700)
		first, middle, last := s.pkt(bth.WriteFirst, 0, data[:256], s.into(0, 700)), s.pkt(bth.WriteMiddle, 1, data[256:512]), s.pkt(bth.WriteLast, 2, data[512:], asks)
		s.hear(first, middle, first, s.pkt(bth.SendOnly, 0, fill(3)), last)
		s.wantACK(2, 1)
		if !bytes.Equal(s.data(0, 700), data) {
			s.Fatal("wrong bytes")
		}
	})
}

// A part of a READ that is asked for again, while the READ is being answered behind
// it, does not cut that short.
func TestResponderDuplicateReadLeavesTheAnswerInProgress(t *testing.T) {
	play(t, setup{}, func(s *script) {
		const packets = 100
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(0, packets*256)))
		s.burst.Reset()
		s.e.Transmit(s.now, s.burst) // a part of it
		part := len(s.burst.Frames())
		if part == 0 || part == packets {
			s.Fatalf("%d packets in one burst: the test needs another length", part)
		}
		s.hear(s.pkt(bth.ReadRequest, 3, nil, s.into(3*256, 2*256))) // 3 and 4 were lost
		for k := part; k < packets; k++ {
			s.want(at(k))
		}
		s.want(op(bth.ReadRespFirst), at(3), payload(s.data(3*256, 256)))
		s.want(op(bth.ReadRespLast), at(4))
	})
}

// IBA 9.7.5.1.1: a READ is executed again from memory, whole or a tail of it, and
// starts with FIRST or ONLY.
func TestResponderDuplicateReadIsExecutedAgain(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(100, 600)), s.pkt(bth.WriteOnly, 3, nil, asks))
		for k := range 3 {
			s.want(at(k))
		}
		s.wantACK(3, 2)
		copy(s.data(100, 4), "new!")
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(100, 600)))
		s.want(op(bth.ReadRespFirst), at(0), payload(s.data(100, 256)), count(2))
		s.want(op(bth.ReadRespMiddle), at(1), payload(s.data(356, 256)))
		s.want(op(bth.ReadRespLast), at(2), payload(s.data(612, 88)))
		s.hear(s.pkt(bth.ReadRequest, 1, nil, s.into(356, 344)))
		s.want(op(bth.ReadRespFirst), at(1), payload(s.data(356, 256)))
		s.want(op(bth.ReadRespLast), at(2), payload(s.data(612, 88)))
		s.hear(s.pkt(bth.ReadRequest, 2, nil, s.into(612, 88)))
		s.want(op(bth.ReadRespOnly), at(2), payload(s.data(612, 88)))
		s.hear(s.pkt(bth.WriteOnly, 4, nil, asks)) // MSN and PSN have not moved
		s.wantACK(4, 3)
	})
}

// IBA 9.7.5.1.1: a duplicate READ that is not inside a remembered one is dropped.
func TestResponderDuplicateReadOutsideIsDropped(t *testing.T) {
	for _, row := range []struct {
		name string
		k, n int
	}{
		{"longer than it was", 1, 601},
		{"tail beyond the end", 2, 600},
		{"at a WRITE", 0, 4},
		{"across its end into a WRITE", 3, 257},
		{"forgotten", -1000, 4},
		{"half the space ago", -1 << 22, 4},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				s.hear(s.pkt(bth.WriteOnly, 0, nil), s.pkt(bth.ReadRequest, 1, nil, s.into(0, 600)), s.pkt(bth.WriteOnly, 4, nil))
				for k := range 3 {
					s.want(at(k + 1))
				}
				n := row.n
				if row.k == 1 {
					n = 3*256 + 1 // one packet more
				}
				s.hear(s.pkt(bth.ReadRequest, row.k, nil, s.into(0, n)))
				s.wantSilence()
				s.wantCount(transport.DropDuplicate, 1)
				s.wantState(qp.RTS)
			})
		})
	}
}

// IBA 9.7.5.1.1: the key of a duplicate READ is looked at again; rxe answers
// 0x62 when it has become invalid.
func TestResponderDuplicateReadOfDeregisteredRegionIsRefused(t *testing.T) {
	play(t, setup{}, func(s *script) {
		r := s.register(600, mr.LocalWrite|mr.RemoteRead)
		p := s.pkt(bth.ReadRequest, 0, nil, to(r.Addr(), r.Key(), 600))
		s.hear(p)
		for k := range 3 {
			s.want(at(k))
		}
		if err := s.pd.Deregister(r); err != nil {
			s.Fatal(err)
		}
		s.hear(p)
		s.wantNAK(0, bth.NAKRemoteAccess, 1)
		s.wantEvent(transport.EventQPAccessErr)
	})
	play(t, setup{}, func(s *script) { // nor can it name memory that it may not read
		r := s.register(600, mr.LocalWrite|mr.RemoteWrite)
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 600)))
		for k := range 3 {
			s.want(at(k))
		}
		s.hear(s.pkt(bth.ReadRequest, 0, nil, to(r.Addr(), r.Key(), 600)))
		s.wantNAK(0, bth.NAKRemoteAccess, 1)
		s.wantEvent(transport.EventQPAccessErr)
	})
}

// IBA 9.7.5.1.1: an atomic is never executed again; its result is replayed, for
// as many as may be outstanding; an unknown one is dropped.
func TestResponderDuplicateAtomicIsReplayed(t *testing.T) {
	play(t, setup{}, func(s *script) {
		word := s.data(64, 8)
		binary.NativeEndian.PutUint64(word, 100)
		add := func(k int) bth.Packet { return s.atomic(bth.FetchAdd, k, s.va(64), s.mem.Key(), 1, 0) }
		for k := range 6 {
			s.hear(add(k))
			s.want(op(bth.AtomicAcknowledge), at(k), old(uint64(100+k)), count(uint32(k+1)))
		}
		for _, k := range []int{5, 2, 3, 2} { // the depth is 4
			s.hear(add(k))
			s.want(op(bth.AtomicAcknowledge), at(k), old(uint64(100+k)), count(uint32(k+1)))
		}
		s.hear(add(1), add(0))
		s.wantSilence()
		s.wantCount(transport.DropDuplicate, 2)
		if v := binary.NativeEndian.Uint64(word); v != 106 {
			s.Fatalf("word %d: a duplicate was executed", v)
		}
		swap := s.atomic(bth.CmpSwap, 6, s.va(64), s.mem.Key(), 5, 106)
		s.hear(swap, swap, swap) // twice behind itself in one batch: one answer is enough
		s.want(op(bth.AtomicAcknowledge), at(6), old(106))
		s.wantSilence()
		s.hear(swap)
		s.want(op(bth.AtomicAcknowledge), at(6), old(106))
	})
}

// An atomic at the PSN of something else is no duplicate of it.
func TestResponderDuplicateOfAnotherKindIsDropped(t *testing.T) {
	play(t, setup{}, func(s *script) {
		check := s.unchanged()
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 600)), s.atomic(bth.CmpSwap, 3, s.va(64), s.mem.Key(), 1, 0))
		for k := range 4 {
			s.want(at(k))
		}
		s.hear(s.atomic(bth.FetchAdd, 0, s.va(64), s.mem.Key(), 1, 0), s.atomic(bth.FetchAdd, 1, s.va(64), s.mem.Key(), 1, 0))
		s.hear(s.pkt(bth.ReadRequest, 3, nil, s.into(0, 8)))
		s.wantSilence()
		s.wantCount(transport.DropDuplicate, 3)
		check()
	})
}

// IBA 9.7.5.1.1: the ACK of a duplicate must not acknowledge a READ or atomic
// whose answer the peer may be missing.
func TestResponderDuplicateACKStopsBeforeRead(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.WriteOnly, 0, nil), s.pkt(bth.WriteOnly, 1, nil), s.pkt(bth.ReadRequest, 2, nil, s.into(0, 600)),
			s.pkt(bth.WriteOnly, 5, nil), s.atomic(bth.FetchAdd, 6, s.va(0), s.mem.Key(), 1, 0), s.pkt(bth.WriteOnly, 7, nil))
		for k := range 3 {
			s.want(at(2 + k))
		}
		s.want(op(bth.AtomicAcknowledge), at(6))
		s.hear(s.pkt(bth.WriteOnly, 0, nil, asks))
		s.wantACK(1, 6)
		s.hear(s.pkt(bth.WriteOnly, 5, nil, asks))
		s.wantACK(5, 6)
		s.hear(s.pkt(bth.WriteOnly, 7, nil, asks))
		s.wantACK(7, 6)
		// A whole go-back: everything again, in order.
		s.hear(s.pkt(bth.WriteOnly, 0, nil), s.pkt(bth.WriteOnly, 1, nil), s.pkt(bth.ReadRequest, 2, nil, s.into(0, 600)),
			s.pkt(bth.WriteOnly, 5, nil), s.atomic(bth.FetchAdd, 6, s.va(0), s.mem.Key(), 1, 0), s.pkt(bth.WriteOnly, 7, nil))
		s.wantACK(1, 6)
		for k := range 3 {
			s.want(at(2 + k))
		}
		s.wantACK(5, 6)
		s.want(op(bth.AtomicAcknowledge), at(6), count(5))
		s.wantACK(7, 6)
	})
}

// A duplicate READ whose first answer is still on its way is not answered
// twice; one that goes back before what was sent starts over there.
func TestResponderDuplicateOfReadInProgress(t *testing.T) {
	play(t, setup{}, func(s *script) {
		read := s.pkt(bth.ReadRequest, 0, nil, s.into(0, 5*256))
		tail := s.pkt(bth.ReadRequest, 2, nil, s.into(512, 3*256))
		s.hear(read, read, tail) // nothing is sent yet: one answer serves all
		s.burst = bth.NewBurst(1, 4096)
		one := func() bth.Packet {
			s.burst.Reset()
			s.e.Transmit(s.now, s.burst)
			return s.check(&s.burst.Frames()[0])
		}
		for k := range 4 {
			if p := one(); p.PSN != s.psn(k) {
				s.Fatalf("PSN %v", p.PSN)
			}
		}
		s.hear(tail) // 2 and 3 got lost
		s.want(op(bth.ReadRespFirst), at(2), payload(s.data(512, 256)))
		s.want(op(bth.ReadRespMiddle), at(3))
		s.want(op(bth.ReadRespLast), at(4))
	})
}

// Duplicates are served for a READ at a time, up to the depth; more wait for
// the peer to ask again.
func TestResponderDuplicateReadsAreBounded(t *testing.T) {
	play(t, setup{}, func(s *script) {
		var reads []bth.Packet
		for k := range 4 {
			reads = append(reads, s.pkt(bth.ReadRequest, 3*k, nil, s.into(0, 600)))
		}
		s.hear(reads...)
		for k := range 12 {
			s.want(at(k))
		}
		s.burst = bth.NewBurst(1, 4096)
		s.hear(reads...)
		for range 50 {
			s.hear(reads...)
		}
		for k := range 12 {
			s.want(at(k))
		}
	})
}

// IBA 9.7.5.1.1: a duplicate clears the memory of the NAK: if that was lost, the
// next packet ahead brings another.
func TestResponderDuplicateLetsNAKBeRepeated(t *testing.T) {
	play(t, setup{}, func(s *script) {
		w := func(k int) bth.Packet { return s.pkt(bth.WriteOnly, k, nil, asks) }
		s.hear(w(0))
		s.wantACK(0, 1)
		s.hear(w(2))
		s.wantACK(0, 1)
		s.wantNAK(1, bth.NAKSequence, 1) // lost
		s.hear(w(3))
		s.wantSilence()
		s.hear(w(0))
		s.wantACK(0, 1)
		s.hear(w(2))
		s.wantNAK(1, bth.NAKSequence, 1)
		s.hear(w(3))
		s.wantSilence()
	})
}

// PSNs far behind are duplicates, those ahead are not (24-bit window).
func TestResponderWindowIsHalfTheSpace(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.WriteOnly, 0, nil))
		s.hear(s.pkt(bth.WriteOnly, 1-(1<<23-1), nil))
		s.wantACK(0, 1)
		s.hear(s.pkt(bth.WriteOnly, 1+(1<<23-1), nil))
		s.wantACK(0, 1)
		s.wantNAK(1, bth.NAKSequence, 1)
	})
}
