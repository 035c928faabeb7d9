package transport_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// A message for which nobody waits asks a peer of this package for nothing, but for
// every 16th packet; any other peer is always asked at a message's end.
func TestRequesterAsksWhenACompletionIsWaitedFor(t *testing.T) {
	for name, own := range map[string]bool{"own peer": true, "other peer": false} {
		t.Run(name, func(t *testing.T) {
			play(t, setup{window: 64}, func(s *script) {
				first := 1
				if own {
					s.agreed()
				} else {
					s.postWrite(90, 0, 1)
					s.want(at(0))
					s.hear(s.ack(0))
					s.wantSent(90, cq.Success)
				}
				for k := range 40 {
					s.postWrite(uint64(k), 0, 1, unsignaled)
					s.want(at(first+k), ask(!own || k%16 == 15))
				}
				s.postWrite(40, 0, 1)
				s.want(at(first+40), ask(true))
				s.postWrite(41, 0, 1, unsignaled)
				s.want(at(first+41), ask(!own))
				s.hear(s.ack(first + 41))
				s.wantSent(40, cq.Success)
				s.wantNoCompletion()
				s.wantNoTimer() // nothing is left to resend
			})
		})
	}
}

// Packets that asked for nothing are not in flight: no answer to them is near, for which
// a caller would wait with its next request.
func TestUnaskedPacketsAreNotInFlight(t *testing.T) {
	play(t, setup{window: 64}, func(s *script) {
		s.agreed()
		for k := range 10 {
			s.postWrite(uint64(k), 0, 1, unsignaled)
			s.want(at(1+k), ask(false))
		}
		if n := s.q.InFlight(); n != 0 {
			t.Errorf("%d packets in flight, none of which asks", n)
		}
		s.postWrite(10, 0, 1)
		s.want(at(11), ask(true))
		if n := s.q.InFlight(); n != 11 {
			t.Errorf("%d packets in flight, want the 11 that one answer is about", n)
		}
		s.hear(s.ack(11))
		s.wantSent(10, cq.Success)
		if n := s.q.InFlight(); n != 0 {
			t.Errorf("%d packets in flight after the answer", n)
		}
	})
}

// What such a requester has lost is found by the timers as ever.
func TestRequesterProbesForWhatItDidNotAskFor(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.agreed()
		s.postWrite(1, 0, 1, unsignaled)
		s.want(at(1), ask(false))
		s.expire()
		s.want(at(1), ask(true))
		s.hear(s.ack(1))
		s.wantNoTimer()
	})
}

// offered makes the peer one of this package, in PSN 0.
func (s *script) offered() {
	s.Helper()
	s.peerPort = bth.Port
	s.hear(s.write(0, asks))
	s.wantACK(0, 1)
	p := s.pkt(bth.WriteOnly, 0, nil, asks)
	p.RETH = offer
	s.hear(p)
	s.want(op(bth.SelectiveAck), at(0), count(1))
}

const lazily = 50 * time.Microsecond

// Messages that do not ask are acknowledged together, after a while.
func TestResponderAcknowledgesUnaskedALittleLater(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.offered()
		s.hear(s.write(1))
		s.pass(lazily / 2)
		s.hear(s.write(2), s.write(3))
		s.wantSilence()
		s.pass(lazily/2 - 1)
		s.wantSilence()
		s.pass(1)
		s.wantACK(3, 4)
		s.wantNoTimer()
		s.hear(s.write(4))
		s.pass(lazily)
		s.wantACK(4, 5)
	})
}

// The one that asks speaks for those before it, and so does a READ's answer; neither
// is acknowledged twice.
func TestResponderAcknowledgesUnaskedOnce(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.offered()
		s.hear(s.write(1), s.write(2, asks))
		s.wantACK(2, 3)
		s.wantNoTimer()
		s.hear(s.write(3), s.pkt(bth.ReadRequest, 4, nil, s.into(0, 8)))
		s.want(op(bth.ReadRespOnly), at(4), count(5))
		s.wantNoTimer()
		// Behind a READ it is the message's own PSN that is acknowledged.
		s.hear(s.pkt(bth.ReadRequest, 5, nil, s.into(0, 8)), s.write(6))
		s.want(op(bth.ReadRespOnly), at(5), count(6))
		s.pass(lazily)
		s.wantACK(6, 7)
		s.wantNoTimer()
	})
}

// A part of a message is no message, and who is not of this package gets what it
// asks for.
func TestResponderOwesNothingElse(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.write(0), s.write(1))
		s.wantNoTimer()
		s.hear(s.write(2, asks))
		s.wantACK(2, 3)
	})
	play(t, setup{}, func(s *script) {
		s.offered()
		s.hear(s.pkt(bth.WriteFirst, 1, fill(256), s.into(0, 300)))
		s.wantNoTimer()
		s.hear(s.pkt(bth.WriteLast, 2, fill(44)))
		s.pass(lazily)
		s.wantACK(2, 2)
	})
	play(t, setup{}, func(s *script) { // nor does a pair that has failed meanwhile
		s.offered()
		s.hear(s.write(1))
		s.state(qp.Err)
		s.wantNoTimer()
	})
}
