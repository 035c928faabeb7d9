package bth

import (
	"fmt"
	"strings"
)

// String returns the standard's name, e.g. "RC RDMA WRITE First", or the value
// of an opcode that has none.
func (o Opcode) String() string {
	if !o.Valid() {
		return fmt.Sprintf("reserved opcode 0x%02X", uint8(o))
	}
	return table[o].Name
}

// String returns the transport's short name.
func (t Transport) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	case XRC:
		return "XRC"
	case CNPClass:
		return "CNP"
	}
	return "none"
}

// String returns the PSN in decimal.
func (p PSN) String() string { return fmt.Sprint(p.v) }

// String returns the MSN in decimal.
func (m MSN) String() string { return fmt.Sprint(m.v) }

// String returns the meaning of the syndrome.
func (s Syndrome) String() string {
	switch s.Kind() {
	case KindACK:
		if n, ok := s.Credits(); ok {
			return fmt.Sprintf("ACK, %d credits", n)
		}
		return "ACK"
	case KindRNR:
		return fmt.Sprintf("RNR NAK, wait %v", s.RNRDelay())
	case KindNAK:
		return "NAK " + nakName(s)
	}
	return fmt.Sprintf("reserved syndrome 0x%02X", uint8(s))
}

func nakName(s Syndrome) string {
	switch s {
	case NAKSequence:
		return "PSN sequence error"
	case NAKInvalid:
		return "invalid request"
	case NAKRemoteAccess:
		return "remote access error"
	case NAKRemoteOp:
		return "remote operational error"
	case NAKInvalidRDReq:
		return "invalid RD request"
	}
	return fmt.Sprintf("reserved code %d", s.Value())
}

// String returns the packet on one line, for logs and tests.
func (p *Packet) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%v qp 0x%06x psn %v", p.Opcode, uint32(p.DestQP), p.PSN)
	flag := func(on bool, name string) {
		if on {
			s.WriteString(" " + name)
		}
	}
	flag(p.AckReq, "AckReq")
	flag(p.Solicited, "SE")
	flag(p.FECN, "FECN")
	flag(p.BECN, "BECN")
	h := p.Opcode.Info().Headers
	if h&HasDETH != 0 {
		fmt.Fprintf(&s, " qkey 0x%08x from qp 0x%06x", uint32(p.DETH.QKey), uint32(p.DETH.SrcQP))
	}
	if h&HasRETH != 0 {
		fmt.Fprintf(&s, " va 0x%x rkey 0x%08x len %d", p.RETH.VA, p.RETH.RKey, p.RETH.Length)
	}
	if h&HasAtomicETH != 0 {
		fmt.Fprintf(&s, " va 0x%x rkey 0x%08x swap/add %d compare %d", p.Atomic.VA, p.Atomic.RKey, p.Atomic.SwapAdd, p.Atomic.Compare)
	}
	if h&HasAETH != 0 {
		fmt.Fprintf(&s, " [%v msn %v]", p.AETH.Syndrome, p.AETH.MSN)
	}
	if h&HasAtomicAckETH != 0 {
		fmt.Fprintf(&s, " original %d", p.AtomicAck)
	}
	if h&HasImmDt != 0 {
		fmt.Fprintf(&s, " imm 0x%08x", p.Imm)
	}
	if h&HasIETH != 0 {
		fmt.Fprintf(&s, " invalidate 0x%08x", p.InvKey)
	}
	if len(p.Payload) > 0 {
		fmt.Fprintf(&s, " %d bytes", len(p.Payload))
	}
	return s.String()
}
