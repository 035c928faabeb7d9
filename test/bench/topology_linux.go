package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/goroce/goroce/test/netns"
)

// loopbackSite is the loopback of this host.
var loopbackSite = site{place: loopback, server: "127.0.10.1", client: "127.0.10.2", device: "lo"}

// vethMTU lets a RoCE packet of 4096 bytes through.
const vethMTU = "9000"

// topology are the namespaces of a run. remove has to be called in any case.
type topology struct {
	sites  map[string]site
	places []string
	spaces []string
}

// newTopology makes what it can, and tells what it cannot.
func newTopology(ctx context.Context, skip func(string, ...any)) *topology {
	t := &topology{sites: map[string]site{}}
	t.add(loopbackSite)
	err := canMakeSpaces()
	if err == nil {
		var s site
		if s, err = t.veth(ctx); err == nil {
			t.add(s)
		}
	}
	if err != nil {
		skip("veth pair: %v", err)
	}
	return t
}

func (t *topology) add(s site) {
	t.sites[s.place] = s
	t.places = append(t.places, s.place)
}

func (t *topology) remove() {
	for _, ns := range t.spaces {
		if _, err := os.Stat("/run/netns/" + ns); err == nil {
			_ = ip(context.Background(), "netns del "+ns)
		}
	}
}

func canMakeSpaces() error {
	if os.Getuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("network namespaces need ip: apt-get install iproute2")
	}
	return nil
}

// veth joins two namespaces by a veth pair, over which packets travel one by one.
func (t *topology) veth(ctx context.Context) (s site, err error) {
	s = site{place: veth, server: "198.18.4.1", client: "198.18.4.2", device: "bench0"}
	if s.serverNS, err = t.space(ctx, "a"); err != nil {
		return s, err
	}
	if s.clientNS, err = t.space(ctx, "b"); err != nil {
		return s, err
	}
	if err := ip(ctx, "-n "+s.serverNS+" link add bench0 mtu "+vethMTU+" type veth peer name bench0 mtu "+vethMTU+" netns "+s.clientNS); err != nil {
		return s, err
	}
	for ns, addr := range map[string]string{s.serverNS: s.server, s.clientNS: s.client} {
		for _, c := range []string{"address add " + addr + "/24 dev bench0", "link set bench0 up"} {
			if err := ip(ctx, "-n "+ns+" "+c); err != nil {
				return s, err
			}
		}
		if err := inSpace(ns, func() error { return netns.WithoutOffload(s.device) }); err != nil {
			return s, err
		}
	}
	return s, nil
}

// space makes a network namespace.
func (t *topology) space(ctx context.Context, name string) (string, error) {
	ns := fmt.Sprintf("goroce-bench-%d-%s", os.Getpid(), name)
	if err := ip(ctx, "netns add "+ns); err != nil {
		return ns, err
	}
	t.spaces = append(t.spaces, ns)
	return ns, ip(ctx, "-n "+ns+" link set lo up")
}

func ip(ctx context.Context, args string) error {
	out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// inSpace calls f in a network namespace.
func inSpace(ns string, f func() error) error {
	n, err := netns.Open(ns)
	if err != nil {
		return err
	}
	defer n.Close()
	return n.Do(f)
}
