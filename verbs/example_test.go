package verbs_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

// Two devices in one process: the first writes into the second's memory. Two
// programs on two hosts do the same; each then tells the other its
// [verbs.Endpoint], and the one that is written to the address and key of its
// memory, by whatever means they have.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	writer, target := open("127.0.1.21"), open("127.0.1.22")
	defer writer.dev.Close()
	defer target.dev.Close()

	// The target's rights are given twice: for the memory and for the pair.
	mem := must(target.pd.RegisterMR(make([]byte, 4096), mr.LocalWrite|mr.RemoteWrite))
	check(target.qp.Connect(writer.qp.Local(), verbs.ConnectConfig{Access: mr.RemoteWrite}))
	check(writer.qp.Connect(target.qp.Local(), verbs.ConnectConfig{}))

	message := must(writer.pd.RegisterMR([]byte("hello, remote memory"), 0))
	check(writer.qp.PostSend(&qp.SendWR{
		ID: 1, Op: qp.RDMAWrite, Flags: qp.Signaled,
		SGE: []mr.SGE{message.SGE(0, message.Len())}, RemoteAddr: mem.Addr(), RKey: mem.Key(),
	}))
	var wcs [1]cq.WC
	must(writer.cq.Wait(ctx, wcs[:]))
	fmt.Println("completion:", wcs[0].Opcode, wcs[0].Status)

	target.dev.Sync() // see what peers have written so far
	fmt.Printf("the target holds %q\n", mem.Bytes()[:20])
	// Output:
	// completion: RDMA WRITE success
	// the target holds "hello, remote memory"
}

// host is a device with one queue pair.
type host struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
}

func open(addr string) (h host) {
	h.dev = must(verbs.Open(verbs.Config{Addr: netip.MustParseAddr(addr)}))
	h.pd = h.dev.AllocPD()
	h.cq = must(h.dev.CreateCQ(16))
	h.qp = must(h.pd.CreateQP(verbs.QPConfig{SendCQ: h.cq, RecvCQ: h.cq}))
	return h
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
