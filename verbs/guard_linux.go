package verbs

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guard is a timer that one thread sleeps on and others put off: a timerfd, so
// that nothing wakes up as long as it is put off in time. The runtime's poller
// watches it: a thread that slept in a system call would keep the runtime's monitor
// awake, 60 times for each call.
type guard struct {
	fd   int
	file *os.File
}

func newGuard() (*guard, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &guard{fd, os.NewFile(uintptr(fd), "timerfd")}, nil
}

// arm sets when wait returns. The call never blocks, so the scheduler need not know.
func (g *guard) arm(d time.Duration) {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(g.fd), 0, uintptr(unsafe.Pointer(&at)), 0, 0, 0)
}

// wait returns when the timer has run out since the last wait.
func (g *guard) wait() {
	var b [8]byte
	_, _ = g.file.Read(b[:])
}

// close ends the guard; no other call may follow.
func (g *guard) close() { _ = g.file.Close() }
