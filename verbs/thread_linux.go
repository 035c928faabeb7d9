package verbs

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// lockLoopThread gives the calling goroutine a thread of its own, for as long
// as it lives, whose timeouts are exact: by default Linux lets them be 50 µs
// late.
func lockLoopThread() {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// yieldThread lets other goroutines run, and other threads of the system.
func yieldThread() {
	runtime.Gosched()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
