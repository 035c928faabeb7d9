package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/goroce/goroce/bth"
)

// printLine prints one packet on one line.
func printLine(w io.Writer, o *dissected, since time.Duration) {
	fmt.Fprintf(w, "%6s %s  ", packetNumber(o), seconds(o, since))
	if o.skip != "" {
		fmt.Fprintf(w, "%s%s\n", o.skip, noteSuffix(o.notes))
		return
	}
	fmt.Fprintf(w, "%v → %v  ", o.src, o.dst)
	switch {
	case o.malformed != nil && !o.haveBTH:
		fmt.Fprint(w, malformedText(o))
	case o.malformed != nil:
		fmt.Fprintf(w, "%v qp 0x%06x psn %v  %s", o.p.Opcode, uint32(o.p.DestQP), o.p.PSN, malformedText(o))
	default:
		fmt.Fprint(w, o.p.String())
	}
	if o.truncated {
		fmt.Fprint(w, "  cut off by the capture")
	}
	if o.repeated {
		fmt.Fprint(w, "  repeated")
	}
	if o.icrc == icrcBad {
		fmt.Fprint(w, "  ICRC bad")
	}
	fmt.Fprintf(w, "%s\n", noteSuffix(o.notes))
}

func packetNumber(o *dissected) string {
	if o.segment == 0 {
		return fmt.Sprint(o.number)
	}
	return fmt.Sprintf("%d.%d", o.number, o.segment)
}

func seconds(o *dissected, since time.Duration) string {
	if o.time.IsZero() {
		return fmt.Sprintf("%12s", "-")
	}
	return fmt.Sprintf("%12.6f", since.Seconds())
}

func noteSuffix(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return "  (" + strings.Join(notes, "; ") + ")"
}

func malformedText(o *dissected) string {
	if o.truncated {
		return "its headers are incomplete"
	}
	return "malformed: " + strings.TrimPrefix(o.malformed.Error(), "bth: ")
}

// section is one header of a packet, spelled out.
type section struct {
	title  string
	fields []field
}

type field struct {
	name, value, meaning string
}

// printVerbose prints every header field of a packet and what it means.
func printVerbose(w io.Writer, o *dissected, since time.Duration) {
	fmt.Fprintf(w, "Packet %s, %s s, %d bytes on the wire, %d captured\n",
		packetNumber(o), strings.TrimSpace(seconds(o, since)), o.wireLen, len(o.data))
	if o.skip != "" {
		fmt.Fprintf(w, "  not RoCE: %s%s\n\n", o.skip, noteSuffix(o.notes))
		return
	}
	for _, s := range explain(o) {
		fmt.Fprintf(w, "  %s\n", s.title)
		for _, f := range s.fields {
			line := fmt.Sprintf("    %-16s %-20s %s", f.name, f.value, f.meaning)
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
	}
	if o.repeated {
		fmt.Fprintln(w, "  Repeated: this PSN is not beyond all earlier requests, so the packet was sent again or came late")
	}
	for _, n := range o.notes {
		fmt.Fprintf(w, "  Note: %s\n", n)
	}
	fmt.Fprintln(w)
}

// explain returns the packet's headers in wire order.
func explain(o *dissected) []section {
	s := []section{explainPath(o)}
	if o.haveBTH {
		s = append(s, explainBTH(&o.p.BTH))
	}
	if o.malformed != nil {
		return append(s, section{"Malformed: " + malformedText(o), nil}, explainICRC(o))
	}
	s = append(s, explainExtended(&o.p)...)
	return append(s, explainPayload(o), explainICRC(o))
}

func explainPath(o *dissected) section {
	s := section{title: "IP and UDP"}
	add := func(name, value, meaning string) { s.fields = append(s.fields, field{name, value, meaning}) }
	from, to := "source", "destination"
	if o.v1 {
		s.title = "GRH (global route header: RoCEv1, straight on Ethernet)"
		from, to = "SGID", "DGID"
	}
	for _, id := range o.vlans {
		add("VLAN", fmt.Sprint(id), "")
	}
	add(from, endpoint(o, o.src, o.srcPort), choose(o.v1, "", "the port only spreads flows over links"))
	add(to, endpoint(o, o.dst, bth.Port), choose(o.v1, "", "port 4791 in both directions"))
	add("DSCP", fmt.Sprint(o.trafficClass>>2), "traffic class: selects the queue in switches")
	add("ECN", fmt.Sprint(o.trafficClass&3), ecnMeaning(o.trafficClass&3))
	add("hop limit", fmt.Sprint(o.hopLimit), "")
	if o.src.Is4() && !o.v1 {
		add("identification", hexNumber(uint64(o.ipID), 4), "covered by the ICRC, so no router may change it")
	}
	if o.segment > 0 {
		add("segment", fmt.Sprintf("%d of %d", o.segment, o.segments), "captured before the network adapter cut the datagram apart")
	}
	return s
}

func endpoint(o *dissected, a netip.Addr, port uint16) string {
	if o.v1 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

func ecnMeaning(ecn uint8) string {
	return [...]string{
		"the sender does not react to congestion marks",
		"ECT(1): the sender reacts to congestion marks",
		"ECT(0): the sender reacts to congestion marks",
		"CE: a switch on the way was congested",
	}[ecn&3]
}

func explainBTH(h *bth.BTH) section {
	return section{"BTH (base transport header)", []field{
		{"opcode", hexNumber(uint64(h.Opcode), 2), h.Opcode.String() + ": " + opcodeMeaning(h.Opcode)},
		{"SE", flag(h.Solicited), choose(h.Solicited, "solicited event: wake a receiver that waits for it", "no solicited event")},
		{"MigReq", flag(h.MigReq), choose(h.MigReq, "path migration is done or unused, the usual state", "path migration state 0; soft-RoCE sends this")},
		{"pad count", fmt.Sprint(h.PadCount), "bytes that fill the payload up to a multiple of 4"},
		{"version", fmt.Sprint(h.Version), "transport header version, always 0"},
		{"P_Key", hexNumber(uint64(h.PKey), 4), choose(h.PKey&0x8000 != 0, "partition, full member", "partition, limited member")},
		{"FECN", flag(h.FECN), "forward congestion mark, unused in RoCEv2"},
		{"BECN", flag(h.BECN), "backward congestion mark, set in a CNP only"},
		{"dest QP", hexNumber(uint64(h.DestQP), 6), qpMeaning(h.DestQP)},
		{"AckReq", flag(h.AckReq), ackMeaning(h)},
		{"PSN", fmt.Sprint(h.PSN), choose(h.Opcode.Info().Request, "packet sequence number, modulo 2^24", "packet sequence number of the request that this answers")},
	}}
}

func ackMeaning(h *bth.BTH) string {
	switch t := h.Opcode.Info().Transport; {
	case !h.AckReq:
		return "no acknowledgement asked for"
	case t == bth.UD || t == bth.UC:
		return "asks in vain: this transport has no acknowledgements"
	}
	return "the responder must acknowledge this packet"
}

func qpMeaning(q bth.QPN) string {
	switch q {
	case 0:
		return "QP0, subnet management, which RoCE does not have"
	case bth.QPNGSI:
		return "QP1, the general services interface: connection management"
	case bth.QPNMulticast:
		return "a multicast group"
	}
	return "queue pair at the receiver"
}

// operationMeaning says what an operation does, by bth.Operation.
var operationMeaning = [...]string{
	bth.OpNone:         "this opcode is not assigned",
	bth.OpSend:         "data for a buffer that the receiver has posted",
	bth.OpWrite:        "data for the receiver's memory at the address in the RETH",
	bth.OpRead:         "asks for the memory that the RETH names",
	bth.OpCmpSwap:      "replaces a 64-bit word of the receiver if it has the expected value",
	bth.OpFetchAdd:     "adds to a 64-bit word of the receiver",
	bth.OpFlush:        "asks that earlier writes be made visible or persistent",
	bth.OpAtomicWrite:  "writes 8 bytes of the receiver's memory at once",
	bth.OpReadResponse: "data that a READ request has asked for",
	bth.OpAcknowledge:  "tells the requester how far the responder has come, or what went wrong",
	bth.OpAtomicAck:    "the word as it was before the atomic operation",
	bth.OpSelectiveAck: "as an acknowledgement, and the payload tells what has come behind a gap; only goroce sends and understands it",
	bth.OpCNP:          "congestion notification: asks the sender on that queue pair to slow down",
}

func opcodeMeaning(o bth.Opcode) string {
	info := o.Info()
	s := operationMeaning[info.Op]
	switch {
	case info.Pos == bth.First:
		s += "; more packets of this message follow"
	case info.Pos == bth.Middle:
		s += "; neither the first nor the last packet of its message"
	case info.Pos == bth.Last:
		s += "; the last packet of its message"
	case info.Op == bth.OpSend, info.Op == bth.OpWrite, info.Op == bth.OpReadResponse:
		s += "; the whole message in one packet"
	}
	return s
}

func explainExtended(p *bth.Packet) (s []section) {
	h := p.Opcode.Info().Headers
	add := func(has bth.Header, title string, f ...field) {
		if h&has != 0 {
			s = append(s, section{title, f})
		}
	}
	add(bth.HasDETH, "DETH (datagram extended transport header)",
		field{"Q_Key", hexNumber(uint64(p.DETH.QKey), 8), "must be that of the receiving queue pair"},
		field{"source QP", hexNumber(uint64(p.DETH.SrcQP), 6), "where an answer goes"})
	add(bth.HasXRCETH, "XRCETH (extended reliable connection)",
		field{"SRQ", hexNumber(uint64(p.XRCSRQ), 6), "shared receive queue at the receiver"})
	add(bth.HasFETH, "FETH (flush extended transport header)",
		field{"selectivity", fmt.Sprint(p.FETH.Selectivity), choose(p.FETH.Selectivity == 1, "the whole memory region", "the range of the RETH")},
		field{"placement", fmt.Sprint(p.FETH.Placement), "bit 0: visible to all, bit 1: persistent"})
	add(bth.HasRETH, "RETH (RDMA extended transport header)",
		field{"virtual address", hexNumber(p.RETH.VA, 16), "in the receiver's address space"},
		field{"R_Key", hexNumber(uint64(p.RETH.RKey), 8), "proves the right to that memory"},
		field{"DMA length", fmt.Sprint(p.RETH.Length), "bytes of the whole message"})
	add(bth.HasAtomicETH, "AtomicETH (atomic extended transport header)",
		field{"virtual address", hexNumber(p.Atomic.VA, 16), "in the receiver's address space, a multiple of 8"},
		field{"R_Key", hexNumber(uint64(p.Atomic.RKey), 8), "proves the right to that memory"},
		field{"swap or add", hexNumber(p.Atomic.SwapAdd, 16), "CmpSwap: the new value; FetchAdd: what to add"},
		field{"compare", hexNumber(p.Atomic.Compare, 16), "CmpSwap: the expected value; FetchAdd: unused"})
	add(bth.HasAETH, "AETH (ACK extended transport header)",
		field{"syndrome", hexNumber(uint64(p.AETH.Syndrome), 2), p.AETH.Syndrome.String() + syndromeMeaning(p.AETH.Syndrome)},
		field{"MSN", fmt.Sprint(p.AETH.MSN), "messages that the responder has completed, modulo 2^24"})
	add(bth.HasAtomicAckETH, "AtomicAckETH",
		field{"original", hexNumber(p.AtomicAck, 16), "the word before the operation"})
	add(bth.HasImmDt, "ImmDt (immediate data)",
		field{"value", hexNumber(uint64(p.Imm), 8), "handed to the receiver with its completion"})
	add(bth.HasIETH, "IETH (invalidate extended transport header)",
		field{"R_Key", hexNumber(uint64(p.InvKey), 8), "the receiver may no longer be accessed with this key"})
	add(bth.HasCNPPad, "16 reserved bytes")
	return s
}

// syndromeMeaning says what an acknowledgement makes the requester do.
func syndromeMeaning(s bth.Syndrome) string {
	switch s.Kind() {
	case bth.KindACK:
		return ": all packets up to this PSN have arrived"
	case bth.KindRNR:
		return ": no receive buffer was posted, so the requester sends again after that time"
	case bth.KindNAK:
		if s == bth.NAKSequence {
			return ": a packet is missing, so the requester sends again from this PSN on"
		}
		return ": the connection is broken by this"
	}
	return ""
}

func explainPayload(o *dissected) section {
	const shown = 16
	p := o.p.Payload
	s := section{title: fmt.Sprintf("Payload, %d bytes", len(p))}
	if o.truncated {
		s.title += " of those captured"
	}
	if len(p) > 0 {
		s.fields = []field{{"begins with", fmt.Sprintf("% x", p[:min(shown, len(p))]), ""}}
	}
	return s
}

func explainICRC(o *dissected) section {
	switch o.icrc {
	case icrcGood:
		return section{"ICRC (invariant CRC)", []field{{"value", hexNumber(uint64(o.onWire), 8), "good: nothing that it covers was changed on the way"}}}
	case icrcBad:
		return section{"ICRC (invariant CRC)", []field{{"value", hexNumber(uint64(o.onWire), 8),
			fmt.Sprintf("bad: %s was computed; something was changed on the way, and a receiver drops the packet", hexNumber(uint64(o.computed), 8))}}}
	}
	return section{"ICRC (invariant CRC), unchecked: the packet is incomplete", nil}
}

func hexNumber(v uint64, digits int) string { return fmt.Sprintf("0x%0*x", digits, v) }

func flag(v bool) string { return choose(v, "1", "0") }

func choose[T any](v bool, yes, no T) T {
	if v {
		return yes
	}
	return no
}
