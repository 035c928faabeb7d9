package mr

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Access is a set of rights; the values are those of the verbs API.
type Access uint32

// The rights. Local read is always allowed.
const (
	LocalWrite   Access = 1 << 0
	RemoteWrite  Access = 1 << 1
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3
	MWBind       Access = 1 << 4 // memory windows may be bound to the region
	ZeroBased    Access = 1 << 5 // addresses start at 0 instead of the memory's own
	FlushGlobal  Access = 1 << 8 // FLUSH to global visibility
	FlushPersist Access = 1 << 9 // FLUSH to persistence
)

// Fault says why an access to memory was refused. 0 is no fault.
type Fault uint8

// The faults, in the order in which they are checked.
const (
	FaultKey    Fault = iota + 1 // no region has this key
	FaultDomain                  // the region belongs to another protection domain
	FaultState                   // the key is not valid: an unbound window, or invalidated
	FaultAccess                  // the region lacks the right
	FaultRange                   // not wholly inside the region
)

// Error implements error.
func (f Fault) Error() string {
	switch f {
	case FaultKey:
		return "mr: no memory region has this key"
	case FaultDomain:
		return "mr: the key belongs to another protection domain"
	case FaultState:
		return "mr: the key is not valid now: an unbound window, or invalidated"
	case FaultAccess:
		return "mr: the memory region lacks the access right"
	case FaultRange:
		return "mr: the address range is not inside the memory region"
	}
	return "mr: no fault"
}

// What registration can be refused for.
var (
	ErrAccess = errors.New("mr: remote write and remote atomic need local write too")
	ErrFull   = errors.New("mr: the table holds its maximum of memory regions")
	ErrClosed = errors.New("mr: the memory region is already deregistered")
	ErrInUse  = errors.New("mr: the protection domain still has memory regions or queue pairs")
	ErrBound  = errors.New("mr: memory windows are bound to the region; invalidate or deallocate them first")
)

// Domain is a protection domain (PD, IBA 10.2.3). A key works only for queue
// pairs of the same domain.
type Domain struct {
	table *Table
	uses  atomic.Int64
}

// Retain notes one more object of the domain; Release takes it back.
func (d *Domain) Retain() { d.uses.Add(1) }

// Release ends what Retain noted.
func (d *Domain) Release() { d.uses.Add(-1) }

// InUse reports whether regions or queue pairs belong to the domain.
func (d *Domain) InUse() bool { return d.uses.Load() > 0 }

// Region is a memory region, or what a window or a fast registration makes
// reachable at the moment. Its fields do not change once it is in the table.
type Region struct {
	key    uint32
	access Access
	base   uint64 // address of mem[0] as work requests and peers name it
	mem    []byte
	domain *Domain

	invalid bool   // the key exists and reaches nothing
	pair    uint32 // type 2 window: the only queue pair that may use it
	owner   owner  // what an invalidation changes; nil for a plain region
	windows atomic.Int32
}

// owner is a window or a fast registration: something whose key can be ended
// and made valid again through a send queue.
type owner interface {
	invalidate(t *Table, pair uint32) bool
}

// Key returns the region's L_Key and R_Key.
func (r *Region) Key() uint32 { return r.key }

// Addr returns the address of the region's first byte.
func (r *Region) Addr() uint64 { return r.base }

// Len returns the region's length in bytes.
func (r *Region) Len() int { return len(r.mem) }

// Access returns the region's rights.
func (r *Region) Access() Access { return r.access }

// Bytes returns the memory itself.
func (r *Region) Bytes() []byte { return r.mem }

// SGE returns the scatter/gather entry for length bytes from offset. A work
// request whose entry is not inside the region fails with LocProtErr, or is
// refused at the post when the length cannot be a message's.
func (r *Region) SGE(offset, length int) SGE {
	n := uint32(length)
	if length < 0 || uint64(length) > maxEntry {
		n = maxEntry + 1
	}
	return SGE{Addr: r.base + uint64(offset), Length: n, LKey: r.key}
}

// maxEntry is the longest entry that makes sense: the longest message.
const maxEntry = 1 << 31

// Table holds the regions of one device.
type Table struct {
	slots  atomic.Pointer[slots]
	mu     sync.Mutex // serialises registration
	random func() uint32
	max    int
	live   int
}

// slots is an open-addressing table by key>>8. Readers take no lock: a writer
// changes one pointer at a time and publishes a larger table as a whole.
type slots struct {
	at   []atomic.Pointer[Region]
	used int // regions and tombstones
}

// tombstone keeps probe chains whole after a removal.
var tombstone = &Region{}

// NewTable returns an empty table for at most max regions (at most 2^20). The
// randomness of the keys comes from random.
func NewTable(max int, random func() uint32) *Table {
	t := &Table{random: random, max: min(max, 1<<20)}
	t.slots.Store(&slots{at: make([]atomic.Pointer[Region], 16)})
	return t
}

// NewDomain returns a new protection domain.
func (t *Table) NewDomain() *Domain { return &Domain{table: t} }

// Register makes mem reachable. The memory may come from anywhere (a Go slice,
// mmap); it must stay mapped until Deregister. Its address is that of its first
// byte, or 0 with ZeroBased. An empty mem is allowed and reaches nothing.
func (d *Domain) Register(mem []byte, access Access) (*Region, error) {
	if access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0 {
		return nil, ErrAccess
	}
	r := &Region{access: access, mem: mem, domain: d}
	if access&ZeroBased == 0 {
		r.base = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	}
	if err := d.table.insert(r); err != nil {
		return nil, err
	}
	d.Retain()
	return r, nil
}

// Deregister ends the key. The caller must make sure that no engine is in the
// middle of a packet (verbs does so by owning the shard).
func (d *Domain) Deregister(r *Region) error {
	if r.windows.Load() > 0 {
		return ErrBound
	}
	if r.domain != d || !d.table.remove(r) {
		return ErrClosed
	}
	d.Release()
	return nil
}

func (t *Table) insert(r *Region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live >= t.max {
		return ErrFull
	}
	s := t.slots.Load()
	if 2*(s.used+1) > len(s.at) {
		s = s.resized(t.live)
	}
	for {
		// Keys 0 and 0xFFFFFFFF are common fillers in faulty requests.
		r.key = t.random()
		if r.key>>8 != 0 && r.key>>8 != 1<<24-1 && s.put(r) {
			break
		}
	}
	t.slots.Store(s)
	t.live++
	return nil
}

func (t *Table) remove(r *Region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.slots.Load().where(r)
	if at == nil {
		return false
	}
	at.Store(tombstone)
	t.live--
	return true
}

// replace puts next, whose key has the same index part, in the place of old.
func (t *Table) replace(old, next *Region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.slots.Load().where(old)
	if at == nil {
		return false
	}
	at.Store(next)
	return true
}

// where returns the slot that holds r, or nil.
func (s *slots) where(r *Region) *atomic.Pointer[Region] {
	for i := s.hash(r.key); ; i++ {
		at := &s.at[i&(len(s.at)-1)]
		switch at.Load() {
		case nil:
			return nil
		case r:
			return at
		}
	}
}

// find returns the region with the key, or nil.
func (t *Table) find(key uint32) *Region {
	s := t.slots.Load()
	for i := s.hash(key); ; i++ {
		r := s.at[i&(len(s.at)-1)].Load()
		if r == nil || r.key == key && r != tombstone {
			return r
		}
	}
}

// hash is the key's index part as it is: it is random already.
func (s *slots) hash(key uint32) int { return int(key>>8) & (len(s.at) - 1) }

// put stores r unless a region with the same index part exists.
func (s *slots) put(r *Region) bool {
	for i := s.hash(r.key); ; i++ {
		at := &s.at[i&(len(s.at)-1)]
		got := at.Load()
		if got == nil {
			at.Store(r)
			s.used++
			return true
		}
		if got != tombstone && got.key>>8 == r.key>>8 {
			return false
		}
	}
}

// resized returns a copy without tombstones with room for live regions to
// double.
func (s *slots) resized(live int) *slots {
	n := 16
	for n < 4*(live+1) {
		n *= 2
	}
	c := &slots{at: make([]atomic.Pointer[Region], n)}
	for i := range s.at {
		if r := s.at[i].Load(); r != nil && r != tombstone {
			c.put(r)
		}
	}
	return c
}

// String describes the region.
func (r *Region) String() string {
	return fmt.Sprintf("MR key 0x%08x addr 0x%x length %d", r.key, r.base, len(r.mem))
}
