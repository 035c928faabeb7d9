// Package transport is the protocol engine: the requester and the responder of
// reliable and unreliable connections and of datagrams, with segmentation, ordering, acknowledgement, retry,
// RNR and replay. It does no I/O and asks no clock: it is fed datagrams, work
// requests and the time, and is drained of frames and deadlines.
//
//	   PostSend        Receive(now, datagram)
//	       │                │
//	   ┌───▼────────────────▼───┐
//	   │ Engine                 │   requester.go  builds requests
//	   │   QP: requester        │   completer.go  takes their answers
//	   │       responder        │   responder.go  executes requests
//	   └───┬────────────────┬───┘   response.go   builds answers
//	       │                │
//	cq.Queue.Push    Transmit(now, burst)
//
// Losses: rtt.go and early.go (timers from round trip times), reorder.go (requests
// that come early), scoreboard.go (answers that come early), selective.go (what
// two ends of this package tell each other). recovery.go chooses among them.
//
// The order of calls is free, with one rule: after any call that may make work
// (Receive, Timers, PostSend, Modify) call Transmit until it leaves room in the
// burst, and not later than Deadline call Timers. All methods belong to one
// owner at a time; nothing here takes a lock.
//
// Work and memory per packet and per peer are bounded: answers wait in a queue
// whose length follows from MaxDestRDAtomic, results of atomics in a ring of
// that size, early packets in buffers of a fixed number, and nothing is kept of a
// packet that was refused. Every refused
// packet raises a [Counter].
//
// Clauses: IBA 9.7 (reliable service), 9.9 (errors), A17 (RoCEv2). What peers
// do that the standard leaves open is noted where it matters.
package transport
