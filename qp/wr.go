package qp

import (
	"fmt"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
)

// Op is the operation of a send work request; values as in the verbs API.
type Op uint8

// The operations.
const (
	RDMAWrite    Op = 0
	RDMAWriteImm Op = 1
	Send         Op = 2
	SendImm      Op = 3
	RDMARead     Op = 4
	CmpSwap      Op = 5
	FetchAdd     Op = 6
	LocalInv     Op = 7
	BindMW       Op = 8
	SendInv      Op = 9
	Flush        Op = 14
	AtomicWrite  Op = 15
	RegMR        Op = 32 // fast registration, a kernel verb
)

// opInfo is one row of the operation table.
type opInfo struct {
	name string
	comp cq.Opcode
	kind bth.Operation
	imm  bool
	// types that have the operation
	rc, uc, ud bool
}

var ops = [...]opInfo{
	RDMAWrite:    {"RDMA WRITE", cq.OpRDMAWrite, bth.OpWrite, false, true, true, false},
	RDMAWriteImm: {"RDMA WRITE WITH IMM", cq.OpRDMAWrite, bth.OpWrite, true, true, true, false},
	Send:         {"SEND", cq.OpSend, bth.OpSend, false, true, true, true},
	SendImm:      {"SEND WITH IMM", cq.OpSend, bth.OpSend, true, true, true, true},
	RDMARead:     {"RDMA READ", cq.OpRDMARead, bth.OpRead, false, true, false, false},
	CmpSwap:      {"COMPARE SWAP", cq.OpCompSwap, bth.OpCmpSwap, false, true, false, false},
	FetchAdd:     {"FETCH ADD", cq.OpFetchAdd, bth.OpFetchAdd, false, true, false, false},
	LocalInv:     {"LOCAL INV", cq.OpLocalInv, bth.OpNone, false, true, true, false},
	BindMW:       {"BIND MW", cq.OpBindMW, bth.OpNone, false, true, true, false},
	SendInv:      {"SEND WITH INV", cq.OpSend, bth.OpSend, false, true, false, false},
	Flush:        {"FLUSH", cq.OpFlush, bth.OpFlush, false, true, false, false},
	AtomicWrite:  {"ATOMIC WRITE", cq.OpAtomicWrite, bth.OpAtomicWrite, false, true, false, false},
	RegMR:        {"REG MR", cq.OpRegMR, bth.OpNone, false, true, true, false},
}

// Kind returns what the operation does on the wire.
func (o Op) Kind() bth.Operation { return ops[o].kind }

// WCOpcode returns the opcode of the operation's completion.
func (o Op) WCOpcode() cq.Opcode { return ops[o].comp }

// HasImm reports whether the operation carries immediate data.
func (o Op) HasImm() bool { return ops[o].imm }

// Answered reports whether the operation completes by its own response, as
// READ and the atomics do, instead of by an acknowledgement.
func (o Op) Answered() bool { k := ops[o].kind; return k >= bth.OpRead && k <= bth.OpAtomicWrite }

// Local reports whether the operation sends nothing: it changes a key when its
// turn comes in the send queue.
func (o Op) Local() bool { return ops[o].kind == bth.OpNone }

// Atomic reports whether the operation is CmpSwap or FetchAdd.
func (o Op) Atomic() bool { return o == CmpSwap || o == FetchAdd }

// String returns the verbs name of the operation.
func (o Op) String() string {
	if int(o) < len(ops) && ops[o].name != "" {
		return ops[o].name
	}
	return fmt.Sprintf("op %d", uint8(o))
}

func (o Op) on(t Type) bool {
	if int(o) >= len(ops) {
		return false
	}
	switch t {
	case RC:
		return ops[o].rc
	case UC:
		return ops[o].uc
	}
	return ops[o].ud
}

// Flags modify a send work request; values as in the verbs API.
type Flags uint8

// The flags. Inline data is given in SendWR.Inline and needs no flag.
const (
	Fence     Flags = 1 << 0 // start only after all earlier READs and atomics have completed
	Signaled  Flags = 1 << 1 // generate a completion on success too
	Solicited Flags = 1 << 2 // set SE: the receiver's completion is a solicited one
)

// MaxMessage is the longest message of a connected pair: 2^31 bytes (IBA 9.4.3).
const MaxMessage = 1 << 31

// SendWR is a send work request. PostSend copies it, including SGE and Inline;
// the memory that SGE names must stay unchanged until the completion.
type SendWR struct {
	ID    uint64 // returned in the completion
	Op    Op
	Flags Flags
	SGE   []mr.SGE
	// Inline, when not nil, is the message itself instead of SGE: copied at
	// the post, so the caller may reuse it at once, and without a key.
	Inline []byte
	Imm    uint32 // with SendImm and RDMAWriteImm

	RemoteAddr uint64 // WRITE, READ, atomics
	RKey       uint32
	CompareAdd uint64 // CmpSwap: the expected value; FetchAdd: the addend
	Swap       uint64 // CmpSwap: the new value

	InvKey      uint32   // SendInv: the peer's key to invalidate; LocalInv: our own
	Bind        *Bind    // BindMW
	Reg         *FastReg // RegMR
	FlushLength uint32   // Flush: bytes from RemoteAddr on
	FlushType   FlushType
	FlushRegion bool // Flush: the whole region instead of the range

	AH         *AddressVector // UD: the destination, copied
	RemoteQPN  bth.QPN
	RemoteQKey bth.QKey
}

// Bind says what BindMW binds: see mr.Window.Bind.
type Bind struct {
	Window *mr.Window
	Region *mr.Region
	Addr   uint64
	Length uint64
	Access mr.Access
	Key    uint8 // type 2: low byte of the new key
}

// FastReg says what RegMR registers: see mr.FastRegion.Register.
type FastReg struct {
	Region *mr.FastRegion
	Mem    []byte
	Access mr.Access
	Key    uint32
}

// FlushType says what a FLUSH makes sure of (annex A19).
type FlushType uint8

// The flush types, which may be combined.
const (
	FlushGlobal     FlushType = 1 << 0 // visible to everyone at the responder
	FlushPersistent FlushType = 1 << 1 // and survives a power failure
)

// RecvWR is a receive work request: where the next SEND goes. PostRecv copies
// it. The buffers of a UD pair start with 40 bytes for the GRH.
type RecvWR struct {
	ID  uint64
	SGE []mr.SGE
}

// SendWQE is a work request in the send queue.
type SendWQE struct {
	SendWR
	Length uint32 // bytes of the message
	Dest   *Dest  // UD
	// Track is the engine's own.
	Track Track
	sge   []mr.SGE
	data  []byte
}

// Dest is where a UD message goes. It stays with its place in the queue, apart from
// the rest: other pairs, of which there may be thousands, do without.
type Dest struct {
	AV   AddressVector
	Path bth.Path // the engine's own
}

// Track is what the engine notes about a send work request.
type Track struct {
	First   bth.PSN // of the message
	Packets int     // PSNs that the message takes; 0 before it is started
	Piece   int     // READ: packets that one request asks for at most, but for a repeated one
	Got     int     // answered packets of a READ or atomic, without a gap
	Cut     bool    // READ: a request for a part of it did not end where one does
}

// RecvWQE is a work request in a receive queue.
type RecvWQE struct {
	ID  uint64
	SGE []mr.SGE
}

// CopyFrom makes w an independent copy of v, reusing w's memory.
func (w *RecvWQE) CopyFrom(v *RecvWQE) {
	w.ID = v.ID
	w.SGE = append(w.SGE[:0], v.SGE...)
}
