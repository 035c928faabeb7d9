package main

import (
	"os"
	"slices"
	"strings"
)

// tcp says which congestion controls this host has: the tools over TCP depend on
// it.
type tcp struct {
	own     string   // what a socket gets that asks for nothing
	allowed []string // what it may ask for
}

func hostTCP() tcp {
	read := func(name string) []string {
		b, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_" + name)
		return strings.Fields(string(b))
	}
	t := tcp{own: strings.Join(read("congestion_control"), ""), allowed: read("allowed_congestion_control")}
	if os.Getuid() == 0 {
		t.allowed = read("available_congestion_control")
	}
	return t
}

// usual is Linux's default. It is faster on loopback than what some hosts set
// instead, and the baseline should be no slower than it can be.
const usual = "cubic"

// iperfOptions lets iperf3 use it, if it can be had.
func (t tcp) iperfOptions() []string {
	if t.own != usual && slices.Contains(t.allowed, usual) {
		return []string{"-C", usual}
	}
	return nil
}

func tcpText(t tcp) string {
	if t.iperfOptions() != nil {
		return "iperf3 " + usual + ", others " + t.own
	}
	return t.own
}
