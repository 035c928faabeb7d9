package test

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// TestHostileRunsAtTheSocket sends what only a sender with segmentation offload
// can: coalesced runs of hostile packets, of pieces of a single byte and of
// nothing but noise, for queue pairs of all shards or of the wrong one; from the
// peer's address and others, with the congestion mark, and datagrams of no bytes.
func TestHostileRunsAtTheSocket(t *testing.T) {
	runs := 20_000
	if testing.Short() {
		runs = 3000
	}
	for _, shards := range []int{1, 4} {
		v := openVictim(t, shards)
		a := newRunAttacker(t)
		seed := uint64(time.Now().UnixNano())
		t.Logf("%d shards, seed %d", shards, seed)
		r := rand.New(rand.NewPCG(seed, 1))
		for range 500 { // what grows once: strays, early packets, their buffers
			a.attack(r, v)
		}
		v.revive(t)
		v.drain()
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		goroutines := runtime.NumGoroutine()
		for i := range runs {
			a.attack(r, v)
			if i%50 == 0 {
				v.revive(t)
			}
			if i%8 == 0 {
				runtime.Gosched()
			}
		}
		v.drain()
		runtime.GC()
		runtime.ReadMemStats(&after)
		// 4096 early packets of 4.2 kB per shard at most, and 256 strays twice.
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > int64(shards)*4<<20 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
		if g := runtime.NumGoroutine(); g > goroutines {
			t.Errorf("%d goroutines, %d before", g, goroutines)
		}
		v.checkMemory(t)
		v.checkCounters(t, a.sent/10) // most of it overflows the socket
		s := v.dev.Stats()
		if s["link_rx_gro_runs"] == 0 || s["np_ecn_marked_roce_packets"] == 0 || shards > 1 && s["link_rx_strays"] == 0 {
			t.Errorf("%d runs, %d strays: no attack", s["link_rx_gro_runs"], s["link_rx_strays"])
		}
		t.Logf("%d runs, %d strays, %d marked, %d CNPs sent, %d handled", s["link_rx_gro_runs"], s["link_rx_strays"], s["np_ecn_marked_roce_packets"], s["np_cnp_sent"], s["rp_cnp_handled"])
		v.serveDecentPeer(t)
		if err := v.dev.Close(); err != nil {
			t.Error(err)
		}
		a.close()
	}
}

// runAttacker has sockets with several addresses; the first is the peer's.
type runAttacker struct {
	fds  []int
	from []bth.Path
	sent int // packets
	buf  []byte
}

func newRunAttacker(t *testing.T) *runAttacker {
	a := &runAttacker{}
	for i := range 6 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		a.fds = append(a.fds, fd)
		port := 0
		if i == 0 {
			port = bth.Port
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 2, byte(2 + i/2*10)}}); err != nil {
			t.Skipf("needs UDP port %d on 127.0.2.%d: %v", port, 2+i/2*10, err)
		}
		at, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		in := at.(*unix.SockaddrInet4)
		a.from = append(a.from, bth.Path{Src: netip.AddrFrom4(in.Addr), Dst: netip.MustParseAddr("127.0.2.1"), SrcPort: uint16(in.Port)})
		if i%3 == 1 {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, 3) // congestion experienced
		}
	}
	t.Cleanup(a.close)
	return a
}

func (a *runAttacker) close() {
	for _, fd := range a.fds {
		_ = unix.Close(fd)
	}
	a.fds = nil
}

// attack sends one run.
func (a *runAttacker) attack(r *rand.Rand, v *victim) {
	n, k := 1+r.IntN(60), 0
	if r.IntN(3) == 0 {
		k = r.IntN(len(a.fds))
	}
	piece := v.hostile(r)
	a.buf = a.buf[:0]
	switch kind := r.IntN(10); {
	case kind == 0: // pieces of a few bytes, of what may be anything
		a.buf = append(a.buf, piece...)
		piece = piece[:min(len(piece), 1+r.IntN(14))]
	case kind == 1:
		piece = nil
	default:
		for i := range n {
			a.buf = append(a.buf, v.next(r, piece, i, &a.from[k])...)
		}
	}
	if len(a.buf) > 60_000 {
		a.buf = a.buf[:60_000/len(piece)*len(piece)]
	}
	var oob []byte
	if len(piece) > 0 && len(a.buf) > len(piece) && len(a.buf)/len(piece) < 64 {
		oob = make([]byte, unix.CmsgSpace(2))
		h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
		h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
		h.SetLen(unix.CmsgLen(2))
		*(*uint16)(unsafe.Pointer(&oob[unix.CmsgLen(0)])) = uint16(len(piece))
	}
	if _, err := unix.SendmsgN(a.fds[k], a.buf, oob, &unix.SockaddrInet4{Port: bth.Port, Addr: v.dev.GID().As4()}, unix.MSG_DONTWAIT); err != nil {
		time.Sleep(50 * time.Microsecond)
		return
	}
	a.sent++
	if len(oob) > 0 {
		a.sent += len(a.buf)/len(piece) - 1
	}
}

// next returns packet i of a run that starts with p: the same with another PSN,
// for another queue pair now and then, and a good ICRC.
func (v *victim) next(r *rand.Rand, p []byte, i int, from *bth.Path) []byte {
	if len(p) < bth.BTHLen+bth.ICRCLen {
		return p
	}
	p = append([]byte(nil), p[:len(p)-bth.ICRCLen]...)
	p[11] += byte(i)
	if r.IntN(3) == 0 {
		n := v.qps[r.IntN(len(v.qps))].QPN() + bth.QPN(r.IntN(2)*r.IntN(4))
		p[5], p[6], p[7] = byte(n>>16), byte(n>>8), byte(n)
	}
	return bth.AppendICRC(p, from.ICRC(uint16(i), p, nil, 0))
}
