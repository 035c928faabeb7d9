package transport_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// write makes a WRITE of four bytes, each k, to offset 4k of mem.
func (s *script) write(k int, mods ...mod) bth.Packet {
	b := byte(k)
	return s.pkt(bth.WriteOnly, k, []byte{b, b, b, b}, append(mods, s.into(4*k, 4))...)
}

// What came early is executed once the gap is filled, and acknowledged at once.
func TestResponderKeepsEarlyPackets(t *testing.T) {
	play(t, setup{}, func(s *script) {
		check := s.unchanged()
		s.hear(s.write(1), s.write(2), s.write(3))
		s.wantNAK(0, bth.NAKSequence, 0)
		s.wantSilence()
		check() // nothing is placed early
		s.hear(s.write(0))
		s.wantACK(3, 4)
		check(s.data(0, 16))
		s.wantCount(transport.ReorderedPkts, 3)
		s.wantNoTimer()
	})
}

// Messages, immediates, READs and atomics keep their order.
func TestResponderExecutesEarlyPacketsInOrder(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRecv(1, 1024, 600)
		s.postRecv(2, 2048, 600)
		msg := fill(600)
		s.hear(
			s.pkt(bth.WriteOnlyImm, 7, nil, s.into(0, 0), carrying(9)),
			s.pkt(bth.SendLast, 2, msg[512:]),
			s.pkt(bth.SendMiddle, 1, msg[256:512]),
			s.pkt(bth.ReadRequest, 4, nil, s.into(1024, 600)),
			s.atomic(bth.FetchAdd, 3, s.va(0)&^7, s.mem.Key(), 1, 0))
		s.wantNAK(0, bth.NAKSequence, 0)
		s.wantNoCompletion()
		s.hear(s.pkt(bth.SendFirst, 0, msg[:256]))
		s.wantRecv(1, cq.Success)
		if wc := s.wantRecv(2, cq.Success); wc.Imm != 9 {
			s.Fatalf("immediate %d", wc.Imm)
		}
		s.want(op(bth.AtomicAcknowledge), at(3), count(2))
		s.want(op(bth.ReadRespFirst), at(4), count(3), payload(msg[:256]))
		s.want(at(5))
		s.want(at(6))
		s.wantACK(7, 4)
	})
}

// Behind the first gap there is another one. The requester has gone back and will
// come to it; it is asked for when it was lost again, or nothing comes.
func TestResponderAsksForTheNextGap(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.write(1), s.write(3))
		s.wantNAK(0, bth.NAKSequence, 0)
		s.hear(s.write(0))
		s.wantACK(1, 2)
		s.wantSilence()
		s.hear(s.write(3)) // so 2 was lost again
		s.wantACK(1, 2)
		s.wantNAK(2, bth.NAKSequence, 2)
		s.hear(s.write(2))
		s.wantACK(3, 4)
		s.hear(s.write(5), s.write(7))
		s.wantACK(3, 4)
		s.wantNAK(4, bth.NAKSequence, 4)
		s.hear(s.write(4))
		s.wantACK(5, 6)
		s.expire()
		s.wantACK(5, 6)
		s.wantNAK(6, bth.NAKSequence, 6)
		s.hear(s.write(6))
		s.wantACK(7, 8)
	})
}

// The requester has gone back and its first packet was lost again: packets that
// are here already come again, from the gap on.
func TestResponderAsksAgainWhenTheResendIsLost(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.write(1), s.write(2), s.write(3))
		s.wantNAK(0, bth.NAKSequence, 0)
		for range 3 {
			s.hear(s.write(1))
			s.wantNAK(0, bth.NAKSequence, 0)
			s.hear(s.write(2), s.write(3), s.write(4))
			s.wantSilence()
		}
		s.hear(s.write(0))
		s.wantACK(4, 5)
	})
}

// A packet that was asked for and then came twice was late, not lost: the NAK
// waits for more, but not for long.
func TestResponderLearnsToTolerateReordering(t *testing.T) {
	play(t, setup{}, func(s *script) {
		for k := 0; k < 6; k += 2 {
			s.hear(s.write(k + 1))
			if k > 0 {
				s.wantACK(k-1, uint32(k))
			}
			s.wantNAK(k, bth.NAKSequence, uint32(k))
			s.hear(s.write(k))
			s.wantACK(k+1, uint32(k+2))
			s.hear(s.write(k), s.write(k+1)) // resent: one ACK for both
			s.wantACK(k+1, uint32(k+2))
		}
		s.hear(s.write(7), s.write(8), s.write(9), s.write(10))
		s.wantSilence()
		s.hear(s.write(6))
		s.wantACK(10, 11)
		s.hear(s.write(12), s.write(13), s.write(14), s.write(15), s.write(16))
		s.wantACK(10, 11)
		s.wantNAK(11, bth.NAKSequence, 11) // the fifth
		s.hear(s.write(11))
		s.wantACK(16, 17)
		s.hear(s.write(18))
		s.wantSilence()
		if d := s.expire(); d != time.Millisecond {
			s.Fatalf("NAK after %v", d)
		}
		s.wantACK(16, 17)
		s.wantNAK(17, bth.NAKSequence, 17)
		s.hear(s.write(17))
		s.wantACK(18, 19)
	})
}

// A kept SEND finds no receive: RNR NAK in its turn; what is behind it is kept.
func TestResponderEarlyPacketWithoutReceive(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.SendOnly, 1, nil), s.write(2))
		s.wantNAK(0, bth.NAKSequence, 0)
		s.hear(s.write(0, asks))
		s.wantACK(0, 1)
		s.wantNAK(1, bth.SyndromeRNR(12), 1)
		s.postRecv(1, 1024, 10)
		s.hear(s.pkt(bth.SendOnly, 1, nil, asks))
		s.wantRecv(1, cq.Success)
		s.wantACK(2, 3)
	})
}

// A kept packet is refused in its turn, and everything else is forgotten.
func TestResponderEarlyPacketIsRefused(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.WriteLast, 1, []byte{1}), s.write(2))
		s.wantNAK(0, bth.NAKSequence, 0)
		s.hear(s.write(0))
		s.wantNAK(1, bth.NAKInvalid, 1)
		s.wantEvent(transport.EventQPReqErr)
		s.wantState(qp.Err)
		s.wantNoTimer()
	})
}

// What is kept has bounds, per pair and for all together, and is given back.
func TestResponderKeepsABoundedNumber(t *testing.T) {
	play(t, setup{}, func(s *script) {
		hear := func(from, to int) {
			for k := from; k < to; k++ {
				s.hear(s.pkt(bth.WriteOnly, k, nil))
			}
		}
		hear(1, 1000)
		s.wantNAK(0, bth.NAKSequence, 0)
		s.wantCount(transport.ReorderedPkts, 255)
		s.wantCount(transport.DropOutOfSequence, 999-255)
		hear(0, 1)
		s.wantACK(255, 256)
		for round := range 40 { // none is lost: 40 times 255 are more than 4096
			s.state(qp.Reset)
			s.connect(qp.RTS)
			hear(1, 256)
			s.drain()
			s.sent = nil
			s.wantCount(transport.ReorderedPkts, uint64(255*(round+2)))
		}
	})
}

// A READ that covers PSNs that something was kept for wins: such packets were
// never sent by a requester that counts right.
func TestResponderReadCoversEarlyPackets(t *testing.T) {
	play(t, setup{}, func(s *script) {
		check := s.unchanged()
		s.hear(s.write(1), s.write(2), s.write(3))
		s.wantNAK(0, bth.NAKSequence, 0)
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 600)))
		check(s.data(12, 4)) // only the WRITE behind it
		for range 3 {
			s.want()
		}
		s.wantACK(3, 2)
	})
}

// Early packets cost no allocation once there were some.
func TestResponderEarlyPacketsDoNotAllocate(t *testing.T) {
	s := newScript(t, setup{}, 0)
	var packets [4][]byte
	for i := range packets {
		p := s.pkt(bth.WriteOnly, 0, nil)
		packets[i] = p.AppendTo(nil)
	}
	k := 0
	d := bth.Datagram{Src: there, Dst: here, SrcPort: 49152}
	round := func() {
		for _, i := range []int{1, 2, 3, 0} {
			psn := s.psn(k + i).Value()
			packets[i][9], packets[i][10], packets[i][11] = byte(psn>>16), byte(psn>>8), byte(psn)
			d.Data = packets[i]
			s.e.Receive(0, &d)
		}
		k += 4
		s.burst.Reset()
		s.e.Transmit(0, s.burst)
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for three early packets", n)
	}
}

// A NAK that has not left when its packet comes is no NAK any more: what was
// behind the gap has been kept, and the requester would send it again.
func TestResponderGapFilledBeforeNAKLeaves(t *testing.T) {
	play(t, setup{recovery: transport.Alone}, func(s *script) {
		s.hear(s.pkt(bth.WriteOnly, 1, nil, asks), s.pkt(bth.WriteOnly, 2, nil, asks), s.pkt(bth.WriteOnly, 0, nil, asks))
		s.wantACK(2, 3)
		s.wantSilence()
	})
}
