package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/goroce/goroce/test/netns"
)

var loopbackSite = site{place: loopback, server: "127.0.10.1", client: "127.0.10.2", device: "lo"}

// vethMTU lets a RoCE packet of 4096 bytes through.
const vethMTU = "9000"

// newVeth makes two network namespaces with a veth pair between them, over which
// packets travel one by one. remove has to be called in any case.
func newVeth(ctx context.Context) (s site, remove func(), err error) {
	remove = func() {}
	if os.Getuid() != 0 {
		return s, remove, fmt.Errorf("the veth pair needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return s, remove, fmt.Errorf("the veth pair needs ip: apt-get install iproute2")
	}
	name := fmt.Sprintf("goroce-bench-%d-", os.Getpid())
	s = site{place: veth, server: "198.18.4.1", client: "198.18.4.2", device: "bench0", serverNS: name + "a", clientNS: name + "b"}
	remove = func() {
		for _, ns := range []string{s.serverNS, s.clientNS} {
			if _, err := os.Stat("/run/netns/" + ns); err == nil {
				_ = ip(context.Background(), "netns del "+ns)
			}
		}
	}
	for _, c := range []string{
		"netns add " + s.serverNS,
		"netns add " + s.clientNS,
		"-n " + s.serverNS + " link add bench0 mtu " + vethMTU + " type veth peer name bench0 mtu " + vethMTU + " netns " + s.clientNS,
	} {
		if err := ip(ctx, c); err != nil {
			return s, remove, err
		}
	}
	for ns, addr := range map[string]string{s.serverNS: s.server, s.clientNS: s.client} {
		for _, c := range []string{"link set lo up", "address add " + addr + "/24 dev bench0", "link set bench0 up"} {
			if err := ip(ctx, "-n "+ns+" "+c); err != nil {
				return s, remove, err
			}
		}
		if err := withoutOffload(ns, s.device); err != nil {
			return s, remove, err
		}
	}
	return s, remove, nil
}

func ip(ctx context.Context, args string) error {
	out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// withoutOffload makes packets travel one by one: see netns.WithoutOffload.
func withoutOffload(ns, device string) error {
	n, err := netns.Open(ns)
	if err != nil {
		return err
	}
	defer n.Close()
	return n.Do(func() error { return netns.WithoutOffload(device) })
}
