//go:build !linux

package verbs

import "time"

// guard is a timer that one goroutine sleeps on and others put off.
type guard struct {
	timer *time.Timer
	fired chan struct{}
}

func newGuard() (*guard, error) {
	g := &guard{fired: make(chan struct{}, 1)}
	g.timer = time.AfterFunc(time.Hour, func() { signal(g.fired) })
	return g, nil
}

// arm sets when wait returns.
func (g *guard) arm(d time.Duration) { g.timer.Reset(d) }

// wait returns when the timer has run out since the last wait.
func (g *guard) wait() { <-g.fired }

// close ends the guard; no other call may follow.
func (g *guard) close() { g.timer.Stop() }
