package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

func newInfoCommand() *cobra.Command {
	var asJSON bool
	var peer string
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show which addresses can be RoCE devices, the limits, and what is in the way",
		Long: `info lists the addresses of this host that a device can be opened on, with their
GID index and MTUs, tries UDP port 4791 on each, and shows socket buffers and
limits. What falls short is followed by its cure. The exit status is 1 when no
address can be used.`,
		Example: "  roce info\n  roce info --peer 192.0.2.7",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var to netip.Addr
			if peer != "" {
				var err error
				if to, err = netip.ParseAddr(peer); err != nil {
					return usageError(cmd, "--peer: %q is not an IP address", peer)
				}
			}
			return runInfo(cmd.OutOrStdout(), to, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print everything as one JSON object")
	cmd.Flags().StringVar(&peer, "peer", "", "also show the path to this `ADDRESS`")
	return cmd
}

// hostInfo is all that roce info knows.
type hostInfo struct {
	GIDs    []gidInfo   `json:"gids"`
	Path    *verbs.Path `json:"path,omitempty"`
	Buffers bufferInfo  `json:"socket_buffers"`
	Ring    ringInfo    `json:"packet_ring"`
	Memlock memlockInfo `json:"memlock"`
	Limits  limitInfo   `json:"limits"`
	Notes   []string    `json:"notes"`
}

// ringInfo tells whether --ring can be used, or else why not.
type ringInfo struct {
	Usable bool   `json:"usable"`
	Reason string `json:"reason,omitempty"`
}

type gidInfo struct {
	Index     int    `json:"index"`
	Address   string `json:"address"`
	GID       string `json:"gid"`
	Interface string `json:"interface"`
	NetMTU    int    `json:"mtu"`
	ActiveMTU int    `json:"path_mtu"`
	Port      string `json:"port_4791"` // free, or why not
	free      bool
}

type bufferInfo struct {
	Asked   int    `json:"receive_asked"`
	Granted int    `json:"receive_granted"`
	Send    int    `json:"send_granted"`
	Kind    string `json:"link"`
}

type memlockInfo struct {
	Known bool   `json:"known"`
	Limit uint64 `json:"limit_bytes"`
}

type limitInfo struct {
	MaxQP       int   `json:"max_qp"`
	MaxWR       int   `json:"max_qp_wr"`
	MaxSGE      int   `json:"max_sge"`
	MaxInline   int   `json:"max_inline"`
	MaxCQE      int   `json:"max_cqe"`
	MaxMR       int   `json:"max_mr"`
	MaxRDAtomic int   `json:"max_qp_rd_atom"`
	MaxMessage  int64 `json:"max_msg_sz"`
}

func runInfo(out io.Writer, peer netip.Addr, asJSON bool) error {
	h, err := gatherInfo(peer)
	if err != nil {
		return err
	}
	if asJSON {
		err = json.NewEncoder(out).Encode(h)
	} else {
		var b bytes.Buffer
		h.print(&b)
		_, err = out.Write(b.Bytes())
	}
	if err != nil {
		return &outputError{err}
	}
	if !h.usable() {
		return failedSilently()
	}
	return nil
}

func (h *hostInfo) usable() bool {
	for _, g := range h.GIDs {
		if g.free {
			return true
		}
	}
	return false
}

func gatherInfo(peer netip.Addr) (*hostInfo, error) {
	gids, err := verbs.GIDs("")
	if err != nil {
		return nil, err
	}
	h := &hostInfo{Notes: []string{}, Limits: limitInfo{
		MaxQP: verbs.DefaultMaxQP, MaxWR: qp.MaxWR, MaxSGE: qp.MaxSGE, MaxInline: qp.MaxInline, MaxCQE: cq.MaxCapacity,
		MaxMR: verbs.DefaultMaxMR, MaxRDAtomic: qp.MaxRDAtomicLimit, MaxMessage: qp.MaxMessage,
	}}
	for _, g := range gids {
		h.addGID(g)
	}
	if !h.usable() {
		h.note("No address can be used: free UDP port 4791, or bring an interface up (`ip link set lo up`).")
	}
	if peer.IsValid() {
		h.addPath(peer)
	}
	if err := udp.RingError(); err != nil {
		h.Ring.Reason = strings.TrimPrefix(err.Error(), "udp: ")
	} else {
		h.Ring.Usable = true
	}
	h.Memlock.Limit, h.Memlock.Known = mr.MemlockLimit()
	if h.Memlock.Known && h.Memlock.Limit < 64<<20 && os.Geteuid() != 0 {
		h.note("Pinned memory is limited to %s: raise it with `ulimit -l` or give a container IPC_LOCK. Unpinned memory has no limit.", bytesText(h.Memlock.Limit))
	}
	return h, nil
}

func (h *hostInfo) note(format string, args ...any) {
	h.Notes = append(h.Notes, fmt.Sprintf(format, args...))
}

// addGID tries to open a link on the address: that tells whether the port is
// free and what buffers the system grants.
func (h *hostInfo) addGID(g verbs.GID) {
	row := gidInfo{Index: g.Index, Address: g.Addr.String(), GID: gidText(g.Addr), Interface: g.Interface, NetMTU: g.NetMTU, ActiveMTU: g.ActiveMTU}
	switch l, err := udp.Open(udp.Config{Addr: g.Addr}); {
	case !g.Up:
		row.Port = "interface is down"
		h.note("Interface %s is down: `ip link set %s up`.", g.Interface, g.Interface)
		if err == nil {
			_ = l.Close()
		}
	case err != nil:
		row.Port = "not usable"
		if isInUse(err) {
			row.Port = "in use"
		}
		h.note("%v", err)
	default:
		row.Port, row.free = "free", true
		h.addBuffers(l.Info())
		_ = l.Close()
	}
	if g.ActiveMTU < 1024 {
		h.note("The MTU of %s, %d, allows a path MTU of %d only: standard tools default to 1024, which needs an MTU of 1104.", g.Interface, g.NetMTU, g.ActiveMTU)
	}
	h.GIDs = append(h.GIDs, row)
}

func isInUse(err error) bool {
	var inUse *udp.InUseError
	return errors.As(err, &inUse)
}

func (h *hostInfo) addBuffers(i udp.Info) {
	if h.Buffers.Kind != "" {
		return
	}
	h.Buffers = bufferInfo{Asked: udp.DefaultRecvBuffer, Granted: i.RecvBuffer, Send: i.SendBuffer, Kind: i.Kind}
	if i.RecvBuffer < udp.DefaultRecvBuffer && runtime.GOOS == "linux" {
		h.note("The receive buffer is %s, not %s: bursts may be lost and sent again. Raise the limit: `sysctl -w net.core.rmem_max=%d`, or give the program CAP_NET_ADMIN.",
			bytesText(uint64(i.RecvBuffer)), bytesText(udp.DefaultRecvBuffer), udp.DefaultRecvBuffer)
	}
}

func (h *hostInfo) addPath(peer netip.Addr) {
	p, err := verbs.PathTo(peer)
	if err != nil {
		h.note("%v", err)
		return
	}
	h.Path = &p
}

func (h *hostInfo) print(out io.Writer) {
	t := newTable(out, "", table.Row{"interface", "gid index", "address (--dev)", "GID", "MTU", "path MTU", "UDP 4791"}, 2, 5, 6)
	for _, g := range h.GIDs {
		t.AppendRow(table.Row{g.Interface, g.Index, g.Address, g.GID, g.NetMTU, g.ActiveMTU, g.Port})
	}
	t.Render()
	if p := h.Path; p != nil {
		fmt.Fprintf(out, "\npath to %v: from %v, interface %s, MTU %d, path MTU %d\n", p.Peer, p.Source, p.Interface, p.NetMTU, p.PathMTU)
	}
	if h.Buffers.Kind != "" {
		fmt.Fprintf(out, "\nsocket buffers    receive %s (asked for %s), send %s\n", bytesText(uint64(h.Buffers.Granted)), bytesText(uint64(h.Buffers.Asked)), bytesText(uint64(h.Buffers.Send)))
	}
	if h.Ring.Usable {
		fmt.Fprintln(out, "packet ring       usable (--ring)")
	} else {
		fmt.Fprintf(out, "packet ring       not usable: %s\n", h.Ring.Reason)
	}
	if h.Memlock.Known {
		fmt.Fprintf(out, "memlock limit     %s\n", bytesText(h.Memlock.Limit))
	}
	l := h.Limits
	fmt.Fprintf(out, "limits            %d QPs, %d WRs per queue, %d SGEs per WR, %d bytes inline, %d CQEs, %d MRs,\n"+
		"                  %d READs and atomics per QP each way, messages of %s, UDP port %d\n",
		l.MaxQP, l.MaxWR, l.MaxSGE, l.MaxInline, l.MaxCQE, l.MaxMR, l.MaxRDAtomic, bytesText(uint64(l.MaxMessage)), bth.Port)
	if len(h.Notes) > 0 {
		fmt.Fprintln(out)
	}
	for _, n := range h.Notes {
		fmt.Fprintf(out, "note: %s\n", n)
	}
}

// bytesText writes a number of bytes for people.
func bytesText(n uint64) string {
	switch {
	case n == ^uint64(0):
		return "unlimited"
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20:
		return fmt.Sprintf("%.4g MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.4g KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
