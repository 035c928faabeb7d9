package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/goroce/goroce/bth"
)

// BTH is the base transport header. Its LayerPayload reaches to the end of the
// pad: extended headers, payload and pad.
type BTH struct {
	layers.BaseLayer
	bth.BTH

	network gopacket.NetworkLayer
	udp     *layers.UDP
}

// LayerType returns LayerTypeBTH.
func (b *BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

// decodeBTH adds all layers from the BTH on: only the opcode tells what they
// are, so none of them could be decoded by itself. A malformed packet still
// gets its BTH.
func decodeBTH(data []byte, p gopacket.PacketBuilder) error {
	var r RoCE
	err := r.DecodeFromBytes(data, p)
	if len(data) < bth.BTHLen {
		return err
	}
	if err != nil {
		h, rest, _ := bth.ParseBTH(data)
		p.AddLayer(&BTH{BaseLayer: layers.BaseLayer{Contents: data[:bth.BTHLen], Payload: rest}, BTH: h})
		return err
	}
	body := data
	if !r.Truncated {
		body = data[:len(data)-bth.ICRCLen]
	}
	base := layers.BaseLayer{Contents: body[:bth.BTHLen], Payload: body[bth.BTHLen:]}
	p.AddLayer(&BTH{BaseLayer: base, BTH: r.Packet.BTH})
	addExtended(&r.Packet, base.Payload, p)
	if len(r.Packet.Payload) > 0 {
		payload := gopacket.Payload(r.Packet.Payload)
		p.AddLayer(&payload)
		p.SetApplicationLayer(&payload)
	}
	if !r.Truncated {
		p.AddLayer(&ICRC{layers.BaseLayer{Contents: data[len(body):]}, r.ICRC})
	}
	return nil
}

// SetNetworkLayerForICRC tells the BTH which headers it will be serialized
// under, for an ICRC is computed over them. udp is nil for RoCEv1, whose network
// layer is a [GRH]. Fields that SerializeLayers will fix need not be right.
func (b *BTH) SetNetworkLayerForICRC(n gopacket.NetworkLayer, udp *layers.UDP) {
	b.network, b.udp = n, udp
}

// SerializeTo implements gopacket.SerializableLayer. It puts the BTH before and
// pad and ICRC after what is in the buffer, which must be the extended headers
// of the opcode and the payload, and perhaps an [ICRC] layer at the end. With
// FixLengths it sets PadCount; with ComputeChecksums it computes the ICRC, for
// which SetNetworkLayerForICRC must have been called; without, the ICRC is that
// of the ICRC layer, or 0. Reserved bits are 0.
func (b *BTH) SerializeTo(buf gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	icrc, err := b.appendTrailer(buf, opts.FixLengths)
	if err != nil {
		return err
	}
	if err := prepend(buf, b.BTH.AppendTo(nil)); err != nil {
		return err
	}
	if opts.ComputeChecksums {
		if icrc, err = b.computeICRC(buf.Bytes()); err != nil {
			return err
		}
	}
	all := buf.Bytes()
	binary.LittleEndian.PutUint32(all[len(all)-bth.ICRCLen:], icrc)
	return nil
}

// appendTrailer makes room for pad and ICRC and zeroes both. It returns the
// value of the ICRC layer if there was one.
func (b *BTH) appendTrailer(buf gopacket.SerializeBuffer, fixPad bool) (icrc uint32, err error) {
	given := 0
	if slices.Contains(buf.Layers(), LayerTypeICRC) && len(buf.Bytes()) >= bth.ICRCLen {
		given = bth.ICRCLen
		icrc = binary.LittleEndian.Uint32(buf.Bytes()[len(buf.Bytes())-given:])
	}
	info := b.Opcode.Info()
	payload := len(buf.Bytes()) - given - int(info.HeaderLen) + bth.BTHLen
	if payload < 0 {
		return 0, fmt.Errorf("layers: %v needs %d bytes of extended headers: add their layers after the BTH", b.Opcode, info.HeaderLen-bth.BTHLen)
	}
	if fixPad {
		b.PadCount = bth.Pad(payload)
	}
	grown := int(b.PadCount&3) + bth.ICRCLen
	if _, err := buf.AppendBytes(grown - given); err != nil {
		return 0, err
	}
	all := buf.Bytes()
	clear(all[len(all)-grown:])
	return icrc, nil
}

// computeICRC returns the ICRC of the packet b, whose own is still 0. It builds
// the datagram that the layers around it will make of it.
func (b *BTH) computeICRC(packet []byte) (uint32, error) {
	around, err := b.networkHeaders()
	if err != nil {
		return 0, err
	}
	buf := gopacket.NewSerializeBuffer()
	around = append(around, gopacket.Payload(packet))
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, around...); err != nil {
		return 0, err
	}
	icrc, _, ok := bth.CheckDatagram(buf.Bytes())
	if !ok {
		return 0, errors.New("layers: no ICRC for this network layer: RoCE needs UDP to port 4791 over IPv4 or IPv6 without options, or a GRH")
	}
	return icrc, nil
}

// networkHeaders returns copies of the headers, for serializing changes them.
func (b *BTH) networkHeaders() ([]gopacket.SerializableLayer, error) {
	if grh, ok := b.network.(*GRH); ok {
		c := *grh
		return []gopacket.SerializableLayer{&c}, nil
	}
	if b.udp == nil {
		return nil, errors.New("layers: ICRC needs the headers around it: call SetNetworkLayerForICRC")
	}
	udp := *b.udp
	switch ip := b.network.(type) {
	case *layers.IPv4:
		c := *ip
		return []gopacket.SerializableLayer{&c, &udp}, nil
	case *layers.IPv6:
		c := *ip
		return []gopacket.SerializableLayer{&c, &udp}, nil
	}
	return nil, fmt.Errorf("layers: ICRC over a network layer of type %T: want IPv4, IPv6 or GRH", b.network)
}

// prepend puts bytes before what the buffer holds.
func prepend(buf gopacket.SerializeBuffer, b []byte) error {
	room, err := buf.PrependBytes(len(b))
	copy(room, b)
	return err
}
