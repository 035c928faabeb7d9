//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package mr

import "golang.org/x/sys/unix"

// MemlockLimit returns RLIMIT_MEMLOCK in bytes; ^0 is unlimited. ok is false
// where the system has no such limit.
func MemlockLimit() (limit uint64, ok bool) {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) != nil {
		return 0, false
	}
	return uint64(r.Cur), true
}
