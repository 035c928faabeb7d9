package verbs

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// Whatever it costs to put off the guard, it is not taken for armed when it has gone
// off: the loop would stand by for good.
func TestGuardIsNotTakenForArmedWhenItHasGoneOff(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l lease
	l.term.Store(int64(minTerm))
	now, goesOff := time.Duration(0), time.Duration(0)
	for range 10000 {
		now += time.Duration(random.ExpFloat64() * float64(minTerm))
		if l.guarded(now) {
			if now >= goesOff {
				t.Fatalf("at %v the guard that went off at %v counts as armed", now, goesOff)
			}
			continue
		}
		goesOff = now + l.guardAfter()
		l.rearmed(now, time.Duration(random.ExpFloat64()*float64(10*time.Microsecond)))
		if term := time.Duration(l.term.Load()); term < minTerm || term > maxTerm {
			t.Fatalf("a term of %v", term)
		}
	}
}

// A lease that runs out is renewed while the caller calls, and polls.
func TestLeaseGoesOn(t *testing.T) {
	var l lease
	l.term.Store(int64(minTerm))
	if l.goesOn(0) {
		t.Error("without a lease there is nothing to renew")
	}
	for i := range minStreak {
		if l.polls(time.Second + time.Duration(i)) {
			t.Errorf("%d polls are no loop", i+1)
		}
	}
	if !l.polls(time.Second + pollGap/2) {
		t.Error("many are")
	}
	l.extend(time.Second)
	if !l.goesOn(time.Second + 2*minTerm) {
		t.Error("the caller has called")
	}
	if l.goesOn(time.Second + 4*minTerm) {
		t.Error("the caller has not called since")
	}
	l.calls++ // a post
	if !l.goesOn(time.Second + 6*minTerm) {
		t.Error("the caller has posted since")
	}
	l.calls++ // a post
	if l.goesOn(time.Second + 2*maxGap) {
		t.Error("the caller posts, but polls no more")
	}
}

// While a caller waits, the guard goes off and the loop stands by without one. Also if
// terms have become longer, the loop has to be back when the caller leaves.
func TestLoopIsBackAfterAWaitInALongerTerm(t *testing.T) {
	ends := twoEnds(t, [2]Config{}, ConnectConfig{})
	a, b := &ends[0], &ends[1]
	s := b.d.shards[0]
	var wcs [4]cq.WC
	for round := range 20 {
		for start := time.Now(); time.Since(start) < time.Millisecond; { // b polls
			b.c.Poll(wcs[:])
		}
		s.lock()
		s.lease.term.Store(int64(maxTerm))
		s.mu.Unlock()
		if !s.hold() {
			t.Fatal("somebody else waits")
		}
		time.Sleep(maxTerm / 2)
		s.release()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		wr := qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.m.SGE(0, 8)}, RemoteAddr: b.m.Addr(), RKey: b.m.Key(), Flags: qp.Signaled}
		if err := a.q.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		if n, err := a.c.Wait(ctx, wcs[:]); err != nil || n != 1 || wcs[0].Status != cq.Success {
			t.Fatalf("round %d: %d completions, %v, %v: %v", round, n, wcs[0].Status, err, b.d.Stats())
		}
		cancel()
	}
}

// end is one of two connected devices.
type end struct {
	d *Device
	c *CQ
	q *QP
	m *MR
}

// twoEnds opens two devices with a connected pair each.
func twoEnds(t *testing.T, cfg [2]Config, connect ConnectConfig) (ends [2]end) {
	t.Helper()
	connect.Access = mr.RemoteWrite
	for i := range ends {
		e := &ends[i]
		cfg[i].Addr = netip.AddrFrom4([4]byte{127, 0, 1, byte(3 + i)})
		var err error
		if e.d, err = Open(cfg[i]); err != nil {
			t.Skipf("needs UDP port 4791 on loopback: %v", err)
		}
		t.Cleanup(func() { e.d.Close() })
		pd := e.d.AllocPD()
		e.c, _ = e.d.CreateCQ(64)
		e.q, _ = pd.CreateQP(QPConfig{SendCQ: e.c, RecvCQ: e.c})
		e.m, _ = pd.RegisterMR(make([]byte, 64), mr.LocalWrite|mr.RemoteWrite)
	}
	for i := range ends {
		if err := ends[i].q.Connect(ends[1-i].q.Local(), connect); err != nil {
			t.Fatal(err)
		}
	}
	return ends
}

// With one processor for goroutines, who polls gives way to the other device's loop.
func TestPollingLetsOthersRunOnOneProcessor(t *testing.T) {
	if os.Getenv("GOROCE_ONE_PROCESSOR") == "" {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), "GOMAXPROCS=1", "GOROCE_ONE_PROCESSOR=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	ends := twoEnds(t, [2]Config{}, ConnectConfig{})
	a, b := &ends[0], &ends[1]
	var wcs [4]cq.WC
	start := time.Now()
	const requests = 200
	for range requests {
		wr := qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.m.SGE(0, 8)}, RemoteAddr: b.m.Addr(), RKey: b.m.Key(), Flags: qp.Signaled}
		if err := a.q.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		for n := 0; n == 0; n = a.c.Poll(wcs[:]) {
			if time.Since(start) > 10*time.Second {
				t.Fatal(a.d.Stats())
			}
		}
	}
	// 20 ms where the scheduler has to intervene. On a busy machine giving way costs
	// a few milliseconds too, until one's turn comes again.
	if each := time.Since(start) / requests; each > 10*time.Millisecond {
		t.Errorf("a request takes %v", each)
	}
}
