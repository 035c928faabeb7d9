package cq

import (
	"sync"
	"sync/atomic"
)

// MaxCapacity bounds a queue, in completions.
const MaxCapacity = 1 << 22

// Queue is a completion queue. Push is for one producer at a time unless Share was called, Poll for one
// consumer at a time; the two may run concurrently, and Arm with both.
type Queue struct {
	ring     []WC
	mask     uint64
	capacity uint64
	notify   func()

	_    [64]byte // keep the two sides off one cache line
	tail atomic.Uint64
	_    [56]byte
	head atomic.Uint64
	_    [56]byte

	armed    atomic.Uint32
	overflow atomic.Bool

	// shared: several producers take turns by mu.
	shared atomic.Bool
	mu     sync.Mutex
}

// What a queue is armed for.
const (
	armedNone uint32 = iota
	armedSolicited
	armedNext
)

// New returns a queue for at least capacity completions, 1…MaxCapacity. notify
// may be nil; it is called by the producer and must not block nor call back.
func New(capacity int, notify func()) *Queue {
	capacity = max(1, min(capacity, MaxCapacity))
	size := uint64(1)
	for size < uint64(capacity) {
		size *= 2
	}
	return &Queue{ring: make([]WC, size), mask: size - 1, capacity: uint64(capacity), notify: notify}
}

// Capacity returns how many completions the queue holds.
func (q *Queue) Capacity() int { return int(q.capacity) }

// Len returns how many completions wait.
func (q *Queue) Len() int { return int(q.tail.Load() - q.head.Load()) }

// Push adds a completion. It returns false when the queue is full or has
// overflowed before: the completion is lost and the caller has to raise
// CQ_ERR and stop the queue pair (IBA 10.7.2, C10-107). solicited is true for
// completions that a peer marked with SE; errors always count as solicited.
func (q *Queue) Push(wc *WC, solicited bool) bool {
	if q.shared.Load() {
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	t := q.tail.Load()
	if t-q.head.Load() >= q.capacity || q.overflow.Load() {
		q.overflow.Store(true)
		q.fire(true)
		return false
	}
	q.ring[t&q.mask] = *wc
	q.tail.Store(t + 1)
	q.fire(solicited || wc.Status != Success)
	return true
}

// Share allows several producers, at the cost of a lock for each completion.
// None may be pushing meanwhile.
func (q *Queue) Share() { q.shared.Store(true) }

// fire calls notify if the queue is armed for this kind of completion.
func (q *Queue) fire(solicited bool) {
	a := q.armed.Load()
	if a == armedNone || a == armedSolicited && !solicited {
		return
	}
	if q.armed.CompareAndSwap(a, armedNone) && q.notify != nil {
		q.notify()
	}
}

// Poll moves up to len(wcs) completions into wcs, oldest first, and returns
// their number. It never blocks.
func (q *Queue) Poll(wcs []WC) int {
	h := q.head.Load()
	n := min(q.tail.Load()-h, uint64(len(wcs)))
	for i := range n {
		wcs[i] = q.ring[(h+i)&q.mask]
	}
	q.head.Store(h + n)
	return int(n)
}

// Arm asks for one notification at the next completion, or at the next
// solicited or failed one. Completions that already wait do not notify: poll
// once more after arming. Arming for any completion wins over solicited only.
func (q *Queue) Arm(solicitedOnly bool) {
	if solicitedOnly {
		q.armed.CompareAndSwap(armedNone, armedSolicited)
		return
	}
	q.armed.Store(armedNext)
}

// Overflowed reports whether a completion was lost.
func (q *Queue) Overflowed() bool { return q.overflow.Load() }
