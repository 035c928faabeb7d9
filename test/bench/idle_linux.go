package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

// The queue pairs that are opened: connected, with room for 16 requests each way.
// Their peer does not exist and is never spoken to.
const (
	idleDepth = 16
	idleAddr  = "127.0.10.3"
	idlePeer  = "127.0.10.4"
)

// measureIdle opens idle queue pairs in this process, which does nothing else, and
// prints what they took.
func measureIdle(out io.Writer) error {
	dev, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(idleAddr), Polled: true, NoWatch: true})
	if err != nil {
		return err
	}
	defer dev.Close()
	pd := dev.AllocPD()
	queue, err := dev.CreateCQ(idleCount)
	if err != nil {
		return err
	}
	all := make([]*verbs.QP, idleCount)
	before, err := resident()
	if err != nil {
		return err
	}
	start := time.Now()
	for i := range all {
		q, err := pd.CreateQP(verbs.QPConfig{Type: qp.RC, SendCQ: queue, RecvCQ: queue, MaxSendWR: idleDepth, MaxRecvWR: idleDepth})
		if err != nil {
			return fmt.Errorf("queue pair %d: %w", i, err)
		}
		peer := verbs.Endpoint{GID: netip.MustParseAddr(idlePeer), QPN: bth.QPN(i + 1000)}
		if err := q.Connect(peer, verbs.ConnectConfig{}); err != nil {
			return fmt.Errorf("queue pair %d: %w", i, err)
		}
		all[i] = q
	}
	took := time.Since(start)
	after, err := resident()
	if err != nil {
		return err
	}
	for i, q := range all {
		if q.State() != qp.RTS {
			return fmt.Errorf("queue pair %d is in %v", i, q.State())
		}
	}
	return json.NewEncoder(out).Encode(idleReading{QPs: idleCount, Seconds: took.Seconds(), BytesPerQP: float64(after-before) / idleCount})
}

// resident returns the memory of this process after it has given back what it does
// not need.
func resident() (int64, error) {
	runtime.GC()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, pages int64
	if n, _ := fmt.Sscan(string(b), &size, &pages); n != 2 {
		return 0, errors.New("/proc/self/statm does not read as expected")
	}
	return pages * int64(os.Getpagesize()), nil
}
