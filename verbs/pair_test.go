package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
)

// end is one side of a connected pair.
type end struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mem *verbs.MR
}

const allAccess = mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic

// openPair opens two devices and connects them. Device numbers in cfg: 0 and 1.
func openPair(t testing.TB, cfg [2]verbs.Config, size int, cc verbs.ConnectConfig) (a, b *end) {
	t.Helper()
	var ends [2]*end
	for i := range ends {
		dev, err := verbs.Open(cfg[i])
		if err != nil {
			var inUse *udp.InUseError
			if errors.As(err, &inUse) {
				t.Skipf("needs UDP port 4791 on loopback: %v", err)
			}
			if errors.Is(err, udp.ErrRing) {
				t.Skipf("needs CAP_NET_RAW and Linux 6.2: %v", err)
			}
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dev.Close() })
		e := &end{dev: dev, pd: dev.AllocPD()}
		if e.cq, err = dev.CreateCQ(1024); err != nil {
			t.Fatal(err)
		}
		if e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq}); err != nil {
			t.Fatal(err)
		}
		if e.mem, err = e.pd.RegisterMR(make([]byte, size), allAccess); err != nil {
			t.Fatal(err)
		}
		ends[i] = e
	}
	cc.Access = allAccess &^ mr.LocalWrite
	for i, e := range ends {
		if err := e.qp.Connect(ends[1-i].qp.Local(), cc); err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}

func loopback(c verbs.Config) [2]verbs.Config {
	a, b := c, c
	a.Addr, b.Addr = netip.MustParseAddr("127.0.1.1"), netip.MustParseAddr("127.0.1.2")
	return [2]verbs.Config{a, b}
}

func inMemory(t testing.TB, c verbs.Config) [2]verbs.Config {
	sw := udp.NewSwitch()
	var cfgs [2]verbs.Config
	for i := range cfgs {
		l, err := sw.Link(netip.AddrFrom4([4]byte{198, 18, 0, byte(i + 1)}))
		if err != nil {
			t.Fatal(err)
		}
		cfgs[i] = c
		cfgs[i].Link = l
	}
	return cfgs
}

// wait polls one completion from e; a polled peer is driven by a goroutine.
func (e *end) wait(t testing.TB) cq.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wc [1]cq.WC
	if _, err := e.cq.Wait(ctx, wc[:]); err != nil {
		t.Fatalf("waiting for a completion: %v; stats %v", err, e.dev.Stats())
	}
	return wc[0]
}

func (e *end) must(t testing.TB, wr *qp.SendWR) cq.WC {
	t.Helper()
	wr.Flags |= qp.Signaled
	if err := e.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	wc := e.wait(t)
	if wc.Status != cq.Success {
		t.Fatalf("%v: %v; stats %v", wr.Op, wc.Status, e.dev.Stats())
	}
	return wc
}

// drive polls a device until the test ends, as the application of a polled peer.
func drive(t testing.TB, d *verbs.Device) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if !d.Poll() {
					runtime.Gosched()
				}
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

func TestPairAllOperations(t *testing.T) {
	lossy, err := udp.ParseFaults("drop p=2%")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		cfg  func(t *testing.T) [2]verbs.Config
	}{
		{"memory", func(t *testing.T) [2]verbs.Config { return inMemory(t, verbs.Config{}) }},
		{"memory polled", func(t *testing.T) [2]verbs.Config { return inMemory(t, verbs.Config{Polled: true}) }},
		{"socket", func(t *testing.T) [2]verbs.Config { return loopback(verbs.Config{}) }},
		{"socket polled", func(t *testing.T) [2]verbs.Config { return loopback(verbs.Config{Polled: true}) }},
		{"portable socket", func(t *testing.T) [2]verbs.Config { return loopback(verbs.Config{Portable: true}) }},
		{"packet ring", func(t *testing.T) [2]verbs.Config { return loopback(verbs.Config{Ring: true}) }},
		{"packet ring polled", func(t *testing.T) [2]verbs.Config { return loopback(verbs.Config{Ring: true, Polled: true}) }},
		{"socket, 2 % of packets lost", func(t *testing.T) [2]verbs.Config {
			c := loopback(verbs.Config{Faults: lossy, FaultSeed: 1})
			c[1].FaultSeed = 2
			return c
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := tc.cfg(t)
			a, b := openPair(t, cfg, 1<<20, verbs.ConnectConfig{Timeout: 10})
			if cfg[1].Polled {
				drive(t, b.dev)
			}
			checkAllOperations(t, a, b)
		})
	}
}

func checkAllOperations(t *testing.T, a, b *end) {
	src, dst := a.mem.Bytes(), b.mem.Bytes()
	const n = 300_000
	fill(src[:n], 1)

	a.must(t, &qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.mem.SGE(0, n)}, RemoteAddr: b.mem.Addr() + 5, RKey: b.mem.Key()})
	b.dev.Sync()
	if !bytes.Equal(dst[5:5+n], src[:n]) {
		t.Fatal("RDMA WRITE: wrong bytes")
	}
	wc := a.must(t, &qp.SendWR{Op: qp.RDMARead, SGE: []mr.SGE{a.mem.SGE(n, n)}, RemoteAddr: b.mem.Addr() + 5, RKey: b.mem.Key()})
	if wc.ByteLen != n || !bytes.Equal(src[n:2*n], src[:n]) {
		t.Fatal("RDMA READ: wrong bytes")
	}

	if err := b.qp.PostRecv(&qp.RecvWR{ID: 7, SGE: []mr.SGE{b.mem.SGE(400_000, n)}}); err != nil {
		t.Fatal(err)
	}
	a.must(t, &qp.SendWR{Op: qp.SendImm, SGE: []mr.SGE{a.mem.SGE(0, n)}, Imm: 0x11223344})
	if wc := b.wait(t); wc.ID != 7 || wc.Status != cq.Success || wc.ByteLen != n || wc.Imm != 0x11223344 || wc.Flags&cq.WithImm == 0 {
		t.Fatalf("RECV: %+v", wc)
	}
	if !bytes.Equal(dst[400_000:400_000+n], src[:n]) {
		t.Fatal("SEND: wrong bytes")
	}

	if err := b.qp.PostRecv(&qp.RecvWR{ID: 8}); err != nil {
		t.Fatal(err)
	}
	a.must(t, &qp.SendWR{Op: qp.RDMAWriteImm, Inline: []byte("inline"), RemoteAddr: b.mem.Addr(), RKey: b.mem.Key(), Imm: 9})
	if wc := b.wait(t); wc.ID != 8 || wc.Opcode != cq.OpRecvRDMAWithImm || wc.ByteLen != 6 || wc.Imm != 9 {
		t.Fatalf("WRITE with immediate: %+v", wc)
	}
	if string(dst[:6]) != "inline" {
		t.Fatalf("WRITE with immediate: wrong bytes %q", dst[:6])
	}

	word := b.mem.Addr() + 1<<20 - 8
	atomics := []struct {
		op                qp.Op
		compareAdd, swap  uint64
		wantOld, wantThen uint64
	}{
		{qp.FetchAdd, 5, 0, 0, 5},
		{qp.CmpSwap, 4, 100, 5, 5},
		{qp.CmpSwap, 5, 100, 5, 100},
		{qp.FetchAdd, 1<<64 - 1, 0, 100, 99},
	}
	for _, at := range atomics {
		a.must(t, &qp.SendWR{Op: at.op, SGE: []mr.SGE{a.mem.SGE(0, 8)}, RemoteAddr: word, RKey: b.mem.Key(), CompareAdd: at.compareAdd, Swap: at.swap})
		b.dev.Sync()
		old, then := binary.NativeEndian.Uint64(src), binary.NativeEndian.Uint64(dst[1<<20-8:])
		if old != at.wantOld || then != at.wantThen {
			t.Fatalf("%v: fetched %d, left %d; want %d and %d", at.op, old, then, at.wantOld, at.wantThen)
		}
	}
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8)*13 + seed
	}
}

func TestPairRemoteErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		wr   func(b *end) qp.SendWR
		want cq.Status
	}{
		{"wrong key", func(b *end) qp.SendWR {
			return qp.SendWR{Op: qp.RDMAWrite, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key() ^ 0x100}
		}, cq.RemAccessErr},
		{"range past the end", func(b *end) qp.SendWR {
			return qp.SendWR{Op: qp.RDMAWrite, RemoteAddr: b.mem.Addr() + 4096 - 63, RKey: b.mem.Key()}
		}, cq.RemAccessErr},
		{"range before the start", func(b *end) qp.SendWR {
			return qp.SendWR{Op: qp.RDMARead, RemoteAddr: b.mem.Addr() - 1, RKey: b.mem.Key()}
		}, cq.RemAccessErr},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := openPair(t, inMemory(t, verbs.Config{}), 4096, verbs.ConnectConfig{})
			wr := tc.wr(b)
			wr.SGE = []mr.SGE{a.mem.SGE(0, 64)}
			fill(a.mem.Bytes(), 3)
			if err := a.qp.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
			if wc := a.wait(t); wc.Status != tc.want {
				t.Fatalf("status %v, want %v", wc.Status, tc.want)
			}
			if s := a.qp.State(); s != qp.Err {
				t.Fatalf("requester in %v, want ERR", s)
			}
			if s := b.qp.State(); s != qp.Err {
				t.Fatalf("responder in %v, want ERR", s)
			}
			if !bytes.Equal(b.mem.Bytes(), make([]byte, 4096)) {
				t.Fatal("the responder's memory was changed")
			}
		})
	}
}

func TestDeviceCloseLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		var cfgs = loopback(verbs.Config{})
		for _, c := range cfgs {
			d, err := verbs.Open(c)
			if err != nil {
				var inUse *udp.InUseError
				if errors.As(err, &inUse) {
					t.Skipf("needs UDP port 4791 on loopback: %v", err)
				}
				t.Fatal(err)
			}
			q, _ := d.CreateCQ(1)
			waiting := make(chan error, 1)
			go func() {
				_, err := q.Wait(context.Background(), make([]cq.WC, 1))
				waiting <- err
			}()
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-waiting; !errors.Is(err, verbs.ErrClosed) {
				t.Fatalf("a waiting call returned %v, want ErrClosed", err)
			}
		}
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestOpenPortInUseNamesTheCure(t *testing.T) {
	c := loopback(verbs.Config{})[0]
	d, err := verbs.Open(c)
	if err != nil {
		t.Skipf("needs UDP port 4791 on loopback: %v", err)
	}
	defer d.Close()
	_, err = verbs.Open(c)
	var inUse *udp.InUseError
	if !errors.As(err, &inUse) {
		t.Fatalf("second Open: %v, want an InUseError", err)
	}
}

func shortContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 100*time.Millisecond)
}

// waitFor waits until done reports true.
func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen within 10 s")
		}
	}
}
