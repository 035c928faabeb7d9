package bth

import "net/netip"

// Frame is one outgoing packet. Its payload is not copied: it points at
// registered memory, or at the scratch area of the burst when it had to be
// gathered from several places.
//
//	Header() | Payload | Trailer(): pad and ICRC
type Frame struct {
	Path    *Path
	Payload []byte
	// Corrupt makes Seal write a wrong ICRC, as if bits had changed on the
	// way: for fault injection.
	Corrupt bool
	// ID is the IPv4 identification that the frame was sealed for.
	ID      uint16
	header  [MaxHeaderLen]byte
	trailer [3 + ICRCLen]byte
	hlen    uint8
	tlen    uint8
	pad     uint8
}

// SetHeaders encodes p's headers into the frame. p.PadCount has to be set.
func (f *Frame) SetHeaders(p *Packet) {
	f.hlen = uint8(len(p.AppendHeaders(f.header[:0])))
	f.pad = p.PadCount
}

// Header returns BTH and extended headers; a fault injector may change them.
func (f *Frame) Header() []byte { return f.header[:f.hlen] }

// wrongICRC is what a corrupt frame's ICRC differs by. All bits differ: no
// identification explains that to CheckICRC, at any length.
const wrongICRC = 0xFFFFFFFF

// Seal computes the ICRC for the IPv4 identification id and sets the trailer.
func (f *Frame) Seal(id uint16) {
	var c HeaderCRC
	f.SealWith(&c, id)
}

// SealWith is Seal with what c remembers.
func (f *Frame) SealWith(c *HeaderCRC, id uint16) {
	t := append(f.trailer[:0], zeroPad[:f.pad]...)
	icrc := c.ICRC(f.Path, id, f.Header(), f.Payload, int(f.pad))
	if f.Corrupt {
		icrc ^= wrongICRC
	}
	f.tlen, f.ID = uint8(len(AppendICRC(t, icrc))), id
}

// Trailer returns pad and ICRC; empty before Seal.
func (f *Frame) Trailer() []byte { return f.trailer[:f.tlen] }

// Len returns the length of the sealed packet, the UDP payload, in bytes.
func (f *Frame) Len() int { return int(f.hlen) + len(f.Payload) + int(f.pad) + ICRCLen }

// AppendTo appends the sealed packet's bytes.
func (f *Frame) AppendTo(b []byte) []byte {
	b = append(b, f.Header()...)
	b = append(b, f.Payload...)
	return append(b, f.Trailer()...)
}

// Burst collects outgoing frames up to a fixed number. It is filled by the
// protocol engine, sealed and sent by a link, and reset. It is not safe for
// concurrent use, and its frames are valid until Reset.
type Burst struct {
	frames  []Frame
	n       int
	scratch []byte
	used    int
	maxLoad int
}

// NewBurst returns a burst of at most frames packets with at most payload bytes
// each.
func NewBurst(frames, payload int) *Burst {
	return &Burst{frames: make([]Frame, frames), maxLoad: payload}
}

// Next returns the next free frame, or nil when the burst is full.
func (b *Burst) Next() *Frame {
	if b.n == len(b.frames) {
		return nil
	}
	f := &b.frames[b.n]
	f.Path, f.Payload, f.Corrupt, f.tlen, f.ID = nil, nil, false, 0, 0
	b.n++
	return f
}

// Drop takes back the frame that Next returned last.
func (b *Burst) Drop() { b.n-- }

// Free returns how many more frames fit.
func (b *Burst) Free() int { return len(b.frames) - b.n }

// Frames returns the frames collected so far.
func (b *Burst) Frames() []Frame { return b.frames[:b.n] }

// Keep removes the frames for which keep returns false.
func (b *Burst) Keep(keep func(*Frame) bool) {
	n := 0
	for i := range b.n {
		if !keep(&b.frames[i]) {
			continue
		}
		if n != i {
			b.frames[n] = b.frames[i]
		}
		n++
	}
	b.n = n
}

// Scratch returns n bytes, at most the payload bound given to NewBurst, that
// stay valid until Reset.
func (b *Burst) Scratch(n int) []byte {
	if b.scratch == nil {
		b.scratch = make([]byte, len(b.frames)*b.maxLoad)
	}
	s := b.scratch[b.used : b.used+n : b.used+n]
	b.used += n
	return s
}

// Reset empties the burst.
func (b *Burst) Reset() { b.n, b.used = 0, 0 }

// Datagram is one packet as a link received it, its ICRC checked and removed.
type Datagram struct {
	Src, Dst netip.Addr
	SrcPort  uint16
	// TrafficClass holds DSCP and ECN as received.
	TrafficClass uint8
	HopLimit     uint8
	// ID is the IPv4 identification, as far as the link knows it.
	ID uint16
	// Data is BTH to pad. It belongs to the link and is valid until its next
	// Receive.
	Data []byte
}

// CongestionExperienced reports whether a switch marked the packet (ECN = 11).
func (d *Datagram) CongestionExperienced() bool { return d.TrafficClass&3 == 3 }

// GRHLen is the length of the area in front of a received datagram's payload.
const GRHLen = 40

// PutGRH fills the area in front of a UD receive: the IPv6 header as received,
// or for IPv4 20 zero bytes and the IPv4 header with a correct checksum, by
// which readers tell the two apart (IBA 11.4.2.1, annex A17).
func (d *Datagram) PutGRH(grh *[GRHLen]byte) {
	*grh = [GRHLen]byte{}
	p := Path{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort, TrafficClass: d.TrafficClass, HopLimit: d.HopLimit}
	at := GRHLen - ipv6Len
	if d.Src.Is4() {
		at = GRHLen - ipv4Len
	}
	p.appendIP(grh[at:at], d.ID, udpLen+len(d.Data)+ICRCLen)
}
