package mr

import (
	"errors"
	"unsafe"
)

// WindowType is the type of a memory window (IBA 10.6.7.2); values as in verbs.
type WindowType uint8

// The types. A type 1 window is open to every queue pair of its domain and is
// bound again by a new bind. A type 2B window belongs to the queue pair it was
// bound on, has a key whose low byte the application chooses, and is freed only
// by an invalidation.
const (
	Type1  WindowType = 1
	Type2B WindowType = 2
)

// What a bind, fast registration or invalidation is refused for. The work
// request then completes with MWBindErr or LocQPOpErr.
var (
	ErrWindowState = errors.New("mr: a type 2 window must be free to be bound, and bound to be invalidated")
	ErrWindowRange = errors.New("mr: a window must lie inside a region with MW_BIND, of the same domain, not zero-based, with local write for remote write or atomic")
	ErrInvalidate  = errors.New("mr: only a bound type 2 window of this queue pair or a valid fast registration can be invalidated")
	ErrFastState   = errors.New("mr: a fast registration must be free, fit its maximum length and keep the upper 24 bits of its key")
)

// remoteRights are the rights that a window can carry.
const remoteRights = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal | FlushPersist

// Window is a memory window: a key of its own for a part of a region, opened
// and closed through a send queue.
type Window struct {
	typ    WindowType
	domain *Domain
	now    *Region // what is in the table
	target *Region // bound to, nil when free
}

// AllocWindow returns a free window.
func (d *Domain) AllocWindow(t WindowType) (*Window, error) {
	w := &Window{typ: t, domain: d, now: &Region{domain: d, invalid: true}}
	w.now.owner = w
	if err := d.table.insert(w.now); err != nil {
		return nil, err
	}
	d.Retain()
	return w, nil
}

// Key returns the window's R_Key as it is now.
func (w *Window) Key() uint32 { return w.now.key }

// Domain returns the window's protection domain.
func (w *Window) Domain() *Domain { return w.domain }

// Type returns the window's type.
func (w *Window) Type() WindowType { return w.typ }

// Dealloc ends the window, bound or not.
func (w *Window) Dealloc() error {
	if !w.domain.table.remove(w.now) {
		return ErrClosed
	}
	w.release()
	w.domain.Release()
	return nil
}

// release ends the binding.
func (w *Window) release() {
	if w.target != nil {
		w.target.windows.Add(-1)
		w.target = nil
	}
}

// Bind opens the window on [addr, addr+length) of r with the given remote
// rights, for the queue pair pair (IBA 10.6.7.2.3). key gives the low byte of a
// type 2 window's new key. A type 1 window is rebound, and closed by length 0.
func (w *Window) Bind(pair uint32, r *Region, addr uint64, length uint64, access Access, key uint8) error {
	if w.typ == Type2B && (w.target != nil || length == 0) {
		return ErrWindowState
	}
	next := &Region{key: w.nextKey(key), domain: w.domain, owner: w}
	if length == 0 {
		next.invalid = true
		return w.open(next, nil)
	}
	mem, fault := bindable(w.domain, r, addr, length, access)
	if fault {
		return ErrWindowRange
	}
	next.access, next.base, next.mem = access, addr, mem
	if w.typ == Type2B {
		next.pair = pair
	}
	return w.open(next, r)
}

// nextKey returns the key of the next binding: of a type 1 window it changes
// with every bind, so that the old one stops working.
func (w *Window) nextKey(low uint8) uint32 {
	if w.typ == Type1 {
		low = uint8(w.now.key) + 1
	}
	return w.now.key&^0xFF | uint32(low)
}

func (w *Window) open(next, target *Region) error {
	if !w.domain.table.replace(w.now, next) {
		return ErrClosed
	}
	w.now = next
	w.release()
	if w.target = target; target != nil {
		target.windows.Add(1)
	}
	return nil
}

// bindable returns the bytes of a binding, or refuses it (o10-37.2.26 ff.).
func bindable(d *Domain, r *Region, addr, length uint64, access Access) (mem []byte, refused bool) {
	if r == nil || r.invalid || r.domain != d || r.access&MWBind == 0 || r.access&ZeroBased != 0 || access&^remoteRights != 0 {
		return nil, true
	}
	if access&(RemoteWrite|RemoteAtomic) != 0 && r.access&LocalWrite == 0 {
		return nil, true
	}
	if d.table.find(r.key) != r {
		return nil, true // deregistered
	}
	mem, fault := r.slice(addr, length)
	return mem, fault != 0
}

func (w *Window) invalidate(t *Table, pair uint32) bool {
	if w.typ != Type2B || w.target == nil || w.now.pair != pair {
		return false
	}
	return w.open(&Region{key: w.now.key, domain: w.domain, owner: w, invalid: true}, nil) == nil
}

// FastRegion is a memory region whose memory is named by a work request: a
// fast registration (IBA 10.6.5). Invalidated, it can be registered anew.
type FastRegion struct {
	domain *Domain
	max    int
	now    *Region
}

// AllocFastRegion returns a free fast registration for at most max bytes.
func (d *Domain) AllocFastRegion(max int) (*FastRegion, error) {
	f := &FastRegion{domain: d, max: max, now: &Region{domain: d, invalid: true}}
	f.now.owner = f
	if err := d.table.insert(f.now); err != nil {
		return nil, err
	}
	d.Retain()
	return f, nil
}

// Domain returns the registration's protection domain.
func (f *FastRegion) Domain() *Domain { return f.domain }

// Key returns the L_Key and R_Key as they are now.
func (f *FastRegion) Key() uint32 { return f.now.key }

// Addr returns the address of the registered memory's first byte.
func (f *FastRegion) Addr() uint64 { return f.now.base }

// Register makes mem reachable under key, which may differ from the present
// one in its low byte.
func (f *FastRegion) Register(mem []byte, access Access, key uint32) error {
	if !f.now.invalid || len(mem) > f.max || key>>8 != f.now.key>>8 || f.now.windows.Load() > 0 {
		return ErrFastState
	}
	if access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0 {
		return ErrAccess
	}
	next := &Region{key: key, domain: f.domain, owner: f, mem: mem, access: access}
	if access&ZeroBased == 0 {
		next.base = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	}
	return f.put(next)
}

func (f *FastRegion) put(next *Region) error {
	if !f.domain.table.replace(f.now, next) {
		return ErrClosed
	}
	f.now = next
	return nil
}

// Dealloc ends the registration.
func (f *FastRegion) Dealloc() error {
	if f.now.windows.Load() > 0 {
		return ErrBound
	}
	if !f.domain.table.remove(f.now) {
		return ErrClosed
	}
	f.domain.Release()
	return nil
}

func (f *FastRegion) invalidate(t *Table, _ uint32) bool {
	if f.now.invalid || f.now.windows.Load() > 0 {
		return false
	}
	return f.put(&Region{key: f.now.key, domain: f.domain, owner: f, invalid: true}) == nil
}

// Invalidate ends a key for the queue pair pair: a type 2 window bound on it, or
// a fast registration. It is what LOCAL_INV and SEND with invalidate do.
func (d *Domain) Invalidate(pair, key uint32) error {
	r := d.table.find(key)
	if r == nil || r.domain != d || r.owner == nil || !r.owner.invalidate(d.table, pair) {
		return ErrInvalidate
	}
	return nil
}
