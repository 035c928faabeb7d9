package layers

import (
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/goroce/goroce/bth"
)

// ICRC is the invariant CRC at the end of a packet, as received. Whether it is
// right depends on the IP header too: see [CheckICRC].
type ICRC struct {
	layers.BaseLayer
	Value uint32
}

// LayerType returns LayerTypeICRC.
func (c *ICRC) LayerType() gopacket.LayerType { return LayerTypeICRC }

// SerializeTo implements gopacket.SerializableLayer. The layer belongs at the
// end of the list; the [BTH] puts the pad before it.
func (c *ICRC) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	b, err := buf.AppendBytes(bth.ICRCLen)
	if err != nil {
		return err
	}
	bth.AppendICRC(b[:0], c.Value)
	return nil
}

// CheckICRC computes the invariant CRC of the packet's first BTH and returns it
// with the received one; the packet is good if they are equal. ok is false if
// there is nothing to check: no RoCE packet, one that is truncated, or one
// whose IP header has options or is a fragment, which RoCE forbids.
func CheckICRC(p gopacket.Packet) (computed, received uint32, ok bool) {
	ls := p.Layers()
	at := slices.IndexFunc(ls, func(l gopacket.Layer) bool { return l.LayerType() == LayerTypeBTH })
	for i := at - 1; i >= 0; i-- {
		if n, isNetwork := ls[i].(gopacket.NetworkLayer); isNetwork {
			return bth.CheckDatagram(slices.Concat(n.LayerContents(), n.LayerPayload()))
		}
	}
	return 0, 0, false
}
