package transport

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
)

// The heap gives the pairs in the order of their wake-ups, whatever is set and
// removed between; a deadline that moves back leaves the wake-up early.
func TestTimersGiveTheEarliest(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 7))
		var h timers
		qs := make([]*QP, 1+r.IntN(64))
		for i := range qs {
			qs[i] = &QP{timerPos: -1}
		}
		wake := map[*QP]time.Duration{} // the model
		for range 2000 {
			q := qs[r.IntN(len(qs))]
			switch r.IntN(8) {
			case 0:
				h.remove(q)
				delete(wake, q)
			case 1:
				if len(h) > 0 {
					first := h.pop()
					for _, at := range wake {
						if at < wake[first] {
							t.Fatalf("seed %d: popped %v before %v", seed, wake[first], at)
						}
					}
					delete(wake, first)
				}
			case 2:
				h.set(q, never) // off: does not bring it in, nor out
			default:
				at := time.Duration(r.IntN(1000))
				h.set(q, at)
				if was, ok := wake[q]; !ok || at < was {
					wake[q] = at
				}
			}
			if len(h) != len(wake) {
				t.Fatalf("seed %d: %d in the heap, want %d", seed, len(h), len(wake))
			}
			for i, q := range h {
				if q.timerPos != i || q.wakeAt != wake[q] {
					t.Fatalf("seed %d: position %d/%d, wake-up %v, want %v", seed, q.timerPos, i, q.wakeAt, wake[q])
				}
			}
		}
	}
}

// Whatever a peer makes the responder owe, the answers that wait keep their
// order, stay within the bound that their limit gives, and are counted right.
func TestResponseQueueStaysBounded(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 8))
		limit := r.IntN(4)
		var u responseQueue
		u.resize(limit)
		size := 6*limit + 2
		psn := bth.NewPSN(0xFFFFFF - uint32(r.IntN(100)))
		for range 3000 {
			switch r.IntN(9) {
			case 0, 1:
				u.ack(psn, bth.MSN{})
				psn = psn.Next()
			case 2, 3:
				u.nak(psn, []bth.Syndrome{bth.NAKSequence, bth.SyndromeRNR(1), bth.NAKInvalid}[r.IntN(3)], bth.MSN{})
			case 4:
				if !u.full() {
					u.read(psn, bth.MSN{}, bth.RETH{Length: 256 * 3})
					psn = psn.Add(3)
				}
			case 5:
				if !u.full() {
					u.atomic(psn, bth.MSN{}, 1, false)
					psn = psn.Next()
				}
			case 6:
				u.repeat(psn.Add(-r.IntN(20)), bth.MSN{}, bth.RETH{Length: 256}, 256)
			case 7:
				if !u.fullAgain() {
					u.atomic(psn.Add(-1), bth.MSN{}, 1, true)
				}
			case 8:
				if u.n > 0 && r.IntN(4) == 0 {
					u.pop()
				}
			}
			answers, repeats := 0, 0
			for i := range u.n {
				switch v := u.at(i); {
				case v.kind == ackKind:
				case v.again:
					repeats++
				default:
					answers++
				}
			}
			if u.n > size || answers != u.answers || repeats != u.repeats || answers > limit || repeats > limit {
				t.Fatalf("seed %d: %d of %d; answers %d counted %d, repeats %d counted %d, limit %d", seed, u.n, size, answers, u.answers, repeats, u.repeats, limit)
			}
		}
	}
}

// A queue that is made smaller or larger keeps what is in it.
func TestResponseQueueResizeKeepsAnswers(t *testing.T) {
	for _, to := range []int{0, 1, 2, 5, 128} {
		var u responseQueue
		u.resize(3)
		for range 7 { // move the head around the ring
			u.ack(bth.NewPSN(0), bth.MSN{})
			u.pop()
		}
		var want []bth.PSN
		for k := range 3 {
			p := bth.NewPSN(uint32(10 * k))
			u.read(p, bth.MSN{}, bth.RETH{})
			u.ack(p.Next(), bth.MSN{})
			want = append(want, p, p.Next())
		}
		u.resize(to)
		var got []bth.PSN
		for u.n > 0 {
			got = append(got, u.at(0).psn)
			u.pop()
		}
		if !slices.Equal(got, want) || u.answers != 0 {
			t.Fatalf("resize to %d: %v, want %v", to, got, want)
		}
	}
}

// The replay cache finds the newest owner of a PSN, forgets the oldest, and
// takes PSN ranges up to half the space.
func TestReplayCacheRemembersTheNewest(t *testing.T) {
	for _, size := range []int{1, 2, 5, 40} {
		var c replayCache
		c.resize(size)
		if c.find(bth.NewPSN(0)) != nil {
			t.Fatal("an empty cache found something")
		}
		for i := range 3*size + 1 {
			c.add(result{first: bth.NewPSN(0xFFFFF0).Add(3 * i), psns: 3, value: uint64(i)})
			for j := range i + 1 {
				for k := range 3 {
					got := c.find(bth.NewPSN(0xFFFFF0).Add(3*j + k))
					if remembered := j > i-size; (got != nil) != remembered || remembered && got.value != uint64(j) {
						t.Fatalf("size %d: after %d, PSN %d of %d: %+v", size, i, k, j, got)
					}
				}
			}
		}
	}
	var c replayCache
	c.resize(2)
	c.add(result{first: bth.NewPSN(5), psns: 1 << 23})
	if c.find(bth.NewPSN(5+1<<23-1)) == nil || c.find(bth.NewPSN(5+1<<23)) != nil || c.find(bth.NewPSN(4)) != nil {
		t.Fatal("a range of half the space is wrong")
	}
}

// Duplicates show that the network reorders only if they are of packets that were
// reported missing, each once: probes, and what a requester resends since it has not
// heard of it yet, come twice without that.
func TestResponderToleratesOnlyWhatItReportedMissing(t *testing.T) {
	r := responder{selective: true}
	for k := range 1000 {
		r.cameTwice(bth.NewPSN(uint32(k)))
	}
	if r.tolerance != 0 {
		t.Fatalf("tolerance %d after duplicates that nothing had asked for", r.tolerance)
	}
	r.told.add(bth.NewPSN(7))
	for range 10 {
		r.cameTwice(bth.NewPSN(7))
		r.cameTwice(bth.NewPSN(7 + uint32(len(r.told))))
	}
	if r.tolerance != 0 {
		t.Fatalf("tolerance %d after one packet that was late", r.tolerance)
	}
	for k := range 10 {
		r.told.add(bth.NewPSN(uint32(k)))
		r.cameTwice(bth.NewPSN(uint32(k)))
	}
	if r.tolerance < minTolerance {
		t.Errorf("tolerance %d after eleven packets that were late", r.tolerance)
	}
}
