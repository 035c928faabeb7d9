package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// The client sends its settings; the server answers once when its socket is
// open and again, with an error or none, when the test is over.
type answer struct {
	Err string
}

// serveOne serves one client.
func serveOne(local netip.AddrPort) error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
	if err != nil {
		return err
	}
	defer l.Close()
	_ = l.SetDeadline(time.Now().Add(time.Minute)) // a server that nobody wants does not stay
	conn, err := l.Accept()
	if err != nil {
		return fmt.Errorf("no client came: %w", err)
	}
	defer conn.Close()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	_ = conn.SetDeadline(time.Now().Add(limit))
	var s settings
	if err := in.Decode(&s); err != nil {
		return fmt.Errorf("the client's settings: %w", err)
	}
	s.Local, s.Remote = s.Remote, s.Local
	if err := s.complete(); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(s.Time + 3*limit))
	var reply answer
	err = tests[s.Test].serve(s, func() error { return out.Encode(answer{}) })
	if err != nil {
		reply.Err = err.Error()
	}
	if e := out.Encode(reply); err == nil {
		err = e
	}
	return err
}

func runClient(s settings) (row, error) {
	conn, err := dial(s)
	if err != nil {
		return row{}, err
	}
	defer conn.Close()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	_ = conn.SetDeadline(time.Now().Add(s.Time + 3*limit))
	if err := out.Encode(s); err != nil {
		return row{}, err
	}
	if err := wait(in); err != nil {
		return row{}, err
	}
	r, err := tests[s.Test].client(s)
	if err != nil {
		return row{}, err
	}
	return r, wait(in)
}

// dial waits for a server that has just been started.
func dial(s settings) (net.Conn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.Local.Addr(), 0)), Timeout: limit}
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		conn, err := d.Dial("tcp", s.Remote.String())
		if err == nil || time.Now().After(end) {
			return conn, err
		}
	}
}

func wait(in *json.Decoder) error {
	var a answer
	if err := in.Decode(&a); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	if a.Err != "" {
		return fmt.Errorf("the server: %s", a.Err)
	}
	return nil
}
