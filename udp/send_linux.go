package udp

import (
	"net/netip"
	"time"
	"unsafe"

	"github.com/goroce/goroce/bth"
	"golang.org/x/sys/unix"
)

// sendRing holds what sendmmsg reads. A message is a run of frames that the
// kernel cuts apart again; each frame is header, payload and trailer, gathered
// from where they lie.
type sendRing struct {
	msgs  [sendBurst]mmsghdr
	runs  [sendBurst]int // frames per message
	iovs  [3 * sendBurst]unix.Iovec
	names [sendBurst]unix.RawSockaddrInet6
	ctrl  [sendBurst][ctrlSpace]byte
	fds   [sendBurst]int // the socket of each message
	crc   bth.HeaderCRC
	small []byte // the bytes of short frames, copied
}

// sendBurst is how many packets are prepared at a time.
const sendBurst = 256

// ctrlSpace holds three control messages of up to an int each.
const ctrlSpace = 3 * 24

func (t *sendRing) init() {
	t.small = make([]byte, 0, sendBurst*(bth.MaxHeaderLen+smallPayload+3+bth.ICRCLen))
	for i := range t.msgs {
		t.msgs[i].hdr.Name = (*byte)(unsafe.Pointer(&t.names[i]))
	}
}

// Send implements Link.
func (s *socket) Send(b *bth.Burst) {
	for frames := b.Frames(); len(frames) > 0; {
		n := min(len(frames), sendBurst)
		s.sendFrames(frames[:n])
		frames = frames[n:]
	}
}

// sendFrames sends at most sendBurst frames. Where the kernel refuses to
// segment, they are sealed again and sent one by one: a packet on its own has
// another IPv4 identification.
func (s *socket) sendFrames(frames []bth.Frame) {
	for len(frames) > 0 {
		sent, err := s.sendRuns(frames, s.prepare(frames))
		frames = frames[sent:]
		if len(frames) > 0 && err != 0 {
			frames = frames[s.refused(frames):]
		}
	}
}

// refused finds out why the run that the frames start with was refused: the first
// packet is sent alone. If that is refused too, the cause is where it goes, and
// the whole run is lost; else runs are. It returns how many frames are done with.
func (s *socket) refused(frames []bth.Frame) int {
	n, gso, failed := s.run(frames), s.info.GSO, s.stats[txErrors]
	s.info.GSO = 1
	s.sendRuns(frames[:1], s.prepare(frames[:1]))
	if s.stats[txErrors] == failed {
		s.stats[txFallback]++
		return 1
	}
	s.info.GSO = gso
	s.stats[txErrors] += uint64(n - 1)
	return n
}

// prepare seals frames and fills the ring with them, grouped in runs. It
// returns the number of messages.
func (s *socket) prepare(frames []bth.Frame) (messages int) {
	t := &s.tx
	s.learnClass(frames[0].Path.TrafficClass)
	iovs, small := t.iovs[:0], t.small[:0]
	for i := 0; i < len(frames); messages++ {
		n := s.run(frames[i:])
		first := len(iovs)
		for k := range n {
			f := &frames[i+k]
			f.SealWith(&t.crc, uint16(k))
			if len(f.Payload) > smallPayload {
				iovs = appendFrame(iovs, f)
				continue
			}
			at := len(small)
			small = f.AppendTo(small)
			if n := len(iovs); n > first && follows(&iovs[n-1], small, at) {
				iovs[n-1].SetLen(int(iovs[n-1].Len) + len(small) - at)
				continue
			}
			iovs = appendIovec(iovs, small[at:])
		}
		t.runs[messages] = n
		s.message(messages, &frames[i], iovs[first:], n)
		i += n
	}
	return messages
}

// smallPayload is up to how many bytes it costs less to copy a payload than to
// have the kernel gather it.
const smallPayload = 256

// follows reports whether small[at:] lies right behind the bytes of v.
func follows(v *unix.Iovec, small []byte, at int) bool {
	return at > 0 && uintptr(unsafe.Pointer(v.Base))+uintptr(v.Len) == uintptr(unsafe.Pointer(&small[at]))
}

// maxRun bounds the UDP payload of a run: the longest that IPv4 carries.
const maxRun = 65507

// run returns how many of the frames, from the first on, can go as one message:
// to one destination and equally long, except that the last may be shorter.
func (s *socket) run(frames []bth.Frame) (n int) {
	first := &frames[0]
	size, total := first.Len(), 0
	for n < len(frames) && n < s.info.GSO {
		f := &frames[n]
		length := f.Len()
		if length > size || total+length > maxRun || n > 0 && f.Path != first.Path && *f.Path != *first.Path {
			break
		}
		total += length
		if n++; length < size {
			break
		}
	}
	return max(1, n)
}

func appendFrame(iovs []unix.Iovec, f *bth.Frame) []unix.Iovec {
	iovs = appendIovec(iovs, f.Header())
	if len(f.Payload) > 0 {
		iovs = appendIovec(iovs, f.Payload)
	}
	return appendIovec(iovs, f.Trailer())
}

func appendIovec(iovs []unix.Iovec, b []byte) []unix.Iovec {
	iovs = append(iovs, unix.Iovec{Base: &b[0]})
	iovs[len(iovs)-1].SetLen(len(b))
	return iovs
}

// classPatience is how many more bursts of another traffic class than of the
// socket's default make it the default.
const classPatience = 32

// learnClass makes the traffic class that most bursts start with the default. No
// message may be prepared and not sent: its class would change.
func (s *socket) learnClass(class uint8) {
	if class == s.class {
		s.otherClass = max(0, s.otherClass-1)
		return
	}
	if s.otherClass++; s.otherClass < classPatience {
		return
	}
	s.otherClass = 0
	level, name := unix.IPPROTO_IP, unix.IP_TOS
	if s.v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	err := s.eachSender(func(fd int) error { return unix.SetsockoptInt(fd, level, name, int(class)) })
	if err == nil {
		s.class = class
	}
}

// message fills message i: a run of n frames that starts with f.
func (s *socket) message(i int, f *bth.Frame, iovs []unix.Iovec, n int) {
	t := &s.tx
	h := &t.msgs[i].hdr
	h.Iov = &iovs[0]
	h.SetIovlen(len(iovs))
	h.Namelen = s.setName(&t.names[i], f.Path.Dst)
	h.Control = nil
	h.SetControllen(0)
	t.fds[i] = s.sender(f.Path.SrcPort)
	c := s.control(t.ctrl[i][:0], f.Path)
	if n > 1 {
		c = appendSegmentSize(c, f.Len())
	}
	if len(c) > 0 {
		h.Control = &c[0]
		h.SetControllen(len(c))
	}
}

func (s *socket) setName(to *unix.RawSockaddrInet6, a netip.Addr) uint32 {
	if s.v6 {
		*to = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: swap16(bth.Port), Addr: a.As16()}
		if a.IsLinkLocalUnicast() {
			if to.Scope_id = s.zone; a.Zone() != "" {
				to.Scope_id = zoneID(a.Zone())
			}
		}
		return unix.SizeofSockaddrInet6
	}
	*(*unix.RawSockaddrInet4)(unsafe.Pointer(to)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: swap16(bth.Port), Addr: a.As4()}
	return unix.SizeofSockaddrInet4
}

// defaultHops is the hop limit of a packet whose path names none.
const defaultHops = 64

// control appends control messages for what differs from the socket's defaults,
// which cost less.
func (s *socket) control(b []byte, p *bth.Path) []byte {
	level, tos, ttl := int32(unix.IPPROTO_IP), int32(unix.IP_TOS), int32(unix.IP_TTL)
	if s.v6 {
		level, tos, ttl = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT
	}
	if p.TrafficClass != s.class {
		b = appendControl(b, level, tos, int32(p.TrafficClass))
	}
	if p.HopLimit != 0 && p.HopLimit != defaultHops {
		b = appendControl(b, level, ttl, int32(p.HopLimit))
	}
	return b
}

func appendControl(b []byte, level, kind, value int32) []byte {
	b, data := appendHeader(b, level, kind, 4)
	*(*int32)(data) = value
	return b
}

// appendSegmentSize asks the kernel to cut the message into packets of size
// bytes. Its argument is exactly 16 bits.
func appendSegmentSize(b []byte, size int) []byte {
	b, data := appendHeader(b, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
	*(*uint16)(data) = uint16(size)
	return b
}

// appendHeader appends a control message with room for n bytes of data.
func appendHeader(b []byte, level, kind int32, n int) ([]byte, unsafe.Pointer) {
	at := len(b)
	b = b[:at+unix.CmsgSpace(n)]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(n))
	return b, unsafe.Pointer(&b[at+unix.CmsgLen(0)])
}

// sendRuns sends the prepared messages and returns how many frames are done
// with. A full send buffer is waited for, briefly; an error belongs to the
// first message not sent, which is skipped. An error is returned only when the
// kernel would not segment a run: then the frames from there on are left.
func (s *socket) sendRuns(frames []bth.Frame, messages int) (sent int, _ unix.Errno) {
	t := &s.tx
	beforeSend()
	waited := false
	for at := 0; at < messages; {
		fd, upTo := t.fds[at], at+1
		for upTo < messages && t.fds[upTo] == fd {
			upTo++
		}
		n, err := s.send(fd, at, upTo-at)
		switch {
		case err == 0:
			for range int(n) {
				s.countSent(frames[sent : sent+t.runs[at]])
				sent += t.runs[at]
				at++
			}
		case err == unix.EINTR:
		case (err == unix.EAGAIN || err == unix.ENOBUFS) && !waited:
			s.stats[txBufferFull]++
			waitWritable(fd)
			waited = true
		case (err == unix.EIO || err == unix.EINVAL) && t.runs[at] > 1:
			return sent, err
		default:
			s.stats[txErrors] += uint64(t.runs[at])
			sent += t.runs[at]
			at++
		}
	}
	return sent, 0
}

// send sends n messages from the one at on. Raw calls do not tell the scheduler: none
// of these blocks, and a scheduler that takes the processor away from a slow one, as
// on an emulated machine, costs more than all the rest.
func (s *socket) send(fd, at, n int) (int, unix.Errno) {
	m := &s.tx.msgs[at]
	if n > 1 {
		n, _, err := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), uintptr(n), unix.MSG_DONTWAIT, 0, 0)
		return int(n), err
	}
	if h := &m.hdr; h.Iovlen == 1 && h.Control == nil {
		_, _, err := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(h.Iov.Base)), uintptr(h.Iov.Len), unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(h.Name)), uintptr(h.Namelen))
		return 1, err
	}
	_, _, err := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), unix.MSG_DONTWAIT)
	return 1, err
}

func (s *socket) countSent(frames []bth.Frame) {
	if len(frames) > 1 {
		s.stats[txSegmented]++
	}
	s.stats[txPackets] += uint64(len(frames))
	for i := range frames {
		s.stats[txBytes] += uint64(frames[i].Len())
	}
}

// sendWait bounds how long a full send buffer may hold up its owner.
const sendWait = 5 * time.Millisecond

func waitWritable(fd int) {
	ts := unix.NsecToTimespec(int64(sendWait))
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, &ts, nil)
}

// swap16 turns a port in network order into a number and back.
func swap16(v uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&v))
	return uint16(b[0])<<8 | uint16(b[1])
}
