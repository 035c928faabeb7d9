package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// packetRing receives through a packet socket whose slots are mapped into the
// process: to look for a packet is to read a word of memory, where a UDP socket
// takes a system call, and the packet is used where the kernel has put it. The link's
// UDP socket still holds the port and sends; what it would receive is dropped.
//
// Long runs of packets, which loopback hands over as one, do not fit into a slot:
// the slot keeps their place in the order, and a system call fetches them.
type packetRing struct {
	fd     int
	local  netip.Addr
	port   uint16
	zone   int32 // interface of a link-local address, else 0
	lo     int32 // the loopback interface
	mem    []byte
	slots  []*unix.Tpacket2Hdr
	next   int // slot that the kernel fills next
	held   int // slots before it whose packets the caller has
	runs   [groBatch][]byte
	blocks int
	misses uint        // looks that found nothing
	check  atomic.Bool // the next one of them is to see whether the ring is stuck

	// What the kernel says of the packets so far: those that found a slot, and those
	// that did not. lost are long runs without room beyond their slot.
	arrived, dropped, lost uint64
	seen                   [2]uint64 // arrived and dropped when the ring was empty last
	msg                    unix.Msghdr
	iovs                   [2]unix.Iovec
	copied                 [vnetLen + maxLinkHeader + ipv6HeaderLen + udpHeaderLen]byte
}

const (
	// slotLen holds the longest packet, 76 bytes of the kernel's before it. A block
	// is as many slots as fit.
	slotLen  = 4608
	blockLen = 1 << 16
	perBlock = blockLen / slotLen

	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	udpHeaderLen  = 8
	maxLinkHeader = 64
	vnetLen       = 10 // of struct virtio_net_hdr, which is in front of the packet
	vnetUDP       = 5  // VIRTIO_NET_HDR_GSO_UDP_L4
)

// openRing makes a ring for what is sent to a port of a local address. It takes as
// many packets as a socket buffer of the given size.
func openRing(local netip.Addr, zone uint32, port uint16, buffer int, of share) (*packetRing, error) {
	r := &packetRing{fd: -1, local: local, zone: int32(zone), port: port}
	r.lo = int32(loopbackInterface())
	for i := range r.runs {
		r.runs[i] = make([]byte, groSlot)
	}
	if err := r.open(buffer, of); err != nil {
		r.close()
		return nil, fmt.Errorf("udp: %w: %w", ErrRing, err)
	}
	return r, nil
}

func (r *packetRing) open(buffer int, of share) (err error) {
	// Protocol 0 receives nothing before the ring is there.
	if r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	for _, o := range []struct {
		name, value int
		what        string
	}{
		{unix.PACKET_VERSION, unix.TPACKET_V2, "PACKET_VERSION"},
		{unix.PACKET_VNET_HDR, 1, "PACKET_VNET_HDR"},
		{unix.PACKET_COPY_THRESH, 1, "PACKET_COPY_THRESH"},
		{unix.PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING"},
	} {
		if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, o.name, o.value); err != nil {
			return fmt.Errorf("%s: %w", o.what, err)
		}
	}
	if unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		_ = unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	if err := attachFilter(r.fd, unix.SO_ATTACH_FILTER, ringFilter(r.local, r.port, of)); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	slots := 2 * buffer / (2*4096 + 1024)
	r.blocks = max(minBlocks, (slots+perBlock-1)/perBlock)
	if err := r.mapSlots(); err != nil {
		return err
	}
	protocol := uint16(unix.ETH_P_IP)
	if r.local.Is6() {
		protocol = unix.ETH_P_IPV6
	}
	if err := unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: swap16(protocol)}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// minBlocks is the least size of a ring.
const minBlocks = 16

// mapSlots makes the slots.
func (r *packetRing) mapSlots() (err error) {
	blocks := r.blocks
	req := unix.TpacketReq{Block_size: blockLen, Block_nr: uint32(blocks), Frame_size: slotLen, Frame_nr: uint32(blocks * perBlock)}
	if err := unix.SetsockoptTpacketReq(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return fmt.Errorf("PACKET_RX_RING: %w", err)
	}
	if r.mem, err = unix.Mmap(r.fd, 0, blocks*blockLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	r.slots = make([]*unix.Tpacket2Hdr, 0, blocks*perBlock)
	for i := range blocks * perBlock {
		at := i/perBlock*blockLen + i%perBlock*slotLen
		r.slots = append(r.slots, (*unix.Tpacket2Hdr)(unsafe.Pointer(&r.mem[at])))
	}
	return nil
}

// fromNetwork, added to an offset, makes a filter count from the IP header on
// (SKF_NET_OFF).
const fromNetwork = 0xFFF00000

// share is one of n shards, and which packets it gets: see steer.
type share struct{ index, n int }

// ringFilter lets UDP packets to a port of an address pass. What else has to be
// right is checked in the process.
func ringFilter(local netip.Addr, port uint16, of share) (f []unix.SockFilter) {
	protocol, udp, address := uint32(9), uint32(ipv4HeaderLen), uint32(16)
	if local.Is6() {
		protocol, udp, address = 6, ipv6HeaderLen, 24
	}
	load := func(size uint16, at uint32) {
		f = append(f, unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: fromNetwork + at})
	}
	equal := func(value uint32) {
		f = append(f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value})
	}
	load(unix.BPF_H, udp+2)
	equal(uint32(port))
	load(unix.BPF_B, protocol)
	equal(unix.IPPROTO_UDP)
	for b := local.AsSlice(); len(b) > 0; b = b[4:] {
		load(unix.BPF_W, address)
		equal(binary.BigEndian.Uint32(b))
		address += 4
	}
	if of.n > 1 {
		load(unix.BPF_B, udp+udpHeaderLen+qpnLowByte)
		f = append(f, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: uint32(of.n - 1)})
		equal(uint32(of.index))
	}
	for i := range f { // who differs is rejected, at the end
		if f[i].Code&7 == unix.BPF_JMP {
			f[i].Jf = uint8(len(f) - i)
		}
	}
	return append(f, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 18}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K})
}

// loopbackInterface returns the index of the loopback interface, 0 if there is none.
func loopbackInterface() int {
	ifs, _ := net.Interfaces()
	for _, ifi := range ifs {
		if ifi.Flags&net.FlagLoopback != 0 {
			return ifi.Index
		}
	}
	return 0
}

func (r *packetRing) unmap() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
		r.mem, r.slots = nil, nil
	}
}

func (r *packetRing) close() {
	r.unmap()
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
		r.fd = -1
	}
}

// fromRing receives a burst from the ring.
func (s *socket) fromRing() []bth.Datagram {
	r := s.ring
	r.release()
	if len(r.slots) == 0 || !filled(r.slots[r.next]) {
		if r.misses++; r.misses%looksPerCheck == 0 || r.check.Load() {
			s.checkRing()
		}
		return nil
	}
	afterReceive()
	s.rx.out = s.rx.out[:0]
	for runs := 0; r.held < burstSize && len(s.rx.out) < burstSize && runs < len(r.runs); r.held++ {
		h := r.slots[r.next]
		if !filled(h) {
			break
		}
		if r.next++; r.next == len(r.slots) {
			r.next = 0
		}
		if h.Status&unix.TP_STATUS_COPY != 0 {
			s.ringPacket(h, r.fetch(h, r.runs[runs]))
			runs++
		} else {
			s.ringPacket(h, nil)
		}
	}
	return s.rx.out
}

// A ring is seen to be stuck when a caller that polls has looked so often in vain, or
// somebody who sleeps has done so for so long: see checkRing.
const (
	looksPerCheck = 1 << 16
	ringCheck     = time.Second
)

// checkRing makes the slots of a ring anew that has stopped. When the kernel cannot say
// how a run of packets is segmented (other than TCP and plain UDP runs; seen with UFO
// from a tap on Linux 6.18), it drops it, but keeps the slot marked as being filled, and
// drops all that follows. The sign is that packets have been dropped, and none has
// arrived, since the ring was empty last, and it is empty again.
func (s *socket) checkRing() {
	r := s.ring
	r.check.Store(false)
	r.count()
	stuck := r.dropped > r.seen[1] && r.arrived == r.seen[0]
	if stuck || len(r.slots) == 0 {
		s.stats[rxRingReset]++
		r.unmap()
		_ = unix.SetsockoptTpacketReq(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{})
		r.next = 0
		_ = r.mapSlots() // if that fails, the next check tries again
	}
	r.seen = [2]uint64{r.arrived, r.dropped}
}

// filled reports whether the kernel has put a packet into a slot.
func filled(h *unix.Tpacket2Hdr) bool {
	return atomic.LoadUint32(&h.Status)&unix.TP_STATUS_USER != 0
}

// release gives the slots of the last burst back to the kernel.
func (r *packetRing) release() {
	for ; r.held > 0; r.held-- {
		i := r.next - r.held
		if i < 0 {
			i += len(r.slots)
		}
		atomic.StoreUint32(&r.slots[i].Status, unix.TP_STATUS_KERNEL)
	}
}

// fetch gets the packet that did not fit into its slot, and returns what follows the
// UDP header.
func (r *packetRing) fetch(h *unix.Tpacket2Hdr, into []byte) []byte {
	head := vnetLen + int(h.Net-h.Mac) + ipv4HeaderLen + udpHeaderLen
	if r.local.Is6() {
		head += ipv6HeaderLen - ipv4HeaderLen
	}
	if head > len(r.copied) {
		head = len(r.copied)
	}
	r.iovs[0].Base, r.iovs[1].Base = &r.copied[0], &into[0]
	r.iovs[0].SetLen(head)
	r.iovs[1].SetLen(len(into))
	r.msg.Iov = &r.iovs[0]
	r.msg.SetIovlen(len(r.iovs))
	n, _, err := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.msg)), unix.MSG_DONTWAIT)
	if err != 0 || int(n) < head {
		return into[:0]
	}
	return into[:int(n)-head]
}

// ringPacket adds what a slot holds to the burst; fetched is the payload that did
// not fit into it. What is not for this link, or broken, IP and UDP drop and count as
// well: they get a copy.
func (s *socket) ringPacket(h *unix.Tpacket2Hdr, fetched []byte) {
	r := s.ring
	link := (*unix.RawSockaddrLinklayer)(unsafe.Add(unsafe.Pointer(h), unsafe.Sizeof(*h)))
	if link.Pkttype != unix.PACKET_HOST || r.zone != 0 && link.Ifindex != r.zone && link.Ifindex != r.lo {
		return // not for this host; or for another link with the same addresses
	}
	end := int(h.Mac) + int(h.Snaplen)
	if int(h.Net) > end || end > slotLen {
		return
	}
	slot := unsafe.Slice((*byte)(unsafe.Pointer(h)), slotLen)
	d := bth.Datagram{}
	at, n, ok := r.headers(slot[h.Net:end], &d)
	if !ok {
		return
	}
	data := slot[int(h.Net)+at : end : end]
	if fetched != nil {
		data = fetched
	}
	if n > len(data) {
		if h.Len > h.Snaplen {
			r.lost++ // the buffer for long runs was full; else its headers lie
		}
		return
	}
	if link.Ifindex != r.lo && (d.Src.IsLoopback() || d.Dst.IsLoopback()) {
		return // no network has these addresses
	}
	vnet := slot[h.Mac-vnetLen:]
	if piece := int(binary.NativeEndian.Uint16(vnet[4:])); vnet[1] == vnetUDP && piece > 0 && piece < n {
		s.pieces(&d, data[:n:n], piece, d.ID)
		return
	}
	s.single(&d, data[:n:n])
}

// headers reads the IP and UDP headers that b starts with into d. It returns where
// the UDP payload begins and how long it is.
func (r *packetRing) headers(b []byte, d *bth.Datagram) (at, n int, ok bool) {
	room := 0 // for UDP in the IP packet
	switch {
	case r.local.Is4():
		if len(b) < ipv4HeaderLen+udpHeaderLen || b[0] != 0x45 || b[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(b[6:])&0x3FFF != 0 {
			return 0, 0, false // options and fragments are not for RoCE
		}
		d.TrafficClass, d.HopLimit, d.ID = b[1], b[8], binary.BigEndian.Uint16(b[4:])
		d.Src, d.Dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		at, room = ipv4HeaderLen, int(binary.BigEndian.Uint16(b[2:]))-ipv4HeaderLen
	default:
		if len(b) < ipv6HeaderLen+udpHeaderLen || b[0]>>4 != 6 || b[6] != unix.IPPROTO_UDP {
			return 0, 0, false
		}
		d.TrafficClass, d.HopLimit = b[0]<<4|b[1]>>4, b[7]
		d.Src, d.Dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		at, room = ipv6HeaderLen, int(binary.BigEndian.Uint16(b[4:]))
	}
	n = int(binary.BigEndian.Uint16(b[at+4:]))
	if d.Dst != r.local || binary.BigEndian.Uint16(b[at+2:]) != r.port || n < udpHeaderLen || n > room {
		return 0, 0, false
	}
	d.SrcPort = binary.BigEndian.Uint16(b[at:])
	return at + udpHeaderLen, n - udpHeaderLen, true
}

// count takes over the kernel's counts, which begin anew then.
func (r *packetRing) count() {
	if st, err := unix.GetsockoptTpacketStats(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		r.arrived += uint64(st.Packets - st.Drops) // of which the drops are a part
		r.dropped += uint64(st.Drops)
	}
}

// drops returns how many packets have found no room.
func (r *packetRing) drops() uint64 {
	r.count()
	return r.dropped + r.lost
}

var probedRing = sync.OnceValue(probeRing)

// RingError returns why this process cannot have a packet ring, nil if it can.
func RingError() error { return probedRing() }

// probeRing tells whether the kernel says of a run on loopback how long its packets
// are. Before Linux 6.2 it drops runs instead.
func probeRing() error {
	a := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	from, to := probeSocket(a), probeSocket(a)
	defer unix.Close(from)
	defer unix.Close(to)
	name, err := unix.Getsockname(to)
	if err != nil {
		return fmt.Errorf("a socket on loopback: %w", err)
	}
	r, err := openRing(a, 0, uint16(name.(*unix.SockaddrInet4).Port), 1<<16, share{})
	if err != nil {
		return err
	}
	defer r.close()
	const size = 48
	var space [24]byte
	control := appendSegmentSize(space[:0], size)
	if _, err := unix.SendmsgN(from, make([]byte, 2*size), control, name, unix.MSG_DONTWAIT); err != nil {
		return nil // no loopback, or no runs
	}
	for range probeWait {
		if filled(r.slots[0]) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("udp: %w: this kernel drops runs of packets", ErrRing)
}
