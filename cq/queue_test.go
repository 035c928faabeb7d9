package cq

import (
	"testing"
)

func TestQueuePollKeepsOrderAcrossWrap(t *testing.T) {
	q := New(3, nil)
	var got []uint64
	next := uint64(0)
	wcs := make([]WC, 2)
	for range 50 {
		for q.Len() < 3 {
			if !q.Push(&WC{ID: next}, false) {
				t.Fatalf("push %d refused with %d of 3 waiting", next, q.Len())
			}
			next++
		}
		for _, wc := range wcs[:q.Poll(wcs)] {
			got = append(got, wc.ID)
		}
	}
	for i, id := range got {
		if id != uint64(i) {
			t.Fatalf("completion %d has ID %d", i, id)
		}
	}
	if len(got) != 100 {
		t.Fatalf("polled %d completions, want 100", len(got))
	}
}

func TestQueueFullLosesCompletionAndStaysInError(t *testing.T) {
	q := New(2, nil)
	for i := range 2 {
		if !q.Push(&WC{ID: uint64(i)}, false) {
			t.Fatalf("push %d refused", i)
		}
	}
	if q.Push(&WC{ID: 2}, false) {
		t.Fatal("push into a full queue succeeded")
	}
	if !q.Overflowed() {
		t.Fatal("overflow not noted")
	}
	wcs := make([]WC, 4)
	if n := q.Poll(wcs); n != 2 || wcs[0].ID != 0 || wcs[1].ID != 1 {
		t.Fatalf("poll gave %d completions %v, want the 2 that fitted", n, wcs[:n])
	}
	if q.Push(&WC{}, false) {
		t.Fatal("a queue that overflowed accepted a completion")
	}
}

func TestQueueArm(t *testing.T) {
	ok, fail := WC{}, WC{Status: RetryExcErr}
	for _, tc := range []struct {
		name      string
		arm       func(q *Queue)
		wc        WC
		solicited bool
		want      int
	}{
		{"not armed", func(*Queue) {}, ok, true, 0},
		{"next, plain completion", func(q *Queue) { q.Arm(false) }, ok, false, 1},
		{"solicited, plain completion", func(q *Queue) { q.Arm(true) }, ok, false, 0},
		{"solicited, solicited completion", func(q *Queue) { q.Arm(true) }, ok, true, 1},
		{"solicited, failed completion", func(q *Queue) { q.Arm(true) }, fail, false, 1},
		{"solicited after next does not weaken", func(q *Queue) { q.Arm(false); q.Arm(true) }, ok, false, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := 0
			q := New(8, func() { n++ })
			tc.arm(q)
			q.Push(&tc.wc, tc.solicited)
			q.Push(&tc.wc, tc.solicited) // one-shot: the second must not notify
			if n != tc.want {
				t.Fatalf("notified %d times, want %d", n, tc.want)
			}
		})
	}
}

func TestQueuePushPollDoNotAllocate(t *testing.T) {
	q := New(16, nil)
	wcs := make([]WC, 16)
	wc := WC{ID: 1}
	if n := testing.AllocsPerRun(100, func() {
		q.Push(&wc, false)
		q.Poll(wcs)
	}); n != 0 {
		t.Fatalf("%v allocations per push and poll, want 0", n)
	}
}
