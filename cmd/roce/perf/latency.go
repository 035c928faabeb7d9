package perf

import (
	"errors"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// latencyDepth is the room for a latency test's requests: an acknowledgement may
// come after the message that answers it.
const latencyDepth = 64

// sendLatency sends messages to and fro; the client's goes first.
func (f *flow) sendLatency() error { return f.pingPong(f.e.client, f.awaitMessage, nil) }

// writeLatency writes to and fro; here the server's goes first. The last byte of
// each message is its number: who finds it in memory knows that the message is
// there. Messages leave from two places in turn: the peer may have answered one
// that is not acknowledged yet, and so must not be changed, unless it was copied.
func (f *flow) writeLatency() error {
	e, l := f.e, f.e.lanes[0]
	mem := e.mem.Bytes()
	from := [2]int{e.source(0), e.spare()}
	copy(mem[from[1]:], mem[from[0]:from[0]+f.size])
	last := from[0] + f.size - 1
	defer func(b byte) { mem[last] = b }(mem[last]) // the next size has its own last byte
	spot := &mem[e.target(0)+f.size-1]
	await := func(want int) (bool, error) { return f.awaitByte(spot, want) }
	inline := e.cfg.inline(f.size)
	mark := func(count int) (bool, error) {
		if !inline {
			if over, err := f.awaitSent(l, count-2); over || err != nil {
				return over, err
			}
		}
		at := from[count%2]
		mem[at+f.size-1] = byte(count)
		e.carry(&l.wr, at, f.size)
		f.listed = 0
		return false, nil
	}
	return f.pingPong(!e.client, await, mark)
}

// awaitSent waits until so many requests of a lane are acknowledged, or the time
// is over.
func (f *flow) awaitSent(l *lane, count int) (over bool, err error) {
	for l.done < count {
		if err := f.reap(); err != nil {
			return false, err
		}
		if f.e.cfg.Duration > 0 && l.done < count && f.over(count) {
			return true, nil
		}
	}
	return false, nil
}

// pingPong sends and awaits messages in turn. mark, if not nil, is called before
// each is posted.
func (f *flow) pingPong(first bool, await, mark func(count int) (over bool, err error)) error {
	l := f.e.lanes[0]
	for count := 1; !f.over(count - 1); count++ {
		if !first {
			if over, err := await(count); over || err != nil {
				return err
			}
		}
		if mark != nil {
			if over, err := mark(count); over || err != nil {
				return err
			}
		}
		f.acknowledge()
		f.stampSend()
		if err := f.postOne(l); err != nil {
			return err
		}
		if first {
			if over, err := await(count); over || err != nil {
				return err
			}
		}
		f.watch.done.Store(int64(count))
	}
	return f.finishLatency(l)
}

// acknowledge lets the acknowledgement of what has come leave before the answer. The
// device would send the answer first, which is faster; but ib_send_lat -e, whose
// request is then complete after the answer has come, may sleep for ever.
func (f *flow) acknowledge() {
	if f.e.own || f.e.cfg.Connection != qp.RC || f.e.cfg.Test.Verb != Send {
		return
	}
	for range 4 {
		if !f.e.dev.Poll() {
			return
		}
	}
}

// requestLatency makes one request after the other.
func (f *flow) requestLatency() error {
	l := f.e.lanes[0]
	for count := 1; !f.over(count - 1); count++ {
		f.stampSend()
		if err := f.post(l, 1); err != nil {
			return err
		}
		for f.sent < count {
			if err := f.reap(); err != nil {
				return err
			}
		}
		f.watch.done.Store(int64(count))
	}
	return nil
}

// stampSend notes when a message is posted.
func (f *flow) stampSend() {
	now := f.now()
	if len(f.stamps) < cap(f.stamps) {
		f.stamps = append(f.stamps, now)
	}
	if f.first == 0 {
		f.first = max(1, now)
	}
}

// over reports whether a run has ended, after count messages: by its count or by
// its clock.
func (f *flow) over(count int) bool {
	if f.e.cfg.Duration > 0 {
		return f.clock(count, 0)
	}
	return count >= f.e.cfg.Iters
}

// awaitMessage waits until so many messages have come, or the time is over.
func (f *flow) awaitMessage(want int) (over bool, err error) {
	for f.got < want {
		if err := f.reap(); err != nil {
			return false, err
		}
		if f.e.cfg.Duration > 0 && f.got < want && f.over(want-1) {
			return true, nil
		}
	}
	return false, nil
}

// awaitByte waits until the byte is the low one of the count.
func (f *flow) awaitByte(spot *byte, want int) (over bool, err error) {
	for load(spot) != byte(want) {
		if err := f.reap(); err != nil {
			return false, err
		}
		if f.e.cfg.Duration > 0 && f.over(want-1) {
			return true, nil
		}
	}
	f.got = want
	return false, nil
}

// load reads a byte that the peer writes at any time. Nobody else can order the two:
// that is what RDMA is, so the race detector is not to look.
//
//go:norace
//go:noinline
func load(p *byte) byte { return *p }

// reap handles the completions that there are.
func (f *flow) reap() error {
	n, err := f.poll()
	if err != nil {
		return err
	}
	for i := range f.wcs[:n] {
		if err := f.takeLate(&f.wcs[i]); err != nil {
			return err
		}
	}
	return nil
}

// takeLate handles a completion. The peer goes away as soon as it has all that it
// wanted: what fails to reach it then does not matter.
func (f *flow) takeLate(wc *cq.WC) error {
	if wc.Status != cq.Success && f.got >= f.e.cfg.Iters && f.e.cfg.Duration == 0 {
		f.sent = f.e.lanes[0].posted
		return nil
	}
	return f.take(wc)
}

// postOne posts the next request, when there is room for it.
func (f *flow) postOne(l *lane) error {
	for l.posted-l.done >= latencyDepth {
		if err := f.reap(); err != nil {
			return err
		}
	}
	return f.post(l, 1)
}

// finishLatency waits for the last acknowledgements.
func (f *flow) finishLatency(l *lane) error {
	for f.e.cfg.Duration == 0 && f.sent < l.posted {
		err := f.reap()
		if errors.Is(err, ErrEarly) {
			return nil // the peer has what it wanted
		}
		if err != nil {
			return err
		}
	}
	return nil
}
