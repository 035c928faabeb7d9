package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"

	"github.com/goroce/goroce/test/netns"
	"github.com/goroce/goroce/verbs"
)

// network is a switch with hosts around it; host i is at port i.
type network struct {
	hosts []*host
	mtu   int

	own     *netns.NS // the switch's namespace
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// host is a namespace with one interface.
type host struct {
	ns           *netns.NS
	addr4, addr6 netip.Addr // addr6 is the zero value if there is no IPv6
}

var errNeedsRoot = errors.New("impair: network namespaces and packet sockets need root")

// newNetwork makes the hosts' namespaces, links them to the switch, and starts that.
func newNetwork(hosts, mtu int) (n *network, err error) {
	n = &network{mtu: mtu}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if os.Geteuid() != 0 {
		return n, errNeedsRoot
	}
	if n.own, err = netns.New(); err != nil {
		return n, err
	}
	// The switch's own interfaces say nothing by themselves.
	if err = n.own.Do(func() error { return silenceIPv6("default") }); err != nil {
		return n, err
	}
	for i := range hosts {
		if err = n.addHost(i); err != nil {
			return n, err
		}
	}
	return n, n.start()
}

func silenceIPv6(what string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+what+"/disable_ipv6", []byte("1"), 0)
	if os.IsNotExist(err) {
		return nil // there is none
	}
	return err
}

func (n *network) addHost(i int) error {
	h := &host{
		addr4: netip.AddrFrom4([4]byte{198, 18, 30, byte(i + 1)}),
		addr6: netip.MustParseAddr(fmt.Sprintf("fd00:198:18:30::%x", i+1)),
	}
	var err error
	if h.ns, err = netns.New(); err != nil {
		return err
	}
	n.hosts = append(n.hosts, h)
	err = netns.Pair(
		netns.End{NS: n.own, Name: portName(i), MAC: net.HardwareAddr{2, 0, 0, 0, 1, byte(i + 1)}},
		netns.End{NS: h.ns, Name: "eth0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)}}, n.mtu)
	if err != nil {
		return err
	}
	return h.ns.Do(func() error {
		if err := netns.AddAddr("eth0", netip.PrefixFrom(h.addr6, 64)); err != nil {
			h.addr6 = netip.Addr{} // no IPv6 in this kernel
		}
		return netns.AddAddr("eth0", netip.PrefixFrom(h.addr4, 24))
	})
}

// start starts the process of the switch in its namespace.
func (n *network) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.process = exec.Command(self)
	n.process.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", switchEnv, len(n.hosts), n.mtu))
	n.process.Stderr = os.Stderr
	if n.in, err = n.process.StdinPipe(); err != nil {
		return err
	}
	out, err := n.process.StdoutPipe()
	if err != nil {
		return err
	}
	n.out = bufio.NewReaderSize(out, 1<<20)
	if err := n.own.Do(n.process.Start); err != nil {
		n.process = nil
		return fmt.Errorf("impair: cannot start the switch: %w", err)
	}
	_, err = n.ask(command{})
	return err
}

// set starts the switch anew under conditions: by port, as many as there are.
func (n *network) set(seed uint64, ports ...Conditions) error {
	_, err := n.ask(command{Reset: &reset{seed, ports}})
	return err
}

// mark starts counts and summaries anew, not the rows.
func (n *network) mark() error {
	_, err := n.ask(command{Mark: true})
	return err
}

// read returns what the switch has seen since.
func (n *network) read() (*answer, error) { return n.ask(command{}) }

func (n *network) ask(c command) (*answer, error) {
	if err := json.NewEncoder(n.in).Encode(c); err != nil {
		return nil, fmt.Errorf("impair: the switch does not listen: %w", err)
	}
	line, err := n.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("impair: the switch does not answer: %w", err)
	}
	a := &answer{}
	return a, json.Unmarshal(line, a)
}

// open opens a device on the host.
func (h *host) open(addr netip.Addr, c verbs.Config) (d *verbs.Device, err error) {
	c.Addr = addr
	err = h.ns.Do(func() error {
		d, err = verbs.Open(c)
		return err
	})
	return d, err
}

// Close ends the switch and lets go of the namespaces.
func (n *network) Close() {
	if n.process != nil {
		_ = n.in.Close()
		_ = n.process.Wait()
	}
	for _, h := range n.hosts {
		h.ns.Close()
	}
	if n.own != nil {
		n.own.Close()
	}
}
