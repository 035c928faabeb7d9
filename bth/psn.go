package bth

// mask24 bounds the numbers of the transport that are 24 bits wide.
const mask24 = 1<<24 - 1

// PSN is a packet sequence number: 24 bits, compared modulo 2^24 (IBA 9.7.1).
// It is a struct so that < and + do not compile; == does.
type PSN struct{ v uint32 }

// NewPSN returns the PSN with the low 24 bits of v.
func NewPSN(v uint32) PSN { return PSN{v & mask24} }

// Value returns the PSN as a number in 0…2^24-1.
func (p PSN) Value() uint32 { return p.v }

// Add returns p advanced by n, which may be negative.
func (p PSN) Add(n int) PSN { return PSN{(p.v + uint32(n)) & mask24} }

// Next returns p advanced by one.
func (p PSN) Next() PSN { return PSN{(p.v + 1) & mask24} }

// Sub returns the signed distance p-q, in -2^23…2^23-1.
func (p PSN) Sub(q PSN) int { return int(int32((p.v-q.v)<<8) >> 8) }

// Before reports whether p lies before q, that is p-q is negative.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

// InWindow reports whether p is one of the n numbers that start at first.
func (p PSN) InWindow(first PSN, n int) bool {
	return int((p.v-first.v)&mask24) < n
}

// MSN is a message sequence number: the count of messages that a responder has
// completed, 24 bits, modulo 2^24 (IBA 9.7.7.1).
type MSN struct{ v uint32 }

// NewMSN returns the MSN with the low 24 bits of v.
func NewMSN(v uint32) MSN { return MSN{v & mask24} }

// Value returns the MSN as a number in 0…2^24-1.
func (m MSN) Value() uint32 { return m.v }

// Next returns m advanced by one.
func (m MSN) Next() MSN { return MSN{(m.v + 1) & mask24} }

// QPN is a queue pair number: 24 bits.
type QPN uint32

// The numbers with a fixed meaning.
const (
	// QPNGSI is the general services interface, QP1: the connection manager.
	QPNGSI QPN = 1
	// QPNMulticast is the destination of every multicast packet.
	QPNMulticast QPN = 0xFFFFFF
)

// PKey is a partition key; bit 15 is full membership.
type PKey uint16

// PKeyDefault is the default partition with full membership.
const PKeyDefault PKey = 0xFFFF

// Matches reports whether a packet with key q may reach a port with key p:
// equal and non-zero low 15 bits, and at least one full member (IBA 10.9.3).
func (p PKey) Matches(q PKey) bool {
	return p&0x7FFF == q&0x7FFF && p&0x7FFF != 0 && (p|q)&0x8000 != 0
}

// QKey is the key of a datagram queue pair. A key with bit 31 set is privileged.
type QKey uint32

// QKeyGSI is the Q_Key of QP1.
const QKeyGSI QKey = 0x80010000
