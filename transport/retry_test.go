package transport_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

func (s *script) timeout() time.Duration { return qp.AckTimeout(s.attr.Timeout) }

// IBA 9.7.6: a sequence NAK makes the requester go back to its PSN, with the
// same opcodes and bytes, in the middle of a message if need be.
func TestRequesterSequenceNAKGoesBackToItsPSN(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postWrite(1, 0, 10)
		s.postSend(2, 512, 4*256)
		s.postWrite(3, 0, 10)
		for k := range 6 {
			s.want(at(k))
		}
		s.hear(s.nak(3, bth.NAKSequence))
		s.wantSent(1, cq.Success)
		s.want(op(bth.SendMiddle), at(3), payload(s.data(512+512, 256)))
		s.want(op(bth.SendLast), at(4), payload(s.data(512+768, 256)), ask(true))
		s.want(op(bth.WriteOnly), at(5))
		s.wantCount(transport.PacketSeqErr, 1)
		s.wantCount(transport.RetransmittedPkts, 3)
		s.hear(s.ack(5))
		s.wantSent(2, cq.Success)
		s.wantSent(3, cq.Success)
	})
}

// IBA 9.7.6: a repeated NAK is ignored until there is progress or a timeout.
func TestRequesterRepeatedNAKIsIgnored(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 2 }}, func(s *script) {
		s.postWrite(1, 0, 600)
		for k := range 3 {
			s.want(at(k))
		}
		s.hear(s.nak(1, bth.NAKSequence))
		s.want(op(bth.WriteMiddle), at(1))
		for range 10 {
			s.hear(s.nak(1, bth.NAKSequence))
		}
		s.want(op(bth.WriteLast), at(2))
		s.hear(s.nak(1, bth.NAKSequence))
		s.wantSilence()
		s.hear(s.nak(2, bth.NAKSequence)) // progress
		s.want(op(bth.WriteLast), at(2))
		s.hear(s.nak(2, bth.NAKSequence))
		s.wantSilence()
		s.expire() // or a timeout
		s.want(op(bth.WriteLast), at(2))
		s.hear(s.ack(2))
		s.wantSent(1, cq.Success)
	})
}

// IBA 9.7.6: after RetryCount repetitions without progress the oldest request
// fails. 7 is seven, 0 none.
func TestRequesterTimeoutsExhaustRetries(t *testing.T) {
	for _, retries := range []int{0, 1, 3, 7} {
		t.Run(fmt.Sprintf("retry_cnt=%d", retries), func(t *testing.T) {
			play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = uint8(retries) }}, func(s *script) {
				s.postWrite(1, 0, 10)
				s.postRead(2, 0, 10)
				s.postRecv(3, 0, 10)
				s.want(at(0))
				s.want(at(1))
				for i := range retries {
					// IBA 9.7.6.1.3: up to four times the nominal time.
					if d := s.expire(); d < s.timeout() || d > 4*s.timeout() {
						s.Fatalf("timeout %d after %v", i, d)
					}
					s.want(op(bth.WriteOnly), at(0), ask(true))
					s.wantSilence() // a probe alone
					s.wantNoCompletion()
				}
				s.expire()
				s.wantSilence()
				s.wantSent(1, cq.RetryExcErr)
				s.wantSent(2, cq.WRFlushErr)
				s.wantRecv(3, cq.WRFlushErr)
				s.wantState(qp.Err)
				s.wantCount(transport.LocalAckTimeout, uint64(retries+1))
				s.wantCount(transport.RetryExceeded, 1)
				s.wantNoTimer()
			})
		})
	}
}

// IBA 9.7.6: the first timeout comes at its nominal time; progress restarts
// it and reloads the retries.
func TestRequesterProgressReloadsRetries(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 1 }}, func(s *script) {
		const packets = 6
		s.postWrite(1, 0, packets*256)
		for k := range packets {
			s.want(at(k))
		}
		for k := range packets {
			if d := s.expire(); d != s.timeout() {
				s.Fatalf("timeout %d after %v, want %v", k, d, s.timeout())
			}
			s.want(at(k), ask(true))
			s.hear(s.ack(k))
			s.drain()
			s.sent = s.sent[:0]
		}
		s.wantSent(1, cq.Success)
	})
}

// After a timeout one packet goes out; its answer lets the rest follow.
func TestRequesterTimeoutSendsAProbe(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postWrite(1, 0, 3*256)
		s.postWrite(2, 0, 10)
		for k := range 4 {
			s.want(at(k))
		}
		s.expire()
		s.want(op(bth.WriteFirst), at(0), ask(true))
		s.wantSilence()
		s.hear(s.ack(0))
		s.want(op(bth.WriteMiddle), at(1), ask(false))
		s.want(at(2))
		s.want(at(3))
		s.hear(s.ack(3))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
	})
}

// IBA 9.7.6: sequence NAKs consume retries too.
func TestRequesterNAKsExhaustRetries(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 2 }}, func(s *script) {
		s.postWrite(1, 0, 600)
		s.drain()
		s.sent = nil
		s.hear(s.nak(0, bth.NAKSequence)) // 1 left
		s.drain()
		s.sent = nil
		s.expire() // 0 left
		s.want(at(0))
		s.hear(s.nak(0, bth.NAKSequence))
		s.wantSent(1, cq.RetryExcErr)
		s.wantState(qp.Err)
		s.wantSilence()
	})
}

// So do implied ones.
func TestRequesterImpliedNAKsExhaustRetries(t *testing.T) {
	play(t, setup{recovery: transport.GoBackN, attr: func(a *qp.Attr) { a.RetryCount = 0 }}, func(s *script) {
		s.postRead(1, 0, 10)
		s.postWrite(2, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.ack(1))
		s.wantSent(1, cq.RetryExcErr)
		s.wantSent(2, cq.WRFlushErr)
		s.wantState(qp.Err)
	})
}

// IBA 9.7.6: a timeout code of 0 means never.
func TestRequesterTimeoutZeroNeverExpires(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.Timeout = 0 }}, func(s *script) {
		s.postWrite(1, 0, 10)
		s.want(at(0))
		s.wantNoTimer()
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
	})
}

// IBA 9.7.6: the timer stands still when nothing is outstanding.
func TestRequesterTimerStopsWithLastACK(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postWrite(1, 0, 10)
		s.want(at(0))
		s.pass(s.timeout() - 1)
		s.wantSilence()
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
		s.wantNoTimer()
		s.wantCount(transport.LocalAckTimeout, 0)
	})
}

// IBA 9.3.5, 4.4: after an RNR NAK the requester waits the coded time, no
// less, and resends from its PSN.
func TestRequesterRNRWaitIsExact(t *testing.T) {
	// The table of IBA 9.3.5, in units of 10 µs.
	codes := [32]int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
		4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}
	for code, units := range codes {
		t.Run(fmt.Sprintf("code=%d", code), func(t *testing.T) {
			play(t, setup{attr: func(a *qp.Attr) { a.Timeout = 1 }}, func(s *script) { // an ACK timeout must not interfere
				wait := time.Duration(units) * 10 * time.Microsecond
				s.postWrite(1, 0, 10)
				s.postSend(2, 0, 600)
				s.postWrite(3, 0, 10)
				for k := range 5 {
					s.want(at(k))
				}
				s.hear(s.nak(1, bth.SyndromeRNR(uint8(code))))
				s.wantSent(1, cq.Success)
				s.pass(wait - 1)
				s.postWrite(4, 0, 10) // waits too
				s.wantSilence()
				s.pass(1)
				s.want(op(bth.SendFirst), at(1))
				for k := range 4 {
					s.want(at(2 + k))
				}
				s.hear(s.ack(5))
				for id := range uint64(3) {
					s.wantSent(id+2, cq.Success)
				}
				s.wantCount(transport.RcvdRNR, 1)
				s.wantCount(transport.LocalAckTimeout, 0)
			})
		})
	}
}

// IBA 9.7.5.2.8: the repeated packet can be the end of a WRITE with immediate.
func TestRequesterRNRInMessageResumesThere(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postWrite(1, 0, 600, withImm(5))
		for k := range 3 {
			s.want(at(k))
		}
		s.hear(s.nak(2, bth.SyndromeRNR(1)))
		s.pass(10 * time.Microsecond)
		s.want(op(bth.WriteLastImm), at(2), imm(5))
		s.wantSilence()
		s.hear(s.ack(2))
		s.wantSent(1, cq.Success)
	})
}

// IBA 9.7.6: RNRRetry counts apart from RetryCount, and progress reloads it.
func TestRequesterRNRRetriesExhaust(t *testing.T) {
	for _, retries := range []int{0, 1, 6} {
		t.Run(fmt.Sprintf("rnr_retry=%d", retries), func(t *testing.T) {
			play(t, setup{attr: func(a *qp.Attr) { a.RNRRetry, a.RetryCount = uint8(retries), 0 }}, func(s *script) {
				s.postWrite(1, 0, 10)
				s.postSend(2, 0, 600)
				s.postSend(3, 0, 10)
				for range 5 {
					s.want()
				}
				s.hear(s.ack(0))
				s.wantSent(1, cq.Success)
				for range retries {
					s.hear(s.nak(1, bth.SyndromeRNR(1)))
					s.pass(10 * time.Microsecond)
					s.want(op(bth.SendFirst), at(1))
					s.drain()
					s.sent = nil
				}
				s.wantNoCompletion()
				s.hear(s.nak(1, bth.SyndromeRNR(1)))
				if wc := s.wantSent(2, cq.RNRRetryExcErr); wc.VendorErr != 0x21 {
					s.Fatalf("vendor error %x", wc.VendorErr)
				}
				s.wantSent(3, cq.WRFlushErr)
				s.wantState(qp.Err)
				s.wantCount(transport.RNRRetryExceeded, 1)
				s.wantNoTimer()
			})
		})
	}
	play(t, setup{attr: func(a *qp.Attr) { a.RNRRetry = 1 }}, func(s *script) {
		for id := range uint64(3) { // each SEND has its retry
			s.postSend(id, 0, 10)
		}
		for k := range 3 {
			s.drain()
			s.sent = nil
			s.hear(s.nak(k, bth.SyndromeRNR(1)))
			s.pass(10 * time.Microsecond)
			s.want(at(k))
			s.hear(s.ack(k))
			s.wantSent(uint64(k), cq.Success)
			s.sent = nil
		}
		s.drain()
		s.sent = nil
	})
}

// IBA 9.7.6: rnr_retry 7 has no end.
func TestRequesterRNRRetrySevenIsInfinite(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RNRRetry = 7 }}, func(s *script) {
		s.postSend(1, 0, 10)
		for range 1000 {
			s.want(op(bth.SendOnly), at(0))
			s.hear(s.nak(0, bth.SyndromeRNR(1)))
			s.pass(10 * time.Microsecond)
		}
		s.want(op(bth.SendOnly), at(0))
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
	})
}

// rxe sends a sequence NAK for the packets behind its RNR
// NAK. It shortens no wait and costs no retry; nor does a second RNR NAK.
func TestRequesterNAKsWhileWaitingForReceiverAreIgnored(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount, a.RNRRetry = 0, 1 }}, func(s *script) {
		s.postSend(1, 0, 10)
		s.postSend(2, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.nak(0, bth.SyndromeRNR(10))) // 320 µs
		s.hear(s.nak(0, bth.NAKSequence), s.nak(0, bth.SyndromeRNR(1)), s.nak(0, bth.NAKSequence))
		s.pass(319 * time.Microsecond)
		s.wantSilence()
		s.pass(time.Microsecond)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.ack(1))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
	})
}

// IBA 9.7.6: an ACK that makes progress ends the wait.
func TestRequesterACKEndsRNRWait(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postSend(1, 0, 10)
		s.postSend(2, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.nak(0, bth.SyndromeRNR(0)))
		s.wantSilence()
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
		s.want(op(bth.SendOnly), at(1))
		s.hear(s.ack(1))
		s.wantSent(2, cq.Success)
	})
}

// An RNR NAK beyond a READ without its responses repeats the READ; the wait is
// for a later NAK.
func TestRequesterRNRBehindIncompleteReadRepeatsRead(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRead(1, 0, 10)
		s.postSend(2, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.nak(1, bth.SyndromeRNR(0)))
		s.want(op(bth.ReadRequest), at(0))
		s.want(op(bth.SendOnly), at(1))
		s.hear(s.respond(0, s.data(0, 10))...)
		s.hear(s.ack(1))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
	})
}

// An atomic is resent identically; the responder has its result.
func TestRequesterAtomicIsResentIdentically(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postCmpSwap(1, 0, 5, 6)
		first := s.want(at(0))
		s.expire()
		again := s.want(at(0))
		if again.BTH != first.BTH || again.Atomic != first.Atomic {
			s.Fatalf("first %+v, again %+v", first, again)
		}
		s.hear(s.atomicAck(0, 5), s.atomicAck(0, 99)) // the second answer is stale
		s.wantSent(1, cq.Success)
		if s.data(0, 8)[0] != 5 && s.data(0, 8)[7] != 5 {
			s.Fatal("wrong result")
		}
	})
}
