// Package congestion decides how much a queue pair may have in flight.
//
// A [Controller] is asked for a window before each packet and told what became
// of the packets: acknowledged, lost, or marked by the network (a CNP). It sees
// no packet and asks no clock. One controller belongs to one queue pair.
package congestion

import "time"

// Controller limits one requester. Implementations are not safe for concurrent
// use; they are called by whoever owns the shard.
type Controller interface {
	// Window returns how many packets may be unacknowledged, at least 1.
	Window() int
	// Acked reports that packets were acknowledged for the first time. rtt is a
	// round trip time measured with them, 0 if there is none.
	Acked(now time.Duration, packets int, rtt time.Duration)
	// Lost reports that the requester goes back to resend.
	Lost(now time.Duration)
	// Notified reports a CNP: a packet of this queue pair was marked.
	Notified(now time.Duration)
}

// Factory makes the controller of a new queue pair whose packets carry up to
// mtu bytes of payload.
type Factory func(mtu int) Controller

// Fixed is a window that never changes: no congestion control. Its value is the
// window in packets.
type Fixed int

// Window returns the fixed window.
func (f Fixed) Window() int { return max(1, int(f)) }

// Acked does nothing.
func (Fixed) Acked(time.Duration, int, time.Duration) {}

// Lost does nothing.
func (Fixed) Lost(time.Duration) {}

// Notified does nothing.
func (Fixed) Notified(time.Duration) {}

// MinWindow and MaxWindow bound the windows of ForBuffer, in packets.
const (
	MinWindow = 16
	MaxWindow = 256
)

// ForBuffer makes AIMD windows that fill at most the given bytes of a peer's
// socket buffer, on the assumption that it is as large as our own. A kernel
// accounts for about twice the payload of a datagram and 1 KiB more.
func ForBuffer(bytes int) Factory {
	return func(mtu int) Controller {
		return NewAIMD(min(MaxWindow, max(MinWindow, bytes/(2*mtu+1024))))
	}
}

// AIMD is a window that is halved by a loss and grows by one packet per window
// acknowledged, as in TCP Reno. It starts at its maximum: on a network without
// loss it is a fixed window. Go-back-N resends a whole window for one lost
// packet, so under loss a small window also wastes less.
type AIMD struct {
	limit, window int
	credit        int // packets acknowledged since the window last grew
}

// minAIMD keeps enough packets in flight for a loss to be seen by what follows.
const minAIMD = 8

// NewAIMD returns a controller whose window is at most limit packets.
func NewAIMD(limit int) *AIMD {
	limit = max(1, limit)
	return &AIMD{limit: limit, window: limit}
}

// Window returns the window in packets.
func (a *AIMD) Window() int { return a.window }

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
	a.window, a.credit = max(min(minAIMD, a.limit), a.window/2), 0
}

// Notified halves the window: a marked packet is a loss that did not happen.
func (a *AIMD) Notified(now time.Duration) { a.Lost(now) }
