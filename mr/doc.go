// Package mr decides who may touch which bytes.
//
// A protection domain ([Domain], PD) groups memory and queue pairs. A memory
// region ([Region], MR) makes a range of memory reachable under a 32-bit key,
// by local work requests (L_Key) and, as far as its access rights allow, by a
// peer (R_Key); both are the same number here. Keys are random, so that a peer
// that was not told one cannot guess it. All regions of a device are in one
// [Table].
//
//	key ─► Table ─► Region: domain, rights, [VA, VA+length) ─► bytes
//
// Every access goes through [Table.Remote] or [Domain.Local], which check key,
// domain, right and range before a byte is touched; what they refuse is named
// by a [Fault]. The length is compared by subtraction, so that no sum can wrap.
//
// Registration and deregistration may be called concurrently with look-ups.
// Nothing protects the bytes themselves: as with every RDMA device, the
// application must not change memory that a posted work request reads.
//
// Clauses: IBA 10.6 (memory management), 11.2.8 (registration).
package mr
