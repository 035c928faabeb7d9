package sim

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

var hostilePackets = flag.Int("hostile", 0, "packets that TestHostilePacketsAtTheEngine feeds; 0 means 200,000, or 50,000 with -short")

// TestHostilePacketsAtTheEngine feeds an engine with random, truncated, mutated
// and well-formed but unwanted packets, in batches without sending between. It
// must not panic, change a byte that no valid key or receive opens, grow, or
// lose count.
func TestHostilePacketsAtTheEngine(t *testing.T) {
	n := *hostilePackets
	if n == 0 {
		n = 200_000
		if testing.Short() {
			n = 50_000
		}
	}
	for seed := range uint64(4) {
		newFortress(t, seed).besiege(n / 4)
	}
}

// fortress is a host with queue pairs that face an attacker.
//
//	guard | target: the attacker has its key | guard | closed: no remote right | guard | inbox: receives | guard
type fortress struct {
	testing.TB
	seed     uint64
	r        *rand.Rand
	h        *Host
	now      time.Duration
	attacker netip.Addr
	mem      []byte
	target   *mr.Region
	closed   *mr.Region
	inbox    *mr.Region
	before   []byte
	qs       []*transport.QP
	psn      map[*transport.QP]bth.PSN // the next request that would fit, as far as the attacker knows
	burst    *bth.Burst
	fed      uint64
	sent     int
	valid    [][]byte // packets that were sent, to be mutated
}

const wallPart = 8 << 10

func newFortress(t testing.TB, seed uint64) *fortress {
	n := New(seed, Faults{})
	f := &fortress{TB: t, seed: seed, r: n.Rand(), h: n.AddHost(16), attacker: netip.MustParseAddr("198.18.0.99"),
		psn: map[*transport.QP]bth.PSN{}, burst: bth.NewBurst(16, 4096)}
	f.mem = make([]byte, 3*wallPart+4*guard)
	for i := range f.mem {
		f.mem[i] = guardByte
	}
	part := func(i int, access mr.Access) *mr.Region {
		at := guard + i*(wallPart+guard)
		r, err := f.h.PD.Register(f.mem[at:at+wallPart:at+wallPart], access)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	f.target = part(0, mr.LocalWrite|mr.RemoteRead|mr.RemoteWrite|mr.RemoteAtomic)
	f.closed = part(1, mr.LocalWrite)
	f.inbox = part(2, mr.LocalWrite)
	f.before = bytes.Clone(f.mem)
	for _, typ := range []qp.Type{qp.RC, qp.RC, qp.RC, qp.UC, qp.UD} {
		q, err := f.h.Create(f.h.PD, qp.Config{Type: typ, SendCQ: cq.New(256, nil), RecvCQ: cq.New(256, nil), MaxSendWR: 16, MaxRecvWR: 16})
		if err != nil {
			t.Fatal(err)
		}
		f.qs = append(f.qs, q)
		f.revive(q)
	}
	return f
}

// revive connects a pair anew and gives it work.
func (f *fortress) revive(q *transport.QP) {
	psn := bth.NewPSN(0xFFFFF0)
	a := qp.Attr{State: qp.Reset, Port: 1, Access: mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic, QKey: 7,
		AV: qp.AddressVector{DGID: f.attacker}, PathMTU: 256, DestQPN: 99, RQPSN: psn, SQPSN: psn,
		MaxRDAtomic: 3, MaxDestRDAtomic: 3, MinRNRTimer: 1, Timeout: 10, RetryCount: 7, RNRRetry: 7}
	var masks [3]qp.AttrMask
	masks[0] = qp.AttrPKeyIndex | qp.AttrPort
	switch q.Type {
	case qp.UD:
		masks[0] |= qp.AttrQKey
		masks[2] = qp.AttrSQPSN
	default:
		masks[0] |= qp.AttrAccess
		masks[1] = qp.AttrAV | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN
		masks[2] = qp.AttrSQPSN
	}
	if q.Type == qp.RC {
		masks[1] |= qp.AttrMaxDestRDAtomic | qp.AttrMinRNRTimer
		masks[2] |= qp.AttrTimeout | qp.AttrRetryCount | qp.AttrRNRRetry | qp.AttrMaxRDAtomic
	}
	f.modify(q, &a, 0)
	for i, to := range []qp.State{qp.Init, qp.RTR, qp.RTS} {
		a.State = to
		f.modify(q, &a, masks[i])
	}
	f.psn[q] = psn
	for i := range f.r.IntN(5) {
		off := f.r.IntN(wallPart - 1024)
		if err := f.h.PostRecv(q, &qp.RecvWR{ID: uint64(i), SGE: []mr.SGE{f.inbox.SGE(off, 1024)}}); err != nil {
			f.Fatal(err)
		}
	}
	if q.Type != qp.RC {
		return
	}
	ops := []qp.Op{qp.RDMARead, qp.Send, qp.FetchAdd, qp.RDMAWrite}
	for _, i := range f.r.Perm(len(ops)) {
		op := ops[i]
		wr := qp.SendWR{Op: op, Flags: qp.Signaled, SGE: []mr.SGE{f.target.SGE(0, 8)}}
		if op == qp.RDMARead {
			wr.SGE[0].Length = 1000
		}
		if err := f.h.PostSend(q, &wr); err != nil {
			f.Fatal(err)
		}
	}
}

func (f *fortress) modify(q *transport.QP, a *qp.Attr, mask qp.AttrMask) {
	if err := f.h.Modify(f.now, q, a, qp.AttrState|mask); err != nil {
		f.Fatal(err)
	}
}

func (f *fortress) besiege(packets int) {
	var before, after runtime.MemStats
	for i := range packets {
		if i == packets/5 { // queues and burst have grown to what they need
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
		f.assault()
		if f.r.IntN(40) == 0 {
			f.respite()
		}
	}
	f.respite()
	f.valid = nil
	runtime.GC()
	runtime.ReadMemStats(&after)
	// Early packets may fill the engine's spare buffers: 256 of 4.3 kB.
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > (256+1152)<<10 {
		f.Errorf("seed %d: the heap grew by %d bytes", f.seed, grown)
	}
	f.checkMemory()
	f.checkCounters()
	// A READ of the whole target takes 32 packets; each packet can have three.
	if f.sent > int(f.fed)*3*wallPart/256 {
		f.Errorf("seed %d: %d packets were sent for %d", f.seed, f.sent, f.fed)
	}
}

// respite lets the engine send, time pass, and pairs that died come back.
func (f *fortress) respite() {
	f.now += time.Duration(f.r.IntN(3)) * time.Millisecond
	f.h.Timers(f.now)
	for f.h.Pending() {
		f.burst.Reset()
		f.h.Transmit(f.now, f.burst)
		for i := range f.burst.Frames() {
			fr := &f.burst.Frames()[i]
			if len(f.valid) < 200 && f.r.IntN(8) == 0 {
				f.valid = append(f.valid, append(bytes.Clone(fr.Header()), fr.Payload...))
			}
		}
		f.sent += len(f.burst.Frames())
	}
	var wcs [64]cq.WC
	for _, q := range f.qs {
		for q.SendCQ.Poll(wcs[:]) > 0 {
		}
		for q.RecvCQ.Poll(wcs[:]) > 0 {
		}
		if q.SendCQ.Overflowed() || q.RecvCQ.Overflowed() {
			f.Fatalf("seed %d: a completion queue overflowed", f.seed)
		}
		if s := q.State(); s != qp.RTS && s != qp.SQE || f.r.IntN(50) == 0 {
			f.revive(q)
		}
	}
	f.h.Events = f.h.Events[:0]
}

// assault feeds one packet.
func (f *fortress) assault() {
	d := bth.Datagram{Src: f.attacker, Dst: f.h.Addr, SrcPort: 4791, TrafficClass: uint8(f.r.Uint32()), Data: f.packet()}
	switch f.r.IntN(30) {
	case 0:
		d.Src = d.Src.Next()
	case 1:
		d.Dst = d.Dst.Next()
	case 2:
		d.Src = netip.IPv6Loopback()
	case 3:
		d.Src, d.Dst = netip.Addr{}, netip.Addr{}
	}
	f.h.Receive(f.now, &d)
	f.fed++
}

func (f *fortress) packet() []byte {
	switch f.r.IntN(10) {
	case 0: // noise
		b := make([]byte, f.r.IntN(100))
		for i := range b {
			b[i] = byte(f.r.Uint32())
		}
		return b
	case 1: // the engine's own packets, mirrored
		if len(f.valid) > 0 {
			b := bytes.Clone(f.valid[f.r.IntN(len(f.valid))])
			if len(b) >= bth.BTHLen {
				q := f.qs[f.r.IntN(len(f.qs))].QPN
				b[5], b[6], b[7] = byte(q>>16), byte(q>>8), byte(q)
			}
			return f.damage(b)
		}
	}
	if f.r.IntN(15) == 0 {
		return f.selective()
	}
	p := f.request()
	if !p.Opcode.Info().Request {
		p.PSN = bth.NewPSN(0xFFFFF0).Add(f.r.IntN(8) - 1)
	}
	b := p.AppendTo(nil)
	if f.r.IntN(3) == 0 {
		b = f.damage(b)
	}
	return b
}

// selective returns a selective acknowledgement of anything, or an offer of them.
func (f *fortress) selective() []byte {
	q := f.qs[f.r.IntN(len(f.qs))]
	psn := bth.NewPSN(0xFFFFF0).Add(f.r.IntN(10) - 1)
	p := bth.Packet{BTH: bth.BTH{Opcode: bth.SelectiveAck, MigReq: true, PKey: bth.PKeyDefault, DestQP: q.QPN, PSN: psn}}
	if f.r.IntN(4) == 0 {
		p.Opcode, p.PSN, p.AckReq = bth.WriteOnly, f.psn[q].Add(-1-f.r.IntN(3)), true
		p.RETH = bth.RETH{VA: 0x676F_726F_6365_5341, RKey: 0xC8A9_5E1F}
		return p.AppendTo(nil)
	}
	p.AETH.Syndrome = []bth.Syndrome{bth.SyndromeACK, bth.NAKSequence, bth.NAKSequence, bth.NAKInvalid, bth.Syndrome(f.r.Uint32())}[f.r.IntN(5)]
	p.Payload = make([]byte, []int{40, 40, 40, 40, 0, 39, 41, 4096}[f.r.IntN(8)])
	for i := range p.Payload {
		p.Payload[i] = byte(f.r.Uint32() & (f.r.Uint32() >> 8))
	}
	if len(p.Payload) >= 8 && f.r.IntN(8) > 0 {
		base := psn.Add(f.r.IntN(12) - 4).Value()
		copy(p.Payload, []byte{0, 0, 0, p.Payload[3] & 3, 0, byte(base >> 16), byte(base >> 8), byte(base)})
		if f.r.IntN(2) == 0 {
			clear(p.Payload[9:])
		}
	}
	return p.AppendTo(nil)
}

// request returns a packet that is quite plausible.
func (f *fortress) request() bth.Packet {
	q := f.qs[f.r.IntN(len(f.qs))]
	p := bth.Packet{BTH: bth.BTH{Opcode: bth.Opcode(f.r.IntN(0x1E)), MigReq: true, PKey: bth.PKeyDefault, DestQP: q.QPN, AckReq: f.r.IntN(2) == 0, PSN: f.psn[q]}}
	switch f.r.IntN(20) {
	case 0:
		p.Opcode = bth.Opcode(f.r.Uint32())
	case 1:
		p.DestQP = bth.QPN(f.r.Uint32() & 0xFFFFFF)
	case 2:
		p.PKey = bth.PKey(f.r.Uint32())
	}
	if q.Type != qp.RC && f.r.IntN(10) > 0 {
		p.Opcode = p.Opcode.On(q.Type.Transport())
	}
	if q.Type == qp.UD && f.r.IntN(4) > 0 {
		p.Opcode = bth.UDSendOnly
	}
	info := p.Opcode.Info()
	region := []*mr.Region{f.target, f.target, f.target, f.closed, f.inbox}[f.r.IntN(5)]
	size := []int{0, 1, 8, 255, 256, 256, 256, 257, 600, f.r.IntN(2000)}[f.r.IntN(10)]
	va := region.Addr() + uint64(f.r.IntN(wallPart))
	if f.r.IntN(6) == 0 {
		va += uint64(f.r.IntN(2*wallPart)) - wallPart
	}
	length := uint32(size)
	if info.Op == bth.OpWrite && info.Pos == bth.First || info.Op == bth.OpRead || f.r.IntN(10) == 0 {
		length = uint32(f.r.IntN(wallPart))
	}
	if f.r.IntN(40) == 0 {
		length = f.r.Uint32()
	}
	p.RETH = bth.RETH{VA: va, RKey: region.Key(), Length: length}
	p.Atomic = bth.AtomicETH{VA: va &^ 7, RKey: region.Key(), SwapAdd: f.r.Uint64(), Compare: f.r.Uint64()}
	if f.r.IntN(10) == 0 {
		p.RETH.RKey, p.Atomic.RKey, p.Atomic.VA = f.r.Uint32(), f.r.Uint32(), va
	}
	p.FETH = bth.FETH{Selectivity: uint8(f.r.IntN(4)), Placement: uint8(f.r.IntN(16))}
	p.AETH = bth.AETH{Syndrome: []bth.Syndrome{bth.SyndromeACK, bth.SyndromeACK, bth.NAKSequence, bth.SyndromeRNR(1), bth.Syndrome(f.r.Uint32())}[f.r.IntN(5)]}
	p.DETH = bth.DETH{QKey: 7, SrcQP: 3}
	p.InvKey = region.Key()
	if info.Payload {
		p.Payload = bytes.Repeat([]byte{0x77}, size)
	}
	if info.Request {
		switch f.r.IntN(8) {
		case 0, 1:
			p.PSN = p.PSN.Add(f.r.IntN(30) - 20)
		case 2:
			p.PSN = bth.NewPSN(f.r.Uint32())
		default:
			n := 1
			if info.Op == bth.OpRead {
				n = max(1, (int(length)+255)/256)
			}
			f.psn[q] = p.PSN.Add(n)
		}
	}
	return p
}

// damage truncates a packet or changes some of its bits.
func (f *fortress) damage(b []byte) []byte {
	if f.r.IntN(2) == 0 {
		return b[:f.r.IntN(len(b)+1)]
	}
	for range 1 + f.r.IntN(4) {
		if len(b) > 0 {
			b[f.r.IntN(min(len(b), 44))] ^= 1 << f.r.IntN(8)
		}
	}
	return b
}

// checkMemory: guards and the closed region are as they were.
func (f *fortress) checkMemory() {
	for i := range 3 {
		at := i * (wallPart + guard)
		if !bytes.Equal(f.mem[at:at+guard], f.before[at:at+guard]) {
			f.Errorf("seed %d: guard %d was changed", f.seed, i)
		}
	}
	if tail := len(f.mem) - guard; !bytes.Equal(f.mem[tail:], f.before[tail:]) {
		f.Errorf("seed %d: the last guard was changed", f.seed)
	}
	if at := guard + wallPart + guard; !bytes.Equal(f.closed.Bytes(), f.before[at:at+wallPart]) {
		f.Errorf("seed %d: the closed region was changed", f.seed)
	}
	if bytes.Equal(f.target.Bytes(), f.before[guard:guard+wallPart]) || bytes.Equal(f.inbox.Bytes(), f.before[guard+2*(wallPart+guard):][:wallPart]) {
		f.Errorf("seed %d: nothing got through: the siege was none", f.seed)
	}
}

// checkCounters: every packet was let in or has one reason why not, and every
// reason occurred.
func (f *fortress) checkCounters() {
	counted := f.h.Counters[transport.RcvdPkts]
	for _, c := range []transport.Counter{transport.DropTruncated, transport.DropOpcode, transport.DropVersion, transport.DropPad, transport.DropPayload,
		transport.DropQPN, transport.DropTransport, transport.DropState, transport.DropAddress, transport.DropPKey} {
		if counted += f.h.Counters[c]; f.h.Counters[c] == 0 {
			f.Errorf("seed %d: no packet was dropped as %v", f.seed, c)
		}
	}
	if counted != f.fed {
		f.Errorf("seed %d: %d packets fed, %d counted", f.seed, f.fed, counted)
	}
	for _, c := range []transport.Counter{transport.DuplicateRequest, transport.OutOfSequence, transport.SentRNR, transport.RespInvalidRequest,
		transport.RespRemoteAccess, transport.DropStaleResponse, transport.DropOutOfSequence, transport.DropDuplicate, transport.DropReservedNAK,
		transport.PacketSeqErr, transport.ImpliedNAKSeqErr, transport.RcvdRNR, transport.RecvCompletions, transport.ReorderedPkts,
		transport.SentSelectiveAcks, transport.RcvdSelectiveAcks, transport.DropSelectiveAck, transport.RetransmittedSelective, transport.SendWQEs} {
		if f.h.Counters[c] == 0 {
			f.Errorf("seed %d: %v did not occur: the siege is too weak", f.seed, c)
		}
	}
}
