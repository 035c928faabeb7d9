package mr

import "fmt"

// Pinned is memory outside the Go heap that is locked into RAM: page aligned,
// at a fixed address, never scanned by the garbage collector nor swapped out.
type Pinned struct{ mem []byte }

// Bytes returns the memory, or nil after Free.
func (p *Pinned) Bytes() []byte { return p.mem }

// MemlockError reports that the limit on locked memory is too small.
type MemlockError struct {
	Need  uint64 // bytes asked for
	Limit uint64 // RLIMIT_MEMLOCK in bytes
	Err   error  // what the kernel said
}

// Error implements error. It names the limit, its value and the cure.
func (e *MemlockError) Error() string {
	return fmt.Sprintf("mr: cannot pin %d bytes: RLIMIT_MEMLOCK is %d bytes (%v); raise it with `ulimit -l` or in limits.conf, "+
		"give a container the IPC_LOCK capability, or register unpinned memory", e.Need, e.Limit, e.Err)
}

// Unwrap returns the kernel's error.
func (e *MemlockError) Unwrap() error { return e.Err }
