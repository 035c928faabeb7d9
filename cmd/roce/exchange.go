package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/verbs"
)

// The ibv_*_pingpong tools tell each other over TCP how to connect: one record
// of 52 bytes each way, then "done" from the client. The other side reads each
// record with one system call, so it has to leave in one write.

// recordLen is "LLLL:QQQQQQ:PPPPPP:" and 32 digits of GID, with a final NUL.
const recordLen = 52

// peerConn is the TCP connection of the exchange. Each step waits at most for
// wait, and all end when the context does.
type peerConn struct {
	net.Conn
	wait  time.Duration
	ended func() error // of the context
	stop  func() bool
}

func newPeerConn(ctx context.Context, c net.Conn, wait time.Duration) *peerConn {
	return &peerConn{Conn: c, wait: wait, ended: ctx.Err, stop: context.AfterFunc(ctx, func() { _ = c.Close() })}
}

func (c *peerConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// errEarly says that the peer closed the connection before it said everything.
var errEarly = errors.New("the peer ended the TCP exchange early; its own output tells why")

// explain turns an error of the connection into a sentence with a cause.
func (c *peerConn) explain(err, otherwise error) error {
	switch {
	case c.ended() != nil:
		return errors.New("interrupted during the TCP exchange")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the peer said nothing for %v: does it run the same test (rc, uc, ud, srq)?", c.wait)
	}
	return fmt.Errorf("%w: %w", otherwise, err)
}

func formatRecord(e verbs.Endpoint) []byte {
	gid := e.GID.As16()
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", 0, uint32(e.QPN), e.PSN.Value(), gid[:])
}

func parseRecord(b []byte) (verbs.Endpoint, error) {
	text, _, _ := strings.Cut(string(b), "\x00")
	f := strings.Split(text, ":")
	if len(f) != 4 {
		return verbs.Endpoint{}, fmt.Errorf("the peer sent %q, which is no ibv_*_pingpong record: does it run the same test?", text)
	}
	qpn, err1 := strconv.ParseUint(f[1], 16, 24)
	psn, err2 := strconv.ParseUint(f[2], 16, 24)
	gid, err3 := parseGID(f[3])
	if err := errors.Join(err1, err2, err3); err != nil {
		return verbs.Endpoint{}, fmt.Errorf("the peer sent %q, which is no ibv_*_pingpong record: %w", text, err)
	}
	if gid.IsUnspecified() && qpn != 0 {
		return verbs.Endpoint{}, errors.New("the peer sent no GID: RoCE needs one; run it with -g INDEX, where INDEX is a RoCE v2 GID of the right address family (show_gids or ibv_devinfo -v list them)")
	}
	return verbs.Endpoint{GID: gid.Unmap(), QPN: bth.QPN(qpn), PSN: bth.NewPSN(uint32(psn))}, nil
}

func parseGID(s string) (netip.Addr, error) {
	var a [16]byte
	if len(s) != 32 {
		return netip.Addr{}, fmt.Errorf("a GID has 32 digits, not %d", len(s))
	}
	for i := range a {
		v, err := strconv.ParseUint(s[2*i:2*i+2], 16, 8)
		if err != nil {
			return netip.Addr{}, err
		}
		a[i] = byte(v)
	}
	return netip.AddrFrom16(a), nil
}

// dialPeer connects to a server of the same test.
func dialPeer(ctx context.Context, host string, port int, wait time.Duration) (*peerConn, error) {
	c, err := dialTCP(ctx, host, port, wait)
	if err != nil {
		return nil, err
	}
	return newPeerConn(ctx, c, wait), nil
}

// dialTCP connects to a server, and keeps trying for a moment: it is often started
// in the same breath.
func dialTCP(ctx context.Context, host string, port int, wait time.Duration) (net.Conn, error) {
	at := net.JoinHostPort(host, strconv.Itoa(port))
	d := net.Dialer{Timeout: wait}
	for deadline := time.Now().Add(min(3*time.Second, wait)); ; {
		c, err := d.DialContext(ctx, "tcp", at)
		if err == nil {
			return c, nil
		}
		var dns *net.DNSError
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted while connecting to %s", at)
		case errors.As(err, &dns):
			return nil, fmt.Errorf("cannot find the host %s: check the name or give its address: %w", host, err)
		}
		if time.Now().After(deadline) || !strings.Contains(err.Error(), "refused") {
			return nil, fmt.Errorf("no server at %s: start it there first, and open TCP port %d and UDP port 4791: %w", at, port, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// acceptPeer waits for a client and returns its records, n of them, used ones.
func acceptPeer(ctx context.Context, port int, wait time.Duration, n, used int, errOut io.Writer) (c *peerConn, e []verbs.Endpoint, err error) {
	err = acceptTCP(ctx, port, errOut, func(raw net.Conn) (stray bool, err error) {
		c = newPeerConn(ctx, raw, wait)
		if e, err = receiveRecords(c, n, used); err != nil {
			_ = c.Close()
		}
		return errors.Is(err, errEarly), err
	})
	return c, e, err
}

// acceptTCP waits for a client: it shows each connection to greet, until one is
// taken. A connection that ends without a word, such as that of a port scanner, is
// reported on errOut and no reason to stop waiting. greet closes what it does not
// take.
func acceptTCP(ctx context.Context, port int, errOut io.Writer, greet func(net.Conn) (stray bool, err error)) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return fmt.Errorf("cannot listen on TCP port %d; choose another with --port on both sides: %w", port, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer l.Close()
	for {
		raw, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted while waiting for a client")
			}
			return fmt.Errorf("cannot accept a client: %w", err)
		}
		stray, err := greet(raw)
		if !stray {
			return err
		}
		fmt.Fprintf(errOut, "roce: a connection from %v sent no record; still waiting for a client\n", raw.RemoteAddr())
	}
}

// writeWhole sends b in one write.
func writeWhole(c *peerConn, b []byte) error {
	_ = c.SetDeadline(time.Now().Add(c.wait))
	if _, err := c.Write(b); err != nil {
		return c.explain(err, errors.New("cannot send to the peer over TCP"))
	}
	return nil
}

func readWhole(c *peerConn, n int) ([]byte, error) {
	_ = c.SetDeadline(time.Now().Add(c.wait))
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, c.explain(err, errEarly)
	}
	return b, nil
}

// srqRecords is how many records ibv_srq_pingpong sends, used or not.
const srqRecords = 256

// sendRecords sends the endpoints, filled up to n records with empty ones, in
// one write: the tools read with one call.
func sendRecords(c *peerConn, es []verbs.Endpoint, n int) error {
	var b []byte
	for i := range n {
		e := verbs.Endpoint{GID: netip.IPv6Unspecified()}
		if i < len(es) {
			e = es[i]
		}
		b = append(b, formatRecord(e)...)
	}
	return writeWhole(c, b)
}

// receiveRecords reads n records and returns the first used ones.
func receiveRecords(c *peerConn, n, used int) ([]verbs.Endpoint, error) {
	b, err := readWhole(c, n*recordLen)
	if err != nil {
		return nil, err
	}
	es := make([]verbs.Endpoint, used)
	for i := range es {
		if es[i], err = parseRecord(b[i*recordLen : (i+1)*recordLen]); err != nil {
			return nil, err
		}
		if es[i].QPN == 0 {
			return nil, fmt.Errorf("the peer has fewer than %d queue pairs: give both sides the same --num-qp (-q)", used)
		}
		// All share the first one's address.
		es[i].GID = es[0].GID
	}
	return es, nil
}

var doneRecord = []byte("done\x00")

// receiveDone reads the client's last word; its content does not matter.
func receiveDone(c *peerConn) error {
	_, err := readWhole(c, len(doneRecord))
	return err
}

// peerAddr is the IP address at the other end of a TCP connection.
func peerAddr(c net.Conn) netip.Addr {
	return c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// hostAddr is an address of a host, invalid if there is none.
func hostAddr(ctx context.Context, host string) netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	as, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}
	}
	return as[0].Unmap()
}

// localAddr is the IP address at this end.
func localAddr(c net.Conn) netip.Addr {
	return c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// printEndpoint prints one endpoint in the form of the standard tools.
func printEndpoint(w io.Writer, name string, e verbs.Endpoint) {
	fmt.Fprintf(w, "  %-16sLID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s\n", name+" address:", 0, uint32(e.QPN), e.PSN.Value(), gidText(e.GID))
}

// gidText writes a GID as inet_ntop does, with IPv4 mapped into IPv6.
func gidText(a netip.Addr) string {
	if a.Is4() {
		return "::ffff:" + a.String()
	}
	return a.WithZone("").String()
}
