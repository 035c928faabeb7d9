package transport_test

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// IBA 9.7.5.1: responses outside [unacked, next) are stale or ghosts. They are
// dropped and touch no timer.
func TestRequesterStaleAndGhostResponsesAreDropped(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postWrite(1, 0, 10)
		s.postWrite(2, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
		s.pass(1000)
		stale := []bth.Packet{
			s.ack(0), s.ack(-1), s.ack(2), s.ack(1 << 22), s.ack(-1 << 22),
			s.nak(0, bth.NAKSequence), s.nak(2, bth.NAKSequence), s.nak(0, bth.NAKInvalid), s.nak(2, bth.NAKRemoteAccess),
			s.nak(0, bth.SyndromeRNR(1)), s.nak(2, bth.SyndromeRNR(1)),
			s.resp(bth.ReadRespOnly, 0, nil), s.resp(bth.ReadRespMiddle, 2, make([]byte, 256)), s.atomicAck(0, 1), s.atomicAck(2, 1),
		}
		s.hear(stale...)
		s.wantSilence()
		s.wantNoCompletion()
		s.wantCount(transport.DropStaleResponse, uint64(len(stale)))
		s.expire()
		if s.now != s.timeout() {
			s.Fatalf("timeout at %v, want %v after the ACK", s.now, s.timeout())
		}
		s.want(op(bth.WriteOnly), at(1)) // the timer ran on from the ACK
		s.hear(s.ack(1))
		s.wantSent(2, cq.Success)
	})
}

// IBA 9.7.6: reserved syndromes are ignored.
func TestRequesterReservedSyndromesAreIgnored(t *testing.T) {
	for _, syn := range []bth.Syndrome{0x40, 0x5F, 0x64, 0x65, 0x7F, 0x80, 0x9F, 0xE0, 0xFF} {
		t.Run(fmt.Sprintf("0x%02x", uint8(syn)), func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				s.postWrite(1, 0, 10)
				s.want(at(0))
				s.hear(s.nak(0, syn))
				s.wantSilence()
				s.wantNoCompletion()
				s.wantCount(transport.DropReservedNAK, 1)
				s.hear(s.ack(0))
				s.wantSent(1, cq.Success)
			})
		})
	}
}

// IBA 9.7.5.1: an ACK beyond a READ without its responses is an implied NAK:
// the READ is asked for again, once, and nothing behind it completes.
func TestRequesterACKBeyondReadRepeatsRead(t *testing.T) {
	for _, answered := range []struct {
		name string
		op   func(s *script)
		want bth.Opcode
	}{
		{"READ", func(s *script) { s.postRead(1, 0, 10) }, bth.ReadRequest},
		{"atomic", func(s *script) { s.postFetchAdd(1, 0, 1) }, bth.FetchAdd},
	} {
		t.Run(answered.name, func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				answered.op(s)
				s.postWrite(2, 0, 10)
				s.postWrite(3, 0, 10)
				for k := range 3 {
					s.want(at(k))
				}
				s.hear(s.ack(1))
				s.want(op(answered.want), at(0)) // and nothing else
				s.wantSilence()
				s.wantCount(transport.ImpliedNAKSeqErr, 1)
				s.hear(s.ack(2), s.ack(1)) // still without the response
				s.wantSilence()
				s.wantNoCompletion()
				s.wantCount(transport.ImpliedNAKSeqErr, 1)
				if answered.want == bth.ReadRequest {
					s.hear(s.respond(0, s.data(0, 10))...)
				} else {
					s.hear(s.atomicAck(0, 1))
				}
				s.wantSent(1, cq.Success) // and with it what was acknowledged behind it
				s.wantSent(2, cq.Success)
				s.wantSent(3, cq.Success)
			})
		})
	}
}

// With GoBackN everything from the READ on is sent again.
func TestRequesterACKBeyondReadGoesBack(t *testing.T) {
	play(t, setup{recovery: transport.GoBackN}, func(s *script) {
		s.postRead(1, 0, 10)
		s.postWrite(2, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.ack(1))
		s.want(op(bth.ReadRequest), at(0))
		s.want(at(1))
		s.hear(s.respond(0, s.data(0, 10))...)
		s.wantSent(1, cq.Success)
		s.hear(s.ack(1))
		s.wantSent(2, cq.Success)
	})
}

// A gap inside the responses of one READ: what came behind it is used, and only
// what is missing is asked for.
func TestRequesterGapInReadResponsesRepeatsTheGap(t *testing.T) {
	play(t, setup{}, func(s *script) {
		data := s.data(8192, 6*256)
		r := s.respond(0, data)
		s.postRead(1, 0, len(data))
		s.want(at(0), reth(0, len(data)))
		s.hear(r[0], r[2], r[4], r[5])
		s.want(op(bth.ReadRequest), at(1), reth(256, 3*256)) // both gaps: one request has one answer
		s.wantSilence()
		s.wantCount(transport.ImpliedNAKSeqErr, 1)
		s.hear(r[0])                                      // a duplicate
		s.hear(s.respond(1, data[256:1024])[:2]...)       // FIRST …
		s.hear(s.resp(bth.ReadRespLast, 3, r[3].Payload)) // where no message ends
		s.wantSent(1, cq.Success)
		if string(s.data(0, len(data))) != string(data) {
			s.Fatal("wrong bytes")
		}
		s.wantNoTimer()
	})
}

// The request for what was missing is lost too: the answer to something sent
// after it tells. Its start never moves back: rxe would not answer.
func TestRequesterRepeatedReadIsLost(t *testing.T) {
	play(t, setup{window: 8}, func(s *script) {
		data := s.data(8192, 12*256)
		r := s.respond(0, data)
		s.postRead(1, 0, len(data)) // three requests of four
		s.want(at(0))
		s.want(at(4))
		s.wantSilence()
		last := func(k int) bth.Packet { return s.resp(bth.ReadRespLast, k, r[k].Payload) }
		s.hear(r[1], last(3), r[4], r[6])
		s.want(at(0), reth(0, 3*256))
		s.want(at(5), reth(5*256, 256))
		s.want(at(8), reth(8*256, 4*256)) // four are here, so the window is open
		s.hear(last(7), r[8])             // sent before
		s.wantSilence()
		s.hear(r[9])
		s.want(at(0), reth(0, 3*256)) // 8 was sent after it
		s.want(at(5), reth(5*256, 256))
		s.wantSilence()
		s.hear(r[10], last(11), r[0])
		s.wantSilence() // 2 and 5 are on their way
		s.hear(r[2])
		s.hear(s.resp(bth.ReadRespOnly, 5, r[5].Payload))
		s.wantSent(1, cq.Success)
		if string(s.data(0, len(data))) != string(data) {
			s.Fatal("wrong bytes")
		}
	})
}

// A READ of which only the middle is known is continued after a NAK behind it.
func TestRequesterNAKBehindIncompleteReadAsksForTheRest(t *testing.T) {
	play(t, setup{}, func(s *script) {
		data := s.data(8192, 4*256)
		r := s.respond(0, data)
		s.postRead(1, 0, len(data))
		s.postWrite(2, 0, 10)
		s.want(at(0))
		s.want(at(4))
		s.hear(r[0], r[2], s.nak(4, bth.NAKSequence))
		s.want(op(bth.ReadRequest), at(1), reth(256, 3*256))
		s.want(op(bth.WriteOnly), at(4))
		s.hear(s.respond(1, data[256:])...)
		s.wantSent(1, cq.Success)
		s.hear(s.ack(4))
		s.wantSent(2, cq.Success)
	})
}

// Answers to later READs and atomics are used; completions keep their order.
func TestRequesterUsesEarlyAnswers(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRead(1, 0, 10)
		s.postWrite(2, 0, 10)
		s.postFetchAdd(3, 1024, 1)
		s.postRead(4, 2048, 600)
		for range 4 {
			s.want()
		}
		data := s.data(8192, 600)
		s.hear(s.atomicAck(2, 77))
		s.want(op(bth.ReadRequest), at(0))
		s.wantSilence()
		s.hear(s.respond(3, data)...)
		s.wantSilence() // that was sent before
		s.wantNoCompletion()
		s.hear(s.respond(0, s.data(0, 10))...)
		for id := range uint64(4) {
			s.wantSent(id+1, cq.Success)
		}
		if s.data(1024, 8)[0] != 77 && s.data(1024, 8)[7] != 77 || string(s.data(2048, 600)) != string(data) {
			s.Fatal("wrong bytes")
		}
		s.wantNoTimer()
	})
}

// A wrong answer that comes early does nothing; in its turn it counts.
func TestRequesterWrongEarlyAnswerWaits(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRead(1, 0, 10)
		s.postRead(2, 0, 600)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.resp(bth.ReadRespMiddle, 2, fill(255)))
		s.want(at(0))
		s.want(at(1), reth(0, 256))
		s.hear(s.respond(0, s.data(0, 10))...)
		s.wantSent(1, cq.Success)
		s.hear(s.resp(bth.ReadRespFirst, 1, fill(255)))
		s.wantSent(2, cq.LocLenErr)
		s.wantState(qp.Err)
	})
}

// IBA 9.7.5.1: the first response of a READ acknowledges all before it; a
// later one acknowledges an atomic only by its own answer.
func TestRequesterReadResponseImpliesEarlierACKs(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postSend(1, 0, 10)
		s.postWrite(2, 0, 600)
		s.postRead(3, 0, 600)
		for range 5 {
			s.want()
		}
		r := s.respond(4, s.data(8192, 600))
		s.hear(r[0])
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
		s.wantNoCompletion()
		s.hear(r[1:]...)
		s.wantSent(3, cq.Success)

		s.postWrite(4, 0, 10)
		s.postFetchAdd(5, 0, 1)
		s.want(at(7))
		s.want(at(8))
		s.hear(s.atomicAck(8, 1))
		s.wantSent(4, cq.Success)
		s.wantSent(5, cq.Success)
	})
}

// IBA 9.7.5.1: responses that do not fit their request fail it.
func TestRequesterWrongResponseFails(t *testing.T) {
	b := make([]byte, 257)
	for _, row := range []struct {
		name   string
		post   func(s *script)
		hear   func(s *script) []bth.Packet
		status cq.Status
	}{
		{"READ: ONLY where more is to come", read600, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespOnly, 0, b[:256])) }, cq.BadRespErr},
		{"READ: LAST too early", read600, func(s *script) []bth.Packet {
			return l(s.resp(bth.ReadRespFirst, 0, b[:256]), s.resp(bth.ReadRespLast, 1, b[:256]))
		}, cq.BadRespErr},
		{"READ: MIDDLE at the end", read600, func(s *script) []bth.Packet {
			return l(s.resp(bth.ReadRespFirst, 0, b[:256]), s.resp(bth.ReadRespMiddle, 1, b[:256]), s.resp(bth.ReadRespMiddle, 2, b[:88]))
		}, cq.BadRespErr},
		{"READ: FIRST for a single packet", read10, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespFirst, 0, b[:10])) }, cq.BadRespErr},
		{"READ: FIRST too short", read600, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespFirst, 0, b[:255])) }, cq.LocLenErr},
		{"READ: FIRST too long", read600, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespFirst, 0, b[:257])) }, cq.LocLenErr},
		{"READ: FIRST empty", read600, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespFirst, 0, nil)) }, cq.LocLenErr},
		{"READ: ONLY too short", read10, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespOnly, 0, b[:9])) }, cq.LocLenErr},
		{"READ: ONLY too long", read10, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespOnly, 0, b[:11])) }, cq.LocLenErr},
		{"READ: a NAK syndrome in a response", read10, func(s *script) []bth.Packet {
			p := s.resp(bth.ReadRespOnly, 0, b[:10])
			p.AETH.Syndrome = bth.NAKInvalid
			return l(p)
		}, cq.BadRespErr},
		{"READ: an atomic answer", read10, func(s *script) []bth.Packet { return l(s.atomicAck(0, 1)) }, cq.BadRespErr},
		{"atomic: a READ response", fetchAdd, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespOnly, 0, b[:8])) }, cq.BadRespErr},
		{"atomic: an RNR syndrome in its answer", fetchAdd, func(s *script) []bth.Packet {
			p := s.atomicAck(0, 1)
			p.AETH.Syndrome = bth.SyndromeRNR(3)
			return l(p)
		}, cq.BadRespErr},
		{"WRITE: a READ response", write10, func(s *script) []bth.Packet { return l(s.resp(bth.ReadRespOnly, 0, b[:10])) }, cq.BadRespErr},
		{"WRITE: an atomic answer", write10, func(s *script) []bth.Packet { return l(s.atomicAck(0, 1)) }, cq.BadRespErr},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				row.post(s)
				s.want(at(0))
				s.postSend(2, 0, 10)
				s.drain()
				s.sent = nil
				s.hear(row.hear(s)...)
				s.wantSent(1, row.status)
				s.wantSent(2, cq.WRFlushErr)
				s.wantState(qp.Err)
				s.wantNoTimer()
			})
		})
	}
}

func l(p ...bth.Packet) []bth.Packet { return p }
func read600(s *script)              { s.postRead(1, 0, 600) }
func read10(s *script)               { s.postRead(1, 0, 10) }
func fetchAdd(s *script)             { s.postFetchAdd(1, 0, 1) }
func write10(s *script)              { s.postWrite(1, 0, 10) }

// IBA 9.7.5.1, 5.2: a fatal NAK acknowledges what precedes it, fails its own
// request, and the rest is flushed.
func TestRequesterFatalNAKFailsItsRequest(t *testing.T) {
	for _, row := range []struct {
		syn     bth.Syndrome
		status  cq.Status
		counter transport.Counter
	}{
		{bth.NAKInvalid, cq.RemInvReqErr, transport.ReqRemoteInvalidRequest},
		{bth.NAKRemoteAccess, cq.RemAccessErr, transport.ReqRemoteAccess},
		{bth.NAKRemoteOp, cq.RemOpErr, transport.ReqRemoteOperation},
	} {
		t.Run(row.status.String(), func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				s.postWrite(1, 0, 10, unsignaled)
				s.postWrite(2, 0, 10)
				s.postWrite(3, 0, 600, unsignaled)
				s.postRead(4, 0, 10)
				s.postRecv(5, 0, 10)
				for range 6 {
					s.want()
				}
				s.hear(s.nak(3, row.syn)) // the MIDDLE of 3
				s.wantSent(2, cq.Success)
				if wc := s.wantSent(3, row.status); wc.VendorErr != uint32(row.syn) { // although unsignaled
					s.Fatalf("vendor error %x", wc.VendorErr)
				}
				s.wantSent(4, cq.WRFlushErr)
				s.wantRecv(5, cq.WRFlushErr)
				s.wantState(qp.Err)
				s.wantCount(row.counter, 1)
				s.wantNoTimer()
			})
		})
	}
}

// IBA 9.7.6: a fatal NAK counts only when every older request is complete;
// an older READ without responses is asked for first.
func TestRequesterFatalNAKBehindIncompleteReadWaits(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRead(1, 0, 10)
		s.postWrite(2, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.nak(1, bth.NAKRemoteAccess))
		s.wantNoCompletion()
		s.want(op(bth.ReadRequest), at(0))
		s.want(op(bth.WriteOnly), at(1))
		s.hear(s.respond(0, s.data(0, 10))...)
		s.wantSent(1, cq.Success)
		s.hear(s.nak(1, bth.NAKRemoteAccess))
		s.wantSent(2, cq.RemAccessErr)
	})
}

// rxe names the request's PSN when a READ fails half way.
func TestRequesterFatalNAKBelowRunningReadIsTaken(t *testing.T) {
	play(t, setup{}, func(s *script) {
		data := s.data(8192, 1000)
		s.postWrite(1, 0, 10)
		s.postRead(2, 0, 1000)
		s.want(at(0))
		s.want(at(1))
		s.hear(s.respond(1, data)[:2]...)
		s.wantSent(1, cq.Success)
		s.hear(s.nak(0, bth.NAKRemoteAccess)) // before the READ: stale
		s.hear(s.nak(1, bth.NAKSequence))     // nor does the exception hold for others
		s.hear(s.nak(1, bth.SyndromeRNR(1)))
		s.wantNoCompletion()
		s.wantSilence()
		s.wantCount(transport.DropStaleResponse, 3)
		s.hear(s.nak(1, bth.NAKRemoteAccess))
		s.wantSent(2, cq.RemAccessErr)
		s.wantState(qp.Err)
	})
}

// IBA 9.7.6: an ACK that comes while its packets are being resent stops the
// resending of what it covers.
func TestRequesterLateACKCancelsResend(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postWrite(1, 0, 5*256)
		s.postWrite(2, 0, 10)
		for k := range 6 {
			s.want(at(k))
		}
		s.hear(s.nak(1, bth.NAKSequence)) // back to 1
		s.hear(s.ack(3))                  // but it had only been overtaken
		s.want(op(bth.WriteLast), at(4))
		s.want(op(bth.WriteOnly), at(5))
		s.wantSilence()
		s.hear(s.ack(5))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
	})
	play(t, setup{}, func(s *script) { // all of it
		s.postWrite(1, 0, 5*256)
		for k := range 5 {
			s.want(at(k))
		}
		s.expire()
		s.want(at(0))
		s.hear(s.ack(4))
		s.wantSilence()
		s.wantSent(1, cq.Success)
		s.wantNoTimer()
		s.postWrite(2, 0, 10)
		s.want(op(bth.WriteOnly), at(5))
		s.hear(s.ack(5))
		s.wantSent(2, cq.Success)
	})
}

// IBA 9.7.5.1: responses of a first READ request that arrive while it is being
// repeated serve as well.
func TestRequesterLateReadResponsesServe(t *testing.T) {
	play(t, setup{window: 8}, func(s *script) {
		data := s.data(8192, 8*256)
		s.postRead(1, 0, len(data))
		s.want(at(0))
		s.want(at(4))
		s.expire()
		s.want(at(0), reth(0, 256))
		s.hear(s.respond(0, data[:1024])...)
		s.hear(s.respond(4, data[1024:])[:2]...)
		s.wantSilence()
		s.hear(s.respond(0, data[:256])...) // the answer to the repetition: old
		s.hear(s.respond(6, data[6*256:])...)
		s.wantSent(1, cq.Success)
		if string(s.data(0, len(data))) != string(data) {
			s.Fatal("wrong bytes")
		}
	})
}
