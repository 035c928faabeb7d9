package main

import (
	"os"
	"slices"
	"strings"
)

// tcp says which congestion controls this host has.
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

// hasUsualToo reports whether the usual one is not this host's own, and can be had.
func (t tcp) hasUsualToo() bool { return t.own != usual && slices.Contains(t.allowed, usual) }
