package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
)

// Goroutines post, poll, wait with contexts that end at any time, live on
// notifications, destroy pairs and create others, all at once and over a link
// that loses packets. Every request of a pair that lives completes once; Close
// ends what waits and leaves no goroutine.
func TestEverythingAtOnce(t *testing.T) {
	lossy, err := udp.ParseFaults("drop p=1%")
	if err != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	for _, polled := range []bool{false, true} {
		for _, shards := range []int{1, 4} {
			t.Run(fmt.Sprintf("polled %v, %d shards", polled, shards), func(t *testing.T) {
				c := verbs.Config{Polled: polled, Shards: shards, Faults: lossy, FaultSeed: 1}
				s := newStress(t, c)
				s.run(t)
			})
		}
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
		}
	}
}

type stress struct {
	a, b   *end
	cqs    []*verbs.CQ
	pairs  []*stressPair
	byQPN  sync.Map // bth.QPN → *stressPair
	id     atomic.Uint64
	stop   chan struct{} // no more posts
	end    chan struct{} // no more consumers
	wrong  atomic.Pointer[string]
	took   atomic.Int64
	polled bool
}

// stressPair is a pair and what it has not completed.
type stressPair struct {
	mu        sync.Mutex
	a, b      *verbs.QP
	near, far *verbs.MR // of its own: pairs of several shards run at once
	cq        *verbs.CQ
	open      map[uint64]bool
	gone      bool
}

func newStress(t *testing.T, c verbs.Config) *stress {
	cfg := [2]verbs.Config{c, c}
	cfg[0].Addr, cfg[1].Addr = netip.MustParseAddr("127.0.12.1"), netip.MustParseAddr("127.0.12.2")
	a, b := openPair(t, cfg, 1<<16, verbs.ConnectConfig{})
	s := &stress{a: a, b: b, polled: c.Polled, stop: make(chan struct{}), end: make(chan struct{})}
	for range 3 {
		s.cqs = append(s.cqs, must(a.dev.CreateCQ(4096)))
	}
	for i := range 9 {
		// The last queue takes from all shards.
		send, recv := s.cqs[i%3], s.cqs[i%3]
		if i%3 == 2 {
			send = s.cqs[i/3]
			recv = s.cqs[2]
		}
		s.pairs = append(s.pairs, s.newPair(t, send, recv))
	}
	return s
}

func (s *stress) newPair(t *testing.T, send, recv *verbs.CQ) *stressPair {
	cb, err := s.b.dev.CreateCQ(16)
	if err != nil {
		t.Error(err)
		return nil
	}
	qa, err := s.a.pd.CreateQP(verbs.QPConfig{SendCQ: send, RecvCQ: recv, MaxSendWR: 64})
	qb, err2 := s.b.pd.CreateQP(verbs.QPConfig{SendCQ: cb, RecvCQ: cb})
	if err := errors.Join(err, err2); err != nil {
		t.Error(err)
		return nil
	}
	near, err := s.a.pd.RegisterMR(make([]byte, 1<<15), allAccess)
	far, err2 := s.b.pd.RegisterMR(make([]byte, 1<<15), allAccess)
	if err := errors.Join(err, err2); err != nil {
		t.Error(err)
		return nil
	}
	p := &stressPair{a: qa, b: qb, near: near, far: far, cq: send, open: map[uint64]bool{}}
	s.byQPN.Store(qa.QPN(), p)
	cc := verbs.ConnectConfig{Access: mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic, Timeout: 16} // a busy machine is no loss
	if err := errors.Join(qb.Connect(qa.Local(), cc), qa.Connect(qb.Local(), cc)); err != nil {
		t.Error(err)
		return nil
	}
	return p
}

func (s *stress) fail(format string, a ...any) {
	m := fmt.Sprintf(format, a...)
	s.wrong.CompareAndSwap(nil, &m)
}

func (s *stress) post(r *rand.Rand, p *stressPair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return
	}
	id := s.id.Add(1)
	n := 1 << r.IntN(16)
	wr := qp.SendWR{ID: id, Op: qp.RDMAWrite, Flags: qp.Signaled, SGE: []mr.SGE{p.near.SGE(0, n)}, RemoteAddr: p.far.Addr(), RKey: p.far.Key()}
	if r.IntN(3) == 0 {
		wr.Op = qp.RDMARead
	}
	p.open[id] = true
	switch err := p.a.PostSend(&wr); {
	case err == nil:
	case errors.Is(err, qp.ErrQueueFull), errors.Is(err, verbs.ErrClosed):
		delete(p.open, id)
	default:
		delete(p.open, id)
		s.fail("post: %v", err)
	}
}

func (s *stress) completed(wcs []cq.WC) {
	for _, wc := range wcs {
		v, _ := s.byQPN.Load(wc.QPN)
		p := v.(*stressPair)
		p.mu.Lock()
		switch {
		case !p.open[wc.ID]:
			s.fail("request %d completed, which was not posted or completed before", wc.ID)
		case wc.Status != cq.Success && !p.gone:
			s.fail("request %d: %v", wc.ID, wc.Status)
		}
		delete(p.open, wc.ID)
		p.mu.Unlock()
	}
	s.took.Add(int64(len(wcs)))
}

func ended(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *stress) poster(r *rand.Rand) {
	for !ended(s.stop) {
		for range r.IntN(12) {
			s.post(r, s.pairs[r.IntN(len(s.pairs))])
		}
		time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
	}
}

// life destroys pairs, and others take their place for a while.
func (s *stress) life(t *testing.T, r *rand.Rand) {
	for !ended(s.stop) {
		p := s.newPair(t, s.cqs[r.IntN(3)], s.cqs[r.IntN(3)])
		if p == nil {
			return
		}
		for range 20 {
			s.post(r, p)
		}
		time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
		var err error
		if r.IntN(2) == 0 {
			err = p.a.Modify(&qp.Attr{State: qp.Err}, qp.AttrState)
		}
		err = errors.Join(err, p.a.Destroy(), p.b.Destroy(), p.near.Deregister(), p.far.Deregister())
		if err != nil {
			s.fail("destroy: %v", err)
		}
	}
}

func (s *stress) poller(r *rand.Rand, c *verbs.CQ) {
	var wcs [7]cq.WC
	for !ended(s.end) {
		for range r.IntN(400) {
			s.completed(wcs[:c.Poll(wcs[:])])
		}
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
	}
}

func (s *stress) waiter(r *rand.Rand, c *verbs.CQ) {
	wcs := make([]cq.WC, 1+r.IntN(4))
	for !ended(s.end) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(5000))*time.Microsecond)
		n, err := c.Wait(ctx, wcs)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			s.fail("wait: %v", err)
		}
		s.completed(wcs[:n])
		if r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
		}
	}
}

// notified lives on Ready alone: if a notification is lost, so is it.
func (s *stress) notified(c *verbs.CQ) {
	var wcs [5]cq.WC
	for {
		c.Arm(false)
		for n := c.Poll(wcs[:]); n > 0; n = c.Poll(wcs[:]) {
			s.completed(wcs[:n])
		}
		select {
		case <-c.Ready():
		case <-s.end:
			return
		}
	}
}

func (s *stress) run(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg, posts sync.WaitGroup
	n := uint64(0)
	random := func() *rand.Rand { n++; return rand.New(rand.NewPCG(seed, n)) }
	if s.polled {
		drive(t, s.b.dev)
	}
	for range 3 {
		r := random()
		posts.Go(func() { s.poster(r) })
	}
	r := random()
	posts.Go(func() { s.life(t, r) })
	// Queue 0 is polled and waited on, 1 lives on notifications, 2 on waits.
	consumers := []func(r *rand.Rand){
		func(r *rand.Rand) { s.poller(r, s.cqs[0]) },
		func(r *rand.Rand) { s.waiter(r, s.cqs[0]) },
		func(r *rand.Rand) { s.waiter(r, s.cqs[0]) },
		func(*rand.Rand) { s.notified(s.cqs[1]) },
		func(r *rand.Rand) { s.waiter(r, s.cqs[2]) },
		func(r *rand.Rand) { s.waiter(r, s.cqs[2]) },
	}
	for _, f := range consumers {
		r := random()
		wg.Go(func() { f(r) })
	}
	for range 20 {
		time.Sleep(stressFor(t) / 20)
		s.a.dev.Stats()
		_ = s.pairs[0].a.Flow()
	}
	close(s.stop)
	posts.Wait()
	left := func() (n int) {
		for _, p := range s.pairs {
			p.mu.Lock()
			n += len(p.open)
			p.mu.Unlock()
		}
		return n
	}
	drained := time.Now()
	for end := time.Now().Add(20 * time.Second); left() > 0 && s.wrong.Load() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			for i, p := range s.pairs {
				t.Logf("pair %d: %d open, %v", i, len(p.open), p.a.State())
			}
			t.Errorf("%d of %d requests did not complete; queues hold %d, %d, %d", left(), s.id.Load(), s.cqs[0].Len(), s.cqs[1].Len(), s.cqs[2].Len())
			break
		}
	}
	if d := time.Since(drained); d > 2*time.Second {
		t.Logf("SLOW %v %v\n%v", d, s.a.dev.Stats(), s.b.dev.Stats())
	}
	close(s.end)
	wg.Wait()
	if m := s.wrong.Load(); m != nil {
		t.Error(*m)
		t.Logf("stats: %v\n%v", s.a.dev.Stats(), s.b.dev.Stats())
	}
	t.Logf("%d requests, %d completions", s.id.Load(), s.took.Load())
	s.closeUnderLoad(t, random())
}

// closeUnderLoad closes the device while everything goes on.
func (s *stress) closeUnderLoad(t *testing.T, r *rand.Rand) {
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			var wcs [4]cq.WC
			for {
				var err error
				switch c := s.cqs[i%3]; i / 3 {
				case 0:
					_, err = c.Wait(context.Background(), wcs[:])
				case 1:
					c.Poll(wcs[:])
					c.Arm(false)
					_, err = s.a.dev.CreateCQ(1)
				case 2:
					err = s.pairs[i%3].a.PostSend(&qp.SendWR{Op: qp.RDMAWrite, Flags: qp.Signaled, SGE: []mr.SGE{s.pairs[i%3].near.SGE(0, 8)}, RemoteAddr: s.pairs[i%3].far.Addr(), RKey: s.pairs[i%3].far.Key()})
					time.Sleep(10 * time.Microsecond)
				default:
					_, err = s.a.dev.Event(context.Background())
				}
				if errors.Is(err, verbs.ErrClosed) {
					return
				}
			}
		})
	}
	time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	if err := s.a.dev.Close(); err != nil {
		t.Error(err)
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("calls still run 10 s after Close")
	}
}

func stressFor(t *testing.T) time.Duration {
	if testing.Short() {
		return 300 * time.Millisecond
	}
	return 1500 * time.Millisecond
}

// A timer that a caller has started is watched when that caller goes away,
// however it had driven the device before: nothing but the timer repairs the loss
// of a lone packet.
func TestTimersOfCallersThatLeaveAreWatched(t *testing.T) {
	lossy, err := udp.ParseFaults("drop p=15%")
	if err != nil {
		t.Fatal(err)
	}
	var wcs [4]cq.WC
	pollTimes := func(c *verbs.CQ, n int) {
		for range n {
			c.Poll(nil)
		}
	}
	wait := func(c *verbs.CQ, d time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		_, _ = c.Wait(ctx, nil) // takes nothing
	}
	ways := map[string]func(c *verbs.CQ, post func()){
		"posts only":          func(_ *verbs.CQ, post func()) { post() },
		"polled before":       func(c *verbs.CQ, post func()) { pollTimes(c, 50); post() },
		"polls a little more": func(c *verbs.CQ, post func()) { pollTimes(c, 50); post(); pollTimes(c, 5) },
		"waited before":       func(c *verbs.CQ, post func()) { wait(c, 100*time.Microsecond); post() },
		"waits a little more": func(c *verbs.CQ, post func()) { post(); wait(c, 50*time.Microsecond) },
		"armed before":        func(c *verbs.CQ, post func()) { c.Arm(false); post() },
		"arms afterwards":     func(c *verbs.CQ, post func()) { pollTimes(c, 50); post(); c.Arm(false) },
		"while another waits": func(c *verbs.CQ, post func()) {
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(context.Background())
			wg.Go(func() { _, _ = c.Wait(ctx, nil) })
			pollTimes(c, 3)
			post()
			cancel()
			wg.Wait()
		},
	}
	for _, shards := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			c := verbs.Config{Shards: shards, Faults: lossy, FaultSeed: 5}
			cfg := [2]verbs.Config{c, c}
			cfg[0].Addr, cfg[1].Addr = netip.MustParseAddr("127.0.12.3"), netip.MustParseAddr("127.0.12.4")
			a, b := openPair(t, cfg, 64, verbs.ConnectConfig{Timeout: 8})
			for name, way := range ways {
				for round := range 15 {
					if a.qp.State() == qp.Err { // seven losses in a row are possible
						t.Skip("the connection has ended: seven packets in a row were lost")
					}
					started := time.Now()
					way(a.cq, func() {
						err := a.qp.PostSend(&qp.SendWR{Op: qp.RDMAWrite, Flags: qp.Signaled, SGE: []mr.SGE{a.mem.SGE(0, 8)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key()})
						if err != nil {
							t.Fatal(err)
						}
					})
					for a.cq.Len() == 0 {
						if time.Sleep(100 * time.Microsecond); time.Since(started) > 5*time.Second {
							t.Fatalf("%s, round %d: nobody watches the timer: %v", name, round, a.dev.Stats())
						}
					}
					a.cq.Poll(wcs[:])
				}
			}
			if n := a.dev.Stats()["local_ack_timeout_err"] + a.dev.Stats()["early_timeout"]; n == 0 {
				t.Error("no timer has expired")
			}
		})
	}
}
