package verbs_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/verbs"
)

// openTyped opens a device with a queue pair of the given type.
func openTyped(t *testing.T, c verbs.Config, typ qp.Type) *end {
	t.Helper()
	dev, err := verbs.Open(c)
	if err != nil {
		t.Skipf("needs a loopback address: %v", err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	e := &end{dev: dev, pd: dev.AllocPD()}
	if e.cq, err = dev.CreateCQ(256); err != nil {
		t.Fatal(err)
	}
	if e.qp, err = e.pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: e.cq, RecvCQ: e.cq}); err != nil {
		t.Fatal(err)
	}
	if e.mem, err = e.pd.RegisterMR(make([]byte, 1<<16), allAccess); err != nil {
		t.Fatal(err)
	}
	return e
}

func at(addr string) verbs.Config { return verbs.Config{Addr: netip.MustParseAddr(addr)} }

// TestUDDatagramArrivesBehindItsGRH: 40 bytes in front, for IPv4 with a correct
// header in the last 20 (IBA 11.4.2.1, annex A17).
func TestUDDatagramArrivesBehindItsGRH(t *testing.T) {
	for _, tc := range []struct{ name, a, b string }{
		{"IPv4", "127.0.1.3", "127.0.1.4"},
		{"IPv6, to itself", "::1", "::1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := openTyped(t, at(tc.a), qp.UD)
			b := a
			if tc.a != tc.b {
				b = openTyped(t, at(tc.b), qp.UD)
			}
			const key = 0x11111111
			for _, e := range []*end{a, b} {
				if e.qp.State() != qp.RTS {
					if err := e.qp.Activate(key); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := b.qp.PostRecv(&qp.RecvWR{ID: 1, SGE: []mr.SGE{b.mem.SGE(8192, 2000)}}); err != nil {
				t.Fatal(err)
			}
			fill(a.mem.Bytes()[:1000], 9)
			wr := qp.SendWR{ID: 2, Op: qp.SendImm, Imm: 77, Flags: qp.Signaled, SGE: []mr.SGE{a.mem.SGE(0, 1000)},
				AH: &qp.AddressVector{DGID: b.dev.GID(), TrafficClass: 0x20}, RemoteQPN: b.qp.QPN(), RemoteQKey: key}
			if err := a.qp.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
			recv := b.wait(t)
			if a == b && !recv.Recv() {
				recv = b.wait(t)
			}
			if recv.Status != cq.Success || recv.ByteLen != 1040 || recv.SrcQP != a.qp.QPN() || recv.Imm != 77 || recv.Flags != cq.WithGRH|cq.WithImm {
				t.Fatalf("receive completion %+v", recv)
			}
			got := b.mem.Bytes()[8192:]
			if !bytes.Equal(got[40:1040], a.mem.Bytes()[:1000]) {
				t.Fatal("wrong payload")
			}
			checkGRH(t, got[:40], a.dev.GID(), b.dev.GID())
		})
	}
}

func checkGRH(t *testing.T, grh []byte, src, dst netip.Addr) {
	t.Helper()
	if src.Is6() {
		if grh[0]>>4 != 6 || !bytes.Equal(grh[8:24], src.AsSlice()) || !bytes.Equal(grh[24:40], dst.AsSlice()) || grh[0]<<4|grh[1]>>4 != 0x20 {
			t.Fatalf("IPv6 header % x", grh)
		}
		return
	}
	ip := grh[20:]
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	if sum = sum&0xFFFF + sum>>16; sum != 0xFFFF {
		t.Errorf("IPv4 header checksum is wrong: % x", ip)
	}
	if grh[0]>>4 == 6 || ip[0] != 0x45 || ip[1] != 0x20 || !bytes.Equal(ip[12:16], src.AsSlice()) || !bytes.Equal(ip[16:20], dst.AsSlice()) {
		t.Errorf("IPv4 header % x", ip)
	}
	if n := binary.BigEndian.Uint16(ip[2:]); n != 20+8+12+8+4+1000+4 {
		t.Errorf("IPv4 total length %d", n)
	}
}

// TestUDWrongQKeyIsDroppedAndCounted. A Q_Key with the privileged bit makes the
// sender's own go out instead (IBA 10.2.5), which arrives here.
func TestUDWrongQKeyIsDroppedAndCounted(t *testing.T) {
	a := openTyped(t, at("127.0.1.5"), qp.UD)
	if err := a.qp.Activate(5); err != nil {
		t.Fatal(err)
	}
	ah := &qp.AddressVector{DGID: a.dev.GID()}
	for i, key := range []bth.QKey{6, 1 << 31} {
		if err := a.qp.PostRecv(&qp.RecvWR{ID: 10, SGE: []mr.SGE{a.mem.SGE(0, 100)}}); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(&qp.SendWR{Op: qp.Send, Flags: qp.Signaled, AH: ah, RemoteQPN: a.qp.QPN(), RemoteQKey: key}); err != nil {
			t.Fatal(err)
		}
		for range 1 + i {
			a.wait(t)
		}
	}
	if n := a.dev.Stats()["drop_bad_qkey"]; n != 1 {
		t.Fatalf("drop_bad_qkey is %d, want 1", n)
	}
}

func TestUCWriteAndSend(t *testing.T) {
	a, b := openTyped(t, at("127.0.1.3"), qp.UC), openTyped(t, at("127.0.1.4"), qp.UC)
	for _, p := range [][2]*end{{a, b}, {b, a}} {
		if err := p[0].qp.Connect(p[1].qp.Local(), verbs.ConnectConfig{Access: mr.RemoteWrite}); err != nil {
			t.Fatal(err)
		}
	}
	fill(a.mem.Bytes(), 4)
	if err := b.qp.PostRecv(&qp.RecvWR{ID: 3, SGE: []mr.SGE{b.mem.SGE(40000, 20000)}}); err != nil {
		t.Fatal(err)
	}
	a.must(t, &qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.mem.SGE(0, 30000)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key()})
	a.must(t, &qp.SendWR{Op: qp.Send, SGE: []mr.SGE{a.mem.SGE(0, 20000)}})
	if wc := b.wait(t); wc.Status != cq.Success || wc.ByteLen != 20000 || wc.ID != 3 {
		t.Fatalf("receive %+v", wc)
	}
	if !bytes.Equal(b.mem.Bytes()[:30000], a.mem.Bytes()[:30000]) || !bytes.Equal(b.mem.Bytes()[40000:60000], a.mem.Bytes()[:20000]) {
		t.Fatal("wrong bytes")
	}
	if err := a.qp.PostSend(&qp.SendWR{Op: qp.RDMARead, SGE: []mr.SGE{a.mem.SGE(0, 1)}}); err == nil {
		t.Fatal("UC accepted a READ")
	}
}

// TestUCLocalErrorStopsTheSendQueueOnly: SQE, flushed sends, receives go on, and
// the way back to RTS (IBA 10.3.1.6).
func TestUCLocalErrorStopsTheSendQueueOnly(t *testing.T) {
	cfg := inMemory(t, verbs.Config{})
	a, b := openTyped(t, cfg[0], qp.UC), openTyped(t, cfg[1], qp.UC)
	for _, p := range [][2]*end{{a, b}, {b, a}} {
		if err := p[0].qp.Connect(p[1].qp.Local(), verbs.ConnectConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	bad := mr.SGE{Addr: 1, Length: 8, LKey: 12345}
	n, err := a.qp.PostSendList([]qp.SendWR{
		{ID: 1, Op: qp.Send, Inline: []byte("good"), Flags: qp.Signaled},
		{ID: 2, Op: qp.Send, SGE: []mr.SGE{bad}},
		{ID: 3, Op: qp.Send, Inline: []byte("never")},
	})
	if n != 3 || err != nil {
		t.Fatal(n, err)
	}
	for _, want := range []cq.Status{cq.Success, cq.LocProtErr, cq.WRFlushErr} {
		if wc := a.wait(t); wc.Status != want {
			t.Fatalf("work request %d: %v, want %v", wc.ID, wc.Status, want)
		}
	}
	if s := a.qp.State(); s != qp.SQE {
		t.Fatalf("state %v, want SQE", s)
	}
	if err := a.qp.PostRecv(&qp.RecvWR{ID: 9, SGE: []mr.SGE{a.mem.SGE(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	b.must(t, &qp.SendWR{Op: qp.Send, Inline: []byte("still here")})
	if wc := a.wait(t); wc.ID != 9 || wc.Status != cq.Success {
		t.Fatalf("receive in SQE: %+v", wc)
	}
	if err := a.qp.Modify(&qp.Attr{State: qp.RTS}, qp.AttrState); err != nil {
		t.Fatal(err)
	}
	a.must(t, &qp.SendWR{Op: qp.Send, Inline: []byte("again")})
}

// TestSRQSharedByPairs: messages of two pairs take receives in posting order;
// the limit event comes once.
func TestSRQSharedByPairs(t *testing.T) {
	cfg := inMemory(t, verbs.Config{})
	a, b := openTyped(t, cfg[0], qp.RC), openTyped(t, cfg[1], qp.RC)
	srq, err := b.pd.CreateSRQ(16, 1)
	if err != nil {
		t.Fatal(err)
	}
	var senders []*verbs.QP
	for range 2 {
		qb, err := b.pd.CreateQP(verbs.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq})
		if err != nil {
			t.Fatal(err)
		}
		qa, err := a.pd.CreateQP(verbs.QPConfig{SendCQ: a.cq, RecvCQ: a.cq})
		if err != nil {
			t.Fatal(err)
		}
		if err := qa.Connect(qb.Local(), verbs.ConnectConfig{}); err != nil {
			t.Fatal(err)
		}
		if err := qb.Connect(qa.Local(), verbs.ConnectConfig{}); err != nil {
			t.Fatal(err)
		}
		senders = append(senders, qa)
		if err := qb.PostRecv(&qp.RecvWR{}); err == nil {
			t.Fatal("a pair with an SRQ accepted a receive of its own")
		}
	}
	for i := range 4 {
		if err := srq.PostRecv(&qp.RecvWR{ID: uint64(i), SGE: []mr.SGE{b.mem.SGE(64*i, 64)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := srq.SetLimit(3); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := senders[i%2].PostSend(&qp.SendWR{Op: qp.Send, Inline: []byte{byte(i)}, Flags: qp.Signaled}); err != nil {
			t.Fatal(err)
		}
		if wc := b.wait(t); wc.ID != uint64(i) || b.mem.Bytes()[64*i] != byte(i) {
			t.Fatalf("message %d took receive %d", i, wc.ID)
		}
		a.wait(t)
	}
	limits := 0
	for {
		ctx, cancel := shortContext()
		e, err := b.dev.Event(ctx)
		cancel()
		if err != nil {
			break
		}
		if e.Type == transport.EventSRQLimitReached {
			limits++
		}
	}
	if limits != 1 {
		t.Fatalf("SRQ_LIMIT_REACHED came %d times", limits)
	}
}

// TestQP1CarriesManagementDatagrams: QP1 has its number, takes datagrams with
// the GSI Q_Key, and there is one of it (IBA 13.6.3).
func TestQP1CarriesManagementDatagrams(t *testing.T) {
	cfg := inMemory(t, verbs.Config{})
	a, b := openTyped(t, cfg[0], qp.GSI), openTyped(t, cfg[1], qp.GSI)
	for _, e := range []*end{a, b} {
		if e.qp.QPN() != bth.QPNGSI {
			t.Fatalf("QP1 has number %d", e.qp.QPN())
		}
		if err := e.qp.Activate(bth.QKeyGSI); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.pd.CreateQP(verbs.QPConfig{Type: qp.GSI, SendCQ: b.cq, RecvCQ: b.cq}); err == nil {
		t.Fatal("a second QP1 was created")
	}
	if err := b.qp.PostRecv(&qp.RecvWR{ID: 1, SGE: []mr.SGE{b.mem.SGE(0, 40+256)}}); err != nil {
		t.Fatal(err)
	}
	fill(a.mem.Bytes()[:256], 5)
	a.must(t, &qp.SendWR{Op: qp.Send, SGE: []mr.SGE{a.mem.SGE(0, 256)}, AH: &qp.AddressVector{DGID: b.dev.GID()}, RemoteQPN: bth.QPNGSI, RemoteQKey: bth.QKeyGSI})
	wc := b.wait(t)
	if wc.Status != cq.Success || wc.ByteLen != 40+256 || wc.SrcQP != bth.QPNGSI {
		t.Fatalf("receive %+v", wc)
	}
	if !bytes.Equal(b.mem.Bytes()[40:296], a.mem.Bytes()[:256]) {
		t.Fatal("wrong bytes")
	}
}
