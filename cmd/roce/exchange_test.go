package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/udp"
)

// patience is far more than what must end at once takes.
const patience = 10 * time.Second

// startRoce runs a command line until ctx ends or it does.
func startRoce(ctx context.Context, args ...string) <-chan result {
	done := make(chan result, 1)
	go func() {
		var out, errOut bytes.Buffer
		code := run(ctx, args, strings.NewReader(""), &out, &errOut)
		done <- result{code, out.String(), errOut.String()}
	}()
	return done
}

func await(t *testing.T, done <-chan result) result {
	t.Helper()
	select {
	case r := <-done:
		return r
	case <-time.After(patience):
		t.Fatal("it did not end")
	}
	return result{}
}

// dialServer connects to a server that is about to listen.
func dialServer(t *testing.T, port string) net.Conn {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.3.1", port))
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// mute is a server that accepts connections and says nothing.
func mute(t *testing.T) (port string, accepted <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.3.1:0")
	if err != nil {
		t.Skipf("needs a TCP port on 127.0.3.1: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	ch := make(chan struct{}, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { c.Close() })
		ch <- struct{}{}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, ch
}

func TestExchangeWithASilentPeerEndsAfterWait(t *testing.T) {
	const want = "the peer said nothing for 300ms: does it run the same test (rc, uc, ud, srq)?"
	t.Run("client", func(t *testing.T) {
		port, _ := mute(t)
		got := await(t, startRoce(t.Context(), "pingpong", "rc", "--dev", "127.0.3.2", "--port", port, "--wait", "300ms", "127.0.3.1"))
		skipWithoutPort(t, got)
		if want := (result{1, "", "roce: " + want + "\n"}); got.code != want.code || got.err != want.err {
			t.Errorf("\n got %+v\nwant %+v", got, want)
		}
	})
	t.Run("server", func(t *testing.T) {
		port := freePort(t)
		done := startRoce(t.Context(), "pingpong", "srq", "--port", port, "--wait", "300ms")
		dialServer(t, port)
		if got := await(t, done); got.code != 1 || got.err != "roce: "+want+"\n" {
			t.Errorf("%+v", got)
		}
	})
}

func TestExchangeEndsWithTheContext(t *testing.T) {
	const want = "roce: interrupted during the TCP exchange\n"
	t.Run("client", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		port, accepted := mute(t)
		done := startRoce(ctx, "pingpong", "rc", "--dev", "127.0.3.2", "--port", port, "127.0.3.1")
		select {
		case <-accepted:
		case r := <-done:
			skipWithoutPort(t, r)
			t.Fatalf("%+v", r)
		}
		cancel()
		// The server may know of the connection before the client does.
		if got := await(t, done); got.code != 1 || got.err != want && !strings.Contains(got.err, "interrupted while connecting") {
			t.Errorf("%+v", got)
		}
	})
	t.Run("server", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		port := freePort(t)
		done := startRoce(ctx, "pingpong", "rc", "--port", port)
		c := dialServer(t, port)
		if _, err := c.Write([]byte("0000:")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // so that it reads; if not, it ends in Accept
		cancel()
		if got := await(t, done); got.code != 1 || got.err != want && !strings.Contains(got.err, "interrupted while waiting") {
			t.Errorf("%+v", got)
		}
	})
}

func TestStrayConnectionDoesNotEndAServer(t *testing.T) {
	port := freePort(t)
	server := startRoce(t.Context(), "pingpong", "rc", "--dev", "127.0.3.1", "--port", port, "--iters", "10")
	select {
	case r := <-server:
		skipWithoutPort(t, r)
		t.Fatalf("%+v", r)
	case <-time.After(100 * time.Millisecond):
	}
	stray := dialServer(t, port)
	from := stray.LocalAddr().String()
	if _, err := stray.Write([]byte("GET / HTTP/1.0\r\n")); err != nil {
		t.Fatal(err)
	}
	stray.Close()
	client := runRoce(t, nil, "pingpong", "rc", "--dev", "127.0.3.2", "--port", port, "--iters", "10", "127.0.3.1")
	skipWithoutPort(t, client)
	got := await(t, server)
	if client.code != 0 || got.code != 0 {
		t.Fatalf("client %+v\nserver %+v", client, got)
	}
	if want := "roce: a connection from " + from + " sent no record; still waiting for a client\n"; got.err != want {
		t.Errorf("%q, want %q", got.err, want)
	}
}

// What needs no peer fails before one is waited for.
func TestPingpongFailsAtOnceWithoutAPeer(t *testing.T) {
	link, err := udp.Open(udp.Config{Addr: netip.MustParseAddr("127.0.3.3")})
	if err != nil {
		t.Skipf("needs UDP port 4791 on 127.0.3.3: %v", err)
	}
	defer link.Close()
	const cure = "both sides on one host need different --dev addresses, such as 127.0.0.1 and 127.0.0.2"
	for _, row := range []struct {
		name       string
		args       []string
		want, lack string
	}{
		{"no such address", []string{"--dev", "192.0.2.1"}, "192.0.2.1", cure},
		{"no such interface", []string{"--dev", "nosuch0"}, `"nosuch0" is neither an address nor an interface`, cure},
		{"index without interface", []string{"--gid-idx", "1"}, "give the interface with --dev", cure},
		{"port in use", []string{"--dev", "127.0.3.3"}, "port 4791 of 127.0.3.3 is in use", cure},
		{"capture in no folder", []string{"--pcap", t.TempDir() + "/none/x.pcap"}, "cannot write the capture", cure},
		{"client of this host", []string{"--dev", "127.0.3.3", "127.0.3.3"}, cure, "TCP"},
		{"client of another host", []string{"--dev", "127.0.3.3", "192.0.2.1"}, "in use", cure},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := await(t, startRoce(t.Context(), append([]string{"pingpong", "uc", "--port", freePort(t)}, row.args...)...))
			if got.code != 1 || !strings.Contains(got.err, row.want) || strings.Contains(got.err, row.lack) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestSameHostHintOfIPv6(t *testing.T) {
	inUse := &udp.InUseError{Addr: netip.MustParseAddrPort("[::1]:4791"), Holder: "it", Err: errors.New("x")}
	err := sameHost(inUse, netip.IPv6Loopback())
	if !errors.Is(err, inUse) || !strings.Contains(err.Error(), "different --dev addresses") {
		t.Errorf("%v", err)
	}
	if err := sameHost(inUse, netip.MustParseAddr("2001:db8::7")); err != inUse {
		t.Errorf("another host: %v", err)
	}
}

func TestPingpongOfAHostThatDoesNotExist(t *testing.T) {
	got := await(t, startRoce(t.Context(), "pingpong", "rc", "--wait", "3s", "nosuch.invalid"))
	if got.code != 1 || !strings.Contains(got.err, "cannot find the host nosuch.invalid") {
		t.Errorf("%+v", got)
	}
}

func TestPingpongJSONOfAFailure(t *testing.T) {
	port, _ := mute(t)
	got := await(t, startRoce(t.Context(), "pingpong", "rc", "--dev", "127.0.3.2", "--port", port, "--wait", "100ms", "--json", "127.0.3.1"))
	skipWithoutPort(t, got)
	var out pingpongResult
	if err := json.Unmarshal([]byte(got.out), &out); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	if _, ok := out.Counters["sent_pkts"]; got.code != 1 || !strings.HasPrefix(out.Error, "the peer said nothing for 100ms") || !ok || got.err != "roce: "+out.Error+"\n" {
		t.Errorf("%+v", got)
	}
}

// bothSides runs a server on 127.0.3.1 and a client on 127.0.3.2.
func bothSides(t *testing.T, kind string, server, client []string) (s, c result) {
	t.Helper()
	port := freePort(t)
	done := startRoce(t.Context(), append([]string{"pingpong", kind, "--dev", "127.0.3.1", "--port", port, "--wait", "1s"}, server...)...)
	c = await(t, startRoce(t.Context(), append([]string{"pingpong", kind, "--dev", "127.0.3.2", "--port", port, "--wait", "1s", "127.0.3.1"}, client...)...))
	s = await(t, done)
	skipWithoutPort(t, c)
	skipWithoutPort(t, s)
	return s, c
}

func TestPingpongThatDiffersNamesTheCure(t *testing.T) {
	for _, row := range []struct {
		name, kind     string
		server, client []string
		want           string // of the client
	}{
		{"mtu", "rc", []string{"--mtu", "512"}, []string{"--mtu", "2048"}, "do both sides have the same --mtu and --size?"},
		{"size", "rc", []string{"--size", "100"}, []string{"--size", "5000"}, "do both sides have the same --mtu and --size?"},
		{"datagram", "ud", []string{"--size", "100"}, []string{"--size", "1000"}, "differ in --iters or --size, or the two sides run different tests"},
		{"drops", "ud", []string{"--fault", "set destqp=+1"}, nil, "; the device dropped packets: drop_unknown_qpn 1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, c := bothSides(t, row.kind, row.server, row.client)
			if c.code != 1 || !strings.Contains(c.err, row.want) {
				t.Errorf("client %+v\nserver %+v", c, s)
			}
		})
	}
}

func TestOutputThatCannotBeWrittenIsReportedOnce(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	defer full.Close()
	var errOut bytes.Buffer
	if code := run(t.Context(), []string{"info"}, strings.NewReader(""), full, &errOut); code != 1 || !strings.Contains(errOut.String(), "cannot write the output") {
		t.Errorf("info: exit status %d, %q", code, errOut.String())
	}
	got := runRoce(t, nil, "demo", "--addrs", "127.0.3.1,127.0.3.2", "--pcap", "/dev/full")
	if got.code != 1 || strings.Count(got.err, "no space left") != 1 {
		t.Errorf("demo: %+v", got)
	}
}

// A capture that fails later, too, says so once.
func TestCaptureThatFailsIsReportedOnce(t *testing.T) {
	p, err := createPacketFile(t.TempDir() + "/x.pcap")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.file.Close(); err != nil {
		t.Fatal(err)
	}
	p.write(time.Now(), true, make([]byte, 2<<15))
	for range 40 {
		p.write(time.Now(), true, make([]byte, 2<<15))
	}
	if err := p.close(); err == nil || strings.Count(err.Error(), "already closed") != 1 {
		t.Errorf("%v", err)
	}
}
