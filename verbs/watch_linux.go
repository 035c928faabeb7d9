package verbs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watch is a netlink socket that is told of interfaces and addresses, in the
// network namespace in which the device was opened.
//
// Interfaces, addresses and dumps share one socket, so that news comes in the
// order in which it happened, and a dump after lost news sees the same
// namespace, whichever thread asks. The subscriptions of package netlink take
// two sockets, end when news is lost, leave goroutines that nobody can wait for,
// and close a descriptor twice where a sandbox refuses them.
type watch struct {
	port *port
	file *os.File
	conn syscall.RawConn
	read func(fd uintptr) bool

	// The datagram received last.
	buf  []byte
	n    int
	from unix.Sockaddr
	err  error
	wait bool
	poll [1]unix.PollFd

	ask     uint16 // the dump to ask for, 0 none
	dumping uint16 // the dump that runs or ran last
	seq     uint32 // its sequence number, 0 when it has ended
	again   bool   // it missed something
}

const (
	// watchBuffer holds the longest datagram that netlink sends.
	watchBuffer = 64 << 10
	// watchQueue is the socket buffer to ask for. If news is lost all the same,
	// everything is dumped afresh.
	watchQueue = 1 << 20
	// watchStart bounds how long Open waits for the first dump.
	watchStart = 5 * time.Second
)

// openWatch subscribes and tells the port everything that exists.
func openWatch(p *port) (*watch, error) {
	fd, err := netlinkSocket(p.addr.Is4())
	if err != nil {
		return nil, fmt.Errorf("netlink cannot be used: %w", err)
	}
	w := &watch{port: p, file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, watchBuffer)}
	w.read = w.readFrom
	if err := w.start(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// netlinkSocket returns a socket that hears of interfaces and of the addresses
// of one family.
func netlinkSocket(v4 bool) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, err
	}
	addresses := unix.RTNLGRP_IPV6_IFADDR
	if v4 {
		addresses = unix.RTNLGRP_IPV4_IFADDR
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, watchQueue)
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1<<(unix.RTNLGRP_LINK-1) | 1<<(addresses-1)})
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// start reads the first dump.
func (w *watch) start() (err error) {
	if w.conn, err = w.file.SyscallConn(); err != nil {
		return fmt.Errorf("netlink cannot be used: %w", err)
	}
	if err := w.file.SetReadDeadline(time.Now().Add(watchStart)); err != nil {
		return fmt.Errorf("netlink cannot be used: %w", err)
	}
	w.restart()
	for !w.port.complete {
		if _, err := w.receive(true); err != nil {
			return err
		}
		if err := w.handle(); err != nil {
			return err
		}
	}
	return w.file.SetReadDeadline(time.Time{})
}

// close ends a receive that waits, and frees the socket.
func (w *watch) close() { _ = w.file.Close() }

// receive sends the request that is due and receives one datagram, which it
// waits for if told so. Unlike handle, it needs no owner of the device.
func (w *watch) receive(wait bool) (got bool, err error) {
	if err := w.request(); err != nil {
		return false, errNoDump(err)
	}
	w.wait, w.n = wait, 0
	if err := w.conn.Read(w.read); err != nil {
		return false, fmt.Errorf("netlink has fallen silent: %w", err)
	}
	switch w.err {
	case nil, unix.ENOBUFS:
		return true, nil
	case unix.EAGAIN, unix.EINTR:
		return false, nil
	}
	return false, fmt.Errorf("netlink has fallen silent: %w", w.err)
}

func (w *watch) readFrom(fd uintptr) (done bool) {
	if !w.wait {
		// Recvfrom allocates, which polling must not do for nothing.
		w.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		if n, _ := unix.Poll(w.poll[:], 0); n <= 0 {
			w.err = unix.EAGAIN
			return true
		}
	}
	w.n, w.from, w.err = unix.Recvfrom(int(fd), w.buf, 0)
	return w.err != unix.EAGAIN || !w.wait
}

// request asks for the dump that is due.
func (w *watch) request() error {
	if w.ask == 0 {
		return nil
	}
	req := nl.NewNetlinkRequest(int(w.ask), unix.NLM_F_DUMP)
	family := unix.AF_UNSPEC
	if w.ask == unix.RTM_GETADDR {
		family = w.family()
	}
	req.AddData(nl.NewIfInfomsg(family))
	if w.ask == unix.RTM_GETLINK {
		req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	}
	w.dumping, w.ask, w.seq = w.ask, 0, req.Seq
	b, err := req.Serialize(), error(nil)
	cerr := w.conn.Control(func(fd uintptr) { err = unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) })
	return cmp.Or(cerr, err)
}

// skipStats is RTEXT_FILTER_SKIP_STATS: an interface without its counters.
const skipStats = 1 << 3

// family returns the address family of the device.
func (w *watch) family() int {
	if w.port.addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// handle tells the port what the datagram received last says. The caller owns
// the device.
func (w *watch) handle() error {
	if w.err != nil {
		if w.err == unix.ENOBUFS {
			w.lost()
		}
		return nil
	}
	if from, ok := w.from.(*unix.SockaddrNetlink); !ok || from.Pid != 0 {
		return nil // not from the kernel
	}
	msgs, err := syscall.ParseNetlinkMessage(w.buf[:w.n])
	if err != nil {
		w.lost()
		return nil
	}
	for i := range msgs {
		if err := w.message(&msgs[i]); err != nil {
			return err
		}
	}
	return nil
}

// lost notes that news was lost, so that everything has to be told again. One
// socket can have only one dump at a time.
func (w *watch) lost() {
	w.port.newsLost++
	if w.again = true; w.seq == 0 {
		w.restart()
	}
}

func (w *watch) restart() {
	w.again, w.ask = false, unix.RTM_GETLINK
	w.port.begin()
}

func (w *watch) message(m *syscall.NetlinkMessage) error {
	ours := w.seq != 0 && m.Header.Seq == w.seq
	if ours && m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
		w.again = true
	}
	switch t := m.Header.Type; {
	case (t == unix.NLMSG_ERROR || t == unix.NLMSG_DONE) && ours:
		if errno := errnoOf(m.Data); errno != 0 {
			return errNoDump(errno)
		}
		if t == unix.NLMSG_DONE {
			w.dumped()
		}
	case t == unix.RTM_NEWLINK, t == unix.RTM_DELLINK:
		if u, ok := parseLink(m); ok {
			w.port.link(u)
		}
	case t == unix.RTM_NEWADDR, t == unix.RTM_DELADDR:
		if u, ok := parseAddr(m); ok {
			w.port.address(u)
		}
	}
	return nil
}

// dumped goes on after the end of a dump: addresses follow interfaces.
func (w *watch) dumped() {
	w.seq = 0
	switch {
	case w.again:
		w.restart()
	case w.dumping == unix.RTM_GETLINK:
		w.ask = unix.RTM_GETADDR
	default:
		w.port.sweep()
	}
}

func errNoDump(err error) error { return fmt.Errorf("netlink does not list what exists: %w", err) }

// errnoOf reads the error that ends a dump, 0 if none.
func errnoOf(b []byte) unix.Errno {
	if len(b) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(b)))
}

// parseLink reads a message on an interface. Those of other families are on its
// role in a bridge, or on its IPv6 settings.
func parseLink(m *syscall.NetlinkMessage) (u linkUpdate, ok bool) {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return u, false
	}
	msg := nl.DeserializeIfInfomsg(m.Data)
	if msg.Family != unix.AF_UNSPEC {
		return u, false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return u, false
	}
	// The kernel sets RUNNING while the operational state is UP or, for
	// interfaces that do not keep one, UNKNOWN.
	const up = unix.IFF_UP | unix.IFF_RUNNING
	u = linkUpdate{
		index: int(msg.Index), up: msg.Flags&up == up, loopback: msg.Flags&unix.IFF_LOOPBACK != 0,
		gone: m.Header.Type == unix.RTM_DELLINK,
	}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == unix.IFLA_IFNAME:
			u.name = unix.ByteSliceToString(a.Value)
		case a.Attr.Type == unix.IFLA_MTU && len(a.Value) == 4:
			u.mtu = int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return u, true
}

func parseAddr(m *syscall.NetlinkMessage) (u addrUpdate, ok bool) {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return u, false
	}
	msg := nl.DeserializeIfAddrmsg(m.Data)
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return u, false
	}
	flags := uint32(msg.Flags)
	var addr netip.Addr
	for _, a := range attrs {
		switch {
		case a.Attr.Type == unix.IFA_FLAGS && len(a.Value) == 4:
			flags = binary.NativeEndian.Uint32(a.Value)
		case a.Attr.Type == unix.IFA_LOCAL, a.Attr.Type == unix.IFA_ADDRESS && !addr.IsValid():
			// On a point-to-point interface ADDRESS is the peer's.
			addr, _ = netip.AddrFromSlice(a.Value)
		}
	}
	u = addrUpdate{
		index: int(msg.Index), prefix: netip.PrefixFrom(addr, int(msg.Prefixlen)),
		// An optimistic address works while it is checked.
		tentative: flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0,
		duplicate: flags&unix.IFA_F_DADFAILED != 0, gone: m.Header.Type == unix.RTM_DELADDR,
	}
	return u, addr.IsValid()
}
