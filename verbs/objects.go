package verbs

import (
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// PD is a protection domain: memory regions and queue pairs that may work
// together.
type PD struct {
	dev    *Device
	domain *mr.Domain
}

// AllocPD returns a new protection domain.
func (d *Device) AllocPD() *PD { return &PD{d, d.keys.NewDomain()} }

// Dealloc checks that nothing belongs to the domain any more; it fails with
// mr.ErrInUse otherwise.
func (p *PD) Dealloc() error {
	if p.domain.InUse() {
		return &OpError{Op: "dealloc PD", Err: mr.ErrInUse}
	}
	return nil
}

// MR is a memory region.
type MR struct {
	*mr.Region
	pd     *PD
	pinned *mr.Pinned
}

// RegisterMR makes mem reachable for work requests and, with remote rights, for
// peers. The memory may be any bytes that stay mapped: the Go heap does not
// move, and the region keeps a slice alive.
func (p *PD) RegisterMR(mem []byte, access mr.Access) (*MR, error) {
	r, err := p.domain.Register(mem, access)
	if err != nil {
		return nil, &OpError{Op: "register MR", Err: err}
	}
	return &MR{Region: r, pd: p}, nil
}

// AllocMR registers size bytes of pinned memory, which Deregister frees. It
// fails with a *mr.MemlockError when the limit on locked memory is too small.
func (p *PD) AllocMR(size int, access mr.Access) (*MR, error) {
	pinned, err := mr.AllocPinned(size)
	if err != nil {
		return nil, &OpError{Op: "alloc MR", Err: err}
	}
	m, err := p.RegisterMR(pinned.Bytes(), access)
	if err != nil {
		_ = pinned.Free()
		return nil, err
	}
	m.pinned = pinned
	return m, nil
}

// Deregister ends the region's key. When it returns nothing touches the memory
// any more; work requests that name it fail.
func (m *MR) Deregister() error {
	var err error
	m.pd.dev.ownAlways(func() { err = m.pd.domain.Deregister(m.Region) })
	if err != nil {
		return &OpError{Op: "deregister MR", Err: err}
	}
	if m.pinned != nil {
		return m.pinned.Free()
	}
	return nil
}

// MW is a memory window: bind it with a qp.BindMW work request that names its
// Window.
type MW struct {
	*mr.Window
	dev *Device
}

// AllocMW returns a free memory window.
func (p *PD) AllocMW(t mr.WindowType) (*MW, error) {
	w, err := p.domain.AllocWindow(t)
	if err != nil {
		return nil, &OpError{Op: "alloc MW", Err: err}
	}
	return &MW{w, p.dev}, nil
}

// Key returns the window's R_Key as it is now.
func (w *MW) Key() uint32 {
	var key uint32
	w.dev.ownAlways(func() { key = w.Window.Key() })
	return key
}

// Dealloc ends the window, bound or not.
func (w *MW) Dealloc() error {
	var err error
	w.dev.ownAlways(func() { err = w.Window.Dealloc() })
	if err != nil {
		return &OpError{Op: "dealloc MW", Err: err}
	}
	return nil
}

// FastMR is a memory region for fast registration: a qp.RegMR work request that
// names its FastRegion gives it memory.
type FastMR struct {
	*mr.FastRegion
	dev *Device
}

// AllocFastMR returns a free fast registration for at most max bytes.
func (p *PD) AllocFastMR(max int) (*FastMR, error) {
	f, err := p.domain.AllocFastRegion(max)
	if err != nil {
		return nil, &OpError{Op: "alloc fast MR", Err: err}
	}
	return &FastMR{f, p.dev}, nil
}

// Key returns the L_Key and R_Key as they are now.
func (f *FastMR) Key() uint32 {
	var key uint32
	f.dev.ownAlways(func() { key = f.FastRegion.Key() })
	return key
}

// Dealloc ends the registration. It fails with mr.ErrBound while memory windows
// are bound to it.
func (f *FastMR) Dealloc() error {
	var err error
	f.dev.ownAlways(func() { err = f.FastRegion.Dealloc() })
	if err != nil {
		return &OpError{Op: "dealloc fast MR", Err: err}
	}
	return nil
}

// SRQ is a shared receive queue: receives that several queue pairs take from.
type SRQ struct {
	dev *Device
	q   *qp.SharedRecv
	sh  *shard // where its queue pairs live
}

// CreateSRQ returns a shared receive queue for maxWR work requests with maxSGE
// entries each; zero values mean 1024 and 4.
func (p *PD) CreateSRQ(maxWR, maxSGE int) (*SRQ, error) {
	if maxWR < 0 || maxWR > qp.MaxWR || maxSGE < 0 || maxSGE > qp.MaxSGE {
		return nil, &OpError{Op: "create SRQ", Err: qp.ErrLimit}
	}
	return &SRQ{p.dev, qp.NewSharedRecv(p.domain, maxWR, maxSGE), p.dev.nextShard()}, nil
}

// PostRecv posts a receive work request; see QP.PostRecv.
func (s *SRQ) PostRecv(wr *qp.RecvWR) error {
	return s.own("post SRQ receive", func() error { return s.q.PostRecv(wr) })
}

// SetLimit arms the limit: once fewer than n work requests are left, the event
// SRQ_LIMIT_REACHED is raised, once. 0 disarms.
func (s *SRQ) SetLimit(n int) error {
	return s.own("modify SRQ", func() error { return s.q.SetLimit(n) })
}

// Resize changes how many work requests fit; it cannot drop posted ones.
func (s *SRQ) Resize(maxWR int) error {
	return s.own("modify SRQ", func() error { return s.q.Resize(maxWR) })
}

// Queue returns the queue as an event names it.
func (s *SRQ) Queue() *qp.SharedRecv { return s.q }

// Len returns how many work requests wait.
func (s *SRQ) Len() int {
	s.sh.lock()
	defer s.sh.mu.Unlock()
	return s.q.Len()
}

func (s *SRQ) own(op string, f func() error) error {
	s.sh.lock()
	defer s.sh.mu.Unlock()
	if s.sh.closed {
		return ErrClosed
	}
	if err := f(); err != nil {
		return &OpError{Op: op, Err: err}
	}
	return nil
}
