package perf

import (
	"errors"
	"runtime"
	"time"

	"github.com/goroce/goroce/cq"
)

// MaxPostList is how many requests can be posted at a time.
const MaxPostList = 64

// burst is how many are, without -l: enough to share the cost of a post, few
// enough that the peer gets the first one soon.
const burst = 16

// bandwidth keeps as many requests under way as allowed, and receives posted. Where
// both sides send, the server starts when the client's first message has come.
func (f *flow) bandwidth() error {
	c := &f.e.cfg
	started := f.e.client || f.recvs == 0
	for !f.complete() {
		if started && f.sends > 0 && !f.window.ended {
			if err := f.fill(); err != nil {
				return err
			}
		}
		n, err := f.poll()
		if errors.Is(err, errLost) {
			break
		}
		if err != nil {
			return err
		}
		if n > 0 {
			if err := f.harvest(n); err != nil {
				return err
			}
			started = true
		}
		if c.Duration > 0 && f.clock(f.sent, f.got) {
			return f.drain()
		}
	}
	return nil
}

// complete reports whether all has been sent and received. With a duration that is
// for the clock to say.
func (f *flow) complete() bool {
	return f.e.cfg.Duration == 0 && f.allSent() && f.got >= f.recvs*len(f.e.lanes)
}

func (f *flow) allSent() bool {
	return f.sends == 0 || f.sends != forever && f.sent >= f.sends*len(f.e.lanes)
}

// fill posts what there is room for, the lanes in turn. It looks at open lanes only:
// of a thousand, few have had a completion since the last time.
func (f *flow) fill() error {
	for more := true; more; {
		more = false
		open := f.open[:0]
		for _, l := range f.open {
			posted, err := f.fillLane(l)
			if err != nil {
				return err
			}
			if posted || f.pace != 0 {
				open = append(open, l)
				more = more || f.e.cfg.PostList == 0 && f.pace == 0
				continue
			}
			l.open = false
		}
		f.open = open
	}
	return nil
}

// fillLane posts one run of requests, if there is room for it.
func (f *flow) fillLane(l *lane) (posted bool, err error) {
	c := &f.e.cfg
	size := c.PostList
	if size == 0 {
		size = burst
	}
	left := f.sends - l.posted
	n := min(size, left, c.TxDepth-(l.posted-l.done), f.paced(l))
	if n <= 0 || n < c.PostList && n < left && f.pace == 0 {
		return false, nil // a list is posted whole
	}
	f.stampPost(n)
	return true, f.post(l, n)
}

// reopen has a lane looked at again: it has room.
func (f *flow) reopen(l *lane) {
	if !l.open {
		l.open = true
		f.open = append(f.open, l)
	}
}

// paced is how many messages the limit of the rate allows now.
func (f *flow) paced(l *lane) int {
	switch {
	case f.pace == 0:
		return MaxPostList
	case f.first == 0:
		return 1
	}
	return int(float64(f.now()-f.first)*f.pace) + 1 - l.posted
}

// stampPost notes the time of a post of n requests.
func (f *flow) stampPost(n int) {
	if f.posted == nil && f.first != 0 {
		return
	}
	now := f.now()
	if f.first == 0 {
		f.first = max(1, now)
	}
	for range min(n, cap(f.posted)-len(f.posted)) {
		f.posted = append(f.posted, now)
	}
}

// harvest handles n completions.
func (f *flow) harvest(n int) error {
	was := f.sent + f.got
	for i := range f.wcs[:n] {
		if err := f.take(&f.wcs[i]); err != nil {
			return err
		}
	}
	f.last = f.now()
	if f.first == 0 {
		f.first = max(1, f.last)
	}
	for range min(f.sent+f.got-was, cap(f.done)-len(f.done)) {
		f.done = append(f.done, f.last)
	}
	f.watch.done.Store(int64(f.sent + f.got))
	if f.recvs > 0 && f.got > 0 && !f.watch.idle.Load() && f.allSent() {
		f.watch.idle.Store(true)
	}
	return nil
}

// take handles one completion: it retires the requests before it, too, or posts
// the next receive.
func (f *flow) take(wc *cq.WC) error {
	l := f.laneOf(wc.ID)
	if err := f.check(wc); err != nil {
		return err
	}
	if wc.ID&recvBit == 0 {
		count := int(wc.ID & countMask)
		f.sent += count - l.done
		l.done = count
		f.reopen(l)
		return nil
	}
	f.got++
	l.got++
	if l.recvPosted < f.recvs {
		return f.postRecv(l)
	}
	return nil
}

// spins is how often an empty queue is polled before anybody else may run.
const spins = 64

// pause is what to do about an empty queue. Every so often it lets others run, and
// asks whether to go on.
func (f *flow) pause() error {
	f.idleSpins++
	if f.idleSpins%spins != 0 {
		return nil
	}
	if f.watch.stopped.Load() {
		return f.watch.cause()
	}
	runtime.Gosched()
	return nil
}

// clock keeps the window of a run with a duration; it reports the end of the run.
// A receiver's time starts with its first message.
func (f *flow) clock(sent, got int) (over bool) {
	w := &f.window
	if f.first == 0 {
		return false
	}
	now := f.now() - f.first
	if !w.begun && now >= w.begin {
		w.begun, w.beganAt, w.beganSent, w.beganGot = true, now, sent, got
	}
	if !w.ended && now >= w.end {
		w.ended, w.endedAt, w.endSent, w.endGot = true, now, sent, got
	}
	return now >= int64(f.e.cfg.Duration)
}

// drainTime bounds the wait for what is still under way at the end of a duration.
const drainTime = 2 * time.Second

// drain waits for what has been posted. The peer may have ended by its own clock:
// what fails now no longer matters.
func (f *flow) drain() error {
	if f.sends == 0 {
		return nil
	}
	for _, l := range f.e.lanes {
		if l.posted == l.done {
			continue
		}
		f.sends = l.posted + 1 // the last one is signaled
		if err := f.post(l, 1); err != nil {
			return err
		}
	}
	for deadline := f.now() + int64(drainTime); f.now() < deadline && !f.drained(); {
		n := f.e.cq.Poll(f.wcs[:])
		for i := range f.wcs[:n] {
			if wc := &f.wcs[i]; wc.Status != cq.Success {
				return nil
			}
			if err := f.take(&f.wcs[i]); err != nil {
				return err
			}
		}
		if n == 0 {
			runtime.Gosched()
		}
	}
	return nil
}

func (f *flow) drained() bool {
	for _, l := range f.e.lanes {
		if l.done < l.posted {
			return false
		}
	}
	return true
}
