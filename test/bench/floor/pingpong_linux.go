package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"time"
)

// What a RoCE WRITE of one packet has beside its payload: BTH, RETH, ICRC.
const writeOverhead = 12 + 16 + 4

// warmUp is how many round trips are not counted.
const warmUp = 200

// Byte 0 of a packet: whether another round follows.
const (
	again = 1
	over  = 2
)

// rounds lets the client play round trips and times them.
func rounds(s settings, packet []byte, exchange func() error) (row, error) {
	times := make([]time.Duration, 0, max(s.Count, 1<<20))
	for i := range warmUp {
		if err := exchange(); err != nil {
			return row{}, fmt.Errorf("round trip %d of the warm-up: %w", i, err)
		}
	}
	start := time.Now()
	before := time.Duration(0)
	for {
		packet[0] = again
		done := len(times) == cap(times) || s.Time > 0 && before >= s.Time || s.Time == 0 && len(times) == s.Count-1
		if done {
			packet[0] = over
		}
		if err := exchange(); err != nil {
			return row{}, fmt.Errorf("round trip %d: %w", len(times), err)
		}
		now := time.Since(start)
		times = append(times[:len(times):cap(times)], now-before)
		before = now
		if done {
			return latencyRow(s.Size, times, before), nil
		}
	}
}

// latencyRow gives half round trips.
func latencyRow(size int, times []time.Duration, total time.Duration) row {
	half := func(d time.Duration) float64 { return d.Seconds() * 1e6 / 2 }
	slices.Sort(times)
	n := len(times)
	return row{Size: size, Iterations: n, Typical: half(times[n/2]), Average: half(total) / float64(n), P99: half(times[n*99/100])}
}

func pingPolled(s settings) (row, error) {
	runtime.LockOSThread()
	sock, err := open(s.Local, s.Remote)
	if err != nil {
		return row{}, err
	}
	defer sock.close()
	packet, in := make([]byte, s.Size+writeOverhead), make([]byte, 8192)
	packet[0] = again
	return rounds(s, packet, func() error {
		if err := sock.send(packet); err != 0 {
			return err
		}
		_, err := sock.spin(in, time.Time{})
		return err
	})
}

func echoPolled(s settings, ready func() error) error {
	runtime.LockOSThread()
	sock, err := open(s.Local, s.Remote)
	if err != nil {
		return err
	}
	defer sock.close()
	if err := ready(); err != nil {
		return err
	}
	end := time.Now().Add(s.Time + 2*limit)
	b := make([]byte, 8192)
	for {
		n, err := sock.spin(b, end)
		if err != nil {
			return err
		}
		if err := sock.send(b[:n]); err != 0 {
			return err
		}
		if b[0] == over {
			return nil
		}
	}
}

// spin receives without sleeping; until end, or for as long as limit.
func (s *socket) spin(b []byte, end time.Time) (int, error) {
	for spins := 1; ; spins++ {
		n, err := s.receive(b)
		if err != 0 {
			return 0, err
		}
		if n > 0 {
			return n, nil
		}
		if spins%4096 == 0 {
			if end.IsZero() {
				end = time.Now().Add(limit)
			}
			if time.Now().After(end) {
				return 0, errors.New("no packet came: it was lost, or the peer has ended")
			}
		}
	}
}

func pingConn(s settings) (row, error) {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(s.Local))
	if err != nil {
		return row{}, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(s.Time + 2*limit))
	packet, in := make([]byte, s.Size+writeOverhead), make([]byte, 8192)
	packet[0] = again
	return rounds(s, packet, func() error {
		if _, err := c.WriteToUDPAddrPort(packet, s.Remote); err != nil {
			return err
		}
		_, _, err := c.ReadFromUDPAddrPort(in)
		return err
	})
}

func echoConn(s settings, ready func() error) error {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(s.Local))
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(s.Time + 2*limit))
	if err := ready(); err != nil {
		return err
	}
	b := make([]byte, 8192)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("the client has stopped")
		} else if err != nil {
			return err
		}
		if _, err := c.WriteToUDPAddrPort(b[:n], from); err != nil {
			return err
		}
		if b[0] == over {
			return nil
		}
	}
}
