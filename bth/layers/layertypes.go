package layers

import (
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/goroce/goroce/bth"
)

// The layer types. Their numbers lie in the range that gopacket leaves to
// applications.
var (
	LayerTypeBTH          = register(0, "BTH", gopacket.DecodeFunc(decodeBTH))
	LayerTypeDETH         = register(1, "DETH", nil)
	LayerTypeXRCETH       = register(2, "XRCETH", nil)
	LayerTypeFETH         = register(3, "FETH", nil)
	LayerTypeRETH         = register(4, "RETH", nil)
	LayerTypeAtomicETH    = register(5, "AtomicETH", nil)
	LayerTypeAETH         = register(6, "AETH", nil)
	LayerTypeAtomicAckETH = register(7, "AtomicAckETH", nil)
	LayerTypeImmDt        = register(8, "ImmDt", nil)
	LayerTypeIETH         = register(9, "IETH", nil)
	LayerTypeCNP          = register(10, "CNP", nil)
	LayerTypeICRC         = register(11, "ICRC", nil)
	LayerTypeGRH          = register(12, "GRH", gopacket.DecodeFunc(decodeGRH))
)

// EthernetTypeRoCEv1 is the EtherType of RoCEv1, which has no IP header.
const EthernetTypeRoCEv1 layers.EthernetType = 0x8915

const firstLayerType = 1791

func register(n int, name string, d gopacket.Decoder) gopacket.LayerType {
	return gopacket.RegisterLayerType(firstLayerType+n, gopacket.LayerTypeMetadata{Name: name, Decoder: d})
}

func init() {
	layers.RegisterUDPPortLayerType(bth.Port, LayerTypeBTH)
	layers.EthernetTypeMetadata[EthernetTypeRoCEv1] = layers.EnumMetadata{
		DecodeWith: gopacket.DecodeFunc(decodeGRH), Name: "RoCEv1", LayerType: LayerTypeGRH,
	}
}
