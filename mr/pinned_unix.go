//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package mr

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// AllocPinned maps size bytes (rounded up to pages) of zeroed memory and locks
// it. When RLIMIT_MEMLOCK is in the way the error is a *MemlockError.
func AllocPinned(size int) (*Pinned, error) {
	if size <= 0 {
		return nil, fmt.Errorf("mr: cannot pin %d bytes: the size must be positive", size)
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mr: cannot map %d bytes: %w", size, err)
	}
	if err := unix.Mlock(mem); err != nil {
		_ = unix.Munmap(mem)
		return nil, lockError(size, err)
	}
	return &Pinned{mem}, nil
}

// Free unlocks and unmaps the memory. No region may be registered over it.
func (p *Pinned) Free() error {
	if p.mem == nil {
		return nil
	}
	mem := p.mem
	p.mem = nil
	return unix.Munmap(mem)
}

func lockError(size int, err error) error {
	limit, ok := MemlockLimit()
	if ok && (errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN)) {
		return &MemlockError{Need: uint64(size), Limit: limit, Err: err}
	}
	return fmt.Errorf("mr: cannot lock %d bytes: %w", size, err)
}
