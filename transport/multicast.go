package transport

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/qp"
)

// What attaching to a group is refused for.
var (
	ErrGroup    = errors.New("transport: a multicast group is an address of the device's family in 224.0.0.0/4 or ff00::/8, for UD pairs only")
	ErrAttached = errors.New("transport: the pair is attached to the group already")
	ErrDetached = errors.New("transport: the pair is not attached to the group")
	ErrMaxGroup = errors.New("transport: the group has its maximum of pairs")
)

// maxAttached bounds the pairs of one group: each arriving packet is delivered
// to all of them.
const maxAttached = 64

// Attach makes a UD pair receive what is sent to a multicast group (IBA 10.5).
// first tells that it is the group's first pair: the link has to join.
func (e *Engine) Attach(q *QP, group netip.Addr) (first bool, err error) {
	at := e.groups[group]
	switch {
	case q.Type != qp.UD || !group.IsMulticast() || group.Is4() != e.cfg.Local.Is4():
		return false, ErrGroup
	case slices.Contains(at, q):
		return false, ErrAttached
	case len(at) == maxAttached:
		return false, ErrMaxGroup
	}
	if e.groups == nil {
		e.groups = make(map[netip.Addr][]*QP)
	}
	e.groups[group] = append(at, q)
	return len(at) == 0, nil
}

// Detach ends Attach. last tells that the group has no pair left.
func (e *Engine) Detach(q *QP, group netip.Addr) (last bool, err error) {
	at := e.groups[group]
	i := slices.Index(at, q)
	if i < 0 {
		return false, ErrDetached
	}
	if at = slices.Delete(at, i, i+1); len(at) == 0 {
		delete(e.groups, group)
		return true, nil
	}
	e.groups[group] = at
	return false, nil
}

// Groups returns the groups that q is attached to.
func (e *Engine) Groups(q *QP) (groups []netip.Addr) {
	for g, at := range e.groups {
		if slices.Contains(at, q) {
			groups = append(groups, g)
		}
	}
	return groups
}

// Attached returns the pairs of a group.
func (e *Engine) Attached(group netip.Addr) []*QP { return e.groups[group] }

// multicast delivers a datagram to every pair of its group; each checks its own
// Q_Key and takes its own receive.
func (e *Engine) multicast(p *bth.Packet, info *bth.Info, d *bth.Datagram) {
	at := e.groups[d.Dst]
	if len(at) == 0 || info.Transport != bth.UD {
		e.Counters[DropQPN]++
		return
	}
	if !bth.PKeyDefault.Matches(p.PKey) {
		e.Counters[DropPKey]++
		return
	}
	e.countReceived(d)
	for _, q := range at {
		if !q.Attr.State.CanReceive() {
			e.Counters[DropState]++
			continue
		}
		e.receiveUD(q, p, info, d)
	}
}
