package perf

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// flow is one measured run: all messages of one size.
type flow struct {
	e        *end
	size     int
	cqMod    int
	sends    int                    // per queue pair; 0 if this side makes no requests
	recvs    int                    // per queue pair
	open     []*lane                // that may have room for requests
	list     [MaxPostList]qp.SendWR // the requests of a post, all lanes': what is used often stays in the cache
	listOf   *lane                  // whose requests the first listed ones are
	listed   int
	watch    *watchdog
	slice    context.Context // of waits, with -e
	endSlice context.CancelFunc

	start     time.Time
	stamps    []int64 // latency: when each message was posted
	posted    []int64 // bandwidth: when each was posted and completed
	done      []int64
	first     int64 // the first post or arrival, and the last completion
	last      int64
	sent      int // completed in all
	got       int
	window    window // with -D
	wcs       [64]cq.WC
	idleSpins uint
	pace      float64 // messages per nanosecond and queue pair, 0 without a limit
}

// window is the part of a run with a duration that counts.
type window struct {
	begin, end          int64 // planned
	begun, ended        bool
	beganAt, endedAt    int64
	beganSent, beganGot int
	endSent, endGot     int
}

// forever is the goal of a run that ends by the clock.
const forever = math.MaxInt / 2

// maxStamps bounds the samples of a latency run with a duration.
const maxStamps = 1 << 20

// newFlow prepares a run: after it nothing allocates.
func (e *end) newFlow(size int) *flow {
	c := &e.cfg
	f := &flow{e: e, size: size, cqMod: c.cqMod(size)}
	f.pace = c.RateLimit / 8 / float64(size*len(e.lanes))
	goal := c.Iters
	if c.Duration > 0 {
		goal = forever
		f.window = window{begin: int64(c.Margin), end: int64(c.Duration - c.Margin)}
	}
	if c.requester(e.client) {
		f.sends = goal
	}
	if c.receives(e.client) {
		f.recvs = goal
	}
	if c.Test.Latency {
		f.stamps = make([]int64, 0, min(goal, maxStamps))
	} else if !c.NoPeak {
		f.posted = make([]int64, 0, f.sends*len(e.lanes))
		f.done = make([]int64, 0, max(f.sends, f.recvs)*len(e.lanes))
	}
	f.open = make([]*lane, 0, len(e.lanes))
	for _, l := range e.lanes {
		l.posted, l.done, l.recvPosted, l.got, l.open = 0, 0, 0, 0, false
		e.prepare(l, f)
		f.reopen(l)
	}
	return f
}

// goalMessages is how many messages the run has, 0 if the clock decides.
func (f *flow) goalMessages() int64 {
	if f.sends == forever || f.recvs == forever {
		return 0
	}
	return int64(f.sends+f.recvs) * int64(len(f.e.lanes))
}

// prepare fills in what the work requests of a lane have in common.
func (e *end) prepare(l *lane, f *flow) {
	c := &e.cfg
	wr := qp.SendWR{RemoteAddr: l.remote.vaddr, RKey: l.remote.rkey}
	switch c.Test.Verb {
	case Send:
		wr.Op = qp.Send
	case Write:
		wr.Op = qp.RDMAWrite
	case Read:
		wr.Op = qp.RDMARead
	case Atomic:
		wr.Op = c.AtomicOp
		if c.AtomicOp == qp.FetchAdd {
			wr.CompareAdd = 1
		}
	}
	e.carry(&wr, e.source(l.index), f.size)
	if c.Connection == qp.UD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = &l.av, l.remote.qpn, udQKey
	}
	l.wr = wr
	l.recv = qp.RecvWR{ID: recvBit | uint64(l.index)<<laneShift, SGE: []mr.SGE{e.mem.SGE(e.target(l.index), e.area)}}
}

// carry makes a request carry, or fetch into, n bytes of the memory from an offset
// on.
func (e *end) carry(wr *qp.SendWR, from, n int) {
	switch {
	case e.cfg.inline(n):
		wr.Inline = e.mem.Bytes()[from : from+n]
	case wr.SGE == nil:
		wr.SGE = []mr.SGE{e.mem.SGE(from, n)}
	default:
		wr.SGE[0] = e.mem.SGE(from, n) // a post copies it
	}
}

// A work request's ID names its lane, its number within the run from 1 on, and
// whether it is a receive.
const (
	laneShift = 40
	recvBit   = 1 << 63
	countMask = 1<<laneShift - 1
)

func (f *flow) laneOf(id uint64) *lane { return f.e.lanes[id&^recvBit>>laneShift] }

// now is the time since the start of the run, in nanoseconds.
func (f *flow) now() int64 { return int64(time.Since(f.start)) }

// postReceives posts the first receives of a run.
func (f *flow) postReceives() error {
	for _, l := range f.e.lanes {
		for l.recvPosted < min(f.recvs, f.e.cfg.RxDepth) {
			if err := f.postRecv(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *flow) postRecv(l *lane) error {
	l.recvPosted++
	if f.e.srq != nil {
		return f.e.srq.PostRecv(&l.recv)
	}
	return l.qp.PostRecv(&l.recv)
}

// post posts the next n requests of a lane at once. It is the one place where
// requests are posted in a run.
func (f *flow) post(l *lane, n int) error {
	f.enlist(l, n)
	base := uint64(l.index) << laneShift
	for i := range n {
		count := l.posted + i + 1
		f.list[i].ID, f.list[i].Flags = base|uint64(count), 0
		if count%f.cqMod == 0 || count == f.sends {
			f.list[i].Flags = qp.Signaled
		}
	}
	if _, err := l.qp.PostSendList(f.list[:n]); err != nil {
		return err
	}
	l.posted += n
	return nil
}

// enlist makes the first n requests of the list those of a lane.
func (f *flow) enlist(l *lane, n int) {
	if f.listOf == l && f.listed >= n {
		return
	}
	for i := range n {
		f.list[i] = l.wr
	}
	f.listOf, f.listed = l, n
}

// measure runs a flow and appends its row.
func (e *end) measure(f *flow) error {
	f.watch = e.watchRun(f)
	defer f.watch.finish()
	defer func() {
		if f.endSlice != nil {
			f.endSlice()
		}
	}()
	used := cpuTime()
	f.start = time.Now()
	err := f.run()
	spent := cpuTime().since(used)
	for _, l := range e.lanes {
		l.requests += l.posted
	}
	if err != nil {
		return err
	}
	e.rows = append(e.rows, f.row(spent))
	return nil
}

func (f *flow) run() error {
	t := f.e.cfg.Test
	switch {
	case !t.Latency:
		return f.bandwidth()
	case t.Verb == Send:
		return f.sendLatency()
	case t.Verb == Write:
		return f.writeLatency()
	}
	return f.requestLatency()
}

// poll returns the next completions. Without -e it may return none; with -D it may,
// too, every now and then, so that the clock is looked at.
func (f *flow) poll() (int, error) {
	n := f.e.cq.Poll(f.wcs[:])
	switch {
	case n > 0:
		return n, nil
	case f.e.cfg.Events:
		return f.sleep()
	}
	return 0, f.pause()
}

// sleep waits for completions; with -D it comes back now and then without any,
// so that the clock is looked at.
func (f *flow) sleep() (int, error) {
	if f.slice == nil {
		f.slice, f.endSlice = context.WithTimeout(f.watch.ctx, eventSlice)
	}
	n, err := f.e.cq.Wait(f.slice, f.wcs[:])
	switch {
	case err == nil:
		return n, nil
	case f.watch.ctx.Err() != nil:
		return 0, f.watch.cause()
	case f.slice.Err() == nil:
		return 0, err
	}
	f.endSlice()
	f.slice = nil
	return 0, nil
}

// eventSlice bounds one wait.
const eventSlice = 20 * time.Millisecond

// check turns a failed completion into an error, and one that is too short.
func (f *flow) check(wc *cq.WC) error {
	if wc.Status != cq.Success {
		return f.e.explain(wc, f.sent+f.got)
	}
	if wc.Recv() && int(wc.ByteLen) != f.size+f.e.cfg.grh() {
		return fmt.Errorf("a message of %d bytes came, not %d: give both sides the same -s", int(wc.ByteLen)-f.e.cfg.grh(), f.size)
	}
	return nil
}

// explain turns a failed completion into a sentence with a cure.
func (e *end) explain(wc *cq.WC, after int) error {
	what := fmt.Sprintf("work request failed after %d messages: %v (%d)", after, wc.Status, uint8(wc.Status))
	switch wc.Status {
	case cq.RetryExcErr:
		return fmt.Errorf("%s: no answer from %v: is its program still running, does RoCE (UDP 4791) get through, and does the path MTU of %d fit the network", what, e.lanes[0].remote.gid, e.cfg.MTU)
	case cq.RNRRetryExcErr:
		return fmt.Errorf("%s: the peer posted no receive in time: raise its -r", what)
	case cq.RemInvReqErr, cq.RemAccessErr, cq.RemOpErr, cq.LocLenErr:
		return fmt.Errorf("%s: do both sides run the same test with the same options", what)
	}
	return fmt.Errorf("%s", what)
}
