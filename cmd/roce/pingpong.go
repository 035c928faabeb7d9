package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
	"github.com/spf13/cobra"
)

// pingpongKind is what distinguishes rc, uc, ud and srq.
type pingpongKind struct {
	name  string
	typ   qp.Type
	size  int // default message size
	srq   bool
	short string
	long  string
}

var pingpongKinds = []pingpongKind{
	{name: "rc", typ: qp.RC, size: 4096, short: "Reliable connection: the counterpart of ibv_rc_pingpong",
		long: "rc sends messages to and fro over a reliable connection."},
	{name: "uc", typ: qp.UC, size: 4096, short: "Unreliable connection: the counterpart of ibv_uc_pingpong",
		long: "uc sends messages to and fro over an unreliable connection. Nothing is sent again: a\nlost packet ends the test."},
	{name: "ud", typ: qp.UD, size: 1024, short: "Datagrams: the counterpart of ibv_ud_pingpong",
		long: "ud sends datagrams to and fro. Nothing is sent again: a lost packet ends the test."},
	{name: "srq", typ: qp.RC, size: 4096, srq: true, short: "Many connections on one shared receive queue: the counterpart of ibv_srq_pingpong",
		long: "srq sends messages to and fro over many reliable connections, whose receives come from\none shared receive queue. --iters counts the messages of all together."},
}

func newPingpongCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pingpong",
		Short: "Exchange messages with the ibv_*_pingpong tools or another roce",
		Long: `pingpong is a peer of the ibv_*_pingpong tools of rdma-core, as client and as
server, with their options and their output.`,
		Example: "  roce pingpong rc --help",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(cmd, "there is no test %q: choose rc, uc, ud or srq", args[0])
			}
			if err := cmd.Help(); err != nil {
				return err
			}
			return &exitError{code: exitUsage}
		},
	}
	for _, k := range pingpongKinds {
		cmd.AddCommand(newPingpongKindCommand(k))
	}
	return cmd
}

// pingpongFlags are the options, spelled as those of the original tools.
type pingpongFlags struct {
	deviceFlags
	kind                            pingpongKind
	port, size, iters, mtu, rxDepth int
	sl, ibPort, numQP, timeout      int
	wait                            time.Duration
	check, events, json             bool
}

func newPingpongKindCommand(k pingpongKind) *cobra.Command {
	f := pingpongFlags{kind: k, mtu: 1024, numQP: 1}
	cmd := &cobra.Command{
		Use:   k.name + " [HOST]",
		Short: k.short,
		Long: k.long + `
Without HOST it is the server and waits for a client; with HOST it is the client.
The other side may be ibv_` + k.name + `_pingpong, which has to be given its RoCE v2 GID with -g.`,
		Example: fmt.Sprintf(`  # against a Linux host with RDMA, which runs: ibv_%[1]s_pingpong -g 1
  roce pingpong %[1]s 192.0.2.7

  # both sides on one machine
  roce pingpong %[1]s --dev 127.0.0.2 &
  roce pingpong %[1]s --dev 127.0.0.1 127.0.0.2`, k.name),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(cmd, "%q is one argument too many: %s takes one HOST", args[1], cmd.Name())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.validate(cmd); err != nil {
				return err
			}
			host := ""
			if len(args) == 1 {
				host = args[0]
				if err := validateHost(cmd, host); err != nil {
					return err
				}
			}
			return runPingpong(cmd.Context(), &f, host, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.register(cmd)
	return cmd
}

func validateHost(cmd *cobra.Command, host string) error {
	if host == "" {
		return usageError(cmd, "HOST is empty: give the name or address of the server, or leave it out to be the server")
	}
	if name, port, err := net.SplitHostPort(host); err == nil {
		return usageError(cmd, "HOST takes no port; use -p, as in '%s -p %s %s'", cmd.CommandPath(), port, name)
	}
	return nil
}

func (f *pingpongFlags) register(cmd *cobra.Command) {
	f.deviceFlags.register(cmd)
	fs := cmd.Flags()
	fs.IntVarP(&f.port, "port", "p", 18515, "TCP `PORT` of the exchange before the test")
	fs.IntVarP(&f.size, "size", "s", f.kind.size, "`BYTES` per message")
	fs.IntVarP(&f.iters, "iters", "n", 1000, "`NUMBER` of messages each way")
	if f.kind.typ.Connected() {
		fs.IntVarP(&f.mtu, "mtu", "m", 1024, "path MTU in `BYTES`: 256, 512, 1024, 2048 or 4096, the same on both sides")
	}
	if f.kind.srq {
		fs.IntVarP(&f.numQP, "num-qp", "q", 16, "`NUMBER` of connections, the same on both sides")
	}
	fs.IntVarP(&f.rxDepth, "rx-depth", "r", 500, "`NUMBER` of receives to keep posted")
	fs.BoolVarP(&f.check, "check", "c", false, "check the received bytes")
	fs.BoolVarP(&f.events, "events", "e", false, "sleep until a completion instead of polling for it")
	fs.IntVarP(&f.ibPort, "ib-port", "i", 1, "port of the device: 1, for compatibility")
	fs.IntVarP(&f.sl, "sl", "l", 0, "service level: accepted for compatibility; Ethernet has none")
	fs.DurationVar(&f.wait, "wait", 30*time.Second, "give up when the peer is silent for this `TIME`, in the TCP exchange or in the test; the wait for a client has no end")
	if f.kind.typ == qp.RC {
		fs.IntVar(&f.timeout, "timeout", 14, "ACK timeout `CODE`: 4.096 µs · 2^CODE, 0 none")
	}
	fs.BoolVar(&f.json, "json", false, "print the result, or the error, as one JSON object")
	aliasFlag(cmd, "chk", "check")
}

func (f *pingpongFlags) validate(cmd *cobra.Command) error {
	switch {
	case f.port < 1 || f.port > 65535:
		return usageError(cmd, "--port is %d; it must be 1 to 65535", f.port)
	case f.size < 0 || f.size > qp.MaxMessage-1:
		return usageError(cmd, "--size is %d; it must be 0 to %d bytes", f.size, qp.MaxMessage-1)
	case f.iters < 1:
		return usageError(cmd, "--iters is %d; it must be at least 1", f.iters)
	case !qp.ValidMTU(f.mtu):
		return usageError(cmd, "--mtu is %d; it must be 256, 512, 1024, 2048 or 4096", f.mtu)
	case f.rxDepth < 1 || f.rxDepth > qp.MaxWR:
		return usageError(cmd, "--rx-depth is %d; it must be 1 to %d", f.rxDepth, qp.MaxWR)
	case f.numQP < 1 || f.numQP > srqRecords || f.kind.srq && f.numQP > f.rxDepth:
		return usageError(cmd, "--num-qp is %d; it must be 1 to %d and at most --rx-depth", f.numQP, srqRecords)
	case f.ibPort != 1:
		return usageError(cmd, "--ib-port is %d; the device has port 1 only", f.ibPort)
	case f.timeout < 0 || f.timeout > 31:
		return usageError(cmd, "--timeout is %d; it must be 0 to 31", f.timeout)
	case f.wait <= 0:
		return usageError(cmd, "--wait is %v; it must be positive", f.wait)
	}
	return nil
}

// pingpongResult is what --json prints.
type pingpongResult struct {
	Type      string            `json:"type"`
	Local     string            `json:"local"`
	Remote    string            `json:"remote"`
	Size      int               `json:"size_bytes"`
	Iters     int               `json:"iterations"`
	MTU       int               `json:"path_mtu"`
	QPs       int               `json:"queue_pairs"`
	Seconds   float64           `json:"seconds"`
	Bytes     int64             `json:"bytes"`
	MbitPerS  float64           `json:"mbit_per_second"`
	USPerIter float64           `json:"usec_per_iteration"`
	Checked   bool              `json:"bytes_checked"`
	Counters  map[string]uint64 `json:"counters"`
	Error     string            `json:"error,omitempty"`
}

// runPingpong runs one test as client (host given) or server.
func runPingpong(ctx context.Context, f *pingpongFlags, host string, out, errOut io.Writer) error {
	text := out
	if f.json {
		text = io.Discard
	}
	p := &pingpong{f: f, client: host != "", byQPN: map[bth.QPN]*lane{}}
	err := p.prepare(ctx, host)
	if err == nil {
		err = p.meetAndRun(ctx, host, text, errOut)
	}
	if f.json {
		err = errors.Join(err, p.printJSON(out, err))
	}
	if err == nil && f.kind.typ == qp.RC {
		p.linger(ctx)
	}
	return errors.Join(err, p.close())
}

// prepare does what needs no peer, so that it fails before anybody waits: it
// creates the capture and opens the device if the user chose its address.
func (p *pingpong) prepare(ctx context.Context, host string) (err error) {
	if p.capture, err = p.f.createCapture(); err != nil {
		return err
	}
	peer, _ := netip.ParseAddr(host)
	addr, certain, err := p.f.early(peer)
	if err == nil && certain {
		err = p.open(addr)
	}
	if err != nil && host != "" && isInUse(err) {
		err = sameHost(err, hostAddr(ctx, host))
	}
	return err
}

// open opens the device and creates all that it holds.
func (p *pingpong) open(addr netip.Addr) (err error) {
	p.dev, err = p.f.open(verbs.Config{Addr: addr, Polled: !p.f.events}, p.capture)
	if err != nil {
		return err
	}
	return p.create()
}

func (p *pingpong) meetAndRun(ctx context.Context, host string, text, errOut io.Writer) error {
	first, err := p.meet(ctx, host, errOut)
	if err != nil {
		return err
	}
	if p.dev == nil {
		addr, err := pingpongAddr(p.f, p.conn, first)
		if err != nil {
			return err
		}
		if err := p.open(addr); err != nil {
			return sameHost(err, peerAddr(p.conn))
		}
	}
	if err := p.connect(p.conn, first, text); err != nil {
		return err
	}
	err = p.run(ctx, text)
	p.f.reportFaults(text, p.dev)
	return err
}

// meet makes the TCP connection. A server learns the client's records first,
// which tell the address family that it has to use.
func (p *pingpong) meet(ctx context.Context, host string, errOut io.Writer) (first []verbs.Endpoint, err error) {
	if p.client {
		p.conn, err = dialPeer(ctx, host, p.f.port, p.f.wait)
		return nil, err
	}
	p.conn, first, err = acceptPeer(ctx, p.f.port, p.f.wait, p.f.records(), p.f.numQP, errOut)
	return first, err
}

// records is how many records each side sends: the srq test always sends the
// same number, however many connections it has.
func (f *pingpongFlags) records() int {
	if f.kind.srq {
		return srqRecords
	}
	return 1
}

// lane is one queue pair of the test. Its next message leaves when the last one
// has gone and a message has come.
type lane struct {
	qp                   *verbs.QP
	remote               verbs.Endpoint
	awaitSend, awaitRecv bool
}

// pingpong is one end of the test.
type pingpong struct {
	f         *pingpongFlags
	client    bool
	dev       *verbs.Device
	capture   *packetFile // nil if there is none
	conn      *peerConn
	cq        *verbs.CQ
	srq       *verbs.SRQ
	lanes     []*lane
	byQPN     map[bth.QPN]*lane
	send      *verbs.MR
	recv      *verbs.MR
	posted    int // receives posted and not completed
	gone, got int // messages sent and received
	elapsed   time.Duration
}

// pingpongAddr chooses the local address: the user's, else the one that the TCP
// connection uses if the peer's GID is of that family.
func pingpongAddr(f *pingpongFlags, conn net.Conn, first []verbs.Endpoint) (netip.Addr, error) {
	switch {
	case len(first) == 0:
		return f.addr(peerAddr(conn))
	case !f.given() && localAddr(conn).Is4() == first[0].GID.Is4():
		return localAddr(conn), nil
	}
	return f.addr(first[0].GID)
}

func (p *pingpong) create() (err error) {
	f := p.f
	if f.kind.typ == qp.UD && f.size > p.dev.ActiveMTU() {
		return fmt.Errorf("a datagram of %d bytes does not fit the path MTU of %v, %d: give --size %d or less", f.size, p.dev.Addr(), p.dev.ActiveMTU(), p.dev.ActiveMTU())
	}
	if p.cq, err = p.dev.CreateCQ(f.rxDepth + f.numQP); err != nil {
		return err
	}
	pd := p.dev.AllocPD()
	if f.kind.srq {
		if p.srq, err = pd.CreateSRQ(f.rxDepth, 1); err != nil {
			return err
		}
	}
	for range f.numQP {
		q, err := pd.CreateQP(verbs.QPConfig{Type: f.kind.typ, SendCQ: p.cq, RecvCQ: p.cq, SRQ: p.srq, MaxSendWR: 1, MaxRecvWR: f.rxDepth, SignalAll: true})
		if err != nil {
			return err
		}
		l := &lane{qp: q, awaitRecv: true}
		p.lanes = append(p.lanes, l)
		p.byQPN[q.QPN()] = l
	}
	return p.createBuffers(pd)
}

// createBuffers makes the buffers. A datagram arrives behind its GRH.
func (p *pingpong) createBuffers(pd *verbs.PD) (err error) {
	buf := make([]byte, p.grh()+p.f.size)
	if p.recv, err = pd.RegisterMR(buf, mr.LocalWrite); err != nil {
		return err
	}
	// The server sends back what it received, from the same buffer, as the
	// original does; the client keeps what it sent, to compare.
	p.send = p.recv
	if p.client {
		buf = make([]byte, p.grh()+p.f.size)
		p.send, err = pd.RegisterMR(buf, 0)
	}
	fillMessage(buf[p.grh():])
	return err
}

// grh is how many bytes precede the message in a buffer.
func (p *pingpong) grh() int {
	if p.f.kind.typ == qp.UD {
		return bth.GRHLen
	}
	return 0
}

// checkPage is how far apart the bytes are that the original tools check.
const checkPage = 4096

// fillMessage writes a pattern in which any shift shows, with a zero at the
// start of each page: that is what a checking peer looks for.
func fillMessage(b []byte) {
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8)*13 + 1
		if i%checkPage == 0 {
			b[i] = 0
		}
	}
}

// udQKey is the Q_Key of the original tool.
const udQKey = 0x11111111

// connect exchanges endpoints and brings the queue pairs to RTS.
func (p *pingpong) connect(conn *peerConn, first []verbs.Endpoint, out io.Writer) error {
	for _, l := range p.lanes {
		attr, mask := qp.Attr{State: qp.Init, Port: 1, QKey: udQKey}, qp.AttrAccess
		if p.f.kind.typ == qp.UD {
			mask = qp.AttrQKey
		}
		if err := l.qp.Modify(&attr, qp.AttrState|qp.AttrPKeyIndex|qp.AttrPort|mask); err != nil {
			return err
		}
		printEndpoint(out, "local", l.qp.Local())
	}
	if err := p.postRecvs(); err != nil {
		return err
	}
	if p.client {
		return p.connectClient(conn, out)
	}
	return p.connectServer(conn, first, out)
}

func (p *pingpong) connectClient(conn *peerConn, out io.Writer) error {
	if err := p.sendRecords(conn); err != nil {
		return err
	}
	remote, err := receiveRecords(conn, p.f.records(), p.f.numQP)
	if err != nil {
		return err
	}
	if err := p.toRTS(remote, out); err != nil {
		return err
	}
	return writeWhole(conn, doneRecord)
}

func (p *pingpong) connectServer(conn *peerConn, first []verbs.Endpoint, out io.Writer) error {
	if err := p.toRTS(first, out); err != nil {
		return err
	}
	if err := p.sendRecords(conn); err != nil {
		return err
	}
	return receiveDone(conn)
}

func (p *pingpong) sendRecords(conn *peerConn) error {
	all := make([]verbs.Endpoint, len(p.lanes))
	for i, l := range p.lanes {
		all[i] = l.qp.Local()
	}
	return sendRecords(conn, all, p.f.records())
}

func (p *pingpong) toRTS(remote []verbs.Endpoint, out io.Writer) error {
	for i, l := range p.lanes {
		l.remote = remote[i]
		var err error
		if p.f.kind.typ == qp.UD {
			err = l.qp.Activate(udQKey)
		} else {
			err = l.qp.Connect(l.remote, verbs.ConnectConfig{PathMTU: p.f.mtu, MaxRDAtomic: 1, MaxDestRDAtomic: 1, Timeout: zeroAsNone(p.f.timeout)})
		}
		if err != nil {
			return err
		}
		printEndpoint(out, "remote", l.remote)
	}
	return nil
}

func (p *pingpong) postRecvs() error {
	post := p.lanes[0].qp.PostRecv
	if p.srq != nil {
		post = p.srq.PostRecv
	}
	for ; p.posted < p.f.rxDepth; p.posted++ {
		if err := post(&qp.RecvWR{SGE: []mr.SGE{p.recv.SGE(0, p.recv.Len())}}); err != nil {
			return err
		}
	}
	return nil
}

// postSend sends the lane's next message.
func (p *pingpong) postSend(l *lane) error {
	l.awaitSend, l.awaitRecv = true, true
	wr := qp.SendWR{Op: qp.Send, SGE: []mr.SGE{p.send.SGE(p.grh(), p.f.size)}}
	if p.f.kind.typ == qp.UD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = &qp.AddressVector{DGID: l.remote.GID}, l.remote.QPN, udQKey
	}
	return l.qp.PostSend(&wr)
}

// run exchanges the messages, one under way per lane.
func (p *pingpong) run(ctx context.Context, out io.Writer) error {
	start := time.Now()
	for _, l := range p.lanes {
		if p.client {
			if err := p.postSend(l); err != nil {
				return err
			}
		}
	}
	for n := p.f.iters; p.got < n || p.gone < n; {
		if err := p.step(ctx); err != nil {
			return err
		}
	}
	p.elapsed = time.Since(start)
	return p.report(out)
}

// step waits for completions and handles them.
func (p *pingpong) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.f.wait)
	defer cancel()
	var wcs [16]cq.WC
	n, err := p.cq.Wait(ctx, wcs[:])
	if err != nil {
		return p.silence(ctx, err)
	}
	for i := range wcs[:n] {
		if err := p.handle(&wcs[i]); err != nil {
			return err
		}
	}
	if p.posted <= 1 || p.srq != nil && p.posted <= p.f.numQP {
		return p.postRecvs()
	}
	return nil
}

func (p *pingpong) handle(wc *cq.WC) error {
	l := p.byQPN[wc.QPN]
	switch {
	case wc.Status != cq.Success && p.got >= p.f.iters:
		p.gone = p.f.iters // the peer has all it wanted and is gone
		return nil
	case wc.Status != cq.Success:
		return p.explain(wc, l)
	case wc.Recv():
		l.awaitRecv = false
		p.got++
		p.posted--
		if err := p.checkMessage(wc); err != nil {
			return err
		}
	default:
		l.awaitSend = false
		p.gone++
	}
	if p.gone < p.f.iters && !l.awaitSend && !l.awaitRecv {
		return p.postSend(l)
	}
	return nil
}

// silence turns the end of waiting into a sentence with a cause.
func (p *pingpong) silence(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("stopped after %d of %d messages: %w", p.got, p.f.iters, err)
	}
	cause := "the peer has stopped, or the two sides differ in --iters"
	if p.f.kind.typ == qp.UD {
		cause += " or --size"
	}
	cause += ", or the two sides run different tests"
	if p.f.kind.typ != qp.RC {
		cause += "; or a packet was lost, which nothing repairs on this service"
	}
	if drops := dropsText(p.dev.Stats()); drops != "" {
		cause += "; the device dropped packets: " + drops
	}
	return fmt.Errorf("nothing happened for %v after %d of %d messages: %s", p.f.wait, p.got, p.f.iters, cause)
}

// dropsText lists the counters of dropped packets that are not zero.
func dropsText(stats map[string]uint64) string {
	var s []string
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		if strings.HasPrefix(name, "drop_") && stats[name] > 0 {
			s = append(s, fmt.Sprintf("%s %d", name, stats[name]))
		}
	}
	return strings.Join(s, ", ")
}

// explain turns a failed completion into a sentence with a cure.
func (p *pingpong) explain(wc *cq.WC, l *lane) error {
	switch {
	case wc.Status == cq.RetryExcErr && p.got == 0:
		return fmt.Errorf("no answer from %v after all retries: is UDP port 4791 open there, does its GID (-g) name this address, and does its path MTU of %d fit the network", l.remote.GID, p.f.mtu)
	case wc.Status == cq.RNRRetryExcErr:
		return errors.New("the peer posted no receive in time: raise its -r")
	case wc.Status == cq.RemInvReqErr, wc.Status == cq.LocLenErr:
		return fmt.Errorf("work request failed after %d messages: %v: do both sides have the same %s?", p.got, wc.Status,
			choose(p.f.kind.typ.Connected(), "--mtu and --size", "--size"))
	}
	return fmt.Errorf("work request failed after %d messages: %v", p.got, wc.Status)
}

// checkMessage compares what came with what is known of it.
func (p *pingpong) checkMessage(wc *cq.WC) error {
	if int(wc.ByteLen) != p.recv.Len() {
		return fmt.Errorf("a message of %d bytes came, not %d: give both sides the same --size", int(wc.ByteLen)-p.grh(), p.f.size)
	}
	if !p.f.check {
		return nil
	}
	got, sent := p.recv.Bytes()[p.grh():], p.send.Bytes()[p.grh():]
	for i := range got {
		switch {
		case p.client && got[i] != sent[i]:
			return fmt.Errorf("invalid data: byte %d came back as 0x%02x, sent as 0x%02x", i, got[i], sent[i])
		case !p.client && i%checkPage == 0 && got[i] != 0:
			return fmt.Errorf("invalid data in page %d: does the client run with -c", i/checkPage)
		}
	}
	return nil
}

func (p *pingpong) report(out io.Writer) error {
	bytes, s := p.bytes(), p.elapsed.Seconds()
	fmt.Fprintf(out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, s, float64(bytes)*8/1e6/s)
	_, err := fmt.Fprintf(out, "%d iters in %.2f seconds = %.2f usec/iter\n", p.f.iters, s, s*1e6/float64(p.f.iters))
	return err
}

func (p *pingpong) bytes() int64 { return int64(p.f.size) * int64(p.f.iters) * 2 }

// printJSON prints the result or, if failed is an error, what there is of it.
func (p *pingpong) printJSON(out io.Writer, failed error) error {
	r := pingpongResult{
		Type: p.f.kind.name, Size: p.f.size, Iters: p.f.iters, MTU: p.f.mtu, QPs: p.f.numQP,
		Checked: p.f.check, Counters: map[string]uint64{},
	}
	if p.dev != nil {
		r.Local, r.Counters = gidText(p.dev.GID()), p.dev.Stats()
	}
	if len(p.lanes) > 0 && p.lanes[0].remote.GID.IsValid() {
		r.Remote = gidText(p.lanes[0].remote.GID)
	}
	if failed != nil {
		r.Error = failed.Error()
	} else {
		s := p.elapsed.Seconds()
		r.Seconds, r.Bytes, r.MbitPerS, r.USPerIter = s, p.bytes(), float64(p.bytes())*8/1e6/s, s*1e6/float64(p.f.iters)
	}
	return json.NewEncoder(out).Encode(r)
}

// lingerTime is as long as a peer with the standard's timeout of 67 ms takes
// for its seven retries.
const lingerTime = 500 * time.Millisecond

// linger keeps acknowledging the peer's last message: if our acknowledgement of
// it was lost, the peer would otherwise find nobody and fail.
func (p *pingpong) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	var wcs [16]cq.WC
	for ctx.Err() == nil {
		_, _ = p.cq.Wait(ctx, wcs[:])
	}
}

func (p *pingpong) close() (err error) {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	if p.dev != nil {
		err = p.dev.Close()
	}
	if p.capture != nil {
		err = errors.Join(err, p.capture.close())
	}
	return err
}
