// Package bth is the wire format of the RoCEv2 transport: it turns bytes into
// values and values into bytes, and does nothing else.
//
// A RoCEv2 packet is an IP/UDP datagram to port 4791 that holds
//
//	BTH (12) | extended headers, by opcode (0–28) | payload | pad (0–3) | ICRC (4)
//
// What follows the BTH is a property of its opcode. The opcode table
// ([Opcode.Info]) says so as data; parsing, building and every length check
// read that table, and nothing else in the module switches on opcode ranges.
//
// The package holds:
//
//   - [Opcode], its table, and [Packet]: one parsed packet as a flat value;
//   - the header types [BTH], [RETH], [AETH], [AtomicETH], [DETH], [FETH];
//   - [PSN] and [MSN], 24-bit numbers that wrap;
//   - the invariant CRC: [Path.ICRC] to seal, [Path.CheckICRC] to check, and
//     [CheckDatagram] for a whole captured IP packet;
//   - [Burst], [Frame] and [Datagram]: the unit in which packets travel between
//     the protocol engine and a link.
//
// Multi-byte fields are big-endian, except the ICRC, which is little-endian.
// Parsing is total: any bytes give a value or an error and never a panic.
// Nothing here allocates, except the String methods in text.go.
//
// Clauses in comments are those of the InfiniBand Architecture Specification,
// Volume 1: BTH 9.2, extended headers 9.3, ICRC 7.8.1, RoCEv2 annex A17.
package bth
