package bth

// Opcode is byte 0 of the BTH: 3 bits of transport, 5 bits of operation.
type Opcode uint8

// Opcodes of reliable connection (RC) and of congestion notification. The
// other transports add their base: see [Opcode.On].
const (
	SendFirst         Opcode = 0x00
	SendMiddle        Opcode = 0x01
	SendLast          Opcode = 0x02
	SendLastImm       Opcode = 0x03
	SendOnly          Opcode = 0x04
	SendOnlyImm       Opcode = 0x05
	WriteFirst        Opcode = 0x06
	WriteMiddle       Opcode = 0x07
	WriteLast         Opcode = 0x08
	WriteLastImm      Opcode = 0x09
	WriteOnly         Opcode = 0x0A
	WriteOnlyImm      Opcode = 0x0B
	ReadRequest       Opcode = 0x0C
	ReadRespFirst     Opcode = 0x0D
	ReadRespMiddle    Opcode = 0x0E
	ReadRespLast      Opcode = 0x0F
	ReadRespOnly      Opcode = 0x10
	Acknowledge       Opcode = 0x11
	AtomicAcknowledge Opcode = 0x12
	CmpSwap           Opcode = 0x13
	FetchAdd          Opcode = 0x14
	SendLastInv       Opcode = 0x16
	SendOnlyInv       Opcode = 0x17
	Flush             Opcode = 0x1C
	AtomicWrite       Opcode = 0x1D

	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65

	CNP Opcode = 0x81

	// SelectiveAck is of the range that the standard leaves to manufacturers
	// (0xC0–0xFF): an ACK or NAK of package transport that tells in its payload
	// what has come behind a gap. It goes to peers that have asked for it.
	SelectiveAck Opcode = 0xC8
)

// Transport is the service an opcode belongs to; its value is the opcode base.
type Transport uint8

// The transports of the opcode table.
const (
	RC        Transport = 0x00
	UC        Transport = 0x20
	UD        Transport = 0x60
	CNPClass  Transport = 0x80
	XRC       Transport = 0xA0
	NoService Transport = 0xFF // opcode without an entry
)

// On returns the opcode of the same operation on transport t. It is meant for
// the RC constants; whether the result exists is [Opcode.Valid].
func (o Opcode) On(t Transport) Opcode { return o&0x1F | Opcode(t) }

// Position is the place of a packet in its message.
type Position uint8

// Positions: First and Middle carry exactly the path MTU.
const (
	Only Position = iota
	First
	Middle
	Last
)

// Starts reports whether the packet begins a message.
func (p Position) Starts() bool { return p == First || p == Only }

// Ends reports whether the packet ends a message.
func (p Position) Ends() bool { return p == Last || p == Only }

// Operation is what a packet does, whatever its transport and position.
type Operation uint8

// The operations. OpSend to OpAtomicWrite are requests, the rest answers.
const (
	OpNone Operation = iota
	OpSend
	OpWrite
	OpRead
	OpCmpSwap
	OpFetchAdd
	OpFlush
	OpAtomicWrite
	OpReadResponse
	OpAcknowledge
	OpAtomicAck
	OpCNP
	OpSelectiveAck
)

// Header is a set of extended headers. The headers of a packet follow its BTH
// in the order of these constants, lowest first.
type Header uint16

// The extended headers (IBA 9.3), in wire order.
const (
	HasDETH Header = 1 << iota
	HasXRCETH
	HasFETH
	HasRETH
	HasAtomicETH
	HasAETH
	HasAtomicAckETH
	HasImmDt
	HasIETH
	HasCNPPad // the 16 reserved bytes of a CNP
)

// headerLens gives the length of each header, by bit number.
var headerLens = [...]uint8{DETHLen, XRCETHLen, FETHLen, RETHLen, AtomicETHLen, AETHLen, AtomicAckETHLen, ImmDtLen, IETHLen, cnpPadLen}

// Info is one row of the opcode table.
type Info struct {
	Name      string // the standard's words, e.g. "RC SEND First"
	Transport Transport
	Op        Operation
	Pos       Position
	Headers   Header
	HeaderLen uint8 // BTH and extended headers, bytes
	Payload   bool  // may carry payload
	Request   bool  // goes from requester to responder
	// TakesRecv: the packet needs a receive work request: the start of a SEND,
	// the end of a WRITE with immediate.
	TakesRecv bool
}

// Valid reports whether the opcode has an entry in the table.
func (o Opcode) Valid() bool { return table[o].Transport != NoService }

// Info returns the opcode's row. For an opcode without an entry its Transport
// is NoService and its HeaderLen that of the BTH.
func (o Opcode) Info() *Info { return &table[o] }

// row is an operation before it is placed on a transport.
type row struct {
	op        Opcode
	name      string
	kind      Operation
	pos       Position
	headers   Header
	payload   bool
	takesRecv bool
	uc        bool // exists on UC too
}

var rows = [...]row{
	{SendFirst, "SEND First", OpSend, First, 0, true, true, true},
	{SendMiddle, "SEND Middle", OpSend, Middle, 0, true, false, true},
	{SendLast, "SEND Last", OpSend, Last, 0, true, false, true},
	{SendLastImm, "SEND Last with Immediate", OpSend, Last, HasImmDt, true, false, true},
	{SendOnly, "SEND Only", OpSend, Only, 0, true, true, true},
	{SendOnlyImm, "SEND Only with Immediate", OpSend, Only, HasImmDt, true, true, true},
	{WriteFirst, "RDMA WRITE First", OpWrite, First, HasRETH, true, false, true},
	{WriteMiddle, "RDMA WRITE Middle", OpWrite, Middle, 0, true, false, true},
	{WriteLast, "RDMA WRITE Last", OpWrite, Last, 0, true, false, true},
	{WriteLastImm, "RDMA WRITE Last with Immediate", OpWrite, Last, HasImmDt, true, true, true},
	{WriteOnly, "RDMA WRITE Only", OpWrite, Only, HasRETH, true, false, true},
	{WriteOnlyImm, "RDMA WRITE Only with Immediate", OpWrite, Only, HasRETH | HasImmDt, true, true, true},
	{ReadRequest, "RDMA READ Request", OpRead, Only, HasRETH, false, false, false},
	{ReadRespFirst, "RDMA READ Response First", OpReadResponse, First, HasAETH, true, false, false},
	{ReadRespMiddle, "RDMA READ Response Middle", OpReadResponse, Middle, 0, true, false, false},
	{ReadRespLast, "RDMA READ Response Last", OpReadResponse, Last, HasAETH, true, false, false},
	{ReadRespOnly, "RDMA READ Response Only", OpReadResponse, Only, HasAETH, true, false, false},
	{Acknowledge, "Acknowledge", OpAcknowledge, Only, HasAETH, false, false, false},
	{AtomicAcknowledge, "ATOMIC Acknowledge", OpAtomicAck, Only, HasAETH | HasAtomicAckETH, false, false, false},
	{CmpSwap, "CmpSwap", OpCmpSwap, Only, HasAtomicETH, false, false, false},
	{FetchAdd, "FetchAdd", OpFetchAdd, Only, HasAtomicETH, false, false, false},
	{SendLastInv, "SEND Last with Invalidate", OpSend, Last, HasIETH, true, false, false},
	{SendOnlyInv, "SEND Only with Invalidate", OpSend, Only, HasIETH, true, true, false},
	{Flush, "FLUSH", OpFlush, Only, HasFETH | HasRETH, false, false, false},
	{AtomicWrite, "ATOMIC WRITE", OpAtomicWrite, Only, HasRETH, true, false, false},
}

var table = buildTable()

func buildTable() (t [256]Info) {
	for i := range t {
		t[i] = Info{Name: "reserved", Transport: NoService, HeaderLen: BTHLen}
	}
	for _, r := range rows {
		t[r.op.On(RC)] = r.info(RC, "RC ", 0)
		if r.uc {
			t[r.op.On(UC)] = r.info(UC, "UC ", 0)
		}
		xrc := Header(0)
		if r.request() {
			xrc = HasXRCETH // answers carry none (annex A14)
		}
		t[r.op.On(XRC)] = r.info(XRC, "XRC ", xrc)
	}
	for _, o := range []Opcode{UDSendOnly, UDSendOnlyImm} {
		t[o] = rows[o&0x1F].info(UD, "UD ", HasDETH)
	}
	t[CNP] = Info{Name: "CNP", Transport: CNPClass, Op: OpCNP, Headers: HasCNPPad, HeaderLen: BTHLen + cnpPadLen}
	t[SelectiveAck] = Info{Name: "goroce Selective Acknowledge", Transport: RC, Op: OpSelectiveAck, Headers: HasAETH, HeaderLen: BTHLen + AETHLen, Payload: true}
	return t
}

func (r row) request() bool { return r.kind < OpReadResponse }

func (r row) info(t Transport, prefix string, extra Header) Info {
	h := r.headers | extra
	return Info{
		Name: prefix + r.name, Transport: t, Op: r.kind, Pos: r.pos,
		Headers: h, HeaderLen: uint8(BTHLen + h.Len()),
		Payload: r.payload, Request: r.request(), TakesRecv: r.takesRecv,
	}
}

// Len returns the length of the headers in the set, in bytes. Where one header
// of a packet starts follows from those of lower value: BTHLen + (set&(h-1)).Len().
func (h Header) Len() (n int) {
	for i, l := range headerLens {
		if h&(1<<i) != 0 {
			n += int(l)
		}
	}
	return n
}
