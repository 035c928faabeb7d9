//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package mr

import "errors"

// AllocPinned is not available on this system.
func AllocPinned(int) (*Pinned, error) {
	return nil, errors.New("mr: this system has no pinned memory; register a Go slice instead")
}

// Free does nothing: there is no pinned memory here.
func (p *Pinned) Free() error { return nil }

// MemlockLimit reports that there is no such limit.
func MemlockLimit() (limit uint64, ok bool) { return 0, false }
