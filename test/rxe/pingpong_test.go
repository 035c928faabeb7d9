package rxe_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pingpongPort is the TCP port of the exchange before the test, by default.
const pingpongPort = 18515

// pingpongCase is one run of ibv_rc_pingpong in the guest and roce pingpong rc here.
type pingpongCase struct {
	roceServes bool
	family     family
	mtu, size  int
	iters      int
}

func TestPingpongRC(t *testing.T) {
	l := requireLab(t)
	for _, loss := range []int{0, 3} {
		t.Run(fmt.Sprintf("loss=%d", loss), func(t *testing.T) {
			l.lose(t, loss)
			for _, c := range pingpongCases(loss > 0) {
				t.Run(c.name(), func(t *testing.T) { c.run(t, l) })
			}
		})
	}
}

// pingpongCases lists the cases for a network with or without loss. They differ in
// how many messages can be sent in the same time.
func pingpongCases(lossy bool) (cases []pingpongCase) {
	for _, roceServes := range []bool{false, true} {
		for _, f := range families {
			for _, mtu := range []int{1024, 4096} {
				for _, size := range []int{1, 4096, 1_000_000} {
					iters := 1000
					switch {
					case *full:
					case lossy && size > 4096:
						iters = 5
					case lossy:
						iters = 200
					case size > 4096:
						iters = 20
					}
					cases = append(cases, pingpongCase{roceServes, f, mtu, size, iters})
				}
			}
		}
	}
	return cases
}

func (c pingpongCase) name() string {
	role := "roce=client"
	if c.roceServes {
		role = "roce=server"
	}
	return fmt.Sprintf("%s/%s/m=%d/s=%d", role, c.family.name, c.mtu, c.size)
}

// limit is how long the case may take: many times what it does take.
func (c pingpongCase) limit() time.Duration {
	perMessage := 50 * time.Millisecond
	if c.size > 4096 {
		perMessage = 4 * time.Second
	}
	return time.Minute + time.Duration(c.iters)*perMessage
}

func (c pingpongCase) run(t *testing.T, l *lab) {
	r := l.record(t)
	r.captureHeaders(t)
	ctx, cancel := context.WithTimeout(context.Background(), c.limit())
	defer cancel()

	options := fmt.Sprintf("-c -m %d -s %d -n %d", c.mtu, c.size, c.iters)
	rxeLine := fmt.Sprintf("exec ibv_rc_pingpong -d rxe0 -g %d %s", c.family.gidIndex, options)
	roceLine := fmt.Sprintf("exec %s pingpong rc -d %s %s", l.roce, c.family.host, options)
	// The tool listens on IPv4 only, so that is what the exchange goes over.
	if c.roceServes {
		rxeLine += " " + hostIPv4
	} else {
		roceLine += " " + guestIPv4
	}
	startRoce := func() *program { return r.start(t, "roce", l.script("host", "-n", l.guest, roceLine)) }
	startRXE := func() *program { return r.start(t, "ibv_rc_pingpong", l.inGuest(c.limit(), rxeLine)) }

	var roce, rxe *program
	if c.roceServes {
		roce = startRoce()
		waitHostListens(t, ctx, roce)
		rxe = startRXE()
	} else {
		rxe = startRXE()
		run(t, l.inGuest(startLimit, fmt.Sprintf("until ss -Hltn 'sport = :%d' | grep -q .; do sleep 0.05; done", pingpongPort)))
		roce = startRoce()
	}
	for _, p := range []*program{roce, rxe} {
		out, status := p.wait(t, ctx)
		if err := c.check(out, status); err != nil {
			t.Errorf("%s: %v\n%s", p.name, err, out)
		}
	}
}

var pingpongReport = regexp.MustCompile(`(?m)^(\d+) bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n(\d+) iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter$`)

// check tests what one of the two programs printed, which is the same for both.
func (c pingpongCase) check(out string, status int) error {
	if status != 0 {
		return fmt.Errorf("exit status %d", status)
	}
	if strings.Contains(strings.ToLower(out), "invalid data") {
		return fmt.Errorf("wrong bytes arrived")
	}
	report := pingpongReport.FindStringSubmatch(out)
	if report == nil {
		return fmt.Errorf("no report")
	}
	if want := strconv.Itoa(2 * c.size * c.iters); report[1] != want {
		return fmt.Errorf("%s bytes reported, not %s", report[1], want)
	}
	if want := strconv.Itoa(c.iters); report[2] != want {
		return fmt.Errorf("%s iterations reported, not %s", report[2], want)
	}
	return nil
}

// waitHostListens waits until the program listens, without a connection to it.
func waitHostListens(t *testing.T, ctx context.Context, p *program) {
	t.Helper()
	listening := regexp.MustCompile(fmt.Sprintf(`:%04X [0-9A-F]+:0000 0A `, pingpongPort))
	for {
		for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
			if table, err := os.ReadFile(file); err == nil && listening.Match(table) {
				return
			}
		}
		select {
		case <-p.ended:
			t.Fatalf("%s ended early:\n%s", p.name, p.output(t))
		case <-ctx.Done():
			t.Fatalf("%s does not listen", p.name)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
