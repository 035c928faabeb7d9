package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/udp"
)

// News, in words.

func up(index int, name string) linkUpdate {
	return linkUpdate{index: index, name: name, mtu: 1500, up: true, loopback: name == "lo"}
}

func down(index int, name string) linkUpdate {
	u := up(index, name)
	u.up = false
	return u
}

func gone(index int, name string) linkUpdate {
	return linkUpdate{index: index, name: name, gone: true}
}

func added(index int, prefix string) addrUpdate {
	return addrUpdate{index: index, prefix: netip.MustParsePrefix(prefix)}
}

func removed(index int, prefix string) addrUpdate {
	return addrUpdate{index: index, prefix: netip.MustParsePrefix(prefix), gone: true}
}

func tentative(index int, prefix string) addrUpdate {
	return addrUpdate{index: index, prefix: netip.MustParsePrefix(prefix), tentative: true}
}

func duplicate(index int, prefix string) addrUpdate {
	return addrUpdate{index: index, prefix: netip.MustParsePrefix(prefix), tentative: true, duplicate: true}
}

// begin and sweep stand for the frame of a dump.
type frame string

const (
	begin = frame("begin")
	sweep = frame("sweep")
)

func tell(p *port, news ...any) {
	for _, n := range news {
		switch n := n.(type) {
		case linkUpdate:
			p.link(n)
		case addrUpdate:
			p.address(n)
		case frame:
			if n == begin {
				p.begin()
			} else {
				p.sweep()
			}
		}
	}
}

// dumped frames what exists.
func dumped(news ...any) []any { return append(append([]any{begin}, news...), sweep) }

func TestPortNewsYieldsChanges(t *testing.T) {
	const addr = "198.18.0.1/24"
	eth0 := dumped(up(1, "lo"), up(2, "eth0"), up(3, "eth1"), added(1, "127.0.0.1/8"), added(2, addr))
	for _, tc := range []struct {
		name  string
		addr  string
		zone  int
		start []any
		news  []any
		want  []string
	}{
		{"nothing new", addr, 0, eth0, []any{up(2, "eth0"), added(2, addr)}, nil},
		{"link down and up", addr, 0, eth0, []any{down(2, "eth0"), down(2, "eth0"), up(2, "eth0")},
			[]string{"PORT_ERR eth0 is down", "PORT_ACTIVE eth0 is up"}},
		{"another interface down, then gone", addr, 0, eth0, []any{down(3, "eth1"), gone(3, "eth1")}, nil},
		{"address removed and back", addr, 0, eth0, []any{removed(2, addr), removed(2, addr), added(2, addr)},
			[]string{"GID_CHANGE the address 198.18.0.1 was removed from eth0 (lost)", "GID_CHANGE the address 198.18.0.1 is back on eth0"}},
		{"another address removed", addr, 0, eth0, []any{added(2, "198.18.0.2/24"), removed(2, "198.18.0.2/24")}, nil},
		{"address kept in a network of another length", addr, 0, eth0, []any{added(2, "198.18.0.1/32"), removed(2, addr)}, nil},
		{"address kept by another interface", addr, 0, eth0, []any{added(3, addr), removed(2, addr), down(2, "eth0"), removed(3, addr)},
			[]string{"GID_CHANGE the address 198.18.0.1 was removed from eth1 (lost)"}},
		{"address kept by another interface, which is down", addr, 0, eth0, []any{added(3, addr), down(3, "eth1"), removed(2, addr)},
			[]string{"PORT_ERR eth1 is down"}},
		{"address back on another interface", addr, 0, eth0, []any{removed(2, addr), added(3, addr), down(2, "eth0"), down(3, "eth1")},
			[]string{"GID_CHANGE the address 198.18.0.1 was removed from eth0 (lost)", "GID_CHANGE the address 198.18.0.1 is back on eth1", "PORT_ERR eth1 is down"}},
		{"interface renamed", addr, 0, eth0, []any{up(2, "wan"), removed(2, addr)},
			[]string{"GID_CHANGE the address 198.18.0.1 was removed from wan (lost)"}},
		{"interface gone before its address", addr, 0, eth0, []any{gone(2, "eth0"), removed(2, addr)},
			[]string{"PORT_ERR eth0 is down", "GID_CHANGE the interface eth0, which had the address 198.18.0.1, is gone (lost)"}},
		{"interface gone after its address", addr, 0, eth0, []any{down(2, "eth0"), removed(2, addr), gone(2, "eth0")},
			[]string{"PORT_ERR eth0 is down", "GID_CHANGE the address 198.18.0.1 was removed from eth0 (lost)"}},
		{"interface replaced", addr, 0, eth0, []any{gone(2, "eth0"), up(7, "eth0"), added(7, addr)},
			[]string{"PORT_ERR eth0 is down", "GID_CHANGE the interface eth0, which had the address 198.18.0.1, is gone (lost)", "PORT_ACTIVE eth0 is up", "GID_CHANGE the address 198.18.0.1 is back on eth0"}},
		{"address known before its interface", addr, 0, dumped(added(2, addr), up(2, "eth0")), []any{down(2, "eth0")},
			[]string{"PORT_ERR eth0 is down"}},

		{"second dump without news", addr, 0, eth0, eth0, nil},
		{"address lost between dumps", addr, 0, eth0, dumped(up(1, "lo"), up(2, "eth0")),
			[]string{"GID_CHANGE the address 198.18.0.1 was removed from eth0 (lost)"}},
		{"interface lost between dumps", addr, 0, eth0, dumped(up(1, "lo")),
			[]string{"PORT_ERR eth0 is down", "GID_CHANGE the address 198.18.0.1 was removed from eth0 (lost)"}},
		{"address removed during the dump", addr, 0, eth0, []any{begin, up(2, "eth0"), added(2, addr), removed(2, addr), sweep},
			[]string{"GID_CHANGE the address 198.18.0.1 was removed from eth0 (lost)"}},
		{"address added during the dump", addr, 0, dumped(up(2, "eth0")), []any{begin, added(2, addr), up(2, "eth0"), sweep},
			[]string{"PORT_ACTIVE eth0 is up", "GID_CHANGE the address 198.18.0.1 is back on eth0"}},

		{"loopback address removed", "127.0.0.1/8", 0, eth0, []any{removed(1, "127.0.0.1/8")}, nil},
		{"loopback address that is not listed", "127.5.6.7/8", 0, eth0, []any{removed(1, "127.0.0.1/8"), down(2, "eth0")}, nil},
		{"loopback down and up", "127.5.6.7/8", 0, eth0, []any{down(1, "lo"), up(1, "lo")},
			[]string{"PORT_ERR lo is down", "GID_CHANGE lo is down, and with it the address 127.5.6.7 (lost)", "PORT_ACTIVE lo is up", "GID_CHANGE the address 127.5.6.7 is back on lo"}},

		{"IPv6 checked again", "2001:db8::1/64", 0, dumped(up(2, "eth0"), added(2, "2001:db8::1/64")), []any{tentative(2, "2001:db8::1/64"), added(2, "2001:db8::1/64")}, nil},
		{"IPv6 back only once checked", "2001:db8::1/64", 0, dumped(up(2, "eth0"), added(2, "2001:db8::1/64")),
			[]any{removed(2, "2001:db8::1/64"), tentative(2, "2001:db8::1/64"), down(2, "eth0"), added(2, "2001:db8::1/64")},
			[]string{"GID_CHANGE the address 2001:db8::1 was removed from eth0 (lost)", "PORT_ERR eth0 is down", "GID_CHANGE the address 2001:db8::1 is back on eth0"}},
		{"IPv6 found to be a duplicate", "2001:db8::1/64", 0, dumped(up(2, "eth0"), added(2, "2001:db8::1/64")), []any{duplicate(2, "2001:db8::1/64")},
			[]string{"GID_CHANGE the address 2001:db8::1 of eth0 belongs to another host too (lost)"}},
		{"link-local of another interface", "fe80::1/64", 2, dumped(up(2, "eth0"), up(3, "eth1"), added(2, "fe80::1/64"), added(3, "fe80::1/64")),
			[]any{removed(3, "fe80::1/64"), down(3, "eth1"), added(3, "fe80::1/64"), removed(2, "fe80::1/64")},
			[]string{"GID_CHANGE the address fe80::1 was removed from eth0 (lost)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			p := newPort(netip.MustParsePrefix(tc.addr).Addr(), tc.zone, func(c portChange) {
				s := fmt.Sprint(c.event, " ", c.reason)
				if c.lost {
					s += " (lost)"
				}
				got = append(got, s)
			})
			tell(p, tc.start...)
			if len(got) > 0 {
				t.Fatalf("the first dump was reported: %q", got)
			}
			tell(p, tc.news...)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tc.want, "\n  "))
			}
		})
	}
}

func TestPortAtStart(t *testing.T) {
	const addr = "198.18.0.1/24"
	for _, tc := range []struct {
		name          string
		news          []any
		found, active bool
		hasGID        bool
		ifname        string
	}{
		{"up", dumped(up(2, "eth0"), added(2, addr)), true, true, true, "eth0"},
		{"down", dumped(down(2, "eth0"), added(2, addr)), true, false, true, "eth0"},
		{"the first of two", dumped(up(2, "eth0"), up(3, "eth1"), added(3, addr), added(2, addr)), true, true, true, "eth1"},
		{"nobody has it", dumped(up(2, "eth0"), added(2, "198.18.0.2/24")), false, false, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPort(netip.MustParsePrefix(addr).Addr(), 0, func(c portChange) { t.Errorf("reported %+v", c) })
			tell(p, tc.news...)
			if p.found() != tc.found || p.active != tc.active || p.hasGID != tc.hasGID || p.name != tc.ifname {
				t.Errorf("found %v, active %v, GID %v on %q", p.found(), p.active, p.hasGID, p.name)
			}
		})
	}
}

// fed is a device in memory whose port is told news by the test.
type fed struct {
	*Device
	pd *PD
	cq *CQ
}

func openFed(t *testing.T, sw *udp.Switch, addr string) *fed {
	t.Helper()
	prefix := netip.MustParsePrefix(addr)
	l, err := sw.Link(prefix.Addr())
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(Config{Link: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	c, err := d.CreateCQ(64)
	if err != nil {
		t.Fatal(err)
	}
	d.port = newPort(prefix.Addr(), 0, d.portChanged)
	tell(d.port, dumped(up(2, "eth0"), added(2, addr))...)
	return &fed{d, d.AllocPD(), c}
}

func (f *fed) tell(news ...any) {
	f.shards[0].mu.Lock()
	defer f.shards[0].mu.Unlock()
	tell(f.port, news...)
	f.updateMTU()
}

func (f *fed) pair(t *testing.T, typ qp.Type) *QP {
	t.Helper()
	q, err := f.pd.CreateQP(QPConfig{Type: typ, SendCQ: f.cq, RecvCQ: f.cq})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// expectEvents takes events and compares them.
func (f *fed) expectEvents(t *testing.T, want ...transport.Event) {
	t.Helper()
	for i, w := range want {
		if got := nextEvent(t, f.Device); got != w {
			t.Fatalf("event %d: got %+v, want %+v", i, got, w)
		}
	}
	f.evMu.Lock()
	defer f.evMu.Unlock()
	if len(f.events) > 0 {
		t.Fatalf("%d more events: %+v", len(f.events), f.events)
	}
}

func nextEvent(t *testing.T, d *Device) transport.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e, err := d.Event(ctx)
	if err != nil {
		t.Fatalf("waiting for an event: %v; port %+v", err, d.QueryPort())
	}
	return e
}

// What a device without its address cannot do any more fails, with all of its
// work requests (IBA 10.3.1.7); what needs no connection stays.
func TestDeviceAddressRemovedFailsConnectedPairs(t *testing.T) {
	const reason = "the address 198.18.0.1 was removed from eth0"
	sw := udp.NewSwitch()
	f := openFed(t, sw, "198.18.0.1/24")
	silent := Endpoint{GID: netip.MustParseAddr("198.18.0.9"), QPN: 0x1234}
	connected := ConnectConfig{Timeout: -1}

	idle := f.pair(t, qp.RC) // stays in INIT
	if err := idle.Modify(&qp.Attr{State: qp.Init, Port: 1}, qp.AttrState|qp.AttrPKeyIndex|qp.AttrPort|qp.AttrAccess); err != nil {
		t.Fatal(err)
	}
	rc, uc, ud, sqd := f.pair(t, qp.RC), f.pair(t, qp.UC), f.pair(t, qp.UD), f.pair(t, qp.RC)
	for _, q := range []*QP{rc, uc, sqd} {
		if err := q.Connect(silent, connected); err != nil {
			t.Fatal(err)
		}
	}
	if err := sqd.Modify(&qp.Attr{State: qp.SQD}, qp.AttrState); err != nil {
		t.Fatal(err)
	}
	if err := ud.Activate(1); err != nil {
		t.Fatal(err)
	}
	for id := range uint64(2) {
		if err := rc.PostSend(&qp.SendWR{ID: 10 + id, Op: qp.Send, Inline: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := uc.PostRecv(&qp.RecvWR{ID: 20}); err != nil {
		t.Fatal(err)
	}
	if err := ud.PostRecv(&qp.RecvWR{ID: 30}); err != nil {
		t.Fatal(err)
	}
	if err := f.Err(); err != nil {
		t.Fatalf("Err before: %v", err)
	}

	f.tell(removed(2, "198.18.0.1/24"))
	fatal := func(q *QP) transport.Event {
		return transport.Event{Type: transport.EventQPFatal, QPN: q.QPN(), Reason: reason}
	}
	// Numbers go up in order of creation, except once around.
	failed := []*QP{rc, uc, sqd}
	slices.SortFunc(failed, func(a, b *QP) int { return int(a.QPN()) - int(b.QPN()) })
	f.expectEvents(t, transport.Event{Type: transport.EventGIDChange, Reason: reason}, fatal(failed[0]), fatal(failed[1]), fatal(failed[2]))
	for q, want := range map[*QP]qp.State{idle: qp.Init, rc: qp.Err, uc: qp.Err, sqd: qp.Err, ud: qp.RTS} {
		if s := q.State(); s != want {
			t.Errorf("%v is in %v, want %v", q, s, want)
		}
	}
	flushed := map[uint64]cq.Status{}
	wcs := make([]cq.WC, 8)
	for _, wc := range wcs[:f.cq.Poll(wcs)] {
		flushed[wc.ID] = wc.Status
	}
	if len(flushed) != 3 || flushed[10] != cq.WRFlushErr || flushed[11] != cq.WRFlushErr || flushed[20] != cq.WRFlushErr {
		t.Errorf("completions %v, want 10, 11 and 20 flushed", flushed)
	}
	var lost *AddressError
	if err := f.Err(); !errors.As(err, &lost) || lost.Reason != reason || err.Error() != "verbs: "+reason {
		t.Errorf("Err: %v", err)
	}

	f.tell(added(2, "198.18.0.1/24"))
	f.expectEvents(t, transport.Event{Type: transport.EventGIDChange, Reason: "the address 198.18.0.1 is back on eth0"})
	if s := rc.State(); s != qp.Err {
		t.Errorf("%v is in %v once the address is back, want ERR", rc, s)
	}
	if f.Err() == nil {
		t.Error("Err is forgotten once the address is back")
	}
	s := f.Stats()
	if s["gid_change"] != 2 || s["port_err"] != 0 || s["port_watched"] != 0 {
		t.Errorf("stats: gid_change %d, port_err %d, port_watched %d", s["gid_change"], s["port_err"], s["port_watched"])
	}
}

// A work request that waits for its completion hears of the removal at once,
// not after the retries.
func TestDeviceAddressRemovedWakesWaiter(t *testing.T) {
	f := openFed(t, udp.NewSwitch(), "198.18.0.1/24")
	q := f.pair(t, qp.RC)
	if err := q.Connect(Endpoint{GID: netip.MustParseAddr("198.18.0.9"), QPN: 0x1234}, ConnectConfig{Timeout: -1}); err != nil {
		t.Fatal(err)
	}
	if err := q.PostSend(&qp.SendWR{ID: 1, Op: qp.Send}); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		f.tell(removed(2, "198.18.0.1/24"))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	wcs := make([]cq.WC, 2)
	if n, err := f.cq.Wait(ctx, wcs); err != nil || n != 1 || wcs[0].Status != cq.WRFlushErr {
		t.Fatalf("%d completions %v, %v; want one, flushed", n, wcs[:n], err)
	}
}

// A link that is down may come back before the retries are used up.
func TestDeviceLinkDownKeepsPairs(t *testing.T) {
	sw := udp.NewSwitch()
	a, b := openFed(t, sw, "198.18.0.1/24"), openFed(t, sw, "198.18.0.2/24")
	qa, qb := a.pair(t, qp.RC), b.pair(t, qp.RC)
	if err := qa.Connect(qb.Local(), ConnectConfig{}); err != nil {
		t.Fatal(err)
	}
	if err := qb.Connect(qa.Local(), ConnectConfig{}); err != nil {
		t.Fatal(err)
	}
	a.tell(down(2, "eth0"))
	a.expectEvents(t, transport.Event{Type: transport.EventPortErr, Reason: "eth0 is down"})
	a.tell(up(2, "eth0"))
	a.expectEvents(t, transport.Event{Type: transport.EventPortActive, Reason: "eth0 is up"})
	if err := qb.PostRecv(&qp.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	if err := qa.PostSend(&qp.SendWR{Op: qp.Send, Flags: qp.Signaled}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	wcs := make([]cq.WC, 1)
	if _, err := a.cq.Wait(ctx, wcs); err != nil || wcs[0].Status != cq.Success {
		t.Fatalf("SEND after the link was down: %v, %v", wcs[0].Status, err)
	}
	if err := a.Err(); err != nil {
		t.Errorf("Err: %v", err)
	}
}

func TestDeviceActiveMTUFollowsInterface(t *testing.T) {
	f := openFed(t, udp.NewSwitch(), "198.18.0.1/24")
	for _, step := range []struct{ net, active int }{{9000, 4096}, {1500, 1024}, {600, 512}, {0, 512}} {
		u := up(2, "eth0")
		u.mtu = step.net
		f.tell(u)
		if got := f.ActiveMTU(); got != step.active {
			t.Errorf("interface MTU %d: active MTU %d, want %d", step.net, got, step.active)
		}
		if got := f.longestDatagram(t); got != step.active {
			t.Errorf("interface MTU %d: datagrams of %d bytes, want %d", step.net, got, step.active)
		}
	}
}

// longestDatagram returns how many bytes a UD pair may send at a time
// (C10-93.1.1).
func (f *fed) longestDatagram(t *testing.T) (most int) {
	t.Helper()
	mem, err := f.pd.RegisterMR(make([]byte, 8192), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{256, 257, 512, 513, 1024, 1025, 4096, 4097} {
		q := f.pair(t, qp.UD)
		if err := q.Activate(1); err != nil {
			t.Fatal(err)
		}
		wr := qp.SendWR{Op: qp.Send, SGE: []mr.SGE{mem.SGE(0, n)}, AH: &qp.AddressVector{DGID: netip.MustParseAddr("198.18.0.9")}, RemoteQPN: 2, Flags: qp.Signaled}
		if err := q.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		var wc [1]cq.WC
		for f.cq.Poll(wc[:]) == 0 {
		}
		if wc[0].Status == cq.Success {
			most = n
		}
	}
	return most
}

func TestDeviceSaysWhyItDoesNotWatch(t *testing.T) {
	l, err := udp.NewSwitch().Link(netip.MustParseAddr("198.18.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"NoWatch", Config{Addr: netip.MustParseAddr("127.0.4.1"), NoWatch: true}, unwatchedByConfig},
		{"a given link", Config{Link: l}, unwatchedLink},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := Open(tc.cfg)
			if err != nil {
				var inUse *udp.InUseError
				if errors.As(err, &inUse) {
					t.Skipf("needs UDP port 4791 on loopback: %v", err)
				}
				t.Fatal(err)
			}
			defer d.Close()
			a := d.QueryPort()
			if a.Watched || a.Unwatched != tc.want {
				t.Errorf("watched %v, reason %q; want %q", a.Watched, a.Unwatched, tc.want)
			}
			if a.State != PortActive || d.PortState() != PortActive || !a.HasGID || a.ActiveMTU != 4096 {
				t.Errorf("port %+v", a)
			}
			if d.Stats()["port_watched"] != 0 {
				t.Error("port_watched is not 0")
			}
		})
	}
}

func TestPortStateNames(t *testing.T) {
	for s, want := range map[PortState]string{PortDown: "PORT_DOWN", PortActive: "PORT_ACTIVE", 2: "port state 2"} {
		if s.String() != want {
			t.Errorf("%d: %q, want %q", uint8(s), s, want)
		}
	}
	for e, want := range map[transport.EventType]string{9: "PORT_ACTIVE", 10: "PORT_ERR", 18: "GID_CHANGE"} {
		if e.String() != want {
			t.Errorf("event %d: %q, want %q", uint8(e), e, want)
		}
	}
}
