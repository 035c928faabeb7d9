package verbs

import (
	"sync/atomic"
	"time"
)

// lease says that a caller is taken for the driver of a shard: it polled a moment
// ago, and is likely to do so again. The loop stands by until the guard wakes it, a
// timer that polls put off.
//
// until and term are read without a lock; passed is the loop's; the rest belongs to
// the shard's owner.
type lease struct {
	until atomic.Int64 // a Duration; 0: the loop drives
	term  atomic.Int64 // a Duration: how long a lease is

	polled time.Duration // when a caller polled last
	streak int           // polls in a loop, up to then
	guard  time.Duration // when the guard goes off, at the earliest
	cost   time.Duration // how long it takes to put it off
	calls  uint32        // posts and polls
	seen   uint32        // calls when the loop looked last
	passed int           // how often in turn the loop has found a caller busy
}

const (
	// minTerm and maxTerm bound a lease. Between them it is so long that putting
	// the guard off, once a term, takes one part in termPerCost of it: a system call
	// that is cheap on bare metal, and not on an emulated machine.
	minTerm     = 400 * time.Microsecond
	maxTerm     = 8 * time.Millisecond
	termPerCost = 512
	// pollGap is how soon after one poll the next has to come to count as polling in
	// a loop, and minStreak from which poll on that makes a driver: who looks now and
	// then at several queues is none.
	pollGap   = 200 * time.Microsecond
	minStreak = 8
	// maxGap is how late the next poll may come while the caller posts.
	maxGap = 4 * time.Millisecond
	// maxPassed bounds how often in turn the loop leaves the shard to a busy caller.
	maxPassed = 16
)

// guardAfter is how long after it was put off the guard goes off.
func (l *lease) guardAfter() time.Duration { return time.Duration(2 * l.term.Load()) }

// any reports whether callers are taken for the drivers.
func (l *lease) any() bool { return l.until.Load() != 0 }

// lasts reports whether the lease has not run out.
func (l *lease) lasts(now time.Duration) bool { return int64(now) < l.until.Load() }

// extend begins a new term.
func (l *lease) extend(now time.Duration) { l.until.Store(int64(now) + l.term.Load()) }

// end makes the loop the driver.
func (l *lease) end() { l.until.Store(0) }

// polls notes a poll and reports whether the caller polls in a loop.
func (l *lease) polls(now time.Duration) (inLoop bool) {
	if now-l.polled < pollGap {
		l.streak++
	} else {
		l.streak = 0
	}
	l.polled = now
	l.calls++
	return l.streak >= minStreak
}

// renew makes the caller the driver for a term from now on.
func (l *lease) renew(now time.Duration) {
	if int64(now)-l.until.Load() > -l.term.Load()/2 {
		l.extend(now)
	}
}

// guarded reports whether the guard need not be put off yet.
func (l *lease) guarded(now time.Duration) bool { return int64(l.guard-now) >= l.term.Load() }

// rearmed notes that the guard was put off, and how long that took.
func (l *lease) rearmed(now, took time.Duration) {
	l.guard = now + l.guardAfter()
	l.cost += (min(took, maxTerm/termPerCost) - l.cost) / 8
	l.term.Store(int64(max(minTerm, l.cost*termPerCost)))
}

// goesOn is asked when a lease has run out. It reports whether the caller has called
// meanwhile, only too seldom: then it gets a new one.
func (l *lease) goesOn(now time.Duration) bool {
	if !l.any() || l.calls == l.seen || now-l.polled > maxGap {
		return false
	}
	l.seen = l.calls
	l.extend(now)
	return true
}

// leaves is asked when a lease has run out while a caller owns the shard. It reports
// whether the loop leaves the shard to the caller.
func (l *lease) leaves(now time.Duration) bool {
	until := l.until.Load()
	if until == 0 || l.passed == maxPassed {
		return false
	}
	l.passed++
	return l.until.CompareAndSwap(until, int64(now)+l.term.Load()) // unless it was ended just now
}
