package perf

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// pipe returns a conn and the peer's end of it.
func pipe(t *testing.T, ctx context.Context, wait time.Duration) (*conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.7.1:0")
	if err != nil {
		t.Skipf("needs a TCP port on 127.0.7.1: %v", err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(ctx, raw, wait)
	t.Cleanup(func() { c.close(); peer.Close() })
	return c, peer
}

func TestShortReadsAreReadOn(t *testing.T) {
	c, peer := pipe(t, t.Context(), 5*time.Second)
	go func() {
		for _, b := range []byte(goldenRecord) {
			_, _ = peer.Write([]byte{b})
		}
	}()
	b, err := c.receive(recordLen)
	if err != nil || string(b) != goldenRecord {
		t.Errorf("%q, %v", b, err)
	}
}

// Two records that arrive together are still two, and the end comes after them.
func TestRecordsThatArriveTogether(t *testing.T) {
	c, peer := pipe(t, t.Context(), 5*time.Second)
	_, _ = peer.Write([]byte("abcdefgh"))
	_ = peer.Close()
	for _, want := range []string{"abc", "defgh"} {
		if b, err := c.receive(len(want)); err != nil || string(b) != want {
			t.Errorf("%q, %v, want %q", b, err, want)
		}
	}
	if _, err := c.receive(1); !errors.Is(err, ErrEarly) {
		t.Errorf("after the end: %v", err)
	}
}

func TestSilentPeerEndsTheWait(t *testing.T) {
	c, _ := pipe(t, t.Context(), 50*time.Millisecond)
	if _, err := c.receive(1); err == nil || !strings.Contains(err.Error(), "the peer said nothing for 50ms") {
		t.Errorf("%v", err)
	}
	// As long as packets come, it waits on.
	rounds := 0
	c.alive = func() bool { rounds++; return rounds < 4 }
	if _, err := c.receive(1); err == nil || rounds != 4 {
		t.Errorf("%v after %d rounds", err, rounds)
	}
}

func TestExchangeEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, _ := pipe(t, ctx, 5*time.Second)
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := c.receive(1); err == nil || err.Error() != "interrupted during the TCP exchange" {
		t.Errorf("%v", err)
	}
}

func TestNoteThatIsTooLongIsRefused(t *testing.T) {
	c, peer := pipe(t, t.Context(), 5*time.Second)
	_, _ = peer.Write(formatInt(maxNote + 1))
	if err := c.receiveNote(&terms{}); err == nil || !strings.Contains(err.Error(), "4097 bytes") {
		t.Errorf("%v", err)
	}
}
