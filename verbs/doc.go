// Package verbs is the public API of the stack: the objects of the RDMA verbs
// (IBA chapter 11) on top of the protocol engine and a link.
//
//	dev, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr("192.0.2.1")})
//	pd := dev.AllocPD()
//	mem, err := pd.RegisterMR(buf, mr.LocalWrite|mr.RemoteWrite)
//	cqu, err := dev.CreateCQ(256)
//	q, err := pd.CreateQP(verbs.QPConfig{Type: qp.RC, SendCQ: cqu, RecvCQ: cqu})
//	err = q.Connect(remote, verbs.ConnectConfig{Access: mr.RemoteWrite})
//	err = q.PostSend(&qp.SendWR{Op: qp.RDMAWrite, SGE: …, RemoteAddr: …, RKey: …, Flags: qp.Signaled})
//	n, err := cqu.Wait(ctx, wcs[:])
//
// A [Device] owns one address, the link that sends from it and the engine that
// runs its queue pairs. Two modes drive them:
//
//   - the event loop, the default: a goroutine receives, runs timers and sends,
//     except while a caller that polls or waits does it in its place;
//   - polled, with [Config.Polled]: no goroutine at all; whoever polls a
//     completion queue, waits on it or calls [Device.Poll] does the work.
//
// On Linux a device watches its interface and its address. When the address goes
// away its connected queue pairs fail, and [Device.Err] says why:
// [Device.QueryPort] tells the rules.
//
// # Concurrency
//
// All methods may be called from several goroutines. One lock per shard (see
// Config.Shards), held for at most a burst of packets, makes its holder the
// owner of link and engine; a post does its own sending under it, so no other
// goroutine has to wake up first. Completion queues are read without that lock.
//
// # Memory
//
// Memory that a posted work request names must not be changed (sends) or read
// (receives, READ) by the application before the completion. Polling the
// completion makes the bytes visible. Memory that a peer writes by RDMA WRITE
// changes at any time; read it after a completion that followed it, or after
// [Device.Sync].
package verbs
