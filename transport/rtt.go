package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
)

// roundTrip estimates the round trip time of one pair, as RFC 6298 does: one
// packet at a time is timed, and none whose answer could be to a copy of it
// (Karn's rule).
type roundTrip struct {
	smooth, variation time.Duration // 0: nothing was measured yet

	running bool
	timed   bth.PSN // the packet being timed
	sentAt  time.Duration

	resent   bool // something was resent while it runs: the answer is in doubt
	resentAt time.Duration
}

// start times the packet with this PSN, unless another one is being timed.
func (t *roundTrip) start(now time.Duration, psn bth.PSN) {
	if !t.running {
		t.running, t.timed, t.sentAt, t.resent = true, psn, now, false
	}
}

// again notes that something was resent.
func (t *roundTrip) again(now time.Duration) { t.resent, t.resentAt = true, now }

// answered takes the sample that an answer to everything before una gives, 0 if
// it gives none. An answer to a resent packet counts only if it comes so soon
// that it has to be to the first copy; early tells that.
func (t *roundTrip) answered(now time.Duration, una bth.PSN) (sample time.Duration, early bool) {
	early = t.resent && t.smooth > 0 && now-t.resentAt < t.smooth/2
	sure := !t.resent || early
	t.resent = t.resent && !early
	if !t.running || !t.timed.Before(una) {
		return 0, early
	}
	t.running, t.resent = false, false
	if sample = now - t.sentAt; !sure || sample <= 0 {
		return 0, early
	}
	t.add(sample)
	return sample, early
}

// later reports that what was resent last has been on its way for a round trip:
// an answer that comes now is to it.
func (t *roundTrip) later(now time.Duration) bool {
	return t.smooth > 0 && now-t.resentAt >= t.smooth+t.variation
}

// add takes one sample into the estimate.
func (t *roundTrip) add(s time.Duration) {
	if t.smooth == 0 {
		t.smooth, t.variation = s, s/2
		return
	}
	d := max(t.smooth-s, s-t.smooth)
	t.variation += (d - t.variation) / 4
	t.smooth += (s - t.smooth) / 8
}

// The floors of the two timers that follow from the round trip time. A peer in
// user space or in a guest is now and then away from its CPU for milliseconds,
// and timers of the operating system are not finer than one.
const (
	minTailProbe = 2 * time.Millisecond
	minResend    = 4 * time.Millisecond
)

// silence returns after how long a silence of the peer, with packets
// unanswered, something is resent for the n-th time in a row; 0 when no round
// trip was measured. It doubles each time.
func (t *roundTrip) silence(n uint8) time.Duration {
	if t.smooth == 0 {
		return 0
	}
	if n == 0 {
		return max(minTailProbe, 2*t.smooth, t.smooth+4*t.variation)
	}
	return max(minResend, 2*t.smooth, t.smooth+4*t.variation) << min(n-1, 10)
}
