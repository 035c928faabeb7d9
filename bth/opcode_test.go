package bth_test

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/bth"
)

// specOpcodes is the opcode table as the standard prints it (IBA 9.2.1, annexes
// A14, A17 and A19), apart from that of the package. length counts the BTH; hdr
// lists what follows it on RC.
var specOpcodes = []struct {
	op      uint8
	name    string
	on      string // transports
	hdr     string
	length  int
	pos     bth.Position
	payload bool
	recv    bool // takes a receive work request
	answer  bool // goes from responder to requester
}{
	{0x00, "SEND First", "RC UC XRC", "", 12, bth.First, true, true, false},
	{0x01, "SEND Middle", "RC UC XRC", "", 12, bth.Middle, true, false, false},
	{0x02, "SEND Last", "RC UC XRC", "", 12, bth.Last, true, false, false},
	{0x03, "SEND Last with Immediate", "RC UC XRC", "ImmDt", 16, bth.Last, true, false, false},
	{0x04, "SEND Only", "RC UC UD XRC", "", 12, bth.Only, true, true, false},
	{0x05, "SEND Only with Immediate", "RC UC UD XRC", "ImmDt", 16, bth.Only, true, true, false},
	{0x06, "RDMA WRITE First", "RC UC XRC", "RETH", 28, bth.First, true, false, false},
	{0x07, "RDMA WRITE Middle", "RC UC XRC", "", 12, bth.Middle, true, false, false},
	{0x08, "RDMA WRITE Last", "RC UC XRC", "", 12, bth.Last, true, false, false},
	{0x09, "RDMA WRITE Last with Immediate", "RC UC XRC", "ImmDt", 16, bth.Last, true, true, false},
	{0x0A, "RDMA WRITE Only", "RC UC XRC", "RETH", 28, bth.Only, true, false, false},
	{0x0B, "RDMA WRITE Only with Immediate", "RC UC XRC", "RETH ImmDt", 32, bth.Only, true, true, false},
	{0x0C, "RDMA READ Request", "RC XRC", "RETH", 28, bth.Only, false, false, false},
	{0x0D, "RDMA READ Response First", "RC XRC", "AETH", 16, bth.First, true, false, true},
	{0x0E, "RDMA READ Response Middle", "RC XRC", "", 12, bth.Middle, true, false, true},
	{0x0F, "RDMA READ Response Last", "RC XRC", "AETH", 16, bth.Last, true, false, true},
	{0x10, "RDMA READ Response Only", "RC XRC", "AETH", 16, bth.Only, true, false, true},
	{0x11, "Acknowledge", "RC XRC", "AETH", 16, bth.Only, false, false, true},
	{0x12, "ATOMIC Acknowledge", "RC XRC", "AETH AtomicAckETH", 24, bth.Only, false, false, true},
	{0x13, "CmpSwap", "RC XRC", "AtomicETH", 40, bth.Only, false, false, false},
	{0x14, "FetchAdd", "RC XRC", "AtomicETH", 40, bth.Only, false, false, false},
	{0x16, "SEND Last with Invalidate", "RC XRC", "IETH", 16, bth.Last, true, false, false},
	{0x17, "SEND Only with Invalidate", "RC XRC", "IETH", 16, bth.Only, true, true, false},
	{0x1C, "FLUSH", "RC XRC", "FETH RETH", 32, bth.Only, false, false, false},
	{0x1D, "ATOMIC WRITE", "RC XRC", "RETH", 28, bth.Only, true, false, false},
}

var transports = map[string]bth.Transport{"RC": bth.RC, "UC": bth.UC, "UD": bth.UD, "XRC": bth.XRC}

// opcodeFacts is one row of either table, comparable.
type opcodeFacts struct {
	name      string
	transport bth.Transport
	hdr       string
	length    int
	pos       bth.Position
	payload   bool
	recv      bool
	request   bool
}

// wantOpcodes expands specOpcodes over the transports.
func wantOpcodes() map[bth.Opcode]opcodeFacts {
	base := map[string]uint8{"RC": 0x00, "UC": 0x20, "UD": 0x60, "XRC": 0xA0}
	m := map[bth.Opcode]opcodeFacts{
		0xC8: {"goroce Selective Acknowledge", bth.RC, "AETH", 16, bth.Only, true, false, false},
		0x81: {"CNP", bth.CNPClass, "reserved16", 28, bth.Only, false, false, false},
	}
	for _, s := range specOpcodes {
		var on [4]string
		n, _ := fmt.Sscan(s.on, &on[0], &on[1], &on[2], &on[3])
		for _, tr := range on[:n] {
			f := opcodeFacts{tr + " " + s.name, transports[tr], s.hdr, s.length, s.pos, s.payload, s.recv, !s.answer}
			extra, length := "", 0
			switch {
			case tr == "UD":
				extra, length = "DETH", 8
			case tr == "XRC" && !s.answer:
				extra, length = "XRCETH", 4
			}
			if extra != "" && f.hdr != "" {
				extra += " "
			}
			f.hdr, f.length = extra+f.hdr, f.length+length
			m[bth.Opcode(s.op|base[tr])] = f
		}
	}
	return m
}

// headerNames spells a set of headers in wire order.
func headerNames(h bth.Header) (s string) {
	for i, name := range []string{"DETH", "XRCETH", "FETH", "RETH", "AtomicETH", "AETH", "AtomicAckETH", "ImmDt", "IETH", "reserved16"} {
		if h&(1<<i) == 0 {
			continue
		}
		if s != "" {
			s += " "
		}
		s += name
	}
	return s
}

func TestOpcodeTableIsThatOfTheStandard(t *testing.T) {
	want := wantOpcodes()
	if len(want) != 25+12+2+25+2 {
		t.Fatalf("the table expected here has %d rows", len(want))
	}
	for i := range 256 {
		o := bth.Opcode(i)
		info := o.Info()
		w, exists := want[o]
		if o.Valid() != exists {
			t.Errorf("%#02x: valid %v, want %v", i, o.Valid(), exists)
		}
		if !exists {
			if info.Transport != bth.NoService || info.HeaderLen != bth.BTHLen || info.Payload || info.TakesRecv {
				t.Errorf("%#02x: reserved, but %+v", i, *info)
			}
			continue
		}
		got := opcodeFacts{info.Name, info.Transport, headerNames(info.Headers), int(info.HeaderLen), info.Pos, info.Payload, info.TakesRecv, info.Request}
		if got != w {
			t.Errorf("%#02x\n got %+v\nwant %+v", i, got, w)
		}
		if info.HeaderLen > bth.MaxHeaderLen {
			t.Errorf("%#02x: %d bytes exceed MaxHeaderLen", i, info.HeaderLen)
		}
	}
}

func TestOpcodeOnMovesAnOperationToAnotherTransport(t *testing.T) {
	for _, row := range []struct {
		got, want bth.Opcode
	}{
		{bth.WriteOnlyImm.On(bth.RC), 0x0B},
		{bth.WriteOnlyImm.On(bth.UC), 0x2B},
		{bth.SendOnly.On(bth.UD), bth.UDSendOnly},
		{bth.SendOnlyImm.On(bth.UD), bth.UDSendOnlyImm},
		{bth.FetchAdd.On(bth.XRC), 0xB4},
		{bth.Opcode(0xB4).On(bth.RC), bth.FetchAdd},
	} {
		if row.got != row.want {
			t.Errorf("got %#02x, want %#02x", uint8(row.got), uint8(row.want))
		}
	}
}

func TestPositionStartsAndEnds(t *testing.T) {
	for pos, want := range map[bth.Position][2]bool{
		bth.Only: {true, true}, bth.First: {true, false}, bth.Middle: {false, false}, bth.Last: {false, true},
	} {
		if got := [2]bool{pos.Starts(), pos.Ends()}; got != want {
			t.Errorf("position %d: starts and ends %v, want %v", pos, got, want)
		}
	}
}
