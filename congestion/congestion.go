// Package congestion decides how much a queue pair may have in flight, and how
// fast it may send.
//
// A [Controller] is asked for a window before each packet and for a rate before
// each batch, and told what became of the packets: sent, acknowledged, lost, or
// marked by the network (a CNP). It sees no packet, asks no clock and runs no
// timer: a controller whose rate changes with time works out, when it is asked,
// what has happened since. One controller belongs to one queue pair.
//
//	none         Fixed   a window that never changes
//	aimd         AIMD    a window; loss and CNPs halve it
//	delay        Delay   a window; loss, CNPs and round trip times move it (the default)
//	dcqcn        DCQCN   a rate; as adapters do it (Mlx5DCQCN)
//	dcqcn-paper  DCQCN   a rate; as it was published (PaperDCQCN)
//
// [NotificationPoint] is the other half: when a receiver tells the sender that
// its packets arrive with the congestion mark.
package congestion

import "time"

// Controller limits one queue pair. Implementations are not safe for concurrent
// use; they are called by whoever owns the shard, with times that never
// decrease.
type Controller interface {
	// Window returns how many request packets may be unacknowledged, at least 1.
	Window() int
	// Rate returns the rate at which to send requests and READ responses, from
	// now on; 0 sets no pace.
	Rate(now time.Duration) BitRate
	// Sent reports that a packet of that many bytes, IP header included, was
	// sent under Window and Rate.
	Sent(now time.Duration, bytes int)
	// Acked reports that packets were acknowledged for the first time. rtt is a
	// round trip time measured with them, 0 if there is none.
	Acked(now time.Duration, packets int, rtt time.Duration)
	// Lost reports that the requester goes back to resend.
	Lost(now time.Duration)
	// Notified reports a CNP: a packet of this queue pair was marked.
	Notified(now time.Duration)
	// ECN reports whether the controller heeds CNPs, so that switches may mark
	// the queue pair's packets instead of dropping them: they leave as ECT(0).
	ECN() bool
}

// Factory makes the controller of a new queue pair whose packets carry up to
// mtu bytes of payload.
type Factory func(mtu int) Controller

// Fixed is a window that never changes: no congestion control. Its value is the
// window in packets.
type Fixed int

// Window returns the fixed window.
func (f Fixed) Window() int { return max(1, int(f)) }

// Rate returns 0: the window alone is the limit.
func (Fixed) Rate(time.Duration) BitRate { return 0 }

// Sent does nothing.
func (Fixed) Sent(time.Duration, int) {}

// Acked does nothing.
func (Fixed) Acked(time.Duration, int, time.Duration) {}

// Lost does nothing.
func (Fixed) Lost(time.Duration) {}

// Notified does nothing.
func (Fixed) Notified(time.Duration) {}

// ECN returns false: who does not slow down has no right to the mark.
func (Fixed) ECN() bool { return false }
