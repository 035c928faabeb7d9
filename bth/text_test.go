package bth_test

import (
	"testing"

	"github.com/goroce/goroce/bth"
)

func TestPacketStringNamesWhatItCarries(t *testing.T) {
	for _, row := range []struct{ wire, want string }{
		{"04 f0 8001 c0 123456 80 fedcba 01 00 00 00", "RC SEND Only qp 0x123456 psn 16702650 AckReq SE FECN BECN 1 bytes"},
		{"0b 10 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00000003 c1c2c3c4 61626300",
			"RC RDMA WRITE Only with Immediate qp 0x000011 psn 7 va 0x102030405060708 rkey 0xa1a2a3a4 len 3 imm 0xc1c2c3c4 3 bytes"},
		{"12 00 ffff 00 000011 00 000007 1f 000001 0000000000000005", "RC ATOMIC Acknowledge qp 0x000011 psn 7 [ACK msn 1] original 5"},
		{"13 00 ffff 00 000011 00 000007 0000000000001000 a1a2a3a4 0000000000000002 0000000000000003",
			"RC CmpSwap qp 0x000011 psn 7 va 0x1000 rkey 0xa1a2a3a4 swap/add 2 compare 3"},
		{"17 00 ffff 00 000011 00 000007 e1e2e3e4", "RC SEND Only with Invalidate qp 0x000011 psn 7 invalidate 0xe1e2e3e4"},
		{"64 40 ffff 00 000001 00 000007 80010000 00000012 61626364", "UD SEND Only qp 0x000001 psn 7 qkey 0x80010000 from qp 0x000012 4 bytes"},
	} {
		var p bth.Packet
		if err := p.Parse(wire(t, row.wire)); err != nil {
			t.Fatal(err)
		}
		if got := p.String(); got != row.want {
			t.Errorf("\n got %s\nwant %s", got, row.want)
		}
	}
}

func TestStringsUseTheStandardsWords(t *testing.T) {
	for _, row := range []struct {
		got  interface{ String() string }
		want string
	}{
		{bth.Opcode(0x15), "reserved opcode 0x15"},
		{bth.CNP, "CNP"},
		{bth.RC, "RC"}, {bth.UC, "UC"}, {bth.UD, "UD"}, {bth.XRC, "XRC"}, {bth.CNPClass, "CNP"}, {bth.NoService, "none"},
		{bth.SyndromeACK, "ACK"},
		{bth.SyndromeCredits(5), "ACK, 6 credits"},
		{bth.SyndromeRNR(1), "RNR NAK, wait 10µs"},
		{bth.NAKSequence, "NAK PSN sequence error"},
		{bth.NAKInvalid, "NAK invalid request"},
		{bth.NAKRemoteAccess, "NAK remote access error"},
		{bth.NAKRemoteOp, "NAK remote operational error"},
		{bth.NAKInvalidRDReq, "NAK invalid RD request"},
		{bth.Syndrome(0x65), "NAK reserved code 5"},
		{bth.Syndrome(0x40), "reserved syndrome 0x40"},
		{bth.Syndrome(0x80), "reserved syndrome 0x80"},
		{bth.NewPSN(16777215), "16777215"},
		{bth.NewMSN(1), "1"},
	} {
		if got := row.got.String(); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}
