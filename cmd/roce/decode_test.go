package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	gplayers "github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/goroce/goroce/bth"
)

// captures gives the packets of each file in test/captures.
var captures = map[string]int{
	"atomic_fa": 10, "loss_write": 84, "mtu1024": 30, "rc_pingpong": 108,
	"rc_pingpong_v6": 100, "read_bw": 85, "rping": 41, "send_bw": 20,
	"srq_pingpong": 200, "ucmatose": 13, "ud_pingpong": 20, "write_bw": 85,
}

func capture(name string) string {
	return filepath.Join("..", "..", "test", "captures", name+".pcap")
}

func readCapture(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile(capture(name))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func wire(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// decodeSummary runs roce decode --json on the bytes of a file and returns the
// packets and the summary.
func decodeSummary(t *testing.T, file []byte) (packets []jsonPacket, s summary, r result) {
	t.Helper()
	r = runRoce(t, file, "decode", "--json", "-")
	for line := range strings.Lines(r.out) {
		if strings.HasPrefix(line, `{"type":"summary"`) {
			if err := json.Unmarshal([]byte(line), &s); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var p jsonPacket
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		packets = append(packets, p)
	}
	return packets, s, r
}

func TestDecodeCaptureHasNoBadICRC(t *testing.T) {
	for name, n := range captures {
		t.Run(name, func(t *testing.T) {
			got := runRoce(t, nil, "decode", capture(name))
			if got.code != 0 || got.err != "" || strings.Contains(got.out, "ICRC bad\n") {
				t.Errorf("exit status %d, %q", got.code, got.err)
			}
			if lines := strings.Count(got.out, "198.18.0.3  "); n != 100 && lines == 0 {
				t.Error("no packet to the server")
			}
			packets, s, r := decodeSummary(t, readCapture(t, name))
			if r.code != 0 || r.err != "" {
				t.Errorf("--json: exit status %d, %q", r.code, r.err)
			}
			if len(packets) != n || s.Packets != n || s.RoCE != n || s.ICRC["good"] != n || s.ICRC["bad"] != 0 || s.ICRC["unchecked"] != 0 {
				t.Errorf("%d packets printed, summary %+v; want %d good ones", len(packets), s, n)
			}
			if s.Notes != 0 || s.Truncated != 0 || len(s.Malformed) != 0 || len(s.NotRoCE) != 0 {
				t.Errorf("summary %+v", s)
			}
			if v := runRoce(t, nil, "decode", "-v", capture(name)); v.code != 0 || strings.Count(v.out, "good: nothing that it covers") != n {
				t.Errorf("-v: exit status %d", v.code)
			}
		})
	}
}

func TestDecodeLineShowsTheImportantFields(t *testing.T) {
	for _, row := range []struct {
		capture, want string
	}{
		{"atomic_fa", "     1     0.000000  198.18.0.2 → 198.18.0.3  RC FetchAdd qp 0x000021 psn 8340248 AckReq va 0x563bfb56b000 rkey 0x00001520 swap/add 1 compare 0\n"},
		{"loss_write", "    69     0.008926  198.18.0.3 → 198.18.0.2  RC Acknowledge qp 0x000031 psn 5613954 [NAK PSN sequence error msn 5]\n"},
		{"loss_write", "    70     0.009712  198.18.0.2 → 198.18.0.3  RC RDMA WRITE Middle qp 0x000031 psn 5613954 4096 bytes  repeated\n"},
		{"loss_write", "│ 198.18.0.3 │ 0x000031 │      74 │        295424 │       74 │   5613926 │  5613965 │       36 │    0 │\n"},
		{"rping", "     1     0.000000  198.18.0.2 → 198.18.0.3  UD SEND Only qp 0x000001 psn 0 AckReq qkey 0x80010000 from qp 0x000001 256 bytes\n"},
	} {
		if got := runRoce(t, nil, "decode", capture(row.capture)); !strings.Contains(got.out, row.want) {
			t.Errorf("%s: no line\n%s", row.capture, row.want)
		}
	}
}

func TestDecodeSummaryOnlyPrintsNoPacket(t *testing.T) {
	got := runRoce(t, nil, "decode", "--summary", capture("rping"))
	if got.code != 0 || strings.Contains(got.out, "→") || !strings.Contains(got.out, "│ RoCE                     │      41 │") {
		t.Errorf("%+v", got)
	}
	_, s, _ := decodeSummary(t, readCapture(t, "rping"))
	if onlyJSON := runRoce(t, nil, "decode", "--summary", "--json", capture("rping")); strings.Count(onlyJSON.out, "\n") != 1 || s.RoCE != 41 {
		t.Errorf("%+v", onlyJSON)
	}
}

func TestDecodeCorruptedPacketExits1AndIsMarked(t *testing.T) {
	file := readCapture(t, "atomic_fa")
	file[24+16+14+20+8+12+5] ^= 0x80 // in the first packet's AtomicETH
	got := runRoce(t, file, "decode", "-")
	if got.code != 1 || strings.Count(got.out, "  ICRC bad\n") != 1 {
		t.Errorf("exit status %d\n%s", got.code, got.out)
	}
	if want := "roce: standard input: 1 of 10 RoCE packets have a bad ICRC"; !strings.HasPrefix(got.err, want) || strings.Count(got.err, "\n") != 1 {
		t.Errorf("said %q", got.err)
	}
	packets, s, _ := decodeSummary(t, file)
	if packets[0].ICRC != "bad" || packets[0].ICRCComputed == packets[0].ICRCValue || packets[1].ICRC != "good" || s.ICRC["bad"] != 1 {
		t.Errorf("%+v %+v", packets[0], s)
	}
	if v := runRoce(t, file, "decode", "-v", "-"); !strings.Contains(v.out, "bad: 0x") {
		t.Error("-v does not say that the ICRC is bad")
	}
}

func TestDecodeUnreadableFileExits1AndSaysWhere(t *testing.T) {
	whole := readCapture(t, "atomic_fa")
	record := 16 + 14 + 20 + 8 + 12 + 28 + 4 // each of the first five, a FetchAdd
	hugeRecord := slices.Clone(whole)
	binary.LittleEndian.PutUint32(hugeRecord[24+record+8:], 1<<30)
	for _, row := range []struct {
		name    string
		file    []byte
		packets int
		want    string
	}{
		{"empty", nil, 0, "the file is empty"},
		{"two bytes", whole[:2], 0, "the file ends after 2 bytes, in its header"},
		{"header cut", whole[:23], 0, "the file ends after 23 bytes, in its header"},
		{"text", []byte("198.18.0.2 > 198.18.0.3: UDP\n"), 0, `this is no capture file (it begins with "198.")`},
		{"gzip", []byte("\x1f\x8b\x08\x00rest"), 0, "gunzip -c FILE"},
		{"pcap version 3", append(slices.Clone(whole[:4]), append([]byte{3, 0}, whole[6:]...)...), 0, "pcap version 3 is unknown"},
		{"record header cut", whole[:24+record+7], 1, fmt.Sprintf("packet 2 at byte %d: the file ends there, 7 of 16 bytes into it", 24+record)},
		{"packet cut", whole[:24+3*record+40], 3, fmt.Sprintf("packet 4 at byte %d: the file ends there, 40 of %d bytes into it", 24+3*record, record)},
		{"last byte missing", whole[:len(whole)-1], 9, "packet 10 at byte"},
		{"record of 1 GB", hugeRecord, 1, fmt.Sprintf("packet 2 at byte %d: its header says 1073741824 captured bytes", 24+record)},
		{"pcapng, nothing else", wire(t, "0a0d0d0a"), 0, "packet 1 at byte 0: the file ends there, 4 of 8 bytes"},
		{"pcapng, bad byte order", wire(t, "0a0d0d0a 1c000000 11223344 01000000 ffffffffffffffff 1c000000"), 0, "no valid byte-order mark"},
		{"pcapng, short section", wire(t, "0a0d0d0a 10000000 4d3c2b1a 10000000"), 0, "a section header of 16 bytes is impossible"},
		{"pcapng, section cut", wire(t, "0a0d0d0a 1c000000 4d3c2b1a 01000000"), 0, "the file ends there, 16 of 28 bytes"},
		{"pcapng, block length 9", ngFile(t, "06000000 09000000"), 0, "a block of 9 bytes is impossible"},
		{"pcapng, block length 0", ngFile(t, "0a000000 00000000"), 0, "a block of 0 bytes is impossible"},
		{"pcapng, huge packet block", ngFile(t, "06000000 00000040"), 0, "longer than any packet"},
		{"pcapng, unknown block cut", ngFile(t, "0b000000 20000000 00000000"), 0, "the file ends there, 12 of 32 bytes"},
		{"pcapng, lengths differ", ngFile(t, "03000000 10000000 00000000 14000000"), 0, "begins with a length of 16 and ends with one of 20"},
		{"pcapng, unknown interface", ngFile(t, "06000000 20000000 07000000 0000000000000000 00000000 00000000 20000000"), 0, "names interface 7"},
		{"pcapng, packet longer than its block", ngFile(t, "06000000 20000000 00000000 0000000000000000 00010000 00010000 20000000"), 0, "says 256 captured bytes, but its block holds 0"},
		{"pcapng, short packet block", ngFile(t, "06000000 10000000 00000000 10000000"), 0, "a block of type 6 is too short"},
		{"pcapng, no interface", wire(t, "0a0d0d0a 1c000000 4d3c2b1a 01000000 ffffffffffffffff 1c000000 03000000 10000000 00000000 10000000"), 0, "before any description of an interface"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := runRoce(t, row.file, "decode", "-")
			if got.code != 1 || !strings.HasPrefix(got.err, "roce: standard input: ") || !strings.Contains(got.err, row.want) || strings.Count(got.err, "\n") != 1 {
				t.Errorf("exit status %d, %q; want one sentence with %q", got.code, got.err, row.want)
			}
			if n := strings.Count(got.out, "→"); n != row.packets {
				t.Errorf("%d packets decoded before, want %d", n, row.packets)
			}
			if before := fmt.Sprintf("(%d packets before it were decoded", row.packets); row.packets > 0 && !strings.Contains(got.err, before) {
				t.Errorf("%q lacks %q", got.err, before)
			}
		})
	}
}

func TestDecodeNoSuchFileExits1(t *testing.T) {
	got := runRoce(t, nil, "decode", "no-such.pcap")
	if got.code != 1 || got.out != "" || !strings.Contains(got.err, "no-such.pcap: no such file") {
		t.Errorf("%+v", got)
	}
}

func TestDecodeCaptureWithoutPacketsExits0(t *testing.T) {
	got := runRoce(t, readCapture(t, "rping")[:24], "decode", "-")
	if got.code != 0 || !strings.Contains(got.out, "0 packets") {
		t.Errorf("%+v", got)
	}
}

// ngFile is a little-endian pcapng file with one Ethernet interface, then body.
func ngFile(tb testing.TB, body string) []byte {
	return wire(tb, `0a0d0d0a 1c000000 4d3c2b1a 01000000 ffffffffffffffff 1c000000
		01000000 14000000 0100 0000 00000400 14000000`+body)
}

// frames returns the Ethernet frames of a capture.
func frames(tb testing.TB, name string) (fs [][]byte, times []time.Time) {
	tb.Helper()
	r, err := pcapgo.NewReader(bytes.NewReader(readCapture(tb, name)))
	if err != nil {
		tb.Fatal(err)
	}
	for {
		data, ci, err := r.ReadPacketData()
		if err == io.EOF {
			return fs, times
		}
		if err != nil {
			tb.Fatal(err)
		}
		fs, times = append(fs, data), append(times, ci.Timestamp)
	}
}

func TestDecodePcapngGivesWhatPcapGives(t *testing.T) {
	for name := range captures {
		fs, times := frames(t, name)
		var file bytes.Buffer
		w, err := pcapgo.NewNgWriter(&file, gplayers.LinkTypeEthernet)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range fs {
			ci := gopacket.CaptureInfo{Timestamp: times[i], CaptureLength: len(f), Length: len(f)}
			if err := w.WritePacket(ci, f); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		ng, pcap := runRoce(t, file.Bytes(), "decode", "--json", "-"), runRoce(t, nil, "decode", "--json", capture(name))
		if ng != pcap {
			t.Errorf("%s: pcapng\n%s\npcap\n%s", name, ng.out, pcap.out)
		}
	}
}

// ack is vector A of the ICRC: an acknowledgement, 48 bytes of IPv4.
const ack = `4500003000004000401126bb0a0000020a000001 c00012b7001c0000 1140ffff0000001100000001 1f000001 65832057`

func TestDecodePcapngBlocks(t *testing.T) {
	frame := "000000000001 000000000002 0800" + ack // 62 bytes, so 2 of block padding follow
	for _, row := range []struct {
		name string
		file []byte
		time string
	}{
		{"enhanced packet, microseconds", ngFile(t, "06000000 60000000 00000000 5ab10500 00937a3d 3e000000 3e000000"+frame+"0000 60000000"), ""},
		{"old packet block", ngFile(t, "02000000 60000000 0000 ffff 00000000 40420f00 3e000000 3e000000"+frame+"0000 60000000"), "1970-01-01T00:00:01Z"},
		{"simple packet", ngFile(t, "03000000 50000000 3e000000"+frame+"0000 50000000"), "-"},
		{"unknown blocks around", ngFile(t, "0b000000 10000000 deadbeef 10000000 03000000 50000000 3e000000"+frame+"0000 50000000 0a000000 0c000000 0c000000"), "-"},
		{"packet options", ngFile(t, "06000000 6c000000 00000000 00000000 40420f00 3e000000 3e000000"+frame+"0000 01000200 68690000 00000000 6c000000"), "1970-01-01T00:00:01Z"},
		{"nanoseconds", wire(t, `0a0d0d0a 1c000000 4d3c2b1a 01000000 ffffffffffffffff 1c000000
			01000000 20000000 0100 0000 00000400 09000100 09000000 00000000 20000000
			06000000 60000000 00000000 00000000 01ca9a3b 3e000000 3e000000`+frame+"0000 60000000"), "1970-01-01T00:00:01.000000001Z"},
		{"half seconds and an offset", wire(t, `0a0d0d0a 1c000000 4d3c2b1a 01000000 ffffffffffffffff 1c000000
			01000000 28000000 0100 0000 00000400 09000100 81000000 0e000800 0a00000000000000 28000000
			06000000 60000000 00000000 00000000 03000000 3e000000 3e000000`+frame+"0000 60000000"), "1970-01-01T00:00:11.5Z"},
		{"a resolution beyond 64 bits", wire(t, `0a0d0d0a 1c000000 4d3c2b1a 01000000 ffffffffffffffff 1c000000
			01000000 20000000 0100 0000 00000400 09000100 7f000000 00000000 20000000
			06000000 60000000 00000000 00000000 01ca9a3b 3e000000 3e000000`+frame+"0000 60000000"), "-"},
		{"big endian", wire(t, `0a0d0d0a 0000001c 1a2b3c4d 0001 0000 ffffffffffffffff 0000001c
			00000001 00000014 0001 0000 00040000 00000014
			00000006 00000060 00000000 00000000 000f4240 0000003e 0000003e`+frame+"0000 00000060"), "1970-01-01T00:00:01Z"},
		{"second section", append(ngFile(t, ""), ngFile(t, "03000000 50000000 3e000000"+frame+"0000 50000000")...), "-"},
	} {
		t.Run(row.name, func(t *testing.T) {
			packets, s, r := decodeSummary(t, row.file)
			if r.code != 0 || len(packets) != 1 || s.ICRC["good"] != 1 {
				t.Fatalf("%+v", r)
			}
			got := "-"
			if ts := packets[0].Timestamp; ts != nil {
				got = ts.Format(time.RFC3339Nano)
			}
			if row.time != "" && got != row.time {
				t.Errorf("time %s, want %s", got, row.time)
			}
		})
	}
}

func TestDecodePcapByteOrdersAndResolutions(t *testing.T) {
	frame := "000000000001 000000000002 0800" + ack
	for _, row := range []struct {
		name, file, time string
	}{
		{"little endian, microseconds", "d4c3b2a1 0200 0400 00000000 00000000 00000400 01000000  01000000 02000000 3e000000 3e000000" + frame, "1970-01-01T00:00:01.000002Z"},
		{"little endian, nanoseconds", "4d3cb2a1 0200 0400 00000000 00000000 00000400 01000000  01000000 02000000 3e000000 3e000000" + frame, "1970-01-01T00:00:01.000000002Z"},
		{"big endian, microseconds", "a1b2c3d4 0002 0004 00000000 00000000 00040000 00000001  00000001 00000002 0000003e 0000003e" + frame, "1970-01-01T00:00:01.000002Z"},
		{"big endian, nanoseconds", "a1b23c4d 0002 0004 00000000 00000000 00040000 00000001  00000001 00000002 0000003e 0000003e" + frame, "1970-01-01T00:00:01.000000002Z"},
		{"frame check sequence noted in the link type", "d4c3b2a1 0200 0400 00000000 00000000 00000400 01000024  01000000 02000000 3e000000 3e000000" + frame, "1970-01-01T00:00:01.000002Z"},
	} {
		t.Run(row.name, func(t *testing.T) {
			packets, s, r := decodeSummary(t, wire(t, row.file))
			if r.code != 0 || len(packets) != 1 || s.ICRC["good"] != 1 {
				t.Fatalf("%+v", r)
			}
			if got := packets[0].Timestamp.Format(time.RFC3339Nano); got != row.time {
				t.Errorf("time %s, want %s", got, row.time)
			}
		})
	}
}

// pcapFile is a capture with the link type and packets given, each as long on
// the wire as captured.
func pcapFile(link uint32, packets ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, magicMicro)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0)
	b = binary.LittleEndian.AppendUint32(b, link)
	for i, p := range packets {
		for _, v := range []int{i, 0, len(p), len(p)} {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
		b = append(b, p...)
	}
	return b
}

const (
	ether     = "000000000001 000000000002 "
	v6Read    = `6001234500281140fe800000000000000000000000000001fe800000000000000000000000000002 c00012b700280000 0c40ffff0000001280000003 00000000000010000000123400001000 066fdb3c`
	v1Ack     = `6020000000141b40 00000000000000000000ffff0f000002 00000000000000000000ffff0f000002 1140ffff0000010900a788c0 00000005 25f0c038`
	vxlanHead = `45000062 00000000 40110000 0a0000630a000064 d00012b5004e0000 0800000000000700`
)

func TestDecodeLinkTypes(t *testing.T) {
	for _, row := range []struct {
		name  string
		link  uint32
		frame string
		check func(p jsonPacket) bool
	}{
		{"Ethernet", linkEthernet, ether + "0800" + ack, nil},
		{"Ethernet, IPv6", linkEthernet, ether + "86dd" + v6Read, func(p jsonPacket) bool { return p.Src == "fe80::1" && p.RETH.Length == 4096 && p.IPID == nil }},
		{"Ethernet, RoCEv1", linkEthernet, ether + "8915" + v1Ack, func(p jsonPacket) bool {
			return p.Version == 1 && p.Src == "::ffff:15.0.0.2" && p.SrcPort == nil && p.AETH.MSN == 5
		}},
		{"VLAN", linkEthernet, ether + "8100 6007 0800" + ack, func(p jsonPacket) bool { return slices.Equal(p.VLANs, []uint16{7}) }},
		{"two VLAN tags", linkEthernet, ether + "88a8 0064 8100 6007 0800" + ack, func(p jsonPacket) bool { return slices.Equal(p.VLANs, []uint16{100, 7}) }},
		{"VXLAN", linkEthernet, ether + "0800" + vxlanHead + ether + "0800" + ack, func(p jsonPacket) bool { return p.Src == "10.0.0.2" }},
		{"Linux cooked", linkSLL, "0000 0001 0006 0200000000010000 0800" + ack, nil},
		{"Linux cooked, RoCEv1", linkSLL, "0000 0001 0006 0200000000010000 8915" + v1Ack, func(p jsonPacket) bool { return p.Version == 1 }},
		{"Linux cooked v2", linkSLL2, "0800 0000 00000002 0001 00 06 0200000000010000" + ack, nil},
		{"raw IP", linkRaw, ack, nil},
		{"raw IP, OpenBSD", linkRawOBSD, ack, nil},
		{"raw IP, BSD", linkRawBSD, v6Read, nil},
		{"raw IPv4", linkIPv4, ack, nil},
		{"raw IPv6", linkIPv6, v6Read, nil},
		{"BSD loopback", linkNull, "02000000" + ack, nil},
		{"BSD loopback, IPv6", linkNull, "1e000000" + v6Read, nil},
		{"OpenBSD loopback", linkLoop, "00000002" + ack, nil},
		{"Ethernet padding", linkEthernet, ether + "0800" + ack + "0000000000000000", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			packets, s, r := decodeSummary(t, pcapFile(row.link, wire(t, row.frame)))
			if r.code != 0 || len(packets) != 1 || s.ICRC["good"] != 1 || s.Notes != 0 {
				t.Fatalf("%+v", r)
			}
			if row.check != nil && !row.check(packets[0]) {
				t.Errorf("%s", r.out)
			}
		})
	}
}

func TestDecodeCountsWhatIsNotRoCEByReason(t *testing.T) {
	v4 := func(flags, proto, port string) string {
		return ether + "0800 4500002c 0000" + flags + "40" + proto + "0000 0a0000010a000002 c000" + port + "00180000 0440ffff0000001280ffffff 9c2f4c98"
	}
	for _, row := range []struct {
		name  string
		link  uint32
		frame string
		want  string
		line  bool // shown among the packets
	}{
		{"ARP", linkEthernet, ether + "0806 0001080006040001", skipNotIP, false},
		{"TCP", linkEthernet, v4("4000", "06", "12b7"), skipOtherProto, false},
		{"another port", linkEthernet, v4("4000", "11", "12b8"), skipOtherPort, false},
		{"from port 4791 to another", linkEthernet, ether + "0800 4500002c 00004000 40110000 0a0000010a000002 12b7c000 00180000 0440ffff0000001280ffffff 9c2f4c98", skipOtherPort, false},
		{"first fragment", linkEthernet, v4("2000", "11", "12b7"), skipFragment, true},
		{"later fragment", linkEthernet, v4("0005", "11", "12b7"), skipFragment, true},
		{"IPv6 fragment", linkEthernet, ether + "86dd 60000000 0020 2c 40 fe800000000000000000000000000001fe800000000000000000000000000002 1100000100000001 c00012b700180000 0440ffff0000001280ffffff 9c2f4c98", skipFragment, true},
		{"IPv4 options", linkEthernet, ether + "0800 46000030 00004000 40110000 0a0000010a000002 01010100 c00012b700180000 0440ffff0000001280ffffff 9c2f4c98", skipOptions, true},
		{"IPv6 hop-by-hop", linkEthernet, ether + "86dd 60000000 0020 00 40 fe800000000000000000000000000001fe800000000000000000000000000002 1100010400000000 c00012b700180000 0440ffff0000001280ffffff 9c2f4c98", skipExtension, true},
		{"IPv6 destination options", linkEthernet, ether + "86dd 60000000 0020 3c 40 fe800000000000000000000000000001fe800000000000000000000000000002 1100010400000000 c00012b700180000 0440ffff0000001280ffffff 9c2f4c98", skipExtension, true},
		{"IP header broken", linkEthernet, ether + "0800 43000030 00004000 40110000 0a0000010a000002", skipBroken, true},
		{"IP header cut", linkEthernet, ether + "0800 45000030 00004000", skipCut, true},
		{"GRH with another next header", linkEthernet, ether + "8915" + strings.Replace(v1Ack, "1b40", "3b40", 1), skipOtherGRH, true},
		{"no bytes", linkEthernet, "", skipEmpty, false},
		{"Linux cooked v2 cut", linkSLL2, "0800 0000", skipEmpty, false},
		{"a length that makes gopacket panic", linkSLL, "0000 0001 ffff 0200000000010000 0800" + ack, skipBroken, true},
		{"unknown link type", 147, ack, "link type 147, which is not supported", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			file := pcapFile(row.link, wire(t, row.frame))
			packets, s, r := decodeSummary(t, file)
			if r.code != 0 || len(packets) != 0 || s.RoCE != 0 || s.NotRoCE[row.want] != 1 {
				t.Errorf("%+v", r)
			}
			text := runRoce(t, file, "decode", "-").out
			if line := strings.Contains(text, "     1     0.000000  "+row.want); line != row.line {
				t.Errorf("a line of its own: %v, want %v\n%s", line, row.line, text)
			}
			if !strings.Contains(text, "│   "+row.want) {
				t.Errorf("the summary lacks the reason\n%s", text)
			}
		})
	}
}

func TestDecodeMalformedPacketIsShownAndCounted(t *testing.T) {
	v4 := func(roce string) string {
		b := wire(t, roce)
		return ether + "0800" + fmt.Sprintf("4500%04x", 28+len(b)) + "00004000 40110000 0a0000010a000002 c00012b7" + fmt.Sprintf("%04x0000", 8+len(b)) + roce
	}
	for _, row := range []struct {
		name, frame, want string
	}{
		{"reserved opcode", v4("1540ffff0000001280ffffff 00000000"), "reserved opcode 0x15 qp 0x000012 psn 16777215  malformed: reserved or unknown opcode"},
		{"version 1", v4("0441ffff0000001280ffffff 00000000"), "malformed: transport version (TVer) is not 0"},
		{"RETH missing", v4("0a40ffff0000001280ffffff 00000000"), "malformed: packet is shorter than the headers of its opcode"},
		{"payload on an acknowledgement", v4("1140ffff0000001280ffffff 1f000001 00000000 00000000"), "malformed: payload on an opcode that carries none"},
		{"three bytes", v4("1140ff"), "10.0.0.1 → 10.0.0.2  malformed: packet is shorter"},
		{"no bytes", v4(""), "10.0.0.1 → 10.0.0.2  malformed: packet is shorter"},
	} {
		t.Run(row.name, func(t *testing.T) {
			file := pcapFile(linkEthernet, wire(t, row.frame))
			got := runRoce(t, file, "decode", "-")
			if !strings.Contains(got.out, row.want) {
				t.Errorf("want %q in\n%s", row.want, got.out)
			}
			packets, s, _ := decodeSummary(t, file)
			if len(packets) != 1 || packets[0].Malformed == "" || len(s.Malformed) != 1 || s.RoCE != 1 {
				t.Errorf("%+v %+v", packets, s)
			}
			if v := runRoce(t, file, "decode", "-v", "-"); !strings.Contains(v.out, "  Malformed: malformed: ") {
				t.Errorf("-v: %s", v.out)
			}
		})
	}
}

// tcpdump -s cuts packets: what is there is shown, the ICRC cannot be checked.
func TestDecodeTruncatedPacketIsUnchecked(t *testing.T) {
	fs, _ := frames(t, "send_bw")
	whole := fs[0]
	for n := range whole {
		if n > 200 && n < len(whole)-8 {
			continue // the same over and over
		}
		_, s, r := decodeSummary(t, pcapFile(linkEthernet, whole[:n]))
		const headers = 14 + 20 + 8
		switch {
		case r.code != 0:
			t.Fatalf("%d bytes: exit status %d, %s", n, r.code, r.err)
		case n == 0:
		case n < 14+20+8 && s.RoCE == 0 && s.NotRoCE[skipCut]+s.NotRoCE[skipBroken]+s.NotRoCE[skipOtherProto]+s.NotRoCE[skipNotIP] == 1:
		case n >= headers && s.Truncated == 1 && s.ICRC["unchecked"] == 1 && len(s.Malformed) == 0:
		default:
			t.Errorf("%d bytes: %s", n, r.out)
		}
	}
	got := runRoce(t, pcapFile(linkEthernet, whole[:100]), "decode", "-")
	if !strings.Contains(got.out, "46 bytes  cut off by the capture\n") {
		t.Errorf("%s", got.out)
	}
}

// superDatagram is what a capture on the sending host sees with segmentation
// offload: packets of one size behind one header, sealed for the identifications
// that they will get.
func superDatagram(tb testing.TB, src, dst string, sizes ...int) []byte {
	path := bth.Path{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SrcPort: 0xC123}
	var body []byte
	for i, n := range sizes {
		op := bth.WriteMiddle
		if i == len(sizes)-1 {
			op = bth.WriteLast
		}
		p := bth.Packet{BTH: bth.BTH{Opcode: op, PKey: 0xFFFF, DestQP: 7, PSN: bth.NewPSN(uint32(i))}, Payload: bytes.Repeat([]byte{byte(i)}, n)}
		b := p.AppendTo(nil)
		body = append(body, bth.AppendICRC(b, path.ICRC(uint16(5+i), b, nil, 0))...)
	}
	var d []byte
	if path.Src.Is4() {
		d = wire(tb, ether+"0800 4500"+fmt.Sprintf("%04x", 28+len(body))+"0005 4000 40110000")
	} else {
		d = wire(tb, ether+"86dd 60000000"+fmt.Sprintf("%04x", 8+len(body))+"1140")
	}
	d = append(append(d, path.Src.AsSlice()...), path.Dst.AsSlice()...)
	d = append(d, 0xC1, 0x23, 0x12, 0xB7)
	d = append(binary.BigEndian.AppendUint16(d, uint16(8+len(body))), 0, 0)
	return append(d, body...)
}

func TestDecodeSplitsADatagramCapturedBeforeSegmentation(t *testing.T) {
	for _, row := range []struct{ src, dst string }{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		file := pcapFile(linkEthernet, superDatagram(t, row.src, row.dst, 1024, 1024, 1024, 10))
		packets, s, r := decodeSummary(t, file)
		if r.code != 0 || len(packets) != 4 || s.Packets != 1 || s.RoCE != 4 || s.Segments != 4 || s.ICRC["good"] != 4 {
			t.Fatalf("%+v", r)
		}
		for i, p := range packets {
			if p.Number != 1 || p.Segment != i+1 || p.BTH.PSN != uint32(i) || p.IPID != nil && *p.IPID != uint16(5+i) {
				t.Errorf("segment %d: %+v", i+1, p)
			}
		}
		if got := runRoce(t, file, "decode", "-"); !strings.Contains(got.out, "   1.4     0.000000") {
			t.Errorf("%s", got.out)
		}
	}
}

func TestDecodeSegmentWithABitErrorIsBad(t *testing.T) {
	d := superDatagram(t, "192.0.2.1", "192.0.2.2", 256, 256, 256)
	d[len(d)-100] ^= 4
	_, s, r := decodeSummary(t, pcapFile(linkEthernet, d))
	if r.code != 1 || s.ICRC["good"] != 2 || s.ICRC["bad"] != 1 {
		t.Errorf("%+v", r)
	}
}

func TestDecodeOddPacketHasANote(t *testing.T) {
	for _, row := range []struct {
		name string
		p    bth.Packet
		pad  uint8
		want string
	}{
		{"First without a whole MTU", bth.Packet{BTH: bth.BTH{Opcode: bth.SendFirst}, Payload: make([]byte, 100)}, 0, "a path MTU (256 to 4096 bytes), not 100 bytes"},
		{"pad too long", bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly}, Payload: make([]byte, 4)}, 3, "4 bytes of payload take 0 of pad, not 3"},
		{"BECN", bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly, BECN: true}}, 0, "BECN"},
		{"SE", bth.Packet{BTH: bth.BTH{Opcode: bth.SendMiddle, Solicited: true}, Payload: make([]byte, 256)}, 0, "SE is set before"},
		{"huge message", bth.Packet{BTH: bth.BTH{Opcode: bth.ReadRequest}, RETH: bth.RETH{Length: 1<<31 + 1}}, 0, "exceeds 2^31"},
		{"WRITE Only of another length", bth.Packet{BTH: bth.BTH{Opcode: bth.WriteOnly}, RETH: bth.RETH{Length: 9}, Payload: make([]byte, 8)}, 0, "the RETH says 9 bytes, the packet carries 8"},
		{"atomic address", bth.Packet{BTH: bth.BTH{Opcode: bth.FetchAdd}, Atomic: bth.AtomicETH{VA: 4}}, 0, "not a multiple of 8"},
		{"reserved syndrome", bth.Packet{BTH: bth.BTH{Opcode: bth.Acknowledge}, AETH: bth.AETH{Syndrome: 0x40}}, 0, "syndrome is reserved"},
		{"READ response with a NAK", bth.Packet{BTH: bth.BTH{Opcode: bth.ReadRespOnly}, AETH: bth.AETH{Syndrome: bth.NAKInvalid}}, 0, "carries a NAK"},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.p.PadCount = row.pad
			o := dissected{p: row.p, haveBTH: true}
			if got := oddities(&o); len(got) != 1 || !strings.Contains(got[0], row.want) {
				t.Errorf("notes %q, want one with %q", got, row.want)
			}
		})
	}
	frame := wire(t, ether+"0800"+ack)
	frame[14+20+5]-- // UDP length
	got := runRoce(t, pcapFile(linkEthernet, frame), "decode", "-")
	if !strings.Contains(got.out, "(the UDP length, 27, disagrees with the IP length)") {
		t.Errorf("%s", got.out)
	}
}

func TestDecodeVerboseExplainsEveryHeader(t *testing.T) {
	for _, row := range []struct {
		op   bth.Opcode
		want []string
	}{
		{bth.UDSendOnlyImm, []string{"DETH (datagram", "ImmDt (immediate"}},
		{bth.WriteOnly.On(bth.XRC), []string{"XRCETH (extended", "RETH (RDMA"}},
		{bth.Flush, []string{"FETH (flush", "RETH (RDMA"}},
		{bth.CmpSwap, []string{"AtomicETH (atomic"}},
		{bth.AtomicAcknowledge, []string{"AETH (ACK", "AtomicAckETH"}},
		{bth.SendLastInv, []string{"IETH (invalidate"}},
		{bth.CNP, []string{"16 reserved bytes"}},
	} {
		o := dissected{haveBTH: true, p: bth.Packet{BTH: bth.BTH{Opcode: row.op}}, src: netip.MustParseAddr("::1"), dst: netip.MustParseAddr("::2")}
		var b bytes.Buffer
		printVerbose(&b, &o, 0)
		at := 0
		for _, w := range row.want {
			i := strings.Index(b.String()[at:], w)
			if i < 0 {
				t.Errorf("%v: no %q in order in\n%s", row.op, w, b.String())
				break
			}
			at += i
		}
	}
	for i := range 256 {
		if o := bth.Opcode(i); o.Valid() && opcodeMeaning(o) == operationMeaning[bth.OpNone] {
			t.Errorf("%v has no meaning", o)
		}
	}
}

// JSON must hold every header that the opcode has, and none that it lacks.
func TestDecodeJSONHasTheHeadersOfTheOpcode(t *testing.T) {
	names := []string{"deth", "xrceth", "feth", "reth", "atomiceth", "aeth", "atomicacketh", "immdt", "ieth"}
	for i := range 256 {
		op := bth.Opcode(i)
		if !op.Valid() {
			continue
		}
		var b bytes.Buffer
		o := dissected{haveBTH: true, p: bth.Packet{BTH: bth.BTH{Opcode: op}}}
		if err := printJSON(json.NewEncoder(&b), &o, 0); err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(b.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		for bit, name := range names {
			_, has := got[name]
			if want := op.Info().Headers&(1<<bit) != 0; has != want {
				t.Errorf("%v: %s present %v, want %v", op, name, has, want)
			}
		}
	}
}

func TestSummaryOfMoreQueuePairsThanItKeeps(t *testing.T) {
	s := newSummary()
	o := dissected{haveBTH: true, p: bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly}}}
	for i := range maxQPs + 5 {
		o.p.DestQP = bth.QPN(i)
		s.add(&o)
	}
	s.finish()
	if len(s.QPs) != maxQPs || s.OtherQPs != 5 || s.RoCE != maxQPs+5 {
		t.Errorf("%d queue pairs, %d packets to others, %d in all", len(s.QPs), s.OtherQPs, s.RoCE)
	}
	var b bytes.Buffer
	s.print(&b)
	if !strings.Contains(b.String(), fmt.Sprintf("and %d more", maxQPs-50)) {
		t.Errorf("%s", b.String())
	}
}

func TestSummaryCountsRepeatedRequestsAcrossTheWrap(t *testing.T) {
	s := newSummary()
	for _, psn := range []uint32{0xFFFFFE, 0xFFFFFF, 0, 1, 0xFFFFFF, 0, 2} {
		s.add(&dissected{haveBTH: true, p: bth.Packet{BTH: bth.BTH{Opcode: bth.SendOnly, PSN: bth.NewPSN(psn)}}})
	}
	s.finish()
	if q := s.QPs[0]; q.Repeated != 2 || q.Packets != 7 || q.FirstPSN != 0xFFFFFE || q.LastPSN != 2 {
		t.Errorf("%+v", q)
	}
}

// Answers have the PSNs of the other direction: they are no part of the range.
func TestSummaryKeepsPSNsOfAnswersOut(t *testing.T) {
	s := newSummary()
	for _, p := range []bth.BTH{
		{Opcode: bth.Acknowledge, PSN: bth.NewPSN(7)}, {Opcode: bth.SendOnly, PSN: bth.NewPSN(100)},
		{Opcode: bth.SendOnly, PSN: bth.NewPSN(101)}, {Opcode: bth.Acknowledge, PSN: bth.NewPSN(8)},
		{Opcode: bth.Acknowledge, PSN: bth.NewPSN(9), DestQP: 5},
	} {
		s.add(&dissected{haveBTH: true, p: bth.Packet{BTH: p}})
	}
	s.finish()
	if q := s.QPs[0]; q.Packets != 4 || q.Requests != 2 || q.FirstPSN != 100 || q.LastPSN != 101 {
		t.Errorf("%+v", q)
	}
	var b strings.Builder
	s.print(&b)
	if !regexp.MustCompile(`0x000005 .* 0 │ +- │ +- │`).MatchString(b.String()) {
		t.Errorf("%s", b.String())
	}
}

func TestDecodeOfTheNullDeviceIsEmptyNotATerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var out, errOut bytes.Buffer
	code := run(t.Context(), []string{"decode", "-"}, null, &out, &errOut)
	if code != 1 || !strings.Contains(errOut.String(), "standard input: the file is empty") {
		t.Errorf("exit status %d, %q", code, errOut.String())
	}
}

func TestSummaryTimeGoingBackIsNoNegativeDuration(t *testing.T) {
	s := newSummary()
	for _, sec := range []int64{10, 12, 3} {
		s.record(&record{time: time.Unix(sec, 0)})
	}
	if s.Duration != 2 {
		t.Errorf("duration %v", s.Duration)
	}
}

func TestMeterShowsProgressOnlyAfterTwoSeconds(t *testing.T) {
	var b bytes.Buffer
	m := newMeter(&b)
	m.update(1024, 1<<20)
	m.clear()
	if b.Len() != 0 {
		t.Errorf("at once: %q", b.String())
	}
	m.start = m.start.Add(-3 * time.Second)
	m.update(2048, 5<<20)
	m.update(3072, 6<<20) // too soon after the last
	if b.String() != "\r2048 packets, 5 MB" {
		t.Errorf("%q", b.String())
	}
	m.clear()
	if !strings.HasSuffix(b.String(), "\r") {
		t.Errorf("not cleared: %q", b.String())
	}
}

// failingWriter is a full disk.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestDecodeOutputThatCannotBeWrittenExits1(t *testing.T) {
	var errOut bytes.Buffer
	code := run(t.Context(), []string{"decode", capture("read_bw")}, nil, failingWriter{}, &errOut)
	if code != 1 || errOut.String() != "roce: cannot write the output: disk full\n" {
		t.Errorf("exit status %d, %q", code, errOut.String())
	}
}

// A live capture is shown packet by packet, not when a buffer is full.
func TestDecodeShowsPacketsBeforeItWaitsForMore(t *testing.T) {
	file := readCapture(t, "atomic_fa")
	in, feed := io.Pipe()
	out, done := &syncBuffer{seen: make(chan struct{}, 100)}, make(chan error, 1)
	go func() {
		_, err := decode(t.Context(), in, out, nil, decodeOptions{})
		done <- err
	}()
	record := 16 + 14 + 20 + 8 + 12 + 28 + 4
	feed.Write(file[:24+record])
	<-out.seen
	feed.Write(file[24+record:])
	feed.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if first := out.writes[0]; !strings.Contains(first, "FetchAdd") || strings.Contains(first, "Queue pairs") {
		t.Errorf("first output %q", first)
	}
}

type syncBuffer struct {
	writes []string
	seen   chan struct{}
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.writes = append(s.writes, string(b))
	s.seen <- struct{}{}
	return len(b), nil
}

// Whoever stops a live capture still gets its summary.
func TestDecodeStoppedPrintsTheSummary(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var out, errOut bytes.Buffer
	code := run(ctx, []string{"decode", capture("rping")}, nil, &out, &errOut)
	if code != 0 || errOut.Len() != 0 || !strings.Contains(out.String(), "0 packets in") {
		t.Errorf("exit status %d, %q\n%s", code, errOut.String(), out.String())
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, mode := range []struct {
		name string
		o    decodeOptions
	}{{"summary", decodeOptions{summaryOnly: true}}, {"line", decodeOptions{}}, {"json", decodeOptions{json: true}}, {"verbose", decodeOptions{verbose: true}}} {
		b.Run("output="+mode.name, func(b *testing.B) {
			file := readCapture(b, "write_bw")
			b.SetBytes(int64(len(file)))
			for b.Loop() {
				if _, err := decode(b.Context(), bytes.NewReader(file), io.Discard, nil, mode.o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for name := range captures {
		file := readCapture(f, name)
		f.Add(file[:min(len(file), 3000)])
	}
	f.Add(pcapFile(linkSLL, wire(f, "0000 0001 0006 0200000000010000 0800"+ack)))
	f.Add(pcapFile(linkSLL2, wire(f, "0800 0000 00000002 0001 00 06 0200000000010000"+ack)))
	f.Add(pcapFile(linkRaw, wire(f, ack), wire(f, v6Read)))
	f.Add(pcapFile(linkEthernet, wire(f, ether+"8915"+v1Ack), wire(f, ether+"0800"+vxlanHead+ether+"0800"+ack)))
	f.Add(pcapFile(linkEthernet, superDatagram(f, "192.0.2.1", "192.0.2.2", 256, 256, 4)))
	f.Add(ngFile(f, "03000000 50000000 3e000000"+ether+"0800"+ack+"00000000 50000000"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if len(file) > 1<<16 {
			return
		}
		for _, o := range []decodeOptions{{}, {verbose: true}, {json: true}} {
			s, err := decode(t.Context(), bytes.NewReader(file), io.Discard, nil, o)
			if err == nil && s == nil {
				t.Fatal("neither a summary nor an error")
			}
			if s == nil {
				continue
			}
			if s.ICRC["good"]+s.ICRC["bad"]+s.ICRC["unchecked"] != s.RoCE || s.RoCE-s.Segments+s.skipped() > s.Packets {
				t.Fatalf("the counts do not add up: %+v", s)
			}
		}
	})
}
