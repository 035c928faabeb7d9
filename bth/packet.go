package bth

// Packet is one packet as a flat value: the BTH, the extended headers its
// opcode has, and its payload. Headers that the opcode lacks are stale or zero.
type Packet struct {
	BTH
	DETH      DETH
	XRCSRQ    uint32 // XRCETH: 24-bit SRQ number
	FETH      FETH
	RETH      RETH
	Atomic    AtomicETH
	AETH      AETH
	AtomicAck uint64 // AtomicAckETH: the word before the operation
	Imm       uint32 // immediate data, as on the wire read big-endian
	InvKey    uint32 // IETH: the R_Key to invalidate
	Payload   []byte // without pad; aliases the parsed bytes
}

// ParseError says what is wrong with a packet's bytes.
type ParseError uint8

// The ways in which a packet can be malformed.
const (
	ErrTruncated ParseError = iota + 1
	ErrOpcode
	ErrVersion
	ErrPad
	ErrPayload
)

// Error implements error.
func (e ParseError) Error() string {
	switch e {
	case ErrTruncated:
		return "bth: packet is shorter than the headers of its opcode"
	case ErrOpcode:
		return "bth: reserved or unknown opcode"
	case ErrVersion:
		return "bth: transport version (TVer) is not 0"
	case ErrPad:
		return "bth: pad count exceeds the bytes after the headers"
	case ErrPayload:
		return "bth: payload on an opcode that carries none"
	}
	return "bth: malformed packet"
}

// Parse reads a packet from BTH to pad, without its ICRC. The opcode is looked
// up before any length is computed. On error the contents of p are undefined.
func (p *Packet) Parse(b []byte) error {
	h, rest, err := ParseBTH(b)
	if err != nil {
		return err
	}
	p.BTH = h
	info := &table[h.Opcode]
	switch {
	case info.Transport == NoService:
		return ErrOpcode
	case h.Version != 0:
		return ErrVersion
	case len(b) < int(info.HeaderLen):
		return ErrTruncated
	}
	rest = p.parseExt(info.Headers, rest)
	if int(h.PadCount) > len(rest) {
		return ErrPad
	}
	p.Payload = rest[:len(rest)-int(h.PadCount)]
	if len(p.Payload) > 0 && !info.Payload {
		return ErrPayload
	}
	return nil
}

// parseExt reads the headers of the set, whose lengths the caller has checked.
func (p *Packet) parseExt(h Header, b []byte) []byte {
	if h == 0 {
		return b
	}
	if h&HasDETH != 0 {
		p.DETH, b, _ = ParseDETH(b)
	}
	if h&HasXRCETH != 0 {
		p.XRCSRQ, b = be32(b)&mask24, b[XRCETHLen:]
	}
	if h&HasFETH != 0 {
		p.FETH, b, _ = ParseFETH(b)
	}
	if h&HasRETH != 0 {
		p.RETH, b, _ = ParseRETH(b)
	}
	if h&HasAtomicETH != 0 {
		p.Atomic, b, _ = ParseAtomicETH(b)
	}
	if h&HasAETH != 0 {
		p.AETH, b, _ = ParseAETH(b)
	}
	if h&HasAtomicAckETH != 0 {
		p.AtomicAck, b = be64(b), b[AtomicAckETHLen:]
	}
	if h&HasImmDt != 0 {
		p.Imm, b = be32(b), b[ImmDtLen:]
	}
	if h&HasIETH != 0 {
		p.InvKey, b = be32(b), b[IETHLen:]
	}
	if h&HasCNPPad != 0 {
		b = b[cnpPadLen:]
	}
	return b
}

// AppendHeaders appends BTH and extended headers as the opcode asks, at most
// MaxHeaderLen bytes.
func (p *Packet) AppendHeaders(b []byte) []byte {
	b = p.BTH.AppendTo(b)
	h := table[p.Opcode].Headers
	if h == 0 {
		return b
	}
	if h&HasDETH != 0 {
		b = p.DETH.AppendTo(b)
	}
	if h&HasXRCETH != 0 {
		b = append32(b, p.XRCSRQ&mask24)
	}
	if h&HasFETH != 0 {
		b = p.FETH.AppendTo(b)
	}
	if h&HasRETH != 0 {
		b = p.RETH.AppendTo(b)
	}
	if h&HasAtomicETH != 0 {
		b = p.Atomic.AppendTo(b)
	}
	if h&HasAETH != 0 {
		b = p.AETH.AppendTo(b)
	}
	if h&HasAtomicAckETH != 0 {
		b = append32(append32(b, uint32(p.AtomicAck>>32)), uint32(p.AtomicAck))
	}
	if h&HasImmDt != 0 {
		b = append32(b, p.Imm)
	}
	if h&HasIETH != 0 {
		b = append32(b, p.InvKey)
	}
	if h&HasCNPPad != 0 {
		b = append(b, make([]byte, cnpPadLen)...)
	}
	return b
}

// AppendTo appends the whole packet from BTH to pad, without ICRC. It sets
// PadCount to what the payload's length needs (IBA 9.2.4: a multiple of 4).
func (p *Packet) AppendTo(b []byte) []byte {
	p.PadCount = Pad(len(p.Payload))
	b = p.AppendHeaders(b)
	b = append(b, p.Payload...)
	return append(b, zeroPad[:p.PadCount]...)
}

// Pad returns how many bytes fill n up to a multiple of 4.
func Pad(n int) uint8 { return uint8(-n & 3) }

var zeroPad [3]byte

func append32(b []byte, v uint32) []byte {
	return append(b, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}
