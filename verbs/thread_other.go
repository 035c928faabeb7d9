//go:build !linux

package verbs

import "runtime"

// lockLoopThread gives the calling goroutine a thread of its own.
func lockLoopThread() { runtime.LockOSThread() }

// yieldThread lets other goroutines run.
func yieldThread() { runtime.Gosched() }
