package bth

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"sync/atomic"
)

// Path is the way a packet takes: what of its IP and UDP headers the transport
// chooses. Src and Dst are of one family; an IPv4 address is stored as such,
// not mapped into IPv6.
type Path struct {
	Src, Dst     netip.Addr
	SrcPort      uint16 // UDP source port: entropy, any value
	TrafficClass uint8  // IPv4 TOS or IPv6 traffic class: DSCP and 2 bits ECN
	HopLimit     uint8  // TTL or hop limit; 0 leaves the choice to the link
}

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
	protUDP = 17
	// dontFragment is the IPv4 flags word of every RoCEv2 packet.
	dontFragment = 0x4000
)

// ICRC returns the invariant CRC of the packet hdr|payload|pad, where hdr starts
// with the BTH and pad is that many zero bytes (IBA 7.8.1, A17). id is the IPv4
// identification that the packet will carry; IPv6 has none. Put it on the wire
// with [AppendICRC]: it is little-endian there.
func (p *Path) ICRC(id uint16, hdr, payload []byte, pad int) uint32 {
	var c HeaderCRC
	return c.ICRC(p, id, hdr, payload, pad)
}

// HeaderCRC computes ICRCs as Path.ICRC does, and remembers what the IP and UDP
// headers contribute: it is the same for all packets of one length on one path.
// The zero value is ready for use; it is not safe for concurrent use.
type HeaderCRC struct {
	path   Path
	length int    // of the UDP payload; 0 nothing is remembered
	reg    uint32 // the CRC register after the headers, for identification 0
}

// ICRC is Path.ICRC for the path p.
func (c *HeaderCRC) ICRC(p *Path, id uint16, hdr, payload []byte, pad int) uint32 {
	if n := len(hdr) + len(payload) + pad + ICRCLen; n != c.length || *p != c.path {
		c.path, c.length = *p, n
		c.reg = p.headerRegister(n)
	}
	reg := c.reg
	if id != 0 && p.Src.Is4() {
		reg ^= idEffect[0][id>>8] ^ idEffect[1][id&0xFF]
	}
	var bth [BTHLen]byte
	copy(bth[:], hdr)
	bth[4] = 0xFF // FECN, BECN and the reserved bits may change on the way
	crc := ^slice(reg, bth[:])
	if rest := hdr[BTHLen:]; len(rest) >= vectorLen {
		crc = crc32.Update(crc, crc32.IEEETable, rest)
	} else {
		crc = ^slice(^crc, rest)
	}
	if len(payload) >= vectorLen {
		crc = crc32.Update(crc, crc32.IEEETable, payload)
	} else {
		crc = ^slice(^crc, payload)
	}
	if pad > 0 {
		crc = ^slice(^crc, zeroPad[:pad])
	}
	return crc
}

// vectorLen is from how many bytes on the standard library is faster than our
// own table code.
const vectorLen = 64

// idEffect[k][b] is what byte k of the IPv4 identification, if it is b, changes
// in the CRC register at the end of the UDP header.
var idEffect = func() (t [2][256]uint32) {
	var zeros [ipv4Len + udpLen]byte
	for k := range t {
		for b := range t[k] {
			h := zeros
			h[4+k] = byte(b)
			t[k][b] = slice(0, h[4:]) ^ slice(0, zeros[4:])
		}
	}
	return t
}()

// headerRegister returns the CRC register after the IP and UDP headers in front
// of a UDP payload of n bytes, with IPv4 identification 0.
func (p *Path) headerRegister(n int) uint32 {
	var buf headerBuf
	return slice(afterLRH, buf[:p.maskedHeaders(&buf, 0, n)])
}

// headerBuf holds the IP and UDP headers.
type headerBuf [ipv6Len + udpLen]byte

// maskedHeaders writes the IP and UDP headers with the fields that change on
// the way set to ones, and returns their length.
func (p *Path) maskedHeaders(buf *headerBuf, id uint16, udpPayload int) int {
	b := buf[:]
	length := udpPayload + udpLen
	if p.Src.Is4() {
		b[0], b[1] = 0x45, 0xFF
		binary.BigEndian.PutUint16(b[2:], uint16(length+ipv4Len))
		binary.BigEndian.PutUint16(b[4:], id)
		binary.BigEndian.PutUint16(b[6:], dontFragment)
		b[8], b[9], b[10], b[11] = 0xFF, protUDP, 0xFF, 0xFF
		src, dst := p.Src.As4(), p.Dst.As4()
		copy(b[12:], src[:])
		copy(b[16:], dst[:])
		b = b[ipv4Len:]
	} else {
		b[0], b[1], b[2], b[3] = 0x6F, 0xFF, 0xFF, 0xFF
		binary.BigEndian.PutUint16(b[4:], uint16(length))
		b[6], b[7] = protUDP, 0xFF
		src, dst := p.Src.As16(), p.Dst.As16()
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
		b = b[ipv6Len:]
	}
	binary.BigEndian.PutUint16(b[0:], p.SrcPort)
	binary.BigEndian.PutUint16(b[2:], Port)
	binary.BigEndian.PutUint16(b[4:], uint16(length))
	b[6], b[7] = 0xFF, 0xFF
	return len(buf) - len(b) + udpLen
}

// AppendDatagram appends the whole IP datagram that carries the given parts of a
// packet, BTH to ICRC, for captures. The UDP checksum is 0.
func (p *Path) AppendDatagram(b []byte, id uint16, parts ...[]byte) []byte {
	n := udpLen
	for _, part := range parts {
		n += len(part)
	}
	b = p.appendIP(b, id, n)
	b = append(b, byte(p.SrcPort>>8), byte(p.SrcPort), Port>>8, Port&0xFF, byte(n>>8), byte(n), 0, 0)
	for _, part := range parts {
		b = append(b, part...)
	}
	return b
}

// appendIP appends the IP header in front of n bytes of UDP header and payload.
func (p *Path) appendIP(b []byte, id uint16, n int) []byte {
	hops := p.HopLimit
	if hops == 0 {
		hops = 64
	}
	if p.Src.Is4() {
		at := len(b)
		b = append(b, 0x45, p.TrafficClass, byte((n+ipv4Len)>>8), byte(n+ipv4Len), byte(id>>8), byte(id), dontFragment>>8, 0, hops, protUDP, 0, 0)
		src, dst := p.Src.As4(), p.Dst.As4()
		b = append(append(b, src[:]...), dst[:]...)
		binary.BigEndian.PutUint16(b[at+10:], ^ipSum(b[at:]))
		return b
	}
	b = append(b, 0x60|p.TrafficClass>>4, p.TrafficClass<<4, 0, 0, byte(n>>8), byte(n), protUDP, hops)
	src, dst := p.Src.As16(), p.Dst.As16()
	return append(append(b, src[:]...), dst[:]...)
}

// ipSum is the ones' complement sum of a header.
func ipSum(h []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(h); i += 2 {
		sum += uint32(h[i])<<8 | uint32(h[i+1])
	}
	for sum > 0xFFFF {
		sum = sum&0xFFFF + sum>>16
	}
	return uint16(sum)
}

// AppendICRC appends the CRC in wire order, least significant byte first.
func AppendICRC(b []byte, icrc uint32) []byte {
	return binary.LittleEndian.AppendUint32(b, icrc)
}

// CheckICRC checks a received packet, BTH to ICRC, whose IPv4 identification
// the receiver does not know, as on a UDP socket. p.Src is the sender. For IPv4
// it tries identification 0 and then solves for the one that makes the CRC
// right, with DF set or clear, which leaves 15 bits of check; the identification
// found is returned. IPv6 has none and keeps all 32 bits.
func (p *Path) CheckICRC(b []byte) (id uint16, ok bool) {
	var c HeaderCRC
	return c.Check(p, b, 0)
}

// Check is Path.CheckICRC that tries a guess at the identification first: a
// sender that segments numbers the packets of a run 0, 1, 2, …, and solving
// costs more than a right guess.
func (c *HeaderCRC) Check(p *Path, b []byte, guess uint16) (id uint16, ok bool) {
	if len(b) < BTHLen+ICRCLen {
		return 0, false
	}
	if !p.Src.Is4() {
		guess = 0
	}
	body := b[:len(b)-ICRCLen]
	want := binary.LittleEndian.Uint32(b[len(body):])
	got := c.ICRC(p, guess, body, nil, 0)
	if got == want {
		return guess, true
	}
	if !p.Src.Is4() {
		return 0, false
	}
	id, ok = solveID(got^want, len(b))
	return id ^ guess, ok
}

// solveID finds the identification whose effect on the CRC of a datagram with
// udpPayload bytes of UDP payload is diff. A CRC is linear: running diff
// backwards over the bytes that follow leaves the two bytes of the
// identification, then the two of the flags word. The latter may differ from
// what was assumed in the DF bit, which some senders leave clear.
func solveID(diff uint32, udpPayload int) (uint16, bool) {
	// From the identification to the end of what the ICRC covers.
	n := ipv4Len - 4 + udpLen + udpPayload - ICRCLen
	r := mulMod(diff, back8(n))
	if flags := r >> 16; flags != 0 && flags != dontFragment>>8 {
		return 0, false
	}
	return uint16(r)<<8 | uint16(r)>>8, true
}

// CheckDatagram checks the ICRC of a whole packet as captured: b starts with
// an IPv4 or IPv6 header, or with the GRH of RoCEv1 (an IPv6 header whose next
// header is 0x1B). Bytes past the length in the IP header are ignored. It
// returns the computed and the received CRC; ok is false when b is no RoCE
// packet, is cut short, or is one of the forms that RoCE forbids: an IP
// fragment, or an IP header with options.
func CheckDatagram(b []byte) (computed, received uint32, ok bool) {
	var h [ipv6Len + udpLen + BTHLen]byte
	total, l3 := 0, 0
	switch {
	case len(b) >= ipv4Len+udpLen+BTHLen && b[0] == 0x45 && b[9] == protUDP && !fragment(b):
		total, l3 = int(binary.BigEndian.Uint16(b[2:])), ipv4Len
		copy(h[:], b[:ipv4Len])
		h[1], h[8], h[10], h[11] = 0xFF, 0xFF, 0xFF, 0xFF
	case len(b) >= ipv6Len+BTHLen && b[0]>>4 == 6:
		total, l3 = ipv6Len+int(binary.BigEndian.Uint16(b[4:])), ipv6Len
		copy(h[:], b[:ipv6Len])
		h[0], h[1], h[2], h[3], h[7] = h[0]|0x0F, 0xFF, 0xFF, 0xFF, 0xFF
	default:
		return 0, 0, false
	}
	bthAt := l3
	if l3 == ipv4Len || b[6] == protUDP {
		bthAt += udpLen
	} else if b[6] != nextHeaderBTH {
		return 0, 0, false
	}
	if total > len(b) || total < bthAt+BTHLen+ICRCLen {
		return 0, 0, false
	}
	if bthAt > l3 && binary.BigEndian.Uint16(b[l3+2:]) != Port {
		return 0, 0, false
	}
	copy(h[l3:], b[l3:bthAt+BTHLen])
	if bthAt > l3 {
		h[l3+6], h[l3+7] = 0xFF, 0xFF
	}
	h[bthAt+4] = 0xFF
	crc := ^slice(afterLRH, h[:bthAt+BTHLen])
	crc = crc32.Update(crc, crc32.IEEETable, b[bthAt+BTHLen:total-ICRCLen])
	return crc, binary.LittleEndian.Uint32(b[total-ICRCLen:]), true
}

// afterLRH is the CRC register after the 8 bytes of ones that stand for the
// link header of InfiniBand, which Ethernet lacks.
const afterLRH = 0xDEBB20E3

// slice runs the CRC register over b. The standard library does the same, but
// makes its argument escape to the heap, which would cost an allocation per
// packet; for few bytes its vector code gains nothing.
func slice(r uint32, b []byte) uint32 {
	t := &slicing
	for len(b) >= 8 {
		r ^= binary.LittleEndian.Uint32(b)
		r = t[7][byte(r)] ^ t[6][byte(r>>8)] ^ t[5][byte(r>>16)] ^ t[4][byte(r>>24)] ^
			t[3][b[4]] ^ t[2][b[5]] ^ t[1][b[6]] ^ t[0][b[7]]
		b = b[8:]
	}
	if len(b) >= 4 {
		r ^= binary.LittleEndian.Uint32(b)
		r = t[3][byte(r)] ^ t[2][byte(r>>8)] ^ t[1][byte(r>>16)] ^ t[0][r>>24]
		b = b[4:]
	}
	for _, c := range b {
		r = t[0][byte(r)^c] ^ r>>8
	}
	return r
}

// slicing[k][c] is the effect on the register of byte c, k bytes later.
var slicing = func() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for k := 1; k < len(t); k++ {
		for c, v := range t[k-1] {
			t[k][c] = t[0][byte(v)] ^ v>>8
		}
	}
	return t
}()

// fragment reports whether the IPv4 packet b is a part of a larger one.
func fragment(b []byte) bool { return binary.BigEndian.Uint16(b[6:])&0x3FFF != 0 }

// nextHeaderBTH marks a GRH that is followed by a BTH (RoCEv1).
const nextHeaderBTH = 0x1B

// back8 returns x^(-8n) in the field of the CRC polynomial: multiplying by it
// runs the register backwards over n zero bytes. Results are kept, since
// datagrams come in few lengths.
func back8(n int) uint32 {
	if n >= len(backCache) {
		return back8Slow(n)
	}
	if v := backCache[n].Load(); v != 0 {
		return v
	}
	v := back8Slow(n)
	backCache[n].Store(v)
	return v
}

var backCache [4608]atomic.Uint32

func back8Slow(n int) uint32 {
	r, sq := uint32(1<<31), invX8()
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			r = mulMod(r, sq)
		}
		sq = mulMod(sq, sq)
	}
	return r
}

// invX8 returns x^-8. Bit 31 is the coefficient of x^0.
func invX8() uint32 {
	r := uint32(1 << 31)
	for range 8 {
		if r&(1<<31) != 0 {
			r = (r^crc32.IEEE)<<1 | 1
		} else {
			r <<= 1
		}
	}
	return r
}

// mulMod multiplies two polynomials modulo the CRC polynomial, both with
// reflected bits.
func mulMod(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			p ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return p
}
