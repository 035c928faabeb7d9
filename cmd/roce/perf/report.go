package perf

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goroce/goroce/qp"
)

// Row is the result of one message size.
type Row struct {
	Size       int    `json:"size"`
	Iterations uint64 `json:"iterations"`
	*Rate
	*Times
	CPU
	Lost uint64 `json:"messages_lost,omitempty"` // UC, UD

	expected uint64    // messages of which some were lost
	list     []float64 // latencies in the order of the messages, in nanoseconds
}

// Rate is the result of a bandwidth test. MiB is 2^20 bytes, Gb 10^9 bits.
type Rate struct {
	Peak    float64 `json:"bw_peak_mib"`
	Average float64 `json:"bw_average_mib"`
	Gbps    float64 `json:"bw_average_gbps"`
	MsgRate float64 `json:"msg_rate_mpps"`
}

// Times is the result of a latency test, in microseconds.
type Times struct {
	Min     float64 `json:"t_min_usec"`
	Max     float64 `json:"t_max_usec"`
	Typical float64 `json:"t_typical_usec"`
	Average float64 `json:"t_avg_usec"`
	Stdev   float64 `json:"t_stdev_usec"`
	P50     float64 `json:"t_p50_usec"`
	P90     float64 `json:"t_p90_usec"`
	P95     float64 `json:"t_p95_usec"`
	P99     float64 `json:"t_p99_usec"`
	P999    float64 `json:"t_p999_usec"`
	P9999   float64 `json:"t_p9999_usec"`
	PerSec  float64 `json:"transactions_per_second"`
}

// CPU is the processor time that this process used in the run, and what that is for
// the messages that it sent, received or served.
type CPU struct {
	Seconds    float64 `json:"cpu_seconds"`
	User       float64 `json:"cpu_user_seconds"`
	System     float64 `json:"cpu_system_seconds"`
	PerGB      float64 `json:"cpu_seconds_per_gigabyte"`
	PerMillion float64 `json:"cpu_seconds_per_million_messages"`

	messages float64
}

// newCPU relates processor time to messages of a size.
func newCPU(t cpu, size int, messages float64) CPU {
	c := CPU{User: t.user.Seconds(), System: t.system.Seconds(), messages: messages}
	c.Seconds = c.User + c.System
	if messages > 0 {
		c.PerGB = c.Seconds / (float64(size) * messages / 1e9)
		c.PerMillion = c.Seconds / (messages / 1e6)
	}
	return c
}

// Result is what Config.JSON prints.
type Result struct {
	Test       string            `json:"test"`
	Role       string            `json:"role"`
	Connection string            `json:"connection"`
	QPs        int               `json:"qps"`
	MTU        int               `json:"mtu"`
	TxDepth    int               `json:"tx_depth"`
	Rows       []Row             `json:"rows"`
	Checked    []string          `json:"checked"`
	Counters   map[string]uint64 `json:"counters"`
	Error      string            `json:"error,omitempty"`
}

// row makes the result of a run.
func (f *flow) row(spent cpu) Row {
	if f.e.cfg.Test.Latency {
		return f.latencyRow(spent)
	}
	return f.bandwidthRow(spent)
}

func (f *flow) bandwidthRow(spent cpu) Row {
	c := &f.e.cfg
	n, ns := f.sent, f.last-f.first
	if f.sends == 0 {
		// From the moment when both sides agreed to begin: what arrives first may
		// be a whole burst.
		n, ns = f.got, f.last
	}
	count := uint64(n)
	if w := &f.window; c.Duration > 0 {
		n, ns = w.endSent-w.beganSent+w.endGot-w.beganGot, w.endedAt-w.beganAt
		count = uint64(max(0, n))
	}
	r := Row{Size: f.size, Iterations: count, Rate: rate(f.size, float64(n), ns), CPU: newCPU(spent, f.size, float64(f.sent+f.got))}
	switch {
	case f.sends == 0 && f.done != nil:
		r.Peak = mib(f.size, bestPart(f.done, f.last)*1e9)
	case f.done != nil && f.recvs == 0:
		r.Peak = mib(f.size, bestRate(f.posted, f.done)*1e9)
	}
	if f.done != nil {
		r.Peak = max(r.Peak, r.Rate.Average)
	}
	if all := uint64(f.recvs * len(f.e.lanes)); c.Duration == 0 && uint64(f.got) < all {
		r.Lost, r.expected = all-uint64(f.got), all
	}
	return r
}

// rate is n messages in so many nanoseconds.
func rate(size int, n float64, ns int64) *Rate {
	if ns <= 0 {
		return &Rate{}
	}
	perSecond := n * 1e9 / float64(ns)
	return &Rate{Average: mib(size, perSecond), Gbps: perSecond * float64(size) * 8 / 1e9, MsgRate: perSecond / 1e6}
}

// mib is the bandwidth of so many messages per second.
func mib(size int, perSecond float64) float64 { return perSecond * float64(size) / (1 << 20) }

// gbPerMiB turns MiB per second into 10^9 bits per second.
const gbPerMiB = 8 * (1 << 20) / 1e9

func (r *Row) addRate(o Rate, served float64) {
	r.Peak += o.Peak
	r.Rate.Average += o.Average
	r.Gbps += o.Gbps
	r.MsgRate += o.MsgRate
	r.CPU = newCPU(cpu{seconds(r.User), seconds(r.System)}, r.Size, r.messages+served)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// summary is the row as it is told to the peer.
func (e *end) summary(r *Row) summary {
	unit := 1.0
	if e.cfg.Gbits {
		unit = gbPerMiB
	}
	return summary{uint64(r.Size), r.Iterations, r.Peak * unit, r.Rate.Average * unit, r.MsgRate}
}

// rateOf is what a peer told, which has the same options.
func (e *end) rateOf(s summary) Rate {
	unit := 1.0
	if e.cfg.Gbits {
		unit = 1 / gbPerMiB
	}
	return Rate{Peak: s.peak * unit, Average: s.average * unit, Gbps: s.average * unit * gbPerMiB, MsgRate: s.rate}
}

// servedRow is the row of a server that only answered, from what the client told.
func (e *end) servedRow(s summary, spent cpu) Row {
	r := e.rateOf(s)
	messages := float64(s.iterations)
	if c := &e.cfg; c.Duration > 0 {
		// The client told what fell into its window; the work went on outside.
		messages *= float64(c.Duration) / float64(c.Duration-2*c.Margin)
	}
	size := int(min(s.size, qp.MaxMessage-1))
	return Row{Size: size, Iterations: s.iterations, Rate: &r, CPU: newCPU(spent, size, messages)}
}

func (f *flow) latencyRow(spent cpu) Row {
	c := &f.e.cfg
	ways := 1
	if c.Test.Verb == Send || c.Test.Verb == Write {
		ways = 2
	}
	list := samples(f.stamps, ways)
	s := sorted(list)
	count := len(f.stamps)
	t := &Times{
		Typical: usec(s.median()), Average: usec(s.mean()), Stdev: usec(s.deviation()), P50: usec(s.median()),
		P90: usec(s.percentile(.90)), P95: usec(s.percentile(.95)), P99: usec(s.percentile(.99)),
		P999: usec(s.percentile(.999)), P9999: usec(s.percentile(.9999)),
	}
	if len(s) > 0 {
		t.Min, t.Max = usec(s[0]), usec(s[len(s)-1])
	}
	if w := &f.window; c.Duration > 0 {
		count = max(0, w.endSent-w.beganSent)
		if count > 0 {
			t.Average = usec(float64(w.endedAt-w.beganAt)) / float64(count*ways)
		}
	}
	if t.Average > 0 {
		t.PerSec = 1e6 / (t.Average * float64(ways))
	}
	return Row{
		Size: f.size, Iterations: uint64(count), Times: t, list: list,
		CPU: newCPU(spent, f.size, float64(f.lanePosted()*ways)),
	}
}

func (f *flow) lanePosted() (n int) {
	for _, l := range f.e.lanes {
		n += l.posted
	}
	return n
}

const rule = "---------------------------------------------------------------------------------------"

func (e *end) printWaiting() {
	const line = "* Waiting for client to connect... *"
	stars := strings.Repeat("*", len(line))
	fmt.Fprintf(e.text, "\n%s\n%s\n%s\n", stars, line, stars)
}

// printHead prints what the test is about.
func (e *end) printHead() {
	c := &e.cfg
	way, kind := "", "BW"
	if c.Bidirectional {
		way = "Bidirectional "
	}
	if c.Test.Latency {
		kind = "Latency"
	}
	fmt.Fprintf(e.text, "%s\n                    %s %s%s Test\n", rule, verbTitles[c.Test.Verb], way, kind)
	line := func(name string, v any) { fmt.Fprintf(e.text, " %-15s : %v\n", name, v) }
	fmt.Fprintf(e.text, " %-15s : %-12s Device         : %v\n", "Dual-port", "OFF", e.dev.Addr())
	fmt.Fprintf(e.text, " %-15s : %-12d Transport type : %s\n", "Number of qps", c.QPs, "RoCEv2")
	fmt.Fprintf(e.text, " %-15s : %-12v Using SRQ      : %s\n", "Connection type", c.Connection, onOff(c.SRQ))
	if e.client || c.Bidirectional || c.Test.Latency {
		line("TX depth", c.TxDepth)
	}
	if c.receives(e.client) {
		line("RX depth", c.RxDepth)
	}
	if !c.Test.Latency {
		line("CQ Moderation", c.cqMod(c.largest()))
	}
	line("Mtu", fmt.Sprintf("%d[B]", c.MTU))
	line("Link type", "Ethernet")
	line("Max inline data", fmt.Sprintf("%d[B]", c.Inline))
	if c.Test.Verb == Read || c.Test.Verb == Atomic {
		line("Outstand reads", c.Outs)
	}
	line("rdma_cm QPs", "OFF")
	line("Data ex. method", "Ethernet")
	fmt.Fprintln(e.text, rule)
}

func onOff(v bool) string {
	if v {
		return "ON"
	}
	return "OFF"
}

// printPeers prints the records of both sides, and the head of the table.
func (e *end) printPeers() {
	for _, l := range e.lanes {
		e.printRecord("local", e.local(l))
	}
	for _, l := range e.lanes {
		e.printRecord("remote", l.remote)
	}
	fmt.Fprintln(e.text, rule)
	fmt.Fprintln(e.text, e.tableHead())
}

func (e *end) printRecord(side string, r record) {
	fmt.Fprintf(e.text, " %s address: LID %04x QPN %#04x PSN %#x", side, 0, uint32(r.qpn), r.psn.Value())
	switch e.cfg.Test.Verb {
	case Read, Atomic:
		fmt.Fprintf(e.text, " OUT %#04x", r.outReads)
		fallthrough
	case Write:
		fmt.Fprintf(e.text, " RKey %#08x VAddr %#016x", r.rkey, r.vaddr)
	}
	gid := make([]string, 16)
	for i, b := range r.gid.As16() {
		gid[i] = fmt.Sprintf("%02d", b)
	}
	fmt.Fprintf(e.text, "\n GID: %s\n", strings.Join(gid, ":"))
}

func (e *end) tableHead() string {
	switch c := &e.cfg; {
	case c.Test.Latency && c.Duration > 0:
		return " #bytes        #iterations       t_avg[usec]    tps average"
	case c.Test.Latency:
		return " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
	case c.Gbits:
		return " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
	}
	return " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
}

// printRow prints a row of the table, in perftest's columns.
func (e *end) printRow(r *Row) {
	c := &e.cfg
	switch {
	case c.Test.Latency && c.Duration > 0:
		fmt.Fprintf(e.text, " %-7d       %-10d        %-7.2f        %-7.2f\n", r.Size, r.Iterations, r.Times.Average, r.PerSec)
	case c.Test.Latency:
		e.printSamples(r)
		fmt.Fprintf(e.text, " %-7d %-10d     %-7.2f        %-7.2f      %-7.2f             %-7.2f        %-7.2f         %-7.2f                %-7.2f\n",
			r.Size, r.Iterations, r.Min, r.Max, r.Typical, r.Times.Average, r.Stdev, r.P99, r.P999)
	default:
		unit := 1.0
		if c.Gbits {
			unit = gbPerMiB
		}
		fmt.Fprintf(e.text, " %-7d    %-10d       %s            %s              %-7.6f\n",
			r.Size, r.Iterations, bandwidthText(r.Peak*unit, c.Gbits), bandwidthText(r.Rate.Average*unit, c.Gbits), r.MsgRate)
	}
}

// bandwidthText writes small numbers of gigabits with more digits.
func bandwidthText(v float64, gbits bool) string {
	if gbits && v < 0.1 {
		return fmt.Sprintf("%-7.6f", v)
	}
	return fmt.Sprintf("%-7.2f", v)
}

// printSamples lists the latencies as -U and -H ask for, and draws the histogram.
func (e *end) printSamples(r *Row) {
	c := &e.cfg
	list := func(s []float64) {
		fmt.Fprintln(e.text, "#, usec")
		for i, v := range s {
			fmt.Fprintf(e.text, "%d, %g\n", i+1, usec(v))
		}
	}
	if c.Unsorted {
		list(r.list)
	} else if c.Sorted {
		list(sorted(r.list))
	}
	if c.Histogram {
		printHistogram(e.text, r.list)
	}
}

// printHistogram draws how many samples fall into each power of the square root of
// two microseconds.
func printHistogram(w io.Writer, list []float64) {
	if len(list) == 0 {
		return
	}
	s := sorted(list)
	const step, width = 1.4142135623730951, 50
	from, most := 0, 0
	type bar struct {
		upTo float64
		n    int
	}
	var bars []bar
	upTo := float64(time.Microsecond) / 8
	for from < len(s) {
		to := from
		for to < len(s) && s[to] < upTo {
			to++
		}
		if to > 0 {
			bars = append(bars, bar{upTo, to - from})
			most = max(most, to-from)
		}
		from, upTo = to, upTo*step
	}
	for _, b := range bars {
		fmt.Fprintf(w, " %10.2f to %10.2f usec %9d %s\n", usec(b.upTo/step), usec(b.upTo), b.n, strings.Repeat("#", (b.n*width+most-1)/most))
	}
}

// printTail prints what perftest does not: processor time and what was checked.
func (e *end) printTail() {
	fmt.Fprintln(e.text, rule)
	if len(e.rows) > 0 {
		fmt.Fprintln(e.text, " CPU time of this process")
		fmt.Fprintln(e.text, " #bytes     cpu[sec]      user[sec]     system[sec]   cpu[sec/GB]   cpu[sec/million messages]")
	}
	for i := range e.rows {
		r := &e.rows[i]
		fmt.Fprintf(e.text, " %-7d    %-10.3f    %-10.3f    %-10.3f    %-10.3f    %-10.3f\n", r.Size, r.Seconds, r.User, r.System, r.PerGB, r.PerMillion)
	}
	for i := range e.rows {
		if r := &e.rows[i]; r.Lost > 0 {
			fmt.Fprintf(e.text, " Lost: %d of %d messages of %d bytes\n", r.Lost, r.expected, r.Size)
		}
	}
	checked := "nothing: what the peer's bytes should be is not known"
	if len(e.checked) > 0 {
		checked = strings.Join(e.checked, ", ")
	}
	fmt.Fprintf(e.text, " Data validated: %s\n", checked)
}

// drops lists the counters of dropped packets that are not zero.
func drops(stats map[string]uint64) string {
	var s []string
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		if strings.HasPrefix(name, "drop_") && stats[name] > 0 {
			s = append(s, fmt.Sprintf("%s %d", name, stats[name]))
		}
	}
	return strings.Join(s, ", ")
}

// printCounters prints the device's counters that are not zero.
func (e *end) printCounters() {
	stats := e.dev.Stats()
	fmt.Fprintln(e.text, " Counters")
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		if stats[name] > 0 {
			fmt.Fprintf(e.text, " %-32s %d\n", name, stats[name])
		}
	}
}

// printJSON prints the result or, if failed is an error, what there is of it.
func (e *end) printJSON(failed error) error {
	c := &e.cfg
	r := Result{
		Test: c.Test.String(), Role: "server", Connection: c.Connection.String(), QPs: c.QPs, MTU: c.MTU, TxDepth: c.TxDepth,
		Rows: e.rows, Checked: e.checked, Counters: map[string]uint64{},
	}
	if e.client {
		r.Role = "client"
	}
	if r.Rows == nil {
		r.Rows = []Row{}
	}
	if r.Checked == nil {
		r.Checked = []string{}
	}
	if e.dev != nil {
		r.Counters = e.dev.Stats()
	}
	if failed != nil {
		r.Error = failed.Error()
	}
	return json.NewEncoder(e.host.Out).Encode(r)
}
