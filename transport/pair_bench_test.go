package transport_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// wired is two engines with one connection each to the other, joined by a
// perfect wire of no length.
type wired struct {
	end     [2]wireEnd
	bytes   []byte
	packets int
}

type wireEnd struct {
	e     *transport.Engine
	q     *transport.QP
	addr  netip.Addr
	mem   *mr.Region
	burst *bth.Burst
}

func newWired(t testing.TB, mtu int) *wired {
	w := &wired{bytes: make([]byte, 0, 8192)}
	for i, addr := range []netip.Addr{here, there} {
		table := mr.NewTable(16, counter(uint32(i)))
		pd := table.NewDomain()
		mem, err := pd.Register(make([]byte, 128<<10), mr.LocalWrite|mr.RemoteRead|mr.RemoteWrite|mr.RemoteAtomic)
		if err != nil {
			t.Fatal(err)
		}
		e := transport.New(transport.Config{Local: addr, Random: counter(uint32(i)), MaxQP: 10, OnEvent: func(transport.Event) {},
			Congestion: func(int) congestion.Controller { return congestion.Fixed(256) }})
		q, err := e.Create(pd, qp.Config{Type: qp.RC, SendCQ: cq.New(64, nil), RecvCQ: cq.New(64, nil)})
		if err != nil {
			t.Fatal(err)
		}
		w.end[i] = wireEnd{e: e, q: q, addr: addr, mem: mem, burst: bth.NewBurst(64, 4096)}
	}
	for i := range w.end {
		a := qp.Attr{Port: 1, Access: mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic,
			AV: qp.AddressVector{DGID: w.end[1-i].addr}, PathMTU: mtu, DestQPN: w.end[1-i].q.QPN,
			MaxRDAtomic: 16, MaxDestRDAtomic: 16, Timeout: 14, RetryCount: 7, RNRRetry: 7, MinRNRTimer: 12}
		for _, step := range []struct {
			state qp.State
			mask  qp.AttrMask
		}{{qp.Init, initMask}, {qp.RTR, rtrMask}, {qp.RTS, rtsMask}} {
			a.State = step.state
			if err := w.end[i].e.Modify(0, w.end[i].q, &a, step.mask); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w
}

// run carries packets until neither end has any.
func (w *wired) run(now time.Duration) {
	for idle := 0; idle < 2; {
		for i := range w.end {
			from, to := &w.end[i], &w.end[1-i]
			from.burst.Reset()
			from.e.Transmit(now, from.burst)
			idle++
			for j := range from.burst.Frames() {
				f := &from.burst.Frames()[j]
				w.bytes = append(append(w.bytes[:0], f.Header()...), f.Payload...)
				w.bytes = append(w.bytes, "\x00\x00\x00"[:bth.Pad(len(f.Payload))]...)
				to.e.Receive(now, &bth.Datagram{Src: from.addr, Dst: to.addr, Data: w.bytes})
				w.packets++
				idle = 0
			}
		}
	}
}

// do posts one request at the first end, with a receive at the other if it
// needs one, and takes the completions.
func (w *wired) do(tb testing.TB, wr *qp.SendWR, recv *qp.RecvWR) {
	a, b := &w.end[0], &w.end[1]
	if recv != nil {
		if err := b.e.PostRecv(b.q, recv); err != nil {
			tb.Fatal(err)
		}
	}
	if err := a.e.PostSend(a.q, wr); err != nil {
		tb.Fatal(err)
	}
	w.run(0)
	var wc [1]cq.WC
	if a.q.SendCQ.Poll(wc[:]) != 1 || wc[0].Status != cq.Success {
		tb.Fatalf("completion %+v", wc)
	}
	if recv != nil && (b.q.RecvCQ.Poll(wc[:]) != 1 || wc[0].Status != cq.Success) {
		tb.Fatalf("receive completion %+v", wc)
	}
}

// request makes a request of n bytes at the first end.
func (w *wired) request(op qp.Op, n int) *qp.SendWR {
	return &qp.SendWR{Op: op, Flags: qp.Signaled, SGE: []mr.SGE{w.end[0].mem.SGE(0, n)}, RemoteAddr: w.end[1].mem.Addr(), RKey: w.end[1].mem.Key()}
}

// style: no allocation per packet or per work request in steady state.
func TestPairDoesNotAllocate(t *testing.T) {
	for _, row := range []struct {
		name string
		op   qp.Op
		n    int
	}{
		{"WRITE", qp.RDMAWrite, 64 << 10}, {"WRITE with imm", qp.RDMAWriteImm, 64 << 10},
		{"SEND", qp.Send, 64 << 10}, {"SEND with imm", qp.SendImm, 8},
		{"READ", qp.RDMARead, 64 << 10}, {"CmpSwap", qp.CmpSwap, 8}, {"FetchAdd", qp.FetchAdd, 8},
	} {
		w := newWired(t, 1024)
		wr := w.request(row.op, row.n)
		var recv *qp.RecvWR
		if row.op == qp.Send || row.op.HasImm() {
			recv = &qp.RecvWR{SGE: []mr.SGE{w.end[1].mem.SGE(0, 64<<10)}}
		}
		for range 20 { // queues grow to what is needed
			w.do(t, wr, recv)
		}
		if n := testing.AllocsPerRun(50, func() { w.do(t, wr, recv) }); n != 0 {
			t.Errorf("%s of %d bytes: %v allocations", row.name, row.n, n)
		}
	}
	w := newWired(t, 1024)
	inline := w.request(qp.RDMAWrite, 0)
	inline.SGE, inline.Inline = nil, make([]byte, 200)
	gathered := w.request(qp.RDMAWrite, 0)
	gathered.SGE = []mr.SGE{w.end[0].mem.SGE(0, 500), w.end[0].mem.SGE(1000, 5000)}
	for range 300 {
		w.do(t, inline, nil)
		w.do(t, gathered, nil)
	}
	if n := testing.AllocsPerRun(50, func() { w.do(t, inline, nil); w.do(t, gathered, nil) }); n != 0 {
		t.Errorf("inline and gathered: %v allocations", n)
	}
}

func BenchmarkWritePair(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"8B", 8}, {"64KiB", 64 << 10}} {
		b.Run(fmt.Sprintf("size=%s", size.name), func(b *testing.B) {
			w := newWired(b, 4096)
			wr := w.request(qp.RDMAWrite, size.n)
			w.do(b, wr, nil)
			w.packets = 0
			b.ReportAllocs()
			b.SetBytes(int64(size.n))
			for b.Loop() {
				w.do(b, wr, nil)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(w.packets), "ns/packet")
		})
	}
}
