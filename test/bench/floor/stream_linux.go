package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A packet of the stream is as long as one in the middle of a RoCE WRITE: a
// header of 12 bytes, the payload, a CRC-32 over both. The header holds the
// packet's number; the acknowledgement, as long as a RoCE one, the number that
// is expected next.
const (
	headerSize = 12
	crcSize    = 4
	ackSize    = 20
	lastMark   = 1 // in byte 8 of the header

	maxDatagram = 65507
	maxBatch    = 60 // packets that one call sends: kernels before 6.9 take 64
	slots       = 8  // coalesced buffers that one call receives
	slotBytes   = 64 << 10

	// Found by trying: larger windows leave the cache, smaller ones leave the
	// sender waiting.
	defaultWindow = 240
	ackEvery      = 30
)

// sender is the sending side. Payload goes to the kernel from where it lies,
// as in goroce.
type sender struct {
	*socket
	s       settings
	payload int    // bytes of a packet
	batch   int    // packets of a call
	source  []byte // the message, sent over and over
	meta    []byte // header 0, CRC 0, header 1, CRC 1, …
	iovs    []unix.Iovec
	msg     unix.Msghdr
	ctrl    [32]byte
	next    uint64 // packet to send
	acked   uint64 // packets that have arrived
	ack     [64]byte
}

func sendStream(s settings) (row, error) {
	runtime.LockOSThread()
	sock, err := open(s.Local, s.Remote)
	if err != nil {
		return row{}, err
	}
	defer sock.close()
	t := newSender(sock, s)
	perMessage := uint64(packets(s))
	end := uint64(s.Count) * perMessage
	start := time.Now()
	for {
		n := uint64(t.batch)
		if s.Time > 0 {
			if time.Since(start) >= s.Time {
				end = (t.next/perMessage + 1) * perMessage
				s.Time = 0
			}
		}
		if s.Time == 0 {
			n = min(n, end-t.next)
		}
		if n == 0 {
			break
		}
		if err := t.room(n); err != nil {
			return row{}, err
		}
		if err := t.send(int(n), s.Time == 0 && t.next+n == end); err != nil {
			return row{}, err
		}
	}
	if err := t.waitFor(end); err != nil {
		return row{}, err
	}
	return streamRow(s, int(end/perMessage), time.Since(start)), nil
}

// packets returns how many packets a message has.
func packets(s settings) int { return (s.Size + s.MTU - 1) / s.MTU }

func streamRow(s settings, messages int, took time.Duration) row {
	bytes := float64(messages) * float64(packets(s)) * float64(payloadOf(s))
	sec := took.Seconds()
	return row{Size: s.Size, Iterations: messages, MiB: bytes / sec / (1 << 20), Gbps: bytes * 8 / sec / 1e9, Mpps: float64(messages) / sec / 1e6}
}

// payloadOf returns the payload of each packet: all are equal, so that a
// message whose size is no multiple of the MTU is rounded.
func payloadOf(s settings) int {
	n := packets(s)
	return s.Size / n
}

func newSender(sock *socket, s settings) *sender {
	t := &sender{socket: sock, s: s, payload: payloadOf(s), source: make([]byte, payloadOf(s)*packets(s))}
	packet := headerSize + t.payload + crcSize
	t.batch = min(maxBatch, maxDatagram/packet)
	for i := range t.source {
		t.source[i] = byte(i * 7)
	}
	t.meta = make([]byte, t.batch*(headerSize+crcSize))
	t.iovs = make([]unix.Iovec, 2*t.batch+1)
	t.msg.Name = (*byte)(unsafe.Pointer(&t.peer))
	t.msg.Namelen = uint32(unsafe.Sizeof(t.peer))
	t.msg.Iov = &t.iovs[0]
	t.msg.Control = &t.ctrl[0]
	t.msg.SetControllen(unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&t.ctrl[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&t.ctrl[unix.CmsgLen(0)])) = uint16(packet)
	return t
}

// send sends n packets with one call. The CRC of one packet and the header of
// the next are neighbours in memory, and so one piece.
func (t *sender) send(n int, last bool) error {
	const step = headerSize + crcSize
	for i := range n {
		at := int((t.next + uint64(i)) % uint64(len(t.source)/t.payload) * uint64(t.payload))
		payload := t.source[at : at+t.payload]
		header := t.meta[i*step : i*step+headerSize]
		binary.LittleEndian.PutUint64(header, t.next+uint64(i))
		header[8] = 0
		if last && i == n-1 {
			header[8] = lastMark
		}
		crc := crc32.Update(crc32.ChecksumIEEE(header), crc32.IEEETable, payload)
		binary.LittleEndian.PutUint32(t.meta[i*step+headerSize:], crc)
		from := i*step - crcSize
		if i == 0 {
			from = 0
		}
		t.iovs[2*i].Base = &t.meta[from]
		t.iovs[2*i].SetLen(i*step + headerSize - from)
		t.iovs[2*i+1].Base = &payload[0]
		t.iovs[2*i+1].SetLen(t.payload)
	}
	t.iovs[2*n].Base = &t.meta[n*step-crcSize]
	t.iovs[2*n].SetLen(crcSize)
	t.msg.SetIovlen(2*n + 1)
	for {
		_, _, err := unix.Syscall(unix.SYS_SENDMSG, uintptr(t.fd), uintptr(unsafe.Pointer(&t.msg)), 0)
		switch err {
		case 0:
			t.next += uint64(n)
			return nil
		case unix.EAGAIN, unix.EINTR, unix.ENOBUFS: // the socket's buffer empties as the peer reads
		default:
			return fmt.Errorf("sendmsg of %d segments of %d bytes: %w", n, t.payload+step, err)
		}
	}
}

// room waits until n more packets fit into the window.
func (t *sender) room(n uint64) error {
	if t.next+n <= t.acked+uint64(t.s.Window) {
		return nil
	}
	return t.waitFor(t.next + n - uint64(t.s.Window))
}

// waitFor waits until the packets before number n are acknowledged.
func (t *sender) waitFor(n uint64) error {
	var started time.Time
	for spins := 0; t.acked < n; spins++ {
		got, err := t.receive(t.ack[:])
		switch {
		case err != 0:
			return fmt.Errorf("receive an acknowledgement: %w", err)
		case got == ackSize:
			if !sealed(t.ack[:got]) {
				return errors.New("an acknowledgement has a wrong CRC")
			}
			t.acked = max(t.acked, binary.LittleEndian.Uint64(t.ack[:]))
			continue
		case t.s.Events:
			t.sleep(limit)
		}
		if spins%1024 == 0 {
			if started.IsZero() {
				started = time.Now()
			} else if time.Since(started) > limit {
				return fmt.Errorf("%d of %d packets were acknowledged, and then none for %v: one was lost", t.acked, t.next, limit)
			}
		}
	}
	return nil
}

// sealed reports whether a packet ends with the CRC of what is before it.
func sealed(p []byte) bool {
	n := len(p) - crcSize
	return crc32.ChecksumIEEE(p[:n]) == binary.LittleEndian.Uint32(p[n:])
}

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// receiver is the receiving side.
type receiver struct {
	*socket
	s       settings
	payload int
	target  []byte // where the message goes
	msgs    [slots]mmsghdr
	iovs    [slots]unix.Iovec
	ctrl    [slots][64]byte
	buf     []byte
	next    uint64 // packet expected
	acked   uint64
	last    bool
	ack     [ackSize]byte
}

func receiveStream(s settings, ready func() error) error {
	runtime.LockOSThread()
	sock, err := open(s.Local, s.Remote)
	if err != nil {
		return err
	}
	defer sock.close()
	if err := unix.SetsockoptInt(sock.fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
		return fmt.Errorf("UDP_GRO: %w", err)
	}
	r := newReceiver(sock, s)
	if err := ready(); err != nil {
		return err
	}
	end := time.Now().Add(s.Time + limit)
	for spins := 0; !r.last; {
		n, err := r.burst()
		if err != nil {
			return err
		}
		if r.next-r.acked >= ackEvery || n == 0 && r.next > r.acked || r.last {
			if err := r.acknowledge(); err != nil {
				return err
			}
			continue
		}
		if n > 0 {
			continue
		}
		if s.Events {
			r.sleep(limit)
		}
		if spins++; spins%1024 == 0 && time.Now().After(end) {
			return fmt.Errorf("the sender has stopped after %d packets", r.next)
		}
	}
	return r.check()
}

func newReceiver(sock *socket, s settings) *receiver {
	r := &receiver{socket: sock, s: s, payload: payloadOf(s), target: make([]byte, payloadOf(s)*packets(s)), buf: make([]byte, slots*slotBytes)}
	for i := range r.msgs {
		r.iovs[i].Base = &r.buf[i*slotBytes]
		r.iovs[i].SetLen(slotBytes)
		h := &r.msgs[i].hdr
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = &r.ctrl[i][0]
	}
	return r
}

// burst receives what is there and returns how many packets that was.
func (r *receiver) burst() (int, error) {
	for i := range r.msgs {
		r.msgs[i].hdr.SetControllen(len(r.ctrl[i]))
		r.msgs[i].hdr.Flags = 0
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.msgs[0])), slots, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		return 0, nil
	default:
		return 0, fmt.Errorf("recvmmsg: %w", errno)
	}
	count := 0
	for i := range int(n) {
		m := &r.msgs[i]
		if m.hdr.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			return 0, errors.New("a received buffer is cut off")
		}
		b := r.buf[i*slotBytes : i*slotBytes+int(m.n)]
		step := segmentSize(r.ctrl[i][:m.hdr.Controllen], len(b))
		for len(b) > 0 {
			size := min(step, len(b))
			if err := r.packet(b[:size]); err != nil {
				return 0, err
			}
			b = b[size:]
			count++
		}
	}
	return count, nil
}

// segmentSize returns the size of the datagrams in a buffer of n bytes, which
// the kernel tells if there are several.
func segmentSize(ctrl []byte, n int) int {
	if len(ctrl) < unix.CmsgLen(4) {
		return n
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&ctrl[0]))
	if h.Level != unix.SOL_UDP || h.Type != unix.UDP_GRO {
		return n
	}
	return max(1, int(*(*int32)(unsafe.Pointer(&ctrl[unix.CmsgLen(0)]))))
}

// packet checks a packet and copies its payload to its place in the message.
func (r *receiver) packet(p []byte) error {
	if len(p) != headerSize+r.payload+crcSize {
		return fmt.Errorf("a packet of %d bytes, not %d", len(p), headerSize+r.payload+crcSize)
	}
	if !sealed(p) {
		return fmt.Errorf("packet %d has a wrong CRC", r.next)
	}
	if got := binary.LittleEndian.Uint64(p); got != r.next {
		return fmt.Errorf("packet %d came instead of %d: the window was too large for the buffer", got, r.next)
	}
	at := int(r.next % uint64(len(r.target)/r.payload) * uint64(r.payload))
	copy(r.target[at:], p[headerSize:headerSize+r.payload])
	r.next++
	r.last = p[8] == lastMark
	return nil
}

func (r *receiver) acknowledge() error {
	binary.LittleEndian.PutUint64(r.ack[:], r.next)
	binary.LittleEndian.PutUint32(r.ack[ackSize-crcSize:], crc32.ChecksumIEEE(r.ack[:ackSize-crcSize]))
	for range 1000 {
		switch err := r.send(r.ack[:]); err {
		case 0:
			r.acked = r.next
			return nil
		case unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
			time.Sleep(time.Millisecond)
		default:
			return fmt.Errorf("send an acknowledgement: %w", err)
		}
	}
	return errors.New("send an acknowledgement: the socket's buffer stays full")
}

// check compares the message that was put together with what was sent.
func (r *receiver) check() error {
	for i, b := range r.target {
		if b != byte(i*7) {
			return fmt.Errorf("byte %d of the message is %d, not %d", i, b, byte(i*7))
		}
	}
	return nil
}
