package sim

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

var soakSchedules = flag.Int("soak", 0, "number of seeded schedules of TestSoak; 0 means 3000, or 300 with -short")

// TestSoak mixes, in each schedule, queue pairs of all types on two or three
// hosts, all operations, changes of state, registrations, invalidations and
// errors, over a network with all faults at once, and checks all that happens
// against a model. The whole run: go test ./test/sim -run TestSoak -soak 100000
// -timeout 60m
func TestSoak(t *testing.T) {
	n := uint64(*soakSchedules)
	if n == 0 {
		n = 3000
		if testing.Short() {
			n = 300
		}
	}
	var next, failed atomic.Uint64
	next.Store(*firstSeed)
	var total tally
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for failed.Load() == 0 {
				seed := next.Add(1) - 1
				if seed >= *firstSeed+n {
					return
				}
				sum, err := soak(seed)
				if err != nil {
					failed.Add(1)
					t.Errorf("seed %d: %v\nreproduce: go test ./test/sim -run TestSoak -seed %d -soak 1", seed, err, seed)
				}
				mu.Lock()
				total.add(sum)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Log(total)
	// All retries may be lost on a working path, but hardly ever.
	if limit := 1 + n/1000; uint64(total.unlucky) > limit {
		t.Errorf("%d requests ran out of retries on working paths, more than %d", total.unlucky, limit)
	}
}

// soak runs one schedule.
func soak(seed uint64) (sum tally, err error) {
	w := newWorld(seed)
	defer func() {
		sum = w.tally
		if p := recover(); p != nil {
			if e, ok := p.(violation); ok {
				err = e
				return
			}
			panic(fmt.Sprintf("seed %d: %v", seed, p))
		}
	}()
	w.disturb()
	w.calmDown()
	w.tearDown()
	return w.tally, nil
}

// violation is what ends a schedule that breaks the model.
type violation struct{ error }

// tally counts what schedules did, to see that they do all of it.
type tally struct {
	posted, succeeded, failed, flushed, vanished int
	received, datagrams, lives, unlucky          int
	lateUC, overflows                            int
	ops                                          [64]int
	statuses                                     [32]int
}

func (a *tally) add(b tally) {
	a.posted += b.posted
	a.succeeded += b.succeeded
	a.failed += b.failed
	a.flushed += b.flushed
	a.vanished += b.vanished
	a.received += b.received
	a.datagrams += b.datagrams
	a.lives += b.lives
	a.unlucky += b.unlucky
	a.lateUC += b.lateUC
	a.overflows += b.overflows
	for i := range b.ops {
		a.ops[i] += b.ops[i]
	}
	for i := range b.statuses {
		a.statuses[i] += b.statuses[i]
	}
}

func (a tally) String() string {
	s := fmt.Sprintf("%d requests posted: %d succeeded, %d failed, %d flushed, %d vanished with a RESET; %d receives, %d of them datagrams, %d UC messages late or twice; %d lives of connections, %d CQ overflows, %d requests out of retries on working paths\nposted:",
		a.posted, a.succeeded, a.failed, a.flushed, a.vanished, a.received, a.datagrams, a.lateUC, a.lives, a.overflows, a.unlucky)
	for op, n := range a.ops {
		if n > 0 {
			s += fmt.Sprintf(" %v %d,", qp.Op(op), n)
		}
	}
	s += "\ncompleted:"
	for status, n := range a.statuses {
		if n > 0 {
			s += fmt.Sprintf(" %v %d,", cq.Status(status), n)
		}
	}
	return s
}
