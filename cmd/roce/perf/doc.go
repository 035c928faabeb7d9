// Package perf measures bandwidth and latency as perftest's ib_* tools do, and
// talks to them: over TCP about the test, over RoCE in it.
//
//	Config ─► Run ─► meet over TCP ─► queue pairs ─► measured loop ─► reports
//	          session.go  wire.go       session.go     bandwidth.go     report.go
//	                      conn.go                      latency.go
//
// Either side may be an ib_* tool. Two of our own ends tell each other so in the
// padding of the version record; then they also compare their options before the
// test, and check each other's bytes after it (verify.go).
//
// The measured loops allocate nothing. A watchdog beside them (watch.go) ends them
// when the peer has gone or nothing moves any more.
package perf
