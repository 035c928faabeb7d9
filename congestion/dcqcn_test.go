package congestion_test

import (
	"math"
	"testing"
	"time"

	"github.com/goroce/goroce/congestion"
)

const (
	us   = time.Microsecond
	line = 40 * congestion.Gbps
)

func newDCQCN(t testing.TB, p congestion.DCQCNParams) *congestion.DCQCN {
	t.Helper()
	f, err := p.Factory(congestion.Options{LineRate: line})
	if err != nil {
		t.Fatal(err)
	}
	return f(1024).(*congestion.DCQCN)
}

func wantRate(t testing.TB, c congestion.Controller, at time.Duration, want congestion.BitRate) {
	t.Helper()
	if got := c.Rate(at); got != want {
		t.Fatalf("rate at %v is %v (%g), want %v", at, got, float64(got), want)
	}
}

// One CNP halves the rate, and each period of the timer halves what is missing.
// Both sets give the same numbers, since the target cannot pass the line rate.
func TestDCQCNSingleCNPRecoversByHalves(t *testing.T) {
	for name, p := range map[string]congestion.DCQCNParams{"paper": congestion.PaperDCQCN(), "mlx5": congestion.Mlx5DCQCN()} {
		t.Run(name, func(t *testing.T) {
			d := newDCQCN(t, p)
			start := 123 * us
			wantRate(t, d, start, 40e9)
			d.Notified(start)
			for k, want := range []congestion.BitRate{20e9, 30e9, 35e9, 37.5e9, 38.75e9, 39.375e9} {
				at := start + time.Duration(k)*p.TimeReset
				wantRate(t, d, at, want)
				wantRate(t, d, at+p.TimeReset-1, want) // constant until the next
			}
			wantRate(t, d, start+time.Hour, 40e9)
		})
	}
}

// A controller that nobody asks for a while works out the same.
func TestDCQCNLazyIsExact(t *testing.T) {
	for name, p := range map[string]congestion.DCQCNParams{"paper": congestion.PaperDCQCN(), "mlx5": congestion.Mlx5DCQCN()} {
		often, seldom := newDCQCN(t, p), newDCQCN(t, p)
		now := time.Duration(0)
		for k := range 400 {
			now += time.Duration(k*k%97) * us
			often.Notified(now)
			seldom.Notified(now)
			gap := time.Duration(k*k*31%1913) * us
			for range 1 + k%50 {
				often.Rate(now + gap/time.Duration(1+k%50))
			}
			now += gap
			a, b := often.Rate(now), seldom.Rate(now)
			if math.Abs(float64(a-b)) > 1e-9*float64(a) || math.Abs(often.Alpha()-seldom.Alpha()) > 1e-12 {
				t.Fatalf("%s: after %d CNPs %v and α %v when asked often, %v and %v otherwise", name, k+1, a, often.Alpha(), b, seldom.Alpha())
			}
		}
	}
}

// With a CNP every 50 µs α stays 1 and every one halves the rate, down to the
// least: 40 Gb/s to 10 Mb/s in 12 CNPs.
func TestDCQCNSteadyCNPsHalveToTheMinimum(t *testing.T) {
	d := newDCQCN(t, congestion.PaperDCQCN())
	want := line
	for k := 1; k <= 12; k++ {
		at := time.Duration(k) * 50 * us
		d.Notified(at)
		want = max(want/2, 10e6)
		wantRate(t, d, at, want)
		if d.Alpha() != 1 {
			t.Fatalf("α is %v after %d CNPs", d.Alpha(), k)
		}
	}
	wantRate(t, d, 600*us, 10e6)
	if k := 11; line/congestion.BitRate(int(1)<<k) <= 10e6 {
		t.Fatal("11 CNPs are enough: the check says nothing")
	}
}

// mlx5: a CNP in every period of α keeps it at 1, and the gate lets one cut pass
// in 4 µs: 40 Gb/s to 1 Mb/s takes 16 cuts.
func TestDCQCNFirmwareSteadyCNPs(t *testing.T) {
	d := newDCQCN(t, congestion.Mlx5DCQCN())
	want := line
	d.Notified(0)
	d.Notified(0) // the first one only starts α's clock
	for at := time.Duration(0); at <= 60*us; at += us {
		d.Notified(at + us/2)
		if at%(4*us) == 0 {
			want = max(want/2, 1e6)
		}
		wantRate(t, d, at+us/2, want)
	}
	wantRate(t, d, 61*us, 1e6)
}

// Without CNPs α halves in 177 periods of 55 µs (9.74 ms) with the published
// parameters, in 141.6 µs with those of mlx5.
func TestDCQCNAlphaHalfLife(t *testing.T) {
	for _, row := range []struct {
		name string
		p    congestion.DCQCNParams
		half time.Duration // the last period's end before α is below a half
		next time.Duration
	}{
		{"paper", congestion.PaperDCQCN(), 177 * 55 * us, 178 * 55 * us},
		{"mlx5", congestion.Mlx5DCQCN(), 141 * us, 142 * us},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDCQCN(t, row.p)
			d.Notified(0)
			keep := float64(row.p.DCETCPG) / 1024
			for _, at := range []time.Duration{0, row.p.DCETCPRTT - 1, row.p.DCETCPRTT, 10 * row.p.DCETCPRTT, row.half, row.next} {
				d.Rate(at)
				if want := math.Pow(keep, float64(at/row.p.DCETCPRTT)); math.Abs(d.Alpha()-want) > 1e-12 {
					t.Fatalf("α is %v at %v, want %v", d.Alpha(), at, want)
				}
				if below := d.Alpha() < .5; below != (at == row.next) {
					t.Fatalf("α is %v at %v", d.Alpha(), at)
				}
			}
		})
	}
	// The interpolated half-lives.
	if h := math.Log(.5) / math.Log(1020./1024) * 55e-3; math.Abs(h-9.74) > .01 {
		t.Errorf("paper: %v ms", h)
	}
	if h := math.Log(.5) / math.Log(1019./1024); math.Abs(h-141.6) > .05 {
		t.Errorf("mlx5: %v µs", h)
	}
}

// α after a cut weighs the next one: half of α is what it takes.
func TestDCQCNCutTakesHalfOfAlpha(t *testing.T) {
	d := newDCQCN(t, congestion.PaperDCQCN())
	d.Notified(0)
	at := 177 * 55 * us
	rate := d.Rate(at)
	alpha := d.Alpha()
	d.Notified(at)
	wantRate(t, d, at, rate*congestion.BitRate(1-alpha/2))
	if d.Target() != rate {
		t.Errorf("target %v, want %v", d.Target(), rate)
	}
	if want := alpha*1020/1024 + 4./1024; d.Alpha() != want {
		t.Errorf("α %v, want %v", d.Alpha(), want)
	}
}

// A CNP inside the monitor period takes effect at its end.
func TestDCQCNGateDelaysTheCut(t *testing.T) {
	p := congestion.Mlx5DCQCN()
	d := newDCQCN(t, p)
	d.Notified(0)
	wantRate(t, d, 0, 20e9)
	d.Notified(1 * us)
	d.Notified(2 * us)
	wantRate(t, d, 4*us-1, 20e9)
	got := d.Rate(4 * us)
	if got >= 11e9 || got < 10e9 { // α is a little below 1
		t.Fatalf("rate %v at the end of the period", got)
	}
	wantRate(t, d, 100*us, got) // once
}

// Clamping: after a cut that follows a raise by time the target is the rate
// before the cut, otherwise it stays.
func TestDCQCNClampAfterTimeIncrease(t *testing.T) {
	d := newDCQCN(t, congestion.Mlx5DCQCN())
	d.Notified(0)
	d.Notified(10 * us)
	if d.Rate(10 * us); d.Target() != line {
		t.Fatalf("target %v after cuts without a raise", d.Target())
	}
	before := d.Rate(310 * us)
	d.Notified(320 * us)
	if d.Target() != before {
		t.Fatalf("target %v, want %v", d.Target(), before)
	}
}

func TestDCQCNStepsAboveTheThreshold(t *testing.T) {
	halved := func(t *testing.T, p congestion.DCQCNParams) *congestion.DCQCN {
		d := newDCQCN(t, p)
		for at := time.Duration(0); at < 5*50*us; at += 50 * us {
			d.Notified(at) // to 1.25 Gb/s, target 2.5 if it is clamped
		}
		return d
	}
	t.Run("paper", func(t *testing.T) {
		d := halved(t, congestion.PaperDCQCN())
		for k := 1; k <= 8; k++ {
			d.Rate(200*us + time.Duration(k)*55*us)
			if want := 2.5e9 + congestion.BitRate(max(0, k-4))*40e6; d.Target() != want {
				t.Fatalf("raise %d: target %v, want %v", k, d.Target(), want)
			}
		}
	})
	t.Run("paper with hyper increase", func(t *testing.T) {
		p := congestion.PaperDCQCN()
		p.HAIRate, p.ByteReset = 100*congestion.Mbps, 0
		d := halved(t, p)
		want := congestion.BitRate(2.5e9)
		for k := 1; k <= 9; k++ {
			switch {
			case k == 5:
				want += 40e6
			case k > 5:
				want += congestion.BitRate(k-5) * 100e6
			}
			if d.Rate(200*us + time.Duration(k)*55*us); d.Target() != want {
				t.Fatalf("raise %d: target %v, want %v", k, d.Target(), want)
			}
		}
	})
	t.Run("mlx5", func(t *testing.T) {
		p := congestion.Mlx5DCQCN()
		p.ClampTgtRate = true
		d := halved(t, p)
		want := d.Target()
		for k := 1; k <= 6; k++ {
			switch {
			case k == 2:
				want += 5e6
			case k > 2:
				want += 50e6
			}
			if d.Rate(200*us + time.Duration(k)*300*us); d.Target() != want {
				t.Fatalf("raise %d: target %v, want %v", k, d.Target(), want)
			}
		}
	})
}

// Bytes raise the rate as time does, and hyper increase waits for both.
func TestDCQCNByteCounter(t *testing.T) {
	p := congestion.PaperDCQCN()
	p.ByteReset, p.TimeReset, p.HAIRate = 100_000, time.Second, 100*congestion.Mbps
	d := newDCQCN(t, p)
	d.Sent(0, 1<<20) // before the first CNP nothing counts
	d.Notified(0)
	d.Notified(50 * us)
	if d.Sent(60*us, 99_999); d.Rate(60*us) != 10e9 {
		t.Fatalf("rate %v one byte before", d.Rate(60*us))
	}
	d.Sent(60*us, 1)
	wantRate(t, d, 60*us, 15e9)
	d.Sent(60*us, 200_000)
	wantRate(t, d, 60*us, 18.75e9)
	d.Sent(60*us, 700_000) // ten in all: six above the threshold, none by time
	if want := congestion.BitRate(20e9 + 6*40e6); d.Target() != want {
		t.Fatalf("target %v, want %v", d.Target(), want)
	}
}

func TestDCQCNFirstCNPRate(t *testing.T) {
	p := congestion.Mlx5DCQCN()
	p.RateToSetOnFirstCNP = 80
	d := newDCQCN(t, p)
	d.Notified(0)
	wantRate(t, d, 0, 32e9)
	d.Notified(4 * us)
	if got := d.Rate(4 * us); got >= 17e9 || got < 16e9 {
		t.Fatalf("rate %v after the second", got)
	}
}

func TestDCQCNLeastLeftByACut(t *testing.T) {
	p := congestion.Mlx5DCQCN()
	p.MinDecFac = 95
	d := newDCQCN(t, p)
	d.Notified(0)
	wantRate(t, d, 0, 38e9)
	p.GD, p.MinDecFac = 10, 0 // the whole rate
	d = newDCQCN(t, p)
	d.Notified(0)
	wantRate(t, d, 0, p.MinRate)
}

func TestDCQCNLossCountsIfItMay(t *testing.T) {
	p := congestion.PaperDCQCN()
	d := newDCQCN(t, p)
	d.Lost(0)
	wantRate(t, d, 0, 20e9)
	p.CutOnLoss = false
	d = newDCQCN(t, p)
	d.Lost(0)
	wantRate(t, d, 0, 40e9)
}

// The rate stays between its bounds and comes back, whatever happens.
func TestDCQCNStaysInBounds(t *testing.T) {
	for _, p := range []congestion.DCQCNParams{congestion.PaperDCQCN(), congestion.Mlx5DCQCN()} {
		d := newDCQCN(t, p)
		now, x := time.Duration(0), uint32(1)
		for range 200_000 {
			x = x*1664525 + 1013904223
			now += time.Duration(x>>16) % (200 * us)
			switch x >> 8 & 3 {
			case 0:
				d.Notified(now)
			case 1:
				d.Lost(now)
			default:
				d.Sent(now, int(x>>12))
			}
			if r, a := d.Rate(now), d.Alpha(); r < p.MinRate || r > line || d.Target() > line || a < 0 || a > 1 {
				t.Fatalf("rate %v, target %v, α %v", r, d.Target(), a)
			}
		}
		wantRate(t, d, now+10*time.Minute, line)
	}
}

func TestDCQCNRefusesParameters(t *testing.T) {
	for name, change := range map[string]func(*congestion.DCQCNParams){
		"g": func(p *congestion.DCQCNParams) { p.DCETCPG = 1024 }, "rtt": func(p *congestion.DCQCNParams) { p.DCETCPRTT = 131072 * us },
		"gd": func(p *congestion.DCQCNParams) { p.GD = 9 }, "dec": func(p *congestion.DCQCNParams) { p.MinDecFac = 101 },
		"first": func(p *congestion.DCQCNParams) { p.RateToSetOnFirstCNP = 86 }, "min": func(p *congestion.DCQCNParams) { p.MinRate = 0 },
		"raise": func(p *congestion.DCQCNParams) { p.TimeReset, p.ByteReset = 0, 0 }, "ai": func(p *congestion.DCQCNParams) { p.AIRate = 0 },
		"alpha": func(p *congestion.DCQCNParams) { p.InitialAlphaValue = -1 }, "threshold": func(p *congestion.DCQCNParams) { p.Threshold = 0 },
		"max": func(p *congestion.DCQCNParams) { p.MaxRate = p.MinRate - 1 },
	} {
		p := congestion.Mlx5DCQCN()
		if change(&p); p.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := p.Factory(congestion.Options{}); err == nil {
			t.Errorf("%s: a factory was made", name)
		}
	}
}

func TestControllersAllocateNothing(t *testing.T) {
	names, _ := congestion.Names()
	for _, name := range names {
		f, err := congestion.ByName(name, congestion.Options{LineRate: line})
		if err != nil {
			t.Fatal(err)
		}
		c, now := f(1024), time.Duration(0)
		if n := testing.AllocsPerRun(1000, func() {
			now += 20 * us
			c.Notified(now)
			c.Lost(now)
			c.Sent(now, 1000)
			c.Rate(now)
			c.Acked(now, 3, 10*us)
			c.Window()
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
