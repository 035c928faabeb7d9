package udp

import (
	"net/netip"
	"unsafe"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// receiveRing holds what recvmmsg fills. Everything is allocated once.
type receiveRing struct {
	local netip.Addr
	slot  int // bytes per slot
	batch int // slots to offer at the next call
	msgs  [burstSize]mmsghdr
	iovs  [burstSize]unix.Iovec
	names [burstSize]unix.RawSockaddrInet6 // large enough for both families
	ctrl  [burstSize][96]byte
	buf   []byte
	out   []bth.Datagram
	crc   bth.HeaderCRC
	used  int // slots that the last call filled
}

const (
	// plainSlot leaves room to notice datagrams that are too long.
	plainSlot = (maxPacket + 64) &^ 63
	// groSlot takes the longest run of packets that the kernel coalesces.
	groSlot = 1 << 16
	// groBatch is how many slots are offered while the kernel coalesces: what
	// they hold stays in the processor's cache until it is handled.
	groBatch = 4
	// maxSegments is the most packets in one run (UDP_MAX_SEGMENTS since 6.9).
	maxSegments = 128
)

func (r *receiveRing) init(local netip.Addr, gro bool) {
	r.local, r.slot, r.batch = local, plainSlot, burstSize
	if gro {
		r.slot = groSlot
	}
	r.buf = make([]byte, burstSize*r.slot)
	r.out = make([]bth.Datagram, 0, burstSize)
	for i := range r.msgs {
		r.iovs[i].Base = &r.buf[i*r.slot]
		r.iovs[i].SetLen(r.slot)
		h := &r.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = &r.ctrl[i][0]
		r.reset(i)
	}
}

// reset sets what the kernel changed in slot i.
func (r *receiveRing) reset(i int) {
	h := &r.msgs[i].hdr
	h.Namelen, h.Flags = uint32(unsafe.Sizeof(r.names[i])), 0
	h.SetControllen(len(r.ctrl[i]))
}

// Receive implements Link.
func (s *socket) Receive() []bth.Datagram {
	if ds := s.receiveOwn(); len(ds) > 0 || len(s.groups) == 0 {
		return ds
	}
	for range s.groups {
		g := s.groups[s.next%len(s.groups)]
		s.next++
		if ds := s.receiveFrom(g.fd, g.addr); len(ds) > 0 {
			return ds
		}
	}
	return nil
}

// receiveOwn receives a burst of what was sent to the link's address.
func (s *socket) receiveOwn() []bth.Datagram {
	if s.ring != nil {
		return s.fromRing()
	}
	return s.receiveFrom(s.fd, s.rx.local)
}

// receiveFrom receives a burst of what was sent to dst.
func (s *socket) receiveFrom(fd int, dst netip.Addr) []bth.Datagram {
	r := &s.rx
	for i := range r.used {
		r.reset(i)
	}
	r.used = 0
	n := r.call(fd)
	if n == 0 {
		r.batch = 1
		return nil
	}
	afterReceive()
	r.out = r.out[:0]
	r.used = n
	runs := s.stats[rxCoalesced]
	for i := range n {
		s.slot(i, dst)
	}
	switch {
	case s.stats[rxCoalesced] != runs:
		r.batch = groBatch
	case n == r.batch || n > 1:
		r.batch = burstSize
	}
	return r.out
}

// call receives up to r.batch messages and returns their number. Raw calls do
// not tell the scheduler: this one does not block, and copies no more than
// groBatch slots.
func (r *receiveRing) call(fd int) int {
	if r.batch > 1 {
		n, _, err := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.msgs[0])), uintptr(r.batch), unix.MSG_DONTWAIT, 0, 0)
		if err != 0 {
			return 0
		}
		return int(n)
	}
	n, _, err := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.msgs[0].hdr)), unix.MSG_DONTWAIT)
	if err != 0 {
		return 0
	}
	r.msgs[0].n = uint32(n)
	return 1
}

// slot turns slot i into the datagrams that it holds: one, or the equal pieces
// of a coalesced run.
func (s *socket) slot(i int, dst netip.Addr) {
	r := &s.rx
	m := &r.msgs[i]
	d := bth.Datagram{Dst: dst}
	if s.v6 {
		sa := &r.names[i]
		d.Src, d.SrcPort = netip.AddrFrom16(sa.Addr), swap16(sa.Port)
	} else {
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.names[i]))
		d.Src, d.SrcPort = netip.AddrFrom4(sa.Addr), swap16(sa.Port)
	}
	data := r.buf[i*r.slot : i*r.slot+int(m.n)]
	piece := parseControl(r.ctrl[i][:m.hdr.Controllen], &d)
	if piece <= 0 || piece >= len(data) {
		s.datagram(&d, data, 0, m.hdr.Flags&unix.MSG_TRUNC != 0)
		return
	}
	s.pieces(&d, data, piece, 0)
}

// pieces adds a coalesced run to the burst. guess is the first one's IPv4
// identification, most likely.
func (s *socket) pieces(d *bth.Datagram, data []byte, piece int, guess uint16) {
	s.stats[rxCoalesced]++
	for len(data) > 0 {
		n := min(piece, len(data))
		guess = s.datagram(d, data[:n:n], guess, false) + 1
		data = data[n:]
	}
}

// single adds a datagram whose IPv4 identification d tells.
func (s *socket) single(d *bth.Datagram, data []byte) {
	id, n := d.ID, len(s.rx.out)
	if s.datagram(d, data, id, false); len(s.rx.out) > n && d.ID != id {
		s.rx.out = s.rx.out[:n]
		s.stats[rxBadICRC]++
	}
}

// datagram adds a datagram with d's addresses to the burst if it is good. It
// returns its IPv4 identification, for which guess is tried first.
func (s *socket) datagram(d *bth.Datagram, data []byte, guess uint16, truncated bool) uint16 {
	if truncated || len(data) > maxPacket {
		s.stats[rxPackets]++
		s.stats[rxTruncated]++
		return guess
	}
	d.Data = data
	if !s.stats.acceptNear(d, &s.rx.crc, guess) {
		return guess
	}
	s.rx.out = append(s.rx.out, *d)
	return d.ID
}

// parseControl reads traffic class and hop limit from control messages, and
// returns the length of the pieces of a coalesced run, 0 if there is none.
func parseControl(b []byte, d *bth.Datagram) (piece int) {
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		end := int(h.Len)
		if end < unix.SizeofCmsghdr || end > len(b) {
			return piece
		}
		if data := b[unix.CmsgLen(0):end]; len(data) > 0 {
			switch {
			case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS:
				d.TrafficClass = lowByte(data)
			case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
				d.HopLimit = lowByte(data)
			case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
				piece = int(*(*int32)(unsafe.Pointer(&data[0])))
			}
		}
		b = b[min(len(b), unix.CmsgSpace(end-unix.CmsgLen(0))):]
	}
	return piece
}

// lowByte returns a control value that is a byte, or a native int.
func lowByte(data []byte) byte {
	if len(data) >= 4 {
		return byte(*(*int32)(unsafe.Pointer(&data[0])))
	}
	return data[0]
}
