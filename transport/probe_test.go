package transport_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// READ data that are here are not asked for again, a local ACK timeout or not: rxe
// would drop a request for what lies before the start of the last repetition.
func TestRequesterTimeoutKeepsReadData(t *testing.T) {
	play(t, setup{window: 8}, func(s *script) {
		data := s.data(8192, 8*256)
		s.postRead(1, 0, len(data))
		s.want(at(0), reth(0, 4*256))
		s.want(at(4), reth(4*256, 4*256))
		s.hear(s.respond(0, data[:1024])[1:]...)
		s.want(at(0), reth(0, 256)) // lost
		l := s.respond(4, data[1024:])
		s.hear(l[0], l[2], l[3])
		s.want(at(5), reth(5*256, 256)) // answered, and the answer is lost
		s.expire()
		s.wantCount(transport.LocalAckTimeout, 1)
		s.want(at(0), reth(0, 256))
		s.wantSilence()
		s.hear(s.respond(0, data[:256])...)
		s.want(at(5), reth(5*256, 256))
		s.wantSilence()
		s.hear(s.respond(5, data[5*256:6*256])...)
		s.wantSent(1, cq.Success)
	})
}

// Data that come early are progress: the peer is not given up.
func TestRequesterEarlyReadDataReloadRetries(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 1 }}, func(s *script) {
		data := s.data(8192, 6*256)
		s.postRead(1, 0, len(data))
		s.want(at(0))
		l := s.respond(0, data)
		for k := 1; k < 6; k++ {
			s.expire()
			s.drain()
			s.sent = nil
			s.hear(l[k])
			s.drain()
			s.sent = nil
		}
		s.wantNoCompletion()
		s.hear(l[0])
		s.wantSent(1, cq.Success)
		s.wantCount(transport.LocalAckTimeout, 5)
	})
}

// readsInFlight posts n READs of four packets each, from PSN 1 on, a round trip
// being d; their data are those from 8192 on.
func (s *script) readsInFlight(n int, d time.Duration) (data []byte) {
	s.Helper()
	s.measured(0, d)
	for i := range n {
		s.postRead(uint64(i+1), 8192+i*1024, 1024)
		s.want(op(bth.ReadRequest), at(1+4*i), reth(0, 1024))
	}
	return s.data(8192, n*1024)
}

// A silence makes the requester ask for one packet. If it is the first request that
// is answered then, the peer was slow, and nothing is asked for again: a peer that
// had to answer everything twice would fall silent for the next request meanwhile.
func TestRequesterReadProbeOfASlowPeer(t *testing.T) {
	play(t, setup{}, func(s *script) {
		data := s.readsInFlight(3, 100*time.Microsecond)
		s.expire()
		s.want(op(bth.ReadRequest), at(1), reth(0, 256), ask(true))
		s.wantSilence()
		s.pass(time.Millisecond)
		s.hear(s.respond(1, data[:1024])...)
		s.postRead(4, 0, 256)
		s.want(op(bth.ReadRequest), at(13), reth(0, 256)) // goes on
		s.hear(s.respond(5, data[1024:2048])...)
		s.hear(s.respond(9, data[2048:])...)
		s.hear(s.resp(bth.ReadRespOnly, 1, data[:256])) // the probe's
		s.hear(s.respond(13, s.data(0, 256))...)
		for id := range uint64(4) {
			s.wantSent(id+1, cq.Success)
		}
		s.wantCount(transport.RetransmittedPkts, 1)
		s.wantCount(transport.SpuriousRetransmits, 1)
		s.wantNoTimer()
	})
}

// So it is when only the first packet of what comes was lost.
func TestRequesterReadProbeThenDataBehindAGap(t *testing.T) {
	play(t, setup{}, func(s *script) {
		data := s.readsInFlight(2, 100*time.Microsecond)
		s.expire()
		s.want(at(1), reth(0, 256))
		s.hear(s.respond(1, data[:1024])[1:]...)
		s.hear(s.respond(5, data[1024:])...)
		s.wantSilence() // the probe asks for it already
		s.hear(s.resp(bth.ReadRespLast, 1, data[:256]))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
		s.wantCount(transport.RetransmittedPkts, 1)
	})
}

// If the probe itself is answered, the first request is lost, and so are those
// behind it.
func TestRequesterReadProbeOfLostRequests(t *testing.T) {
	for name, o := range map[string]bth.Opcode{"ONLY": bth.ReadRespOnly, "LAST": bth.ReadRespLast} {
		t.Run(name, func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				data := s.readsInFlight(2, 100*time.Microsecond)
				s.expire()
				s.want(at(1), reth(0, 256))
				s.pass(100 * time.Microsecond)
				s.hear(s.resp(o, 1, data[:256]))
				s.want(op(bth.ReadRequest), at(2), reth(256, 768))
				s.want(op(bth.ReadRequest), at(5), reth(0, 1024))
				s.wantSilence()
				s.pass(100 * time.Microsecond)
				s.hear(s.respond(2, data[256:1024])...)
				s.hear(s.respond(5, data[1024:])...)
				s.wantSent(1, cq.Success)
				s.wantSent(2, cq.Success)
				s.wantCount(transport.SpuriousRetransmits, 0)
				s.wantNoTimer()
			})
		})
	}
}

// Where the first request ended at the same packet, its answer looks like the
// probe's. The requester waits once more, not for long.
func TestRequesterReadProbeInDoubt(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.measured(0, 100*time.Microsecond)
		data := s.data(8192, 3*256)
		for i := range 3 {
			s.postRead(uint64(i+1), 8192+256*i, 256)
			s.want(at(i+1), reth(0, 256))
		}
		s.expire()
		s.want(at(1))
		s.hear(s.respond(1, data[:256])...)
		s.wantSent(1, cq.Success)
		s.wantSilence()
		if d := s.expire(); d != 300*time.Microsecond {
			s.Fatalf("second probe after %v", d)
		}
		s.want(at(2), reth(0, 256))
		s.hear(s.respond(2, data[256:512])...)
		s.want(at(3), reth(0, 256))
		s.hear(s.respond(3, data[512:])...)
		s.wantSent(2, cq.Success)
		s.wantSent(3, cq.Success)
	})
}

// A NAK for the packet that is being probed left the peer before the probe came.
// To ask for more from there would be to ask for two READs in one as soon as the
// probe has been taken for a request of its own.
func TestRequesterNAKDuringReadProbe(t *testing.T) {
	play(t, setup{}, func(s *script) {
		data := s.readsInFlight(2, 100*time.Microsecond)
		s.expire()
		s.want(at(1), reth(0, 256))
		s.hear(s.nak(1, bth.NAKSequence))
		s.wantSilence()
		s.hear(s.resp(bth.ReadRespOnly, 1, data[:256]))
		s.want(at(2), reth(256, 768))
		s.want(at(5), reth(0, 1024))
		s.hear(s.respond(2, data[256:1024])...)
		s.hear(s.respond(5, data[1024:])...)
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
	})
}

// A selective acknowledgement ends the probe: what it shows to be missing is asked
// for, in whole requests.
func TestRequesterSelectiveACKDuringReadProbe(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.agreed()
		data := s.data(8192, 3*1024)
		for i := range 3 {
			s.postRead(uint64(i+1), 8192+1024*i, 1024)
			s.want(at(1+4*i), reth(0, 1024))
		}
		s.expire()
		s.want(at(1), reth(0, 256))
		s.hear(s.sack(5, bth.NAKSequence, 5, 9))
		s.want(at(2), reth(256, 768)) // executed, and the answers have not come
		s.want(at(5), reth(0, 1024))
		s.wantSilence()
		for i := range 3 {
			s.hear(s.respond(1+4*i, data[1024*i:][:1024])...)
			s.wantSent(uint64(i+1), cq.Success)
		}
	})
}

// A peer that sends data, needed or not, is not silent. It may well come to the next
// request when it has done with the last.
func TestRequesterOldReadDataAreNoSilence(t *testing.T) {
	play(t, setup{}, func(s *script) {
		data := s.readsInFlight(2, 100*time.Microsecond)
		s.hear(s.respond(1, data[:1024])...)
		s.wantSent(1, cq.Success)
		start := s.now
		for range 20 {
			s.pass(1500 * time.Microsecond)
			s.hear(s.respond(1, data[:1024])...)
			s.wantSilence()
		}
		s.wantCount(transport.EarlyTimeout, 0)
		for s.e.Counters[transport.LocalAckTimeout] == 0 { // that runs on
			s.expire()
			s.want(at(5), reth(0, 256))
		}
		if d := s.now - start; d != s.timeout() {
			s.Fatalf("local ACK timeout after %v, want %v", d, s.timeout())
		}
		s.hear(s.respond(5, data[1024:])...)
		s.wantSent(2, cq.Success)
	})
}
