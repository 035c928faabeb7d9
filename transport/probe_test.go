package transport_test

import (
	"testing"

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
