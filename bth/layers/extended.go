package layers

import (
	"encoding/binary"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/goroce/goroce/bth"
)

// DETH addresses a datagram.
type DETH struct {
	layers.BaseLayer
	bth.DETH
}

// XRCETH names the shared receive queue of an extended reliable connection.
type XRCETH struct {
	layers.BaseLayer
	SRQ uint32 // 24 bits
}

// FETH selects what a FLUSH covers.
type FETH struct {
	layers.BaseLayer
	bth.FETH
}

// RETH addresses remote memory.
type RETH struct {
	layers.BaseLayer
	bth.RETH
}

// AtomicETH is the request of an atomic operation.
type AtomicETH struct {
	layers.BaseLayer
	bth.AtomicETH
}

// AETH answers a request: acknowledgement, or NAK and why.
type AETH struct {
	layers.BaseLayer
	bth.AETH
}

// AtomicAckETH is the answer to an atomic operation.
type AtomicAckETH struct {
	layers.BaseLayer
	Original uint64 // the word before the operation
}

// ImmDt is immediate data.
type ImmDt struct {
	layers.BaseLayer
	Value uint32 // as on the wire, read big-endian
}

// IETH names a memory key to invalidate at the receiver.
type IETH struct {
	layers.BaseLayer
	RKey uint32
}

// CNP is the 16 reserved bytes of a congestion notification packet.
type CNP struct {
	layers.BaseLayer
	Reserved [16]byte
}

// extended lists the headers in wire order.
var extended = [...]struct {
	has  bth.Header
	n    int
	make func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer
}{
	{bth.HasDETH, bth.DETHLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &DETH{b, p.DETH} }},
	{bth.HasXRCETH, bth.XRCETHLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &XRCETH{b, p.XRCSRQ} }},
	{bth.HasFETH, bth.FETHLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &FETH{b, p.FETH} }},
	{bth.HasRETH, bth.RETHLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &RETH{b, p.RETH} }},
	{bth.HasAtomicETH, bth.AtomicETHLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &AtomicETH{b, p.Atomic} }},
	{bth.HasAETH, bth.AETHLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &AETH{b, p.AETH} }},
	{bth.HasAtomicAckETH, bth.AtomicAckETHLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &AtomicAckETH{b, p.AtomicAck} }},
	{bth.HasImmDt, bth.ImmDtLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &ImmDt{b, p.Imm} }},
	{bth.HasIETH, bth.IETHLen, func(b layers.BaseLayer, p *bth.Packet) gopacket.Layer { return &IETH{b, p.InvKey} }},
	{bth.HasCNPPad, 16, func(b layers.BaseLayer, _ *bth.Packet) gopacket.Layer { return &CNP{b, [16]byte(b.Contents)} }},
}

// addExtended adds a layer for each extended header of p; b is what follows the
// BTH, known to be long enough.
func addExtended(p *bth.Packet, b []byte, to gopacket.PacketBuilder) {
	h := p.Opcode.Info().Headers
	for _, e := range extended {
		if h&e.has != 0 {
			to.AddLayer(e.make(layers.BaseLayer{Contents: b[:e.n], Payload: b[e.n:]}, p))
			b = b[e.n:]
		}
	}
}

// LayerType returns LayerTypeDETH.
func (h *DETH) LayerType() gopacket.LayerType { return LayerTypeDETH }

// LayerType returns LayerTypeXRCETH.
func (h *XRCETH) LayerType() gopacket.LayerType { return LayerTypeXRCETH }

// LayerType returns LayerTypeFETH.
func (h *FETH) LayerType() gopacket.LayerType { return LayerTypeFETH }

// LayerType returns LayerTypeRETH.
func (h *RETH) LayerType() gopacket.LayerType { return LayerTypeRETH }

// LayerType returns LayerTypeAtomicETH.
func (h *AtomicETH) LayerType() gopacket.LayerType { return LayerTypeAtomicETH }

// LayerType returns LayerTypeAETH.
func (h *AETH) LayerType() gopacket.LayerType { return LayerTypeAETH }

// LayerType returns LayerTypeAtomicAckETH.
func (h *AtomicAckETH) LayerType() gopacket.LayerType { return LayerTypeAtomicAckETH }

// LayerType returns LayerTypeImmDt.
func (h *ImmDt) LayerType() gopacket.LayerType { return LayerTypeImmDt }

// LayerType returns LayerTypeIETH.
func (h *IETH) LayerType() gopacket.LayerType { return LayerTypeIETH }

// LayerType returns LayerTypeCNP.
func (h *CNP) LayerType() gopacket.LayerType { return LayerTypeCNP }

// SerializeTo implements gopacket.SerializableLayer.
func (h *DETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, h.DETH.AppendTo(nil))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *XRCETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, binary.BigEndian.AppendUint32(nil, h.SRQ&(1<<24-1)))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *FETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, h.FETH.AppendTo(nil))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *RETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, h.RETH.AppendTo(nil))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AtomicETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, h.AtomicETH.AppendTo(nil))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, h.AETH.AppendTo(nil))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AtomicAckETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, binary.BigEndian.AppendUint64(nil, h.Original))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *ImmDt) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, binary.BigEndian.AppendUint32(nil, h.Value))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *IETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, binary.BigEndian.AppendUint32(nil, h.RKey))
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *CNP) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return prepend(buf, h.Reserved[:])
}
