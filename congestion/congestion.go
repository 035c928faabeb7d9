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
	// Acked reports that packets were acknowledged for the first time.
	Acked(now time.Duration, packets int)
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
func (Fixed) Acked(time.Duration, int) {}

// Lost does nothing.
func (Fixed) Lost(time.Duration) {}

// Notified does nothing.
func (Fixed) Notified(time.Duration) {}

// MaxFixed and MinFixed bound the window of FixedForBuffer, in packets.
const (
	MinFixed = 16
	MaxFixed = 256
)

// FixedForBuffer makes fixed windows that fill at most the given bytes of a
// peer's socket buffer, on the assumption that it is as large as our own. A
// kernel accounts for about twice the payload of a datagram and 1 KiB more.
func FixedForBuffer(bytes int) Factory {
	return func(mtu int) Controller {
		return Fixed(min(MaxFixed, max(MinFixed, bytes/(2*mtu+1024))))
	}
}
