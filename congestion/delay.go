package congestion

import "time"

// DelayParams are the parameters of Delay. Zero fields take the defaults.
type DelayParams struct {
	// Limit is the largest window in packets; default MaxWindow.
	Limit int
	// Initial is the first window; default 128 packets, at most Limit. READs are
	// asked for in pieces of half of it at least.
	Initial int
	// Target is the least target of the round trip time; default 2 ms, far above
	// the noise that scheduling puts into the times of a user-space peer. On a
	// quiet network less is better. See Delay for what it is compared with.
	Target time.Duration
}

// The defaults of DelayParams.
const (
	defaultInitial = 128
	defaultTarget  = 2 * time.Millisecond
)

// Delay is a window that grows while the network shows no congestion, and
// heeds three signs of it, each at most once per round trip:
//
//   - A loss takes away what waits in queues: the window is set to what the path
//     holds at the least round trip time, but at most halved. So losses by chance,
//     on a path without queue, cost nothing. Losses in most of the rounds, or
//     without an answer between two of them, are not by chance: they halve it.
//   - A CNP cuts it by α/2, where α is the smoothed share of round trips with
//     CNPs: the first one halves the window, lasting mild congestion costs little.
//   - If even the fastest packet of two rounds, each a window long, took longer
//     than the target, it is set to what the path carries in the target time:
//     that caps it at a bandwidth-delay product, but not below 64 packets, since
//     a user-space peer may just be slow. The target is the larger of
//     DelayParams.Target and four times the least round trip time of the last
//     seconds and its mean deviation.
//
// It starts at DelayParams.Initial and doubles every round trip until the first
// such sign; then it grows by one packet per window. While the last round trip
// time is above the target it does not grow.
type Delay struct {
	p      DelayParams
	window int
	credit int           // packets acknowledged since the window last grew
	fast   int           // below this window it grows by doubling
	quiet  time.Duration // until then no further cut by loss or CNP

	alpha  float64
	marked bool // a CNP came in this round

	lossy float64 // smoothed share of rounds with losses
	lost  bool    // one came in this round
	acked int     // packets since the last loss

	left    int           // packets until the round ends
	least   time.Duration // shortest round trip of the round
	before  time.Duration // and of the one before, 0 if there was none
	samples int           // of the round
	over    int           // rounds in a row above the target
	delayed bool          // the last cut was for delay

	last, smoothed, deviation time.Duration
	base                      floor
}

const (
	alphaGain      = 1.0 / 16
	minDelayWindow = 2 // CNPs come even with a single packet in flight
	minQueueWindow = 64
	roundsOver     = 2
	lossyGain      = 1.0 / 8
	mostlyLossy    = .8
)

// NewDelay returns a controller in its initial state.
func NewDelay(p DelayParams) *Delay {
	if p.Limit <= 0 {
		p.Limit = MaxWindow
	}
	if p.Initial <= 0 {
		p.Initial = defaultInitial
	}
	p.Initial = min(p.Initial, p.Limit)
	if p.Target <= 0 {
		p.Target = defaultTarget
	}
	return &Delay{p: p, window: p.Initial, fast: p.Limit, left: p.Initial, alpha: 1}
}

// Window returns the window in packets.
func (d *Delay) Window() int { return d.window }

// Rate returns 0: acknowledgements set the pace.
func (d *Delay) Rate(time.Duration) BitRate { return 0 }

// Sent does nothing.
func (d *Delay) Sent(time.Duration, int) {}

// ECN returns true.
func (d *Delay) ECN() bool { return true }

// Acked grows the window and ends rounds.
func (d *Delay) Acked(now time.Duration, packets int, rtt time.Duration) {
	if rtt > 0 {
		d.sample(now, rtt)
	}
	d.acked += packets
	if d.last <= d.target() {
		d.grow(packets)
	}
	if d.left -= packets; d.left <= 0 {
		d.endRound()
	}
}

func (d *Delay) sample(now, rtt time.Duration) {
	if d.smoothed == 0 {
		d.smoothed, d.deviation = rtt, rtt/2
	}
	off := rtt - d.smoothed
	d.smoothed += off / 8
	d.deviation += (max(off, -off) - d.deviation) / 8
	d.base.add(now, rtt)
	d.last = rtt
	if d.samples == 0 || rtt < d.least {
		d.least = rtt
	}
	d.samples++
}

// target returns the round trip time above which the window is too large.
func (d *Delay) target() time.Duration {
	return max(d.p.Target, 4*(d.base.value()+d.deviation))
}

func (d *Delay) grow(packets int) {
	if d.window < d.fast {
		step := min(packets, d.fast-d.window)
		d.window += step
		packets -= step
	}
	if d.window >= d.p.Limit {
		return
	}
	for d.credit += packets; d.credit >= d.window && d.window < d.p.Limit; d.window++ {
		d.credit -= d.window
	}
}

func (d *Delay) endRound() {
	target := d.target()
	switch {
	case d.samples < 2:
	case d.least > target:
		if d.over++; d.over >= roundsOver {
			share := max(.5, float64(target)/float64(d.least))
			d.cut(max(min(d.window, minQueueWindow), int(float64(d.window)*share)))
			d.delayed = true
		}
	default:
		d.over = 0
		if d.delayed && d.least < target/2 {
			d.delayed, d.fast = false, d.p.Limit // a passing delay
		}
	}
	d.alpha -= d.alpha * alphaGain
	if d.marked {
		d.alpha += alphaGain
	}
	d.lossy -= d.lossy * lossyGain
	if d.lost {
		d.lossy += lossyGain
	}
	if d.samples > 0 {
		d.before = d.least
	}
	d.marked, d.lost, d.samples, d.left = false, false, 0, d.window
}

// cut sets the window after a sign of congestion.
func (d *Delay) cut(window int) {
	d.window, d.fast, d.credit, d.over = window, window, 0, 0
}

// Lost cuts the window to what the path holds, at most by half.
func (d *Delay) Lost(now time.Duration) {
	d.lost = true
	if now < d.quiet {
		return
	}
	d.quiet, d.delayed = now+d.smoothed, false
	window := d.window / 2
	if d.lossy < mostlyLossy && d.acked > 0 {
		window = max(window, d.held())
	}
	d.acked = 0
	if window = max(min(minLossWindow, d.window), window); window < d.window {
		d.cut(window)
	}
}

// held returns how many packets the path holds without queue: the window, less
// the share of the round trip time that is above the least one. It goes by the
// fastest packets of the last rounds; the others tell of busy hosts.
func (d *Delay) held() int {
	rtt := d.before
	if d.samples > 0 && (rtt == 0 || d.least < rtt) {
		rtt = d.least
	}
	if rtt == 0 {
		return 0
	}
	return int(float64(d.window) * min(1, float64(d.base.value())/float64(rtt)))
}

// Notified cuts the window by α/2.
func (d *Delay) Notified(now time.Duration) {
	d.marked = true
	if now < d.quiet {
		return
	}
	d.quiet, d.delayed = now+d.smoothed, false
	d.cut(max(min(minDelayWindow, d.window), min(d.window-1, int(float64(d.window)*(1-d.alpha/2)))))
}

// floor is the least of the values added in the last baseAge, up to twice that.
type floor struct {
	now, before time.Duration // of the present span and the one before, 0 if none
	since       time.Duration
}

const baseAge = 10 * time.Second

func (f *floor) add(now, v time.Duration) {
	if now-f.since >= baseAge {
		f.before, f.now, f.since = f.now, 0, now
	}
	if f.now == 0 || v < f.now {
		f.now = v
	}
}

func (f *floor) value() time.Duration {
	if f.now == 0 || f.before != 0 && f.before < f.now {
		return f.before
	}
	return f.now
}
