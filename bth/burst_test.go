package bth_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/bth"
)

// A sealed frame must be the packet that was captured, for every ID and family.
func TestFrameSealedEqualsTheCapturedPacket(t *testing.T) {
	burst := bth.NewBurst(1, 4096)
	forEachCaptured(t, func(t *testing.T, i int, d []byte) {
		path, id, b := split(d)
		var p bth.Packet
		if err := p.Parse(b[:len(b)-bth.ICRCLen]); err != nil {
			t.Fatal(err)
		}
		burst.Reset()
		f := burst.Next()
		f.Path, f.Payload = &path, p.Payload
		f.SetHeaders(&p)
		f.Seal(id)
		if got := f.AppendTo(nil); !bytes.Equal(got, b) || f.Len() != len(b) {
			t.Errorf("packet %d: length %d\n got %x\nwant %x", i+1, f.Len(), got, b)
		}
	})
}

// GSO gives each segment an identification of its own, so a frame is sealed
// again when it moves.
func TestFrameSealedAgainTakesTheNewIdentification(t *testing.T) {
	path, _, _ := split(wire(t, icrcVectors[7].wire))
	p := bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly, PadCount: 3}}
	f := bth.NewBurst(1, 8).Next()
	f.Path, f.Payload = &path, []byte("hello")
	f.SetHeaders(&p)
	for _, id := range []uint16{7, 0, 0xFFFF} {
		f.Seal(id)
		if got, ok := path.CheckICRC(f.AppendTo(nil)); !ok || got != id {
			t.Errorf("sealed with %d: found %d, %v", id, got, ok)
		}
		if len(f.Trailer()) != 3+bth.ICRCLen {
			t.Errorf("trailer % x", f.Trailer())
		}
	}
}

// A corrupt frame is refused at every length, although over IPv4 the check
// solves for an identification that would explain the difference.
func TestFrameCorruptIsRefusedAtEveryLength(t *testing.T) {
	v4, _, _ := split(wire(t, icrcVectors[7].wire))
	v6 := bth.Path{Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2"), SrcPort: bth.Port}
	payload := make([]byte, 4096+bth.MaxHeaderLen-bth.BTHLen) // as long as any packet
	p := bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly}}
	var b []byte
	for _, path := range []*bth.Path{&v4, &v6} {
		for n := range len(payload) + 1 {
			f := bth.Frame{Path: path, Payload: payload[:n], Corrupt: true}
			p.PadCount = bth.Pad(n)
			f.SetHeaders(&p)
			f.Seal(0)
			b = f.AppendTo(b[:0])
			if id, ok := path.CheckICRC(b); ok {
				t.Fatalf("%d bytes from %v: accepted with identification %d", n, path.Src, id)
			}
		}
	}
}

func TestBurstFullGivesNoFrame(t *testing.T) {
	b := bth.NewBurst(2, 64)
	first, second := b.Next(), b.Next()
	if first == nil || second == nil || b.Free() != 0 {
		t.Fatalf("two frames wanted: %v, %v, %d free", first, second, b.Free())
	}
	if f := b.Next(); f != nil {
		t.Error("a third frame in a burst of two")
	}
	b.Drop()
	if len(b.Frames()) != 1 || b.Free() != 1 {
		t.Errorf("after Drop: %d frames, %d free", len(b.Frames()), b.Free())
	}
	if f := b.Next(); f != second {
		t.Error("the dropped frame is not the next one")
	}
	b.Reset()
	if len(b.Frames()) != 0 || b.Free() != 2 {
		t.Errorf("after Reset: %d frames, %d free", len(b.Frames()), b.Free())
	}
}

func TestBurstNextFrameIsEmpty(t *testing.T) {
	path, _, _ := split(wire(t, icrcVectors[5].wire))
	b := bth.NewBurst(1, 64)
	f := b.Next()
	f.Path, f.Payload, f.Corrupt = &path, []byte{1}, true
	f.SetHeaders(&bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly}})
	f.Seal(0)
	b.Reset()
	if f = b.Next(); f.Path != nil || f.Payload != nil || f.Corrupt || len(f.Trailer()) != 0 {
		t.Errorf("path %v, payload %v, trailer %x", f.Path, f.Payload, f.Trailer())
	}
}

func TestBurstScratchAreasDoNotOverlap(t *testing.T) {
	b := bth.NewBurst(3, 4)
	var areas [3][]byte
	for i := range areas {
		areas[i] = b.Scratch(4)
		for j := range areas[i] {
			areas[i][j] = byte(i + 1)
		}
		areas[i] = append(areas[i], 0xFF)[:4] // must not reach the next one
	}
	for i, a := range areas {
		if !bytes.Equal(a, bytes.Repeat([]byte{byte(i + 1)}, 4)) {
			t.Errorf("area %d holds % x", i, a)
		}
	}
	b.Reset()
	if got := b.Scratch(1); len(got) != 1 {
		t.Errorf("after Reset: %d bytes", len(got))
	}
}

func TestDatagramCongestionExperiencedIsECN3(t *testing.T) {
	for tc, want := range map[uint8]bool{0: false, 1: false, 2: false, 3: true, 0xC2: false, 0xC3: true} {
		d := bth.Datagram{TrafficClass: tc}
		if got := d.CongestionExperienced(); got != want {
			t.Errorf("traffic class %#02x: %v", tc, got)
		}
	}
}
