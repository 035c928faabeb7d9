package verbs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/goroce/goroce/transport"
)

// PortState is the state of a device's port; values as in the verbs API.
type PortState uint8

// The states. A port has no others: those in between belong to InfiniBand's
// subnet management.
const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

// String returns the verbs name of the state.
func (s PortState) String() string {
	switch s {
	case PortDown:
		return "PORT_DOWN"
	case PortActive:
		return "PORT_ACTIVE"
	}
	return fmt.Sprintf("port state %d", uint8(s))
}

// PortAttr are the attributes of a device's port, as Query HCA returns them (IBA
// 11.2.1.2).
type PortAttr struct {
	State     PortState
	HasGID    bool   // an interface has the device's address
	Interface string // that has the address, or had it last; "" if unknown
	NetMTU    int    // of the interface, bytes; 0 if unknown
	ActiveMTU int    // the largest path MTU that fits, bytes of payload
	Watched   bool   // changes are noticed
	Unwatched string // why they are not
}

// AddressError is the reason why a device's queue pairs failed together: its
// address went away.
type AddressError struct {
	Addr   netip.Addr
	Reason string // e.g. "the address 192.0.2.1 was removed from eth0"
}

// Error implements error.
func (e *AddressError) Error() string { return "verbs: " + e.Reason }

// linkUpdate is news of an interface.
type linkUpdate struct {
	index    int
	name     string
	mtu      int  // bytes; 0 if not told
	up       bool // administratively up, and able to carry packets
	loopback bool
	gone     bool // the interface was deleted, or left the network namespace
}

// addrUpdate is news of an address.
type addrUpdate struct {
	index  int
	prefix netip.Prefix // the address with the length of its network
	// tentative is an IPv6 address that is still being checked for duplicates.
	// duplicate is one that failed the check.
	tentative, duplicate bool
	gone                 bool
}

// portChange is what follows from news.
type portChange struct {
	event  transport.EventType
	reason string
	lost   bool // the address went away
}

// port follows interfaces and addresses and derives the state of a device's
// port. News may come twice and in any order; only changes are reported.
//
//	news ──▶ link, address ──▶ tables of interfaces and holders ──▶ settle ──▶ report
//	dump ──▶ begin … sweep ──┘
//
// It has no lock and no I/O. First everything that exists is told, between
// begin and sweep; that reports nothing.
type port struct {
	addr     netip.Addr // without zone
	zone     int        // the interface of a link-local address, 0 if any
	report   func(portChange)
	links    map[int]iface
	holders  map[holder]uint32 // with the dump that told of it last
	dump     uint32
	complete bool // one dump was swept
	newsLost uint64

	at     int // interface of the port
	name   string
	netMTU int
	active bool
	hasGID bool
}

type iface struct {
	name         string
	mtu          int
	up, loopback bool
	dump         uint32
}

// holder is an interface that has the device's address. It may have it more
// than once, in networks of different lengths.
type holder struct{ index, bits int }

func newPort(addr netip.Addr, zone int, report func(portChange)) *port {
	return &port{addr: addr.WithZone(""), zone: zone, report: report, links: map[int]iface{}, holders: map[holder]uint32{}}
}

// ofLoopback reports whether the address is one of 127.0.0.0/8. All of these
// belong to the loopback interface, listed there or not, while it is up.
func (p *port) ofLoopback() bool { return p.addr.Is4() && p.addr.IsLoopback() }

// begin starts to tell everything that exists.
func (p *port) begin() { p.dump++ }

// sweep ends it: what was not told is gone.
func (p *port) sweep() {
	for index, l := range p.links {
		if l.dump != p.dump {
			p.forget(index)
		}
	}
	for h, dump := range p.holders {
		if dump != p.dump {
			delete(p.holders, h)
		}
	}
	p.settle("")
	p.complete = true
}

// link takes news of an interface.
func (p *port) link(u linkUpdate) {
	if u.gone {
		p.forget(u.index)
		p.settle(fmt.Sprintf("the interface %s, which had the address %v, is gone", p.name, p.addr))
		return
	}
	l := p.links[u.index]
	l.name, l.up, l.loopback, l.dump = u.name, u.up, u.loopback, p.dump
	if u.mtu > 0 {
		l.mtu = u.mtu
	}
	p.links[u.index] = l
	p.settle("")
}

func (p *port) forget(index int) {
	delete(p.links, index)
	for h := range p.holders {
		if h.index == index {
			delete(p.holders, h)
		}
	}
}

// address takes news of an address; all but the device's are ignored.
func (p *port) address(u addrUpdate) {
	if u.prefix.Addr().WithZone("") != p.addr || p.ofLoopback() || p.zone != 0 && u.index != p.zone {
		return
	}
	h := holder{u.index, u.prefix.Bits()}
	why := ""
	switch _, held := p.holders[h]; {
	case u.gone:
		delete(p.holders, h)
	case u.duplicate:
		delete(p.holders, h)
		why = fmt.Sprintf("the address %v of %s belongs to another host too", p.addr, p.name)
	case u.tentative && !held:
		// It cannot be used yet. One that could keeps working while it is
		// checked again.
	default:
		p.holders[h] = p.dump
	}
	p.settle(why)
}

// settle derives the state from the tables and reports what has changed; why
// is the reason if the address went away, unless it was simply removed.
func (p *port) settle(why string) {
	p.at = p.holding()
	l, known := p.links[p.at]
	if known {
		p.name, p.netMTU = l.name, l.mtu
	}
	active, hasGID := known && l.up, len(p.holders) > 0
	if p.ofLoopback() {
		hasGID = active
		why = fmt.Sprintf("%s is down, and with it the address %v", p.name, p.addr)
	}
	if active != p.active {
		p.active = active
		c := portChange{event: transport.EventPortErr, reason: p.name + " is down"}
		if active {
			c = portChange{event: transport.EventPortActive, reason: p.name + " is up"}
		}
		p.changed(c)
	}
	if hasGID != p.hasGID {
		p.hasGID = hasGID
		c := portChange{event: transport.EventGIDChange, reason: why, lost: !hasGID}
		switch {
		case hasGID:
			c.reason = fmt.Sprintf("the address %v is back on %s", p.addr, p.name)
		case why == "":
			c.reason = fmt.Sprintf("the address %v was removed from %s", p.addr, p.name)
		}
		p.changed(c)
	}
}

// holding returns the interface of the port: the one it was as long as that has
// the address, else the first that has it.
func (p *port) holding() int {
	if p.ofLoopback() {
		for index, l := range p.links {
			if l.loopback {
				return index
			}
		}
		return p.at
	}
	var have []int
	for h := range p.holders {
		have = append(have, h.index)
	}
	if len(have) == 0 || slices.Contains(have, p.at) {
		return p.at
	}
	return slices.Min(have)
}

func (p *port) changed(c portChange) {
	if p.complete {
		p.report(c)
	}
}

// found reports whether the port has an interface to watch.
func (p *port) found() bool {
	_, ok := p.links[p.at]
	return ok
}

// Why a device does not watch; others come from the system.
const (
	unwatchedByConfig = "Config.NoWatch is set"
	unwatchedLink     = "the device was opened on a given link"
	unwatchedNowhere  = "no interface has the device's address"
)

// startWatch begins to watch the interface of a device that is being opened.
// What prevents it is no error: the device works without.
func (d *Device) startWatch() {
	d.activeMTU.Store(int64(ActiveMTU(d.info.Addr)))
	switch {
	case d.cfg.Link != nil:
		d.unwatched = unwatchedLink
		return
	case d.cfg.NoWatch:
		d.unwatched = unwatchedByConfig
		return
	}
	p := newPort(d.gid, zoneIndex(d.info.Addr.Zone()), d.portChanged)
	w, err := openWatch(p)
	if err != nil {
		d.unwatched = err.Error()
		return
	}
	if !p.found() {
		w.close()
		d.unwatched = unwatchedNowhere
		return
	}
	d.port, d.watch = p, w
	d.updateMTU()
}

// zoneIndex returns the interface index of a zone, which is a number or a name;
// 0 without zone.
func zoneIndex(zone string) int {
	if n, err := strconv.Atoi(zone); err == nil {
		return n
	}
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return ifi.Index
	}
	return 0
}

// watchLoop handles news until Close, or until there can be no more.
func (d *Device) watchLoop(w *watch) {
	defer close(d.watchEnded)
	for {
		_, err := w.receive(true)
		more := false
		if closed := d.own(func() { more = d.takeNews(err) }); closed != nil || !more {
			return
		}
	}
}

// A polled device looks for news this often, and takes at most so many pieces.
const (
	watchEvery  = 100 * time.Millisecond
	watchRounds = 16
)

// pollWatch looks for news if it is time to. The caller owns the device.
func (d *Device) pollWatch(now time.Duration) {
	if d.watch == nil || now < d.watchAt {
		return
	}
	d.watchAt = now + watchEvery
	for range watchRounds {
		got, err := d.watch.receive(false)
		if err == nil && !got || !d.takeNews(err) {
			return
		}
	}
}

// takeNews handles what the watch received. It returns false when the watch
// cannot go on; the device does. The caller owns the device.
func (d *Device) takeNews(err error) bool {
	if err == nil {
		err = d.watch.handle()
	}
	if err != nil {
		d.unwatched = err.Error()
		d.watch.close()
		d.watch = nil
		return false
	}
	d.updateMTU()
	return true
}

// stopWatch ends the watch; the caller does not own the device.
func (d *Device) stopWatch() {
	d.shards[0].lock()
	w := d.watch
	d.shards[0].mu.Unlock()
	if w != nil {
		w.close()
	}
	<-d.watchEnded
}

// portChanged reports a change and lets the queue pairs fail that cannot work
// any more. The caller owns the device.
func (d *Device) portChanged(c portChange) {
	d.portChanges[c.event]++
	d.raise(transport.Event{Type: c.event, Reason: c.reason})
	if c.lost {
		d.lost = &AddressError{Addr: d.gid, Reason: c.reason}
		for _, s := range d.shards {
			s.engine.FailConnected(c.reason)
		}
	}
}

// updateMTU takes over the MTU of the port.
func (d *Device) updateMTU() {
	if d.port.netMTU <= 0 {
		return
	}
	mtu := activeMTU(d.port.netMTU)
	d.activeMTU.Store(int64(mtu))
	for _, s := range d.shards {
		if s.engine != nil { // it is not, while the device is being opened
			s.engine.SetPortMTU(mtu)
		}
	}
}

// Err returns why the device's connected queue pairs failed together, an
// *AddressError, or nil if they never did. It is the last such reason and stays
// when the address comes back, as the failed pairs stay in ERR; QueryPort says
// how things are now.
func (d *Device) Err() error {
	d.shards[0].lock()
	defer d.shards[0].mu.Unlock()
	if d.lost == nil {
		return nil
	}
	return d.lost
}

// PortState returns the state of the device's port; see QueryPort.
func (d *Device) PortState() PortState { return d.QueryPort().State }

// QueryPort returns the attributes of the device's port. A device that does not
// watch looks at the host's interfaces now; on a given link, which has none, the
// port is always active.
//
// A device on Linux watches its interface and its address, unless
// Config.NoWatch is set. PORT_ERR and PORT_ACTIVE are raised when the interface
// goes down and comes up again; queue pairs stay as they are, and retry.
// GID_CHANGE is raised when the address goes away and when it is back. Without
// it nothing can be sent or received, so RC and UC pairs that are past INIT go
// to ERR: QP_FATAL for each, and all their work requests complete with
// WR_FLUSH_ERR. Err and the events' Reason say why. Once the address is back,
// reset the pairs and connect them again. UD pairs stay; what they send
// meanwhile is lost. ActiveMTU follows the interface's MTU; pairs keep the path
// MTU they have, datagrams get the new limit.
//
// The address has gone away only when no interface has it any more. Those of
// 127.0.0.0/8 are there as long as the loopback interface is up.
func (d *Device) QueryPort() PortAttr {
	d.shards[0].lock()
	a := PortAttr{State: PortActive, HasGID: true, ActiveMTU: d.ActiveMTU(), Watched: d.watch != nil, Unwatched: d.unwatched}
	if p := d.port; a.Watched {
		a.HasGID, a.Interface, a.NetMTU = p.hasGID, p.name, p.netMTU
		if !p.active {
			a.State = PortDown
		}
	}
	d.shards[0].mu.Unlock()
	if !a.Watched && d.cfg.Link == nil {
		d.lookAtPort(&a)
	}
	return a
}

// lookAtPort fills in what the host's interfaces tell now.
func (d *Device) lookAtPort(a *PortAttr) {
	g, ok := findGID(d.info.Addr)
	a.HasGID = ok
	if !ok {
		return
	}
	a.Interface, a.NetMTU, a.ActiveMTU = g.Interface, g.NetMTU, g.ActiveMTU
	if !g.Up {
		a.State = PortDown
	}
}

// portStats are the counters of the watch. The caller owns the device.
func (d *Device) portStats(put func(string, uint64)) {
	watched := uint64(0)
	if d.watch != nil {
		watched = 1
	}
	put("port_watched", watched)
	put("port_err", d.portChanges[transport.EventPortErr])
	put("port_active", d.portChanges[transport.EventPortActive])
	put("gid_change", d.portChanges[transport.EventGIDChange])
	if d.port != nil {
		put("port_news_lost", d.port.newsLost)
	}
}
