package perf

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/goroce/goroce/verbs"
)

// runBoth runs a test between two devices of this process.
func runBoth(t *testing.T, c Config) {
	t.Helper()
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	errs := make(chan error, 2)
	for _, side := range []struct {
		addr string
		host Host
	}{
		{"127.0.7.11", Host{Accept: func(_ context.Context, greet func(net.Conn) error) error { return greet(a) }}},
		{"127.0.7.12", Host{Dial: func(context.Context) (net.Conn, error) { return b, nil }}},
	} {
		dev, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(side.addr)})
		if err != nil {
			t.Skipf("needs UDP port 4791 on %s: %v", side.addr, err)
		}
		defer dev.Close()
		side.host.Open = func(net.Conn) (*verbs.Device, error) { return dev, nil }
		side.host.Out = io.Discard
		go func() { errs <- Run(t.Context(), c, side.host) }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// A run of ten times as many messages may not allocate more. Only the bandwidth tests
// tell: in a latency test the device's event loop goes to sleep with each message.
func TestMessagesAllocateNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	for v := Send; v <= Atomic; v++ {
		for _, events := range []bool{false, true} {
			name := verbNames[v]
			c := Config{Test: Test{Verb: v}, Events: events, RxDepth: 256}
			if c.Size = 64; v == Atomic {
				c.Size = 8
			}
			if events {
				name += " -e"
			}
			t.Run(name, func(t *testing.T) {
				count := func(iters int) float64 {
					var before, after runtime.MemStats
					c := c
					c.Iters = iters
					runtime.ReadMemStats(&before)
					runBoth(t, c)
					runtime.ReadMemStats(&after)
					return float64(after.Mallocs - before.Mallocs)
				}
				const few, many = 2000, 20000
				count(few) // queues grow, tables fill
				if per := (count(many) - count(few)) / (many - few); per > .2 {
					t.Errorf("%.2f allocations per message", per)
				}
			})
		}
	}
}
