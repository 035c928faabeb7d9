package bth_test

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/goroce/goroce/bth"
)

// codecRows holds each sequence of headers once, every field with a value of
// its own and none with a bit that two fields share.
var codecRows = []struct {
	name string
	wire string
	want bth.Packet
}{
	{"BTH with every flag",
		"04 f0 8001 c0 123456 80 fedcba 01 00 00 00",
		bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly, Solicited: true, MigReq: true, PadCount: 3, PKey: 0x8001,
			FECN: true, BECN: true, DestQP: 0x123456, AckReq: true, PSN: bth.NewPSN(0xFEDCBA)}, Payload: []byte{1}}},
	{"BTH with no flag",
		"04 00 0000 00 000001 00 000002",
		bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly, DestQP: 1, PSN: bth.NewPSN(2)}, Payload: []byte{}}},
	{"RETH",
		"06 00 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00010000 61626364",
		bth.Packet{BTH: bth.BTH{Opcode: bth.WriteFirst, PKey: 0xFFFF, DestQP: 0x11, PSN: bth.NewPSN(7)},
			RETH: bth.RETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, Length: 65536}, Payload: []byte("abcd")}},
	{"RETH and ImmDt",
		"0b 10 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00000003 c1c2c3c4 61626300",
		bth.Packet{BTH: bth.BTH{Opcode: bth.WriteOnlyImm, PadCount: 1, PKey: 0xFFFF, DestQP: 0x11, PSN: bth.NewPSN(7)},
			RETH: bth.RETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, Length: 3}, Imm: 0xC1C2C3C4, Payload: []byte("abc")}},
	{"AETH",
		"11 00 ffff 00 000011 00 000007 60 abcdef",
		bth.Packet{BTH: bth.BTH{Opcode: bth.Acknowledge, PKey: 0xFFFF, DestQP: 0x11, PSN: bth.NewPSN(7)},
			AETH: bth.AETH{Syndrome: bth.NAKSequence, MSN: bth.NewMSN(0xABCDEF)}, Payload: []byte{}}},
	{"AETH and AtomicAckETH",
		"12 00 ffff 00 000011 00 000007 1f 000001 1112131415161718",
		bth.Packet{BTH: bth.BTH{Opcode: bth.AtomicAcknowledge, PKey: 0xFFFF, DestQP: 0x11, PSN: bth.NewPSN(7)},
			AETH: bth.AETH{Syndrome: bth.SyndromeACK, MSN: bth.NewMSN(1)}, AtomicAck: 0x1112131415161718, Payload: []byte{}}},
	{"AtomicETH",
		"13 00 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 1112131415161718 2122232425262728",
		bth.Packet{BTH: bth.BTH{Opcode: bth.CmpSwap, PKey: 0xFFFF, DestQP: 0x11, PSN: bth.NewPSN(7)},
			Atomic: bth.AtomicETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, SwapAdd: 0x1112131415161718, Compare: 0x2122232425262728}, Payload: []byte{}}},
	{"IETH",
		"17 00 ffff 00 000011 00 000007 e1e2e3e4 61626364",
		bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnlyInv, PKey: 0xFFFF, DestQP: 0x11, PSN: bth.NewPSN(7)},
			InvKey: 0xE1E2E3E4, Payload: []byte("abcd")}},
	{"FETH and RETH",
		"1c 00 ffff 00 000011 00 000007 00000012 0102030405060708 a1a2a3a4 00001000",
		bth.Packet{BTH: bth.BTH{Opcode: bth.Flush, PKey: 0xFFFF, DestQP: 0x11, PSN: bth.NewPSN(7)},
			FETH: bth.FETH{Selectivity: 1, Placement: 2},
			RETH: bth.RETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, Length: 4096}, Payload: []byte{}}},
	{"DETH",
		"64 40 ffff 00 000001 00 000007 80010000 00000012 61626364",
		bth.Packet{BTH: bth.BTH{Opcode: bth.UDSendOnly, MigReq: true, PKey: 0xFFFF, DestQP: 1, PSN: bth.NewPSN(7)},
			DETH: bth.DETH{QKey: bth.QKeyGSI, SrcQP: 0x12}, Payload: []byte("abcd")}},
	{"DETH and ImmDt",
		"65 00 ffff 00 ffffff 00 000007 11111111 00fffffe c1c2c3c4 61626364",
		bth.Packet{BTH: bth.BTH{Opcode: bth.UDSendOnlyImm, PKey: 0xFFFF, DestQP: bth.QPNMulticast, PSN: bth.NewPSN(7)},
			DETH: bth.DETH{QKey: 0x11111111, SrcQP: 0xFFFFFE}, Imm: 0xC1C2C3C4, Payload: []byte("abcd")}},
	{"XRCETH, RETH and ImmDt",
		"ab 00 ffff 00 000011 00 000007 00d1d2d3 0102030405060708 a1a2a3a4 00000004 c1c2c3c4 61626364",
		bth.Packet{BTH: bth.BTH{Opcode: bth.WriteOnlyImm.On(bth.XRC), PKey: 0xFFFF, DestQP: 0x11, PSN: bth.NewPSN(7)}, XRCSRQ: 0xD1D2D3,
			RETH: bth.RETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, Length: 4}, Imm: 0xC1C2C3C4, Payload: []byte("abcd")}},
	{"CNP",
		"81 00 ffff 40 000118 00 000000 00000000000000000000000000000000",
		bth.Packet{BTH: bth.BTH{Opcode: bth.CNP, PKey: 0xFFFF, BECN: true, DestQP: 0x118}, Payload: []byte{}}},
}

func TestPacketParseGivesEveryField(t *testing.T) {
	for _, row := range codecRows {
		t.Run(row.name, func(t *testing.T) {
			var p bth.Packet
			if err := p.Parse(wire(t, row.wire)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(p, row.want) {
				t.Errorf("\n got %+v\nwant %+v", p, row.want)
			}
		})
	}
}

func TestPacketAppendToGivesTheWireBytes(t *testing.T) {
	for _, row := range codecRows {
		t.Run(row.name, func(t *testing.T) {
			p := row.want
			p.PadCount = 0 // AppendTo finds it
			if got, want := p.AppendTo([]byte("before")), wire(t, row.wire); !bytes.Equal(got, append([]byte("before"), want...)) {
				t.Errorf("\n got %x\nwant %x", got, want)
			}
		})
	}
}

// Reserved bits are 0 when sent and ignored when received (IBA 9.2).
func TestPacketParseReservedBitsAreIgnored(t *testing.T) {
	for _, row := range []struct {
		name, clear, set string
	}{
		{"BTH", "04 00 ffff 00 000011 00 000007", "04 00 ffff 3f 000011 7f 000007"},
		{"DETH", "64 00 ffff 00 000011 00 000007 80010000 00000012", "64 00 ffff 00 000011 00 000007 80010000 ff000012"},
		{"XRCETH", "a4 00 ffff 00 000011 00 000007 00000012", "a4 00 ffff 00 000011 00 000007 ff000012"},
		{"FETH", "1c 00 ffff 00 000011 00 000007 00000012 0102030405060708 a1a2a3a4 00001000",
			"1c 00 ffff 00 000011 00 000007 ffffffd2 0102030405060708 a1a2a3a4 00001000"},
		{"CNP", "81 00 ffff 40 000118 00 000000 00000000000000000000000000000000",
			"81 00 ffff 40 000118 00 000000 ffffffffffffffffffffffffffffffff"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var p bth.Packet
			if err := p.Parse(wire(t, row.set)); err != nil {
				t.Fatal(err)
			}
			if got, want := p.AppendTo(nil), wire(t, row.clear); !bytes.Equal(got, want) {
				t.Errorf("\n got %x\nwant %x", got, want)
			}
		})
	}
}

func TestPacketParseMalformedIsRefusedWithTheReason(t *testing.T) {
	for _, row := range []struct {
		name string
		wire string
		want bth.ParseError
	}{
		{"empty", "", bth.ErrTruncated},
		{"one byte short of a BTH", "04 00 ffff 00 000011 00 0000", bth.ErrTruncated},
		{"one byte short of a RETH", "0a 00 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 000000", bth.ErrTruncated},
		{"reserved opcode", "15 00 ffff 00 000011 00 000007", bth.ErrOpcode},
		{"reserved opcode of a version that is none", "15 01 ffff 00 000011 00 000007", bth.ErrOpcode},
		{"UC without READ", "2c 00 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00000000", bth.ErrOpcode},
		{"reliable datagram", "44 00 ffff 00 000011 00 000007 00000000 00000000 00000000", bth.ErrOpcode},
		{"manufacturer opcode", "c0 00 ffff 00 000011 00 000007", bth.ErrOpcode},
		{"transport version 1", "04 01 ffff 00 000011 00 000007", bth.ErrVersion},
		{"pad without payload", "04 10 ffff 00 000011 00 000007", bth.ErrPad},
		{"pad longer than what follows", "04 30 ffff 00 000011 00 000007 0000", bth.ErrPad},
		{"payload on an acknowledgement", "11 00 ffff 00 000011 00 000007 1f 000001 00", bth.ErrPayload},
		{"payload on a READ request", "0c 00 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00000000 00", bth.ErrPayload},
		{"payload on a CNP", "81 00 ffff 40 000118 00 000000 00000000000000000000000000000000 00", bth.ErrPayload},
	} {
		t.Run(row.name, func(t *testing.T) {
			var p bth.Packet
			if err := p.Parse(wire(t, row.wire)); err != row.want {
				t.Errorf("got %v, want %v", err, row.want)
			}
		})
	}
}

func TestPacketParseTruncatedAtAnyLengthIsRefused(t *testing.T) {
	for i := range 256 {
		o := bth.Opcode(i)
		b := make([]byte, bth.MaxHeaderLen)
		b[0] = byte(o)
		n := int(o.Info().HeaderLen)
		want := error(bth.ErrTruncated)
		if !o.Valid() {
			want = bth.ErrOpcode
		}
		var p bth.Packet
		for l := range n {
			w := want
			if l < bth.BTHLen {
				w = bth.ErrTruncated
			}
			if err := p.Parse(b[:l:l]); err != w {
				t.Errorf("%v cut to %d of %d bytes: %v, want %v", o, l, n, err, w)
			}
		}
		if err := p.Parse(b[:n:n]); o.Valid() != (err == nil) {
			t.Errorf("%v whole: %v", o, err)
		}
	}
}

func TestHeaderParseTruncatedAtAnyLengthIsRefused(t *testing.T) {
	for _, row := range []struct {
		name  string
		n     int
		parse func(b []byte) ([]byte, error)
	}{
		{"BTH", bth.BTHLen, func(b []byte) ([]byte, error) { _, r, err := bth.ParseBTH(b); return r, err }},
		{"RETH", bth.RETHLen, func(b []byte) ([]byte, error) { _, r, err := bth.ParseRETH(b); return r, err }},
		{"AETH", bth.AETHLen, func(b []byte) ([]byte, error) { _, r, err := bth.ParseAETH(b); return r, err }},
		{"AtomicETH", bth.AtomicETHLen, func(b []byte) ([]byte, error) { _, r, err := bth.ParseAtomicETH(b); return r, err }},
		{"DETH", bth.DETHLen, func(b []byte) ([]byte, error) { _, r, err := bth.ParseDETH(b); return r, err }},
		{"FETH", bth.FETHLen, func(b []byte) ([]byte, error) { _, r, err := bth.ParseFETH(b); return r, err }},
	} {
		for l := range row.n {
			if _, err := row.parse(make([]byte, l)); err != bth.ErrTruncated {
				t.Errorf("%s cut to %d bytes: %v", row.name, l, err)
			}
		}
		if rest, err := row.parse(make([]byte, row.n+3)); err != nil || len(rest) != 3 {
			t.Errorf("%s with 3 bytes after it: %d left, %v", row.name, len(rest), err)
		}
	}
}

// A hostile value must not reach into the neighbouring field.
func TestHeaderAppendToCutsValuesThatAreTooWide(t *testing.T) {
	for _, row := range []struct {
		name string
		got  []byte
		want string
	}{
		{"BTH", (&bth.BTH{Opcode: 4, PadCount: 0xFF, Version: 0xF0, DestQP: 0xFF000011}).AppendTo(nil), "04 30 0000 00 000011 00 000000"},
		{"DETH", bth.DETH{SrcQP: 0xFF000011}.AppendTo(nil), "00000000 00000011"},
		{"FETH", bth.FETH{Selectivity: 0xFD, Placement: 0xF2}.AppendTo(nil), "00000012"},
		{"XRCETH", (&bth.Packet{BTH: bth.BTH{Opcode: 0xA4}, XRCSRQ: 0xFF000011}).AppendTo(nil), "a4 00 0000 00 000000 00 000000 00000011"},
	} {
		if want := wire(t, row.want); !bytes.Equal(row.got, want) {
			t.Errorf("%s: got %x, want %x", row.name, row.got, want)
		}
	}
}

func TestPadFillsToAMultipleOfFour(t *testing.T) {
	for n, want := range []uint8{0, 3, 2, 1, 0, 3, 2, 1, 0} {
		if got := bth.Pad(n); got != want {
			t.Errorf("Pad(%d) = %d, want %d", n, got, want)
		}
		p := bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly}, Payload: bytes.Repeat([]byte{0xFF}, n)}
		b := p.AppendTo(nil)
		if len(b) != bth.BTHLen+n+int(want) || p.PadCount != want || bytes.Count(b[bth.BTHLen+n:], []byte{0}) != int(want) {
			t.Errorf("%d bytes: %x, pad %d", n, b, p.PadCount)
		}
	}
}

// Every way to be malformed says something of its own.
func TestParseErrorTextsDiffer(t *testing.T) {
	seen := map[string]bth.ParseError{}
	for e := bth.ParseError(0); e <= bth.ErrPayload; e++ {
		if other, dup := seen[e.Error()]; dup {
			t.Errorf("%d and %d both say %q", other, e, e.Error())
		}
		seen[e.Error()] = e
	}
}
