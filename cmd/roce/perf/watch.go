package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/qp"
)

// errLost ends the run of a receiver to which nothing more will come: a message of
// an unreliable service was lost. It is no failure.
var errLost = errors.New("messages were lost")

// watchdog looks after a measured run from beside: the run itself tells it how many
// messages are done and asks whether it may go on, by an atomic each.
type watchdog struct {
	done    atomic.Int64
	stopped atomic.Bool
	idle    atomic.Bool     // UC, UD: all has been sent and something has come
	parent  context.Context // of the whole test
	ctx     context.Context // for those who sleep; ends with stopped
	cancel  context.CancelCauseFunc
	ended   chan struct{}
}

// The watchdog's times.
const (
	watchTick    = 50 * time.Millisecond
	goneAfter    = time.Second            // without progress, after the end of the TCP connection
	lostAfter    = 300 * time.Millisecond // without progress, after the peer has finished
	lostAnyway   = 3 * time.Second        // without progress, when all has been sent
	progressTick = 500 * time.Millisecond
	progressFrom = 2 * time.Second
)

// watchRun starts to look after a run.
func (e *end) watchRun(f *flow) *watchdog {
	w := &watchdog{parent: e.ctx, ended: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancelCause(e.ctx)
	go w.loop(e, f)
	return w
}

// finish ends the watch; nothing of it is left behind.
func (w *watchdog) finish() {
	w.cancel(nil)
	<-w.ended
}

// cause says why a run was stopped.
func (w *watchdog) cause() error {
	if w.parent.Err() != nil {
		return fmt.Errorf("interrupted after %d messages", w.done.Load())
	}
	return context.Cause(w.ctx)
}

func (w *watchdog) loop(e *end, f *flow) {
	defer close(w.ended)
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	var p progress
	defer func() { p.clear(e.host.Progress) }()
	start := time.Now()
	last, since := int64(-1), start
	for {
		select {
		case <-w.ctx.Done():
			w.stop(w.ctx.Err())
			return
		case now := <-tick.C:
			if done := w.done.Load(); done != last {
				last, since = done, now
			} else if err := w.judge(e, f, now.Sub(since), done); err != nil {
				w.stop(err)
				return
			}
			if total := now.Sub(start); total >= progressFrom {
				p.show(e.host.Progress, now, f, last, total)
			}
		}
	}
}

func (w *watchdog) stop(err error) {
	w.cancel(err)
	w.stopped.Store(true)
}

// judge says what it means that nothing has moved for so long, nil if nothing.
func (w *watchdog) judge(e *end, f *flow, still time.Duration, done int64) error {
	unreliable := e.cfg.Connection != qp.RC && !e.cfg.Test.Latency && w.idle.Load()
	switch {
	case unreliable && (e.conn.spoke.Load() && still >= lostAfter || still >= lostAnyway):
		return errLost
	case e.conn.gone.Load() && still >= goneAfter:
		return fmt.Errorf("after %d messages of %d bytes: %w", done, f.size, ErrEarly)
	case still >= e.cfg.Wait:
		return e.stalled(f, done)
	}
	return nil
}

func (e *end) stalled(f *flow, done int64) error {
	cause := "the peer has stopped, or the two sides run different tests or the same with different options"
	if e.cfg.Connection != qp.RC {
		cause += "; or a packet was lost, which nothing repairs on this service"
	}
	if drops := drops(e.dev.Stats()); drops != "" {
		cause += "; the device dropped packets: " + drops
	}
	return fmt.Errorf("nothing happened for %v after %d messages of %d bytes: %s", e.cfg.Wait, done, f.size, cause)
}

// progress is the line on a terminal that tells how far a run is.
type progress struct {
	at    time.Time
	shown int
}

func (p *progress) show(w io.Writer, now time.Time, f *flow, done int64, total time.Duration) {
	if w == nil || now.Sub(p.at) < progressTick {
		return
	}
	p.at = now
	line := fmt.Sprintf("%d bytes: %d messages in %.1f s", f.size, done, total.Seconds())
	if all := f.goalMessages(); all > 0 {
		line += fmt.Sprintf(", %d %%", done*100/all)
	}
	fmt.Fprintf(w, "\r%-*s", p.shown, line)
	p.shown = len(line)
}

// clear removes the line.
func (p *progress) clear(w io.Writer) {
	if p.shown > 0 {
		fmt.Fprintf(w, "\r%*s\r", p.shown, "")
	}
}
