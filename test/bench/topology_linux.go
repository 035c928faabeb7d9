package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

var loopbackSite = site{place: loopback, server: "127.0.10.1", client: "127.0.10.2", device: "lo"}

// vethMTU lets a RoCE packet of 4096 bytes through.
const vethMTU = "9000"

// newVeth makes two network namespaces with a veth pair between them, over which
// packets travel one by one. remove has to be called in any case.
func newVeth(ctx context.Context) (s site, remove func(), err error) {
	remove = func() {}
	if os.Getuid() != 0 {
		return s, remove, fmt.Errorf("the veth pair needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return s, remove, fmt.Errorf("the veth pair needs ip: apt-get install iproute2")
	}
	name := fmt.Sprintf("goroce-bench-%d-", os.Getpid())
	s = site{place: veth, server: "198.18.4.1", client: "198.18.4.2", device: "bench0", serverNS: name + "a", clientNS: name + "b"}
	remove = func() {
		for _, ns := range []string{s.serverNS, s.clientNS} {
			if _, err := os.Stat("/run/netns/" + ns); err == nil {
				_ = ip(context.Background(), "netns del "+ns)
			}
		}
	}
	for _, c := range []string{
		"netns add " + s.serverNS,
		"netns add " + s.clientNS,
		"-n " + s.serverNS + " link add bench0 mtu " + vethMTU + " type veth peer name bench0 mtu " + vethMTU + " netns " + s.clientNS,
	} {
		if err := ip(ctx, c); err != nil {
			return s, remove, err
		}
	}
	for ns, addr := range map[string]string{s.serverNS: s.server, s.clientNS: s.client} {
		for _, c := range []string{"link set lo up", "address add " + addr + "/24 dev bench0", "link set bench0 up"} {
			if err := ip(ctx, "-n "+ns+" "+c); err != nil {
				return s, remove, err
			}
		}
		if err := withoutOffload(ns, s.device); err != nil {
			return s, remove, err
		}
	}
	return s, remove, nil
}

func ip(ctx context.Context, args string) error {
	out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
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

// withoutOffload switches the transmit checksum of a device off, and with it its
// segmentation. It enters the namespace on a thread that ends afterwards.
func withoutOffload(ns, device string) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		result <- func() error {
			fd, err := unix.Open("/run/netns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("namespace %s: %w", ns, err)
			}
			defer unix.Close(fd)
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("namespace %s: %w", ns, err)
			}
			sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(sock)
			off := &ethtoolValue{cmd: ethtoolSTXCSUM}
			req := &ifreq{data: unsafe.Pointer(off)}
			copy(req.name[:unix.IFNAMSIZ-1], device)
			if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(req))); e != 0 {
				return fmt.Errorf("cannot switch off the transmit checksum of %s: %w", device, e)
			}
			return nil
		}()
	}()
	return <-result
}
