package udp

import (
	"net/netip"
	"testing"
	"time"
)

// A Wake before a wait ends it, also if somebody else has waited in between: of two
// that wait each gets the wake-up, whoever comes first.
func TestWakeIsForEachOfTwoThatWait(t *testing.T) {
	sw := NewSwitch()
	memory, err := sw.Link(netip.MustParseAddr("198.18.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]Link{"memory": memory}
	if l, err := Open(Config{Addr: netip.MustParseAddr("127.0.6.1")}); err == nil {
		defer l.Close()
		links["socket"] = l
	}
	for name, l := range links {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				l.Wait(0) // what was left behind
			}
			l.Wake()
			for k := range 2 {
				start := time.Now()
				if l.Wait(2 * time.Second); time.Since(start) > time.Second {
					t.Errorf("wait %d slept through the wake-up", k+1)
				}
			}
		})
	}
}
