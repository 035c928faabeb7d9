// Package layers teaches gopacket to decode and build RoCE packets.
//
// Importing it, even blank, is enough: it registers UDP port 4791 (RoCEv2) and
// EtherType 0x8915 (RoCEv1), and from then on every gopacket program in the
// binary sees these layers after the UDP header or the Ethernet header:
//
//	RoCEv2   … UDP → BTH → extended headers → Payload → ICRC
//	RoCEv1   … Ethernet → GRH → BTH → extended headers → Payload → ICRC
//
// There is one layer per header, in wire order: [DETH], [XRCETH], [FETH],
// [RETH], [AtomicETH], [AETH], [AtomicAckETH], [ImmDt], [IETH] and the reserved
// bytes of a [CNP]. Which of them a packet has follows from its opcode. The
// payload, if any, is gopacket's own Payload layer, so that ApplicationLayer
// finds it; pad bytes belong to no layer. The layer before the payload is
// reached with Packet.Layer, as usual:
//
//	if l := packet.Layer(layers.LayerTypeRETH); l != nil {
//		fmt.Println(l.(*layers.RETH).VA)
//	}
//
// The [ICRC] layer holds the invariant CRC as received. It covers the IP header
// too, so it is checked for a packet as a whole: see [CheckICRC]. A packet that
// was captured only in part has no ICRC layer.
//
// For gopacket's DecodingLayerParser there is [RoCE], which decodes BTH, all
// extended headers and ICRC at once and in place.
//
// All layers can be serialized. The BTH adds pad and ICRC by itself:
//
//	bth.SetNetworkLayerForICRC(ip, udp)
//	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
//	gopacket.SerializeLayers(buf, opts, eth, ip, udp, bth, reth, payload)
//
// Two things are gopacket's and cannot be helped here: its UDP layer also takes
// the source port for a hint, so a datagram from port 4791 to an unknown port
// is decoded as RoCE; and it decodes IP headers that RoCE forbids (options,
// IPv6 extension headers), for which CheckICRC reports that there is no ICRC.
//
// All parsing is that of package bth.
package layers
