package bth

import "encoding/binary"

// Lengths in bytes.
const (
	BTHLen          = 12
	DETHLen         = 8
	XRCETHLen       = 4
	FETHLen         = 4
	RETHLen         = 16
	AtomicETHLen    = 28
	AETHLen         = 4
	AtomicAckETHLen = 8
	ImmDtLen        = 4
	IETHLen         = 4
	ICRCLen         = 4
	cnpPadLen       = 16

	// MaxHeaderLen bounds BTH and extended headers of any opcode in the table
	// (XRC atomics: 12+4+28).
	MaxHeaderLen = 44
)

// Port is the UDP destination port of RoCEv2, in both directions.
const Port = 4791

// UDP source ports are free to choose; they spread flows over paths and queues.
// This stack sends from 4791 or from one port in 64 of the range that network
// cards use, 0xC000…0xFFFF, so that another end of it can guess what it faces. A
// wrong guess must do no harm.
const (
	FirstSrcPort = 0xC000
	srcPortStep  = 64
	srcPortMark  = 37
	// NumSrcPorts is how many there are beside 4791.
	NumSrcPorts = (1<<16 - FirstSrcPort) / srcPortStep
)

// SrcPort returns source port i, 0 ≤ i < NumSrcPorts.
func SrcPort(i int) uint16 { return uint16(FirstSrcPort + i*srcPortStep + srcPortMark) }

// OwnSrcPort reports whether this stack sends from the port.
func OwnSrcPort(p uint16) bool {
	return p == Port || p >= FirstSrcPort && p%srcPortStep == srcPortMark
}

// BTH is the base transport header (IBA 9.2).
type BTH struct {
	Opcode    Opcode
	Solicited bool  // SE: ask the receiver for a solicited event
	MigReq    bool  // M: path migration state; 1 without migration
	PadCount  uint8 // 0–3
	Version   uint8 // TVer, 0
	PKey      PKey
	FECN      bool
	BECN      bool // set only in a CNP
	DestQP    QPN
	AckReq    bool
	PSN       PSN
}

// AppendTo appends the 12 bytes of the header. Reserved bits are 0.
func (h *BTH) AppendTo(b []byte) []byte {
	return append(b,
		byte(h.Opcode),
		bit(h.Solicited, 7)|bit(h.MigReq, 6)|h.PadCount&3<<4|h.Version&15,
		byte(h.PKey>>8), byte(h.PKey),
		bit(h.FECN, 7)|bit(h.BECN, 6),
		byte(h.DestQP>>16), byte(h.DestQP>>8), byte(h.DestQP),
		bit(h.AckReq, 7),
		byte(h.PSN.v>>16), byte(h.PSN.v>>8), byte(h.PSN.v))
}

// ParseBTH reads the first 12 bytes of b and returns the rest. Reserved bits
// are ignored.
func ParseBTH(b []byte) (BTH, []byte, error) {
	if len(b) < BTHLen {
		return BTH{}, nil, ErrTruncated
	}
	return BTH{
		Opcode:    Opcode(b[0]),
		Solicited: b[1]&0x80 != 0,
		MigReq:    b[1]&0x40 != 0,
		PadCount:  b[1] >> 4 & 3,
		Version:   b[1] & 15,
		PKey:      PKey(binary.BigEndian.Uint16(b[2:])),
		FECN:      b[4]&0x80 != 0,
		BECN:      b[4]&0x40 != 0,
		DestQP:    QPN(binary.BigEndian.Uint32(b[4:]) & mask24),
		AckReq:    b[8]&0x80 != 0,
		PSN:       PSN{binary.BigEndian.Uint32(b[8:]) & mask24},
	}, b[BTHLen:], nil
}

// RETH addresses remote memory (IBA 9.3.3).
type RETH struct {
	VA     uint64 // virtual address at the responder
	RKey   uint32
	Length uint32 // DMA length of the whole message, bytes, at most 2^31
}

// AppendTo appends the 16 bytes of the header.
func (h RETH) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	return binary.BigEndian.AppendUint32(b, h.Length)
}

// ParseRETH reads 16 bytes and returns the rest.
func ParseRETH(b []byte) (RETH, []byte, error) {
	if len(b) < RETHLen {
		return RETH{}, nil, ErrTruncated
	}
	return RETH{be64(b), be32(b[8:]), be32(b[12:])}, b[RETHLen:], nil
}

// AtomicETH is the request of an atomic operation (IBA 9.3.4).
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64 // CmpSwap: the new value; FetchAdd: the addend
	Compare uint64 // CmpSwap: the expected value; FetchAdd: 0
}

// AppendTo appends the 28 bytes of the header.
func (h AtomicETH) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	b = binary.BigEndian.AppendUint64(b, h.SwapAdd)
	return binary.BigEndian.AppendUint64(b, h.Compare)
}

// ParseAtomicETH reads 28 bytes and returns the rest.
func ParseAtomicETH(b []byte) (AtomicETH, []byte, error) {
	if len(b) < AtomicETHLen {
		return AtomicETH{}, nil, ErrTruncated
	}
	return AtomicETH{be64(b), be32(b[8:]), be64(b[12:]), be64(b[20:])}, b[AtomicETHLen:], nil
}

// AETH answers a request (IBA 9.3.5).
type AETH struct {
	Syndrome Syndrome
	MSN      MSN
}

// AppendTo appends the 4 bytes of the header.
func (h AETH) AppendTo(b []byte) []byte {
	return append(b, byte(h.Syndrome), byte(h.MSN.v>>16), byte(h.MSN.v>>8), byte(h.MSN.v))
}

// ParseAETH reads 4 bytes and returns the rest.
func ParseAETH(b []byte) (AETH, []byte, error) {
	if len(b) < AETHLen {
		return AETH{}, nil, ErrTruncated
	}
	return AETH{Syndrome(b[0]), MSN{be32(b) & mask24}}, b[AETHLen:], nil
}

// DETH addresses a datagram (IBA 9.3.2).
type DETH struct {
	QKey  QKey
	SrcQP QPN
}

// AppendTo appends the 8 bytes of the header.
func (h DETH) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(h.QKey))
	return binary.BigEndian.AppendUint32(b, uint32(h.SrcQP)&mask24)
}

// ParseDETH reads 8 bytes and returns the rest.
func ParseDETH(b []byte) (DETH, []byte, error) {
	if len(b) < DETHLen {
		return DETH{}, nil, ErrTruncated
	}
	return DETH{QKey(be32(b)), QPN(be32(b[4:]) & mask24)}, b[DETHLen:], nil
}

// FETH selects what a FLUSH covers (annex A19).
type FETH struct {
	Selectivity uint8 // 0 the range of the RETH, 1 the whole memory region
	Placement   uint8 // bit 0 global visibility, bit 1 persistence
}

// AppendTo appends the 4 bytes of the header.
func (h FETH) AppendTo(b []byte) []byte {
	return append(b, 0, 0, 0, h.Selectivity&3<<4|h.Placement&15)
}

// ParseFETH reads 4 bytes and returns the rest.
func ParseFETH(b []byte) (FETH, []byte, error) {
	if len(b) < FETHLen {
		return FETH{}, nil, ErrTruncated
	}
	return FETH{b[3] >> 4 & 3, b[3] & 15}, b[FETHLen:], nil
}

func bit(v bool, n uint) byte {
	if v {
		return 1 << n
	}
	return 0
}

func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }
