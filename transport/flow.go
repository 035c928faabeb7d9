package transport

import (
	"time"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/qp"
)

// FlowStats is how fast a pair may send, and what it knows of congestion.
type FlowStats struct {
	// Window is how many request packets may be unacknowledged, InFlight how
	// many are.
	Window, InFlight int
	// Rate is the pace, 0 if the window alone is the limit.
	Rate congestion.BitRate
	// CEMarked counts packets received with the congestion mark, CNPsSent the
	// notifications that answered them, CNPsHandled those received.
	CEMarked, CNPsSent, CNPsHandled uint64
}

// Flow returns the state of the pair's flow. It belongs to the engine's owner.
func (q *QP) Flow(now time.Duration) FlowStats {
	inFlight := 0
	if q.Type == qp.RC {
		inFlight = q.req.next.Sub(q.req.una)
	}
	return FlowStats{
		Window: q.ctl.Window(), InFlight: inFlight, Rate: q.ctl.Rate(now),
		CEMarked: q.np.marked, CNPsSent: q.np.sent, CNPsHandled: q.np.handled,
	}
}
