package bth

import "time"

// Syndrome is byte 0 of an AETH: 2 bits of kind, 5 bits of value (IBA 9.3.5).
type Syndrome uint8

// The syndromes with a fixed value.
const (
	// SyndromeACK is a positive acknowledgement that carries no credit
	// information: the requester relies on RNR NAKs.
	SyndromeACK Syndrome = 0x1F

	NAKSequence      Syndrome = 0x60 // PSN sequence error
	NAKInvalid       Syndrome = 0x61 // invalid request
	NAKRemoteAccess  Syndrome = 0x62 // remote access error
	NAKRemoteOp      Syndrome = 0x63 // remote operational error
	NAKInvalidRDReq  Syndrome = 0x64 // invalid RD request
	syndromeRNR      Syndrome = 0x20
	syndromeKindMask Syndrome = 0xE0
)

// SyndromeKind is the class of a syndrome.
type SyndromeKind uint8

// The classes. KindReserved covers type 10 and any syndrome with bit 7 set.
const (
	KindACK SyndromeKind = iota
	KindRNR
	KindReserved
	KindNAK
)

// Kind returns the class of the syndrome.
func (s Syndrome) Kind() SyndromeKind {
	switch s & syndromeKindMask {
	case 0x00:
		return KindACK
	case 0x20:
		return KindRNR
	case 0x60:
		return KindNAK
	}
	return KindReserved
}

// SyndromeRNR returns the RNR NAK with the 5-bit timer code.
func SyndromeRNR(code uint8) Syndrome { return syndromeRNR | Syndrome(code&31) }

// SyndromeCredits returns the acknowledgement with the 5-bit credit code.
func SyndromeCredits(code uint8) Syndrome { return Syndrome(code & 31) }

// Value returns the low 5 bits: credit code, RNR timer code or NAK code.
func (s Syndrome) Value() uint8 { return uint8(s & 31) }

// Credits returns how many receive work requests an ACK advertises; ok is
// false when the syndrome carries no credit information.
func (s Syndrome) Credits() (n int, ok bool) {
	if s.Kind() != KindACK || s.Value() == 31 {
		return 0, false
	}
	return int(creditTable[s.Value()]), true
}

// RNRDelay returns the time that an RNR NAK asks the requester to wait.
func (s Syndrome) RNRDelay() time.Duration { return RNRTimer(s.Value()) }

// RNRTimer returns the delay of a 5-bit RNR timer code: 0 is 655.36 ms, 1 to
// 31 run from 10 µs to 491.52 ms.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTable[code&31]) * 10 * time.Microsecond
}

// creditTable is indexed by credit code.
var creditTable = [31]uint16{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256,
	384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768}

// rnrTable is indexed by timer code, in units of 10 µs.
var rnrTable = [32]uint32{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256,
	384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}
