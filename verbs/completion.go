package verbs

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/cq"
)

// CQ is a completion queue.
type CQ struct {
	dev   *Device
	queue *cq.Queue
	sh    *shard     // where its queue pairs live
	mu    sync.Mutex // one consumer at a time
	ready chan struct{}
	// shared: queue pairs of other shards feed it, too.
	shared atomic.Bool
	// armedAt is when Arm was called last: who waits for Ready is no driver.
	armedAt atomic.Int64
	// waiting are the calls of Wait that sleep, or are about to.
	waiting atomic.Int32
}

// CreateCQ returns a completion queue for at least cqe completions.
func (d *Device) CreateCQ(cqe int) (*CQ, error) {
	if cqe < 1 || cqe > d.cfg.MaxCQE {
		return nil, &OpError{Op: "create CQ", Err: errCQE}
	}
	var c *CQ
	err := d.own(func() {
		c = &CQ{dev: d, sh: d.nextShard(), ready: make(chan struct{}, 1)}
		c.queue = cq.New(cqe, c.notify)
	})
	return c, err
}

// nextShard deals out the shards in turn.
func (d *Device) nextShard() *shard {
	return d.shards[int(d.nextCQ.Add(1)-1)&(len(d.shards)-1)]
}

// notify is called by the owner of a shard that feeds the queue.
func (c *CQ) notify() {
	signal(c.ready)
	c.sh.wakeHolder()
}

// share makes the queue take completions from a shard that is not its own. The
// caller owns all shards.
func (c *CQ) share() {
	c.queue.Share()
	c.shared.Store(true)
}

// Poll moves up to len(wcs) completions into wcs and returns their number,
// without blocking. Polling an empty queue does a round of the device's work, if
// nobody else is at it: whoever polls in a loop takes the place of the event
// loop.
func (c *CQ) Poll(wcs []cq.WC) int {
	if n := c.take(wcs); n > 0 {
		return n
	}
	if !c.shared.Load() {
		c.sh.poll(c)
	} else if c.dev.cfg.Polled {
		c.dev.Poll()
	}
	return c.take(wcs)
}

func (c *CQ) take(wcs []cq.WC) int {
	if c.queue.Len() == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.Poll(wcs)
}

// Wait polls until there is at least one completion, ctx is done, or the device
// is closed. Several goroutines may wait. Without room in wcs it takes nothing and
// returns 0 once there is a completion.
func (c *CQ) Wait(ctx context.Context, wcs []cq.WC) (int, error) {
	for {
		if n := c.Poll(wcs); n > 0 || len(wcs) == 0 && c.queue.Len() > 0 {
			c.passOn()
			return n, nil
		}
		if err := c.sleep(ctx); err != nil {
			return 0, err
		}
	}
}

// passOn makes sure that the next completion ends somebody else's wait: the
// notification that all of them had asked for may be gone.
func (c *CQ) passOn() {
	if c.waiting.Load() > 0 {
		c.queue.Arm(false)
	}
	if c.queue.Len() > 0 {
		signal(c.ready)
	}
}

// sleep blocks until the next completion, unless one waits already.
func (c *CQ) sleep(ctx context.Context) error {
	c.waiting.Add(1) // before Arm: see passOn
	defer c.waiting.Add(-1)
	c.queue.Arm(false)
	if c.queue.Len() > 0 {
		return nil
	}
	return c.block(ctx)
}

// block waits for the next completion; the caller drives the shard meanwhile if
// the queue has only one.
func (c *CQ) block(ctx context.Context) error {
	if c.shared.Load() {
		return c.dev.block(ctx, c.ready)
	}
	return c.sh.wait(ctx, c.ready)
}

// Arm asks for one value on Ready at the next completion, or at the next
// solicited or failed one. Completions that already wait do not count: poll
// after arming (IBA 11.4.2.2).
func (c *CQ) Arm(solicitedOnly bool) {
	c.armedAt.Store(int64(c.dev.now()))
	c.queue.Arm(solicitedOnly)
	if !c.shared.Load() {
		c.sh.handBack()
	}
}

// eventful reports whether the caller lives on notifications: it will not poll
// in a loop, although it has polled just now.
func (c *CQ) eventful(now time.Duration) bool {
	at := time.Duration(c.armedAt.Load())
	return at != 0 && now-at < eventfulFor
}

// eventfulFor is for how long after Arm a poll does not keep the loop away.
const eventfulFor = 10 * time.Millisecond

// Ready is the channel that Arm announces. Do not use it together with Wait.
func (c *CQ) Ready() <-chan struct{} { return c.ready }

// Queue returns the queue as an event names it.
func (c *CQ) Queue() *cq.Queue { return c.queue }

// Len returns how many completions wait.
func (c *CQ) Len() int { return c.queue.Len() }

// Overflowed reports whether a completion was lost; the queue is then dead.
func (c *CQ) Overflowed() bool { return c.queue.Overflowed() }
