package verbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// GID is an address of this host that a device can have.
type GID struct {
	Index     int // as in a verbs GID table: link-local first, then as configured
	Addr      netip.Addr
	Interface string
	NetMTU    int // of the interface, bytes
	ActiveMTU int // the largest path MTU that fits, bytes of payload
	Up        bool
}

// GIDs lists the addresses of all interfaces, or of the one named, that a
// device can be opened on. Indexes count per interface, as each would be an
// RDMA device of its own.
func GIDs(ifName string) ([]GID, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("verbs: cannot list the network interfaces: %w", err)
	}
	var all []GID
	for _, ifi := range ifs {
		if ifName != "" && ifi.Name != ifName {
			continue
		}
		all = append(all, interfaceGIDs(ifi)...)
	}
	return all, nil
}

func interfaceGIDs(ifi net.Interface) (gids []GID) {
	addrs, err := ifi.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		addr := p.Addr().Unmap()
		if addr.IsLinkLocalUnicast() && addr.Is6() {
			addr = addr.WithZone(ifi.Name)
		}
		gids = append(gids, GID{Addr: addr, Interface: ifi.Name, NetMTU: ifi.MTU, ActiveMTU: activeMTU(ifi.MTU), Up: ifi.Flags&net.FlagUp != 0})
	}
	slices.SortStableFunc(gids, func(a, b GID) int { return rank(a.Addr) - rank(b.Addr) })
	for i := range gids {
		gids[i].Index = i
	}
	return gids
}

// rank puts link-local IPv6 first, as a verbs GID table has it.
func rank(a netip.Addr) int {
	if a.Is6() && a.IsLinkLocalUnicast() {
		return 0
	}
	return 1
}

// DefaultAddr returns the address that a device takes when none is named: the
// first IPv4 address that is not loopback, then IPv6, then 127.0.0.1.
func DefaultAddr() (netip.Addr, error) {
	gids, err := GIDs("")
	if err != nil {
		return netip.Addr{}, err
	}
	for _, want := range []func(netip.Addr) bool{
		func(a netip.Addr) bool { return a.Is4() && !a.IsLoopback() },
		func(a netip.Addr) bool { return a.Is6() && !a.IsLoopback() && !a.IsLinkLocalUnicast() },
		netip.Addr.IsLoopback,
	} {
		for _, g := range gids {
			if g.Up && want(g.Addr) {
				return g.Addr, nil
			}
		}
	}
	return netip.Addr{}, errors.New("verbs: no interface is up with an address; bring up at least the loopback interface (`ip link set lo up`)")
}

// netOverhead is what rxe and Linux subtract from the interface's MTU before
// they choose a path MTU: worst-case headers without those of the link.
const netOverhead = 80

// activeMTU returns the largest path MTU for an interface MTU.
func activeMTU(netMTU int) int {
	for _, m := range []int{4096, 2048, 1024, 512} {
		if netMTU-netOverhead >= m {
			return m
		}
	}
	return 256
}

// ActiveMTU returns the largest path MTU of the interface that has the address,
// in bytes of payload, by the rule of Linux; 4096 when no interface has it, as
// with a link in memory.
func ActiveMTU(a netip.Addr) int {
	if g, ok := findGID(a); ok {
		return g.ActiveMTU
	}
	return 4096
}

// findGID returns the entry of an address.
func findGID(a netip.Addr) (GID, bool) {
	gids, _ := GIDs("")
	for _, g := range gids {
		// Any address of 127.0.0.0/8 is the loopback interface's.
		if g.Addr.WithZone("") == a.WithZone("") || g.Addr.IsLoopback() && a.IsLoopback() && g.Addr.Is4() == a.Is4() {
			return g, true
		}
	}
	return GID{}, false
}
