package mr

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// SGE is one scatter/gather entry: local memory of a work request.
type SGE struct {
	Addr   uint64
	Length uint32 // bytes
	LKey   uint32
}

// Total returns the sum of the lengths in bytes.
func Total(sges []SGE) (n uint64) {
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	return n
}

// Remote finds the n bytes at va that a peer names by key, for a queue pair of
// domain d that needs the given right (IBA 10.6.3). The slice aliases the
// region. n is at most 2^31; what to do for n = 0 is the caller's affair.
func (d *Domain) Remote(key uint32, need Access, va, n uint64) ([]byte, Fault) {
	return d.RemoteFor(0, key, need, va, n)
}

// RemoteFor is Remote for the queue pair with number pair: a type 2 window is
// open to the pair that it was bound on only.
func (d *Domain) RemoteFor(pair, key uint32, need Access, va, n uint64) ([]byte, Fault) {
	r := d.table.find(key)
	switch {
	case r == nil:
		return nil, FaultKey
	case r.domain != d:
		return nil, FaultDomain
	case r.invalid, r.pair != 0 && r.pair != pair:
		return nil, FaultState
	case r.access&need != need:
		return nil, FaultAccess
	}
	return r.slice(va, n)
}

// slice returns [va, va+n) if it lies inside the region.
func (r *Region) slice(va, n uint64) ([]byte, Fault) {
	off := va - r.base // wraps to a huge offset below the base
	if off > uint64(len(r.mem)) || n > uint64(len(r.mem))-off {
		return nil, FaultRange
	}
	return r.mem[off : off+n : off+n], 0
}

// Local finds the memory of a scatter/gather entry. need is 0 to read from it
// and LocalWrite to write to it. An entry of length 0 needs no valid key.
func (d *Domain) Local(e SGE, need Access) ([]byte, Fault) {
	if e.Length == 0 {
		return nil, 0
	}
	return d.Remote(e.LKey, need, e.Addr, uint64(e.Length))
}

// Check tests all entries of a list for the right.
func (d *Domain) Check(sges []SGE, need Access) Fault {
	for i := range sges {
		if _, f := d.Local(sges[i], need); f != 0 {
			return f
		}
	}
	return 0
}

// Piece returns the bytes of the message sges from offset on, at most n and at
// most to the end of the entry that offset falls into. The caller loops for
// more; usually one piece is the whole packet and nothing is copied.
func (d *Domain) Piece(sges []SGE, offset, n uint64, need Access) ([]byte, Fault) {
	for i := range sges {
		l := uint64(sges[i].Length)
		if offset >= l {
			offset -= l
			continue
		}
		b, f := d.Local(sges[i], need)
		if f != 0 {
			return nil, f
		}
		return b[offset:min(l, offset+n)], 0
	}
	return nil, FaultRange
}

// Scatter copies data to the message sges from offset on.
func (d *Domain) Scatter(sges []SGE, offset uint64, data []byte) Fault {
	for len(data) > 0 {
		b, f := d.Piece(sges, offset, uint64(len(data)), LocalWrite)
		if f != 0 {
			return f
		}
		n := copy(b, data)
		data, offset = data[n:], offset+uint64(n)
	}
	return 0
}

// Gather fills dst from the message sges from offset on.
func (d *Domain) Gather(dst []byte, sges []SGE, offset uint64) Fault {
	for len(dst) > 0 {
		b, f := d.Piece(sges, offset, uint64(len(dst)), 0)
		if f != 0 {
			return f
		}
		n := copy(dst, b)
		dst, offset = dst[n:], offset+uint64(n)
	}
	return 0
}

// CompareSwap stores swap in the 8 bytes of word if they hold compare, and
// returns what they held. The word has the host's byte order.
func CompareSwap(word []byte, compare, swap uint64) uint64 {
	p := alignedWord(word)
	if p == nil {
		old := binary.NativeEndian.Uint64(word)
		if old == compare {
			binary.NativeEndian.PutUint64(word, swap)
		}
		return old
	}
	for {
		old := atomic.LoadUint64(p)
		if old != compare || atomic.CompareAndSwapUint64(p, compare, swap) {
			return old
		}
	}
}

// FetchAdd adds to the 8 bytes of word, modulo 2^64, and returns what they held.
func FetchAdd(word []byte, add uint64) uint64 {
	p := alignedWord(word)
	if p == nil {
		old := binary.NativeEndian.Uint64(word)
		binary.NativeEndian.PutUint64(word, old+add)
		return old
	}
	return atomic.AddUint64(p, add) - add
}

// AtomicWrite stores the 8 bytes of data in word at once: no reader that loads
// the word atomically sees a mixture.
func AtomicWrite(word, data []byte) {
	if p := alignedWord(word); p != nil {
		atomic.StoreUint64(p, binary.NativeEndian.Uint64(data))
		return
	}
	copy(word, data[:8])
}

// alignedWord returns word as an integer that the processor can change
// atomically, or nil if its real address is unaligned: possible only in a
// zero-based region over unaligned memory. Then the operation is atomic with
// respect to the device's other operations only, as verbs allow (ATOMIC_HCA).
func alignedWord(word []byte) *uint64 {
	p := unsafe.Pointer(unsafe.SliceData(word[:8]))
	if uintptr(p)&7 != 0 {
		return nil
	}
	return (*uint64)(p)
}
