package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ErrEarly says that the peer closed the connection before it said everything.
var ErrEarly = errors.New("the peer ended the TCP exchange early; its own output tells why")

// conn is the TCP connection to the peer. A goroutine reads it all the time, so
// that the end of the peer shows while a test runs.
type conn struct {
	raw  net.Conn
	ctx  context.Context
	stop func() bool
	wait time.Duration
	// alive, if set, reports whether anything has come from the peer over RoCE
	// since the last call: then it is not silent.
	alive func() bool
	lossy bool // a lost message leaves perftest's tools waiting

	chunks  chan []byte // closed at the end, after err is set
	err     error
	closing chan struct{}
	once    sync.Once
	rest    []byte

	spoke atomic.Bool // bytes wait
	gone  atomic.Bool // the connection has ended
}

func newConn(ctx context.Context, raw net.Conn, wait time.Duration) *conn {
	c := &conn{raw: raw, ctx: ctx, wait: wait, chunks: make(chan []byte), closing: make(chan struct{})}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
		// A host that vanishes is noticed within half a minute.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 5})
	}
	c.stop = context.AfterFunc(ctx, func() { _ = raw.Close() })
	go c.read()
	return c
}

func (c *conn) close() {
	c.once.Do(func() {
		c.stop()
		close(c.closing)
		_ = c.raw.Close()
	})
}

// read hands over what arrives, a piece at a time: nothing piles up.
func (c *conn) read() {
	defer close(c.chunks)
	for {
		b := make([]byte, maxNote)
		n, err := c.raw.Read(b)
		if n > 0 {
			c.spoke.Store(true)
			select {
			case c.chunks <- b[:n]:
			case <-c.closing:
				return
			}
		}
		if err != nil {
			c.err = err
			c.gone.Store(true)
			return
		}
	}
}

// send writes b at once.
func (c *conn) send(b []byte) error {
	_ = c.raw.SetWriteDeadline(time.Now().Add(c.wait))
	if _, err := c.raw.Write(b); err != nil {
		return c.explain(err, errors.New("cannot send to the peer over TCP"))
	}
	return nil
}

// receive reads n bytes.
func (c *conn) receive(n int) ([]byte, error) {
	timer := time.NewTimer(c.wait)
	defer timer.Stop()
	for len(c.rest) < n {
		select {
		case b, ok := <-c.chunks:
			if !ok {
				return nil, c.explain(c.err, ErrEarly)
			}
			c.spoke.Store(false)
			c.rest = append(c.rest, b...)
		case <-timer.C:
			if c.alive == nil || !c.alive() {
				return nil, c.explain(os.ErrDeadlineExceeded, nil)
			}
			timer.Reset(c.wait)
		}
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b, nil
}

// explain turns an error of the connection into a sentence with a cause.
func (c *conn) explain(err, otherwise error) error {
	switch {
	case c.ctx.Err() != nil:
		return errors.New("interrupted during the TCP exchange")
	case errors.Is(err, os.ErrDeadlineExceeded) && c.lossy:
		return fmt.Errorf("the peer said nothing for %v: an ib_* tool that misses a message waits for it, which nothing sends again on this service: send less or slower (-n, -s, --rate_limit)", c.wait)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the peer said nothing for %v: do both sides run the same test with the same options?", c.wait)
	case errors.Is(err, io.EOF):
		return otherwise
	}
	return fmt.Errorf("%w: %w", otherwise, err)
}

// exchange sends mine and receives n bytes, in the order of the role.
func (c *conn) exchange(client bool, mine []byte, n int) ([]byte, error) {
	if client {
		if err := c.send(mine); err != nil {
			return nil, err
		}
		return c.receive(n)
	}
	theirs, err := c.receive(n)
	if err != nil {
		return nil, err
	}
	return theirs, c.send(mine)
}

// exchangeNote exchanges JSON records with another roce.
func (c *conn) exchangeNote(client bool, mine, theirs any) error {
	if client {
		if err := c.send(formatNote(mine)); err != nil {
			return err
		}
		return c.receiveNote(theirs)
	}
	if err := c.receiveNote(theirs); err != nil {
		return err
	}
	return c.send(formatNote(mine))
}

func (c *conn) receiveNote(v any) error {
	head, err := c.receive(4)
	if err != nil {
		return err
	}
	n, err := noteLen(head)
	if err != nil {
		return err
	}
	b, err := c.receive(n)
	if err != nil {
		return err
	}
	return parseNote(b, v)
}
