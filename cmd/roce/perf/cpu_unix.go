//go:build unix

package perf

import (
	"syscall"
	"time"
)

// cpuTime returns what the process has used so far.
func cpuTime() cpu {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return cpu{}
	}
	return cpu{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}
}
