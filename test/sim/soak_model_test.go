package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// This file says what the soak allows: what a work request may do to memory and
// how it may end. It knows nothing of the engine's inside.

// request is a send work request as the model sees it.
type request struct {
	id       uint64
	end      *end
	seq      int // in the order of its end's posts
	op       qp.Op
	signaled bool
	state    fate
	qpn      uint32

	n    int
	slot int    // in the end's slots, -1 without
	data []byte // what is sent
	sink []byte // what the slot must hold on success; nil for a source
	imm  uint32

	effect        effect // on the peer's lane, at off
	off           int
	compare, swap uint64

	takesRecv bool
	badInv    bool // SEND with invalidate that the receiver cannot execute
	grant     *grant

	must  cq.Status // the only way it can end, once it is its turn
	may   uint32    // set of statuses it may end with besides success
	stops bool      // it has no effect on the peer; with RC, neither has what follows

	copies, delivered int // UD: datagrams in the network, and received
	word              *uint64
	then              func(ok bool) // local operations: what the end means
}

type fate uint8

const (
	waiting fate = iota
	ended
	vanished // with its queue pair's RESET
)

type effect uint8

const (
	noEffect effect = iota
	writes
	swaps
	adds
)

func (x *request) mayFail(s cq.Status) {
	if x.state == waiting {
		x.may |= 1 << s
	}
}

// risky reports whether the request may make the peer refuse it.
func (x *request) risky() bool {
	const remote = 1<<cq.RemAccessErr | 1<<cq.RemInvReqErr | 1<<cq.RemOpErr
	return (x.may|1<<x.must)&remote != 0 || x.badInv
}

// apply does to mem what packets from, from+1 … to-1 of the request do.
func (x *request) apply(mem []byte, mtu, from, to int) {
	switch x.effect {
	case writes:
		lo, hi := from*mtu, min(to*mtu, x.n)
		copy(mem[x.off+lo:], x.data[lo:hi])
	case swaps:
		if word := mem[x.off:]; binary.NativeEndian.Uint64(word) == x.compare {
			binary.NativeEndian.PutUint64(word, x.swap)
		}
	case adds:
		word := mem[x.off:]
		binary.NativeEndian.PutUint64(word, binary.NativeEndian.Uint64(word)+x.compare)
	}
}

func (x *request) packets(mtu int) int { return max(1, (x.n+mtu-1)/mtu) }

func (x *request) String() string {
	return fmt.Sprintf("%v %d of %s, %d bytes at %d", x.op, x.id, x.end, x.n, x.off)
}

// lane is the memory that one peer may change. Requests change it in the order
// of their posts:
//
//	base ─ executed for certain ─►  ops: each executed or not, a prefix of them
type lane struct {
	mem  []byte // the real memory
	base []byte
	ops  []*request
	now  []byte // base after all ops
	mtu  int
}

func newLane(mem []byte) *lane {
	return &lane{mem: mem, base: bytes.Clone(mem), now: bytes.Clone(mem)}
}

// post takes note of a request and of what it will fetch.
func (l *lane) post(x *request) {
	switch x.op {
	case qp.RDMARead, qp.CmpSwap, qp.FetchAdd:
		x.sink = bytes.Clone(l.now[x.off : x.off+x.n])
	}
	if x.effect == noEffect && !x.stops {
		return
	}
	l.ops = append(l.ops, x)
	if !x.stops {
		x.apply(l.now, l.mtu, 0, x.packets(l.mtu))
	}
}

// executed notes that all requests up to seq have had their effect.
func (l *lane) executed(seq int) {
	for len(l.ops) > 0 && l.ops[0].seq <= seq {
		l.ops[0].apply(l.base, l.mtu, 0, l.ops[0].packets(l.mtu))
		l.ops = l.ops[1:]
	}
}

// settle compares memory with the model when nothing can change it any more,
// and makes it the new base. ordered: a prefix of the packets has been executed
// (RC); else any of them (UC).
func (l *lane) settle(ordered bool) error {
	check := l.isMixture
	if ordered {
		check = l.isPrefix
	}
	if ok, at := check(); !ok {
		return fmt.Errorf("memory is not what the model allows at %d: 0x%02x, not 0x%02x%s", at, l.mem[at], l.base[at], l.history(at))
	}
	l.ops = nil
	copy(l.base, l.mem)
	copy(l.now, l.mem)
	return nil
}

// history tells what the requests in doubt do to the byte at i.
func (l *lane) history(i int) (s string) {
	for _, x := range l.ops {
		if x.off <= i && i < x.off+x.n {
			s += fmt.Sprintf("\n\t%v (no effect: %v, state %d)", x, x.stops, x.state)
			if x.data != nil {
				s += fmt.Sprintf(" writes 0x%02x", x.data[i-x.off])
			}
		}
	}
	return s
}

func (l *lane) isPrefix() (ok bool, at int) {
	state := bytes.Clone(l.base)
	if bytes.Equal(state, l.mem) {
		return true, 0
	}
	at = firstDiff(state, l.mem)
	for _, x := range l.ops {
		if x.stops {
			break
		}
		for k := range x.packets(l.mtu) {
			x.apply(state, l.mtu, k, k+1)
			if bytes.Equal(state, l.mem) {
				return true, 0
			}
		}
	}
	return false, at
}

func (l *lane) isMixture() (ok bool, at int) {
	for i := range l.mem {
		if l.mem[i] == l.base[i] || l.written(i) {
			continue
		}
		return false, i
	}
	return true, 0
}

// written reports whether a request writes what memory holds at i.
func (l *lane) written(i int) bool {
	for _, x := range l.ops {
		if x.effect == writes && !x.stops && x.off <= i && i < x.off+x.n && x.data[i-x.off] == l.mem[i] {
			return true
		}
	}
	return false
}

// grant is a part of a lane that is reachable through a key of its own: a
// region, a window or a fast registration.
type grant struct {
	lane  *lane
	lo, n int
	state grantState
	key   uint32
	base  uint64 // address of the first byte
	users []*request
	// frozen is what the part held when its key ended: nothing may change it.
	frozen []byte
	dead   []uint32 // keys that ended
}

type grantState uint8

const (
	closed grantState = iota
	changing
	open
)

// use notes a request that names the key; if the key is about to end it may be
// refused.
func (g *grant) use(x *request) {
	x.grant = g
	g.users = append(g.users, x)
	if g.state == changing {
		x.mayFail(cq.RemAccessErr)
	}
}

// ending notes that the key ends some time from now on.
func (g *grant) ending() {
	g.state = changing
	for _, x := range g.users {
		x.mayFail(cq.RemAccessErr)
	}
	g.users = g.users[:0]
}

// end notes that the key has ended.
func (g *grant) end() {
	g.state = closed
	g.dead = append(g.dead, g.key)
	g.frozen = bytes.Clone(g.part())
}

// begin notes that the part is reachable by key.
func (g *grant) begin(key uint32, base uint64) error {
	err := g.check()
	g.state, g.key, g.base, g.frozen = open, key, base, nil
	return err
}

func (g *grant) part() []byte { return g.lane.mem[g.lo : g.lo+g.n] }

// check finds changes made after the key had ended.
func (g *grant) check() error {
	if g.frozen != nil && !bytes.Equal(g.frozen, g.part()) {
		return fmt.Errorf("memory changed at %d although its key had ended", g.lo+firstDiff(g.frozen, g.part()))
	}
	return nil
}

// receive is a receive work request as the model sees it.
type receive struct {
	id       uint64
	end      *end // nil: of a shared receive queue
	host     *station
	slot     int
	n        int  // bytes of buffer
	bad      bool // its key is wrong
	doubtful bool // its key has ended
	state    fate
}

// holds reports whether the buffer holds the message and nothing else. A lost UC
// message may have left its bytes behind the one that is there now.
func (v *receive) holds(buf []byte, x *request, rest func(i int, b byte) bool) bool {
	if x.op != qp.RDMAWriteImm && !bytes.Equal(buf[:x.n], x.data) {
		return false
	}
	from := x.n
	if x.op == qp.RDMAWriteImm {
		from = 0
	}
	return restIs(buf, from, rest)
}

func restIs(buf []byte, from int, rest func(i int, b byte) bool) bool {
	for i := from; i < len(buf); i++ {
		if buf[i] != guardByte && !rest(i, buf[i]) {
			return false
		}
	}
	return true
}
