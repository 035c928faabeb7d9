package verbs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

// keysPair is a pair whose side b offers memory through windows; both have all
// rights on the queue pair.
func keysPair(t *testing.T) (a, b *end) {
	a, b = openPair(t, inMemory(t, verbs.Config{}), 4096, verbs.ConnectConfig{})
	m, err := b.pd.RegisterMR(make([]byte, 4096), allAccess|mr.MWBind|mr.FlushGlobal)
	if err != nil {
		t.Fatal(err)
	}
	b.mem = m
	return a, b
}

// write has a write b's memory at offset through key and returns the status.
func (e *end) write(t *testing.T, b *end, offset int, key uint32) cq.Status {
	t.Helper()
	if err := e.qp.PostSend(&qp.SendWR{Op: qp.RDMAWrite, Flags: qp.Signaled, Inline: []byte("window"), RemoteAddr: b.mem.Addr() + uint64(offset), RKey: key}); err != nil {
		t.Fatal(err)
	}
	return e.wait(t).Status
}

// TestMWType2Lifecycle: free, bound with a chosen low key byte, used within its
// range, invalidated, unusable (IBA 10.6.7.2).
func TestMWType2Lifecycle(t *testing.T) {
	a, b := keysPair(t)
	mw, err := b.pd.AllocMW(mr.Type2B)
	if err != nil {
		t.Fatal(err)
	}
	b.must(t, &qp.SendWR{Op: qp.BindMW, Bind: &qp.Bind{Window: mw.Window, Region: b.mem.Region, Addr: b.mem.Addr() + 100, Length: 50, Access: mr.RemoteWrite, Key: 0x5A}})
	if mw.Key()&0xFF != 0x5A {
		t.Fatalf("key 0x%08x does not end in the chosen byte", mw.Key())
	}
	if err := b.mem.Deregister(); !errors.Is(err, mr.ErrBound) {
		t.Fatalf("deregistering a region with a bound window: %v", err)
	}
	if s := a.write(t, b, 144, mw.Key()); s != cq.Success {
		t.Fatalf("write inside the window: %v", s)
	}
	b.dev.Sync()
	if string(b.mem.Bytes()[144:150]) != "window" {
		t.Fatal("wrong bytes")
	}
	b.must(t, &qp.SendWR{Op: qp.LocalInv, InvKey: mw.Key()})
	if s := a.write(t, b, 100, mw.Key()); s != cq.RemAccessErr {
		t.Fatalf("write through an invalidated window: %v", s)
	}
	if err := b.mem.Deregister(); err != nil {
		t.Fatal(err)
	}
}

func TestMWRefusals(t *testing.T) {
	for _, tc := range []struct {
		name string
		typ  mr.WindowType
		bind func(b *end, w *mr.Window) qp.Bind
	}{
		{"past the end of the region", mr.Type1, func(b *end, w *mr.Window) qp.Bind {
			return qp.Bind{Region: b.mem.Region, Addr: b.mem.Addr() + 4000, Length: 97, Access: mr.RemoteRead}
		}},
		{"region without MW_BIND", mr.Type1, func(b *end, w *mr.Window) qp.Bind {
			m, _ := b.pd.RegisterMR(make([]byte, 64), allAccess)
			return qp.Bind{Region: m.Region, Addr: m.Addr(), Length: 64, Access: mr.RemoteRead}
		}},
		{"zero-based region", mr.Type1, func(b *end, w *mr.Window) qp.Bind {
			m, _ := b.pd.RegisterMR(make([]byte, 64), allAccess|mr.MWBind|mr.ZeroBased)
			return qp.Bind{Region: m.Region, Length: 64, Access: mr.RemoteRead}
		}},
		{"remote write without local write", mr.Type1, func(b *end, w *mr.Window) qp.Bind {
			m, _ := b.pd.RegisterMR(make([]byte, 64), mr.MWBind)
			return qp.Bind{Region: m.Region, Addr: m.Addr(), Length: 64, Access: mr.RemoteWrite}
		}},
		{"type 2 with length 0", mr.Type2B, func(b *end, w *mr.Window) qp.Bind {
			return qp.Bind{Region: b.mem.Region, Addr: b.mem.Addr()}
		}},
		{"type 2 bound already", mr.Type2B, func(b *end, w *mr.Window) qp.Bind {
			bind := qp.Bind{Window: w, Region: b.mem.Region, Addr: b.mem.Addr(), Length: 8, Access: mr.RemoteRead}
			b.must(t, &qp.SendWR{Op: qp.BindMW, Bind: &bind})
			return bind
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, b := keysPair(t)
			mw, err := b.pd.AllocMW(tc.typ)
			if err != nil {
				t.Fatal(err)
			}
			bind := tc.bind(b, mw.Window)
			bind.Window = mw.Window
			if err := b.qp.PostSend(&qp.SendWR{Op: qp.BindMW, Bind: &bind}); err != nil {
				t.Fatal(err)
			}
			if wc := b.wait(t); wc.Status != cq.MWBindErr {
				t.Fatalf("status %v, want %v", wc.Status, cq.MWBindErr)
			}
		})
	}
}

// TestMWType1RebindChangesKey: a new bind replaces the old, whose key ends;
// length 0 closes the window; it cannot be invalidated.
func TestMWType1RebindChangesKey(t *testing.T) {
	a, b := keysPair(t)
	mw, err := b.pd.AllocMW(mr.Type1)
	if err != nil {
		t.Fatal(err)
	}
	bind := func(off, n uint64) uint32 {
		b.must(t, &qp.SendWR{Op: qp.BindMW, Bind: &qp.Bind{Window: mw.Window, Region: b.mem.Region, Addr: b.mem.Addr() + off, Length: n, Access: mr.RemoteWrite}})
		return mw.Key()
	}
	first := bind(0, 64)
	second := bind(64, 64)
	if first == second {
		t.Fatal("the key did not change")
	}
	if s := a.write(t, b, 64, second); s != cq.Success {
		t.Fatalf("write through the second binding: %v", s)
	}
	bind(0, 0)
	if err := b.mem.Deregister(); err != nil {
		t.Fatalf("deregistering after the window was closed: %v", err)
	}
	if s := a.write(t, b, 0, first); s != cq.RemAccessErr {
		t.Fatalf("write through the first binding: %v", s)
	}
}

// TestMWType2BelongsToItsPair: through another pair of the domain it is closed.
func TestMWType2BelongsToItsPair(t *testing.T) {
	a, b := keysPair(t)
	other, err := b.pd.CreateQP(verbs.QPConfig{SendCQ: b.cq, RecvCQ: b.cq})
	if err != nil {
		t.Fatal(err)
	}
	aq, err := a.pd.CreateQP(verbs.QPConfig{SendCQ: a.cq, RecvCQ: a.cq})
	if err != nil {
		t.Fatal(err)
	}
	cc := verbs.ConnectConfig{Access: mr.RemoteWrite}
	if err := errors.Join(other.Connect(aq.Local(), cc), aq.Connect(other.Local(), cc)); err != nil {
		t.Fatal(err)
	}
	mw, err := b.pd.AllocMW(mr.Type2B)
	if err != nil {
		t.Fatal(err)
	}
	b.must(t, &qp.SendWR{Op: qp.BindMW, Bind: &qp.Bind{Window: mw.Window, Region: b.mem.Region, Addr: b.mem.Addr(), Length: 64, Access: mr.RemoteWrite}})
	foreign := &end{dev: a.dev, pd: a.pd, cq: a.cq, qp: aq, mem: a.mem}
	if s := foreign.write(t, b, 0, mw.Key()); s != cq.RemAccessErr {
		t.Fatalf("write through another pair: %v", s)
	}
	if s := a.write(t, b, 0, mw.Key()); s != cq.Success {
		t.Fatalf("write through the window's pair: %v", s)
	}
}

// TestSendWithInvalidate: the receiver's key ends and the completion names it.
func TestSendWithInvalidate(t *testing.T) {
	for _, valid := range []bool{true, false} {
		a, b := keysPair(t)
		fast, err := b.pd.AllocFastMR(4096)
		if err != nil {
			t.Fatal(err)
		}
		mem := make([]byte, 4096)
		b.must(t, &qp.SendWR{Op: qp.RegMR, Reg: &qp.FastReg{Region: fast.FastRegion, Mem: mem, Access: allAccess, Key: fast.Key() + 0}})
		key := fast.Key()
		if !valid {
			key = b.mem.Key() // a plain region cannot be invalidated
		}
		if err := b.qp.PostRecv(&qp.RecvWR{ID: 5, SGE: []mr.SGE{b.mem.SGE(0, 64)}}); err != nil {
			t.Fatal(err)
		}
		a.must(t, &qp.SendWR{Op: qp.SendInv, Inline: []byte("bye"), InvKey: key})
		wc := b.wait(t)
		if !valid {
			if wc.Status != cq.RemInvReqErr || b.qp.State() != qp.Err {
				t.Fatalf("invalid key: %v, state %v", wc.Status, b.qp.State())
			}
			continue
		}
		if wc.Status != cq.Success || wc.Flags&cq.WithInv == 0 || wc.InvKey != key {
			t.Fatalf("receive %+v", wc)
		}
		if err := a.qp.PostSend(&qp.SendWR{Op: qp.RDMAWrite, Inline: []byte("late"), RemoteAddr: fast.Addr(), RKey: key}); err != nil {
			t.Fatal(err)
		}
		if wc := a.wait(t); wc.Status != cq.RemAccessErr {
			t.Fatalf("write through an invalidated key: %v", wc.Status)
		}
	}
}

// TestFastRegistrationTwice: registered, used, invalidated, registered again
// with another low key byte and other memory.
func TestFastRegistrationTwice(t *testing.T) {
	a, b := keysPair(t)
	fast, err := b.pd.AllocFastMR(64)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		mem := make([]byte, 64)
		key := fast.Key()&^0xFF | uint32(10+i)
		b.must(t, &qp.SendWR{Op: qp.RegMR, Reg: &qp.FastReg{Region: fast.FastRegion, Mem: mem, Access: mr.LocalWrite | mr.RemoteWrite, Key: key}})
		a.must(t, &qp.SendWR{Op: qp.RDMAWrite, Inline: []byte("fast"), RemoteAddr: fast.Addr(), RKey: key})
		b.dev.Sync()
		if !bytes.HasPrefix(mem, []byte("fast")) {
			t.Fatalf("round %d: wrong bytes", i)
		}
		b.must(t, &qp.SendWR{Op: qp.LocalInv, InvKey: key})
	}
	// Too long for its allocation.
	if err := b.qp.PostSend(&qp.SendWR{Op: qp.RegMR, Reg: &qp.FastReg{Region: fast.FastRegion, Mem: make([]byte, 65), Key: fast.Key()}}); err != nil {
		t.Fatal(err)
	}
	if wc := b.wait(t); wc.Status != cq.LocQPOpErr {
		t.Fatalf("registering too much: %v", wc.Status)
	}
}

// TestLocalInvWaitsForEarlierRequests: an invalidation behind a large WRITE that
// reads from the key does not take it away (IBA 10.6.5.1).
func TestLocalInvWaitsForEarlierRequests(t *testing.T) {
	a, b := openPair(t, inMemory(t, verbs.Config{}), 1<<20, verbs.ConnectConfig{})
	fast, err := a.pd.AllocFastMR(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, 1<<20)
	fill(mem, 8)
	a.must(t, &qp.SendWR{Op: qp.RegMR, Reg: &qp.FastReg{Region: fast.FastRegion, Mem: mem, Access: mr.LocalWrite, Key: fast.Key()}})
	key := fast.Key()
	n, err := a.qp.PostSendList([]qp.SendWR{
		{Op: qp.RDMAWrite, SGE: []mr.SGE{{Addr: fast.Addr(), Length: 1 << 20, LKey: key}}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key()},
		{Op: qp.LocalInv, InvKey: key, Flags: qp.Signaled},
	})
	if n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if wc := a.wait(t); wc.Status != cq.Success || wc.Opcode != cq.OpLocalInv {
		t.Fatalf("completion %+v", wc)
	}
	b.dev.Sync()
	if !bytes.Equal(b.mem.Bytes(), mem) {
		t.Fatal("wrong bytes")
	}
}

// TestFlushAndAtomicWrite: answered by an empty READ response (annex A19).
func TestFlushAndAtomicWrite(t *testing.T) {
	a, b := keysPair(t)
	if err := b.qp.Modify(&qp.Attr{State: qp.RTS, Access: mr.RemoteWrite | mr.FlushGlobal}, qp.AttrState|qp.AttrAccess); err != nil {
		t.Fatal(err)
	}
	word := binary.NativeEndian.AppendUint64(nil, 0x1122334455667788)
	b0 := (8 - b.mem.Addr()%8) % 8
	wc := a.must(t, &qp.SendWR{Op: qp.AtomicWrite, Inline: word, RemoteAddr: b.mem.Addr() + b0, RKey: b.mem.Key()})
	if wc.Opcode != cq.OpAtomicWrite {
		t.Fatalf("completion %+v", wc)
	}
	b.dev.Sync()
	if !bytes.Equal(b.mem.Bytes()[b0:b0+8], word) {
		t.Fatal("wrong bytes")
	}
	a.must(t, &qp.SendWR{Op: qp.Flush, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key(), FlushLength: 64, FlushType: qp.FlushGlobal})
	// Persistence was not granted.
	if err := a.qp.PostSend(&qp.SendWR{Op: qp.Flush, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key(), FlushLength: 64, FlushType: qp.FlushPersistent}); err != nil {
		t.Fatal(err)
	}
	if wc := a.wait(t); wc.Status != cq.RemInvReqErr {
		t.Fatalf("FLUSH to persistence: %v", wc.Status)
	}
}
