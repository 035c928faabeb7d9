package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// inNamespace marks the test process that runs inside the network namespace.
const inNamespace = "GOROCE_TEST_IN_NAMESPACE"

// Inside the namespace w0 is the interface that the tests change. If the kernel
// has no dummy interfaces it is one end of a pair, with w1.
const ifName = "w0"

// TestWatchInNamespace changes real interfaces and addresses. It makes a network
// namespace and runs itself inside.
func TestWatchInNamespace(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		t.Run("event loop", func(t *testing.T) { watchEverything(t, Config{}) })
		t.Run("portable socket", func(t *testing.T) { watchEverything(t, Config{Portable: true}) })
		t.Run("polled", func(t *testing.T) { watchEverything(t, Config{Polled: true}) })
		t.Run("IPv6", watchIPv6)
		t.Run("loopback", watchLoopback)
		t.Run("interface deleted", watchDeleted)
		t.Run("news lost", watchOverrun)
		t.Run("foreign address", watchForeign)
		t.Run("close", watchClose)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the program ip (iproute2)")
	}
	ns := fmt.Sprintf("goroce-watch-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Skipf("needs permission to make a network namespace: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
			t.Errorf("the namespace %s stays: %v: %s", ns, err, out)
		}
	})
	if out, err := exec.Command("ip", "-n", ns, "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("lo: %v: %s", err, out)
	}
	if exec.Command("ip", "-n", ns, "link", "add", ifName, "type", "dummy").Run() != nil {
		if out, err := exec.Command("ip", "-n", ns, "link", "add", ifName, "type", "veth", "peer", "name", "w1").CombinedOutput(); err != nil {
			t.Skipf("needs dummy or veth interfaces: %v: %s", err, out)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", ns, self, "-test.run=^TestWatchInNamespace$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || testing.Verbose() {
		t.Logf("inside the namespace:\n%s", out)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ip runs the program of that name.
func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// paired reports whether w0 is one of a pair.
func paired() bool {
	_, err := net.InterfaceByName("w1")
	return err == nil
}

// freshInterface brings w0 up, with these addresses only.
func freshInterface(t *testing.T, prefixes ...string) {
	t.Helper()
	if paired() {
		ip(t, "link", "set", "w1", "up")
	}
	ip(t, "link", "set", ifName, "mtu", "1500", "up")
	ip(t, "addr", "flush", "dev", ifName)
	for _, p := range prefixes {
		args := []string{"addr", "add", p, "dev", ifName}
		if strings.Contains(p, ":") {
			args = append(args, "nodad")
		}
		ip(t, args...)
	}
	eventually(t, "w0 is up", func() bool {
		l, err := netlink.LinkByName(ifName)
		return err == nil && l.Attrs().RawFlags&unix.IFF_RUNNING != 0
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// side is one of two connected devices.
type side struct {
	*Device
	cq  *CQ
	qp  *QP
	mem *MR
}

func openSide(t *testing.T, c Config, addr string) *side {
	t.Helper()
	c.Addr = netip.MustParseAddr(addr)
	d, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if a := d.QueryPort(); !a.Watched || a.Unwatched != "" || d.Stats()["port_watched"] != 1 {
		t.Fatalf("the device does not watch: %+v", a)
	}
	s := &side{Device: d}
	pd := d.AllocPD()
	if s.cq, err = d.CreateCQ(64); err != nil {
		t.Fatal(err)
	}
	if s.qp, err = pd.CreateQP(QPConfig{SendCQ: s.cq, RecvCQ: s.cq}); err != nil {
		t.Fatal(err)
	}
	if s.mem, err = pd.RegisterMR(make([]byte, 8192), mr.LocalWrite|mr.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	return s
}

// connect connects two sides anew.
func connect(t *testing.T, a, b *side) {
	t.Helper()
	for _, s := range []*side{a, b} {
		if err := s.qp.Modify(&qp.Attr{State: qp.Reset}, qp.AttrState); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range [][2]*side{{a, b}, {b, a}} {
		if err := x[0].qp.Connect(x[1].qp.Local(), ConnectConfig{Access: mr.RemoteWrite, Timeout: 10, RetryCount: 7}); err != nil {
			t.Fatal(err)
		}
	}
}

// write does an RDMA WRITE from a to b and checks the bytes.
func write(t *testing.T, a, b *side, seed byte) {
	t.Helper()
	for i := range a.mem.Bytes() {
		a.mem.Bytes()[i] = byte(i) ^ seed
	}
	err := a.qp.PostSend(&qp.SendWR{Op: qp.RDMAWrite, Flags: qp.Signaled, SGE: []mr.SGE{a.mem.SGE(0, 8192)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key()})
	if err != nil {
		t.Fatal(err)
	}
	wcs := make([]cq.WC, 1)
	eventually(t, "the WRITE completes", func() bool {
		if b.cfg.Polled {
			b.Poll()
		}
		return a.cq.Poll(wcs) == 1
	})
	if wcs[0].Status != cq.Success {
		t.Fatalf("WRITE: %v; port %+v", wcs[0].Status, a.QueryPort())
	}
	b.Sync()
	if !bytes.Equal(a.mem.Bytes(), b.mem.Bytes()) {
		t.Fatal("WRITE: wrong bytes")
	}
}

// expect takes the next event, past COMM_EST.
func (s *side) expect(t *testing.T, typ transport.EventType, reason string) transport.Event {
	t.Helper()
	for {
		e := nextEvent(t, s.Device)
		if e.Type == transport.EventCommEst {
			continue
		}
		if e.Type != typ || e.Reason != reason {
			t.Fatalf("event %v %q, want %v %q", e.Type, e.Reason, typ, reason)
		}
		return e
	}
}

func watchEverything(t *testing.T, c Config) {
	const addr, other = "198.18.5.1/24", "198.18.6.1/24"
	const wentAway, cameBack = "the address 198.18.5.1 was removed from w0", "the address 198.18.5.1 is back on w0"
	freshInterface(t, addr, other)
	a, b := openSide(t, c, "198.18.5.1"), openSide(t, c, "198.18.6.1")
	connect(t, a, b)
	write(t, a, b, 1)
	if p := a.QueryPort(); p.State != PortActive || !p.HasGID || p.Interface != ifName || p.NetMTU != 1500 || p.ActiveMTU != 1024 {
		t.Fatalf("port %+v", p)
	}

	ip(t, "link", "set", ifName, "down")
	a.expect(t, transport.EventPortErr, "w0 is down")
	b.expect(t, transport.EventPortErr, "w0 is down")
	if s := a.PortState(); s != PortDown {
		t.Errorf("port state %v, want PORT_DOWN", s)
	}
	ip(t, "link", "set", ifName, "up")
	a.expect(t, transport.EventPortActive, "w0 is up")
	b.expect(t, transport.EventPortActive, "w0 is up")
	write(t, a, b, 2)
	if exec.Command("ip", "link", "add", "br0", "type", "bridge").Run() == nil {
		// To leave a bridge is not to leave.
		ip(t, "link", "set", ifName, "master", "br0")
		ip(t, "link", "set", ifName, "nomaster")
		ip(t, "link", "del", "br0")
		write(t, a, b, 2)
	}
	if paired() {
		ip(t, "link", "set", "w1", "down")
		a.expect(t, transport.EventPortErr, "w0 is down")
		ip(t, "link", "set", "w1", "up")
		a.expect(t, transport.EventPortActive, "w0 is up")
		b.expect(t, transport.EventPortErr, "w0 is down")
		b.expect(t, transport.EventPortActive, "w0 is up")
	}

	if err := a.qp.PostRecv(&qp.RecvWR{ID: 7}); err != nil {
		t.Fatal(err)
	}
	ip(t, "addr", "del", addr, "dev", ifName)
	a.expect(t, transport.EventGIDChange, wentAway)
	if e := a.expect(t, transport.EventQPFatal, wentAway); e.QPN != a.qp.QPN() {
		t.Errorf("QP_FATAL of 0x%06x", uint32(e.QPN))
	}
	if s := a.qp.State(); s != qp.Err {
		t.Errorf("the pair is in %v, want ERR", s)
	}
	wcs := make([]cq.WC, 2)
	if n := a.cq.Poll(wcs); n != 1 || wcs[0].ID != 7 || wcs[0].Status != cq.WRFlushErr {
		t.Errorf("%d completions %+v, want the receive flushed", n, wcs[:n])
	}
	if err := a.Err(); err == nil || err.Error() != "verbs: "+wentAway {
		t.Errorf("Err: %v", err)
	}
	if p := a.QueryPort(); p.HasGID || p.State != PortActive {
		t.Errorf("port %+v", p)
	}
	if s := b.qp.State(); s != qp.RTS {
		t.Errorf("the pair of the device that keeps its address is in %v", s)
	}

	ip(t, "addr", "add", addr, "dev", ifName)
	a.expect(t, transport.EventGIDChange, cameBack)
	connect(t, a, b)
	write(t, a, b, 3)

	// The same address in two networks is there until both are gone.
	ip(t, "addr", "add", "198.18.5.1/32", "dev", ifName)
	ip(t, "addr", "del", addr, "dev", ifName)
	ip(t, "link", "set", ifName, "mtu", "600")
	eventually(t, "the active MTU follows", func() bool {
		if c.Polled {
			a.Poll()
		}
		return a.ActiveMTU() == 512
	})
	write(t, a, b, 4)
	ip(t, "addr", "del", "198.18.5.1/32", "dev", ifName)
	a.expect(t, transport.EventGIDChange, wentAway)
	a.expect(t, transport.EventQPFatal, wentAway)
	if s := a.Stats(); s["port_news_lost"] != 0 {
		t.Errorf("news lost %d times", s["port_news_lost"])
	}
}

// The kernel takes IPv6 addresses from an interface that goes down.
func watchIPv6(t *testing.T) {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		t.Skip("needs IPv6 in the kernel")
	}
	const addr = "2001:db8:5::1/64"
	freshInterface(t, addr)
	a := openSide(t, Config{}, "2001:db8:5::1")
	ip(t, "link", "set", ifName, "down")
	// In which order depends on the kernel.
	got := []string{nextEvent(t, a.Device).Reason, nextEvent(t, a.Device).Reason}
	slices.Sort(got)
	if want := []string{"the address 2001:db8:5::1 was removed from w0", "w0 is down"}; !slices.Equal(got, want) {
		t.Fatalf("events %q, want %q", got, want)
	}
	ip(t, "link", "set", ifName, "up")
	a.expect(t, transport.EventPortActive, "w0 is up")
	ip(t, "addr", "add", addr, "dev", ifName) // with duplicate detection
	a.expect(t, transport.EventGIDChange, "the address 2001:db8:5::1 is back on w0")
}

func watchLoopback(t *testing.T) {
	a := openSide(t, Config{}, "127.0.7.1")
	ip(t, "addr", "del", "127.0.0.1/8", "dev", "lo")
	ip(t, "addr", "add", "127.0.0.1/8", "dev", "lo")
	ip(t, "link", "set", "lo", "down")
	a.expect(t, transport.EventPortErr, "lo is down")
	a.expect(t, transport.EventGIDChange, "lo is down, and with it the address 127.0.7.1")
	ip(t, "link", "set", "lo", "up")
	a.expect(t, transport.EventPortActive, "lo is up")
	a.expect(t, transport.EventGIDChange, "the address 127.0.7.1 is back on lo")
}

func watchDeleted(t *testing.T) {
	ip(t, "link", "add", "w8", "type", "veth", "peer", "name", "w9")
	ip(t, "addr", "add", "198.18.8.1/24", "dev", "w8")
	ip(t, "link", "set", "w9", "up")
	ip(t, "link", "set", "w8", "up")
	a := openSide(t, Config{}, "198.18.8.1")
	if a.PortState() == PortDown {
		a.expect(t, transport.EventPortActive, "w8 is up")
	}
	ip(t, "link", "del", "w8")
	got := []string{nextEvent(t, a.Device).Reason, nextEvent(t, a.Device).Reason}
	slices.Sort(got)
	if want := []string{"the address 198.18.8.1 was removed from w8", "w8 is down"}; !slices.Equal(got, want) {
		t.Fatalf("events %q, want %q", got, want)
	}
}

// The watch is held up until netlink has more news than fits, and the removal
// is among what is lost.
func watchOverrun(t *testing.T) {
	freshInterface(t, "198.18.5.1/24")
	a := openSide(t, Config{}, "198.18.5.1")
	rc, err := a.watch.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = rc.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		t.Fatal(err)
	}
	a.shards[0].mu.Lock()
	for i := range 100 {
		if err := netlink.LinkSetMTU(link, 1400+i); err != nil {
			t.Error(err)
		}
	}
	ip(t, "addr", "del", "198.18.5.1/24", "dev", ifName)
	a.shards[0].mu.Unlock()
	a.expect(t, transport.EventGIDChange, "the address 198.18.5.1 was removed from w0")
	if a.Stats()["port_news_lost"] == 0 {
		t.Error("no news was lost: the test shows nothing")
	}
	if mtu := a.QueryPort().NetMTU; mtu != 1499 {
		t.Errorf("MTU %d, want 1499", mtu)
	}
	ip(t, "addr", "add", "198.18.5.1/24", "dev", ifName)
	a.expect(t, transport.EventGIDChange, "the address 198.18.5.1 is back on w0")
}

// A socket can have an address that no interface lists, if a route says it is
// local.
func watchForeign(t *testing.T) {
	ip(t, "route", "add", "local", "198.18.9.0/24", "dev", "lo")
	d, err := Open(Config{Addr: netip.MustParseAddr("198.18.9.1")})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if a := d.QueryPort(); a.Watched || a.Unwatched != unwatchedNowhere || a.HasGID {
		t.Errorf("port %+v", a)
	}
}

// Close leaves no goroutine and no file, in the middle of news or not.
func watchClose(t *testing.T) {
	freshInterface(t, "198.18.5.1/24")
	cfg := Config{Addr: netip.MustParseAddr("198.18.5.1")}
	once := func(c Config) {
		d, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		if !d.QueryPort().Watched {
			t.Fatalf("not watched: %+v", d.QueryPort())
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		t.Fatal(err)
	}
	once(cfg) // what the runtime opens for itself
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = netlink.LinkSetMTU(link, 1400+i%100)
			}
		}
	}()
	for range 50 {
		once(cfg)
		polled := cfg
		polled.Polled = true
		once(polled)
	}
	close(stop)
	<-stopped
	// One that has just ended may still be counted.
	eventually(t, "the number of goroutines is what it was", func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := openFiles(t); n > files {
		t.Errorf("%d open files, %d before", n, files)
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	return len(l)
}

// inSandbox marks the test process that may not use netlink.
const inSandbox = "GOROCE_TEST_IN_SANDBOX"

// Where netlink is refused, as in some containers, a device works without it.
func TestDeviceWithoutNetlink(t *testing.T) {
	if os.Getenv(inSandbox) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "-test.run=^TestDeviceWithoutNetlink$", "-test.v", "-test.count=1")
		cmd.Env = append(os.Environ(), inSandbox+"=1")
		out, err := cmd.CombinedOutput()
		switch {
		case err != nil:
			t.Fatalf("in the sandbox: %v\n%s", err, out)
		case bytes.Contains(out, []byte("--- SKIP")):
			t.Skipf("in the sandbox: %s", out)
		}
		return
	}
	if err := refuseNetlink(); err != nil {
		t.Skipf("needs seccomp: %v", err)
	}
	d, err := Open(Config{Addr: netip.MustParseAddr("127.0.4.4")})
	if err != nil {
		t.Skipf("needs UDP port 4791 on loopback: %v", err)
	}
	a := d.QueryPort()
	if a.Watched || a.Unwatched != "netlink cannot be used: operation not permitted" || d.Stats()["port_watched"] != 0 {
		t.Errorf("port %+v, stats %v", a, d.Stats())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// refuseNetlink makes socket(AF_NETLINK, …) fail with EPERM in this process.
func refuseNetlink() error {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return errors.New("no filter for this architecture")
	}
	const (
		load                  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal                 = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		result                = unix.BPF_RET | unix.BPF_K
		number, firstArgument = 0, 16 // offsets in struct seccomp_data
	)
	filter := []unix.SockFilter{
		{Code: load, K: number},
		{Code: equal, K: unix.SYS_SOCKET, Jf: 3},
		{Code: load, K: firstArgument},
		{Code: equal, K: unix.AF_NETLINK, Jf: 1},
		{Code: result, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: result, K: unix.SECCOMP_RET_ALLOW},
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}

func TestWatchParsesMessages(t *testing.T) {
	attr := func(typ int, value []byte) []byte { return nl.NewRtAttr(typ, value).Serialize() }
	link := func(family int, flags uint32, attrs ...[]byte) []byte {
		m := nl.NewIfInfomsg(family)
		m.Index, m.Flags = 2, flags
		return append(m.Serialize(), slices.Concat(attrs...)...)
	}
	addr := func(family int, flags uint8, attrs ...[]byte) []byte {
		m := nl.NewIfAddrmsg(family)
		m.Index, m.Prefixlen, m.Flags = 2, 24, flags
		return append(m.Serialize(), slices.Concat(attrs...)...)
	}
	const running = unix.IFF_UP | unix.IFF_RUNNING
	name, mtu := attr(unix.IFLA_IFNAME, nl.ZeroTerminated("eth0")), attr(unix.IFLA_MTU, nl.Uint32Attr(1500))
	local, peer := attr(unix.IFA_LOCAL, []byte{198, 18, 0, 1}), attr(unix.IFA_ADDRESS, []byte{198, 18, 0, 2})
	v6 := netip.MustParseAddr("2001:db8::1")
	address6 := attr(unix.IFA_ADDRESS, v6.AsSlice())
	p4, p6 := netip.MustParsePrefix("198.18.0.1/24"), netip.PrefixFrom(v6, 24)
	for _, tc := range []struct {
		name string
		typ  uint16
		data []byte
		want any // nil: ignored
	}{
		{"link up", unix.RTM_NEWLINK, link(unix.AF_UNSPEC, running, name, mtu), linkUpdate{index: 2, name: "eth0", mtu: 1500, up: true}},
		{"link without carrier", unix.RTM_NEWLINK, link(unix.AF_UNSPEC, unix.IFF_UP, name, mtu), linkUpdate{index: 2, name: "eth0", mtu: 1500}},
		{"link set down", unix.RTM_NEWLINK, link(unix.AF_UNSPEC, unix.IFF_RUNNING, name), linkUpdate{index: 2, name: "eth0"}},
		{"loopback", unix.RTM_NEWLINK, link(unix.AF_UNSPEC, running|unix.IFF_LOOPBACK, name), linkUpdate{index: 2, name: "eth0", up: true, loopback: true}},
		{"link gone", unix.RTM_DELLINK, link(unix.AF_UNSPEC, 0, name), linkUpdate{index: 2, name: "eth0", gone: true}},
		{"link leaves a bridge", unix.RTM_DELLINK, link(unix.AF_BRIDGE, running, name), nil},
		{"link's IPv6 settings", unix.RTM_NEWLINK, link(unix.AF_INET6, 0, name), nil},
		{"link cut short", unix.RTM_NEWLINK, link(unix.AF_UNSPEC, running)[:8], nil},
		{"link with a damaged attribute", unix.RTM_NEWLINK, link(unix.AF_UNSPEC, running, []byte{99, 0, 3, 0}), nil},

		{"address", unix.RTM_NEWADDR, addr(unix.AF_INET, 0, local), addrUpdate{index: 2, prefix: p4}},
		{"address gone", unix.RTM_DELADDR, addr(unix.AF_INET, 0, local), addrUpdate{index: 2, prefix: p4, gone: true}},
		{"address facing a peer", unix.RTM_NEWADDR, addr(unix.AF_INET, 0, peer, local), addrUpdate{index: 2, prefix: p4}},
		{"IPv6", unix.RTM_NEWADDR, addr(unix.AF_INET6, 0, address6), addrUpdate{index: 2, prefix: p6}},
		{"IPv6 tentative", unix.RTM_NEWADDR, addr(unix.AF_INET6, unix.IFA_F_TENTATIVE, address6), addrUpdate{index: 2, prefix: p6, tentative: true}},
		{"IPv6 optimistic", unix.RTM_NEWADDR, addr(unix.AF_INET6, unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC, address6), addrUpdate{index: 2, prefix: p6}},
		{"IPv6 duplicate", unix.RTM_NEWADDR, addr(unix.AF_INET6, 0, address6, attr(unix.IFA_FLAGS, nl.Uint32Attr(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED))),
			addrUpdate{index: 2, prefix: p6, tentative: true, duplicate: true}},
		{"address cut short", unix.RTM_NEWADDR, addr(unix.AF_INET, 0)[:4], nil},
		{"no address", unix.RTM_NEWADDR, addr(unix.AF_INET, 0), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: tc.typ}, Data: tc.data}
			var got any
			if tc.typ == unix.RTM_NEWLINK || tc.typ == unix.RTM_DELLINK {
				if u, ok := parseLink(m); ok {
					got = u
				}
			} else if u, ok := parseAddr(m); ok {
				got = u
			}
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// Close returns when the watch has ended: nothing is waited for here.
func TestWatchCloseIsComplete(t *testing.T) {
	once := func(addr string, polled bool) {
		d, err := Open(Config{Addr: netip.MustParseAddr(addr), Polled: polled})
		if err != nil {
			t.Skipf("needs UDP port 4791 on loopback: %v", err)
		}
		if a := d.QueryPort(); !a.Watched {
			_ = d.Close()
			t.Skipf("needs netlink: %s", a.Unwatched)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-d.watchEnded:
		default:
			t.Fatal("the watch goes on after Close")
		}
	}
	once("127.0.4.2", false)
	files := openFiles(t)
	for range 20 {
		once("127.0.4.2", false)
		once("127.0.4.2", true)
		if n := openFiles(t); n > files {
			t.Fatalf("%d open files, %d before", n, files)
		}
	}
}

// A polled device without news pays a system call now and then, and no memory.
func TestWatchPolledWithoutNewsDoesNotAllocate(t *testing.T) {
	d, err := Open(Config{Addr: netip.MustParseAddr("127.0.4.3"), Polled: true})
	if err != nil {
		t.Skipf("needs UDP port 4791 on loopback: %v", err)
	}
	defer d.Close()
	if a := d.QueryPort(); !a.Watched {
		t.Skipf("needs netlink: %s", a.Unwatched)
	}
	if n := testing.AllocsPerRun(1000, func() { d.watchAt = 0; d.Poll() }); n != 0 {
		t.Errorf("%v allocations per Poll", n)
	}
}
