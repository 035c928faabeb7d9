package verbs

import (
	"time"

	"golang.org/x/sys/unix"
)

// guard is a timer that one thread sleeps on and others put off: a timerfd, so
// that nothing wakes up as long as it is put off in time.
type guard struct{ fd int }

func newGuard() (*guard, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	return &guard{fd}, err
}

// arm sets when wait returns.
func (g *guard) arm(d time.Duration) {
	_ = unix.TimerfdSettime(g.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
}

// wait returns when the timer has run out since the last wait.
func (g *guard) wait() {
	var b [8]byte
	_, _ = unix.Read(g.fd, b[:])
}

// close ends the guard; no other call may follow.
func (g *guard) close() { _ = unix.Close(g.fd) }
