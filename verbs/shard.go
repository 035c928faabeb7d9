package verbs

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/udp"
)

// shard is a link with the engine that it feeds, and the queue pairs that live
// there. Whoever holds mu is its owner: the event loop, a caller that posts, or
// a caller that polls a completion queue and finds the shard free. The last
// does the loop's work itself, so that no thread has to wake another up between
// a packet's arrival and the poll that sees its effect.
type shard struct {
	dev   *Device
	index int

	mu      sync.Mutex
	waiters atomic.Int32 // callers that wait for mu: a poller keeps off then
	link    udp.Link
	engine  *transport.Engine
	burst   *bth.Burst
	strays  strays
	closed  bool

	// What is posted behind many unanswered packets, while a caller polls, is not
	// sent at once: the next poll, or the loop, sends it with what gathers.
	deferred int
	// While it lasts, a caller drives, and the loop stands by.
	lease lease
	// Until when a caller that polls leaves the link alone.
	quietUntil time.Duration
	// A caller that waits on a completion queue drives until it returns. spin is
	// its own.
	spin     spinner
	held     atomic.Bool
	heldIdle atomic.Bool // and is asleep
	asleep   atomic.Bool // the loop waits on the link
	guard    *guard      // wakes the loop when no caller drives any more

	sleeping  atomic.Int64  // until when the driver sleeps, as a Duration; 0 awake
	loopEnded chan struct{} // nil without a loop
}

func newShard(d *Device, index int, link udp.Link) *shard {
	s := &shard{
		dev: d, index: index, link: link, burst: bth.NewBurst(sendBurst, 4096), spin: newSpinner(d.cfg.Spin),
	}
	s.lease.term.Store(int64(minTerm))
	return s
}

// sendBurst is how many packets are sent at a time.
const sendBurst = 256

// lock makes the caller the owner, ahead of callers that poll.
func (s *shard) lock() {
	if s.mu.TryLock() {
		return
	}
	s.waiters.Add(1)
	s.mu.Lock()
	s.waiters.Add(-1)
}

// maxIdle bounds one sleep of the loop, to have one kind of timeout only.
const maxIdle = time.Hour

// loop drives the shard until Close, unless callers do.
func (s *shard) loop() {
	lockLoopThread()
	defer close(s.loopEnded)
	defer s.guard.close()
	spin := newSpinner(s.dev.cfg.Spin)
	lastBusy := time.Duration(0)
	for {
		if s.callersDrive() {
			s.standBy()
		}
		if !s.takeOver() {
			continue
		}
		if s.closed {
			s.mu.Unlock()
			return
		}
		now := s.dev.now()
		busy := s.drive(now)
		if busy {
			spin.met(now - lastBusy)
			lastBusy = now
		}
		idle := !busy && now-lastBusy >= spin.budget()
		var timeout time.Duration
		var until int64
		if idle {
			timeout, until = s.announceSleep(maxIdle)
			s.asleep.Store(true)
		}
		s.mu.Unlock()
		if idle && !s.held.Load() {
			s.link.Wait(udp.ForLoop, timeout)
		}
		s.sleeping.CompareAndSwap(until, 0) // unless a caller sleeps by now
		s.asleep.Store(false)
	}
}

// callersDrive reports whether the loop has nothing to do.
func (s *shard) callersDrive() bool {
	return s.held.Load() || s.lease.any() && s.lease.lasts(s.dev.now())
}

// takeOver makes the loop the owner, unless callers drive. A device that is being
// closed wakes the loop once, and lets no caller arm the guard again.
func (s *shard) takeOver() bool {
	if !s.mu.TryLock() {
		if !s.dev.closing() && s.lease.leaves(s.dev.now()) {
			return false
		}
		s.mu.Lock()
	}
	s.lease.passed = 0
	if !s.closed && (s.callersDrive() || s.keepsUp()) {
		s.mu.Unlock()
		return false
	}
	s.lease.end()
	return true
}

// keepsUp renews a lease that has run out, if the caller has called meanwhile and not
// left much to do. The loop does that now.
func (s *shard) keepsUp() bool {
	if !s.lease.any() {
		return false
	}
	now := s.dev.now()
	n := s.receive(now)
	return s.transmit(now) && n < bulk && s.lease.goesOn(now)
}

// standBy sleeps until it is time to see whether callers still drive: a caller
// that polls puts the time off, one that waits sets it when it returns.
func (s *shard) standBy() {
	if !s.held.Load() {
		s.guard.arm(s.lease.guardAfter())
		if !s.callersDrive() { // handed back just now: what that armed is lost
			return
		}
	}
	s.guard.wait()
}

// idleFor returns how long nothing has to be done unless packets arrive.
func (s *shard) idleFor() time.Duration {
	if s.engine.Pending() {
		return 0
	}
	at, ok := s.engine.Deadline()
	if !ok {
		return maxIdle
	}
	return max(0, min(maxIdle, at-s.dev.now()))
}

// announceSleep tells others until when the owner is going to sleep, at most for
// limit, and returns for how long it may. A packet that another shard hands over
// afterwards wakes it; one from before makes the sleep end at once.
func (s *shard) announceSleep(limit time.Duration) (timeout time.Duration, until int64) {
	timeout = min(limit, s.idleFor())
	until = int64(s.dev.now() + timeout)
	s.sleeping.Store(until)
	if s.strays.pending() {
		timeout = 0
	}
	return timeout, until
}

// drive does one round of work: a burst received, due timers, bursts sent. It
// reports whether there was anything to receive or more is to be sent. The
// caller owns the shard.
func (s *shard) drive(now time.Duration) (busy bool) {
	n := s.receive(now)
	return !s.transmit(now) || n > 0
}

// receive handles a burst and the timers that are due. It returns how many
// packets there were.
func (s *shard) receive(now time.Duration) int {
	in := s.link.Receive()
	if s.strays.shards > 1 {
		in = s.sort(in)
	}
	for i := range in {
		s.engine.Receive(now, &in[i])
	}
	if at, ok := s.engine.Deadline(); ok && at <= now {
		s.engine.Timers(now)
	}
	return len(in)
}

// transmitRounds bounds the bursts sent without looking at what arrives.
const transmitRounds = 2

// transmit sends what the engine has; it returns false when more is left.
func (s *shard) transmit(now time.Duration) (drained bool) {
	s.deferred = 0
	for range transmitRounds {
		if !s.engine.Pending() {
			return true
		}
		s.burst.Reset()
		s.engine.Transmit(now, s.burst)
		if len(s.burst.Frames()) == 0 {
			break
		}
		s.link.Send(s.burst)
	}
	return !s.engine.Pending()
}

// maxDeferred bounds the work requests that wait for company, and pipelined is
// from how many unanswered packets on they do: with fewer the caller may be
// waiting for the answer to this very request.
const (
	maxDeferred = 64
	pipelined   = 8
)

// posted finishes a post of send work requests to q: they are sent now, unless
// a polling caller will be back soon and q has packets under way anyway.
func (s *shard) posted(q *transport.QP, n int) {
	s.lease.calls++
	if !s.lease.any() {
		s.after(s.dev.now())
		return
	}
	if s.deferred += n; s.deferred < maxDeferred && q.InFlight() >= pipelined {
		return
	}
	// The next poll sends the acknowledgements: they would only hold up the
	// request.
	s.engine.HoldACKs = true
	s.after(s.dev.now())
	s.engine.HoldACKs = false
}

// after finishes a call that gave the engine work: send it now, and wake the
// driver if it would sleep too long. The caller owns the shard.
func (s *shard) after(now time.Duration) {
	s.wakeDriver(s.transmit(now))
}

// wakeDriver wakes the driver if it would sleep too long, or if not everything
// is sent.
func (s *shard) wakeDriver(drained bool) {
	until := s.sleeping.Load()
	if until == 0 {
		return
	}
	if at, ok := s.engine.Deadline(); !drained || ok && int64(at) < until {
		s.sleeping.CompareAndSwap(until, 0)
		s.link.Wake()
	}
}

// poll drives the shard if it is free. It reports whether there was anything to
// do, or somebody else is at it. c is the completion queue that is being polled,
// if any.
func (s *shard) poll(c *CQ) bool {
	if s.waiters.Load() > 0 || !s.mu.TryLock() {
		return true
	}
	busy := !s.closed && s.pollOwned(c)
	s.mu.Unlock()
	if !busy && oneProcessor {
		yieldThread() // what is waited for needs the processor
	}
	return busy
}

// oneProcessor: whoever looks for packets without pause keeps their sender from
// running, another process or a goroutine of this one.
var oneProcessor = runtime.NumCPU() == 1 || runtime.GOMAXPROCS(0) == 1

// renewLease notes a poll of c, if that is given: who polls in a loop is taken for
// the driver. Where there is no loop, whoever posts will poll.
func (s *shard) renewLease(now time.Duration, c *CQ) {
	inLoop := s.lease.polls(now) && (c == nil || !c.eventful(now))
	switch {
	case s.dev.cfg.Polled:
		s.lease.until.Store(1)
		return
	case !inLoop:
		return
	}
	s.bringUp()
	s.lease.renew(now)
	s.putOffGuard(now)
}

// putOffGuard makes the loop look later, unless that was done a moment ago.
func (s *shard) putOffGuard(now time.Duration) {
	if s.lease.guarded(now) {
		return
	}
	s.guard.arm(s.lease.guardAfter())
	s.lease.rearmed(now, s.dev.now()-now)
}

// pollOwned is poll for the owner.
func (s *shard) pollOwned(c *CQ) bool {
	now := s.dev.now()
	if s.dev.cfg.Polled && s.index == 0 {
		s.dev.pollWatch(now)
	}
	s.renewLease(now, c)
	n, drained := 0, true
	if now >= s.quietUntil {
		if n = s.receive(now); n >= bulk {
			s.quietUntil = now + bulkPause
		}
	}
	driver := s.dev.cfg.Polled || s.held.Load() || s.lease.lasts(now)
	if s.engine.Pending() {
		// The caller is likely to answer: what it posts goes out ahead of the
		// acknowledgement. If it does not, it polls again, or the loop takes over.
		s.engine.HoldACKs = driver && n > 0 && n <= few
		drained = s.transmit(now)
		s.engine.HoldACKs = false
	}
	if !driver { // somebody else sleeps, and does not know the timers that began
		s.wakeDriver(drained)
	}
	return !drained || n > 0
}

// When much arrives at once, a caller that polls leaves the link alone for a
// moment: looking without pause keeps the sender's processor from filling the
// socket, and each look finds less.
const (
	bulk      = 8 // packets
	bulkPause = 10 * time.Microsecond
)

// few is how many packets may arrive in one poll for it to leave
// acknowledgements to the next call.
const few = 2
