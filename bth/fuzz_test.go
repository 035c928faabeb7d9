package bth_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/bth"
)

// seedPackets calls add with a few packets of each capture: more would only
// repeat opcodes.
func seedPackets(f *testing.F, add func(d []byte)) {
	const perCapture = 6
	for name := range capturePackets {
		ds := datagrams(f, name)
		for i := range min(perCapture, len(ds)) {
			add(ds[i*len(ds)/perCapture%len(ds)])
		}
	}
}

// canonical reports whether b holds nothing that parsing drops: reserved bits,
// pad of a length or content that a sender would not choose.
func canonical(p *bth.Packet, b []byte) bool {
	reserved := b[4]&0x3F | b[8]&0x7F
	at := bth.BTHLen
	h := p.Opcode.Info().Headers
	switch {
	case h&(bth.HasDETH) != 0:
		reserved |= b[at+4]
	case h&bth.HasCNPPad != 0:
		for _, c := range b[at:p.Opcode.Info().HeaderLen] {
			reserved |= c
		}
	}
	if h&bth.HasXRCETH != 0 {
		reserved |= b[at]
		at += bth.XRCETHLen
	}
	if h&bth.HasFETH != 0 {
		reserved |= b[at] | b[at+1] | b[at+2] | b[at+3]&0xC0
	}
	for _, c := range b[len(b)-int(p.PadCount):] {
		reserved |= c
	}
	return reserved == 0 && p.PadCount == bth.Pad(len(p.Payload))
}

func FuzzPacketParse(f *testing.F) {
	seedPackets(f, func(d []byte) {
		_, _, b := split(d)
		f.Add(b[:len(b)-bth.ICRCLen])
	})
	for _, row := range codecRows {
		f.Add(wire(f, row.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p bth.Packet
		if err := p.Parse(b); err != nil {
			return
		}
		if len(p.Payload)+int(p.PadCount)+int(p.Opcode.Info().HeaderLen) != len(b) {
			t.Fatalf("%v: lengths do not add up to %d", &p, len(b))
		}
		headers := p.AppendHeaders(nil)
		if len(headers) != int(p.Opcode.Info().HeaderLen) {
			t.Fatalf("%v: %d header bytes, the table says %d", &p, len(headers), p.Opcode.Info().HeaderLen)
		}
		same := canonical(&p, b)
		again := p.AppendTo(nil)
		if same && !bytes.Equal(again, b) {
			t.Fatalf("%v\n got %x\nfrom %x", &p, again, b)
		}
		var q bth.Packet
		if err := q.Parse(again); err != nil {
			t.Fatalf("%v: own bytes %x: %v", &p, again, err)
		}
		if q.String() != p.String() || !bytes.Equal(q.Payload, p.Payload) {
			t.Fatalf("parsed again: %v, before: %v", &q, &p)
		}
	})
}

func FuzzCheckICRC(f *testing.F) {
	seedPackets(f, func(d []byte) {
		path, _, b := split(d)
		f.Add(path.Src.AsSlice(), path.Dst.AsSlice(), path.SrcPort, b)
	})
	f.Fuzz(func(t *testing.T, src, dst []byte, port uint16, b []byte) {
		p := bth.Path{SrcPort: port}
		var ok1, ok2 bool
		p.Src, ok1 = netip.AddrFromSlice(src)
		p.Dst, ok2 = netip.AddrFromSlice(dst)
		if !ok1 || !ok2 || p.Src.Is4() != p.Dst.Is4() || len(b) > 60000 {
			return
		}
		id, ok := p.CheckICRC(b)
		if !ok {
			return
		}
		// What passes must be what a sender with that identification made,
		// DF set or clear.
		d := ipPacket(&p, id, b)
		c, r, valid := bth.CheckDatagram(d)
		if valid && c != r && p.Src.Is4() {
			binary.BigEndian.PutUint16(d[6:], 0)
			c, r, valid = bth.CheckDatagram(d)
		}
		if !valid || c != r {
			t.Fatalf("accepted as identification %#04x, but %08x is not %08x (%v)", id, c, r, valid)
		}
	})
}

// ipPacket puts IP and UDP headers before b, with DF set.
func ipPacket(p *bth.Path, id uint16, b []byte) []byte {
	udp := binary.BigEndian.AppendUint16(nil, p.SrcPort)
	udp = binary.BigEndian.AppendUint16(udp, bth.Port)
	udp = append(binary.BigEndian.AppendUint16(udp, uint16(8+len(b))), 0, 0)
	var d []byte
	if p.Src.Is4() {
		d = binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(28+len(b)))
		d = binary.BigEndian.AppendUint16(d, id)
		d = append(d, 0x40, 0, 64, 17, 0, 0)
	} else {
		d = binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(8+len(b)))
		d = append(d, 17, 64)
	}
	d = append(append(d, p.Src.AsSlice()...), p.Dst.AsSlice()...)
	return append(append(d, udp...), b...)
}

func FuzzCheckDatagram(f *testing.F) {
	seedPackets(f, func(d []byte) { f.Add(d) })
	for _, v := range icrcVectors {
		f.Add(wire(f, v.wire))
	}
	f.Fuzz(func(t *testing.T, d []byte) {
		c, r, ok := bth.CheckDatagram(d)
		if !ok {
			return
		}
		var total int
		if d[0]>>4 == 4 {
			total = int(binary.BigEndian.Uint16(d[2:]))
		} else {
			total = 40 + int(binary.BigEndian.Uint16(d[4:]))
		}
		if total > len(d) || r != binary.LittleEndian.Uint32(d[total-4:]) {
			t.Fatalf("received CRC %08x is not at the end of %d bytes", r, total)
		}
		// Sealed with the computed CRC the packet is good; and cut by a byte it is
		// refused.
		d = bytes.Clone(d[:total])
		binary.LittleEndian.PutUint32(d[total-4:], c)
		if c2, r2, ok := bth.CheckDatagram(d); !ok || c2 != c || r2 != c {
			t.Fatalf("sealed: computed %08x, received %08x, %v; want %08x", c2, r2, ok, c)
		}
		if _, _, ok := bth.CheckDatagram(d[:total-1]); ok {
			t.Fatal("accepted without its last byte")
		}
	})
}
