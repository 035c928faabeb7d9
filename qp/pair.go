package qp

import (
	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
)

// Config says what a queue pair is made of. Zero numbers mean the defaults.
type Config struct {
	Type   Type
	SendCQ *cq.Queue
	RecvCQ *cq.Queue
	// SRQ, if set, is where the pair's receives come from, instead of a
	// receive queue of its own.
	SRQ *SharedRecv
	// MaxSendWR and MaxRecvWR bound the work queues: default 128, at most
	// 2^20 work requests.
	MaxSendWR, MaxRecvWR int
	// MaxSendSGE and MaxRecvSGE bound the entries of one work request: default
	// 4, at most 32.
	MaxSendSGE, MaxRecvSGE int
	// MaxInline bounds inline data in bytes: default 256, at most 4096;
	// negative means none.
	MaxInline int
	// SignalAll generates a completion for every send work request, whatever
	// its flags.
	SignalAll bool
}

// The limits of a queue pair.
const (
	MaxWR     = 1 << 20
	MaxSGE    = 32
	MaxInline = 4096
)

func (c *Config) fill() {
	def := func(v *int, d, limit int) {
		if *v == 0 {
			*v = d
		}
		*v = max(0, min(*v, limit))
	}
	def(&c.MaxSendWR, 128, MaxWR)
	def(&c.MaxRecvWR, 128, MaxWR)
	def(&c.MaxSendSGE, 4, MaxSGE)
	def(&c.MaxRecvSGE, 4, MaxSGE)
	def(&c.MaxInline, 256, MaxInline)
}

// Pair is a queue pair (QP).
type Pair struct {
	Config
	QPN    bth.QPN
	Domain *mr.Domain
	Attr   Attr // as of the last successful Modify
	SQ     SendQueue
	RQ     RecvQueue
}

// New returns a queue pair in RESET.
func New(qpn bth.QPN, pd *mr.Domain, c Config) *Pair {
	c.fill()
	p := &Pair{Config: c, QPN: qpn, Domain: pd}
	p.SQ.capacity, p.RQ.capacity = c.MaxSendWR, c.MaxRecvWR
	return p
}

// State returns the pair's state.
func (p *Pair) State() State { return p.Attr.State }

// ClearQueues drops all work requests without completions, as RESET does.
func (p *Pair) ClearQueues() {
	p.SQ.clear()
	p.RQ.clear()
}

// PostSend checks a work request and appends it to the send queue. An error
// means that nothing was posted. In RESET, INIT and RTR sends are refused; in
// ERR they are taken and flushed (IBA 10.8.3).
func (p *Pair) PostSend(wr *SendWR) error {
	if err := p.checkSend(wr); err != nil {
		return err
	}
	w := p.SQ.push()
	w.SendWR, w.Track = *wr, Track{}
	w.sge = append(w.sge[:0], wr.SGE...)
	w.SGE, w.Length = w.sge, uint32(mr.Total(w.sge))
	if wr.Inline != nil {
		w.data = append(w.data[:0], wr.Inline...)
		w.Inline, w.Length = w.data, uint32(len(w.data))
	}
	if wr.AH != nil {
		w.sendTo(wr.AH)
	}
	if p.SignalAll {
		w.Flags |= Signaled
	}
	return nil
}

// sendTo copies where the message goes.
func (w *SendWQE) sendTo(a *AddressVector) {
	if w.Dest == nil {
		w.Dest = new(Dest)
	}
	w.Dest.AV, w.AH = *a, nil
}

func (p *Pair) checkSend(wr *SendWR) error {
	switch {
	case p.Attr.State < RTS:
		return ErrState
	case !wr.Op.on(p.Type):
		return ErrOp
	case p.SQ.Full():
		return ErrQueueFull
	case len(wr.SGE) > p.MaxSendSGE:
		return ErrSGE
	}
	if wr.Inline != nil {
		if len(wr.Inline) > max(0, p.MaxInline) || wr.Op.Answered() && wr.Op != AtomicWrite || len(wr.SGE) > 0 {
			return ErrInline
		}
	}
	n := mr.Total(wr.SGE) + uint64(len(wr.Inline))
	switch {
	case n > MaxMessage, (wr.Op.Atomic() || wr.Op == AtomicWrite) && n != 8, (wr.Op == Flush || wr.Op.Local()) && n != 0:
		return ErrLength
	case wr.Op == BindMW && (wr.Bind == nil || wr.Bind.Window == nil), wr.Op == RegMR && (wr.Reg == nil || wr.Reg.Region == nil):
		return ErrOperand
	}
	if !p.Type.Connected() && wr.AH == nil {
		return ErrAH
	}
	return nil
}

// PostRecv appends a receive work request. It is accepted from INIT on.
func (p *Pair) PostRecv(wr *RecvWR) error {
	switch {
	case p.SRQ != nil:
		return ErrSRQ
	case p.Attr.State == Reset:
		return ErrState
	case p.RQ.Full():
		return ErrQueueFull
	case len(wr.SGE) > p.MaxRecvSGE:
		return ErrSGE
	}
	w := p.RQ.push()
	w.ID, w.SGE = wr.ID, append(w.SGE[:0], wr.SGE...)
	return nil
}
