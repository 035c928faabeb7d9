package bth_test

import (
	"testing"

	"github.com/goroce/goroce/bth"
)

func TestPacketPathDoesNotAllocate(t *testing.T) {
	path, b := benchPacket(4096, 0)
	solved, sb := benchPacket(4096, 0x0478)
	body := b[:len(b)-bth.ICRCLen]
	var p bth.Packet
	if err := p.Parse(body); err != nil {
		t.Fatal(err)
	}
	cnp := bth.Packet{BTH: bth.BTH{Opcode: bth.CNP}}
	headers := make([]byte, 0, bth.MaxHeaderLen)
	datagram := ipPacket(&path, 0, b)
	burst := bth.NewBurst(2, 4096)
	burst.Scratch(4096) // the area is made on first use

	for _, row := range []struct {
		name string
		f    func()
	}{
		{"Parse", func() { _ = p.Parse(body) }},
		{"AppendHeaders", func() { headers = p.AppendHeaders(headers[:0]) }},
		{"AppendHeaders of a CNP", func() { headers = cnp.AppendHeaders(headers[:0]) }},
		{"SetHeaders and Seal", func() {
			burst.Reset()
			f := burst.Next()
			f.Path, f.Payload = &path, burst.Scratch(4096)
			f.SetHeaders(&p)
			f.Seal(0)
		}},
		{"CheckICRC, identification 0", func() { path.CheckICRC(b) }},
		{"CheckICRC, identification solved", func() { solved.CheckICRC(sb) }},
		{"CheckDatagram", func() { bth.CheckDatagram(datagram) }},
	} {
		if n := testing.AllocsPerRun(100, row.f); n != 0 {
			t.Errorf("%s: %v allocations", row.name, n)
		}
	}
}
