package main

import (
	"fmt"
	"math"
	"strconv"
)

// target is one thing that the project wants to reach.
type target struct {
	what  string
	limit string // as text
	// judge returns the figure and whether it is good enough; ok is false if
	// what it needs was not measured.
	judge    func(r *results) (figure string, met, ok bool)
	optional bool // left out if not measured
}

// verdict is the outcome of a target.
type verdict struct {
	What   string `json:"target"`
	Limit  string `json:"limit"`
	Figure string `json:"measured"`
	Met    string `json:"met"` // yes, no, not measured
}

// which names a cell of a target; the rest is what a target's cells have in common.
type which struct {
	place  string
	metric metric
	tool   string
	op     string
	size   int
	qps    int
	events bool
	ring   bool
	better bool // of both modes, round by round, whatever events says
}

func (w which) is(c cell) bool {
	return c.Place == w.place && c.Metric == w.metric && c.Tool == w.tool && c.Op == w.op &&
		c.Size == w.size && c.QPs == max(1, w.qps) && c.Events == w.events && c.Ring == w.ring
}

const mib = 1 << 20

func on(m metric, tool, op string, size int) which {
	return which{place: loopback, metric: m, tool: tool, op: op, size: size}
}

func withEvents(w which) which {
	w.events = true
	return w
}

// floorOf is the better of the two modes: which one is faster depends on what else
// runs, and a floor is what can be done.
func floorOf(size int) which {
	w := on(bandwidth, "floor", "", size)
	w.better = true
	return w
}

func withQPs(w which, n int) which {
	w.qps = n
	return w
}

// allTargets are the project's.
func allTargets() []target {
	var all []target
	for _, op := range []string{"WRITE", "READ", "SEND"} {
		own := on(bandwidth, "goroce", op, mib)
		all = append(all,
			atLeast(op+" 1 MiB, bandwidth : one iperf3 TCP stream", 1.5, own, on(bandwidth, "iperf3", "", mib)),
			ifUsual(atLeast(op+" 1 MiB, bandwidth : the same with "+usual, 1.5, own, on(bandwidth, "iperf3", usual, mib))),
			atLeast(op+" 1 MiB, bandwidth : the floor", 0.75, own, floorOf(mib)))
	}
	short := on(latency, "goroce", "WRITE", 8)
	ring := short
	ring.ring = true
	busy := on(queues, "goroce", "WRITE", queueSize)
	return append(all,
		atLeast("WRITE 64 KiB, bandwidth : one iperf3 TCP stream", 1.3, on(bandwidth, "goroce", "WRITE", 64<<10), on(bandwidth, "iperf3", "", 64<<10)),
		ifUsual(atLeast("WRITE 64 KiB, bandwidth : the same with "+usual, 1.3, on(bandwidth, "goroce", "WRITE", 64<<10), on(bandwidth, "iperf3", usual, 64<<10))),
		atMost("WRITE 8 B, latency, polled : UDP ping-pong, polled", 1.25, false, short, on(latency, "floor", "ping-pong", 8)),
		atMost("WRITE 8 B, latency, polled, packet ring : UDP ping-pong, polled", 1.25, false, ring, on(latency, "floor", "ping-pong", 8)),
		atMost("WRITE 8 B, latency, polled : UCX over TCP, put", 1, true, short, on(latency, "UCX", "put", 8)),
		atMost("WRITE 8 B, latency, polled : UCX over TCP, tagged message", 1, true, short, on(latency, "UCX", "tag", 8)),
		atMost("WRITE 8 B, latency, polled : libfabric over TCP", 1, true, short, on(latency, "libfabric", "message", 8)),
		atMost("SEND 8 B, latency, events : net.UDPConn ping-pong", 1.5, false, withEvents(on(latency, "goroce", "SEND", 8)), withEvents(on(latency, "net.UDPConn", "ping-pong", 8))),
		target{what: "WRITE 8 B, one queue pair, messages", limit: "≥ 2.5 M/s", judge: func(r *results) (string, bool, bool) {
			s := spreadOf(r.samples(on(rate, "goroce", "WRITE", 8)))
			return fmt.Sprintf("%s M/s", spreadText(s)), s.Median >= 2.5, s.N > 0
		}},
		atLeast("1,000 busy queue pairs, bandwidth : one", 0.85, withQPs(busy, 1000), busy),
		target{what: "10,000 idle queue pairs, time to open", limit: "< 2 s", judge: func(r *results) (string, bool, bool) {
			s := spreadOf(r.idle(func(i idleReading) float64 { return i.Seconds }))
			return fmt.Sprintf("%s s", spreadText(s)), s.Median < 2, s.N > 0
		}},
		target{what: "idle queue pair, memory", limit: "≤ 8 KiB", judge: func(r *results) (string, bool, bool) {
			s := spreadOf(r.idle(func(i idleReading) float64 { return i.BytesPerQP / 1024 }))
			return fmt.Sprintf("%s KiB", spreadText(s)), s.Median <= 8, s.N > 0
		}},
		besideRXE("beside rdma_rxe in a guest: WRITE 64 KiB, bandwidth : rxe's", 1.3, func(r reading) float64 { return r.Gbps }, rxeBandwidth),
		besideRXE("beside rdma_rxe in a guest: WRITE 8 B, messages : rxe's", 10, func(r reading) float64 { return r.Mpps }, rxeRate),
	)
}

// ifUsual makes a target that is left out where it was not measured, since the host's
// own congestion control is the usual one.
func ifUsual(t target) target {
	t.optional = true
	return t
}

func atLeast(what string, limit float64, a, b which) target {
	return target{what: what, limit: fmt.Sprintf("≥ %.4g ×", limit), judge: func(r *results) (string, bool, bool) {
		s := spreadOf(ratios(r.samples(a), r.samples(b)))
		return spreadText(s) + " ×", s.Median >= limit, s.N > 0
	}}
}

// atMost has a limit that may be reached, or with below one that may not.
func atMost(what string, limit float64, below bool, a, b which) target {
	sign := "≤"
	if below {
		sign = "<"
	}
	return target{what: what, limit: fmt.Sprintf("%s %.4g ×", sign, limit), judge: func(r *results) (string, bool, bool) {
		s := spreadOf(ratios(r.samples(a), r.samples(b)))
		return spreadText(s) + " ×", s.Median < limit || !below && s.Median == limit, s.N > 0
	}}
}

func besideRXE(what string, limit float64, value func(reading) float64, kind string) target {
	return target{what: what, limit: fmt.Sprintf("≥ %.4g ×", limit), judge: func(r *results) (string, bool, bool) {
		var own, rxe []float64
		for _, g := range r.Guest {
			if g.Kind == kind {
				own, rxe = append(own, value(g.Own)), append(rxe, value(g.RXE))
			}
		}
		s := spreadOf(ratios(own, rxe))
		return spreadText(s) + " ×", s.Median >= limit, s.N > 0
	}}
}

// judge evaluates all targets.
func judge(r *results) []verdict {
	var all []verdict
	for _, t := range allTargets() {
		v := verdict{What: t.what, Limit: t.limit, Met: "not measured"}
		if figure, met, ok := t.judge(r); ok {
			v.Figure, v.Met = figure, "no"
			if met {
				v.Met = "yes"
			}
		}
		if v.Met != "not measured" || !t.optional {
			all = append(all, v)
		}
	}
	return all
}

// spreadText writes the median, and least and most if there are several samples.
func spreadText(s spread) string {
	if s.N == 0 {
		return "–"
	}
	if s.N == 1 {
		return number(s.Median)
	}
	return fmt.Sprintf("%s [%s – %s]", number(s.Median), number(s.Least), number(s.Most))
}

// number writes three significant digits, without an exponent.
func number(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	digits := 2
	if v != 0 {
		digits = max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}
