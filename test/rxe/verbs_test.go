package rxe_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

func TestVerbsToRXE(t *testing.T)   { testVerbs(t, toRXE) }
func TestVerbsFromRXE(t *testing.T) { testVerbs(t, fromRXE) }

// longSize is a message of many packets.
const longSize = 300_000

func testVerbs(t *testing.T, d direction) {
	l := requireLab(t)
	for _, f := range families {
		for _, mtu := range []int{1024, 4096} {
			t.Run(fmt.Sprintf("%s/mtu=%d", f.name, mtu), func(t *testing.T) {
				x := newExchange(t, d, l, f, mtu)
				t.Run("transfer", func(t *testing.T) { testTransfers(t, x, 0, 1, mtu, mtu+1, 3*mtu, longSize) })
				t.Run("atomic", func(t *testing.T) { testAtomics(t, x) })
				t.Run("PSN wraps in message", func(t *testing.T) { testWrap(t, x) })
				t.Run("inline", func(t *testing.T) { testInline(t, x) })
				t.Run("scattered", func(t *testing.T) { testScattered(t, x) })
				t.Run("in flight", func(t *testing.T) { testInFlight(t, x) })
			})
		}
	}
	t.Run("loss=3", func(t *testing.T) {
		l.lose(t, 3)
		for i, f := range families {
			mtu := []int{1024, 4096}[i]
			t.Run(fmt.Sprintf("%s/mtu=%d", f.name, mtu), func(t *testing.T) {
				x := newExchange(t, d, l, f, mtu)
				for range 2 {
					testTransfers(t, x, 1, 3*mtu, longSize)
				}
				testInFlight(t, x)
				testAtomicsOnce(t, x)
			})
		}
	})
}

// exchange is a connected pair with a region on each side, big enough for all that
// the tests do.
type exchange struct {
	*pair
	mtu    int
	local  region // the requester's
	remote region // the responder's
	lastID uint64
}

const regionSize = 1 << 20

func newExchange(t *testing.T, d direction, l *lab, f family, mtu int) *exchange {
	t.Helper()
	r := l.record(t)
	r.captureHeaders(t)
	x := &exchange{pair: d.open(t, r, f), mtu: mtu}
	x.local = x.requester.register(t, regionSize, allAccess)
	x.remote = x.responder.register(t, regionSize, allAccess)
	x.connect(t, defaultOptions(mtu), defaultOptions(mtu))
	return x
}

// run runs a subtest. One that fails does not spoil those behind it.
func (x *exchange) run(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, f) {
		x.connect(t, defaultOptions(x.mtu), defaultOptions(x.mtu))
	}
}

// id returns a fresh number for a work request.
func (x *exchange) id() uint64 {
	x.lastID++
	return x.lastID
}

// expect waits for completions of a side and compares them.
func expect(t *testing.T, who string, s side, want ...cq.WC) {
	t.Helper()
	got := s.poll(t, len(want), completionLimit)
	if len(got) != len(want) {
		t.Fatalf("%s: %d of %d completions: %+v", who, len(got), len(want), got)
	}
	for i, wc := range got {
		if wc = valid(wc); wc != want[i] {
			t.Fatalf("%s: completion %d of %d is\n%+v, want\n%+v", who, i+1, len(want), wc, want[i])
		}
	}
}

// valid returns what a test may look at in a completion, without the QPN.
func valid(wc cq.WC) cq.WC {
	v := cq.WC{ID: wc.ID, Status: wc.Status}
	if wc.Status != cq.Success {
		return v
	}
	v.Opcode = wc.Opcode
	switch wc.Opcode {
	case cq.OpRecv, cq.OpRecvRDMAWithImm:
		// rxe reports immediate data at the sender too.
		v.ByteLen, v.Flags, v.Imm = wc.ByteLen, wc.Flags&cq.WithImm, wc.Imm
	case cq.OpRDMARead, cq.OpCompSwap, cq.OpFetchAdd:
		v.ByteLen = wc.ByteLen
	}
	return v
}

// expectMemory compares memory of a side.
func expectMemory(t *testing.T, who string, s side, addr uint64, want []byte) {
	t.Helper()
	got := s.read(t, addr, len(want))
	if bytes.Equal(got, want) {
		return
	}
	first, wrong := -1, 0
	for i := range want {
		if got[i] != want[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	t.Fatalf("%s: %d of %d bytes are wrong; the first is number %d, which is %#02x and not %#02x",
		who, wrong, len(want), first, got[first], want[first])
}

// transferOps move bytes; the atomics have a test of their own.
var transferOps = []qp.Op{qp.Send, qp.SendImm, qp.RDMAWrite, qp.RDMAWriteImm, qp.RDMARead}

func takesRecv(op qp.Op) bool { return op == qp.Send || op == qp.SendImm || op == qp.RDMAWriteImm }

func testTransfers(t *testing.T, x *exchange, sizes ...int) {
	for _, n := range sizes {
		for _, op := range transferOps {
			x.run(t, fmt.Sprintf("%v/%d", op, n), func(t *testing.T) {
				x.transfer(t, op, []mr.SGE{x.local.sge(1003, n)}, []mr.SGE{x.remote.sge(2001, n)})
			})
		}
	}
}

// transfer moves random bytes by one work request and looks at all that can be seen
// of it. The bytes at the requester are those of local, the ones at the responder
// those of remote: one entry, or several for a SEND.
func (x *exchange) transfer(t *testing.T, op qp.Op, local, remote []mr.SGE) {
	t.Helper()
	n := int(mr.Total(local))
	data := randomBytes(n)
	source, sink := local, remote
	from, to, sinkRegion := x.requester, x.responder, x.remote
	if op == qp.RDMARead {
		source, sink = remote, local
		from, to, sinkRegion = x.responder, x.requester, x.local
	}
	scatter(t, from, source, data)
	// All around the sink has to stay as it is.
	around := randomBytes(n + 8192)
	to.write(t, sinkRegion.addr, around)

	wr := qp.SendWR{ID: x.id(), Op: op, SGE: local, RemoteAddr: remote[0].Addr, RKey: x.remote.key, Imm: 0x80FF0100 + uint32(x.lastID)}
	x.post(t, wr, remote)
	x.expectDone(t, wr, n)

	for _, e := range sink {
		copy(around[e.Addr-sinkRegion.addr:], data[:e.Length])
		data = data[e.Length:]
	}
	expectMemory(t, "the sink of the transfer", to, sinkRegion.addr, around)
}

// scatter writes data to the memory that the entries name.
func scatter(t *testing.T, s side, sges []mr.SGE, data []byte) {
	t.Helper()
	for _, e := range sges {
		if e.Length > 0 {
			s.write(t, e.Addr, data[:e.Length])
			data = data[e.Length:]
		}
	}
}

// post posts a work request, and before it the receive that it needs.
func (x *exchange) post(t *testing.T, wr qp.SendWR, receive []mr.SGE) {
	t.Helper()
	if takesRecv(wr.Op) {
		recv := qp.RecvWR{ID: wr.ID + recvID}
		if wr.Op != qp.RDMAWriteImm {
			recv.SGE = receive
		}
		x.responder.postRecv(t, recv)
	}
	x.requester.postSend(t, wr)
}

// recvID is what the ID of a receive has more than that of its send.
const recvID = 1 << 40

// expectDone waits until a work request of n bytes is complete on both sides.
func (x *exchange) expectDone(t *testing.T, wr qp.SendWR, n int) {
	t.Helper()
	expect(t, "requester", x.requester, sendDone(wr, n))
	if takesRecv(wr.Op) {
		expect(t, "responder", x.responder, recvDone(wr, n))
	}
}

func sendDone(wr qp.SendWR, n int) cq.WC {
	wc := cq.WC{ID: wr.ID, Opcode: wr.Op.WCOpcode()}
	if wr.Op.Answered() {
		wc.ByteLen = uint32(n)
	}
	return wc
}

func recvDone(wr qp.SendWR, n int) cq.WC {
	wc := cq.WC{ID: wr.ID + recvID, Opcode: cq.OpRecv, ByteLen: uint32(n)}
	if wr.Op == qp.RDMAWriteImm {
		wc.Opcode = cq.OpRecvRDMAWithImm
	}
	if wr.Op.HasImm() {
		wc.Flags, wc.Imm = cq.WithImm, wr.Imm
	}
	return wc
}

// testWrap has PSNs wrap in the midst of a message, in both directions.
func testWrap(t *testing.T, x *exchange) {
	o := defaultOptions(x.mtu)
	o.psn = 0xFFFFFE
	defer x.connect(t, defaultOptions(x.mtu), defaultOptions(x.mtu))
	for _, op := range transferOps {
		x.run(t, op.String(), func(t *testing.T) {
			x.connect(t, o, o)
			n := 5 * x.mtu
			x.transfer(t, op, []mr.SGE{x.local.sge(0, n)}, []mr.SGE{x.remote.sge(0, n)})
			// And once more behind the wrap.
			x.transfer(t, op, []mr.SGE{x.local.sge(0, n)}, []mr.SGE{x.remote.sge(0, n)})
		})
	}
}

// testInline posts data that is changed as soon as it is posted.
func testInline(t *testing.T, x *exchange) {
	for _, op := range []qp.Op{qp.Send, qp.SendImm, qp.RDMAWrite, qp.RDMAWriteImm} {
		for _, n := range []int{1, 16} {
			x.run(t, fmt.Sprintf("%v/%d", op, n), func(t *testing.T) {
				data := randomBytes(n)
				around := randomBytes(64)
				x.responder.write(t, x.remote.addr, around)
				wr := qp.SendWR{ID: x.id(), Op: op, Inline: bytes.Clone(data), RemoteAddr: x.remote.addr + 8, RKey: x.remote.key, Imm: 7}
				x.post(t, wr, []mr.SGE{x.remote.sge(8, n)})
				clear(wr.Inline)
				x.expectDone(t, wr, n)
				copy(around[8:], data)
				expectMemory(t, "the sink", x.responder, x.remote.addr, around)
			})
		}
	}
}

// testScattered has messages in several pieces on goroce's side; the peer in the
// guest takes only one.
func testScattered(t *testing.T, x *exchange) {
	pieces := func(r region, n int) []mr.SGE {
		return []mr.SGE{r.sge(700, n/2-3), r.sge(9, 1), r.sge(0, 0), r.sge(700+n/2, n-n/2+2)}
	}
	for _, n := range []int{40, 3*x.mtu + 5, 4*x.mtu - 1} {
		for _, op := range transferOps {
			local, remote := []mr.SGE{x.local.sge(33, n)}, []mr.SGE{x.remote.sge(65, n)}
			if _, ok := x.requester.(*hostSide); ok {
				local = pieces(x.local, n)
			} else if op == qp.Send || op == qp.SendImm {
				remote = pieces(x.remote, n)
			} else {
				continue // the responder has no say in it
			}
			x.run(t, fmt.Sprintf("%v/%d", op, n), func(t *testing.T) { x.transfer(t, op, local, remote) })
		}
	}
}

// testInFlight posts one work request of each kind again and again without waiting;
// the long ones see to it that the next ones have to.
func testInFlight(t *testing.T, x *exchange) {
	t.Helper()
	const rounds = 3
	const step = longSize + 100
	ops := []qp.Op{qp.RDMARead, qp.FetchAdd, qp.RDMAWrite, qp.Send, qp.RDMAWriteImm, qp.CmpSwap, qp.RDMARead, qp.SendImm}
	lengths := []int{longSize, 8, longSize, 3*x.mtu + 1, 1, 8, 2 * x.mtu, 0}

	// The remote region: what READs read, where WRITEs go, where SENDs go, a word.
	readAt, writeAt, recvAt, wordAt := 0, step, 2*step, 3*step
	readData, writeData := randomBytes(longSize), randomBytes(longSize)
	x.responder.write(t, x.remote.addr+uint64(readAt), readData)
	x.responder.write(t, x.remote.addr+uint64(wordAt+4)&^7, word(0))
	x.requester.write(t, x.local.addr+uint64(writeAt), writeData)
	x.requester.write(t, x.local.addr+uint64(readAt), make([]byte, longSize))

	var sendWant, recvWant []cq.WC
	for range rounds {
		for i, op := range ops {
			n := lengths[i]
			wr := qp.SendWR{ID: x.id(), Op: op, RKey: x.remote.key, Imm: uint32(x.lastID)}
			switch {
			case op == qp.RDMARead:
				wr.SGE, wr.RemoteAddr = []mr.SGE{x.local.sge(readAt, n)}, x.remote.addr+uint64(readAt)
			case op.Atomic():
				wr.SGE, wr.RemoteAddr = []mr.SGE{x.local.sge(wordAt, n)}, (x.remote.addr+uint64(wordAt+4))&^7
				wr.CompareAdd, wr.Swap = 1, 100
			default:
				wr.SGE, wr.RemoteAddr = []mr.SGE{x.local.sge(writeAt, n)}, x.remote.addr+uint64(writeAt)
			}
			x.post(t, wr, []mr.SGE{x.remote.sge(recvAt, n)})
			sendWant = append(sendWant, sendDone(wr, n))
			if takesRecv(op) {
				recvWant = append(recvWant, recvDone(wr, n))
			}
		}
	}
	expect(t, "requester", x.requester, sendWant...)
	expect(t, "responder", x.responder, recvWant...)

	expectMemory(t, "what was read", x.requester, x.local.addr+uint64(readAt), readData)
	expectMemory(t, "what was written", x.responder, x.remote.addr+uint64(writeAt), writeData)
	expectMemory(t, "what was sent", x.responder, x.remote.addr+uint64(recvAt), writeData[:3*x.mtu+1])
	// From 0: add 1; 1 becomes 100; add 1; 101 stays; add 1; 102 stays.
	expectMemory(t, "the word", x.responder, (x.remote.addr+uint64(wordAt+4))&^7, word(102))
}

// word is a number as atomics see it. Both machines are little-endian.
func word(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

func testAtomics(t *testing.T, x *exchange) {
	target := x.remote.addr + 64
	for _, c := range []struct {
		name          string
		op            qp.Op
		before        uint64
		compare, swap uint64 // CompareAdd and Swap
		after         uint64
	}{
		{"add", qp.FetchAdd, 0x0102030405060708, 0x1000000000000001, 0, 0x1102030405060709},
		{"add wraps", qp.FetchAdd, ^uint64(0), 2, 0, 1},
		{"add nothing", qp.FetchAdd, 9, 0, 0, 9},
		{"swap", qp.CmpSwap, 0x0102030405060708, 0x0102030405060708, 0xF1F2F3F4F5F6F7F8, 0xF1F2F3F4F5F6F7F8},
		{"no swap", qp.CmpSwap, 0x0102030405060708, 0x0102030405060707, 0xF1F2F3F4F5F6F7F8, 0x0102030405060708},
		{"swap zero", qp.CmpSwap, 0, 0, 1 << 63, 1 << 63},
	} {
		x.run(t, c.name, func(t *testing.T) {
			around := randomBytes(24)
			copy(around[8:], word(c.before))
			x.responder.write(t, target-8, around)
			result := randomBytes(24)
			x.requester.write(t, x.local.addr, result)

			wr := qp.SendWR{
				ID: x.id(), Op: c.op, SGE: []mr.SGE{x.local.sge(8, 8)}, RemoteAddr: target, RKey: x.remote.key,
				CompareAdd: c.compare, Swap: c.swap,
			}
			x.post(t, wr, nil)
			x.expectDone(t, wr, 8)

			copy(result[8:], word(c.before))
			expectMemory(t, "the result", x.requester, x.local.addr, result)
			copy(around[8:], word(c.after))
			expectMemory(t, "the word", x.responder, target-8, around)
		})
	}
}

// testAtomicsOnce sees to it that each of many atomics is executed exactly once and
// in order.
func testAtomicsOnce(t *testing.T, x *exchange) {
	t.Helper()
	const total, batch = 320, rdAtomic
	target := x.remote.addr + 8
	x.responder.write(t, target, word(0))
	for done := 0; done < total; done += batch {
		var want []cq.WC
		var olds []byte
		for i := range batch {
			wr := qp.SendWR{ID: x.id(), Op: qp.FetchAdd, SGE: []mr.SGE{x.local.sge(8*i, 8)}, RemoteAddr: target, RKey: x.remote.key, CompareAdd: 3}
			x.post(t, wr, nil)
			want = append(want, sendDone(wr, 8))
			olds = append(olds, word(uint64(3*(done+i)))...)
		}
		expect(t, "requester", x.requester, want...)
		expectMemory(t, "the results", x.requester, x.local.addr, olds)
	}
	expectMemory(t, "the sum", x.responder, target, word(3*total))
}
