package netns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NS is a network namespace. It lasts until Close, or the end of the process, if
// nothing else is in it: a socket, a process, a name in /run/netns.
type NS struct{ file *os.File }

// New makes a namespace without a name, whose loopback interface is up.
func New() (*NS, error) {
	n := &NS{}
	err := onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("netns: cannot make a network namespace, which needs root: %w", err)
		}
		if n.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return fmt.Errorf("netns: %w", err)
		}
		return Up("lo")
	})
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Open opens the namespace that `ip netns` knows by a name.
func Open(name string) (*NS, error) {
	f, err := os.Open("/run/netns/" + name)
	if err != nil {
		return nil, fmt.Errorf("netns: no namespace %s: %w", name, err)
	}
	return &NS{f}, nil
}

// Close lets go of the namespace.
func (n *NS) Close() {
	if n.file != nil {
		_ = n.file.Close()
	}
}

// Do calls f inside the namespace, on a thread that ends afterwards: sockets and
// processes that f opens and starts stay in the namespace, goroutines do not.
func (n *NS) Do(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("netns: cannot enter the namespace: %w", err)
		}
		return f()
	})
}

// onOwnThread calls f on a thread that ends with it.
func onOwnThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		result <- f()
	}()
	return <-result
}

// End is one end of a pair of interfaces. Without MAC the kernel chooses one.
type End struct {
	NS   *NS
	Name string
	MAC  net.HardwareAddr
}

// Pair makes a pair of veth interfaces, both of them up, over which packets travel
// one by one: see WithoutOffload.
func Pair(a, b End, mtu int) error {
	err := a.NS.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: a.Name, MTU: mtu, HardwareAddr: a.MAC, TxQLen: -1},
			PeerName:  b.Name, PeerHardwareAddr: b.MAC, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(int(b.NS.file.Fd())), PeerTxQLen: -1,
		})
	})
	if err != nil {
		return fmt.Errorf("netns: cannot make the interfaces %s and %s: %w", a.Name, b.Name, err)
	}
	for _, e := range []End{a, b} {
		err := e.NS.Do(func() error {
			if err := WithoutOffload(e.Name); err != nil {
				return err
			}
			return Up(e.Name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Up brings an interface of the present namespace up.
func Up(name string) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		return fmt.Errorf("netns: cannot bring the interface %s up: %w", name, err)
	}
	return nil
}

// AddAddr gives an interface of the present namespace an address, which can be used
// at once.
func AddAddr(name string, p netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		ip := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		err = netlink.AddrAdd(l, &netlink.Addr{IPNet: ip, Flags: addrFlags(p.Addr())})
	}
	if err != nil {
		return fmt.Errorf("netns: cannot give %s the address %v: %w", name, p, err)
	}
	return nil
}

// addrFlags skips IPv6's search for duplicates, which takes a second.
func addrFlags(a netip.Addr) int {
	if a.Is6() {
		return unix.IFA_F_NODAD
	}
	return 0
}

// ethtoolValue is the kernel's struct ethtool_value.
type ethtoolValue struct{ cmd, data uint32 }

// ifreq is the kernel's struct ifreq with a pointer in it.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

const ethtoolSTXCSUM = 0x17

// WithoutOffload switches the transmit checksum of an interface of the present
// namespace off, and with it its segmentation: what leaves are packets as they are
// on a wire.
func WithoutOffload(name string) error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("netns: %w", err)
	}
	defer unix.Close(sock)
	off := &ethtoolValue{cmd: ethtoolSTXCSUM}
	req := &ifreq{data: unsafe.Pointer(off)}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(req))); e != 0 {
		return fmt.Errorf("netns: cannot switch off the transmit checksum of %s: %w", name, e)
	}
	return nil
}
