package main

import (
	"fmt"
	"time"
)

// metric is what a cell measures; each has its unit.
type metric string

const (
	bandwidth metric = "bandwidth" // Gb/s of payload
	latency   metric = "latency"   // µs, half a round trip, median
	rate      metric = "rate"      // million messages per second
	queues    metric = "queues"    // Gb/s of payload over several queue pairs
)

func (m metric) unit() string {
	switch m {
	case latency:
		return "µs"
	case rate:
		return "M/s"
	}
	return "Gb/s"
}

// cell is one figure of the report: who does what, where.
type cell struct {
	Place  string `json:"place"` // loopback or veth
	Metric metric `json:"metric"`
	Tool   string `json:"tool"`
	Op     string `json:"operation"`          // as the tool calls it
	Size   int    `json:"size"`               // bytes
	QPs    int    `json:"queue_pairs"`        // 1 but for queues
	Events bool   `json:"events"`             // sleeps where there is nothing to do, instead of spinning
	Ring   bool   `json:"packet_ring"`        // receives through one, which needs a privilege
	Core   bool   `json:"needed_by_a_target"` // measured by -quick too
}

// name tells the cells of one metric and place apart, but for size and QPs.
func (c cell) name() string {
	s := c.Tool
	if c.Op != "" {
		s += " " + c.Op
	}
	if c.Ring {
		s += " (packet ring)"
	}
	if c.Events {
		s += " (events)"
	}
	return s
}

func (c cell) String() string {
	s := fmt.Sprintf("%s %s %s %s", c.Place, c.Metric, c.name(), bytesText(c.Size))
	if c.QPs > 1 {
		s += fmt.Sprintf(" %d QPs", c.QPs)
	}
	return s
}

// extent is how long and how often things are measured.
type extent struct {
	rounds    int           // at most
	most      time.Duration // no round begins that would not end by then, but for the first two
	time      time.Duration // of a bandwidth cell, in whole seconds: some tools take no others
	latencies int           // round trips of a latency cell
	bytes     int           // of a bandwidth cell whose tool takes no time, at first
	messages  int           // most messages of the same, at first
	queued    int           // messages of a cell with several queue pairs, of all together
}

var (
	fullExtent  = extent{rounds: 5, most: 10 * time.Minute, time: time.Second, latencies: 20000, bytes: 400 << 20, messages: 100000, queued: 2000000}
	quickExtent = extent{rounds: 2, most: 2 * time.Minute, time: time.Second, latencies: 5000, bytes: 400 << 20, messages: 100000, queued: 2000000}
)

var (
	bandwidthSizes = []int{4 << 10, 64 << 10, 1 << 20, 8 << 20}
	latencySizes   = []int{8, 64, 512, 4096}
	queueCounts    = []int{1, 10, 100, 1000, 10000}
)

// queueSize is the message of the cells with several queue pairs: small, so that
// the messages of a thousand do not leave the cache.
const queueSize = 4 << 10

// usual is the congestion control that Linux has by default. On loopback TCP's speed
// depends on it, so iperf3 is measured as this host has it and, if that is another
// one, with the usual one as well.
const usual = "cubic"

// The places.
const (
	loopback = "loopback"
	veth     = "veth"
)

// planFor lists the cells of a place. Those that are compared with each other
// stand together, and so are measured in the same seconds.
func planFor(place string, quick bool) []cell {
	var all []cell
	add := func(c cell) {
		c.Place = place
		c.QPs = max(1, c.QPs)
		if !quick || c.Core {
			all = append(all, c)
		}
	}
	if place == veth {
		planVeth(add)
	} else {
		planBandwidth(add)
		planLatency(add)
		planRate(add)
		planQueues(add)
	}
	return all
}

func planBandwidth(add func(cell)) {
	for _, size := range bandwidthSizes {
		core := size == 1<<20
		add(cell{Metric: bandwidth, Tool: "goroce", Op: "WRITE", Size: size, Core: core || size == 64<<10})
		if size == 64<<10 || core {
			add(cell{Metric: bandwidth, Tool: "goroce", Op: "READ", Size: size, Core: core})
			add(cell{Metric: bandwidth, Tool: "goroce", Op: "SEND", Size: size, Core: core})
			// iperf3 has no messages: its one figure stands for all sizes. It is
			// measured beside both sizes that are compared with it.
			add(cell{Metric: bandwidth, Tool: "iperf3", Size: size, Core: true})
			add(cell{Metric: bandwidth, Tool: "iperf3", Op: usual, Size: size, Core: true})
		}
		add(cell{Metric: bandwidth, Tool: "floor", Size: size, Core: core})
		add(cell{Metric: bandwidth, Tool: "UCX", Op: "put", Size: size})
		add(cell{Metric: bandwidth, Tool: "UCX", Op: "tag", Size: size, Core: core})
		if core {
			add(cell{Metric: bandwidth, Tool: "goroce", Op: "WRITE", Size: size, Ring: true})
			add(cell{Metric: bandwidth, Tool: "goroce", Op: "WRITE", Size: size, Events: true})
			add(cell{Metric: bandwidth, Tool: "floor", Size: size, Events: true, Core: true})
		}
	}
}

func planLatency(add func(cell)) {
	for _, size := range latencySizes {
		core := size == 8
		add(cell{Metric: latency, Tool: "goroce", Op: "WRITE", Size: size, Core: core})
		add(cell{Metric: latency, Tool: "floor", Op: "ping-pong", Size: size, Core: core})
		add(cell{Metric: latency, Tool: "goroce", Op: "WRITE", Size: size, Ring: true, Core: core})
		add(cell{Metric: latency, Tool: "UCX", Op: "put", Size: size, Core: core})
		add(cell{Metric: latency, Tool: "UCX", Op: "tag", Size: size, Core: core})
		add(cell{Metric: latency, Tool: "libfabric", Op: "message", Size: size, Core: core})
		add(cell{Metric: latency, Tool: "goroce", Op: "SEND", Size: size, Events: true, Core: core})
		add(cell{Metric: latency, Tool: "net.UDPConn", Op: "ping-pong", Size: size, Events: true, Core: core})
	}
}

func planRate(add func(cell)) {
	add(cell{Metric: rate, Tool: "goroce", Op: "WRITE", Size: 8, Core: true})
	add(cell{Metric: rate, Tool: "goroce", Op: "WRITE", Size: 8, Ring: true})
	add(cell{Metric: rate, Tool: "floor", Size: 8})
	add(cell{Metric: rate, Tool: "UCX", Op: "put", Size: 8})
	add(cell{Metric: rate, Tool: "UCX", Op: "tag", Size: 8})
}

func planQueues(add func(cell)) {
	for _, n := range queueCounts {
		add(cell{Metric: queues, Tool: "goroce", Op: "WRITE", Size: queueSize, QPs: n, Core: n == 1 || n == 1000})
	}
}

func planVeth(add func(cell)) {
	for _, size := range []int{64 << 10, 1 << 20} {
		core := size == 1<<20
		add(cell{Metric: bandwidth, Tool: "goroce", Op: "WRITE", Size: size, Core: core})
		add(cell{Metric: bandwidth, Tool: "iperf3", Size: size, Core: core})
		add(cell{Metric: bandwidth, Tool: "iperf3", Op: usual, Size: size})
		add(cell{Metric: bandwidth, Tool: "floor", Size: size, Core: core})
		add(cell{Metric: bandwidth, Tool: "UCX", Op: "tag", Size: size})
	}
	add(cell{Metric: latency, Tool: "goroce", Op: "WRITE", Size: 8})
	add(cell{Metric: latency, Tool: "floor", Op: "ping-pong", Size: 8})
	add(cell{Metric: latency, Tool: "goroce", Op: "WRITE", Size: 8, Ring: true})
	add(cell{Metric: latency, Tool: "UCX", Op: "put", Size: 8})
	add(cell{Metric: latency, Tool: "UCX", Op: "tag", Size: 8})
	add(cell{Metric: latency, Tool: "libfabric", Op: "message", Size: 8})
	add(cell{Metric: rate, Tool: "goroce", Op: "WRITE", Size: 8})
	add(cell{Metric: rate, Tool: "floor", Size: 8})
}

// bytesText writes a size the way people do.
func bytesText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
