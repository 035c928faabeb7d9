package verbs

import (
	"context"
	"sync"

	"github.com/goroce/goroce/cq"
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
	d := m.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.pd.domain.Deregister(m.Region); err != nil {
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
	w.dev.mu.Lock()
	defer w.dev.mu.Unlock()
	return w.Window.Key()
}

// Dealloc ends the window, bound or not.
func (w *MW) Dealloc() error {
	w.dev.mu.Lock()
	defer w.dev.mu.Unlock()
	if err := w.Window.Dealloc(); err != nil {
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
	f.dev.mu.Lock()
	defer f.dev.mu.Unlock()
	return f.FastRegion.Key()
}

// Dealloc ends the registration. It fails with mr.ErrBound while memory windows
// are bound to it.
func (f *FastMR) Dealloc() error {
	f.dev.mu.Lock()
	defer f.dev.mu.Unlock()
	if err := f.FastRegion.Dealloc(); err != nil {
		return &OpError{Op: "dealloc fast MR", Err: err}
	}
	return nil
}

// SRQ is a shared receive queue: receives that several queue pairs take from.
type SRQ struct {
	dev *Device
	q   *qp.SharedRecv
}

// CreateSRQ returns a shared receive queue for maxWR work requests with maxSGE
// entries each; zero values mean 1024 and 4.
func (p *PD) CreateSRQ(maxWR, maxSGE int) (*SRQ, error) {
	if maxWR < 0 || maxWR > qp.MaxWR || maxSGE < 0 || maxSGE > qp.MaxSGE {
		return nil, &OpError{Op: "create SRQ", Err: qp.ErrLimit}
	}
	return &SRQ{p.dev, qp.NewSharedRecv(p.domain, maxWR, maxSGE)}, nil
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
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return s.q.Len()
}

func (s *SRQ) own(op string, f func() error) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.dev.closed {
		return ErrClosed
	}
	if err := f(); err != nil {
		return &OpError{Op: op, Err: err}
	}
	return nil
}

// CQ is a completion queue.
type CQ struct {
	dev   *Device
	queue *cq.Queue
	mu    sync.Mutex // one consumer at a time
	ready chan struct{}
}

// CreateCQ returns a completion queue for at least cqe completions.
func (d *Device) CreateCQ(cqe int) (*CQ, error) {
	if cqe < 1 || cqe > d.cfg.MaxCQE {
		return nil, &OpError{Op: "create CQ", Err: errCQE}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	c := &CQ{dev: d, ready: make(chan struct{}, 1)}
	c.queue = cq.New(cqe, func() { signal(c.ready) })
	return c, nil
}

// Poll moves up to len(wcs) completions into wcs and returns their number,
// without blocking. On a polled device an empty queue makes it do a round of
// the device's work first.
func (c *CQ) Poll(wcs []cq.WC) int {
	if n := c.take(wcs); n > 0 || !c.dev.cfg.Polled {
		return n
	}
	c.dev.Poll()
	return c.take(wcs)
}

func (c *CQ) take(wcs []cq.WC) int {
	if c.queue.Len() == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.Poll(wcs)
}

// Wait polls until there is at least one completion, ctx is done, or the device
// is closed. Several goroutines may wait.
func (c *CQ) Wait(ctx context.Context, wcs []cq.WC) (int, error) {
	for {
		if n := c.Poll(wcs); n > 0 {
			if c.queue.Len() > 0 {
				signal(c.ready) // for another waiter
			}
			return n, nil
		}
		c.queue.Arm(false)
		if c.queue.Len() > 0 {
			continue
		}
		if err := c.dev.block(ctx, c.ready); err != nil {
			return 0, err
		}
	}
}

// Arm asks for one value on Ready at the next completion, or at the next
// solicited or failed one. Completions that already wait do not count: poll
// after arming (IBA 11.4.2.2).
func (c *CQ) Arm(solicitedOnly bool) { c.queue.Arm(solicitedOnly) }

// Ready is the channel that Arm announces. Do not use it together with Wait.
func (c *CQ) Ready() <-chan struct{} { return c.ready }

// Queue returns the queue as an event names it.
func (c *CQ) Queue() *cq.Queue { return c.queue }

// Len returns how many completions wait.
func (c *CQ) Len() int { return c.queue.Len() }

// Overflowed reports whether a completion was lost; the queue is then dead.
func (c *CQ) Overflowed() bool { return c.queue.Overflowed() }
