package transport

import (
	"testing"

	"github.com/goroce/goroce/bth"
)

// A scoreboard that was used once is not misled when half the PSN space and more
// has passed since.
func TestScoreboardMovesAlong(t *testing.T) {
	una := bth.NewPSN(0)
	b := &scoreboard{heard: una.Add(20), seen: una.Add(30)}
	b.set(una.Add(5))
	b.resent(una.Add(6), una.Add(40))
	for range 1 << 10 {
		next := una.Add(1 << 14)
		b.moved(una, next)
		una = next
		if una.Before(b.heard) || una.Before(b.seen) || b.n != 0 {
			t.Fatalf("at %d: heard %d, seen %d, %d answers held", una.Value(), b.heard.Value(), b.seen.Value(), b.n)
		}
	}
	for i := range sendSpan {
		if b.has(una.Add(i)) || b.mark[i] != 0 {
			t.Fatalf("PSN %+d is marked", i)
		}
	}
}

// What is lost, by what has been answered since.
func TestScoreboardLost(t *testing.T) {
	una := bth.NewPSN(0xFFFFF0)
	at := una.Add
	b := &scoreboard{heard: una, seen: una}
	b.set(at(3))
	for _, row := range []struct {
		psn, heard, tolerance int
		want                  bool
	}{
		{3, 10, 0, false}, // it is here
		{4, 4, 0, false},  // nothing behind it is
		{4, 5, 0, true},
		{4, 5, 1, false}, // it may be late
		{4, 8, 4, false},
		{4, 9, 4, true},
	} {
		b.tolerance = row.tolerance
		if got := b.lost(at(row.psn), at(row.heard)); got != row.want {
			t.Errorf("%+v: %v", row, got)
		}
	}
	b.tolerance = 0
	b.resent(at(4), at(12))
	if b.lost(at(4), at(12)) || !b.lost(at(4), at(13)) {
		t.Error("what was resent is lost when something that was sent after it is answered")
	}
}
