package transport

import (
	"math"
	"time"
)

// never is the deadline of a timer that is off.
const never = time.Duration(math.MaxInt64)

// timers is a binary heap of queue pairs by wake-up time. A pair's wake-up may
// be earlier than its real deadline, never later: moving a deadline back, as
// every acknowledgement does, then costs nothing, and the pair is put off when
// its wake-up comes.
type timers []*QP

func (h *timers) set(q *QP, at time.Duration) {
	switch {
	case q.timerPos < 0 && at != never:
		q.wakeAt, q.timerPos = at, len(*h)
		*h = append(*h, q)
		h.up(q.timerPos)
	case q.timerPos >= 0 && at < q.wakeAt:
		q.wakeAt = at
		h.up(q.timerPos)
	}
}

// pop removes the first pair.
func (h *timers) pop() *QP {
	q := (*h)[0]
	h.remove(q)
	return q
}

func (h *timers) remove(q *QP) {
	i, last := q.timerPos, len(*h)-1
	if i < 0 {
		return
	}
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	q.timerPos = -1
	if i < last {
		h.up(i)
		h.down(i)
	}
}

func (h timers) up(i int) {
	for i > 0 && h[i].wakeAt < h[(i-1)/2].wakeAt {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].wakeAt < h[c].wakeAt {
			c++
		}
		if h[i].wakeAt <= h[c].wakeAt {
			return
		}
		h.swap(i, c)
		i = c
	}
}

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timerPos, h[j].timerPos = i, j
}
