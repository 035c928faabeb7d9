package main

import (
	"bufio"
	"cmp"
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
// address to use, where to keep a copy of the packets, how fast they go, and what
// to do to them on purpose.
type deviceFlags struct {
	faultFlags
	congestion congestionFlags

	dev      string
	gidIndex int
	pcap     string
	ring     bool
}

func (f *deviceFlags) register(cmd *cobra.Command) { f.registerDevice(cmd, "gid-idx", "g") }

// registerDevice is register with another name for the index of the GID.
func (f *deviceFlags) registerDevice(cmd *cobra.Command, index, letter string) {
	fs := cmd.Flags()
	fs.StringVarP(&f.dev, "dev", "d", "", "local `ADDRESS` or interface to use (default: the address that reaches the peer)")
	fs.IntVarP(&f.gidIndex, index, letter, -1, "with an interface as --dev: `INDEX` of its address, see 'roce info'")
	fs.StringVar(&f.pcap, "pcap", "", "write all packets sent and received to `FILE`, for Wireshark or 'roce decode'")
	fs.BoolVar(&f.ring, "ring", false, "receive through a packet ring: shorter latency, less bandwidth; needs CAP_NET_RAW and Linux 6.2")
	f.faultFlags.register(cmd)
	f.congestion.register(cmd)
	aliasFlag(cmd, "ib-dev", "dev")
}

// aliasFlag accepts another name of a flag, which help does not show.
func aliasFlag(cmd *cobra.Command, alias, name string) {
	f := cmd.Flags().Lookup(name)
	a := cmd.Flags().VarPF(f.Value, alias, "", f.Usage)
	a.NoOptDefVal, a.Hidden = f.NoOptDefVal, true
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
			return netip.Addr{}, errors.New("the index of a GID chooses among the addresses of an interface: give the interface with --dev")
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

// early returns the local address if it is certain before the peer is known,
// which it is unless --dev names an interface with several addresses. peer may
// be invalid. That an interface can be used at all is certain early, too.
func (f *deviceFlags) early(peer netip.Addr) (a netip.Addr, certain bool, err error) {
	if f.dev == "" && f.gidIndex < 0 {
		return netip.Addr{}, false, nil
	}
	if _, err := netip.ParseAddr(f.dev); err == nil || f.dev == "" || f.gidIndex >= 0 || peer.IsValid() {
		a, err := f.addr(peer)
		return a, err == nil, err
	}
	gids, err := verbs.GIDs(f.dev)
	switch {
	case err != nil:
		return netip.Addr{}, false, err
	case len(gids) == 0:
		_, err = f.addr(peer)
		return netip.Addr{}, false, err
	case len(gids) == 1:
		return gids[0].Addr, true, nil
	}
	var first error
	for _, g := range gids {
		l, err := udp.Open(udp.Config{Addr: g.Addr})
		if err == nil {
			return netip.Addr{}, false, l.Close()
		}
		if first == nil {
			first = err
		}
	}
	return netip.Addr{}, false, first
}

// createCapture creates the capture file, or returns nil if none is wanted.
func (f *deviceFlags) createCapture() (*packetFile, error) {
	if f.pcap == "" {
		return nil, nil
	}
	return createPacketFile(f.pcap)
}

// open opens the device. capture, which may be nil, gets its packets.
func (f *deviceFlags) open(c verbs.Config, capture *packetFile) (*verbs.Device, error) {
	c.Faults, c.Ring = f.faults, f.ring
	f.congestion.configure(&c)
	if capture != nil {
		c.Tap = capture.write
	}
	return verbs.Open(c)
}

// sameHost adds what to do to an error that says that the port is in use, if
// the peer, which holds it then, is on this host.
func sameHost(err error, peer netip.Addr) error {
	if !isInUse(err) || !peer.IsValid() {
		return err
	}
	gids, _ := verbs.GIDs("")
	local, other6 := peer.IsLoopback(), false
	for _, g := range gids {
		local = local || g.Addr.WithZone("") == peer.WithZone("")
		other6 = other6 || g.Addr.Is6() && g.Addr != netip.IPv6Loopback() && !g.Addr.IsLinkLocalUnicast()
	}
	switch {
	case !local:
		return err
	case peer.Is4():
		return fmt.Errorf("%w; both sides on one host need different --dev addresses, such as 127.0.0.1 and 127.0.0.2", err)
	case other6:
		return fmt.Errorf("%w; both sides on one host need different --dev addresses: 'roce info' lists them", err)
	}
	return fmt.Errorf("%w; both sides on one host need different --dev addresses, such as ::1 and ::2: a second IPv6 loopback address needs root (`ip addr add ::2/128 dev lo`); IPv4 has 127.0.0.1 and 127.0.0.2", err)
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
	// The header leaves at once: where nothing can be written, that shows here.
	err = p.w.WriteFileHeader(65535, layers.LinkTypeRaw)
	if err == nil {
		err = p.buf.Flush()
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot write the capture: %w", err)
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
	// One error is enough: a buffer that failed repeats it.
	err := cmp.Or(p.err, p.buf.Flush(), p.file.Close())
	if err != nil {
		return fmt.Errorf("the capture %s is incomplete: %w", p.file.Name(), err)
	}
	return nil
}

var _ udp.Tap = (*packetFile)(nil).write
