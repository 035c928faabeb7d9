package verbs

import (
	"sync"

	"github.com/goroce/goroce/bth"
)

// strays are datagrams for this shard that arrived at another: the kernel
// chooses the socket by the first packet of a coalesced run, and not at all on
// some systems.
type strays struct {
	shards int // of the device; 1 has no strays

	mu      sync.Mutex
	waiting []stray
	taken   []stray
	out     []bth.Datagram
	moved   uint64 // handed over to this shard
	lost    uint64 // found no room
}

// stray is a datagram with bytes of its own.
type stray struct {
	d    bth.Datagram
	data []byte
}

// maxStrays bounds the datagrams that wait for a shard.
const maxStrays = 256

// put copies a datagram for the shard; it reports whether the first came.
func (t *strays) put(d *bth.Datagram) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.waiting)
	if n == maxStrays {
		t.lost++
		return false
	}
	if n < cap(t.waiting) {
		t.waiting = t.waiting[:n+1]
	} else {
		t.waiting = append(t.waiting, stray{})
	}
	s := &t.waiting[n]
	s.data = append(s.data[:0], d.Data...)
	s.d = *d
	s.d.Data = s.data
	t.moved++
	return n == 0
}

// take returns what waits; it is valid until the next take.
func (t *strays) take() []stray {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting, t.taken = t.taken[:0], t.waiting
	return t.taken
}

// pending reports whether anything waits.
func (t *strays) pending() bool {
	if t.shards <= 1 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting) > 0
}

// sort hands datagrams to the shards that their queue pairs live in, and
// returns those that are for this one, with the strays that came from others.
func (s *shard) sort(in []bth.Datagram) []bth.Datagram {
	out := s.strays.out[:0]
	for i := range in {
		d := &in[i]
		if to := s.dev.shardOf(destination(d.Data)); to != nil && to != s {
			if to.strays.put(d) {
				to.rouse()
			}
			continue
		}
		out = append(out, *d)
	}
	for i, mine := 0, s.strays.take(); i < len(mine); i++ {
		out = append(out, mine[i].d)
	}
	s.strays.out = out
	return out
}

// destination returns the destination QPN of a packet; links return none that
// is shorter than a BTH.
func destination(b []byte) bth.QPN { return bth.QPN(b[5])<<16 | bth.QPN(b[6])<<8 | bth.QPN(b[7]) }

// rouse makes the shard's driver look at its strays.
func (s *shard) rouse() {
	if s.sleeping.Swap(0) != 0 {
		s.link.Wake()
	}
}
