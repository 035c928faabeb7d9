//go:build !linux && !darwin && !windows

package udp

import "net"

func dontFragment(*net.UDPConn, bool) {}
