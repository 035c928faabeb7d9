package verbs_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
)

// connectedUC returns two UC pairs that face each other; faults are those of
// the first.
func connectedUC(t *testing.T, faults string) (a, b *end) {
	t.Helper()
	cfg := inMemory(t, verbs.Config{})
	if faults != "" {
		rules, err := udp.ParseFaults(faults)
		if err != nil {
			t.Fatal(err)
		}
		cfg[0].Faults = rules
	}
	a, b = openTyped(t, cfg[0], qp.UC), openTyped(t, cfg[1], qp.UC)
	for _, p := range [][2]*end{{a, b}, {b, a}} {
		if err := p[0].qp.Connect(p[1].qp.Local(), verbs.ConnectConfig{Access: mr.RemoteWrite}); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// TestUCGapLosesTheMessageOnly: a message with a lost packet vanishes, its
// receive takes the next one, and the sequence goes on from there (IBA 9.8.2.2).
func TestUCGapLosesTheMessageOnly(t *testing.T) {
	for _, lost := range []string{"send_first", "send_middle", "send_last"} {
		t.Run(lost, func(t *testing.T) {
			a, b := connectedUC(t, "drop op="+lost+" n=1")
			if err := b.qp.PostRecv(&qp.RecvWR{ID: 1, SGE: []mr.SGE{b.mem.SGE(0, 8000)}}); err != nil {
				t.Fatal(err)
			}
			fill(a.mem.Bytes(), 6)
			for _, off := range []int{0, 20000} {
				a.must(t, &qp.SendWR{Op: qp.Send, SGE: []mr.SGE{a.mem.SGE(off, 5000)}})
			}
			wc := b.wait(t)
			if wc.ID != 1 || wc.Status != cq.Success || wc.ByteLen != 5000 {
				t.Fatalf("receive %+v", wc)
			}
			if !bytes.Equal(b.mem.Bytes()[:5000], a.mem.Bytes()[20000:25000]) {
				t.Fatal("the receive does not hold the second message")
			}
			if b.cq.Len() != 0 || b.qp.State() != qp.RTS {
				t.Fatalf("%d more completions, state %v", b.cq.Len(), b.qp.State())
			}
		})
	}
}

// TestUCRefusedMessageIsSilent: the sender is not told, memory does not change,
// the pair goes on (IBA 9.8.2.2).
func TestUCRefusedMessageIsSilent(t *testing.T) {
	for _, tc := range []struct {
		name, counter string
		wr            func(a, b *end) qp.SendWR
	}{
		{"wrong key", "drop_uc_refused", func(a, b *end) qp.SendWR {
			return qp.SendWR{Op: qp.RDMAWrite, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key() ^ 0x100}
		}},
		{"past the end", "drop_uc_refused", func(a, b *end) qp.SendWR {
			return qp.SendWR{Op: qp.RDMAWrite, RemoteAddr: b.mem.Addr() + 1<<16 - 99, RKey: b.mem.Key()}
		}},
		{"no receive", "drop_no_receive", func(a, b *end) qp.SendWR { return qp.SendWR{Op: qp.Send} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := connectedUC(t, "")
			fill(a.mem.Bytes(), 2)
			wr := tc.wr(a, b)
			wr.SGE = []mr.SGE{a.mem.SGE(0, 100)}
			a.must(t, &wr)
			a.must(t, &qp.SendWR{Op: qp.RDMAWrite, Inline: []byte("after"), RemoteAddr: b.mem.Addr() + 100, RKey: b.mem.Key()})
			waitFor(t, func() bool { return b.dev.Stats()["rcvd_pkts"] == 2 })
			if got := string(b.mem.Bytes()[100:105]); got != "after" {
				t.Errorf("the next message left %q", got)
			}
			if n := b.dev.Stats()[tc.counter]; n != 1 {
				t.Errorf("%s is %d, want 1", tc.counter, n)
			}
			if !bytes.Equal(b.mem.Bytes()[:100], make([]byte, 100)) || b.qp.State() != qp.RTS {
				t.Error("the refused message changed memory or state")
			}
		})
	}
}

// TestUDLongDatagramLeavesTheReceive: what does not fit is dropped, and the
// receive serves the next datagram.
func TestUDLongDatagramLeavesTheReceive(t *testing.T) {
	a := openTyped(t, inMemory(t, verbs.Config{})[0], qp.UD)
	if err := a.qp.Activate(1); err != nil {
		t.Fatal(err)
	}
	if err := a.qp.PostRecv(&qp.RecvWR{ID: 4, SGE: []mr.SGE{a.mem.SGE(0, 140)}}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{101, 100} {
		wr := qp.SendWR{ID: uint64(n), Op: qp.Send, SGE: []mr.SGE{a.mem.SGE(1000, n)}, AH: &qp.AddressVector{DGID: a.dev.GID()}, RemoteQPN: a.qp.QPN(), RemoteQKey: 1}
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
	}
	if wc := a.wait(t); wc.ID != 4 || wc.ByteLen != 140 {
		t.Fatalf("receive %+v", wc)
	}
	if n := a.dev.Stats()["drop_ud_too_long"]; n != 1 {
		t.Fatalf("drop_ud_too_long is %d, want 1", n)
	}
}

// TestUDTooLongIsRefused: more than the port's MTU cannot leave (C10-93.1.1).
func TestUDTooLongIsRefused(t *testing.T) {
	a := openTyped(t, inMemory(t, verbs.Config{})[0], qp.UD)
	if err := a.qp.Activate(1); err != nil {
		t.Fatal(err)
	}
	wr := qp.SendWR{ID: 3, Op: qp.Send, SGE: []mr.SGE{a.mem.SGE(0, a.dev.ActiveMTU()+1)}, AH: &qp.AddressVector{DGID: a.dev.GID()}, RemoteQPN: a.qp.QPN(), RemoteQKey: 1}
	if err := a.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	if wc := a.wait(t); wc.ID != 3 || wc.Status != cq.LocLenErr {
		t.Fatalf("completion %+v", wc)
	}
	if s := a.qp.State(); s != qp.SQE {
		t.Fatalf("state %v, want SQE", s)
	}
}

// TestSRQPairInErrorRaisesLastWQE: a pair takes nothing more from its shared
// queue once in ERR, and says so; what is posted there stays (IBA 11.6.3.2).
func TestSRQPairInErrorRaisesLastWQE(t *testing.T) {
	a := openTyped(t, inMemory(t, verbs.Config{})[0], qp.RC)
	srq, err := a.pd.CreateSRQ(4, 1)
	if err != nil {
		t.Fatal(err)
	}
	q, err := a.pd.CreateQP(verbs.QPConfig{SendCQ: a.cq, RecvCQ: a.cq, SRQ: srq})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(srq.PostRecv(&qp.RecvWR{}), q.Connect(a.qp.Local(), verbs.ConnectConfig{}), q.Modify(&qp.Attr{State: qp.Err}, qp.AttrState))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := shortContext()
	defer cancel()
	e, err := a.dev.Event(ctx)
	if err != nil || e.Type != transport.EventLastWQEReached || e.QPN != q.QPN() {
		t.Fatalf("event %+v %v", e, err)
	}
	if srq.Len() != 1 || a.cq.Len() != 0 {
		t.Fatalf("%d receives and %d completions, want 1 and 0", srq.Len(), a.cq.Len())
	}
}
