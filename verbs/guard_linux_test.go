package verbs

import (
	"testing"
	"time"
)

// TestGuard puts a guard off, and ends it while somebody waits.
func TestGuard(t *testing.T) {
	g, err := newGuard()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	g.arm(time.Millisecond)
	g.arm(30 * time.Millisecond)
	g.wait()
	if took := time.Since(start); took < 30*time.Millisecond {
		t.Errorf("put off to 30 ms, it went off after %v", took)
	}
	g.arm(time.Hour)
	ended := make(chan struct{})
	go func() { g.wait(); close(ended) }()
	time.Sleep(time.Millisecond)
	g.close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("a wait outlives the guard")
	}
}
