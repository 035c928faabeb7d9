package transport_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// IBA 10.3.1: entering ERR flushes both queues in order, signaled or not, and
// ends everything that was under way.
func TestPairErrorFlushesInOrder(t *testing.T) {
	play(t, setup{window: 2}, func(s *script) {
		s.postWrite(1, 0, 10, unsignaled) // sent
		s.postRead(2, 0, 10)              // sent
		s.postWrite(3, 0, 600, unsignaled)
		s.postSend(4, 0, 10)
		for id := range uint64(3) {
			s.postRecv(10+id, 0, 300)
		}
		s.want(at(0))
		s.want(at(1))
		s.hear(s.pkt(bth.SendFirst, 0, fill(256), asks)) // takes a receive; its ACK is not sent any more
		s.state(qp.Err)
		for id := range uint64(4) {
			s.wantSent(1+id, cq.WRFlushErr)
		}
		for id := range uint64(3) {
			s.wantRecv(10+id, cq.WRFlushErr)
		}
		s.wantNoTimer()
		s.hear(s.ack(1), s.pkt(bth.SendOnly, 1, nil, asks))
		s.wantSilence()
		s.wantCount(transport.DropState, 2)
	})
}

// IBA 10.3.1, 7.1: what is posted in ERR is flushed at once.
func TestPairPostInErrorIsFlushed(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.state(qp.Err)
		s.postSend(1, 0, 10, unsignaled)
		s.postRead(2, 0, 10)
		s.postRecv(3, 0, 10)
		s.wantSent(1, cq.WRFlushErr)
		s.wantSent(2, cq.WRFlushErr)
		s.wantRecv(3, cq.WRFlushErr)
		s.wantNoTimer()
	})
}

// IBA 11.2.5.2: sends are refused before RTS, receives before INIT.
func TestPairPostDependsOnState(t *testing.T) {
	for _, row := range []struct {
		state      qp.State
		send, recv error
	}{{qp.Reset, qp.ErrState, qp.ErrState}, {qp.Init, qp.ErrState, nil}, {qp.RTR, qp.ErrState, nil}, {qp.RTS, nil, nil}} {
		t.Run(row.state.String(), func(t *testing.T) {
			play(t, setup{state: qp.Init}, func(s *script) {
				s.state(qp.Reset)
				s.connect(row.state)
				if err := s.e.PostSend(s.q, &qp.SendWR{ID: 1, Op: qp.Send, Flags: qp.Signaled}); !errors.Is(err, row.send) {
					s.Fatalf("send: %v", err)
				}
				if err := s.e.PostRecv(s.q, &qp.RecvWR{ID: 2}); !errors.Is(err, row.recv) {
					s.Fatalf("receive: %v", err)
				}
				if row.send == nil {
					s.want(op(bth.SendOnly), at(0))
				}
			})
		})
	}
}

// IBA 11.2.5.2: RTR receives and answers, and sends no requests.
func TestPairInRTRAnswersOnly(t *testing.T) {
	play(t, setup{state: qp.RTR}, func(s *script) {
		s.postRecv(1, 0, 10)
		s.hear(s.pkt(bth.SendOnly, 0, fill(5), asks), s.pkt(bth.ReadRequest, 1, nil, s.into(100, 5)))
		s.wantACK(0, 1)
		s.want(op(bth.ReadRespOnly), at(1))
		s.wantRecv(1, cq.Success)
	})
}

// IBA 11.2.5.2: RESET drops work requests without completions and forgets all
// sequence state; the pair can be used again.
func TestPairResetStartsAfresh(t *testing.T) {
	play(t, setup{}, func(s *script) {
		word := s.atomic(bth.FetchAdd, 1, s.va(64), s.mem.Key(), 1, 0)
		s.postWrite(1, 0, 600)
		s.postRead(2, 0, 600)
		s.postWrite(3, 0, 0, sges(s.mem.SGE(0, 10)), fenced)
		s.postRecv(4, 0, 10)
		s.drain()
		s.sent = nil
		s.hear(s.nak(1, bth.SyndromeRNR(5)), s.pkt(bth.WriteOnly, 0, nil, asks), word, s.pkt(bth.WriteOnly, 5, nil))
		s.state(qp.Reset)
		s.wantNoTimer()
		s.wantNoCompletion()

		s.attr.SQPSN, s.attr.RQPSN = s.psn(1000), s.psn(2000)
		s.connect(qp.RTS)
		s.wantSilence()
		s.postWrite(5, 0, 10)
		s.want(op(bth.WriteOnly), at(1000))
		s.hear(s.ack(1000))
		s.wantSent(5, cq.Success)
		s.hear(s.pkt(bth.WriteOnly, 2000, nil, asks))
		s.wantACK(2000, 1)
		s.hear(word) // of the life before: unknown
		s.wantSilence()
		s.hear(s.pkt(bth.WriteOnly, 2002, nil)) // the memory of the NAK is gone
		s.wantACK(2000, 1)
		s.wantNAK(2001, bth.NAKSequence, 1)
	})
	play(t, setup{}, func(s *script) { // also from ERR
		for id := range uint64(5) {
			s.postWrite(id, 0, 10)
		}
		s.drain()
		s.sent = nil
		s.hear(s.nak(0, bth.NAKInvalid))
		s.wantSent(0, cq.RemInvReqErr)
		for id := range uint64(4) {
			s.wantSent(1+id, cq.WRFlushErr)
		}
		s.state(qp.Reset)
		s.connect(qp.RTS)
		s.wantSilence()
		s.postSend(9, 0, 10)
		s.want(op(bth.SendOnly), at(0))
		s.hear(s.ack(0))
		s.wantSent(9, cq.Success)
	})
}

// IBA 10.3.1: SQD starts nothing new, finishes what was started, with its
// retries, and raises SQ_DRAINED once; the receive side goes on; RTS resumes.
func TestPairDrainsItsSendQueue(t *testing.T) {
	play(t, setup{window: 2}, func(s *script) {
		s.postWrite(1, 0, 5*256)
		s.postWrite(2, 0, 10)
		s.want(at(0))
		s.want(at(1))
		s.modify(&qp.Attr{State: qp.SQD, EnSQDNotify: true}, qp.AttrState|qp.AttrEnSQDNotify)
		s.hear(s.ack(1))
		s.want(at(2))
		s.want(at(3))
		s.postWrite(3, 0, 10)
		s.hear(s.pkt(bth.WriteOnly, 0, nil, asks))
		s.wantACK(0, 1)
		s.expire()
		s.want(at(2))
		s.hear(s.ack(3))
		s.want(at(4))
		if len(s.events) != 0 {
			s.Fatal("drained too early")
		}
		s.hear(s.ack(4))
		s.wantSent(1, cq.Success)
		s.wantEvent(transport.EventSQDrained)
		s.wantNoTimer()
		s.state(qp.RTS)
		s.want(at(5))
		s.want(at(6))
		s.hear(s.ack(6))
		s.wantSent(2, cq.Success)
		s.wantSent(3, cq.Success)
	})
}

// SQ_DRAINED comes at once when nothing was started, and not at all unless it
// was asked for.
func TestPairDrainedEventIsOnRequest(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.modify(&qp.Attr{State: qp.SQD, EnSQDNotify: true}, qp.AttrState|qp.AttrEnSQDNotify)
		s.wantEvent(transport.EventSQDrained)
		s.postWrite(1, 0, 10)
		s.wantSilence()
		s.state(qp.RTS)
		s.want(at(0))
		s.modify(&qp.Attr{State: qp.SQD}, qp.AttrState|qp.AttrEnSQDNotify)
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
		s.state(qp.RTS) // drained all the same
	})
}

// IBA 10.3.1: while the queue drains only ERR and RESET are open.
func TestPairDrainingTakesErrorAndResetOnly(t *testing.T) {
	for _, to := range []qp.State{qp.Err, qp.Reset} {
		play(t, setup{}, func(s *script) {
			s.postWrite(1, 0, 10)
			s.want(at(0))
			s.state(qp.SQD)
			var refused *qp.AttrError
			if err := s.e.Modify(s.now, s.q, &qp.Attr{State: qp.RTS}, qp.AttrState); !errors.As(err, &refused) || refused.Value == "" {
				s.Fatalf("RTS: %v", err)
			}
			if err := s.e.Modify(s.now, s.q, &qp.Attr{RetryCount: 1}, qp.AttrRetryCount); !errors.Is(err, qp.ErrAttr) {
				s.Fatalf("RETRY_CNT: %v", err)
			}
			s.state(to)
			if to == qp.Err {
				s.wantSent(1, cq.WRFlushErr)
			}
		})
	}
}

// IBA 11.2.5.2: what SQD lets be changed takes effect.
func TestPairAttributesChangeInSQD(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount, a.MaxDestRDAtomic, a.MaxRDAtomic = 0, 1, 1 }}, func(s *script) {
		s.hear(s.atomic(bth.FetchAdd, 0, s.va(0), s.mem.Key(), 1, 0))
		first := s.want(op(bth.AtomicAcknowledge)).AtomicAck
		s.state(qp.SQD)
		s.modify(&qp.Attr{RetryCount: 1, Timeout: 1, MaxDestRDAtomic: 3, MaxRDAtomic: 2, MinRNRTimer: 3},
			qp.AttrRetryCount|qp.AttrTimeout|qp.AttrMaxDestRDAtomic|qp.AttrMaxRDAtomic|qp.AttrMinRNRTimer)
		s.hear(s.atomic(bth.FetchAdd, 0, s.va(0), s.mem.Key(), 1, 0))
		s.want(op(bth.AtomicAcknowledge), at(0), old(first)) // still remembered
		for k := range 3 {
			s.hear(s.pkt(bth.ReadRequest, 1+k, nil, s.into(0, 8)))
		}
		for k := range 3 {
			s.want(op(bth.ReadRespOnly), at(1+k))
		}
		s.hear(s.pkt(bth.SendOnly, 4, nil))
		s.wantNAK(4, bth.SyndromeRNR(3), 4)
		s.state(qp.RTS)
		s.postRead(1, 0, 8)
		s.postRead(2, 0, 8)
		s.want(at(0))
		s.want(at(1))
		if d := s.expire(); d != 8192*time.Nanosecond {
			s.Fatalf("timeout after %v", d)
		}
		s.want(at(0))
		s.expire()
		s.wantSent(1, cq.RetryExcErr)
		s.wantSent(2, cq.WRFlushErr)
	})
}

// A smaller depth holds from then on; answers that wait are not lost.
func TestPairDepthShrinksInSQD(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.state(qp.SQD)
		for k := range 4 {
			s.hear(s.pkt(bth.ReadRequest, k, nil, s.into(8*k, 8)))
		}
		s.modify(&qp.Attr{MaxDestRDAtomic: 1}, qp.AttrMaxDestRDAtomic)
		for k := range 4 {
			s.want(op(bth.ReadRespOnly), at(k), payload(s.data(8*k, 8)))
		}
		s.hear(s.pkt(bth.ReadRequest, 2, nil, s.into(16, 8)))
		s.wantSilence() // forgotten
		s.hear(s.pkt(bth.ReadRequest, 3, nil, s.into(24, 8)))
		s.want(op(bth.ReadRespOnly), at(3))
		s.hear(s.pkt(bth.ReadRequest, 4, nil, s.into(0, 8)), s.pkt(bth.ReadRequest, 5, nil, s.into(0, 8)))
		s.want(op(bth.ReadRespOnly), at(4))
		s.wantNAK(5, bth.NAKInvalid, 5)
		s.wantEvent(transport.EventQPReqErr)
	})
}

// IBA 9.9.3, 7.5: a completion that does not fit is lost; the queue is in
// error and takes the pair with it. The message is not acknowledged.
func TestPairReceiveQueueOverflow(t *testing.T) {
	play(t, setup{recvCQ: 1}, func(s *script) {
		for id := range uint64(3) {
			s.postRecv(id, 0, 10)
		}
		s.postWrite(9, 0, 10)
		s.want(at(0))
		s.hear(s.pkt(bth.SendOnly, 0, nil, asks), s.pkt(bth.SendOnly, 1, nil, asks), s.pkt(bth.SendOnly, 2, nil, asks))
		s.wantACK(0, 1)
		s.wantSilence()
		s.wantState(qp.Err)
		if ev := s.wantEvent(transport.EventCQErr); ev.CQ != s.q.RecvCQ {
			s.Fatal("event names another queue")
		}
		s.wantEvent(transport.EventQPFatal)
		s.wantRecv(0, cq.Success)
		s.wantSent(9, cq.WRFlushErr)
	})
}

func TestPairSendQueueOverflow(t *testing.T) {
	play(t, setup{sendCQ: 2}, func(s *script) {
		for id := range uint64(4) {
			s.postWrite(id, 0, 10)
		}
		s.drain()
		s.sent = nil
		s.hear(s.ack(3))
		s.wantState(qp.Err)
		s.wantEvent(transport.EventCQErr)
		s.wantEvent(transport.EventQPFatal)
		s.wantSent(0, cq.Success)
		s.wantSent(1, cq.Success)
		s.wantNoTimer()
		s.postWrite(5, 0, 10) // lost as well, without another event
		s.wantSilence()
	})
	noRNR := func(a *qp.Attr) { a.RNRRetry = 0 }
	play(t, setup{sendCQ: 1, attr: noRNR}, func(s *script) { // an RNR NAK whose progress overflows the queue
		for id := range uint64(3) {
			s.postSend(id, 0, 10)
		}
		s.drain()
		s.sent = nil
		s.hear(s.nak(2, bth.SyndromeRNR(1)))
		s.wantEvent(transport.EventCQErr)
		s.wantEvent(transport.EventQPFatal)
		s.wantSent(0, cq.Success)
		s.wantCount(transport.RNRRetryExceeded, 0) // it fell on a pair in ERR
		s.wantNoTimer()
	})
}

// Every call of Modify is whole or nothing, at the engine too.
func TestPairModifyRefusesOtherFamily(t *testing.T) {
	play(t, setup{state: qp.Init}, func(s *script) {
		a := s.attr
		a.State = qp.RTR
		a.AV.DGID = a.AV.DGID.Next() // fine
		six := a
		six.AV.DGID = v6
		if err := s.e.Modify(s.now, s.q, &six, rtrMask); !errors.Is(err, transport.ErrFamily) {
			s.Fatalf("IPv6 peer on an IPv4 device: %v", err)
		}
		s.wantState(qp.Init)
		s.modify(&a, rtrMask)
		s.wantState(qp.RTR)
	})
}

// A failed receive side does not lose what the peer has been given before.
func TestPairAnswersBeforeItsLastNAKAreSent(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 600)), s.pkt(bth.WriteOnly, 3, nil, asks), s.pkt(bth.WriteLast, 4, fill(1)))
		var got []byte
		for k := range 3 {
			p := s.want(at(k))
			got = append(got, p.Payload...)
		}
		if !bytes.Equal(got, s.data(0, 600)) {
			s.Fatal("wrong bytes")
		}
		s.wantACK(3, 2)
		s.wantNAK(4, bth.NAKInvalid, 2)
		s.wantEvent(transport.EventQPReqErr)
	})
}
