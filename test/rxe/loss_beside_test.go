package rxe_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What every run of TestLossBesideRXE has in common, whoever is the client. 67 ms are the
// tools' own ACK timeout. The message takes 64 packets, a run 4096.
const (
	besideMessage  = 64 << 10
	besideMessages = 64
	besidePackets  = besideMessage * besideMessages / 1024
	besideLimit    = 90 * time.Second
)

// besideTests are the tests and how often each case is run. Those of READ take less
// time, for they have one place less, and differ more.
var besideTests = []struct {
	name   string
	rounds int
}{{"write_bw", 3}, {"read_bw", 5}}

var besideOptions = fmt.Sprintf("-s %d -n %d -t 8 -Q 1 -m 1024 -u 14", besideMessage, besideMessages)

// besideAllowance is what goroce may have less than rxe. Single runs of one case
// differ by a factor of three here, so a tenth between medians says nothing: which packets
// are lost is a matter of chance, and guests and tests share the host's processors.
const besideAllowance = .9

// besideLosses are in percent, each way.
var besideLosses = []string{"0", "0.1", "1", "3"}

// TestLossBesideRXE puts goroce beside rxe: what either moves to or from the rxe of the
// guest under the same loss, by ib_write_bw and ib_read_bw or roce perf with the same
// options. The other rxe is in a second guest; goroce runs here, at the processor's speed,
// and for WRITE also in the second guest, as "emulated". That is not tested for rates: a
// program in user space pays more for emulation than a kernel does, without loss too. The
// loss is that of the first guest.
func TestLossBesideRXE(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: takes a quarter of an hour")
	}
	l := requireLab(t)
	b := &beside{first: l, second: l.bootSecond(t)}
	for _, c := range besideTests {
		t.Run(c.name, func(t *testing.T) { b.compare(t, c.name, c.rounds) })
	}
}

type beside struct{ first, second *lab }

// besidePlace is who is at the other end of the first guest's rxe.
type besidePlace int

const (
	rxeSecond besidePlace = iota
	goroceHere
	goroceSecond
)

var besidePlaces = []besidePlace{rxeSecond, goroceHere, goroceSecond}

func (p besidePlace) String() string { return [...]string{"rxe", "goroce", "goroce, emulated"}[p] }

// besideCase is one cell of the table: who deals with the first guest's rxe, as the
// requester or as the responder.
type besideCase struct {
	loss  string
	asks  bool
	place besidePlace
}

func (c besideCase) String() string {
	role := map[bool]string{true: "asks rxe", false: "is asked by rxe"}[c.asks]
	return fmt.Sprintf("%s %% loss, %v %s", c.loss, c.place, role)
}

// besideResult is what became of a run.
type besideResult struct {
	mbit float64 // of payload
	cost float64 // packets with data on the wire per packet that was needed
}

// compare measures all cases in turns and tests the medians: goroce has to move what rxe
// does under any loss, in either role.
func (b *beside) compare(t *testing.T, test string, rounds int) {
	results := map[besideCase][]besideResult{}
	for range rounds {
		b.measure(t, test, results, rxeSecond, goroceHere)
		if test != "write_bw" { // one is enough to tell what the place costs
			continue
		}
		run(t, b.second.inGuest(time.Minute, withoutRXE))
		b.measure(t, test, results, goroceSecond)
		run(t, b.second.inGuest(time.Minute, withRXE))
	}
	t.Log(besideTable(test, rounds, results))
	for _, loss := range besideLosses[1:] {
		for _, asks := range []bool{true, false} {
			rxe, c := besideMedian(results[besideCase{loss, asks, rxeSecond}]), besideCase{loss, asks, goroceHere}
			if own := besideMedian(results[c]); own.mbit < besideAllowance*rxe.mbit {
				t.Errorf("%s, %v: %.1f Mbit/s; rxe in its place: %.1f", test, c, own.mbit, rxe.mbit)
			}
		}
	}
}

func (b *beside) measure(t *testing.T, test string, results map[besideCase][]besideResult, places ...besidePlace) {
	for _, loss := range besideLosses {
		run(t, b.first.script("loss", "-n", b.first.guest, loss))
		for _, asks := range []bool{true, false} {
			for _, p := range places {
				c := besideCase{loss, asks, p}
				t.Run(notInFileName.ReplaceAllString(c.String(), "_"), func(t *testing.T) {
					if r, ok := b.result(t, test, c); ok {
						results[c] = append(results[c], r)
					}
				})
			}
		}
	}
	run(t, b.first.script("loss", "-n", b.first.guest, "0"))
}

// result runs a case. A run that does not end or fails counts as nothing moved if
// goroce takes part; between two rxe, one that does not end counts as if it had ended just
// now, and one that fails not at all: neither is to goroce's advantage.
func (b *beside) result(t *testing.T, test string, c besideCase) (r besideResult, ok bool) {
	record := b.first.record(t)
	before := b.first.rxeCounters(t)
	ctx, cancel := context.WithTimeout(context.Background(), besideLimit+startLimit)
	defer cancel()
	startFirst := func(rest string) *program {
		return record.start(t, "first", b.first.inGuest(besideLimit, "exec ib_"+test+" -F -d rxe0 -x 1 "+besideOptions+rest))
	}
	var client, server *program
	switch {
	case c.asks:
		server = startFirst("")
		waitGuestListens(t, ctx, b.first, server)
		client = b.startOther(t, record, test, c.place, " "+firstExchange)
	case c.place == goroceHere:
		server = b.startOther(t, record, test, c.place, "")
		waitHostListens(t, ctx, server)
		client = startFirst(" " + hostCommands)
	default:
		server = b.startOther(t, record, test, c.place, "")
		waitGuestListens(t, ctx, b.second, server)
		client = startFirst(" " + secondExchange)
	}
	out, status := client.wait(t, ctx)
	select { // for what the server counts
	case <-server.ended:
	case <-time.After(5 * time.Second):
	}
	counters := b.first.rxeCounters(t).since(before)
	wire := counters["sent_pkts"]
	if c.asks == (test == "write_bw") {
		wire = counters["rcvd_pkts"]
	}
	r.cost = float64(wire) / besidePackets
	maps.DeleteFunc(counters, func(_ string, n uint64) bool { return n == 0 })
	notes := fmt.Sprintf("the first guest's rxe: %v\n%s", counters, besideCounters(client.output(t)+server.output(t)))

	const timedOut = 124
	rate, found := besideRate(out)
	switch {
	case status == 0 && found:
		r.mbit = rate
		t.Logf("%.1f Mbit/s; %s", rate, notes)
		return r, true
	case status == 0:
		t.Fatalf("no result:\n%s", out)
	case status == timedOut && c.place == rxeSecond:
		r.mbit = 8 * besideMessage * besideMessages / besideLimit.Seconds() / 1e6
		fallthrough
	case status == timedOut:
		t.Logf("DID NOT END within %v; %s", besideLimit, notes)
		return r, true
	}
	t.Logf("FAILED, exit status %d; %s\n%s", status, notes, out)
	return r, c.place != rxeSecond
}

// besideCounter is a line of --verbose.
var besideCounter = regexp.MustCompile(`(?m)^ ((?:retransmitted|local_ack|early|packet_seq|spurious|duplicate|out_of|reordered|nak|drop)\w*) +(\d+)$`)

// besideCounters are goroce's counters that tell about loss.
func besideCounters(out string) string {
	var s strings.Builder
	for _, m := range besideCounter.FindAllStringSubmatch(out, -1) {
		fmt.Fprintf(&s, "%s:%s ", m[1], m[2])
	}
	return s.String()
}

// startOther starts the program at the other end of the first guest's rxe.
func (b *beside) startOther(t *testing.T, r *record, test string, p besidePlace, rest string) *program {
	t.Helper()
	switch p {
	case goroceHere:
		line := "exec timeout " + seconds(besideLimit) + " " + b.first.roce + " perf " + test + " -d " + hostIPv4 + " --verbose " + besideOptions
		return r.start(t, "other", b.first.script("host", "-n", b.first.guest, line+rest))
	case goroceSecond:
		return r.start(t, "other", b.second.inGuest(besideLimit, "exec "+secondRoce+" perf "+test+" -d "+secondIPv4+" --verbose "+besideOptions+rest))
	}
	line := "exec ib_" + test + " -F -d rxe0 -x " + b.second.gidIndex(t, "c612:0202") + " " + besideOptions
	return r.start(t, "other", b.second.inGuest(besideLimit, line+rest))
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }

// besideRate reads the average from the only row of a table, which is in MiB/s.
func besideRate(out string) (mbit float64, ok bool) {
	for line := range strings.Lines(out) {
		if m := perfRow.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			rate, err := strconv.ParseFloat(strings.Fields(m[3])[1], 64)
			return rate * (8 << 20) / 1e6, err == nil && rate > 0
		}
	}
	return 0, false
}

// besideMedian returns the medians of rate and cost; of two runs, the worse ones.
func besideMedian(results []besideResult) besideResult {
	if len(results) == 0 {
		return besideResult{}
	}
	var mbit, cost []float64
	for _, r := range results {
		mbit, cost = append(mbit, r.mbit), append(cost, r.cost)
	}
	slices.Sort(mbit)
	slices.Sort(cost)
	return besideResult{mbit[(len(mbit)-1)/2], cost[len(cost)/2]}
}

// besideTable is in the form of docs/loss.md.
func besideTable(test string, rounds int, results map[besideCase][]besideResult) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s %s: Mbit/s (times rxe's), packets on the wire per packet needed; medians of %d\n", test, besideOptions, rounds)
	s.WriteString("| loss, each way | asks rxe: rxe | goroce | goroce, emulated | is asked by rxe: rxe | goroce | goroce, emulated |\n|---|---|---|---|---|---|---|\n")
	for _, loss := range besideLosses {
		fmt.Fprintf(&s, "| %s %% ", loss)
		for _, asks := range []bool{true, false} {
			rxe := besideMedian(results[besideCase{loss, asks, rxeSecond}])
			fmt.Fprintf(&s, "| %.1f; %.2f ", rxe.mbit, rxe.cost)
			for _, p := range besidePlaces[1:] {
				c := besideCase{loss, asks, p}
				if len(results[c]) == 0 {
					s.WriteString("| not run ")
					continue
				}
				own := besideMedian(results[c])
				fmt.Fprintf(&s, "| %.1f (%.2f); %.2f ", own.mbit, own.mbit/rxe.mbit, own.cost)
			}
		}
		s.WriteString("|\n")
	}
	for _, loss := range besideLosses {
		for _, asks := range []bool{true, false} {
			for _, p := range besidePlaces {
				c := besideCase{loss, asks, p}
				fmt.Fprintf(&s, "%v:", c)
				for _, r := range results[c] {
					fmt.Fprintf(&s, " %.1f", r.mbit)
				}
				s.WriteString("\n")
			}
		}
	}
	return s.String()
}
