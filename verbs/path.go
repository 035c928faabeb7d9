package verbs

import "net/netip"

// Path is the way to a peer as the host's routing table has it.
type Path struct {
	Peer      netip.Addr `json:"peer"`
	Source    netip.Addr `json:"source"`
	Interface string     `json:"interface"`
	NetMTU    int        `json:"mtu"`      // of the route, bytes
	PathMTU   int        `json:"path_mtu"` // the largest that fits, bytes of payload
}
