package verbs_test

import (
	"net/netip"
	"testing"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

// TestMulticastReachesEveryAttachedPair: two pairs on one device and one on
// another receive a datagram to the group; after detaching, none does.
func TestMulticastReachesEveryAttachedPair(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  func() [2]verbs.Config
	}{
		{"memory", func() [2]verbs.Config { return inMemory(t, verbs.Config{}) }},
		{"socket", func() [2]verbs.Config { return loopback(verbs.Config{}) }},
		{"socket polled", func() [2]verbs.Config { return loopback(verbs.Config{Polled: true}) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := tc.cfg()
			group := netip.MustParseAddr("239.18.0.7")
			a, b := openTyped(t, cfg[0], qp.UD), openTyped(t, cfg[1], qp.UD)
			second, err := b.pd.CreateQP(verbs.QPConfig{Type: qp.UD, SendCQ: b.cq, RecvCQ: b.cq})
			if err != nil {
				t.Fatal(err)
			}
			receivers := []*verbs.QP{b.qp, second}
			for _, q := range append(receivers, a.qp) {
				if err := q.Activate(7); err != nil {
					t.Fatal(err)
				}
			}
			for i, q := range receivers {
				if err := q.AttachMulticast(group); err != nil {
					t.Fatal(err)
				}
				if err := q.AttachMulticast(group); err == nil {
					t.Fatal("attached twice")
				}
				for range 2 {
					if err := q.PostRecv(&qp.RecvWR{ID: uint64(i), SGE: []mr.SGE{b.mem.SGE(1000*i, 100)}}); err != nil {
						t.Fatal(err)
					}
				}
			}
			// A pair that cannot receive yet is passed over, and counted.
			idle, err := b.pd.CreateQP(verbs.QPConfig{Type: qp.UD, SendCQ: b.cq, RecvCQ: b.cq})
			if err != nil {
				t.Fatal(err)
			}
			if err := idle.AttachMulticast(group); err != nil {
				t.Fatal(err)
			}
			send := func() {
				a.must(t, &qp.SendWR{Op: qp.Send, Inline: []byte("to all"), AH: &qp.AddressVector{DGID: group}, RemoteQPN: bth.QPNMulticast, RemoteQKey: 7})
			}
			send()
			got := map[uint64]bool{}
			for range receivers {
				wc := b.wait(t)
				got[wc.ID] = true
				if text := string(b.mem.Bytes()[1000*wc.ID+40:][:6]); text != "to all" || wc.ByteLen != 46 {
					t.Fatalf("receive %d: %q, %d bytes", wc.ID, text, wc.ByteLen)
				}
			}
			if len(got) != 2 {
				t.Fatalf("received by %v", got)
			}
			if n := b.dev.Stats()["drop_qp_state"]; n != 1 {
				t.Fatalf("drop_qp_state is %d, want 1", n)
			}
			if err := idle.Destroy(); err != nil {
				t.Fatal(err)
			}
			if err := receivers[0].DetachMulticast(group); err != nil {
				t.Fatal(err)
			}
			send()
			if wc := b.wait(t); wc.ID != 1 {
				t.Fatal("the detached pair received")
			}
			if err := receivers[1].Destroy(); err != nil {
				t.Fatal(err)
			}
			if err := receivers[0].DetachMulticast(group); err == nil {
				t.Fatal("detached twice")
			}
		})
	}
}
