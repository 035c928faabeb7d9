package chaos

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"os"
	"syscall"
)

const (
	blockSize = 2 << 20
	gapSize   = 512 // after each area, unregistered
	gapByte   = 0xA5
)

// mapping is a file in memory. A process that is killed leaves it behind as it
// was: the survivor can look what had arrived.
type mapping struct {
	file   string
	mem    []byte
	blocks [2]block // used in turn, so that an old one can be watched
}

// mapFile makes the file and maps it.
func mapFile(file string) (*mapping, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(2 * blockSize); err != nil {
		return nil, err
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, 2*blockSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	m := &mapping{file: file, mem: mem}
	for i := range m.blocks {
		m.blocks[i] = block{mem: mem[i*blockSize:][:blockSize:blockSize], base: int64(i * blockSize), seed: maphash.MakeSeed()}
		m.blocks[i].seal()
	}
	return m, nil
}

func (m *mapping) close() error { return syscall.Munmap(m.mem) }

// block is the memory of one session: areas with gaps between them.
type block struct {
	mem  []byte
	base int64 // in the file
	used int
	gaps []int
	seed maphash.Seed
	sum  uint64
}

// clear makes the block ready for a new session.
func (b *block) clear() {
	clear(b.mem)
	b.used, b.gaps = 0, b.gaps[:0]
}

// take returns n bytes and their place in the file.
func (b *block) take(n int) ([]byte, int64) {
	n = (n + 63) &^ 63
	if b.used+n+gapSize > len(b.mem) {
		panic("the block is too small")
	}
	at := b.used
	gap := b.mem[at+n:][:gapSize]
	copy(gap, bytes.Repeat([]byte{gapByte}, gapSize))
	b.gaps = append(b.gaps, at+n)
	b.used = at + n + gapSize
	return b.mem[at:][:n:n], b.base + int64(at)
}

// checkGaps finds bytes written next to an area.
func (b *block) checkGaps() error {
	for _, at := range b.gaps {
		for i, v := range b.mem[at:][:gapSize] {
			if v != gapByte {
				return fmt.Errorf("memory that was not registered was changed: %d bytes behind an area", i)
			}
		}
	}
	return nil
}

// seal notes the contents; checkSeal finds any change since.
func (b *block) seal() { b.sum = maphash.Bytes(b.seed, b.mem) }

func (b *block) checkSeal() error {
	if maphash.Bytes(b.seed, b.mem) != b.sum {
		return fmt.Errorf("memory of an earlier session was changed after its keys had ended")
	}
	return nil
}
