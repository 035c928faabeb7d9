package udp

import (
	"net"

	"golang.org/x/sys/unix"
)

// dontFragment sets DF, with which an unconnected socket writes identification 0.
func dontFragment(c *net.UDPConn, v6 bool) {
	if v6 {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		})
	}
}
