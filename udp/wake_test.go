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
	socket, missing := Open(Config{Addr: netip.MustParseAddr("127.0.6.1")})
	if missing == nil {
		defer socket.Close()
	}
	links["socket"] = socket
	for name, l := range links {
		t.Run(name, func(t *testing.T) {
			if l == nil {
				t.Skipf("needs UDP port 4791 on loopback: %v", missing)
			}
			for _, order := range [][]Waiter{{ForLoop, ForCaller}, {ForCaller, ForLoop}} {
				for range 2 {
					l.Wait(ForLoop, 0) // what was left behind
					l.Wait(ForCaller, 0)
				}
				l.Wake()
				for range 2 { // one that comes again takes nothing from the other
					l.Wait(order[0], 50*time.Millisecond)
				}
				start := time.Now()
				if l.Wait(order[1], 2*time.Second); time.Since(start) > time.Second {
					t.Errorf("%v slept through the wake-up, which came before %v waited twice", order[1], order[0])
				}
			}
		})
	}
}
