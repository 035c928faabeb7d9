package cq

import (
	"fmt"

	"github.com/goroce/goroce/bth"
)

// Status is what became of a work request; the values are those of the verbs
// API (IBA 10.7.3, 11.6.2).
type Status uint8

// The statuses.
const (
	Success        Status = 0
	LocLenErr      Status = 1  // message longer than the receive buffer, or a wrong response length
	LocQPOpErr     Status = 2  // work request malformed for the queue pair
	LocProtErr     Status = 4  // local key, domain, right or range wrong
	WRFlushErr     Status = 5  // the queue pair was in error
	MWBindErr      Status = 6  // memory window binding refused
	BadRespErr     Status = 7  // the responder's answer made no sense
	LocAccessErr   Status = 8  // protection error on a WRITE with immediate
	RemInvReqErr   Status = 9  // the responder found the request invalid
	RemAccessErr   Status = 10 // the responder refused access to its memory
	RemOpErr       Status = 11 // the responder could not complete the request
	RetryExcErr    Status = 12 // no answer after all retries
	RNRRetryExcErr Status = 13 // receiver not ready after all RNR retries
	RemAbortErr    Status = 16
	FatalErr       Status = 19
	GeneralErr     Status = 21
)

// String returns the verbs name of the status with its meaning.
func (s Status) String() string {
	if t, ok := statusText[s]; ok {
		return t
	}
	return fmt.Sprintf("status %d", uint8(s))
}

var statusText = map[Status]string{
	Success: "success", LocLenErr: "local length error", LocQPOpErr: "local QP operation error",
	LocProtErr: "local protection error", WRFlushErr: "work request flushed", MWBindErr: "memory window bind error",
	BadRespErr: "bad response", LocAccessErr: "local access error", RemInvReqErr: "remote invalid request",
	RemAccessErr: "remote access error", RemOpErr: "remote operation error",
	RetryExcErr: "transport retry counter exceeded", RNRRetryExcErr: "RNR retry counter exceeded",
	RemAbortErr: "remote aborted", FatalErr: "fatal error", GeneralErr: "general error",
}

// Opcode says what completed; the values are those of the verbs API.
type Opcode uint8

// The completion opcodes.
const (
	OpSend            Opcode = 0
	OpRDMAWrite       Opcode = 1
	OpRDMARead        Opcode = 2
	OpCompSwap        Opcode = 3
	OpFetchAdd        Opcode = 4
	OpBindMW          Opcode = 5
	OpLocalInv        Opcode = 6
	OpFlush           Opcode = 8
	OpAtomicWrite     Opcode = 9
	OpRegMR           Opcode = 32
	OpRecv            Opcode = 128
	OpRecvRDMAWithImm Opcode = 129
)

// String returns the verbs name of the opcode.
func (o Opcode) String() string {
	if t, ok := opcodeText[o]; ok {
		return t
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

var opcodeText = map[Opcode]string{
	OpSend: "SEND", OpRDMAWrite: "RDMA WRITE", OpRDMARead: "RDMA READ", OpCompSwap: "COMPARE SWAP", OpFetchAdd: "FETCH ADD",
	OpBindMW: "BIND MW", OpLocalInv: "LOCAL INV", OpFlush: "FLUSH", OpAtomicWrite: "ATOMIC WRITE", OpRegMR: "REG MR",
	OpRecv: "RECV", OpRecvRDMAWithImm: "RECV RDMA WITH IMM",
}

// Flags say which fields of a WC are valid; the values are those of verbs.
type Flags uint8

// The flags.
const (
	WithGRH Flags = 1
	WithImm Flags = 2
	WithInv Flags = 8
)

// WC is a work completion. With a status other than Success only ID, Status,
// QPN and VendorErr are valid.
type WC struct {
	ID        uint64 // of the work request
	Status    Status
	Opcode    Opcode
	Flags     Flags
	VendorErr uint32 // the NAK syndrome behind a remote error, else 0
	ByteLen   uint32 // bytes received (UD: plus 40), written with immediate, read
	Imm       uint32 // immediate data, as a number
	InvKey    uint32 // the R_Key that a SEND with invalidate ended
	QPN       bth.QPN
	SrcQP     bth.QPN // UD only
}

// Recv reports whether the completion belongs to a receive work request. It is
// valid for successful completions.
func (w *WC) Recv() bool { return w.Opcode >= OpRecv }
