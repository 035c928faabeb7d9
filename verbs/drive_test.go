package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

// Queue pairs of all shards work, towards a peer with other shards or none,
// whatever the kernel makes of the packets: with coalescing many arrive at a
// shard that is not theirs.
func TestShardsServeAllQueuePairs(t *testing.T) {
	for _, row := range []struct {
		a, b   verbs.Config
		strays bool
	}{
		{a: verbs.Config{Shards: 4}, b: verbs.Config{}},
		{a: verbs.Config{Shards: 4}, b: verbs.Config{Shards: 2}},
		{a: verbs.Config{}, b: verbs.Config{Shards: 4}, strays: true},
		{a: verbs.Config{Shards: 2, Polled: true}, b: verbs.Config{Shards: 2}},
		{a: verbs.Config{Shards: 3, SrcPorts: 8}, b: verbs.Config{Shards: 8, SrcPorts: 8}},
	} {
		t.Run(fmt.Sprintf("%d and %d", row.a.Shards, row.b.Shards), func(t *testing.T) {
			row.a.Addr, row.b.Addr = netip.MustParseAddr("127.0.1.1"), netip.MustParseAddr("127.0.1.2")
			a, b := openPair(t, [2]verbs.Config{row.a, row.b}, 1<<16, verbs.ConnectConfig{})
			const pairs, each = 16, 40
			qs, c := connectMany(t, a, b, pairs)
			for k := range each {
				for range 4 { // who polls in a loop sends in runs that mix queue pairs
					c[0].Poll(nil)
				}
				for i, q := range qs {
					off := 8 * (i*each + k)
					binary.NativeEndian.PutUint64(a.mem.Bytes()[off:], uint64(i<<16|k+1))
					err := q.PostSend(&qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.mem.SGE(off, 8)}, RemoteAddr: b.mem.Addr() + uint64(off), RKey: b.mem.Key(), Flags: qp.Signaled})
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			collect(t, c, pairs*each)
			b.dev.Sync()
			if n := 8 * pairs * each; !bytes.Equal(a.mem.Bytes()[:n], b.mem.Bytes()[:n]) {
				t.Error("wrong bytes")
			}
			s := b.dev.Stats()
			if s["drop_unknown_qpn"]+s["drop_stray_queue_full"] > 0 || row.strays && s["link_rx_gro_runs"] > 0 && s["link_rx_strays"] == 0 {
				t.Errorf("strays %d, lost %d, unknown %d", s["link_rx_strays"], s["drop_stray_queue_full"], s["drop_unknown_qpn"])
			}
		})
	}
}

// connectMany connects pairs of queue pairs. A's have completion queues of their
// own, and so are in all shards; all of their receives complete in one.
func connectMany(t *testing.T, a, b *end, n int) (qs []*verbs.QP, cqs []*verbs.CQ) {
	t.Helper()
	shared := must(a.dev.CreateCQ(64))
	for range n {
		ca, cb := must(a.dev.CreateCQ(64)), must(b.dev.CreateCQ(64))
		qa := must(a.pd.CreateQP(verbs.QPConfig{SendCQ: ca, RecvCQ: shared}))
		qb := must(b.pd.CreateQP(verbs.QPConfig{SendCQ: cb, RecvCQ: cb}))
		cc := verbs.ConnectConfig{Access: mr.RemoteWrite}
		if err := errors.Join(qa.Connect(qb.Local(), cc), qb.Connect(qa.Local(), cc)); err != nil {
			t.Fatal(err)
		}
		qs, cqs = append(qs, qa), append(cqs, ca)
	}
	return qs, cqs
}

// collect takes n successes from completion queues.
func collect(t *testing.T, cqs []*verbs.CQ, n int) {
	t.Helper()
	var wcs [16]cq.WC
	for end := time.Now().Add(20 * time.Second); n > 0; {
		for _, c := range cqs {
			k := c.Poll(wcs[:])
			n -= k
			for _, wc := range wcs[:k] {
				if wc.Status != cq.Success {
					t.Fatal(wc.Status)
				}
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%d completions are missing", n)
		}
	}
}

// A completion queue that several shards feed loses nothing.
func TestSharedCompletionQueueTakesFromAllShards(t *testing.T) {
	cfg := loopback(verbs.Config{Shards: 4})
	a, b := openPair(t, cfg, 4096, verbs.ConnectConfig{})
	const pairs, each = 8, 100
	one := must(a.dev.CreateCQ(2048))
	var wg sync.WaitGroup
	for range pairs {
		sends, cb := must(a.dev.CreateCQ(1)), must(b.dev.CreateCQ(256))
		qa := must(a.pd.CreateQP(verbs.QPConfig{SendCQ: sends, RecvCQ: one, MaxRecvWR: each}))
		qb := must(b.pd.CreateQP(verbs.QPConfig{SendCQ: cb, RecvCQ: cb, MaxSendWR: each}))
		if err := errors.Join(qa.Connect(qb.Local(), verbs.ConnectConfig{}), qb.Connect(qa.Local(), verbs.ConnectConfig{})); err != nil {
			t.Fatal(err)
		}
		for range each {
			if err := qa.PostRecv(&qp.RecvWR{}); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			for range each {
				if err := qb.PostSend(&qp.SendWR{Op: qp.Send}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wcs [16]cq.WC
	for n := 0; n < pairs*each; {
		k, err := one.Wait(ctx, wcs[:])
		if err != nil {
			t.Fatalf("%v after %d completions", err, n)
		}
		n += k
	}
}

// What a polling caller posts and then leaves alone is sent all the same, and
// what it has received is acknowledged: the loop takes over.
func TestLoopTakesOverFromCallerThatStopsPolling(t *testing.T) {
	a, b := openPair(t, loopback(verbs.Config{}), 4096, verbs.ConnectConfig{Timeout: 20}) // 4.3 s
	wr := qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.mem.SGE(0, 8)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key()}
	var wcs [4]cq.WC
	for round := range 20 {
		for range 100 { // a polls in a loop, and b
			a.cq.Poll(wcs[:])
			b.cq.Poll(wcs[:])
		}
		start := time.Now()
		for range 10 { // the last are posted behind unanswered ones
			if err := a.qp.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
		}
		wr.Flags = qp.Signaled
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		wr.Flags = 0
		for a.cq.Len() == 0 { // nobody polls
			time.Sleep(50 * time.Microsecond)
			if time.Since(start) > 2*time.Second {
				t.Fatalf("round %d: nothing happened for 2 s: %v", round, a.dev.Stats())
			}
		}
		a.cq.Poll(wcs[:])
	}
	if n := a.dev.Stats()["local_ack_timeout_err"]; n > 0 {
		t.Errorf("%d timeouts", n)
	}
}

// The acknowledgement of the last message leaves before the receiver goes.
func TestLastMessageIsAcknowledgedByWhoLeaves(t *testing.T) {
	for name, leave := range map[string]func(b *end) error{
		"device closed":  func(b *end) error { return b.dev.Close() },
		"pair destroyed": func(b *end) error { return b.qp.Destroy() },
		"pair reset": func(b *end) error {
			return b.qp.Modify(&qp.Attr{State: qp.Reset}, qp.AttrState)
		},
	} {
		for _, polled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, polled %v", name, polled), func(t *testing.T) {
				cfg := loopback(verbs.Config{})
				cfg[1].Polled = polled
				a, b := openPair(t, cfg, 64, verbs.ConnectConfig{Timeout: 20})
				if err := b.qp.PostRecv(&qp.RecvWR{}); err != nil {
					t.Fatal(err)
				}
				var wcs [1]cq.WC
				for range 50 {
					b.cq.Poll(wcs[:])
				}
				if err := a.qp.PostSend(&qp.SendWR{Op: qp.Send, Flags: qp.Signaled}); err != nil {
					t.Fatal(err)
				}
				for b.cq.Poll(wcs[:]) == 0 {
				}
				if err := leave(b); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				if _, err := a.cq.Wait(ctx, wcs[:]); err != nil || wcs[0].Status != cq.Success {
					t.Errorf("%v, %v", err, wcs[0].Status)
				}
			})
		}
	}
}

// A wait ends with its context and with the device, also when the waiting caller
// is the one that drives it, and when several wait.
func TestWaitEndsWithContextAndDevice(t *testing.T) {
	for _, polled := range []bool{false, true} {
		t.Run(fmt.Sprintf("polled %v", polled), func(t *testing.T) {
			a, _ := openPair(t, loopback(verbs.Config{Polled: polled}), 64, verbs.ConnectConfig{})
			errs := make(chan error, 4)
			ctx, cancel := context.WithCancel(context.Background())
			for _, ctx := range []context.Context{ctx, ctx, context.Background(), context.Background()} {
				go func() {
					_, err := a.cq.Wait(ctx, make([]cq.WC, 1))
					errs <- err
				}()
			}
			time.Sleep(20 * time.Millisecond)
			cancel()
			for range 2 {
				if err := <-errs; !errors.Is(err, context.Canceled) {
					t.Errorf("polled %v: %v", polled, err)
				}
			}
			if err := a.dev.Close(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := <-errs; !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("polled %v: %v", polled, err)
				}
			}
		})
	}
}

// Completions without packets end a wait: the flush of a pair that another
// goroutine moves to ERR.
func TestWaitEndsWithFlush(t *testing.T) {
	a, _ := openPair(t, loopback(verbs.Config{}), 64, verbs.ConnectConfig{})
	if err := a.qp.PostRecv(&qp.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = a.qp.Modify(&qp.Attr{State: qp.Err}, qp.AttrState)
	}()
	if wc := a.wait(t); wc.Status != cq.WRFlushErr {
		t.Error(wc.Status)
	}
}

// Several goroutines post to one queue pair and poll one completion queue.
func TestManyPostersAndPollersShareOnePair(t *testing.T) {
	for _, polled := range []bool{false, true} {
		t.Run(fmt.Sprintf("polled %v", polled), func(t *testing.T) {
			a, b := openPair(t, loopback(verbs.Config{Polled: polled}), 4096, verbs.ConnectConfig{})
			if polled {
				stop := make(chan struct{})
				defer close(stop)
				go func() {
					for {
						select {
						case <-stop:
							return
						default:
							b.dev.Poll()
						}
					}
				}()
			}
			const posters, each = 4, 500
			var wg sync.WaitGroup
			done := make(chan int, posters)
			for range posters {
				wg.Go(func() {
					for range each {
						wr := qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.mem.SGE(0, 8)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key(), Flags: qp.Signaled}
						for {
							err := a.qp.PostSend(&wr)
							if err == nil {
								break
							}
							if !errors.Is(err, qp.ErrQueueFull) {
								t.Error(err)
								return
							}
							time.Sleep(10 * time.Microsecond)
						}
					}
				})
			}
			var got sync.Map
			for range 2 {
				go func() {
					n, wcs := 0, make([]cq.WC, 8)
					for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
						k := a.cq.Poll(wcs)
						n += k
						if v, _ := got.LoadOrStore("n", new(counter)); v.(*counter).add(k) == posters*each {
							break
						}
					}
					done <- n
				}()
			}
			wg.Wait()
			if n := <-done + <-done; n != posters*each {
				t.Errorf("polled %v: %d of %d completions", polled, n, posters*each)
			}
		})
	}
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add(k int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += k
	return c.n
}

// The numbers of a device with shards are spread over them evenly.
func TestQueuePairNumbersNameTheirShard(t *testing.T) {
	a, _ := openPair(t, loopback(verbs.Config{Shards: 4}), 64, verbs.ConnectConfig{})
	seen := map[bth.QPN]int{}
	for range 32 {
		c := must(a.dev.CreateCQ(1))
		seen[must(a.pd.CreateQP(verbs.QPConfig{SendCQ: c, RecvCQ: c})).QPN()%4]++
	}
	for i := range bth.QPN(4) {
		if seen[i] != 8 {
			t.Errorf("shard %d has %d queue pairs: %v", i, seen[i], seen)
		}
	}
}
