package udp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/goroce/goroce/bth"
)

// heldFlow is the peer and queue pair whose packets overtake each other.
type heldFlow struct {
	peer netip.Addr
	qp   uint32
}

// destQP reads the destination from a BTH, 0 if there is none.
func destQP(hdr []byte) uint32 {
	if len(hdr) < bth.BTHLen {
		return 0
	}
	return binary.BigEndian.Uint32(hdr[4:]) & 0xFFFFFF
}

// heldPacket is a copy of a packet that waits.
type heldPacket struct {
	due    time.Duration
	behind int // packets of its flow that still have to overtake it; 0: only time counts
	flow   heldFlow

	frame    bth.Frame // to be sent
	path     bth.Path
	datagram bth.Datagram // received
	bytes    []byte
}

func (p *heldPacket) frameOf(f *bth.Frame, ce bool) {
	p.frame, p.path = *f, *f.Path
	if ce {
		p.path.TrafficClass |= ecnCE
	}
	p.bytes = append(p.bytes[:0], f.Payload...)
	p.frame.Path, p.frame.Payload = &p.path, p.bytes
}

func (p *heldPacket) datagramOf(d *bth.Datagram) {
	p.bytes = append(p.bytes[:0], d.Data...)
	p.datagram = *d
	p.datagram.Data = p.bytes
}

// holdQueue holds packets in the order in which they are due. The slot of one
// that was taken is in use until recycle.
type holdQueue struct {
	q     []*heldPacket
	taken []*heldPacket
	free  []*heldPacket
}

func (h *holdQueue) len() int { return len(h.q) }

// due is when the first packet is due.
func (h *holdQueue) due() time.Duration {
	if len(h.q) == 0 {
		return never
	}
	return h.q[0].due
}

// put adds a slot behind all that are due at the same time or earlier.
func (h *holdQueue) put(due time.Duration, behind int, flow heldFlow) *heldPacket {
	var p *heldPacket
	if n := len(h.free); n > 0 {
		p, h.free = h.free[n-1], h.free[:n-1]
	} else {
		p = &heldPacket{}
	}
	p.due, p.behind, p.flow = due, behind, flow
	i := len(h.q)
	for i > 0 && h.q[i-1].due > due {
		i--
	}
	h.q = slices.Insert(h.q, i, p)
	return p
}

func (h *holdQueue) take(i int) *heldPacket {
	p := h.q[i]
	h.q = slices.Delete(h.q, i, i+1)
	h.taken = append(h.taken, p)
	return p
}

func (h *holdQueue) recycle() {
	h.free = append(h.free, h.taken...)
	h.taken = h.taken[:0]
}
