package test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
)

var floodPackets = flag.Int("flood", 0, "packets that TestHostilePacketsAtTheSocket sends; 0 means 1,000,000, or 50,000 with -short")

// TestHostilePacketsAtTheSocket sends random, truncated, mutated and
// well-formed but unwanted packets to a device's real socket, from the address
// of the peer that its queue pairs are connected to. Nothing may change memory,
// crash, grow or go uncounted, and a decent peer must still be served.
func TestHostilePacketsAtTheSocket(t *testing.T) {
	n := *floodPackets
	if n == 0 {
		n = 1_000_000
		if testing.Short() {
			n = 50_000
		}
	}
	v := openVictim(t, 1)
	attacker, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 2, 2), Port: bth.Port}, &net.UDPAddr{IP: net.IPv4(127, 0, 2, 1), Port: bth.Port})
	if err != nil {
		t.Skipf("needs UDP port 4791 on 127.0.2.2: %v", err)
	}
	defer attacker.Close()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	for i := range n {
		if _, err := attacker.Write(v.hostile(r)); err != nil && !errors.Is(err, net.ErrClosed) {
			time.Sleep(100 * time.Microsecond) // the socket buffer is full
		}
		if i%500 == 0 {
			v.revive(t)
		}
		if i%64 == 0 {
			runtime.Gosched()
		}
	}
	v.drain()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if g := runtime.NumGoroutine(); g > goroutines {
		t.Errorf("%d goroutines, %d before", g, goroutines)
	}
	v.checkMemory(t)
	v.checkCounters(t, n)
	v.serveDecentPeer(t)
}

// victim is a device with queue pairs that face the attacker's address.
type victim struct {
	dev  *verbs.Device
	cq   *verbs.CQ
	cqs  []*verbs.CQ // more, in other shards
	qps  []*verbs.QP
	mem  *verbs.MR
	want []byte
	buf  []byte
	peer verbs.Endpoint
}

func openVictim(t *testing.T, shards int) *victim {
	dev, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr("127.0.2.1"), Shards: shards})
	if err != nil {
		t.Skipf("needs UDP port 4791 on 127.0.2.1: %v", err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	v := &victim{dev: dev, peer: verbs.Endpoint{GID: netip.MustParseAddr("127.0.2.2"), QPN: 99, PSN: bth.NewPSN(1000)}}
	pd := dev.AllocPD()
	v.cq, err = dev.CreateCQ(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, 1<<16)
	for i := range mem {
		mem[i] = byte(i)
	}
	v.want = bytes.Clone(mem)
	if v.mem, err = pd.RegisterMR(mem, mr.LocalWrite|mr.RemoteWrite|mr.RemoteRead|mr.RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		c := v.cq
		if i >= 4 && shards > 1 { // elsewhere
			if c, err = dev.CreateCQ(1 << 10); err != nil {
				t.Fatal(err)
			}
			v.cqs = append(v.cqs, c)
		}
		q, err := pd.CreateQP(verbs.QPConfig{SendCQ: c, RecvCQ: c})
		if err != nil {
			t.Fatal(err)
		}
		v.qps = append(v.qps, q)
	}
	v.revive(t)
	return v
}

// revive reconnects the queue pairs that an invalid request has moved to ERR.
func (v *victim) revive(t *testing.T) {
	var wcs [64]cq.WC
	for _, c := range append(v.cqs, v.cq) {
		for c.Poll(wcs[:]) > 0 {
		}
	}
	for _, q := range v.qps {
		if s := q.State(); s == qp.RTS {
			continue
		}
		if err := q.Modify(&qp.Attr{State: qp.Reset}, qp.AttrState); err != nil {
			t.Fatal(err)
		}
		err := q.Connect(v.peer, verbs.ConnectConfig{Access: mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic})
		if errors.Is(err, qp.ErrAttr) {
			continue // a hostile packet was faster: it sent the pair to ERR on the way to RTS
		}
		if err != nil {
			t.Fatal(err)
		}
		// Something outstanding, so that answers are looked at, too.
		for _, op := range []qp.Op{qp.RDMARead, qp.Send, qp.FetchAdd} {
			err := q.PostSend(&qp.SendWR{Op: op, SGE: []mr.SGE{v.mem.SGE(0, 8)}, RemoteAddr: 8})
			if err != nil && !errors.Is(err, qp.ErrQueueFull) {
				t.Fatal(err)
			}
		}
	}
}

// hostile returns one packet, valid until the next call.
func (v *victim) hostile(r *rand.Rand) []byte {
	b := v.buf[:0]
	if r.IntN(10) == 0 { // noise
		for range r.IntN(200) {
			b = append(b, byte(r.Uint32()))
		}
		v.buf = b
		return b
	}
	q := v.qps[r.IntN(len(v.qps))].Local()
	p := bth.Packet{BTH: bth.BTH{
		Opcode: bth.Opcode(r.Uint32()), MigReq: true, PKey: bth.PKeyDefault, DestQP: q.QPN, AckReq: r.IntN(2) == 0,
		PSN: v.peer.PSN.Add(r.IntN(40) - 20),
	}}
	if r.IntN(4) > 0 {
		p.Opcode = bth.Opcode(r.IntN(0x20))
	}
	info := p.Opcode.Info()
	if !info.Request {
		p.PSN = q.PSN.Add(r.IntN(8) - 2)
	}
	p.RETH = bth.RETH{VA: v.mem.Addr() + uint64(r.IntN(1<<17)), RKey: r.Uint32(), Length: uint32(r.IntN(5000))}
	p.Atomic = bth.AtomicETH{VA: v.mem.Addr() &^ 7, RKey: r.Uint32()}
	p.AETH = bth.AETH{Syndrome: bth.Syndrome(r.Uint32()), MSN: bth.NewMSN(r.Uint32())}
	if info.Payload {
		p.Payload = v.want[:r.IntN(1100)]
	}
	b = p.AppendTo(b)
	if r.IntN(3) == 0 && len(b) > 1 { // bits, with a good ICRC all the same
		for range 1 + r.IntN(4) {
			b[r.IntN(len(b))] ^= byte(r.Uint32())
		}
	}
	if r.IntN(5) == 0 {
		b = b[:r.IntN(len(b)+1)]
	}
	if len(b) >= bth.BTHLen && r.IntN(20) > 0 {
		path := bth.Path{Src: v.peer.GID, Dst: v.dev.GID(), SrcPort: bth.Port}
		b = bth.AppendICRC(b, path.ICRC(0, b, nil, 0))
	}
	v.buf = b
	return b
}

// drain waits until the device has looked at everything that arrived.
func (v *victim) drain() {
	for last := uint64(0); ; time.Sleep(20 * time.Millisecond) {
		now := v.dev.Stats()["link_rx_packets"]
		if now == last {
			return
		}
		last = now
	}
}

// checkMemory: the keys were not known, so not a byte may differ, but for the
// first 8: a forged answer with the right PSN to the READ that is outstanding
// is an answer.
func (v *victim) checkMemory(t *testing.T) {
	v.dev.Sync()
	if !bytes.Equal(v.mem.Bytes()[8:], v.want[8:]) {
		t.Error("memory was changed")
	}
}

// checkCounters: every packet that arrived was used or has a reason.
func (v *victim) checkCounters(t *testing.T, sent int) {
	s := v.dev.Stats()
	arrived, accounted := s["link_rx_packets"], s["rcvd_pkts"]
	reasons := 0
	for name, n := range s {
		// These count packets that were received by a queue pair.
		perQP := map[string]bool{"drop_stale_response": true, "drop_unexpected_response": true, "drop_after_rnr": true,
			"drop_out_of_sequence": true, "drop_duplicate": true, "drop_selective_ack": true, "drop_reserved_syndrome": true}
		if name == "drop_socket_buffer_full" {
			continue // these did not arrive
		}
		if strings.HasPrefix(name, "drop_") && n > 0 {
			reasons++
			if !perQP[name] {
				accounted += n
			}
		}
	}
	if arrived != accounted {
		t.Errorf("%d packets arrived, %d are accounted for: %v", arrived, accounted, s)
	}
	if arrived < uint64(sent)/10 {
		t.Errorf("only %d of %d packets arrived: the flood was none", arrived, sent)
	}
	if reasons < 8 {
		t.Errorf("only %d reasons were counted: %v", reasons, s)
	}
	t.Logf("%d of %d packets arrived, %d drop reasons", arrived, sent, reasons)
}

// serveDecentPeer shows that the device still works.
func (v *victim) serveDecentPeer(t *testing.T) {
	dev, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr("127.0.2.3")})
	if err != nil {
		var inUse *udp.InUseError
		if errors.As(err, &inUse) {
			t.Skipf("needs UDP port 4791 on 127.0.2.3: %v", err)
		}
		t.Fatal(err)
	}
	defer dev.Close()
	pd := dev.AllocPD()
	c, _ := dev.CreateCQ(4)
	q, err := pd.CreateQP(verbs.QPConfig{SendCQ: c, RecvCQ: c})
	if err != nil {
		t.Fatal(err)
	}
	vpd := v.dev.AllocPD()
	vq, err := vpd.CreateQP(verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq})
	if err != nil {
		t.Fatal(err)
	}
	mem, err := vpd.RegisterMR(make([]byte, 64), mr.LocalWrite|mr.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(q.Connect(vq.Local(), verbs.ConnectConfig{}), vq.Connect(q.Local(), verbs.ConnectConfig{Access: mr.RemoteWrite})); err != nil {
		t.Fatal(err)
	}
	if err := q.PostSend(&qp.SendWR{Op: qp.RDMAWrite, Inline: []byte("decent"), RemoteAddr: mem.Addr(), RKey: mem.Key(), Flags: qp.Signaled}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var wc [1]cq.WC
	if _, err := c.Wait(ctx, wc[:]); err != nil || wc[0].Status != cq.Success {
		t.Fatalf("a decent peer's WRITE: %v %v", err, wc[0].Status)
	}
	v.dev.Sync()
	if !bytes.HasPrefix(mem.Bytes(), []byte("decent")) {
		t.Fatal("a decent peer's WRITE did not arrive")
	}
}
