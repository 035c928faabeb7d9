package sim

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

var (
	schedules = flag.Int("schedules", 0, "number of seeded schedules of TestScheduleAgainstModel; 0 means 10000, or 1000 with -short")
	firstSeed = flag.Uint64("seed", 1, "first seed of TestScheduleAgainstModel and TestSoak")
)

// TestScheduleAgainstModel runs random operations of all kinds in both
// directions at once over a faulty network. Afterwards memory is what a model
// says it is, each work request has completed exactly once and in order, and no
// byte outside a region has changed.
func TestScheduleAgainstModel(t *testing.T) {
	n := *schedules
	if n == 0 {
		n = 10000
		if testing.Short() {
			n = 1000
		}
	}
	for seed := *firstSeed; seed < *firstSeed+uint64(n); seed++ {
		if err := runSchedule(seed); err != nil {
			t.Fatalf("%v\nreproduce: go test ./test/sim -run TestScheduleAgainstModel -seed %d -schedules 1", err, seed)
		}
	}
}

// side is one end of a connection with its memory and its model.
//
//	target:  guard | bytes the peer may write, read and add to | guard
//	local:   guard | one slot per work request                 | guard
type side struct {
	host   *Host
	q      *transport.QP
	link   Link
	target *mr.Region
	local  *mr.Region
	recv   *mr.Region
	mem    []byte // everything, with guards
	model  []byte // of target: what the peer's requests make of it
	sent   []expectation
	recvs  []recvExpectation // what the peer's SENDs put where
	posted int               // receives
	want   int               // receives that the peer's requests take
	wcs    []cq.WC
	rcs    []cq.WC
	reads  [][2]int // target ranges of the peer that READs since the last fence cover
}

type expectation struct {
	id       uint64
	signaled bool
	slot     int    // offset in local
	data     []byte // what the slot must hold at the end; nil if it is a source
}

type recvExpectation struct {
	data []byte // nil: WRITE with immediate, buffer untouched
	imm  uint32
	has  bool
	n    int
}

const (
	guard      = 64
	targetLen  = 24 << 10
	slotLen    = 12 << 10
	recvLen    = 12 << 10
	maxOps     = 14
	guardByte  = 0xA5
	scheduleMs = 600_000
)

func runSchedule(seed uint64) error {
	f := Faults{Delay: 20 * time.Microsecond, Jitter: 200 * time.Microsecond}
	n := New(seed, f)
	r := n.Rand()
	pick := func(limit float64) float64 {
		if r.IntN(3) == 0 {
			return 0
		}
		return r.Float64() * limit
	}
	n.Faults.Loss, n.Faults.Duplicate, n.Faults.Reorder, n.Faults.Corrupt = pick(.10), pick(.10), pick(.10), pick(.05)
	mtu := 256 << r.IntN(5)
	var s [2]*side
	for i := range s {
		s[i] = newSide(n, r, mtu)
	}
	for i := range s { // each side's initiator depth is what the peer accepts
		s[i].link.MaxRDAtomic = uint8(1 + r.IntN(int(s[1-i].link.MaxDestRDAtomic)))
	}
	if err := Connect(s[0].host, s[0].q, s[0].link, s[1].host, s[1].q, s[1].link); err != nil {
		return err
	}
	left := [2]int{1 + r.IntN(maxOps), r.IntN(maxOps)}
	err := n.Run(scheduleMs*time.Millisecond, func() bool {
		for i := range s {
			s[i].poll()
			for left[i] > 0 && r.IntN(4) > 0 && s[i].post(r, s[1-i]) {
				left[i]--
			}
			// Receives come late now and then: RNR.
			for s[i].posted < s[i].want && r.IntN(8) > 0 {
				s[i].postRecv()
			}
		}
		return left == [2]int{} && s[0].done() && s[1].done()
	})
	if err != nil {
		return fmt.Errorf("%w; %v %+v; %s | %s", err, mtu, n.Faults, s[0].status(), s[1].status())
	}
	n.RunFor(time.Second) // late duplicates must change nothing
	for i := range s {
		s[i].poll()
		if err := s[i].check(s[1-i]); err != nil {
			return fmt.Errorf("seed %d side %d: %w", seed, i, err)
		}
	}
	return nil
}

func newSide(n *Net, r *rand.Rand, mtu int) *side {
	n.Recovery = []transport.Recovery{transport.Selective, transport.Selective, transport.Alone, transport.GoBackN}[r.IntN(4)]
	s := &side{host: n.AddHost(4 << r.IntN(6)), link: DefaultLink()}
	s.link.MTU = mtu
	s.link.PSN = bth.NewPSN(r.Uint32())
	if r.IntN(2) == 0 {
		s.link.PSN = bth.NewPSN(0xFFFFFF - r.Uint32N(40)) // wraps soon
	}
	s.link.MaxDestRDAtomic = uint8(1 + r.IntN(5))
	// Retries without end would hide a livelock; 7 in a row at these rates do
	// not run out when a timeout is allowed to repair what NAKs do not.
	s.link.Timeout, s.link.RNRRetry, s.link.MinRNRTimer = 8, 7, uint8(1+r.IntN(14))
	s.q = s.host.NewQP(qp.Config{MaxSendWR: 64, MaxRecvWR: 64})

	sizes := []int{targetLen, maxOps * slotLen, maxOps * recvLen}
	s.mem = make([]byte, guard)
	for _, l := range sizes {
		s.mem = append(s.mem, make([]byte, l+guard)...)
	}
	for i := range s.mem {
		s.mem[i] = guardByte
	}
	at := guard
	regions := make([]*mr.Region, len(sizes))
	for i, l := range sizes {
		access := mr.LocalWrite
		if i == 0 {
			access |= mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic
		}
		regions[i], _ = s.host.PD.Register(s.mem[at:at+l:at+l], access)
		at += l + guard
	}
	s.target, s.local, s.recv = regions[0], regions[1], regions[2]
	for i := range s.target.Bytes() {
		s.target.Bytes()[i] = byte(r.Uint32())
	}
	s.model = bytes.Clone(s.target.Bytes())
	return s
}

// post posts one random operation and applies it to the peer's model.
func (s *side) post(r *rand.Rand, peer *side) bool {
	i := len(s.sent)
	op := []qp.Op{qp.RDMAWrite, qp.RDMAWriteImm, qp.Send, qp.SendImm, qp.RDMARead, qp.CmpSwap, qp.FetchAdd}[r.IntN(7)]
	n := []int{0, 1, 7, s.link.MTU, s.link.MTU + 1, 2*s.link.MTU - 1, r.IntN(slotLen)}[r.IntN(7)]
	n = min(n, slotLen)
	x := expectation{id: uint64(i)<<8 | uint64(op), slot: i * slotLen, signaled: r.IntN(3) > 0}
	wr := qp.SendWR{ID: x.id, Op: op, Imm: r.Uint32(), RKey: peer.target.Key()}
	if x.signaled {
		wr.Flags |= qp.Signaled
	}
	off := r.IntN(targetLen - n + 1)
	if op.Atomic() {
		n, off = 8, r.IntN(targetLen/8)*8
		off -= int((peer.target.Addr() + uint64(off)) % 8)
		if off < 0 {
			off += 8
		}
	}
	wr.RemoteAddr = peer.target.Addr() + uint64(off)
	slot := s.local.Bytes()[x.slot : x.slot+n]
	wr.SGE = splitSGE(r, s.local, x.slot, n)
	// A READ may be executed again after a later request: what changes its
	// range has to be fenced (IBA 9.5).
	if s.overlapsRead(off, n) && (op == qp.RDMAWrite || op == qp.RDMAWriteImm || op.Atomic()) || r.IntN(10) == 0 {
		wr.Flags |= qp.Fence
		s.reads = nil
	}
	target := peer.model[off : off+n]
	switch {
	case op == qp.RDMARead:
		x.data = bytes.Clone(target)
		s.reads = append(s.reads, [2]int{off, n})
	case op.Atomic():
		old := binary.NativeEndian.Uint64(target)
		x.data = bytes.Clone(target)
		wr.CompareAdd, wr.Swap = r.Uint64(), r.Uint64()
		if op == qp.FetchAdd {
			binary.NativeEndian.PutUint64(target, old+wr.CompareAdd)
		} else {
			if r.IntN(2) == 0 {
				wr.CompareAdd = old
			}
			if wr.CompareAdd == old {
				binary.NativeEndian.PutUint64(target, wr.Swap)
			}
		}
	default:
		for j := range slot {
			slot[j] = byte(r.Uint32())
		}
		if n <= 256 && r.IntN(3) == 0 {
			wr.Inline, wr.SGE = slot, nil
		}
		if op == qp.RDMAWrite || op == qp.RDMAWriteImm {
			copy(target, slot)
		}
		if op != qp.RDMAWrite {
			e := recvExpectation{imm: wr.Imm, has: op != qp.Send, n: n}
			if op != qp.RDMAWriteImm {
				e.data = bytes.Clone(slot)
			}
			peer.recvs = append(peer.recvs, e)
			peer.want++
		}
	}
	if err := s.host.Post(s.q, &wr); err != nil {
		panic(err)
	}
	s.sent = append(s.sent, x)
	return true
}

func (s *side) overlapsRead(off, n int) bool {
	for _, rd := range s.reads {
		if off < rd[0]+rd[1] && rd[0] < off+n {
			return true
		}
	}
	return false
}

// splitSGE cuts [off, off+n) of a region into up to four entries.
func splitSGE(r *rand.Rand, reg *mr.Region, off, n int) (sges []mr.SGE) {
	for len(sges) < 3 && n > 1 && r.IntN(2) == 0 {
		k := 1 + r.IntN(n-1)
		sges = append(sges, reg.SGE(off, k))
		off, n = off+k, n-k
	}
	return append(sges, reg.SGE(off, n))
}

func (s *side) postRecv() {
	if err := s.host.PostRecv(s.q, &qp.RecvWR{ID: uint64(s.posted), SGE: []mr.SGE{s.recv.SGE(s.posted*recvLen, recvLen)}}); err != nil {
		panic(err)
	}
	s.posted++
}

func (s *side) poll() {
	var wcs [16]cq.WC
	for n := s.q.SendCQ.Poll(wcs[:]); n > 0; n = s.q.SendCQ.Poll(wcs[:]) {
		s.wcs = append(s.wcs, wcs[:n]...)
	}
	for n := s.q.RecvCQ.Poll(wcs[:]); n > 0; n = s.q.RecvCQ.Poll(wcs[:]) {
		s.rcs = append(s.rcs, wcs[:n]...)
	}
}

func (s *side) done() bool { return s.q.SQ.Len() == 0 && len(s.rcs) >= s.want }

func (s *side) status() string {
	return fmt.Sprintf("state %v, %d sends wait, %d of %d received, last %+v", s.q.State(), s.q.SQ.Len(), len(s.rcs), s.want, s.wcs)
}

func (s *side) check(peer *side) error {
	if !bytes.Equal(s.target.Bytes(), s.model) {
		return fmt.Errorf("target memory differs from the model at %d", firstDiff(s.target.Bytes(), s.model))
	}
	if err := s.checkSends(); err != nil {
		return err
	}
	if len(s.rcs) != len(s.recvs) {
		return fmt.Errorf("%d receive completions, want %d", len(s.rcs), len(s.recvs))
	}
	for i, want := range s.recvs {
		if err := s.checkRecv(i, want); err != nil {
			return err
		}
	}
	at := 0
	for _, l := range []int{targetLen, maxOps * slotLen, maxOps * recvLen, 0} {
		for _, b := range s.mem[at : at+guard] {
			if b != guardByte {
				return fmt.Errorf("a byte outside the regions, near %d, was changed", at)
			}
		}
		at += guard + l
	}
	for _, e := range s.host.Events {
		if e.Type != transport.EventCommEst {
			return fmt.Errorf("unexpected event %v", e.Type)
		}
	}
	return nil
}

func (s *side) checkSends() error {
	next := 0
	for _, x := range s.sent {
		if x.signaled {
			if next == len(s.wcs) {
				return fmt.Errorf("work request %d has no completion", x.id)
			}
			if wc := s.wcs[next]; wc.ID != x.id || wc.Status != cq.Success {
				return fmt.Errorf("completion %d is %d %v, want work request %d", next, wc.ID, wc.Status, x.id)
			}
			next++
		}
		if got := s.local.Bytes()[x.slot:]; x.data != nil && !bytes.Equal(got[:len(x.data)], x.data) {
			return fmt.Errorf("work request %d fetched wrong bytes at %d", x.id, firstDiff(got[:len(x.data)], x.data))
		}
	}
	if next != len(s.wcs) {
		return fmt.Errorf("%d completions, want %d", len(s.wcs), next)
	}
	return nil
}

func (s *side) checkRecv(i int, want recvExpectation) error {
	wc := s.rcs[i]
	if wc.ID != uint64(i) || wc.Status != cq.Success || int(wc.ByteLen) != want.n {
		return fmt.Errorf("receive %d: got %+v, want %d bytes", i, wc, want.n)
	}
	if got := wc.Flags&cq.WithImm != 0; got != want.has || got && wc.Imm != want.imm {
		return fmt.Errorf("receive %d: immediate %x/%v, want %x/%v", i, wc.Imm, got, want.imm, want.has)
	}
	buf := s.recv.Bytes()[i*recvLen : (i+1)*recvLen]
	if !bytes.Equal(buf[:len(want.data)], want.data) {
		return fmt.Errorf("receive %d: wrong bytes at %d", i, firstDiff(buf, want.data))
	}
	for _, b := range buf[len(want.data):] {
		if b != guardByte {
			return fmt.Errorf("receive %d: bytes past the message were changed", i)
		}
	}
	return nil
}

func firstDiff(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
