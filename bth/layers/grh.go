package layers

import (
	"encoding/binary"
	"errors"
	"net"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// GRH is the global route header of RoCEv1, laid out like an IPv6 header
// (IBA 8.3).
type GRH struct {
	layers.BaseLayer
	Version       uint8 // 6
	TrafficClass  uint8
	FlowLabel     uint32 // 20 bits
	PayloadLength uint16 // bytes from the BTH to the ICRC
	NextHeader    uint8  // 0x1B: a BTH follows
	HopLimit      uint8
	SGID, DGID    net.IP // 16 bytes each
}

const (
	grhLen = 40
	// NextHeaderBTH is the GRH's next header for a BTH.
	NextHeaderBTH = 0x1B
)

// LayerType returns LayerTypeGRH.
func (g *GRH) LayerType() gopacket.LayerType { return LayerTypeGRH }

// NetworkFlow returns the flow between the GIDs.
func (g *GRH) NetworkFlow() gopacket.Flow {
	return gopacket.NewFlow(layers.EndpointIPv6, g.SGID, g.DGID)
}

// CanDecode implements gopacket.DecodingLayer.
func (g *GRH) CanDecode() gopacket.LayerClass { return LayerTypeGRH }

// NextLayerType implements gopacket.DecodingLayer.
func (g *GRH) NextLayerType() gopacket.LayerType {
	if g.NextHeader == NextHeaderBTH {
		return LayerTypeBTH
	}
	return gopacket.LayerTypePayload
}

// DecodeFromBytes implements gopacket.DecodingLayer. Bytes past PayloadLength
// are Ethernet padding and are dropped.
func (g *GRH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if len(data) < grhLen {
		df.SetTruncated()
		return errors.New("layers: packet is shorter than a GRH")
	}
	first := binary.BigEndian.Uint32(data)
	*g = GRH{
		Version:       uint8(first >> 28),
		TrafficClass:  uint8(first >> 20),
		FlowLabel:     first & (1<<20 - 1),
		PayloadLength: binary.BigEndian.Uint16(data[4:]),
		NextHeader:    data[6],
		HopLimit:      data[7],
		SGID:          net.IP(data[8:24]),
		DGID:          net.IP(data[24:40]),
	}
	payload := data[grhLen:]
	if n := int(g.PayloadLength); n <= len(payload) {
		payload = payload[:n]
	} else {
		df.SetTruncated()
	}
	g.BaseLayer = layers.BaseLayer{Contents: data[:grhLen], Payload: payload}
	return nil
}

func decodeGRH(data []byte, p gopacket.PacketBuilder) error {
	g := &GRH{}
	if err := g.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(g)
	p.SetNetworkLayer(g)
	return p.NextDecoder(g.NextLayerType())
}

// SerializeTo implements gopacket.SerializableLayer. With FixLengths it sets
// PayloadLength.
func (g *GRH) SerializeTo(buf gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	sgid, dgid := g.SGID.To16(), g.DGID.To16()
	if sgid == nil || dgid == nil {
		return errors.New("layers: a GRH needs an SGID and a DGID of 16 bytes")
	}
	if opts.FixLengths {
		g.PayloadLength = uint16(len(buf.Bytes()))
	}
	b := make([]byte, 0, grhLen)
	b = binary.BigEndian.AppendUint32(b, uint32(g.Version)<<28|uint32(g.TrafficClass)<<20|g.FlowLabel&(1<<20-1))
	b = binary.BigEndian.AppendUint16(b, g.PayloadLength)
	b = append(b, g.NextHeader, g.HopLimit)
	return prepend(buf, append(append(b, sgid...), dgid...))
}
