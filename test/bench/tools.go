package main

import (
	"strconv"
	"time"
)

// site is where a pair of processes runs.
type site struct {
	place          string
	server, client string // addresses
	device         string // interface that has them
	serverNS       string // network namespaces, "" for our own
	clientNS       string
}

// command is one of the two processes.
type command struct {
	args []string
	env  []string
}

// tool is one contestant.
type tool struct {
	name    string
	program string // in $PATH, or built
	apt     string // Debian package, "" if it is built here
	version []string
	// pair returns the two commands for a cell.
	pair  func(t *tool, c cell, s site, port int, e extent) (server, client command)
	parse func(out []byte) (reading, error)
}

// newTools returns the contestants; roce and floor are paths of programs.
func newTools(roce, floor string) []*tool {
	return []*tool{
		{name: "goroce", program: roce, pair: pairRoce, parse: parseRows},
		{name: "floor", program: floor, pair: pairFloor, parse: parseRows},
		{name: "net.UDPConn", program: floor, pair: pairFloor, parse: parseRows},
		{name: "iperf3", program: "iperf3", apt: "iperf3", version: []string{"--version"}, pair: pairIperf, parse: parseIperf},
		{name: "UCX", program: "ucx_perftest", apt: "ucx-utils", version: []string{"ucx_info", "-v"}, pair: pairUCX, parse: parseUCX},
		{name: "libfabric", program: "fi_pingpong", apt: "libfabric-bin", version: []string{"fi_info", "--version"}, pair: pairFabric, parse: parseFabric},
	}
}

var roceOps = map[string]string{"WRITE": "write", "READ": "read", "SEND": "send"}

func pairRoce(t *tool, c cell, s site, port int, e extent) (command, command) {
	test := roceOps[c.Op] + "_bw"
	options := []string{"-p", strconv.Itoa(port), "-s", strconv.Itoa(c.Size), "-m", "4096", "-F", "--json"}
	switch c.Metric {
	case latency:
		test = roceOps[c.Op] + "_lat"
		options = append(options, "-n", strconv.Itoa(e.latencies))
	case queues: // a number: each queue pair has to get its turn
		options = append(options, "-n", strconv.Itoa(max(5, e.queued/c.QPs)), "-t", strconv.Itoa(queueDepth(c.QPs)))
	default:
		if c.Events {
			options = append(options, "-n", strconv.Itoa(max(5, 4*e.bytes/c.Size)))
		} else {
			options = append(options, "-D", secondsText(e.time))
		}
	}
	if c.QPs > 1 {
		options = append(options, "-q", strconv.Itoa(c.QPs))
	}
	if c.Events {
		options = append(options, "-e")
	}
	if c.Ring {
		options = append(options, "--ring")
	}
	base := append([]string{t.program, "perf", test}, options...)
	return command{args: join(base, "-d", s.server)}, command{args: join(base, "-d", s.client, s.server)}
}

// queueDepth is how many requests each of several queue pairs has under way: as many
// as usual, but all together no more than fit a processor's cache.
func queueDepth(pairs int) int { return max(2, min(128, 16384/pairs)) }

func pairFloor(t *tool, c cell, s site, port int, e extent) (command, command) {
	test := "stream"
	options := []string{"-p", strconv.Itoa(port)}
	more := []string{"-s", strconv.Itoa(c.Size), "--json"}
	switch {
	case c.Metric == latency && c.Tool == "net.UDPConn":
		test = "udpconn"
		more = append(more, "-n", strconv.Itoa(e.latencies))
	case c.Metric == latency:
		test = "pingpong"
		more = append(more, "-n", strconv.Itoa(e.latencies))
	default:
		more = append(more, "-D", secondsText(e.time))
		if c.Events {
			more = append(more, "-e")
		}
	}
	base := append([]string{t.program, test}, options...)
	return command{args: join(base, "-d", s.server)}, command{args: join(join(base, more...), "-d", s.client, s.server)}
}

func pairIperf(t *tool, c cell, s site, port int, e extent) (command, command) {
	p := strconv.Itoa(port)
	// iperf3 takes whole seconds; it is the baseline, so it gets them.
	seconds := strconv.Itoa(int(wholeSeconds(e.time).Seconds()))
	var more []string
	if c.Op != "" {
		more = []string{"-C", c.Op}
	}
	return command{args: []string{t.program, "-s", "-1", "-B", s.server, "-p", p}},
		command{args: join([]string{t.program, "-c", s.server, "-B", s.client, "-p", p, "-t", seconds, "-J"}, more...)}
}

// wholeSeconds rounds to what iperf3 takes.
func wholeSeconds(d time.Duration) time.Duration { return max(time.Second, d.Round(time.Second)) }

func pairUCX(t *tool, c cell, s site, port int, e extent) (command, command) {
	// UCX_NET_DEVICES decides the addresses of the data.
	env := []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=" + s.device, "UCX_WARN_UNUSED_ENV_VARS=n"}
	test := map[string]string{"put": "ucp_put", "tag": "tag"}[c.Op]
	n, warm := e.latencies, e.latencies/10
	if c.Metric == latency {
		test += "_lat"
	} else {
		test += "_bw"
		n = min(e.messages, max(20, e.bytes/c.Size))
		warm = n / 20
	}
	p := strconv.Itoa(port)
	return command{args: []string{t.program, "-p", p}, env: env},
		command{args: []string{t.program, "-p", p, "-t", test, "-s", strconv.Itoa(c.Size), "-n", strconv.Itoa(n), "-w", strconv.Itoa(warm), "-v", "-f", s.server}, env: env}
}

func pairFabric(t *tool, c cell, s site, port int, e extent) (command, command) {
	env := []string{"FI_TCP_IFACE=" + s.device, "FI_PROVIDER=tcp"}
	base := []string{t.program, "-p", "tcp", "-e", "msg", "-S", strconv.Itoa(c.Size), "-I", strconv.Itoa(e.latencies)}
	p := strconv.Itoa(port)
	return command{args: join(base, "-B", p), env: env}, command{args: join(base, "-P", p, s.server), env: env}
}

// join returns a new slice.
func join(a []string, b ...string) []string { return append(a[:len(a):len(a)], b...) }

func secondsText(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'g', -1, 64) }
