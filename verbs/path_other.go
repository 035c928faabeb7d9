//go:build !linux

package verbs

import (
	"fmt"
	"net"
	"net/netip"
)

// PathTo finds the local address that reaches a peer, and its interface's MTU.
// It sends nothing.
func PathTo(peer netip.Addr) (Path, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, 4791)))
	if err != nil {
		return Path{}, fmt.Errorf("verbs: no route to %v; check the address and the routing table: %w", peer, err)
	}
	defer c.Close()
	p := Path{Peer: peer, Source: c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()}
	gids, err := GIDs("")
	for _, g := range gids {
		if g.Addr.WithZone("") == p.Source.WithZone("") {
			p.Interface, p.NetMTU, p.PathMTU = g.Interface, g.NetMTU, g.ActiveMTU
		}
	}
	return p, err
}
