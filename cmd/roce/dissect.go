package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	gplayers "github.com/google/gopacket/layers"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/bth/layers"
)

// dissected is what one captured packet turned out to be. Slices in it alias
// the record and the dissector, and are valid until the next record.
type dissected struct {
	record
	segment, segments int // place among those that one record holds, from 1; 0 if it holds one

	// skip says why this is no RoCE packet; if it is set, nothing below is.
	skip string

	src, dst         netip.Addr
	srcPort          uint16
	v1               bool // RoCEv1: the addresses are GIDs, there is no port
	vlans            []uint16
	ipID             uint16 // IPv4 only
	trafficClass     uint8
	hopLimit         uint8
	p                bth.Packet
	malformed        error // why only p.BTH, or nothing, could be read
	haveBTH          bool
	truncated        bool // the capture holds only the beginning
	icrc             icrcState
	computed, onWire uint32
	notes            []string
	repeated         bool // a request with a PSN that was seen before, or a late one
}

type icrcState uint8

const (
	icrcUnchecked icrcState = iota
	icrcGood
	icrcBad
)

func (s icrcState) String() string {
	return [...]string{"unchecked", "good", "bad"}[s]
}

// Reasons for a packet not to be RoCE, as the summary counts them.
const (
	skipFragment   = "IP fragment"
	skipOptions    = "IPv4 header with options, which RoCE forbids"
	skipExtension  = "IPv6 extension header, which RoCE forbids"
	skipBroken     = "headers that cannot be decoded"
	skipCut        = "cut off by the capture before its BTH"
	skipOtherPort  = "UDP to another port than 4791"
	skipEmpty      = "no bytes"
	skipOtherGRH   = "EtherType 0x8915 without a BTH"
	skipNotIP      = "neither IP nor RoCEv1"
	skipOtherProto = "another protocol over IP"
)

// Link types of the pcap registry.
const (
	linkNull     = 0
	linkEthernet = 1
	linkRawBSD   = 12
	linkRawOBSD  = 14
	linkRaw      = 101
	linkLoop     = 108
	linkSLL      = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkSLL2     = 276
)

// dissector decodes captured packets with gopacket: from the link layer to the
// BTH, through VLAN tags and VXLAN. It keeps its layers from packet to packet.
type dissector struct {
	eth   gplayers.Ethernet
	vlan  vlanStack
	sll   gplayers.LinuxSLL
	loop  gplayers.Loopback
	ip4   gplayers.IPv4
	ip6   gplayers.IPv6
	udp   gplayers.UDP
	vxlan gplayers.VXLAN
	grh   layers.GRH
	roce  layers.RoCE

	parsers map[gopacket.LayerType]*gopacket.DecodingLayerParser
	types   []gopacket.LayerType
	l3      []byte
}

func newDissector() *dissector {
	return &dissector{parsers: map[gopacket.LayerType]*gopacket.DecodingLayerParser{}}
}

// parser returns the parser that begins with the layer given.
func (d *dissector) parser(first gopacket.LayerType) *gopacket.DecodingLayerParser {
	p := d.parsers[first]
	if p == nil {
		p = gopacket.NewDecodingLayerParser(first, &d.eth, &d.vlan, &d.sll, &d.loop,
			&d.ip4, &d.ip6, &d.udp, &d.vxlan, &d.grh, &d.roce)
		d.parsers[first] = p
	}
	return p
}

// vlanStack is a VLAN tag that remembers those before it in the frame.
type vlanStack struct {
	gplayers.Dot1Q
	ids []uint16
}

// DecodeFromBytes implements gopacket.DecodingLayer.
func (v *vlanStack) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	err := v.Dot1Q.DecodeFromBytes(data, df)
	if err == nil {
		v.ids = append(v.ids, v.VLANIdentifier)
	}
	return err
}

// dissect decodes one record and calls emit for each packet in it: one, or
// several that the sender's host had not yet cut apart. gopacket's decoders can
// panic on hostile bytes; that costs the packet, not the program.
func (d *dissector) dissect(rec record, emit func(*dissected)) {
	out := d.decode(rec)
	if out.skip == "" && out.icrc == icrcBad {
		if segs := splitSegments(out, d.udp.Payload); segs != nil {
			for i, s := range segs {
				seg := d.decodeSegment(out, s)
				seg.segment, seg.segments = i+1, len(segs)
				emit(seg)
			}
			return
		}
	}
	emit(out)
}

func (d *dissector) decode(rec record) (out *dissected) {
	out = &dissected{record: rec}
	defer func() {
		if r := recover(); r != nil {
			*out = dissected{record: rec, skip: skipBroken, notes: []string{fmt.Sprintf("the decoder failed: %v", r)}}
		}
	}()
	first, data, known := firstLayer(rec)
	if !known {
		out.skip = fmt.Sprintf("link type %d, which is not supported", rec.link)
		return out
	}
	if len(data) == 0 {
		out.skip = skipEmpty
		return out
	}
	d.vlan.ids = d.vlan.ids[:0]
	d.types = d.types[:0]
	parser := d.parser(first)
	err := parser.DecodeLayers(data, &d.types)
	out.vlans = d.vlan.ids
	out.truncated = parser.Truncated
	d.classify(out, err)
	return out
}

// firstLayer returns the layer that a link type begins with, and its bytes.
func firstLayer(rec record) (gopacket.LayerType, []byte, bool) {
	switch rec.link {
	case linkEthernet:
		return gplayers.LayerTypeEthernet, rec.data, true
	case linkSLL:
		return gplayers.LayerTypeLinuxSLL, rec.data, true
	case linkNull, linkLoop:
		return gplayers.LayerTypeLoopback, rec.data, true
	case linkSLL2: // which gopacket does not know: EtherType first, 20 bytes long
		const sll2Len = 20
		if len(rec.data) < sll2Len {
			return gplayers.LayerTypeEthernet, nil, true
		}
		return gplayers.EthernetType(binary.BigEndian.Uint16(rec.data)).LayerType(), rec.data[sll2Len:], true
	case linkRaw, linkRawBSD, linkRawOBSD, linkIPv4, linkIPv6:
		if len(rec.data) > 0 && rec.data[0]>>4 == 6 {
			return gplayers.LayerTypeIPv6, rec.data, true
		}
		return gplayers.LayerTypeIPv4, rec.data, true
	}
	return 0, nil, false
}

// classify fills out from the layers that were decoded and the error that ended
// decoding.
func (d *dissector) classify(out *dissected, err error) {
	var malformed bth.ParseError
	var unsupported gopacket.UnsupportedLayerType
	isRoCE := slices.Contains(d.types, layers.LayerTypeBTH)
	switch {
	case errors.As(err, &malformed):
		isRoCE, out.malformed = true, malformed
	case errors.As(err, &unsupported), err == nil:
	default:
		out.skip = skipBroken
		if out.truncated {
			out.skip = skipCut
		} else {
			out.notes = append(out.notes, err.Error())
		}
		return
	}
	last := gopacket.LayerType(0)
	if n := len(d.types); n > 0 {
		last = d.types[n-1]
	}
	if !isRoCE && last == gplayers.LayerTypeUDP && d.udp.DstPort == bth.Port {
		isRoCE, out.malformed = true, bth.ErrTruncated // a datagram without bytes
	}
	if out.skip = d.reason(last, isRoCE, unsupported); out.skip == "" {
		d.fill(out)
	}
}

// reason says why the packet is no RoCE packet, or returns "".
func (d *dissector) reason(last gopacket.LayerType, isRoCE bool, next gopacket.UnsupportedLayerType) string {
	network := d.network()
	switch {
	case gopacket.LayerType(next) == gopacket.LayerTypeFragment, gopacket.LayerType(next) == gplayers.LayerTypeIPv6Fragment:
		return skipFragment
	case network == gplayers.LayerTypeIPv6 && isIPv6Extension(d.ip6.NextHeader):
		return skipExtension
	case last == gplayers.LayerTypeIPv4, last == gplayers.LayerTypeIPv6:
		return skipOtherProto
	case last == layers.LayerTypeGRH && !isRoCE:
		return skipOtherGRH
	case network == 0:
		return skipNotIP
	case network == layers.LayerTypeGRH:
		return ""
	case d.udp.DstPort != bth.Port || !isRoCE:
		return skipOtherPort
	case network == gplayers.LayerTypeIPv4 && d.ip4.IHL != 5:
		return skipOptions
	}
	return ""
}

// isIPv6Extension reports whether next is one of the extension headers.
func isIPv6Extension(next gplayers.IPProtocol) bool {
	switch next {
	case gplayers.IPProtocolIPv6HopByHop, gplayers.IPProtocolIPv6Routing, gplayers.IPProtocolIPv6Destination, gplayers.IPProtocolAH:
		return true
	}
	return false
}

// network returns the type of the innermost network layer, 0 if there is none.
func (d *dissector) network() gopacket.LayerType {
	for _, t := range slices.Backward(d.types) {
		switch t {
		case gplayers.LayerTypeIPv4, gplayers.LayerTypeIPv6, layers.LayerTypeGRH:
			return t
		}
	}
	return 0
}

// fill takes over the fields of a RoCE packet and checks its ICRC.
func (d *dissector) fill(out *dissected) {
	var roce []byte
	switch d.network() {
	case gplayers.LayerTypeIPv4:
		ip := &d.ip4
		out.src, out.dst = addr(ip.SrcIP), addr(ip.DstIP)
		out.ipID, out.trafficClass, out.hopLimit = ip.Id, ip.TOS, ip.TTL
		out.srcPort, roce = uint16(d.udp.SrcPort), d.udp.Payload
		d.checkICRC(out, ip.Contents, ip.Payload)
	case gplayers.LayerTypeIPv6:
		ip := &d.ip6
		out.src, out.dst = addr(ip.SrcIP), addr(ip.DstIP)
		out.trafficClass, out.hopLimit = ip.TrafficClass, ip.HopLimit
		out.srcPort, roce = uint16(d.udp.SrcPort), d.udp.Payload
		d.checkICRC(out, ip.Contents, ip.Payload)
	default:
		g := &d.grh
		out.v1 = true
		out.src, out.dst = addr(g.SGID), addr(g.DGID)
		out.trafficClass, out.hopLimit = g.TrafficClass, g.HopLimit
		roce = g.Payload
		d.checkICRC(out, g.Contents, g.Payload)
	}
	if out.malformed == nil {
		out.p, out.haveBTH = d.roce.Packet, true
	} else if h, _, err := bth.ParseBTH(roce); err == nil {
		out.p.BTH, out.haveBTH = h, true
	}
	out.notes = append(out.notes, oddities(out)...)
	if !out.v1 && !out.truncated && int(d.udp.Length) != len(d.udp.Contents)+d.afterUDP() {
		out.notes = append(out.notes, fmt.Sprintf("the UDP length, %d, disagrees with the IP length", d.udp.Length))
	}
}

// afterUDP returns how many bytes follow the UDP header by the IP length.
func (d *dissector) afterUDP() int {
	ip := d.ip4.Payload
	if d.network() == gplayers.LayerTypeIPv6 {
		ip = d.ip6.Payload
	}
	return len(ip) - len(d.udp.Contents)
}

func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (d *dissector) checkICRC(out *dissected, header, payload []byte) {
	d.l3 = append(append(d.l3[:0], header...), payload...)
	var ok bool
	out.computed, out.onWire, ok = bth.CheckDatagram(d.l3)
	switch {
	case !ok:
	case out.computed == out.onWire:
		out.icrc = icrcGood
	default:
		out.icrc = icrcBad
	}
}

// splitSegments cuts a datagram apart that was captured on the sending host
// before segmentation offload did so: several packets of one size, the last
// perhaps shorter, behind one IP and one UDP header. It returns nil unless the
// first packet's ICRC proves the cut.
func splitSegments(out *dissected, b []byte) [][]byte {
	const longest = bth.MaxHeaderLen + 4096 + bth.ICRCLen
	if out.v1 || !out.haveBTH {
		return nil
	}
	path := bth.Path{Src: out.src, Dst: out.dst, SrcPort: out.srcPort}
	for n := bth.BTHLen + bth.ICRCLen; n <= min(longest, len(b)-bth.BTHLen-bth.ICRCLen); n += 4 {
		next, _, _ := bth.ParseBTH(b[n:])
		if next.PKey != out.p.PKey || next.Version != 0 || !next.Opcode.Valid() {
			continue
		}
		if path.ICRC(out.ipID, b[:n-bth.ICRCLen], nil, 0) == binary.LittleEndian.Uint32(b[n-bth.ICRCLen:]) {
			return slices.Collect(slices.Chunk(b, n))
		}
	}
	return nil
}

// decodeSegment reads one of the packets of a datagram that was cut apart.
func (d *dissector) decodeSegment(whole *dissected, b []byte) *dissected {
	out := *whole
	out.p, out.malformed, out.notes, out.haveBTH = bth.Packet{}, nil, nil, false
	out.computed, out.onWire, out.icrc = 0, 0, icrcUnchecked
	if len(b) < bth.BTHLen+bth.ICRCLen {
		out.malformed = bth.ErrTruncated
		return &out
	}
	body := b[:len(b)-bth.ICRCLen]
	path := bth.Path{Src: out.src, Dst: out.dst, SrcPort: out.srcPort}
	id, ok := path.CheckICRC(b)
	out.onWire = binary.LittleEndian.Uint32(b[len(body):])
	out.computed, out.icrc = path.ICRC(id, body, nil, 0), icrcBad
	if ok {
		out.ipID, out.computed, out.icrc = id, out.onWire, icrcGood
	}
	if out.malformed = out.p.Parse(body); out.malformed != nil {
		h, _, _ := bth.ParseBTH(body)
		out.p = bth.Packet{BTH: h}
	}
	out.haveBTH = true
	out.notes = oddities(&out)
	return &out
}

// oddities lists what a correct sender would not do, as far as a single packet
// shows it.
func oddities(o *dissected) (notes []string) {
	if o.malformed != nil || !o.haveBTH {
		return nil
	}
	note := func(is bool, format string, args ...any) {
		if is {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	p, info := &o.p, o.p.Opcode.Info()
	n := len(p.Payload)
	wholeMTU := n == 256 || n == 512 || n == 1024 || n == 2048 || n == 4096
	note(!info.Pos.Ends() && !o.truncated && !wholeMTU, "a First or Middle packet carries a path MTU (256 to 4096 bytes), not %d bytes", n)
	note(p.PadCount != bth.Pad(n) && !o.truncated, "%d bytes of payload take %d of pad, not %d", n, bth.Pad(n), p.PadCount)
	note(p.BECN && info.Op != bth.OpCNP, "BECN is set in a packet that is no CNP")
	note(p.Solicited && !info.Pos.Ends(), "SE is set before the last packet of a message")
	note(info.Headers&bth.HasRETH != 0 && p.RETH.Length > 1<<31, "a message of %d bytes exceeds 2^31", p.RETH.Length)
	note(info.Op == bth.OpWrite && info.Pos == bth.Only && !o.truncated && int(p.RETH.Length) != n, "the RETH says %d bytes, the packet carries %d", p.RETH.Length, n)
	note(info.Headers&bth.HasAtomicETH != 0 && p.Atomic.VA%8 != 0, "the atomic operation's address is not a multiple of 8")
	note(info.Headers&bth.HasAETH != 0 && p.AETH.Syndrome.Kind() == bth.KindReserved, "the AETH syndrome is reserved")
	note(info.Op == bth.OpReadResponse && info.Headers&bth.HasAETH != 0 && p.AETH.Syndrome.Kind() != bth.KindACK, "a READ response carries a NAK")
	return notes
}
