package chaos

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

// usage is what a process holds between two sessions.
type usage struct {
	Goroutines, Files int
	Heap, RSS         int64
}

const (
	// What the heap may grow by after the warm-up: the engine keeps buffers for
	// early packets, of 1.1 MiB at most, once it has needed them.
	heapRoom = 1536 << 10
	rssRoom  = 24 << 20
)

// measure returns the process's usage, once goroutines that have done their
// work had time to end.
func measure() (*usage, error) {
	time.Sleep(10 * time.Millisecond)
	debug.FreeOSMemory() // collects twice over, so that finalizers have run
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getpid()))
	if err != nil {
		return nil, err
	}
	u := &usage{Goroutines: runtime.NumGoroutine(), Files: len(files), Heap: int64(m.HeapAlloc)}
	var pages, resident int64
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscan(string(statm), &pages, &resident); err != nil {
		return nil, err
	}
	u.RSS = resident * int64(os.Getpagesize())
	return u, nil
}

// grown says what u has more than it had before.
func (u *usage) grown(before *usage) error {
	switch {
	case u.Goroutines > before.Goroutines:
		return fmt.Errorf("%d goroutines, %d before", u.Goroutines, before.Goroutines)
	case u.Files > before.Files:
		return fmt.Errorf("%d file descriptors, %d before", u.Files, before.Files)
	case u.Heap > before.Heap+heapRoom:
		return fmt.Errorf("heap of %d bytes, %d before", u.Heap, before.Heap)
	case u.RSS > before.RSS+rssRoom:
		return fmt.Errorf("%d bytes resident, %d before", u.RSS, before.RSS)
	}
	return nil
}
