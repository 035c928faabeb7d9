// Package qp is the queue pair as the application sees it: its type, state and
// attributes, the legal transitions, and the queues of work requests.
//
// A [Pair] is data with rules. The engine in package transport walks its queues
// and keeps the packet-level state (PSNs, timers) to itself; Pair knows nothing
// of packets.
//
//	Modify ─► state table (IBA 10.3.1) ─► Attr
//	PostSend ─► checks ─► SendQueue ─► engine ─► retire
//	PostRecv ─► checks ─► RecvQueue ─► engine ─► consumed by an arriving message
//
// A Pair is not safe for concurrent use: it belongs to whoever owns the shard.
// Queues grow up to the capacity asked for and never shrink, so an idle pair is
// small and a busy one allocates nothing.
package qp
