package congestion

import "time"

// AIMD is a window that is halved by a loss and grows by one packet per window
// acknowledged, as in TCP Reno. It starts at its maximum: on a network without
// loss it is a fixed window. Go-back-N resends a whole window for one lost
// packet, so under loss a small window also wastes less.
type AIMD struct {
	limit, window int
	credit        int // packets acknowledged since the window last grew
}

// minLossWindow keeps enough packets in flight for a loss to be seen by what
// follows.
const minLossWindow = 8

// NewAIMD returns a controller whose window is at most limit packets.
func NewAIMD(limit int) *AIMD {
	limit = max(1, limit)
	return &AIMD{limit: limit, window: limit}
}

// Window returns the window in packets.
func (a *AIMD) Window() int { return a.window }

// Rate returns 0: the window alone is the limit.
func (a *AIMD) Rate(time.Duration) BitRate { return 0 }

// Sent does nothing.
func (a *AIMD) Sent(time.Duration, int) {}

// Acked grows the window by one packet per window acknowledged.
func (a *AIMD) Acked(_ time.Duration, packets int, _ time.Duration) {
	if a.window >= a.limit {
		return
	}
	for a.credit += packets; a.credit >= a.window && a.window < a.limit; a.window++ {
		a.credit -= a.window
	}
}

// Lost halves the window.
func (a *AIMD) Lost(time.Duration) {
	a.window, a.credit = max(min(minLossWindow, a.limit), a.window/2), 0
}

// Notified halves the window: a marked packet is a loss that did not happen.
func (a *AIMD) Notified(now time.Duration) { a.Lost(now) }

// ECN returns true.
func (a *AIMD) ECN() bool { return true }
