package layers

import (
	"encoding/binary"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/goroce/goroce/bth"
)

// RoCE is everything from the BTH to the ICRC as one gopacket.DecodingLayer,
// for use in a DecodingLayerParser, where it stands for LayerTypeBTH. It
// decodes in place; slices in it alias the packet's bytes.
type RoCE struct {
	// BaseLayer.Contents are BTH and extended headers, BaseLayer.Payload is the
	// payload without pad.
	layers.BaseLayer
	Packet bth.Packet
	// ICRC is the invariant CRC as received; 0 if Truncated.
	ICRC uint32
	// Truncated: the capture holds only the beginning of the packet, so there is
	// no ICRC and the payload is short.
	Truncated bool
}

// LayerType returns LayerTypeBTH.
func (r *RoCE) LayerType() gopacket.LayerType { return LayerTypeBTH }

// CanDecode implements gopacket.DecodingLayer.
func (r *RoCE) CanDecode() gopacket.LayerClass { return LayerTypeBTH }

// NextLayerType implements gopacket.DecodingLayer: payload follows.
func (r *RoCE) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// DecodeFromBytes implements gopacket.DecodingLayer. Its errors are those of
// package bth.
func (r *RoCE) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	*r = RoCE{Truncated: isTruncated(df)}
	body := data
	if !r.Truncated {
		if len(data) < bth.BTHLen+bth.ICRCLen {
			return bth.ErrTruncated
		}
		body = data[:len(data)-bth.ICRCLen]
		r.ICRC = binary.LittleEndian.Uint32(data[len(body):])
	}
	if err := r.parse(body); err != nil {
		return err
	}
	n := r.Packet.Opcode.Info().HeaderLen
	r.BaseLayer = layers.BaseLayer{Contents: body[:n], Payload: r.Packet.Payload}
	return nil
}

// parse reads the packet. What a capture cut off counts as if the pad were
// there, so that none of the payload is taken for it.
func (r *RoCE) parse(body []byte) error {
	if !r.Truncated {
		return r.Packet.Parse(body)
	}
	h, _, err := bth.ParseBTH(body)
	if err != nil {
		return err
	}
	padded := append(body[:len(body):len(body)], make([]byte, h.PadCount)...)
	return r.Packet.Parse(padded)
}

// isTruncated reports whether a lower layer has found the packet to be shorter
// than its length field says.
func isTruncated(df gopacket.DecodeFeedback) bool {
	switch d := df.(type) {
	case *gopacket.DecodingLayerParser:
		return d.Truncated
	case gopacket.Packet:
		return d.Metadata().Truncated
	}
	return false
}
