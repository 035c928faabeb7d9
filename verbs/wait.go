package verbs

import (
	"context"
	"time"

	"github.com/goroce/goroce/udp"
)

// This file is how a caller that waits drives a shard: it holds it, and sleeps on
// the link in the loop's place.

// wait drives the shard until a signal comes, ctx is done, or the device is
// closed. Where another caller does that already, it waits for that one's
// signal.
func (s *shard) wait(ctx context.Context, ready <-chan struct{}) error {
	if !s.hold() {
		return s.waitBehind(ctx, ready)
	}
	defer s.release()
	wake, began := false, s.dev.now()
	for {
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.dev.stop:
			return ErrClosed
		default:
		}
		if s.poll(nil) {
			s.spin.met(s.dev.now() - began)
			began = s.dev.now()
			continue
		}
		if s.dev.now()-began < s.spin.budget() {
			continue
		}
		if !wake && ctx.Done() != nil {
			wake = true
			defer context.AfterFunc(ctx, s.link.Wake)()
		}
		s.sleep(ready, maxHeldSleep(s.dev))
	}
}

// maxHeldSleep bounds the sleep of a waiting caller: a polled device has no one
// else to look for news of the port.
func maxHeldSleep(d *Device) time.Duration {
	if d.cfg.Polled {
		return watchEvery
	}
	return maxIdle
}

// waitBehind waits while another caller drives the shard; it looks now and then
// whether that one has gone.
func (s *shard) waitBehind(ctx context.Context, ready <-chan struct{}) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.dev.stop:
			return ErrClosed
		case <-t.C:
			if !s.held.Load() {
				return nil // look again, and perhaps take over
			}
		}
	}
}

// lookEvery is how often a caller looks whether it should drive the shard.
const lookEvery = time.Millisecond

// handBack ends the lease of a caller that goes to sleep without waiting here.
func (s *shard) handBack() {
	if !s.lease.any() || s.dev.cfg.Polled {
		return
	}
	s.lock()
	defer s.mu.Unlock()
	s.lease.end()
	s.lease.polled = 0
	if !s.closed && !s.held.Load() {
		s.guard.arm(1)
		s.lease.guard = 0
	}
}

// hold makes the caller the driver for as long as it waits. It fails when
// another caller is already.
func (s *shard) hold() bool {
	return s.held.CompareAndSwap(false, true)
}

// release ends hold. The caller is likely to poll, post or wait again at once;
// the loop looks a little later.
func (s *shard) release() {
	if !s.dev.cfg.Polled {
		s.mu.Lock()
		now := s.dev.now()
		s.lease.extend(now)
		s.lease.polled = now
		s.held.Store(false)
		if !s.closed {
			s.putOffGuard(now)
		}
		s.mu.Unlock()
		s.bringUp()
		return
	}
	s.held.Store(false)
}

// bringUp makes a loop that still waits on the link stand by: it does not know
// the timers that a caller has started meanwhile.
func (s *shard) bringUp() {
	if s.asleep.Load() {
		s.link.Wake()
	}
}

// sleep blocks a holder until packets arrive, a timer is due, or it is woken, at
// most for limit.
func (s *shard) sleep(ready <-chan struct{}, limit time.Duration) {
	s.mu.Lock()
	timeout, until := s.announceSleep(limit)
	s.heldIdle.Store(true)
	closed := s.closed
	s.mu.Unlock()
	if timeout > 0 && !closed && len(ready) == 0 {
		s.link.Wait(udp.ForCaller, timeout)
	}
	s.heldIdle.Store(false)
	s.sleeping.CompareAndSwap(until, 0)
}

// wakeHolder wakes a caller that sleeps in a wait: what it waits for may have
// happened without a packet.
func (s *shard) wakeHolder() {
	if s.heldIdle.Load() {
		s.link.Wake()
	}
}
