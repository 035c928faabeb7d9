package rxe_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/udp"
)

// hostCommands is this side of the network that loss does not touch.
const hostCommands = "198.18.1.1"

// perfCase is one run of an ib_* tool in the guest and roce perf here, with the same
// options. The guest has one CPU, so most cases sleep for completions (-e).
type perfCase struct {
	test    string // such as write_bw
	options string
	own     string // options of roce alone
	family  family
	rows    int    // of the table; 0 means one
	iters   string // in the table
	short   bool   // with -short too
}

// perfCases has -a for one of each verb; atomics have one size.
func perfCases() []perfCase {
	v4, v6 := families[0], families[1]
	var cases []perfCase
	for _, test := range []string{"send_bw", "write_bw", "read_bw", "atomic_bw", "send_lat", "write_lat", "read_lat", "atomic_lat"} {
		events := " -e"
		if test == "write_lat" || test == "write_bw" {
			events = "" // the tools have none there
		}
		cases = append(cases, perfCase{test: test, options: "-n 50" + events, family: v4, iters: "50", short: true})
	}
	return append(cases,
		perfCase{test: "write_bw", options: "-a -n 5", family: v4, rows: 23, iters: "5"},
		perfCase{test: "send_lat", options: "-a -n 5 -e", family: v4, rows: 23, iters: "5"},
		perfCase{test: "read_bw", options: "-a -n 5 -e", family: v4, rows: 23, iters: "5"},
		perfCase{test: "send_bw", options: "-c UC -n 50 -s 4096 -e", family: v4, iters: "50", short: true},
		perfCase{test: "send_bw", options: "-c UD -n 50 -e", family: v4, iters: "50", short: true},
		perfCase{test: "send_lat", options: "-c UD -n 50 -e", family: v4, iters: "50"},
		perfCase{test: "write_bw", options: "-b -n 50", family: v4, iters: "50", short: true},
		perfCase{test: "send_bw", options: "-b -n 100 -e", family: v4, iters: "100"},
		perfCase{test: "atomic_bw", options: "-b -n 100 -e", family: v4, iters: "100"},
		perfCase{test: "atomic_bw", options: "-A CMP_AND_SWAP -n 100 -e", family: v4, iters: "100"},
		perfCase{test: "write_bw", options: "-q 4 -n 50", family: v4, iters: "200"},
		perfCase{test: "write_bw", options: "-D 2", family: v4},
		perfCase{test: "send_lat", options: "-D 2", family: v4}, /* -D and -e exclude each other there */
		perfCase{test: "write_bw", options: "-n 50", family: v6, iters: "50", short: true},
		perfCase{test: "send_lat", options: "-n 100 -e", family: v6, iters: "100"},
		perfCase{test: "write_lat", options: "-n 50", own: "--ring", family: v4, iters: "50", short: true},
		perfCase{test: "read_bw", options: "-n 50 -e", own: "--ring", family: v4, iters: "50"},
		perfCase{test: "send_bw", options: "-b -n 100 -e", own: "--ring", family: v6, iters: "100", short: true},
	)
}

func (c perfCase) name(roceServes bool) string {
	role := "roce=client"
	if roceServes {
		role = "roce=server"
	}
	return fmt.Sprintf("%s/%s/%s/%s", c.test, strings.ReplaceAll(strings.TrimSpace(c.options+" "+c.own), " ", "_"), c.family.name, role)
}

func TestPerf(t *testing.T) {
	l := requireLab(t)
	for _, c := range perfCases() {
		if testing.Short() && !c.short {
			continue
		}
		for _, roceServes := range []bool{false, true} {
			t.Run(c.name(roceServes), func(t *testing.T) { c.run(t, l, roceServes) })
		}
	}
}

// perfLimit is many times what a case takes: a tool fills its memory byte by byte
// before it begins, and -a has 16 MiB of it.
const perfLimit = 3 * time.Minute

func (c perfCase) run(t *testing.T, l *lab, roceServes bool) {
	r := l.record(t)
	r.captureHeaders(t)
	ctx, cancel := context.WithTimeout(context.Background(), perfLimit)
	defer cancel()

	// The guest may stand still for longer than the default ACK timeout of 67 ms.
	options := c.options + " -u 17"
	rxeLine := fmt.Sprintf("exec ib_%s -d rxe0 -x %d -F %s", c.test, c.family.gidIndex, options)
	roceLine := fmt.Sprintf("exec %s perf %s -d %s --wait 2m %s %s", l.roce, c.test, c.family.host, options, c.own)
	// The tools' exchange is over IPv4.
	if roceServes {
		rxeLine += " " + hostCommands
	} else {
		roceLine += " " + guestCommands
	}
	startRoce := func() *program { return r.start(t, "roce", l.script("host", "-n", l.guest, roceLine)) }
	startRXE := func() *program { return r.start(t, "ib_"+c.test, l.inGuest(perfLimit, rxeLine)) }

	var roce, rxe *program
	if roceServes {
		roce = startRoce()
		waitHostListens(t, ctx, roce)
		rxe = startRXE()
	} else {
		rxe = startRXE()
		waitGuestListens(t, ctx, l, rxe)
		roce = startRoce()
	}
	for _, p := range []*program{roce, rxe} {
		out, status := p.wait(t, ctx)
		if strings.Contains(out, udp.ErrRing.Error()) {
			t.Skip(udp.ErrRing)
		}
		if err := c.check(out, status, (p == roce) == roceServes); err != nil {
			t.Errorf("%s: %v\n%s", p.name, err, out)
		}
	}
}

// perfRow is a row of the tables: bytes, iterations and at least two figures.
var perfRow = regexp.MustCompile(`^ (\d+)\s+(\d+)((?:\s+(?:\d+\.\d+|-?nan|inf))+)\s*$`)

// check tests what one of the two programs printed: the same table in both.
func (c perfCase) check(out string, status int, server bool) error {
	if status != 0 {
		return fmt.Errorf("exit status %d", status)
	}
	rows := 0
	_, table, _ := strings.Cut(out, "#iterations")
	table, _, _ = strings.Cut(table, "\n-----")
	for line := range strings.Lines(table) {
		m := perfRow.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		rows++
		if c.iters != "" && m[2] != c.iters {
			return fmt.Errorf("%s iterations of %s bytes, not %s", m[2], m[1], c.iters)
		}
		figures := strings.Fields(m[3])
		if average, err := strconv.ParseFloat(figures[c.averageColumn()], 64); err != nil || average < 0 {
			return fmt.Errorf("average %q", figures[c.averageColumn()])
		}
	}
	if want := c.wantRows(server); rows != want {
		return fmt.Errorf("%d rows, not %d", rows, want)
	}
	return nil
}

// averageColumn is where the average is among the figures of a row.
func (c perfCase) averageColumn() int {
	switch {
	case strings.Contains(c.options, "-D") && strings.HasSuffix(c.test, "_lat"):
		return 0
	case strings.HasSuffix(c.test, "_lat"):
		return 3
	}
	return 1
}

// wantRows is how many rows one of the sides prints: the server of a READ or atomic
// latency test prints none, and the one that is written to or read from has the last size only.
func (c perfCase) wantRows(server bool) int {
	switch {
	case server && (c.test == "read_lat" || c.test == "atomic_lat"):
		return 0
	case server && c.rows > 1 && (c.test == "write_bw" || c.test == "read_bw"):
		return 1
	}
	return max(1, c.rows)
}

// waitGuestListens waits until the program in the guest listens.
func waitGuestListens(t *testing.T, ctx context.Context, l *lab, p *program) {
	t.Helper()
	for l.inGuest(startLimit, fmt.Sprintf("ss -Hltn 'sport = :%d' | grep -q .", pingpongPort)).Run() != nil {
		select {
		case <-p.ended:
			t.Fatalf("%s ended early:\n%s", p.name, p.output(t))
		case <-ctx.Done():
			t.Fatalf("%s does not listen", p.name)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
