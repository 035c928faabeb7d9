package bth_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goroce/goroce/bth"
)

// capturePackets is the number of packets in each capture of test/captures.
var capturePackets = map[string]int{
	"atomic_fa": 10, "loss_write": 84, "mtu1024": 30, "rc_pingpong": 108,
	"rc_pingpong_v6": 100, "read_bw": 85, "rping": 41, "send_bw": 20,
	"srq_pingpong": 200, "ucmatose": 13, "ud_pingpong": 20, "write_bw": 85,
}

// datagrams returns the IP packets of a capture: a little-endian pcap of
// Ethernet frames without VLAN tags.
func datagrams(tb testing.TB, name string) [][]byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("..", "test", "captures", name+".pcap"))
	if err != nil {
		tb.Fatal(err)
	}
	const fileHeader, recordHeader, etherHeader = 24, 16, 14
	var ds [][]byte
	for b = b[fileHeader:]; len(b) > 0; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		ds = append(ds, b[recordHeader+etherHeader:recordHeader+n])
		b = b[recordHeader+n:]
	}
	return ds
}

// forEachCaptured calls f with every packet of every capture.
func forEachCaptured(t *testing.T, f func(t *testing.T, i int, d []byte)) {
	for name, want := range capturePackets {
		t.Run(name, func(t *testing.T) {
			ds := datagrams(t, name)
			if len(ds) != want {
				t.Errorf("%d packets, want %d", len(ds), want)
			}
			for i, d := range ds {
				f(t, i, d)
			}
		})
	}
}

// split takes an IP packet apart, as a UDP socket would: the path and the bytes
// from the BTH to the ICRC. id is the IPv4 identification, 0 for IPv6.
func split(d []byte) (p bth.Path, id uint16, b []byte) {
	at := 40
	if d[0]>>4 == 4 {
		at = 20
		id = binary.BigEndian.Uint16(d[4:])
		p.Src, _ = netip.AddrFromSlice(d[12:16])
		p.Dst, _ = netip.AddrFromSlice(d[16:20])
	} else {
		p.Src, _ = netip.AddrFromSlice(d[8:24])
		p.Dst, _ = netip.AddrFromSlice(d[24:40])
	}
	p.SrcPort = binary.BigEndian.Uint16(d[at:])
	return p, id, d[at+8 : at+int(binary.BigEndian.Uint16(d[at+4:]))]
}

// wire decodes hexadecimal, ignoring white space.
func wire(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestCapturedPacketHasGoodICRC(t *testing.T) {
	forEachCaptured(t, func(t *testing.T, i int, d []byte) {
		if c, r, ok := bth.CheckDatagram(d); !ok || c != r {
			t.Errorf("packet %d: computed %08x, received %08x, ok %v", i+1, c, r, ok)
		}
	})
}

func TestCapturedPacketParsesAndEncodesToTheSameBytes(t *testing.T) {
	forEachCaptured(t, func(t *testing.T, i int, d []byte) {
		_, _, b := split(d)
		b = b[:len(b)-bth.ICRCLen]
		var p bth.Packet
		if err := p.Parse(b); err != nil {
			t.Errorf("packet %d: %v", i+1, err)
			return
		}
		if got := p.AppendTo(nil); !bytes.Equal(got, b) {
			t.Errorf("packet %d: %v\n got %x\nwant %x", i+1, &p, got, b)
		}
	})
}

func TestCapturedPacketICRCIsCheckedWithoutItsIdentification(t *testing.T) {
	var known, solved int
	forEachCaptured(t, func(t *testing.T, i int, d []byte) {
		path, want, b := split(d)
		id, ok := path.CheckICRC(b)
		if !ok || id != want {
			t.Errorf("packet %d: identification %#04x, %v; want %#04x", i+1, id, ok, want)
		}
		if want == 0 {
			known++
		} else {
			solved++
		}
	})
	if known == 0 || solved == 0 {
		t.Errorf("%d packets with identification 0 and %d with another: both are wanted", known, solved)
	}
}
