package verbs

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// PathTo asks the routing table how packets to a peer leave. It sends nothing;
// a smaller MTU further on the way shows only if the kernel has learned of it.
func PathTo(peer netip.Addr) (Path, error) {
	routes, err := netlink.RouteGet(peer.WithZone("").AsSlice())
	if err != nil || len(routes) == 0 {
		return Path{}, fmt.Errorf("verbs: no route to %v; check the address and the routing table (`ip route get %v`): %w", peer, peer.WithZone(""), err)
	}
	r := routes[0]
	ifi, err := net.InterfaceByIndex(r.LinkIndex)
	if err != nil {
		return Path{}, fmt.Errorf("verbs: the interface on the way to %v is gone: %w", peer, err)
	}
	p := Path{Peer: peer, Interface: ifi.Name, NetMTU: ifi.MTU}
	if src, ok := netip.AddrFromSlice(r.Src); ok {
		p.Source = src.Unmap()
	}
	if r.MTU > 0 && r.MTU < p.NetMTU {
		p.NetMTU = r.MTU
	}
	p.PathMTU = activeMTU(p.NetMTU)
	return p, nil
}
