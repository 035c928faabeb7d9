package layers_test

import (
	"fmt"
	"log"
	"os"

	"github.com/google/gopacket"
	gplayers "github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/goroce/goroce/bth/layers"
)

// A gopacket program that lists the atomic operations in a capture. Nothing is
// RoCE about it but the layers it asks for.
func Example() {
	f, err := os.Open("../../test/captures/atomic_fa.pcap")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		log.Fatal(err)
	}
	for range 7 {
		data, _, err := r.ReadPacketData()
		if err != nil {
			log.Fatal(err)
		}
		packet := gopacket.NewPacket(data, r.LinkType(), gopacket.Default)
		b := packet.Layer(layers.LayerTypeBTH).(*layers.BTH)
		computed, received, _ := layers.CheckICRC(packet)
		fmt.Printf("%v, PSN %v, ICRC good: %v", b.Opcode, b.PSN, computed == received)
		if l, ok := packet.Layer(layers.LayerTypeAtomicETH).(*layers.AtomicETH); ok {
			fmt.Printf(", add %d", l.SwapAdd)
		}
		if l, ok := packet.Layer(layers.LayerTypeAtomicAckETH).(*layers.AtomicAckETH); ok {
			fmt.Printf(", it was %d", l.Original)
		}
		fmt.Println()
	}
	// Output:
	// RC FetchAdd, PSN 8340248, ICRC good: true, add 1
	// RC FetchAdd, PSN 8340249, ICRC good: true, add 1
	// RC FetchAdd, PSN 8340250, ICRC good: true, add 1
	// RC FetchAdd, PSN 8340251, ICRC good: true, add 1
	// RC FetchAdd, PSN 8340252, ICRC good: true, add 1
	// RC ATOMIC Acknowledge, PSN 8340248, ICRC good: true, it was 75014839657967427
	// RC ATOMIC Acknowledge, PSN 8340249, ICRC good: true, it was 3603210116998621637
}

// Building a packet: gopacket fixes lengths, the BTH adds pad and ICRC.
func Example_serialize() {
	ip := &gplayers.IPv4{Version: 4, TTL: 64, Flags: gplayers.IPv4DontFragment, Protocol: gplayers.IPProtocolUDP,
		SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}}
	udp := &gplayers.UDP{SrcPort: 0xC000, DstPort: 4791}
	b := &layers.BTH{}
	b.Opcode, b.PKey, b.DestQP, b.MigReq = 0x04, 0xFFFF, 0x12, true
	b.SetNetworkLayerForICRC(ip, udp)

	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	udp.SetNetworkLayerForChecksum(ip)
	if err := gopacket.SerializeLayers(buf, opts, ip, udp, b, gopacket.Payload("hello")); err != nil {
		log.Fatal(err)
	}
	packet := gopacket.NewPacket(buf.Bytes(), gplayers.LayerTypeIPv4, gopacket.Default)
	computed, received, ok := layers.CheckICRC(packet)
	fmt.Printf("%d bytes, %d of pad, ICRC good: %v\n", len(buf.Bytes()), b.PadCount, ok && computed == received)
	// Output: 52 bytes, 3 of pad, ICRC good: true
}
