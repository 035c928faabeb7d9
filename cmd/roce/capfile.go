package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"time"
)

// maxRecord bounds the bytes of one captured packet, as tcpdump and Wireshark
// do: a longer one means that the file is damaged.
const maxRecord = 256 << 10

// record is one packet of a capture file.
type record struct {
	number  int       // from 1
	time    time.Time // zero if the file does not say
	link    uint32    // link type of the pcap registry
	wireLen int       // bytes on the wire, at least len(data)
	data    []byte    // valid until the next record is read
}

// captureError says where and why a capture file cannot be read further.
type captureError struct {
	packet int   // the packet that could not be read, from 1; 0: the file header
	offset int64 // byte at which the packet or header begins
	what   string
}

func (e *captureError) Error() string {
	if e.packet == 0 {
		return e.what
	}
	return fmt.Sprintf("packet %d at byte %d: %s", e.packet, e.offset, e.what)
}

// captureFile reads pcap and pcapng, one record at a time and in bounded
// memory.
type captureFile struct {
	r      *bufio.Reader
	offset int64 // bytes read so far
	order  binary.ByteOrder
	ng     *ngSection // nil for pcap
	buf    []byte
	count  int

	// pcap only
	link       uint32
	fracToNano int64
}

// ngSection is what a pcapng section has said so far.
type ngSection struct {
	interfaces []ngInterface
}

type ngInterface struct {
	link    uint32
	snapLen uint32
	perSec  uint64 // units of the time stamp per second; 0: not representable
	offset  int64  // seconds
}

const (
	magicMicro  = 0xA1B2C3D4
	magicNano   = 0xA1B23C4D
	magicNg     = 0x0A0D0D0A // the same in both byte orders
	magicNgByte = 0x1A2B3C4D
)

// openCapture reads the file's header.
func openCapture(r io.Reader) (*captureFile, error) {
	f := &captureFile{r: bufio.NewReaderSize(r, 64<<10)}
	magic, err := f.r.Peek(4)
	if err != nil {
		return nil, headerError(len(magic), err)
	}
	switch {
	case magic[0] == 0x1F && magic[1] == 0x8B:
		return nil, &captureError{what: "the file is compressed: pipe it through 'gunzip -c FILE | roce decode -'"}
	case binary.LittleEndian.Uint32(magic) == magicNg:
		f.ng = &ngSection{}
		f.order = binary.LittleEndian // the section header will say
		return f, nil
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if m := order.Uint32(magic); m == magicMicro || m == magicNano {
			return f, f.readPcapHeader(order, m)
		}
	}
	return nil, &captureError{what: fmt.Sprintf("this is no capture file (it begins with %q): save one with 'tcpdump -w FILE udp port 4791'", magic)}
}

func headerError(n int, err error) error {
	switch {
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case n == 0:
		return &captureError{what: "the file is empty: a capture without packets would still have a header"}
	}
	return &captureError{what: fmt.Sprintf("the file ends after %d bytes, in its header: copy it again", n)}
}

func (f *captureFile) readPcapHeader(order binary.ByteOrder, magic uint32) error {
	h, err := f.read(24)
	if err != nil {
		return headerError(int(f.offset), err)
	}
	if major := order.Uint16(h[4:]); major != 2 {
		return &captureError{what: fmt.Sprintf("pcap version %d is unknown: version 2 is wanted", major)}
	}
	f.order = order
	f.link = order.Uint32(h[20:]) & 0xFFFF // the rest is about the frame check sequence
	f.fracToNano = 1000
	if magic == magicNano {
		f.fracToNano = 1
	}
	return nil
}

// next returns the next record, or io.EOF when the file ends after a whole one.
func (f *captureFile) next() (record, error) {
	if f.ng != nil {
		return f.nextNg()
	}
	start := f.offset
	h, err := f.read(16)
	if err != nil {
		return record{}, f.recordError(start, 16, err)
	}
	sec, frac := f.order.Uint32(h), f.order.Uint32(h[4:])
	n, wire := f.order.Uint32(h[8:]), f.order.Uint32(h[12:])
	if n > maxRecord {
		return record{}, f.damaged(start, "its header says %d captured bytes, more than any capture holds: the file is damaged here", n)
	}
	data, err := f.read(int(n))
	if err != nil {
		return record{}, f.recordError(start, 16+int64(n), err)
	}
	t := time.Unix(int64(sec), int64(frac)*f.fracToNano).UTC()
	return f.record(t, f.link, data, wire), nil
}

func (f *captureFile) record(t time.Time, link uint32, data []byte, wire uint32) record {
	f.count++
	return record{number: f.count, time: t, link: link, wireLen: max(int(wire), len(data)), data: data}
}

// nextNg reads blocks until one holds a packet.
func (f *captureFile) nextNg() (record, error) {
	for {
		start := f.offset
		h, err := f.read(8)
		if err != nil {
			return record{}, f.recordError(start, 8, err)
		}
		typ := f.order.Uint32(h)
		if typ == magicNg {
			// Its length is in the byte order that only its body tells.
			if err := f.readSection(start, [4]byte(h[4:])); err != nil {
				return record{}, err
			}
			continue
		}
		body, err := f.readBlock(start, typ, f.order.Uint32(h[4:]))
		if err != nil {
			return record{}, err
		}
		rec, found, err := f.handleBlock(start, typ, body)
		if found || err != nil {
			return rec, err
		}
	}
}

// The block types that matter here.
const (
	ngInterfaceBlock = 1
	ngOldPacket      = 2
	ngSimplePacket   = 3
	ngEnhancedPacket = 6
)

// readSection starts a section: it fixes the byte order and forgets interfaces.
func (f *captureFile) readSection(start int64, rawLen [4]byte) error {
	m, err := f.read(4)
	if err != nil {
		return f.recordError(start, 12, err)
	}
	switch uint32(magicNgByte) {
	case binary.LittleEndian.Uint32(m):
		f.order = binary.LittleEndian
	case binary.BigEndian.Uint32(m):
		f.order = binary.BigEndian
	default:
		return f.damaged(start, "the section header has no valid byte-order mark: the file is damaged here")
	}
	f.ng.interfaces = f.ng.interfaces[:0]
	n := f.order.Uint32(rawLen[:])
	if n < 28 || n%4 != 0 {
		return f.damaged(start, "a section header of %d bytes is impossible: the file is damaged here", n)
	}
	if err := f.skip(int64(n) - 12); err != nil {
		return f.recordError(start, int64(n), err)
	}
	return nil
}

// readBlock reads the rest of a block of n bytes and returns its body, or skips
// it if its type does not matter.
func (f *captureFile) readBlock(start int64, typ, n uint32) ([]byte, error) {
	if n < 12 || n%4 != 0 {
		return nil, f.damaged(start, "a block of %d bytes is impossible: the file is damaged here", n)
	}
	switch typ {
	case ngInterfaceBlock, ngOldPacket, ngSimplePacket, ngEnhancedPacket:
	default:
		if err := f.skip(int64(n) - 8); err != nil {
			return nil, f.recordError(start, int64(n), err)
		}
		return nil, nil
	}
	const options = 64 << 10
	if n > maxRecord+options {
		return nil, f.damaged(start, "a block of %d bytes is longer than any packet: the file is damaged here", n)
	}
	b, err := f.read(int(n) - 8)
	if err != nil {
		return nil, f.recordError(start, int64(n), err)
	}
	if again := f.order.Uint32(b[len(b)-4:]); again != n {
		return nil, f.damaged(start, "a block begins with a length of %d and ends with one of %d: the file is damaged here", n, again)
	}
	return b[:len(b)-4], nil
}

// handleBlock interprets the body of a block; found reports whether it held a
// packet.
func (f *captureFile) handleBlock(start int64, typ uint32, b []byte) (rec record, found bool, err error) {
	switch {
	case typ == ngInterfaceBlock && len(b) >= 8:
		return record{}, false, f.addInterface(start, b)
	case typ == ngEnhancedPacket && len(b) >= 20:
		rec, err = f.ngPacket(start, f.order.Uint32(b), b)
		return rec, true, err
	case typ == ngOldPacket && len(b) >= 20:
		rec, err = f.ngPacket(start, uint32(f.order.Uint16(b)), b)
		return rec, true, err
	case typ == ngSimplePacket && len(b) >= 4:
		rec, err = f.ngSimple(start, b)
		return rec, true, err
	case typ == ngInterfaceBlock, typ == ngEnhancedPacket, typ == ngOldPacket, typ == ngSimplePacket:
		return record{}, true, f.damaged(start, "a block of type %d is too short: the file is damaged here", typ)
	}
	return record{}, false, nil
}

func (f *captureFile) addInterface(start int64, b []byte) error {
	const most = 1 << 16
	if len(f.ng.interfaces) == most {
		return f.damaged(start, "more than %d interfaces in one section: the file is damaged here", most)
	}
	i := ngInterface{link: uint32(f.order.Uint16(b)), snapLen: f.order.Uint32(b[4:]), perSec: 1e6}
	for b = b[8:]; len(b) >= 4; {
		code, n := f.order.Uint16(b), int(f.order.Uint16(b[2:]))
		padded := 4 + (n+3)&^3
		if code == 0 || padded > len(b) {
			break
		}
		v := b[4 : 4+n]
		switch {
		case code == 9 && n == 1:
			i.perSec = unitsPerSecond(v[0])
		case code == 14 && n == 8:
			i.offset = int64(f.order.Uint64(v))
		}
		b = b[padded:]
	}
	f.ng.interfaces = append(f.ng.interfaces, i)
	return nil
}

// unitsPerSecond decodes if_tsresol: a power of ten, or of two if bit 7 is set.
// It returns 0 for a resolution that no 64-bit count can hold.
func unitsPerSecond(r byte) uint64 {
	if e := r & 0x7F; r&0x80 != 0 {
		if e > 63 {
			return 0
		}
		return 1 << e
	}
	if r > 19 {
		return 0
	}
	n := uint64(1)
	for range r {
		n *= 10
	}
	return n
}

// ngPacket reads the part that enhanced and old packet blocks have in common.
func (f *captureFile) ngPacket(start int64, id uint32, b []byte) (record, error) {
	if int64(id) >= int64(len(f.ng.interfaces)) {
		return record{}, f.damaged(start, "it names interface %d, which the file has not described", id)
	}
	i := f.ng.interfaces[id]
	stamp := uint64(f.order.Uint32(b[4:]))<<32 | uint64(f.order.Uint32(b[8:]))
	n, wire := f.order.Uint32(b[12:]), f.order.Uint32(b[16:])
	if int64(n) > int64(len(b)-20) {
		return record{}, f.damaged(start, "it says %d captured bytes, but its block holds %d: the file is damaged here", n, len(b)-20)
	}
	return f.record(i.time(stamp), i.link, b[20:20+n], wire), nil
}

func (i ngInterface) time(stamp uint64) time.Time {
	if i.perSec == 0 {
		return time.Time{}
	}
	hi, lo := bits.Mul64(stamp%i.perSec, 1e9)
	nano, _ := bits.Div64(hi, lo, i.perSec)
	return time.Unix(int64(stamp/i.perSec)+i.offset, int64(nano)).UTC()
}

// ngSimple reads a simple packet block, which has neither time nor captured
// length.
func (f *captureFile) ngSimple(start int64, b []byte) (record, error) {
	if len(f.ng.interfaces) == 0 {
		return record{}, f.damaged(start, "it comes before any description of an interface")
	}
	i := f.ng.interfaces[0]
	wire := f.order.Uint32(b)
	data := b[4:]
	n := wire
	if i.snapLen != 0 {
		n = min(n, i.snapLen)
	}
	if int64(n) < int64(len(data)) {
		data = data[:n]
	}
	return f.record(time.Time{}, i.link, data, wire), nil
}

// read returns the next n bytes, which stay valid until the next read.
func (f *captureFile) read(n int) ([]byte, error) {
	if n > cap(f.buf) {
		f.buf = make([]byte, max(n, 2048))
	}
	b := f.buf[:n]
	k, err := io.ReadFull(f.r, b)
	f.offset += int64(k)
	return b, err
}

func (f *captureFile) skip(n int64) error {
	k, err := io.CopyN(io.Discard, f.r, n)
	f.offset += k
	return err
}

// recordError turns an error of reading into io.EOF if the file ends between
// records, or says how much is missing.
func (f *captureFile) recordError(start, want int64, err error) error {
	switch {
	case f.offset == start && errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return f.damaged(start, "the file ends there, %d of %d bytes into it: it was cut off, so copy or capture it again", f.offset-start, want)
	}
	return err
}

func (f *captureFile) damaged(start int64, format string, args ...any) error {
	return &captureError{packet: f.count + 1, offset: start, what: fmt.Sprintf(format, args...)}
}
