package main

import (
	"encoding/json"
	"time"

	"github.com/goroce/goroce/bth"
)

// decodeJSONHelp documents the output of roce decode --json.
const decodeJSONHelp = `With --json each RoCE packet is one JSON object on a line of its own, followed by
one object for the whole file. Their fields:

  type             "packet"; "summary" for the last object
  number           number of the packet in the file, from 1
  segment          place among the packets that one captured datagram holds, from
                   1; absent if it holds one
  time             seconds since the first packet; timestamp: the same as a date
  version          1 or 2 (RoCEv1, RoCEv2)
  src, dst         addresses; src_port: UDP source port
  dscp, ecn, ip_id as in the IP header; vlans: VLAN tags, outermost first
  bth              opcode (number), name, se, migreq, pad, pkey, fecn, becn,
                   dest_qp, ackreq, psn
  deth, xrceth, feth, reth, atomiceth, aeth, atomicacketh, immdt, ieth
                   the extended headers that the opcode has; 64-bit values are
                   hexadecimal strings, for JSON numbers lose their low bits
  payload          payload length in bytes
  icrc             "good", "bad" or "unchecked"; icrc_value as received, and
                   icrc_computed if it is bad
  truncated        true if the capture holds only the beginning
  repeated         true for a request whose PSN is not beyond all earlier ones
  malformed, notes what is wrong with the packet or odd about it

The summary has packets, roce, segments, icrc (counts by state), malformed,
truncated, not_roce (counts by reason), opcodes (counts by name), qps, notes and
duration; error, if the file could not be read to its end. first_psn and last_psn
of an entry of qps are those of the requests; without requests they mean nothing.`

type jsonPacket struct {
	Type         string      `json:"type"`
	Number       int         `json:"number"`
	Segment      int         `json:"segment,omitempty"`
	Time         *float64    `json:"time,omitempty"`
	Timestamp    *time.Time  `json:"timestamp,omitempty"`
	Version      int         `json:"version"`
	Src          string      `json:"src"`
	Dst          string      `json:"dst"`
	SrcPort      *uint16     `json:"src_port,omitempty"`
	DSCP         uint8       `json:"dscp"`
	ECN          uint8       `json:"ecn"`
	IPID         *uint16     `json:"ip_id,omitempty"`
	VLANs        []uint16    `json:"vlans,omitempty"`
	BTH          *jsonBTH    `json:"bth,omitempty"`
	DETH         *jsonDETH   `json:"deth,omitempty"`
	XRCETH       *jsonXRCETH `json:"xrceth,omitempty"`
	FETH         *jsonFETH   `json:"feth,omitempty"`
	RETH         *jsonRETH   `json:"reth,omitempty"`
	AtomicETH    *jsonAtomic `json:"atomiceth,omitempty"`
	AETH         *jsonAETH   `json:"aeth,omitempty"`
	AtomicAck    *jsonOrig   `json:"atomicacketh,omitempty"`
	ImmDt        *jsonImm    `json:"immdt,omitempty"`
	IETH         *jsonIETH   `json:"ieth,omitempty"`
	Payload      int         `json:"payload"`
	ICRC         string      `json:"icrc"`
	ICRCValue    string      `json:"icrc_value,omitempty"`
	ICRCComputed string      `json:"icrc_computed,omitempty"`
	Truncated    bool        `json:"truncated,omitempty"`
	Repeated     bool        `json:"repeated,omitempty"`
	Malformed    string      `json:"malformed,omitempty"`
	Notes        []string    `json:"notes,omitempty"`
}

type jsonBTH struct {
	Opcode    uint8  `json:"opcode"`
	Name      string `json:"name"`
	Solicited bool   `json:"se"`
	MigReq    bool   `json:"migreq"`
	Pad       uint8  `json:"pad"`
	PKey      uint16 `json:"pkey"`
	FECN      bool   `json:"fecn"`
	BECN      bool   `json:"becn"`
	DestQP    uint32 `json:"dest_qp"`
	AckReq    bool   `json:"ackreq"`
	PSN       uint32 `json:"psn"`
}

type jsonDETH struct {
	QKey  uint32 `json:"qkey"`
	SrcQP uint32 `json:"src_qp"`
}

type jsonXRCETH struct {
	SRQ uint32 `json:"srq"`
}

type jsonFETH struct {
	Selectivity uint8 `json:"selectivity"`
	Placement   uint8 `json:"placement"`
}

type jsonRETH struct {
	VA     string `json:"va"`
	RKey   uint32 `json:"rkey"`
	Length uint32 `json:"length"`
}

type jsonAtomic struct {
	VA      string `json:"va"`
	RKey    uint32 `json:"rkey"`
	SwapAdd string `json:"swap_add"`
	Compare string `json:"compare"`
}

type jsonAETH struct {
	Syndrome uint8  `json:"syndrome"`
	Meaning  string `json:"meaning"`
	MSN      uint32 `json:"msn"`
}

type jsonOrig struct {
	Original string `json:"original"`
}

type jsonImm struct {
	Value uint32 `json:"value"`
}

type jsonIETH struct {
	RKey uint32 `json:"rkey"`
}

// printJSON writes one RoCE packet; others appear in the summary only.
func printJSON(e *json.Encoder, o *dissected, since time.Duration) error {
	if o.skip != "" {
		return nil
	}
	j := jsonPacket{
		Type: "packet", Number: o.number, Segment: o.segment, Version: 2,
		Src: o.src.String(), Dst: o.dst.String(),
		DSCP: o.trafficClass >> 2, ECN: o.trafficClass & 3, VLANs: o.vlans,
		Payload: len(o.p.Payload), ICRC: o.icrc.String(), Truncated: o.truncated, Repeated: o.repeated, Notes: o.notes,
	}
	if !o.time.IsZero() {
		s := since.Seconds()
		j.Time, j.Timestamp = &s, &o.time
	}
	if o.v1 {
		j.Version = 1
	} else {
		j.SrcPort = &o.srcPort
	}
	if o.src.Is4() && !o.v1 {
		j.IPID = &o.ipID
	}
	if o.icrc != icrcUnchecked {
		j.ICRCValue = hexNumber(uint64(o.onWire), 8)
	}
	if o.icrc == icrcBad {
		j.ICRCComputed = hexNumber(uint64(o.computed), 8)
	}
	j.setHeaders(o)
	return e.Encode(&j)
}

func (j *jsonPacket) setHeaders(o *dissected) {
	p := &o.p
	if o.haveBTH {
		j.BTH = &jsonBTH{uint8(p.Opcode), p.Opcode.String(), p.Solicited, p.MigReq, p.PadCount, uint16(p.PKey),
			p.FECN, p.BECN, uint32(p.DestQP), p.AckReq, p.PSN.Value()}
	}
	if o.malformed != nil {
		j.Malformed = malformedText(o)
		return
	}
	h := p.Opcode.Info().Headers
	if h&bth.HasDETH != 0 {
		j.DETH = &jsonDETH{uint32(p.DETH.QKey), uint32(p.DETH.SrcQP)}
	}
	if h&bth.HasXRCETH != 0 {
		j.XRCETH = &jsonXRCETH{p.XRCSRQ}
	}
	if h&bth.HasFETH != 0 {
		j.FETH = &jsonFETH{p.FETH.Selectivity, p.FETH.Placement}
	}
	if h&bth.HasRETH != 0 {
		j.RETH = &jsonRETH{hexNumber(p.RETH.VA, 16), p.RETH.RKey, p.RETH.Length}
	}
	if h&bth.HasAtomicETH != 0 {
		j.AtomicETH = &jsonAtomic{hexNumber(p.Atomic.VA, 16), p.Atomic.RKey, hexNumber(p.Atomic.SwapAdd, 16), hexNumber(p.Atomic.Compare, 16)}
	}
	if h&bth.HasAETH != 0 {
		j.AETH = &jsonAETH{uint8(p.AETH.Syndrome), p.AETH.Syndrome.String(), p.AETH.MSN.Value()}
	}
	if h&bth.HasAtomicAckETH != 0 {
		j.AtomicAck = &jsonOrig{hexNumber(p.AtomicAck, 16)}
	}
	if h&bth.HasImmDt != 0 {
		j.ImmDt = &jsonImm{p.Imm}
	}
	if h&bth.HasIETH != 0 {
		j.IETH = &jsonIETH{p.InvKey}
	}
}
