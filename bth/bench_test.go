package bth_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/bth"
)

// benchPacket returns an RC RDMA WRITE Only with payload bytes, sealed for the
// identification id.
func benchPacket(payload int, id uint16) (bth.Path, []byte) {
	path := bth.Path{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xC123}
	p := bth.Packet{
		BTH:     bth.BTH{Opcode: bth.WriteOnly, MigReq: true, PKey: bth.PKeyDefault, DestQP: 0x11, AckReq: true, PSN: bth.NewPSN(7)},
		RETH:    bth.RETH{VA: 0x1000, RKey: 0x1234, Length: uint32(payload)},
		Payload: make([]byte, payload),
	}
	b := p.AppendTo(nil)
	return path, bth.AppendICRC(b, path.ICRC(id, b, nil, 0))
}

func BenchmarkParse(b *testing.B) {
	_, pkt := benchPacket(1024, 0)
	pkt = pkt[:len(pkt)-bth.ICRCLen]
	var p bth.Packet
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Parse(pkt); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSeal(b *testing.B) {
	for _, size := range []int{0, 256, 1024, 4096} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			path, pkt := benchPacket(size, 0)
			var p bth.Packet
			if err := p.Parse(pkt[:len(pkt)-bth.ICRCLen]); err != nil {
				b.Fatal(err)
			}
			f := bth.NewBurst(1, size).Next()
			f.Path, f.Payload = &path, p.Payload
			b.SetBytes(int64(len(pkt)))
			b.ReportAllocs()
			for b.Loop() {
				f.SetHeaders(&p)
				f.Seal(0)
			}
		})
	}
}

func BenchmarkCheckICRC(b *testing.B) {
	for _, size := range []int{0, 256, 1024, 4096} {
		for _, id := range []struct {
			name string
			id   uint16
		}{{"known", 0}, {"solved", 0x0478}} {
			b.Run(fmt.Sprintf("size=%d/id=%s", size, id.name), func(b *testing.B) {
				path, pkt := benchPacket(size, id.id)
				b.SetBytes(int64(len(pkt)))
				b.ReportAllocs()
				for b.Loop() {
					if got, ok := path.CheckICRC(pkt); !ok || got != id.id {
						b.Fatalf("identification %#04x, %v", got, ok)
					}
				}
			})
		}
	}
}
