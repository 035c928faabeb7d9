package congestion

import (
	"fmt"
	"math"
	"time"
)

// DCQCNParams are the parameters of the reaction point, by the names that mlx5
// has for them: Mlx5DCQCN and PaperDCQCN are the two sets in use. Rates that are
// 0 where noted follow from the line rate.
type DCQCNParams struct {
	// Rule is which of the two forms of the algorithm the parameters are for.
	Rule DCQCNRule
	// MaxRate, rp_max_rate, is where a pair starts and what it never exceeds; 0
	// is the line rate.
	MaxRate BitRate
	// MinRate, rp_min_rate, is what cuts never go below; at least 1 Mb/s.
	MinRate BitRate

	// InitialAlphaValue, rp_initial_alpha_value, is α before the first CNP, 0 to
	// 1023, which stands for 1. α is the smoothed share of time with CNPs.
	InitialAlphaValue int
	// DCETCPG, rp_dce_tcp_g, is the weight of the old α when it is updated, 0 to
	// 1023, in 1024ths: g, the weight of the new value, is what is missing to 1.
	DCETCPG int
	// DCETCPRTT, rp_dce_tcp_rtt, is the period of α's updates, 1 µs to 131071 µs.
	DCETCPRTT time.Duration
	// GD, rp_gd: a cut takes α/2^(GD-10) of the rate; 10 or 11.
	GD int
	// MinDecFac, rp_min_dec_fac, is the least that a cut leaves, in per cent of
	// the rate, 0 to 100.
	MinDecFac int
	// RateReduceMonitorPeriod, rp_rate_reduce_monitor_period, is the least time
	// between two cuts: a CNP that comes earlier cuts at its end. 0 is none.
	RateReduceMonitorPeriod time.Duration
	// ClampTgtRate, rp_clamp_tgt_rate: every cut takes the target rate down to
	// the rate before it; ClampTgtRateAfterTimeInc: only the first one after the
	// time counter has raised the rate.
	ClampTgtRate, ClampTgtRateAfterTimeInc bool
	// RateToSetOnFirstCNP, rp_rate_to_set_on_first_cnp, is the rate after the
	// first CNP in per cent of the line rate, 0 to 85; 0: an ordinary cut.
	RateToSetOnFirstCNP int

	// TimeReset, rp_time_reset, is the time after which the rate is raised; 0:
	// time does not raise it.
	TimeReset time.Duration
	// ByteReset, rp_byte_reset, is the number of bytes sent after which the rate
	// is raised; 0: bytes do not raise it.
	ByteReset int
	// Threshold, rp_threshold, is the number of raises by one counter after
	// which the target rate is raised too; at least 1.
	Threshold int
	// AIRate, rp_ai_rate, is by how much then; at least 1 Mb/s. HAIRate,
	// rp_hai_rate, takes its place once all counters have passed the
	// threshold; 0: it never does.
	AIRate, HAIRate BitRate

	// CutOnLoss makes a loss count as a CNP. The published algorithm relies on a
	// network without loss.
	CutOnLoss bool
}

// DCQCNRule is one of the forms that DCQCN has.
type DCQCNRule uint8

const (
	// PaperRule: a CNP raises α after its cut and restarts α's period. Raises
	// are counted before they are compared with the threshold: a threshold of 5
	// gives four that leave the target alone. The step of hyper increase grows.
	PaperRule DCQCNRule = iota
	// FirmwareRule: α is updated by a clock, up if a CNP came in the period.
	// Raises are compared with the threshold before they are counted. The step
	// of hyper increase is constant.
	FirmwareRule
)

// PaperDCQCN returns the published parameters: for 40 Gb/s, with N = 50 µs at
// the notification point.
func PaperDCQCN() DCQCNParams {
	return DCQCNParams{
		Rule: PaperRule, MinRate: 10 * Mbps,
		InitialAlphaValue: 1023, DCETCPG: 1020, DCETCPRTT: 55 * time.Microsecond, GD: 11, ClampTgtRate: true,
		TimeReset: 55 * time.Microsecond, ByteReset: 10_000_000, Threshold: 5, AIRate: 40 * Mbps,
		CutOnLoss: true,
	}
}

// Mlx5DCQCN returns the defaults of mlx5 adapters. Their byte counter is left
// out: its default is the end of its range, in a unit that is not documented.
func Mlx5DCQCN() DCQCNParams {
	return DCQCNParams{
		Rule: FirmwareRule, MinRate: 1 * Mbps,
		InitialAlphaValue: 1023, DCETCPG: 1019, DCETCPRTT: time.Microsecond, GD: 11, MinDecFac: 50,
		RateReduceMonitorPeriod: 4 * time.Microsecond, ClampTgtRateAfterTimeInc: true,
		TimeReset: 300 * time.Microsecond, Threshold: 1, AIRate: 5 * Mbps, HAIRate: 50 * Mbps,
		CutOnLoss: true,
	}
}

// Validate names the first parameter that is out of its range.
func (p *DCQCNParams) Validate() error {
	for _, c := range []struct {
		ok           bool
		name, range_ string
	}{
		{p.Rule <= FirmwareRule, "Rule", "PaperRule or FirmwareRule"},
		{p.MinRate >= Mbps, "MinRate", "at least 1 Mb/s"},
		{p.MaxRate == 0 || p.MaxRate >= p.MinRate, "MaxRate", "0 or at least MinRate"},
		{p.InitialAlphaValue >= 0 && p.InitialAlphaValue <= 1023, "InitialAlphaValue", "0 to 1023"},
		{p.DCETCPG >= 0 && p.DCETCPG <= 1023, "DCETCPG", "0 to 1023"},
		{p.DCETCPRTT >= time.Microsecond && p.DCETCPRTT <= 131071*time.Microsecond, "DCETCPRTT", "1 to 131071 µs"},
		{p.GD == 10 || p.GD == 11, "GD", "10 or 11"},
		{p.MinDecFac >= 0 && p.MinDecFac <= 100, "MinDecFac", "0 to 100"},
		{p.RateReduceMonitorPeriod >= 0, "RateReduceMonitorPeriod", "0 or more"},
		{p.RateToSetOnFirstCNP >= 0 && p.RateToSetOnFirstCNP <= 85, "RateToSetOnFirstCNP", "0 to 85"},
		{p.TimeReset == 0 || p.TimeReset >= time.Microsecond, "TimeReset", "0 or at least 1 µs"},
		{p.ByteReset == 0 || p.ByteReset >= 1000, "ByteReset", "0 or at least 1000 bytes"},
		{p.TimeReset != 0 || p.ByteReset != 0, "TimeReset and ByteReset", "not both 0: the rate would never rise"},
		{p.Threshold >= 1, "Threshold", "at least 1"},
		{p.AIRate >= Mbps, "AIRate", "at least 1 Mb/s"},
		{p.HAIRate >= 0, "HAIRate", "0 or more"},
	} {
		if !c.ok {
			return fmt.Errorf("congestion: DCQCN parameter %s is out of range: %s", c.name, c.range_)
		}
	}
	return nil
}

// Factory returns what makes controllers with these parameters.
func (p DCQCNParams) Factory(o Options) (Factory, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	line := o.LineRate
	if line == 0 {
		line = DefaultLineRate
	}
	if p.MaxRate == 0 || p.MaxRate > line {
		p.MaxRate = max(line, p.MinRate)
	}
	return func(mtu int) Controller { return newDCQCN(p, line, o.window(mtu)) }, nil
}

// DCQCN is the reaction point of DCQCN: a rate that CNPs cut, by more the more
// steadily they come, and that rises back in steps, by time and by bytes sent:
// first half-way to the target, the rate before the cut, then the target too.
// The window is the constant that the peer's buffer allows.
type DCQCN struct {
	p               DCQCNParams
	line            BitRate
	window          int
	current, target BitRate

	active bool // a CNP has come: before that nothing runs

	alpha   float64
	marked  bool          // FirmwareRule: a CNP came in α's present period
	alphaAt time.Duration // when the period ends

	cutFrom time.Duration // no cut before
	cutDue  bool          // there is one then

	timeAt               time.Duration // the next raise by time
	bytesLeft            int           // until the next raise by bytes
	timeStage, byteStage int           // raises since the last cut
	hyper                int
	timeRaised           bool // since the last cut
}

func newDCQCN(p DCQCNParams, line BitRate, window int) *DCQCN {
	return &DCQCN{p: p, line: line, window: window, current: p.MaxRate, target: p.MaxRate, alpha: float64(p.InitialAlphaValue) / 1023, timeAt: math.MaxInt64}
}

// Window returns the constant window.
func (d *DCQCN) Window() int { return d.window }

// Rate returns the current rate.
func (d *DCQCN) Rate(now time.Duration) BitRate {
	d.advance(now)
	return d.current
}

// Target returns the target rate, and Alpha α, 0 to 1, as of the last call with
// a time.
func (d *DCQCN) Target() BitRate { return d.target }

// Alpha is described at Target.
func (d *DCQCN) Alpha() float64 { return d.alpha }

// ECN returns true.
func (d *DCQCN) ECN() bool { return true }

// Acked does nothing: acknowledgements tell nothing of the rate.
func (d *DCQCN) Acked(time.Duration, int, time.Duration) {}

// Lost counts as a CNP if the parameters say so. That helps where a marking
// network drops now and then; losses alone are too rare to steer by.
func (d *DCQCN) Lost(now time.Duration) {
	if d.p.CutOnLoss {
		d.Notified(now)
	}
}

// Sent moves the byte counter.
func (d *DCQCN) Sent(now time.Duration, bytes int) {
	d.advance(now)
	if !d.active || d.p.ByteReset == 0 || d.full() {
		return
	}
	for d.bytesLeft -= bytes; d.bytesLeft <= 0; d.bytesLeft += d.p.ByteReset {
		d.raise(&d.byteStage)
	}
}

// Notified cuts the rate, or notes that it has to be cut once it may.
func (d *DCQCN) Notified(now time.Duration) {
	d.advance(now)
	first := !d.active
	if first {
		d.active = true
		d.alphaAt = now + d.p.DCETCPRTT
	}
	switch {
	case first && d.p.RateToSetOnFirstCNP != 0:
		d.target = d.current
		d.current = max(d.p.MinRate, min(d.current, d.line*BitRate(d.p.RateToSetOnFirstCNP)/100))
		d.restart(now)
	case now < d.cutFrom:
		d.cutDue = true
	default:
		d.cut(now)
	}
	d.marked = !first
	if d.p.Rule == PaperRule {
		d.alpha = d.alpha*d.keep() + 1 - d.keep()
		d.alphaAt = now + d.p.DCETCPRTT
	}
}

// keep is the weight of the old α.
func (d *DCQCN) keep() float64 { return float64(d.p.DCETCPG) / 1024 }

// full reports that nothing is left to raise.
func (d *DCQCN) full() bool { return d.current == d.p.MaxRate && d.target == d.p.MaxRate }

// advance lets everything happen that was due up to now, in its order. A pair
// that is back at its maximum has no raises due, so the work is bounded by the
// number of raises that lead there.
func (d *DCQCN) advance(now time.Duration) {
	if !d.active {
		return
	}
	for {
		switch {
		case d.cutDue && d.cutFrom <= min(now, d.timeAt):
			d.updateAlpha(d.cutFrom)
			d.cut(d.cutFrom)
		case d.timeAt <= now:
			d.timeRaised = true
			d.raise(&d.timeStage)
			if d.timeAt += d.p.TimeReset; d.full() {
				d.timeAt = math.MaxInt64
			}
		default:
			d.updateAlpha(now)
			return
		}
	}
}

// updateAlpha makes the updates of α up to now.
func (d *DCQCN) updateAlpha(now time.Duration) {
	if now < d.alphaAt {
		return
	}
	periods := (now-d.alphaAt)/d.p.DCETCPRTT + 1
	d.alphaAt += periods * d.p.DCETCPRTT
	if d.p.Rule == FirmwareRule && d.marked {
		d.alpha = d.alpha*d.keep() + 1 - d.keep()
		d.marked = false
		periods--
	}
	if periods > 0 {
		d.alpha *= math.Pow(d.keep(), float64(periods))
	}
}

func (d *DCQCN) cut(now time.Duration) {
	if d.p.ClampTgtRate || d.p.ClampTgtRateAfterTimeInc && d.timeRaised {
		d.target = d.current
	}
	left := max(1-d.alpha/float64(int(1)<<(d.p.GD-10)), float64(d.p.MinDecFac)/100)
	d.current = max(d.p.MinRate, d.current*BitRate(left))
	d.restart(now)
}

// restart starts counters and periods anew after a cut.
func (d *DCQCN) restart(now time.Duration) {
	d.cutDue, d.cutFrom = false, now+d.p.RateReduceMonitorPeriod
	d.timeStage, d.byteStage, d.hyper, d.timeRaised = 0, 0, 0, false
	d.bytesLeft = d.p.ByteReset
	if d.p.TimeReset != 0 {
		d.timeAt = now + d.p.TimeReset
	}
}

// raise counts a raise and makes it: one step up.
func (d *DCQCN) raise(counter *int) {
	if d.p.Rule == PaperRule {
		*counter++
	} else {
		defer func() { *counter++ }()
	}
	most, least := max(d.timeStage, d.byteStage), min(d.timeStage, d.byteStage)
	if d.p.TimeReset == 0 || d.p.ByteReset == 0 {
		least = most // there is one counter
	}
	switch {
	case most < d.p.Threshold:
	case least > d.p.Threshold && d.p.HAIRate > 0:
		d.hyper++
		step := d.p.HAIRate
		if d.p.Rule == PaperRule {
			step *= BitRate(d.hyper)
		}
		d.target += step
	default:
		d.target += d.p.AIRate
	}
	d.target = min(d.target, d.p.MaxRate)
	if d.current = (d.target + d.current) / 2; d.target-d.current < 1 {
		d.current = d.target // halving alone may never get there
	}
}
