package congestion_test

import (
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/congestion"
)

// trip acknowledges one window, each packet after rtt, and returns the time.
func trip(c congestion.Controller, now, rtt time.Duration) time.Duration {
	now += rtt
	for left := c.Window(); left > 0; left -= 8 {
		c.Acked(now, min(8, left), rtt)
	}
	return now
}

func wantWindow(t testing.TB, c congestion.Controller, want int) {
	t.Helper()
	if got := c.Window(); got != want {
		t.Fatalf("window %d, want %d", got, want)
	}
}

func TestDelayStartsByDoubling(t *testing.T) {
	d := congestion.NewDelay(congestion.DelayParams{Limit: 1000})
	wantWindow(t, d, 128)
	now := trip(d, 0, 20*us)
	wantWindow(t, d, 256)
	now = trip(d, now, 20*us)
	wantWindow(t, d, 512)
	for range 3 {
		now = trip(d, now, 20*us)
	}
	wantWindow(t, d, 1000)
}

// A loss takes away the queue and leaves what the path holds, but at most half
// goes, and once per round trip.
func TestDelayLossTakesTheQueueAway(t *testing.T) {
	for _, row := range []struct {
		rtt  time.Duration
		want int
	}{{100 * us, 256}, {125 * us, 204}, {160 * us, 160}, {200 * us, 128}, {1000 * us, 128}} {
		d := congestion.NewDelay(congestion.DelayParams{Limit: 256, Initial: 256})
		now := trip(d, trip(d, 0, 100*us), row.rtt)
		d.Lost(now)
		d.Lost(now + 50*us)
		if got := d.Window(); got != row.want {
			t.Errorf("round trip of %v: window %d, want %d", row.rtt, got, row.want)
		}
	}
}

// Losses that no answer separates, and losses in most rounds, halve the window
// although nothing queues.
func TestDelayLastingLossHalves(t *testing.T) {
	d := congestion.NewDelay(congestion.DelayParams{Limit: 256, Initial: 256})
	now := trip(d, 0, 100*us)
	d.Lost(now)
	wantWindow(t, d, 256)
	for range 10 {
		now += time.Second
		d.Lost(now)
	}
	wantWindow(t, d, 8)

	d = congestion.NewDelay(congestion.DelayParams{Limit: 256, Initial: 256})
	now = trip(d, 0, 100*us)
	for k := range 100 { // every second round
		if now = trip(d, now, 100*us); k%2 == 0 {
			d.Lost(now)
		}
	}
	wantWindow(t, d, 256)
	for range 40 { // every round
		now = trip(d, now, 100*us)
		d.Lost(now)
	}
	if w := d.Window(); w > 32 {
		t.Errorf("window %d after losses in 40 rounds", w)
	}
}

// The first CNP halves the window; lasting ones with free round trips between
// them cost less and less.
func TestDelayCNPCutsByItsShare(t *testing.T) {
	d := congestion.NewDelay(congestion.DelayParams{Limit: 256, Initial: 200})
	d.Notified(0)
	wantWindow(t, d, 100)
	now := time.Duration(0)
	for range 32 {
		now = trip(d, now, 50*us)
	}
	before := d.Window()
	d.Notified(now)
	if cut := before - d.Window(); cut < 1 || cut > before/10 {
		t.Fatalf("a CNP after 32 round trips took %d of %d", cut, before)
	}
	for range 500 { // one in each round trip: α goes to 1, and so to the bottom
		now = trip(d, now, 50*us)
		d.Notified(now)
	}
	if d.Window() > 4 || d.Window() < 2 {
		t.Fatalf("window %d under lasting congestion", d.Window())
	}
}

// Noise of a user-space peer is no congestion: round trips of tens of µs with
// every second one of some ms leave the window as it is.
func TestDelayIgnoresSchedulingNoise(t *testing.T) {
	d := congestion.NewDelay(congestion.DelayParams{})
	now, x := time.Duration(0), uint32(1)
	for range 100_000 {
		x = x*1664525 + 1013904223
		rtt := 20*us + time.Duration(x>>8)%(30*us)
		if x>>30 >= 2 {
			rtt += time.Duration(x>>8) % (8 * time.Millisecond)
		}
		now += 10 * us
		d.Acked(now, 16, rtt)
	}
	wantWindow(t, d, congestion.MaxWindow)
	for range 20 { // nor is a peer that is not scheduled for 30 ms now and then
		for range 200 {
			now = trip(d, now, 50*us)
		}
		d.Acked(now+30*time.Millisecond, 128, 30*time.Millisecond)
		now += 30 * time.Millisecond
		d.Acked(now, 128, 30*time.Millisecond)
	}
	wantWindow(t, d, congestion.MaxWindow)
}

// A standing queue takes the window down to what the path carries in the target
// time, not below 64 packets; when it is gone the window comes back.
func TestDelayStandingQueueShrinksTheWindow(t *testing.T) {
	d := congestion.NewDelay(congestion.DelayParams{Limit: 1024})
	now := time.Duration(0)
	for range 10 {
		now = trip(d, now, 100*us)
	}
	wantWindow(t, d, 1024)
	perPacket := 10 * time.Millisecond / 1024 // of a bottleneck that this window fills for 10 ms
	for range 30 {
		now = trip(d, now, 100*us+time.Duration(d.Window())*perPacket)
	}
	if got := d.Window(); got < 64 || got > 600 {
		t.Fatalf("window %d with a standing queue", got)
	}
	for range 60 {
		now = trip(d, now, 100*us)
	}
	wantWindow(t, d, 1024)
}

// The least round trip time is forgotten after some time: a path may change.
func TestDelayForgetsAnOldBase(t *testing.T) {
	d := congestion.NewDelay(congestion.DelayParams{Target: us})
	now := time.Duration(0)
	for range 10 {
		now = trip(d, now, 10*us)
	}
	for range 40 { // a longer path
		now = trip(d, now+time.Second, 1*time.Millisecond)
	}
	for range 20 {
		now = trip(d, now, 1*time.Millisecond)
	}
	wantWindow(t, d, congestion.MaxWindow)
}

func TestByNameKnowsItsNames(t *testing.T) {
	names, what := congestion.Names()
	for i, name := range names {
		f, err := congestion.ByName(name, congestion.Options{Buffer: 200_000, LineRate: line})
		if err != nil || what[i] == "" {
			t.Fatalf("%s: %q, %v", name, what[i], err)
		}
		c := f(1024)
		if c.Window() > 200_000/3072 {
			t.Errorf("%s: window %d does not fit the buffer", name, c.Window())
		}
		if paced := strings.HasPrefix(name, "dcqcn"); (c.Rate(0) != 0) != paced {
			t.Errorf("%s: rate %v", name, c.Rate(0))
		}
		if c.ECN() != (name != "none") {
			t.Errorf("%s: ECN %v", name, c.ECN())
		}
	}
	f, err := congestion.ByName("", congestion.Options{})
	if _, ok := f(1024).(*congestion.Delay); !ok || err != nil {
		t.Errorf("the default is %T, %v", f(1024), err)
	}
	if _, err := congestion.ByName("cubic", congestion.Options{}); err == nil || !strings.Contains(err.Error(), "dcqcn-paper") {
		t.Errorf("unknown name: %v", err)
	}
}

func TestBatchFollowsTheRate(t *testing.T) {
	for _, row := range []struct {
		rate         congestion.BitRate
		packet, want int
	}{
		{40 * congestion.Gbps, 1068, 64 << 10}, {10 * congestion.Gbps, 4140, 62500}, {congestion.Gbps, 1068, 6250},
		{100 * congestion.Mbps, 1068, 1068}, {congestion.Mbps, 4140, 4140},
	} {
		if got := row.rate.Batch(row.packet); got != row.want {
			t.Errorf("%v, packets of %d: %d, want %d", row.rate, row.packet, got, row.want)
		}
	}
}

func TestBitRateReadsWhatItWrites(t *testing.T) {
	for s, want := range map[string]congestion.BitRate{
		"25G": 25e9, "2.5Gb/s": 2.5e9, "400M": 400e6, "40Mbit/s": 40e6, "10 Gbps": 10e9, "1000000": 1e6, "64k": 64e3,
	} {
		if got, err := congestion.ParseBitRate(s); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
		if got, err := congestion.ParseBitRate(want.String()); err != nil || got != want {
			t.Errorf("%v does not come back: %v, %v", want, got, err)
		}
	}
	for _, s := range []string{"", "G", "-1G", "0", "1e30", "NaN", "10T"} {
		if got, err := congestion.ParseBitRate(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestNotificationPointDefaults(t *testing.T) {
	var n congestion.NotificationPoint
	if n.Gap() != 50*us || n.TrafficClass() != 0xC2 {
		t.Errorf("%v, %#x", n.Gap(), n.TrafficClass())
	}
	n = congestion.NotificationPoint{MinTimeBetweenCNPs: -1, CNPDSCP: 26}
	if n.Gap() != 0 || n.TrafficClass() != 26<<2|2 {
		t.Errorf("%v, %#x", n.Gap(), n.TrafficClass())
	}
	if congestion.Mlx5NP.Gap() != 4*us {
		t.Error(congestion.Mlx5NP.Gap())
	}
}
