package layers_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/gopacket"
	gplayers "github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/bth/layers"
)

// frames returns the Ethernet frames of every capture, by file name.
func frames(tb testing.TB) map[string][][]byte {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "test", "captures", "*.pcap"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("no captures: %v", err)
	}
	m := map[string][][]byte{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			tb.Fatal(err)
		}
		r, err := pcapgo.NewReader(f)
		if err != nil {
			tb.Fatal(err)
		}
		for {
			data, _, err := r.ReadPacketData()
			if err == io.EOF {
				break
			}
			if err != nil {
				tb.Fatal(err)
			}
			m[filepath.Base(name)] = append(m[filepath.Base(name)], data)
		}
		f.Close()
	}
	return m
}

func wire(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// names lists the layers from the BTH (or GRH) on.
func names(p gopacket.Packet) []string {
	var s []string
	for _, l := range p.Layers() {
		if len(s) > 0 || l.LayerType() == layers.LayerTypeBTH || l.LayerType() == layers.LayerTypeGRH {
			s = append(s, l.LayerType().String())
		}
	}
	return s
}

func TestCaptureDecodesToTheLayersOfItsOpcodes(t *testing.T) {
	for name, fs := range frames(t) {
		t.Run(name, func(t *testing.T) {
			for i, frame := range fs {
				p := gopacket.NewPacket(frame, gplayers.LayerTypeEthernet, gopacket.Default)
				if e := p.ErrorLayer(); e != nil {
					t.Fatalf("packet %d: %v", i+1, e.Error())
				}
				var want bth.Packet
				udp := p.TransportLayer().LayerPayload()
				if err := want.Parse(udp[:len(udp)-bth.ICRCLen]); err != nil {
					t.Fatal(err)
				}
				got := p.Layer(layers.LayerTypeBTH).(*layers.BTH)
				if got.BTH != want.BTH {
					t.Errorf("packet %d: %+v, want %+v", i+1, got.BTH, want.BTH)
				}
				if c, r, ok := layers.CheckICRC(p); !ok || c != r || r != p.Layer(layers.LayerTypeICRC).(*layers.ICRC).Value {
					t.Errorf("packet %d: ICRC computed %08x, received %08x, %v", i+1, c, r, ok)
				}
				var payload []byte
				if a := p.ApplicationLayer(); a != nil {
					payload = a.Payload()
				}
				if !bytes.Equal(payload, want.Payload) {
					t.Errorf("packet %d: payload %x, want %x", i+1, payload, want.Payload)
				}
				covered := len(got.LayerContents()) + len(got.LayerPayload()) + bth.ICRCLen
				if covered != len(udp) {
					t.Errorf("packet %d: BTH and its payload cover %d of %d bytes", i+1, covered, len(udp))
				}
			}
		})
	}
}

// udp4 puts Ethernet, IPv4 and UDP headers before a RoCE packet, with an ICRC
// of zeros after it.
func udp4(packet []byte) []byte {
	packet = append(slices.Clone(packet), 0, 0, 0, 0)
	b := append(make([]byte, 12), 0x08, 0x00)
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(28+len(packet)))
	b = append(b, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0xC1, 0x23, 0x12, 0xB7)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(packet)))
	return append(append(b, 0, 0), packet...)
}

var headerRows = []struct {
	name string
	wire string
	want []string
	ext  []gopacket.Layer // extended headers, without contents and payload
}{
	{"nothing but a BTH", "04 40 ffff 00 000011 80 000007", []string{"BTH", "ICRC"}, nil},
	{"RETH", "06 40 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00010000 61626364",
		[]string{"BTH", "RETH", "Payload", "ICRC"},
		[]gopacket.Layer{&layers.RETH{RETH: bth.RETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, Length: 65536}}}},
	{"RETH and ImmDt, padded", "0b 50 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00000003 c1c2c3c4 61626300",
		[]string{"BTH", "RETH", "ImmDt", "Payload", "ICRC"},
		[]gopacket.Layer{&layers.RETH{RETH: bth.RETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, Length: 3}}, &layers.ImmDt{Value: 0xC1C2C3C4}}},
	{"AETH", "11 40 ffff 00 000011 00 000007 60 abcdef", []string{"BTH", "AETH", "ICRC"},
		[]gopacket.Layer{&layers.AETH{AETH: bth.AETH{Syndrome: bth.NAKSequence, MSN: bth.NewMSN(0xABCDEF)}}}},
	{"AETH and AtomicAckETH", "12 40 ffff 00 000011 00 000007 1f 000001 1112131415161718",
		[]string{"BTH", "AETH", "AtomicAckETH", "ICRC"},
		[]gopacket.Layer{&layers.AETH{AETH: bth.AETH{Syndrome: bth.SyndromeACK, MSN: bth.NewMSN(1)}}, &layers.AtomicAckETH{Original: 0x1112131415161718}}},
	{"AtomicETH", "13 40 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 1112131415161718 2122232425262728",
		[]string{"BTH", "AtomicETH", "ICRC"},
		[]gopacket.Layer{&layers.AtomicETH{AtomicETH: bth.AtomicETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, SwapAdd: 0x1112131415161718, Compare: 0x2122232425262728}}}},
	{"IETH", "17 40 ffff 00 000011 00 000007 e1e2e3e4 61626364", []string{"BTH", "IETH", "Payload", "ICRC"},
		[]gopacket.Layer{&layers.IETH{RKey: 0xE1E2E3E4}}},
	{"FETH and RETH", "1c 40 ffff 00 000011 00 000007 00000012 0102030405060708 a1a2a3a4 00001000",
		[]string{"BTH", "FETH", "RETH", "ICRC"},
		[]gopacket.Layer{&layers.FETH{FETH: bth.FETH{Selectivity: 1, Placement: 2}}, &layers.RETH{RETH: bth.RETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, Length: 4096}}}},
	{"DETH and ImmDt", "65 40 ffff 00 000001 00 000007 80010000 00000012 c1c2c3c4 61626364",
		[]string{"BTH", "DETH", "ImmDt", "Payload", "ICRC"},
		[]gopacket.Layer{&layers.DETH{DETH: bth.DETH{QKey: bth.QKeyGSI, SrcQP: 0x12}}, &layers.ImmDt{Value: 0xC1C2C3C4}}},
	{"XRCETH and RETH", "aa 40 ffff 00 000011 00 000007 00d1d2d3 0102030405060708 a1a2a3a4 00000004 61626364",
		[]string{"BTH", "XRCETH", "RETH", "Payload", "ICRC"},
		[]gopacket.Layer{&layers.XRCETH{SRQ: 0xD1D2D3}, &layers.RETH{RETH: bth.RETH{VA: 0x0102030405060708, RKey: 0xA1A2A3A4, Length: 4}}}},
	{"CNP", "81 00 ffff 40 000118 00 000000 00000000000000000000000000000000", []string{"BTH", "CNP", "ICRC"},
		[]gopacket.Layer{&layers.CNP{}}},
}

// bare returns a copy of the layer without the bytes it was decoded from.
func bare(l gopacket.Layer) gopacket.Layer {
	c := reflect.New(reflect.TypeOf(l).Elem())
	c.Elem().Set(reflect.ValueOf(l).Elem())
	c.Elem().FieldByName("BaseLayer").SetZero()
	return c.Interface().(gopacket.Layer)
}

func TestPacketDecodesToOneLayerPerHeader(t *testing.T) {
	for _, row := range headerRows {
		for _, opts := range []gopacket.DecodeOptions{gopacket.Default, gopacket.Lazy} {
			t.Run(row.name, func(t *testing.T) {
				p := gopacket.NewPacket(udp4(wire(t, row.wire)), gplayers.LayerTypeEthernet, opts)
				if got := names(p); !slices.Equal(got, row.want) {
					t.Fatalf("layers %v, want %v", got, row.want)
				}
				at := slices.IndexFunc(p.Layers(), func(l gopacket.Layer) bool { return l.LayerType() == layers.LayerTypeBTH })
				for i, want := range row.ext {
					if got := bare(p.Layers()[at+1+i]); !reflect.DeepEqual(got, want) {
						t.Errorf("layer %d: %+v, want %+v", i, got, want)
					}
				}
			})
		}
	}
}

func TestSerializedLayersAreTheBytesTheyCameFrom(t *testing.T) {
	for _, row := range headerRows {
		t.Run(row.name, func(t *testing.T) {
			frame := udp4(wire(t, row.wire))
			p := gopacket.NewPacket(frame, gplayers.LayerTypeEthernet, gopacket.Default)
			buf := gopacket.NewSerializeBuffer()
			if err := gopacket.SerializePacket(buf, gopacket.SerializeOptions{}, p); err != nil {
				t.Fatal(err)
			}
			if got := buf.Bytes()[:len(frame)]; !bytes.Equal(got, frame) {
				t.Errorf("\n got %x\nwant %x", got, frame)
			}
		})
	}
}

func TestSerializedCaptureGetsTheSameICRC(t *testing.T) {
	for name, fs := range frames(t) {
		t.Run(name, func(t *testing.T) {
			for i, frame := range fs {
				p := gopacket.NewPacket(frame, gplayers.LayerTypeEthernet, gopacket.Default)
				icrc := p.Layer(layers.LayerTypeICRC).(*layers.ICRC)
				icrc.Value = 0xDEAD
				b := p.Layer(layers.LayerTypeBTH).(*layers.BTH)
				b.PadCount = 0 // to be set right
				udp := p.TransportLayer().(*gplayers.UDP)
				b.SetNetworkLayerForICRC(p.NetworkLayer(), udp)
				udp.SetNetworkLayerForChecksum(p.NetworkLayer())
				buf := gopacket.NewSerializeBuffer()
				opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
				if err := gopacket.SerializePacket(buf, opts, p); err != nil {
					t.Fatal(err)
				}
				got := buf.Bytes()[:len(frame)]
				udpAt := len(frame) - len(udp.LayerPayload()) - 8
				if frame[udpAt+6] == 0 && frame[udpAt+7] == 0 { // rxe sends no UDP checksum
					got[udpAt+6], got[udpAt+7] = 0, 0
				}
				if !bytes.Equal(got, frame) {
					t.Fatalf("packet %d\n got %x\nwant %x", i+1, got, frame)
				}
			}
		})
	}
}

// Packets of RoCEv1 that an adapter sent.
var roceV1 = []struct {
	name, wire string
	want       []string
}{
	{"RDMA WRITE Only", `6020000000281b40 00000000000000000000ffff0f000002 00000000000000000000ffff0f000002
		0a70ffff0000010a80a788bc 000055d4c0726000000047b300000005 0000000001000000 e3d856bb`,
		[]string{"GRH", "BTH", "RETH", "Payload", "ICRC"}},
	{"Acknowledge", `6020000000141b40 00000000000000000000ffff0f000002 00000000000000000000ffff0f000002
		1140ffff0000010900a788c0 00000005 25f0c038`, []string{"GRH", "BTH", "AETH", "ICRC"}},
}

func TestRoCEv1DecodesByEtherType(t *testing.T) {
	for _, row := range roceV1 {
		t.Run(row.name, func(t *testing.T) {
			frame := append(append(make([]byte, 12), 0x89, 0x15), wire(t, row.wire)...)
			frame = append(frame, 0, 0, 0) // Ethernet padding
			p := gopacket.NewPacket(frame, gplayers.LayerTypeEthernet, gopacket.Default)
			if got := names(p); !slices.Equal(got, row.want) {
				t.Errorf("layers %v, want %v", got, row.want)
			}
			if c, r, ok := layers.CheckICRC(p); !ok || c != r {
				t.Errorf("ICRC computed %08x, received %08x, %v", c, r, ok)
			}
			src, dst := p.NetworkLayer().NetworkFlow().Endpoints()
			if want := "15.0.0.2"; src.String() != want || dst.String() != want {
				t.Errorf("flow %v to %v, want %v", src, dst, want)
			}
		})
	}
}

func TestRoCEv1SerializesToTheSameBytes(t *testing.T) {
	for _, row := range roceV1 {
		t.Run(row.name, func(t *testing.T) {
			want := wire(t, row.wire)
			p := gopacket.NewPacket(want, layers.LayerTypeGRH, gopacket.Default)
			p.Layer(layers.LayerTypeBTH).(*layers.BTH).SetNetworkLayerForICRC(p.NetworkLayer(), nil)
			p.Layer(layers.LayerTypeGRH).(*layers.GRH).PayloadLength = 0
			p.Layer(layers.LayerTypeICRC).(*layers.ICRC).Value = 0
			buf := gopacket.NewSerializeBuffer()
			if err := gopacket.SerializePacket(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, p); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(buf.Bytes(), want) {
				t.Errorf("\n got %x\nwant %x", buf.Bytes(), want)
			}
		})
	}
}

func TestGRHDecodeFields(t *testing.T) {
	p := gopacket.NewPacket(wire(t, `6abcdef1 0010 05 07 fe800000000000000000000000000001 fe800000000000000000000000000002 00000000 00000000 00000000 00000000`),
		layers.LayerTypeGRH, gopacket.Default)
	got := bare(p.Layer(layers.LayerTypeGRH))
	want := &layers.GRH{Version: 6, TrafficClass: 0xAB, FlowLabel: 0xCDEF1, PayloadLength: 16, NextHeader: 5, HopLimit: 7,
		SGID: net.ParseIP("fe80::1"), DGID: net.ParseIP("fe80::2")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	if got := names(p); !slices.Equal(got, []string{"GRH", "Payload"}) {
		t.Errorf("another next header than a BTH: layers %v", got)
	}
}

func TestMalformedPacketKeepsItsBTHAndSaysWhy(t *testing.T) {
	for _, row := range []struct {
		name, wire string
		want       []string
		err        error
	}{
		{"reserved opcode", "15 00 ffff 00 000011 00 000007", []string{"BTH", "DecodeFailure"}, bth.ErrOpcode},
		{"transport version 1", "04 01 ffff 00 000011 00 000007", []string{"BTH", "DecodeFailure"}, bth.ErrVersion},
		{"short RETH", "0a 00 ffff 00 000011 00 000007 0102030405060708", []string{"BTH", "DecodeFailure"}, bth.ErrTruncated},
		{"pad without payload", "04 10 ffff 00 000011 00 000007", []string{"BTH", "DecodeFailure"}, bth.ErrPad},
		{"payload on an acknowledgement", "11 00 ffff 00 000011 00 000007 1f000001 00000000", []string{"BTH", "DecodeFailure"}, bth.ErrPayload},
		{"short BTH", "04 00 ffff 00 00", nil, bth.ErrTruncated},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := gopacket.NewPacket(udp4(wire(t, row.wire)), gplayers.LayerTypeEthernet, gopacket.Default)
			if got := names(p); !slices.Equal(got, row.want) {
				t.Errorf("layers %v, want %v", got, row.want)
			}
			if e := p.ErrorLayer(); e == nil || !errors.Is(e.Error(), row.err) {
				t.Errorf("error layer %v, want %v", e, row.err)
			}
		})
	}
}

// What tcpdump -s cuts off takes the ICRC along; the last bytes that are there
// must not be taken for it.
func TestTruncatedPacketHasNoICRCLayer(t *testing.T) {
	frame := udp4(wire(t, "0a 70 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00000005 6162636465000000"))
	header := 14 + 20 + 8
	for _, row := range []struct {
		name    string
		n       int
		want    []string
		payload string
	}{
		{"in the ICRC", header + 28 + 8 + 3, []string{"BTH", "RETH", "Payload"}, "6162636465000000000000"},
		{"in the payload", header + 28 + 2, []string{"BTH", "RETH", "Payload"}, "6162"},
		{"after the RETH", header + 28, []string{"BTH", "RETH", "ICRC"}, ""},
		{"in the RETH", header + 20, []string{"BTH", "DecodeFailure"}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := gopacket.NewPacket(frame[:row.n], gplayers.LayerTypeEthernet, gopacket.Default)
			want := slices.DeleteFunc(slices.Clone(row.want), func(s string) bool { return s == "ICRC" })
			if got := names(p); !slices.Equal(got, want) {
				t.Errorf("layers %v, want %v", got, want)
			}
			if a := p.ApplicationLayer(); row.payload != "" && !bytes.Equal(a.Payload(), wire(t, row.payload)) {
				t.Errorf("payload %x, want %s", a.Payload(), row.payload)
			}
			if _, _, ok := layers.CheckICRC(p); ok {
				t.Error("the ICRC was checked")
			}
		})
	}
}

func TestCheckICRCWrongByteIsFound(t *testing.T) {
	for name, fs := range frames(t) {
		frame := slices.Clone(fs[0])
		frame[len(frame)-5] ^= 1
		p := gopacket.NewPacket(frame, gplayers.LayerTypeEthernet, gopacket.Default)
		if c, r, ok := layers.CheckICRC(p); !ok || c == r {
			t.Errorf("%s: computed %08x, received %08x, %v", name, c, r, ok)
		}
	}
}

func TestCheckICRCWithoutRoCEHasNothingToCheck(t *testing.T) {
	tcp := udp4(wire(t, "04 40 ffff 00 000011 80 000007"))
	tcp[14+9] = 6
	p := gopacket.NewPacket(tcp, gplayers.LayerTypeEthernet, gopacket.Default)
	if _, _, ok := layers.CheckICRC(p); ok {
		t.Error("TCP was checked")
	}
	p = gopacket.NewPacket(wire(t, "04 40 ffff 00 000011 80 000007 00000000"), layers.LayerTypeBTH, gopacket.Default)
	if _, _, ok := layers.CheckICRC(p); ok || p.Layer(layers.LayerTypeICRC) == nil {
		t.Error("a packet without an IP header was checked")
	}
}

func TestSerializeRefusesWithTheReason(t *testing.T) {
	ip := &gplayers.IPv4{Version: 4, TTL: 64, Protocol: gplayers.IPProtocolUDP, SrcIP: net.IPv4(192, 0, 2, 1), DstIP: net.IPv4(192, 0, 2, 2)}
	options := *ip
	options.Options = []gplayers.IPv4Option{{OptionType: 1}}
	roce := &gplayers.UDP{SrcPort: 0xC000, DstPort: bth.Port}
	for _, row := range []struct {
		name    string
		op      bth.Opcode
		network gopacket.NetworkLayer
		udp     *gplayers.UDP
		opts    gopacket.SerializeOptions
		want    string
	}{
		{"extended header missing", bth.WriteOnly, ip, roce, gopacket.SerializeOptions{}, "16 bytes of extended headers"},
		{"no network layer", bth.SendOnly, nil, nil, gopacket.SerializeOptions{ComputeChecksums: true}, "SetNetworkLayerForICRC"},
		{"no UDP", bth.SendOnly, ip, nil, gopacket.SerializeOptions{ComputeChecksums: true}, "SetNetworkLayerForICRC"},
		{"IP options", bth.SendOnly, &options, roce, gopacket.SerializeOptions{ComputeChecksums: true}, "without options"},
		{"another port", bth.SendOnly, ip, &gplayers.UDP{DstPort: 4792}, gopacket.SerializeOptions{ComputeChecksums: true}, "port 4791"},
		{"no address", bth.SendOnly, &gplayers.IPv4{}, roce, gopacket.SerializeOptions{ComputeChecksums: true}, "address"},
		{"GRH without GIDs", bth.SendOnly, &layers.GRH{}, nil, gopacket.SerializeOptions{ComputeChecksums: true}, "SGID"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := &layers.BTH{BTH: bth.BTH{Opcode: row.op}}
			b.SetNetworkLayerForICRC(row.network, row.udp)
			err := gopacket.SerializeLayers(gopacket.NewSerializeBuffer(), row.opts, b)
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want one about %q", err, row.want)
			}
		})
	}
}

// decoder is the usual set for a DecodingLayerParser.
type decoder struct {
	eth    gplayers.Ethernet
	ip4    gplayers.IPv4
	ip6    gplayers.IPv6
	udp    gplayers.UDP
	grh    layers.GRH
	roce   layers.RoCE
	parser *gopacket.DecodingLayerParser
	types  []gopacket.LayerType
}

func newDecoder() *decoder {
	d := &decoder{}
	d.parser = gopacket.NewDecodingLayerParser(gplayers.LayerTypeEthernet, &d.eth, &d.ip4, &d.ip6, &d.udp, &d.grh, &d.roce)
	d.parser.IgnoreUnsupported = true
	return d
}

func TestDecodingLayerParserDecodesCaptures(t *testing.T) {
	d := newDecoder()
	for name, fs := range frames(t) {
		for i, frame := range fs {
			if err := d.parser.DecodeLayers(frame, &d.types); err != nil {
				t.Fatalf("%s packet %d: %v", name, i+1, err)
			}
			if d.types[len(d.types)-1] != layers.LayerTypeBTH {
				t.Fatalf("%s packet %d: layers %v", name, i+1, d.types)
			}
			p := gopacket.NewPacket(frame, gplayers.LayerTypeEthernet, gopacket.NoCopy)
			if got, want := d.roce.ICRC, p.Layer(layers.LayerTypeICRC).(*layers.ICRC).Value; got != want || d.roce.Truncated {
				t.Errorf("%s packet %d: ICRC %08x, want %08x; truncated %v", name, i+1, got, want, d.roce.Truncated)
			}
			if got, want := d.roce.Packet.BTH, p.Layer(layers.LayerTypeBTH).(*layers.BTH).BTH; got != want {
				t.Errorf("%s packet %d: %+v, want %+v", name, i+1, got, want)
			}
		}
	}
}

func TestDecodingLayerParserTruncatedPacketIsMarked(t *testing.T) {
	d := newDecoder()
	frame := udp4(wire(t, "0a 70 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00000005 6162636465000000"))
	if err := d.parser.DecodeLayers(frame[:len(frame)-5], &d.types); err != nil {
		t.Fatal(err)
	}
	if !d.roce.Truncated || d.roce.ICRC != 0 || string(d.roce.LayerPayload()) != "abcde\x00\x00" {
		t.Errorf("%+v", d.roce)
	}
}

func TestDecodingLayerParserDoesNotAllocate(t *testing.T) {
	d := newDecoder()
	frame := udp4(wire(t, "0a 70 ffff 00 000011 00 000007 0102030405060708 a1a2a3a4 00000005 6162636465000000"))
	if n := testing.AllocsPerRun(100, func() { _ = d.parser.DecodeLayers(frame, &d.types) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// panickedHere reports whether a panic that gopacket recovered from was raised
// in this module: gopacket's own decoders have some too.
func panickedHere(stack string) bool {
	_, after, found := strings.Cut(stack, "\npanic(")
	for found {
		_, after, found = strings.Cut(after, "\n\t") // the rest of a call
		_, after, _ = strings.Cut(after, "\n")       // its file and line
		if !strings.HasPrefix(after, "runtime.") {
			return strings.HasPrefix(after, "github.com/goroce/goroce/bth")
		}
	}
	return false
}

func FuzzLayers(f *testing.F) {
	for _, fs := range frames(f) {
		for i := range min(4, len(fs)) {
			f.Add(fs[i*len(fs)/4])
		}
	}
	for _, row := range headerRows {
		f.Add(udp4(wire(f, row.wire)))
	}
	for _, row := range roceV1 {
		f.Add(append(append(make([]byte, 12), 0x89, 0x15), wire(f, row.wire)...))
	}
	d := newDecoder()
	f.Fuzz(func(t *testing.T, frame []byte) {
		p := gopacket.NewPacket(frame, gplayers.LayerTypeEthernet, gopacket.Default)
		if e, ok := p.ErrorLayer().(*gopacket.DecodeFailure); ok && panickedHere(e.Dump()) {
			t.Fatalf("panic: %v\n%s", e.Error(), e.Dump())
		}
		_ = p.String()
		_ = d.parser.DecodeLayers(frame, &d.types)
		_, _, _ = layers.CheckICRC(p)
		b, isRoCE := p.Layer(layers.LayerTypeBTH).(*layers.BTH)
		if !isRoCE || p.ErrorLayer() != nil || p.Layer(layers.LayerTypeICRC) == nil {
			return
		}
		from := slices.IndexFunc(p.Layers(), func(l gopacket.Layer) bool { return l == gopacket.Layer(b) })
		var again []gopacket.SerializableLayer
		for _, l := range p.Layers()[from:] {
			again = append(again, l.(gopacket.SerializableLayer))
		}
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{}, again...); err != nil {
			t.Fatal(err)
		}
		if got, want := len(buf.Bytes()), len(b.Contents)+len(b.Payload)+bth.ICRCLen; got != want {
			t.Fatalf("serialized %d bytes, decoded %d", got, want)
		}
		q := gopacket.NewPacket(buf.Bytes(), layers.LayerTypeBTH, gopacket.NoCopy)
		if got, want := names(q), names(p); !slices.Equal(got, want[len(want)-len(got):]) {
			t.Fatalf("decoded again: %v, before: %v", got, want)
		}
	})
}
