package udp

import (
	"net"

	"golang.org/x/sys/windows"
)

// ipDontFragment is IP_DONTFRAGMENT of ws2ipdef.h.
const ipDontFragment = 14

func dontFragment(c *net.UDPConn, v6 bool) {
	if v6 {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IP, ipDontFragment, 1)
		})
	}
}
