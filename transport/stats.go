package transport

import "time"

// QPStats is what a queue pair can tell about its connection.
type QPStats struct {
	// RTT is the smoothed round trip time and RTTVar its mean deviation; 0
	// before the first sample.
	RTT, RTTVar time.Duration
	// Retransmitted counts request packets sent again, Spurious how often an
	// answer came too soon to be to one of those.
	Retransmitted, Spurious uint64
}

// Stats returns the pair's statistics.
func (q *QP) Stats() QPStats {
	r := &q.req
	return QPStats{
		RTT: r.rtt.smooth, RTTVar: r.rtt.variation,
		Retransmitted: r.retransmitted, Spurious: r.spurious,
	}
}
