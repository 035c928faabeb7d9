package transport_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// measured lets the engine see a round trip of d, with the packet at PSN k.
func (s *script) measured(k int, d time.Duration) {
	s.Helper()
	s.postWrite(99, 0, 1)
	s.want(at(k))
	s.pass(d)
	s.hear(s.ack(k))
	s.wantSent(99, cq.Success)
}

// samples is a controller that notes the round trip times.
type samples struct {
	congestion.Fixed
	l []time.Duration
}

func (c *samples) Acked(_ time.Duration, _ int, rtt time.Duration) {
	if rtt != 0 {
		c.l = append(c.l, rtt)
	}
}

// RFC 6298; no sample comes from a packet that was resent (Karn).
func TestRequesterMeasuresRoundTrips(t *testing.T) {
	var ctl *samples
	control := func() congestion.Controller { ctl = &samples{Fixed: 64}; return ctl }
	play(t, setup{control: control}, func(s *script) {
		s.measured(0, 100*time.Microsecond)
		s.measured(1, 180*time.Microsecond)
		s.postWrite(1, 0, 10)
		s.want(at(2))
		s.expire()
		s.want(at(2))
		s.pass(300 * time.Microsecond)
		s.hear(s.ack(2))
		s.wantSent(1, cq.Success)
		st := s.q.Stats()
		if st.RTT != 110*time.Microsecond || st.RTTVar != (50+(80-50)/4.)*1000 {
			s.Fatalf("RTT %v ± %v", st.RTT, st.RTTVar)
		}
		if len(ctl.l) != 2 || ctl.l[0] != 100*time.Microsecond || ctl.l[1] != 180*time.Microsecond {
			s.Fatalf("samples %v", ctl.l)
		}
	})
}

// A silence of a few round trips makes the last packet go out once more. It
// costs no retry.
func TestRequesterSilenceProbesTheTail(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 0 }}, func(s *script) {
		s.measured(0, 100*time.Microsecond)
		s.postWrite(1, 0, 3*256)
		for k := range 3 {
			s.want(at(1 + k))
		}
		if d := s.expire(); d != 2*time.Millisecond {
			s.Fatalf("probe after %v", d)
		}
		s.want(op(bth.WriteLast), at(3), ask(true), payload(s.data(512, 256)))
		s.wantSilence()
		s.hear(s.ack(3))
		s.wantSent(1, cq.Success)
		s.wantCount(transport.EarlyTimeout, 1)
		s.wantCount(transport.RetransmittedProbe, 1)
		s.wantCount(transport.LocalAckTimeout, 0)
		s.wantNoTimer()
	})
}

// If that is not answered, the oldest packet goes out, ever more slowly, and
// the peer is given up exactly when it would have been without.
func TestRequesterSilenceThenProbesTheHead(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 1 }}, func(s *script) {
		s.measured(0, 100*time.Microsecond)
		s.postWrite(1, 0, 3*256)
		for k := range 3 {
			s.want(at(1 + k))
		}
		start := s.now
		s.expire()
		s.want(at(3))
		wait := 4 * time.Millisecond
		for range 4 {
			if d := s.expire(); d != wait {
				s.Fatalf("probe after %v, want %v", d, wait)
			}
			s.want(op(bth.WriteFirst), at(1), ask(true))
			s.wantSilence()
			wait *= 2
		}
		for s.e.Counters[transport.LocalAckTimeout] == 0 {
			s.expire()
			s.want(at(1))
		}
		if d := s.now - start; d != s.timeout() {
			s.Fatalf("local ACK timeout after %v, want %v", d, s.timeout())
		}
		s.wantNoCompletion()
		for s.q.State() != qp.Err {
			s.expire()
			s.drain()
		}
		if d := s.now - start; d != 3*s.timeout() {
			s.Fatalf("given up after %v, want %v", d, 3*s.timeout())
		}
		s.sent = nil
		s.wantSent(1, cq.RetryExcErr)
	})
}

// The answer to the oldest packet lets the rest follow, but not what the answer
// covers.
func TestRequesterHeadProbeIsAnswered(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.measured(0, 100*time.Microsecond)
		s.postWrite(1, 0, 5*256)
		s.drain()
		s.sent = nil
		s.expire()
		s.want(at(5))
		s.expire()
		s.want(at(1))
		s.pass(100 * time.Microsecond)
		s.hear(s.ack(3))
		s.want(op(bth.WriteMiddle), at(4))
		s.want(op(bth.WriteLast), at(5))
		s.wantCount(transport.SpuriousRetransmits, 0)
		s.pass(10 * time.Microsecond)
		s.hear(s.ack(5)) // too soon: the first copies had arrived
		s.wantSent(1, cq.Success)
		s.wantCount(transport.SpuriousRetransmits, 1)
	})
}

// A READ's tail is asked for from what is missing on.
func TestRequesterSilenceRepeatsReadTail(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 0 }}, func(s *script) {
		s.measured(0, 100*time.Microsecond)
		s.postRead(1, 0, 4*256)
		s.want(op(bth.ReadRequest), at(1))
		data := make([]byte, 4*256)
		s.hear(s.respond(1, data)[:3]...)
		s.expire()
		s.want(op(bth.ReadRequest), at(4), reth(3*256, 256))
		s.hear(s.respond(4, data[3*256:])...)
		s.wantSent(1, cq.Success)
	})
}

// A timeout code of 0 means no local ACK timeout, but a silence is still one.
func TestRequesterSilenceWithTimeoutZero(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.Timeout = 0 }}, func(s *script) {
		s.measured(0, 100*time.Microsecond)
		s.postWrite(1, 0, 1)
		s.want(at(1))
		for range 20 {
			s.expire()
			s.want(at(1))
		}
		s.hear(s.ack(1))
		s.wantSent(1, cq.Success)
	})
}

// A NAK that comes again a round trip after the resend means that the resent
// packet was lost too. That costs no second retry.
func TestRequesterLateNAKRepeatsTheResend(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 1 }}, func(s *script) {
		s.measured(0, 100*time.Microsecond)
		s.postWrite(1, 0, 2*256)
		s.want(at(1))
		s.want(at(2))
		s.hear(s.nak(1, bth.NAKSequence))
		s.want(at(1))
		s.want(at(2))
		s.pass(99 * time.Microsecond)
		s.hear(s.nak(1, bth.NAKSequence))
		s.wantSilence()
		for range 3 {
			s.pass(100 * time.Microsecond)
			s.hear(s.nak(1, bth.NAKSequence))
			s.want(at(1))
			s.want(at(2))
		}
		s.hear(s.ack(2))
		s.wantSent(1, cq.Success)
	})
}

// The responder asks again, more and more slowly, and stops.
func TestResponderRepeatsItsNAK(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.WriteOnly, 1, s.data(0, 8), s.into(0, 8)))
		s.wantNAK(0, bth.NAKSequence, 0)
		wait := 5 * time.Millisecond
		for range 6 {
			if d := s.expire(); d != wait {
				s.Fatalf("NAK again after %v, want %v", d, wait)
			}
			s.wantNAK(0, bth.NAKSequence, 0)
			wait *= 2
		}
		s.wantNoTimer()
		s.wantCount(transport.NAKRepeated, 6)
	})
}

// It does not when the packet has come.
func TestResponderStopsItsNAK(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.WriteOnly, 1, s.data(0, 8), s.into(0, 8)))
		s.wantNAK(0, bth.NAKSequence, 0)
		s.expire()
		s.wantNAK(0, bth.NAKSequence, 0)
		s.hear(s.pkt(bth.WriteOnly, 0, s.data(0, 8), s.into(0, 8)))
		s.wantACK(1, 2)
		s.wantNoTimer()
	})
}
