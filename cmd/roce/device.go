package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
	"github.com/spf13/cobra"
)

// deviceFlags are the flags of every subcommand that sends packets: which local
// address to use, where to keep a copy of the packets, and what to do to them on
// purpose.
type deviceFlags struct {
	faultFlags
	dev      string
	gidIndex int
	pcap     string
}

func (f *deviceFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.dev, "dev", "d", "", "local `ADDRESS` or interface to use (default: the address that reaches the peer)")
	fs.IntVarP(&f.gidIndex, "gid-idx", "g", -1, "with an interface as --dev: `INDEX` of its address, see 'roce info'")
	fs.StringVar(&f.pcap, "pcap", "", "write all packets sent and received to `FILE`, for Wireshark or 'roce decode'")
	f.faultFlags.register(cmd)
}

// given reports whether the user chose the local address.
func (f *deviceFlags) given() bool { return f.dev != "" }

// addr resolves the local address. peer, if valid, is whom it must reach: it
// decides where the user did not.
func (f *deviceFlags) addr(peer netip.Addr) (netip.Addr, error) {
	if a, err := netip.ParseAddr(f.dev); err == nil {
		return a, nil
	}
	if f.dev == "" {
		if f.gidIndex >= 0 {
			return netip.Addr{}, errors.New("--gid-idx chooses among the addresses of an interface: give the interface with --dev")
		}
		return sourceFor(peer)
	}
	gids, err := verbs.GIDs(f.dev)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(gids) == 0 {
		return netip.Addr{}, fmt.Errorf("%q is neither an address nor an interface with one: 'roce info' lists both", f.dev)
	}
	for _, g := range gids {
		if g.Index == f.gidIndex || f.gidIndex < 0 && suits(g.Addr, peer) {
			return g.Addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("interface %s has no address with index %d: 'roce info' lists them", f.dev, f.gidIndex)
}

// suits reports whether a can talk to peer; any IPv4 or global IPv6 address
// will do when no peer is known.
func suits(a, peer netip.Addr) bool {
	if peer.IsValid() {
		return a.Is4() == peer.Unmap().Is4() && a.IsLinkLocalUnicast() == peer.IsLinkLocalUnicast()
	}
	return !a.IsLinkLocalUnicast()
}

// sourceFor asks the routing table which local address reaches peer. No packet
// is sent: connecting a UDP socket only looks up the route.
func sourceFor(peer netip.Addr) (netip.Addr, error) {
	if !peer.IsValid() {
		return verbs.DefaultAddr()
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, 4791)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no route to %v: check the address and the routing table (ip route get %v): %w", peer, peer.WithZone(""), err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// open opens the device, with a capture file if asked for. The caller calls
// closeAll when done.
func (f *deviceFlags) open(c verbs.Config) (dev *verbs.Device, closeAll func() error, err error) {
	c.Faults = f.faults
	var capture *packetFile
	if f.pcap != "" {
		if capture, err = createPacketFile(f.pcap); err != nil {
			return nil, nil, err
		}
		c.Tap = capture.write
	}
	dev, err = verbs.Open(c)
	if err != nil {
		if capture != nil {
			_ = capture.close()
		}
		return nil, nil, err
	}
	return dev, func() error {
		err := dev.Close()
		if capture != nil {
			err = errors.Join(err, capture.close())
		}
		return err
	}, nil
}

// reportFaults prints what was injected, if anything was asked for.
func (f *deviceFlags) reportFaults(out io.Writer, dev *verbs.Device) {
	if len(f.faults) > 0 {
		fmt.Fprintln(out, f.faults.report(dev.Stats()))
	}
}

// packetFile is a pcap file of IP datagrams. Several devices may write to it.
type packetFile struct {
	mu   sync.Mutex
	file *os.File
	buf  *bufio.Writer
	w    *pcapgo.Writer
	err  error
}

func createPacketFile(name string) (*packetFile, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("cannot write the capture: %w", err)
	}
	p := &packetFile{file: f, buf: bufio.NewWriterSize(f, 1<<20)}
	p.w = pcapgo.NewWriterNanos(p.buf)
	if err := p.w.WriteFileHeader(65535, layers.LinkTypeRaw); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write the capture %s: %w", name, err), f.Close())
	}
	return p, nil
}

// write is a udp.Tap.
func (p *packetFile) write(at time.Time, _ bool, datagram []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = p.w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(datagram), Length: len(datagram)}, datagram)
	}
}

func (p *packetFile) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := errors.Join(p.err, p.buf.Flush(), p.file.Close())
	if err != nil {
		return fmt.Errorf("the capture %s is incomplete: %w", p.file.Name(), err)
	}
	return nil
}

var _ udp.Tap = (*packetFile)(nil).write
