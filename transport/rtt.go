package transport

import (
	"time"

	"github.com/goroce/goroce/bth"
)

// roundTrip estimates the round trip time of one pair, as RFC 6298 does. Some of
// the packets that ask for an answer are timed, and none whose answer could be to
// a copy of it, or was late because one before it had to be resent (Karn's rule).
type roundTrip struct {
	smooth, variation time.Duration // 0: nothing was measured yet
	least             time.Duration // about the shortest of late

	timed   [8]stamp // a ring, oldest first
	head, n uint8

	resent   bool // something was resent, and nothing has been answered since
	resentAt time.Duration
	backAt   time.Duration // when the requester went back last
}

// stamp is when a packet was sent.
type stamp struct {
	psn bth.PSN
	at  time.Duration
}

func (t *roundTrip) stamp(i uint8) *stamp { return &t.timed[(t.head+i)%uint8(len(t.timed))] }

// start times a packet, if few enough are being timed.
func (t *roundTrip) start(now time.Duration, psn bth.PSN) {
	if int(t.n) < len(t.timed) {
		*t.stamp(t.n) = stamp{psn, now}
		t.n++
	}
}

// again notes that something was resent. Packets from it on are timed no more.
func (t *roundTrip) again(now time.Duration, psn bth.PSN) {
	t.resent, t.resentAt = true, now
	t.forget(psn)
}

// forget ends the timing of the packets from psn on.
func (t *roundTrip) forget(psn bth.PSN) {
	for t.n > 0 && !t.stamp(t.n-1).psn.Before(psn) {
		t.n--
	}
}

// waited notes that the peer was slow, and what was resent not lost. The samples
// count for no more than the wait for it: the estimate follows a path that has
// become longer in steps, and a host that has stood still hardly.
func (t *roundTrip) waited(now time.Duration) {
	t.resent = false
	from := now - t.silence(0)
	for i := range t.n {
		s := t.stamp(i)
		s.at = max(s.at, from)
	}
}

// answered takes the sample that an answer to everything before una gives, 0 if
// it gives none. early tells that it comes too soon to be to what was resent.
func (t *roundTrip) answered(now time.Duration, una bth.PSN) (sample time.Duration, early bool) {
	early = t.resent && t.smooth > 0 && now-t.resentAt < t.smooth/2
	t.resent = false
	for t.n > 0 && t.stamp(0).psn.Before(una) {
		sample = now - t.stamp(0).at
		t.head, t.n = (t.head+1)%uint8(len(t.timed)), t.n-1
	}
	if sample > 0 {
		t.add(sample)
	}
	return sample, early
}

// later reports that what the requester went back to has been on its way for a
// round trip: a NAK that comes now is about it.
func (t *roundTrip) later(now time.Duration) bool {
	return t.smooth > 0 && now-t.backAt >= t.least
}

// add takes one sample into the estimate.
func (t *roundTrip) add(s time.Duration) {
	if t.smooth == 0 {
		t.smooth, t.variation, t.least = s, s/2, s
		return
	}
	if t.least += (s - t.least) / 64; s < t.least { // down at once, up slowly
		t.least = s
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
		return max(minTailProbe, t.usual())
	}
	return max(minResend, t.usual()) << min(n-1, 10)
}

// usual returns after how long an answer is overdue, however short that is.
func (t *roundTrip) usual() time.Duration {
	return max(2*t.smooth, t.smooth+4*t.variation)
}
