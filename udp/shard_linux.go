package udp

import (
	"golang.org/x/sys/unix"
)

// openNativeShards opens n sockets on one port. Nobody else may join them, so
// the port must be free for a socket that does not share it.
func openNativeShards(c Config, n int) ([]Link, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	probe := c
	probe.SrcPorts = 1
	alone, err := openSocket(probe, share{})
	if err != nil {
		return nil, err
	}
	_ = alone.Close()
	var links []Link
	for i := range n {
		s, err := openSocket(c, share{i, n})
		if err == nil && len(links) == n-1 {
			err = steer(s.fd, n)
		}
		if err != nil {
			closeAll(append(links, s)...)
			return nil, err
		}
		links = append(links, s)
	}
	return links, nil
}

func closeAll(links ...Link) {
	for _, l := range links {
		if s, ok := l.(*socket); ok && s != nil {
			_ = s.Close()
		}
	}
}

// steer makes the kernel choose the socket of a group by the low bits of the
// destination QPN. The index is that of binding.
func steer(fd, n int) error {
	return attachFilter(fd, unix.SO_ATTACH_REUSEPORT_CBPF, []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: qpnLowByte},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: uint32(n - 1)},
		{Code: unix.BPF_RET | unix.BPF_A},
	})
}

// qpnLowByte is where the low bits of the destination QPN are in the BTH, with which
// the UDP payload starts.
const qpnLowByte = 7
