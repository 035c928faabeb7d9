package main

import (
	"encoding/binary"
	"time"
)

// frame is an Ethernet frame on its way.
type frame struct {
	buf  []byte // all that the frame may grow to
	data []byte
	in   int           // the port that it came from
	at   time.Duration // when it is through with the line where it waits
	kind kind
}

// kind is what the switch does with a frame.
type kind uint8

const (
	other kind = iota // ARP, neighbour discovery: never damaged
	roce
	cnp
)

const (
	ethLen    = 14
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	rocePort  = 4791
	opCNP     = 0x81
)

func etherType(b []byte) uint16 {
	if len(b) < ethLen {
		return 0
	}
	return binary.BigEndian.Uint16(b[12:])
}

// classify looks into the headers.
func classify(b []byte) kind {
	at := 0 // of the UDP header
	switch etherType(b) {
	case etherIPv4:
		if len(b) < ethLen+20 || b[ethLen+9] != 17 || binary.BigEndian.Uint16(b[ethLen+6:])&0x3fff != 0 {
			return other
		}
		at = ethLen + int(b[ethLen]&15)*4
	case etherIPv6:
		if len(b) < ethLen+40 || b[ethLen+6] != 17 {
			return other
		}
		at = ethLen + 40
	default:
		return other
	}
	switch {
	case len(b) < at+8+1 || binary.BigEndian.Uint16(b[at+2:]) != rocePort:
		return other
	case b[at+8] == opCNP:
		return cnp
	}
	return roce
}

// The ECN bits.
const (
	notECT = 0
	markCE = 3
)

// ecn returns the ECN bits of an IP packet; ok is false for other frames.
func ecn(b []byte) (bits byte, ok bool) {
	switch etherType(b) {
	case etherIPv4:
		if len(b) >= ethLen+20 {
			return b[ethLen+1] & 3, true
		}
	case etherIPv6:
		if len(b) >= ethLen+40 {
			return b[ethLen+1] >> 4 & 3, true
		}
	}
	return 0, false
}

// mark sets the ECN bits of an IP packet to CE, and corrects IPv4's header
// checksum by the difference. The ICRC does not cover the bits.
func mark(b []byte) {
	if etherType(b) == etherIPv6 {
		b[ethLen+1] |= markCE << 4
		return
	}
	before := binary.BigEndian.Uint16(b[ethLen:])
	b[ethLen+1] |= markCE
	after := binary.BigEndian.Uint16(b[ethLen:])
	sum := uint32(^binary.BigEndian.Uint16(b[ethLen+10:])) + uint32(^before) + uint32(after)
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(b[ethLen+10:], ^uint16(sum))
}
