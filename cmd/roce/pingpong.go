package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
	"github.com/spf13/cobra"
)

func newPingpongCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pingpong",
		Short: "Exchange messages with ibv_rc_pingpong or another roce",
		Long: `pingpong is a peer of the ibv_*_pingpong tools of rdma-core, as client and as
server, with their options and their output.`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPingpongRCCommand())
	return cmd
}

// pingpongFlags are the options, spelled as those of ibv_rc_pingpong.
type pingpongFlags struct {
	deviceFlags
	port, size, iters, mtu, rxDepth int
	sl, ibPort                      int
	check, events, json             bool
}

func newPingpongRCCommand() *cobra.Command {
	var f pingpongFlags
	cmd := &cobra.Command{
		Use:   "rc [HOST]",
		Short: "Reliable connection: the counterpart of ibv_rc_pingpong",
		Long: `rc sends messages to and fro over a reliable connection. Without HOST it is the
server and waits for a client; with HOST it is the client. The other side may be
ibv_rc_pingpong, which has to be given its RoCE v2 GID with -g.`,
		Example: `  # against a Linux host with RDMA, which runs: ibv_rc_pingpong -g 1
  roce pingpong rc 192.0.2.7

  # both sides on one machine
  roce pingpong rc --dev 127.0.0.2 &
  roce pingpong rc --dev 127.0.0.1 127.0.0.2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(cmd, "%q is one argument too many: rc takes one HOST", args[1])
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
			}
			return runPingpongRC(cmd.Context(), &f, host, cmd.OutOrStdout())
		},
	}
	f.register(cmd)
	return cmd
}

func (f *pingpongFlags) register(cmd *cobra.Command) {
	f.deviceFlags.register(cmd)
	fs := cmd.Flags()
	fs.IntVarP(&f.port, "port", "p", 18515, "TCP `PORT` of the exchange before the test")
	fs.IntVarP(&f.size, "size", "s", 4096, "`BYTES` per message")
	fs.IntVarP(&f.iters, "iters", "n", 1000, "`NUMBER` of messages each way")
	fs.IntVarP(&f.mtu, "mtu", "m", 1024, "path MTU in `BYTES`: 256, 512, 1024, 2048 or 4096, the same on both sides")
	fs.IntVarP(&f.rxDepth, "rx-depth", "r", 500, "`NUMBER` of receives to keep posted")
	fs.BoolVarP(&f.check, "check", "c", false, "check the received bytes")
	fs.BoolVarP(&f.events, "events", "e", false, "sleep until a completion instead of polling for it")
	fs.IntVarP(&f.ibPort, "ib-port", "i", 1, "port of the device: 1, for compatibility")
	fs.IntVarP(&f.sl, "sl", "l", 0, "service level: accepted for compatibility; Ethernet has none")
	fs.BoolVar(&f.json, "json", false, "print the result as one JSON object")
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
	case f.ibPort != 1:
		return usageError(cmd, "--ib-port is %d; the device has port 1 only", f.ibPort)
	}
	return nil
}

// pingpongResult is what --json prints.
type pingpongResult struct {
	Local     string            `json:"local"`
	Remote    string            `json:"remote"`
	Size      int               `json:"size_bytes"`
	Iters     int               `json:"iterations"`
	MTU       int               `json:"path_mtu"`
	Seconds   float64           `json:"seconds"`
	Bytes     int64             `json:"bytes"`
	MbitPerS  float64           `json:"mbit_per_second"`
	USPerIter float64           `json:"usec_per_iteration"`
	Checked   bool              `json:"bytes_checked"`
	Counters  map[string]uint64 `json:"counters"`
}

// runPingpongRC runs one test as client (host given) or server.
func runPingpongRC(ctx context.Context, f *pingpongFlags, host string, out io.Writer) error {
	text := out
	if f.json {
		text = io.Discard
	}
	conn, peerFirst, err := meet(ctx, f, host)
	if err != nil {
		return err
	}
	defer conn.Close()
	p, err := newPingpong(f, conn, host != "", peerFirst)
	if err != nil {
		return err
	}
	if err = p.connect(conn, peerFirst, text); err == nil {
		err = p.run(ctx, text)
	}
	if err == nil && f.json {
		err = p.printJSON(out)
	}
	if err == nil {
		p.linger(ctx)
	}
	return errors.Join(err, p.close())
}

// meet makes the TCP connection. A server learns the client's record first,
// which tells the address family that it has to use.
func meet(ctx context.Context, f *pingpongFlags, host string) (net.Conn, verbs.Endpoint, error) {
	if host != "" {
		c, err := dialPeer(ctx, host, f.port)
		return c, verbs.Endpoint{}, err
	}
	c, err := acceptPeer(ctx, f.port)
	if err != nil {
		return nil, verbs.Endpoint{}, err
	}
	e, err := receiveRecord(c)
	if err != nil {
		c.Close()
	}
	return c, e, err
}

// pingpong is one end of the test.
type pingpong struct {
	f        *pingpongFlags
	client   bool
	dev      *verbs.Device
	closeDev func() error
	cq       *verbs.CQ
	qp       *verbs.QP
	send     *verbs.MR
	recv     *verbs.MR
	remote   verbs.Endpoint
	posted   int // receives posted and not completed
	elapsed  time.Duration
}

func newPingpong(f *pingpongFlags, conn net.Conn, client bool, first verbs.Endpoint) (*pingpong, error) {
	addr, err := pingpongAddr(f, conn, first)
	if err != nil {
		return nil, err
	}
	p := &pingpong{f: f, client: client}
	p.dev, p.closeDev, err = f.open(verbs.Config{Addr: addr, Polled: !f.events})
	if err != nil {
		return nil, err
	}
	if err := p.create(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// pingpongAddr chooses the local address: the user's, else the one that the TCP
// connection uses if the peer's GID is of that family.
func pingpongAddr(f *pingpongFlags, conn net.Conn, first verbs.Endpoint) (netip.Addr, error) {
	switch {
	case f.given():
		return f.addr(first.GID)
	case !first.GID.IsValid():
		return f.addr(peerAddr(conn))
	case localAddr(conn).Is4() == first.GID.Is4():
		return localAddr(conn), nil
	}
	return f.addr(first.GID)
}

func (p *pingpong) create() (err error) {
	f := p.f
	if p.cq, err = p.dev.CreateCQ(f.rxDepth + 1); err != nil {
		return err
	}
	pd := p.dev.AllocPD()
	p.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: 1, MaxRecvWR: f.rxDepth, SignalAll: true})
	if err != nil {
		return err
	}
	buf := make([]byte, f.size)
	if p.recv, err = pd.RegisterMR(buf, mr.LocalWrite); err != nil {
		return err
	}
	// The server sends back what it received, from the same buffer, as the
	// original does; the client keeps what it sent, to compare.
	p.send = p.recv
	if p.client {
		buf = make([]byte, f.size)
		p.send, err = pd.RegisterMR(buf, 0)
	}
	fillMessage(buf)
	return err
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

// connect exchanges endpoints and brings the queue pair to RTS.
func (p *pingpong) connect(conn net.Conn, first verbs.Endpoint, out io.Writer) error {
	if err := p.qp.Modify(&qp.Attr{State: qp.Init, Port: 1}, qp.AttrState|qp.AttrPKeyIndex|qp.AttrPort|qp.AttrAccess); err != nil {
		return err
	}
	if err := p.postRecvs(); err != nil {
		return err
	}
	printEndpoint(out, "local", p.qp.Local())
	if p.client {
		return p.connectClient(conn, out)
	}
	return p.connectServer(conn, first, out)
}

func (p *pingpong) connectClient(conn net.Conn, out io.Writer) error {
	if err := sendRecord(conn, p.qp.Local()); err != nil {
		return err
	}
	remote, err := receiveRecord(conn)
	if err != nil {
		return err
	}
	if err := p.toRTS(remote, out); err != nil {
		return err
	}
	return writeWhole(conn, doneRecord)
}

func (p *pingpong) connectServer(conn net.Conn, first verbs.Endpoint, out io.Writer) error {
	if err := p.toRTS(first, out); err != nil {
		return err
	}
	if err := sendRecord(conn, p.qp.Local()); err != nil {
		return err
	}
	return receiveDone(conn)
}

func (p *pingpong) toRTS(remote verbs.Endpoint, out io.Writer) error {
	p.remote = remote
	if err := p.qp.Connect(remote, verbs.ConnectConfig{PathMTU: p.f.mtu, MaxRDAtomic: 1, MaxDestRDAtomic: 1}); err != nil {
		return err
	}
	printEndpoint(out, "remote", remote)
	return nil
}

func (p *pingpong) postRecvs() error {
	for ; p.posted < p.f.rxDepth; p.posted++ {
		if err := p.qp.PostRecv(&qp.RecvWR{SGE: []mr.SGE{p.recv.SGE(0, p.f.size)}}); err != nil {
			return err
		}
	}
	return nil
}

// run exchanges the messages: one is under way at a time, and the next is sent
// when the last one has gone and its answer has come.
func (p *pingpong) run(ctx context.Context, out io.Writer) error {
	n := p.f.iters
	sent, gone, got := 0, 0, 0
	post := func() error {
		sent++
		return p.qp.PostSend(&qp.SendWR{Op: qp.Send, SGE: []mr.SGE{p.send.SGE(0, p.f.size)}})
	}
	start := time.Now()
	if p.client {
		if err := post(); err != nil {
			return err
		}
	}
	var wcs [16]cq.WC
	for got < n || gone < n {
		k, err := p.cq.Wait(ctx, wcs[:])
		if err != nil {
			return fmt.Errorf("stopped after %d of %d messages: %w", got, n, err)
		}
		for _, wc := range wcs[:k] {
			if wc.Status != cq.Success {
				if got == n && sent == n && wc.Status == cq.RetryExcErr {
					gone = n // the peer has all it wanted and is gone
					continue
				}
				return p.explain(wc, got)
			}
			if !wc.Recv() {
				gone++
				continue
			}
			got++
			p.posted--
			if err := p.checkMessage(wc); err != nil {
				return err
			}
		}
		if p.posted <= 1 {
			if err := p.postRecvs(); err != nil {
				return err
			}
		}
		// The client's next message waits for the answer to its last one, the
		// server's for a message to answer.
		if turn := got; gone == sent && sent < n && (p.client && turn >= sent || !p.client && turn > sent) {
			if err := post(); err != nil {
				return err
			}
		}
	}
	p.elapsed = time.Since(start)
	return p.report(out)
}

// explain turns a failed completion into a sentence with a cure.
func (p *pingpong) explain(wc cq.WC, got int) error {
	switch {
	case wc.Status == cq.RetryExcErr && got == 0:
		return fmt.Errorf("no answer from %v after all retries: is UDP port 4791 open there, does its GID (-g) name this address, and does its path MTU of %d fit the network", p.remote.GID, p.f.mtu)
	case wc.Status == cq.RNRRetryExcErr:
		return errors.New("the peer posted no receive in time: raise its -r")
	}
	return fmt.Errorf("work request failed after %d messages: %v", got, wc.Status)
}

// checkMessage compares what came with what is known of it.
func (p *pingpong) checkMessage(wc cq.WC) error {
	if int(wc.ByteLen) != p.f.size {
		return fmt.Errorf("a message of %d bytes came, not %d: give both sides the same --size", wc.ByteLen, p.f.size)
	}
	if !p.f.check {
		return nil
	}
	got, sent := p.recv.Bytes(), p.send.Bytes()
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

func (p *pingpong) printJSON(out io.Writer) error {
	s := p.elapsed.Seconds()
	return json.NewEncoder(out).Encode(pingpongResult{
		Local: gidText(p.dev.GID()), Remote: gidText(p.remote.GID), Size: p.f.size, Iters: p.f.iters, MTU: p.f.mtu,
		Seconds: s, Bytes: p.bytes(), MbitPerS: float64(p.bytes()) * 8 / 1e6 / s, USPerIter: s * 1e6 / float64(p.f.iters),
		Checked: p.f.check, Counters: p.dev.Stats(),
	})
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

func (p *pingpong) close() error { return p.closeDev() }
