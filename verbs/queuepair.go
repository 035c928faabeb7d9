package verbs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

var (
	errCQE  = errors.New("the number of completions must be at least 1 and at most Config.MaxCQE")
	errNoCQ = errors.New("a queue pair needs a SendCQ and a RecvCQ of the same device")
	errSRQ  = errors.New("the shared receive queue belongs to another device")
	errUD   = errors.New("a datagram queue pair has no peer to connect to: use Activate, and name the peer in each work request")
	errGID  = errors.New("the remote endpoint has no GID; a RoCE peer has to send its IP address (ibv_*_pingpong: -g INDEX)")
)

// QPConfig says what a queue pair is made of. Zero numbers mean the defaults of
// qp.Config.
type QPConfig struct {
	Type                   qp.Type // default RC
	SendCQ, RecvCQ         *CQ
	SRQ                    *SRQ // receives come from here, if set
	MaxSendWR, MaxRecvWR   int
	MaxSendSGE, MaxRecvSGE int
	MaxInline              int
	SignalAll              bool // a completion for every send work request
	// Congestion makes the congestion controller of a connected pair; nil is
	// the device's. Device.CongestionByName has some.
	Congestion congestion.Factory
}

// QP is a queue pair.
type QP struct {
	dev *Device
	sh  *shard
	q   *transport.QP
	psn bth.PSN
}

// Endpoint is what one side of a connection has to tell the other.
type Endpoint struct {
	GID netip.Addr
	QPN bth.QPN
	PSN bth.PSN // of its first request
}

// CreateQP returns a queue pair in RESET, with a random first PSN.
func (p *PD) CreateQP(c QPConfig) (*QP, error) {
	d := p.dev
	if c.Type == 0 {
		c.Type = qp.RC
	}
	if c.SendCQ == nil || c.RecvCQ == nil || c.SendCQ.dev != d || c.RecvCQ.dev != d {
		return nil, &OpError{Op: "create QP", Err: errNoCQ}
	}
	if c.SRQ != nil && c.SRQ.dev != d {
		return nil, &OpError{Op: "create QP", Err: errSRQ}
	}
	sh := c.shard()
	var q *QP
	var refused error
	if err := d.own(func() { q, refused = sh.create(p, &c) }); err != nil {
		return nil, err
	}
	if refused != nil {
		return nil, &OpError{Op: "create QP", Err: refused}
	}
	return q, nil
}

// shard returns where the queue pair will live: with what it takes from and
// reports to, so that as little as possible is shared.
func (c *QPConfig) shard() *shard {
	d := c.SendCQ.dev
	switch {
	case c.Type == qp.GSI:
		return d.shardOf(bth.QPNGSI)
	case c.SRQ != nil:
		return c.SRQ.sh
	}
	return c.SendCQ.sh
}

// create makes the queue pair; the caller owns all shards.
func (s *shard) create(p *PD, c *QPConfig) (*QP, error) {
	var srq *qp.SharedRecv
	if c.SRQ != nil {
		srq = c.SRQ.q
	}
	q, err := s.engine.Create(p.domain, qp.Config{
		Type: c.Type, SendCQ: c.SendCQ.queue, RecvCQ: c.RecvCQ.queue, SRQ: srq,
		MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE,
		MaxInline: c.MaxInline, SignalAll: c.SignalAll,
	})
	if err != nil {
		return nil, err
	}
	q.Congestion = c.Congestion
	for _, cq := range []*CQ{c.SendCQ, c.RecvCQ} {
		if cq.sh != s {
			cq.share()
		}
	}
	return &QP{dev: s.dev, sh: s, q: q, psn: s.engine.RandomPSN()}, nil
}

// QPN returns the queue pair's number.
func (q *QP) QPN() bth.QPN { return q.q.QPN }

// Local returns what the peer needs to connect.
func (q *QP) Local() Endpoint { return Endpoint{GID: q.dev.gid, QPN: q.q.QPN, PSN: q.psn} }

// ConnectConfig are the attributes of Connect. Zero values mean the defaults;
// where zero is a value of its own, a negative number stands for it.
type ConnectConfig struct {
	// PathMTU in bytes; default the device's active MTU, at most 1024: what
	// an Ethernet of 1500 bytes carries. Both sides must use the same.
	PathMTU int
	// Access is what the peer may do; default nothing but SEND.
	Access mr.Access
	// MaxRDAtomic and MaxDestRDAtomic: outstanding READs and atomics as
	// requester and as responder; default 16.
	MaxRDAtomic, MaxDestRDAtomic int
	Timeout                      int // code, default 14 (67 ms); negative: no timeout
	RetryCount                   int // default 7; negative: 0
	RNRRetry                     int // default 7, without end; negative: 0
	MinRNRTimer                  int // code, default 12 (0.64 ms); negative: 0 (655 ms)
	TrafficClass                 uint8
	HopLimit                     uint8 // default 64
}

// attr returns the default where v is 0, and 0 where it is negative.
func attr(v, def int) uint8 {
	switch {
	case v == 0:
		return uint8(def)
	case v < 0:
		return 0
	}
	return uint8(min(v, 255))
}

// Connect takes a connected queue pair from RESET or INIT to RTS, facing the
// remote endpoint. It refuses a pair in another state and leaves that as it is;
// on any other error the pair is back in RESET.
//
// What the peer may do is given twice: by the rights of the memory region, and
// by c.Access for the pair. Without the first a WRITE ends with REM_ACCESS_ERR
// at the peer, without the second with REM_INV_REQ_ERR.
func (q *QP) Connect(remote Endpoint, c ConnectConfig) error {
	if s := q.State(); s > qp.Init {
		return &OpError{Op: "connect", QPN: q.QPN(), Err: fmt.Errorf("%w: it is in %v; Connect starts from RESET (Modify to RESET first)", qp.ErrState, s)}
	}
	if err := q.connect(remote, c); err != nil {
		_ = q.Modify(&qp.Attr{State: qp.Reset}, qp.AttrState)
		return err
	}
	return nil
}

func (q *QP) connect(remote Endpoint, c ConnectConfig) error {
	if !q.q.Type.Connected() {
		return &OpError{Op: "connect", QPN: q.QPN(), Err: errUD}
	}
	if !remote.GID.IsValid() || remote.GID.IsUnspecified() {
		return &OpError{Op: "connect", QPN: q.QPN(), Err: errGID}
	}
	if c.PathMTU == 0 {
		c.PathMTU = min(1024, q.dev.ActiveMTU())
	}
	gid := remote.GID.Unmap()
	if gid.IsLinkLocalUnicast() && gid.Is6() && gid.Zone() == "" {
		gid = gid.WithZone(q.dev.Addr().Zone())
	}
	a := qp.Attr{
		State: qp.Init, Port: 1, Access: c.Access,
		AV:      qp.AddressVector{DGID: gid, TrafficClass: c.TrafficClass, HopLimit: c.HopLimit},
		PathMTU: c.PathMTU, DestQPN: remote.QPN, RQPSN: remote.PSN, SQPSN: q.psn,
		MaxRDAtomic: attr(c.MaxRDAtomic, 16), MaxDestRDAtomic: attr(c.MaxDestRDAtomic, 16),
		Timeout: attr(c.Timeout, 14), RetryCount: attr(c.RetryCount, 7), RNRRetry: attr(c.RNRRetry, 7), MinRNRTimer: attr(c.MinRNRTimer, 12),
	}
	if q.State() == qp.Reset {
		if err := q.Modify(&a, qp.AttrState|qp.AttrPKeyIndex|qp.AttrPort|qp.AttrAccess); err != nil {
			return err
		}
	}
	rtr, rts := qp.AttrAV|qp.AttrPathMTU|qp.AttrDestQPN|qp.AttrRQPSN|qp.AttrAccess, qp.AttrSQPSN
	if q.q.Type == qp.RC {
		rtr |= qp.AttrMaxDestRDAtomic | qp.AttrMinRNRTimer
		rts |= qp.AttrTimeout | qp.AttrRetryCount | qp.AttrRNRRetry | qp.AttrMaxRDAtomic
	}
	a.State = qp.RTR
	if err := q.Modify(&a, qp.AttrState|rtr); err != nil {
		return err
	}
	a.State = qp.RTS
	return q.Modify(&a, qp.AttrState|rts)
}

// Activate takes a datagram queue pair (UD, GSI) from RESET to RTS with the
// Q_Key that arriving datagrams must carry.
func (q *QP) Activate(key bth.QKey) error {
	a := qp.Attr{State: qp.Init, Port: 1, QKey: key, SQPSN: q.psn}
	for _, step := range []struct {
		to   qp.State
		mask qp.AttrMask
	}{
		{qp.Init, qp.AttrPKeyIndex | qp.AttrPort | qp.AttrQKey},
		{qp.RTR, 0},
		{qp.RTS, qp.AttrSQPSN},
	} {
		a.State = step.to
		if step.to == qp.Init && q.State() == qp.Init {
			continue // the caller did that, to post receives
		}
		if err := q.Modify(&a, qp.AttrState|step.mask); err != nil {
			return err
		}
	}
	return nil
}

// Modify changes state and attributes (IBA 11.2.5.2). The whole call is applied
// or nothing; a refusal is a *qp.AttrError that says what is missing, what is
// too much, or which value is out of range.
func (q *QP) Modify(a *qp.Attr, mask qp.AttrMask) error {
	s := q.sh
	s.lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	now := q.dev.now()
	s.transmit(now) // an acknowledgement that was held back
	if err := s.engine.Modify(now, q.q, a, mask); err != nil {
		return &OpError{Op: "modify", QPN: q.q.QPN, Err: err}
	}
	s.after(now)
	return nil
}

// Query returns the attributes as they are now.
func (q *QP) Query() qp.Attr {
	q.sh.lock()
	defer q.sh.mu.Unlock()
	return q.q.Attr
}

// Stats returns what the pair knows of its connection: round trip times,
// repairs of losses.
func (q *QP) Stats() transport.QPStats {
	q.sh.lock()
	defer q.sh.mu.Unlock()
	return q.q.Stats()
}

// Flow returns how fast the pair may send now, and what it knows of congestion.
func (q *QP) Flow() transport.FlowStats {
	q.sh.lock()
	defer q.sh.mu.Unlock()
	return q.q.Flow(q.dev.now())
}

// State returns the queue pair's state.
func (q *QP) State() qp.State { return q.Query().State }

// PostSend posts a send work request. The request itself is copied; the memory
// it names must stay as it is until the completion. An error means that nothing
// was posted; see the errors of package qp.
//
// The packets leave during the call. The exception: while the caller polls the
// completion queue in a loop, requests that are posted behind unanswered ones
// leave with the next poll, so that many small ones share a system call.
func (q *QP) PostSend(wr *qp.SendWR) error {
	s := q.sh
	s.lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := s.engine.PostSend(q.q, wr); err != nil {
		return &OpError{Op: "post send", QPN: q.q.QPN, Err: err}
	}
	s.posted(q.q, 1)
	return nil
}

// PostSendList posts several send work requests and sends them together. It
// returns how many were posted; err belongs to the first one that was not.
func (q *QP) PostSendList(wrs []qp.SendWR) (n int, err error) {
	s := q.sh
	s.lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, ErrClosed
	}
	for ; n < len(wrs); n++ {
		if err = s.engine.PostSend(q.q, &wrs[n]); err != nil {
			err = &OpError{Op: "post send", QPN: q.q.QPN, Err: err}
			break
		}
	}
	if n > 0 {
		s.posted(q.q, n)
	}
	return n, err
}

// PostRecv posts a receive work request, from INIT on. The same rules hold as
// for PostSend.
func (q *QP) PostRecv(wr *qp.RecvWR) error {
	s := q.sh
	s.lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := s.engine.PostRecv(q.q, wr); err != nil {
		return &OpError{Op: "post receive", QPN: q.q.QPN, Err: err}
	}
	return nil
}

// AttachMulticast makes a UD queue pair receive the datagrams of a group: an
// address of the device's family in 224.0.0.0/4 or ff00::/8. Senders name the
// group as DGID and 0xFFFFFF as queue pair; the Q_Key still has to match.
func (q *QP) AttachMulticast(group netip.Addr) error {
	return q.own("attach multicast", func(s *shard) error {
		first, err := s.engine.Attach(q.q, group)
		if err != nil || !first {
			return err
		}
		if err := s.link.Join(group); err != nil {
			_, _ = s.engine.Detach(q.q, group)
			return err
		}
		return nil
	})
}

// DetachMulticast ends AttachMulticast.
func (q *QP) DetachMulticast(group netip.Addr) error {
	return q.own("detach multicast", func(s *shard) error {
		last, err := s.engine.Detach(q.q, group)
		if err != nil || !last {
			return err
		}
		return s.link.Leave(group)
	})
}

// own runs f as the owner of the queue pair's shard.
func (q *QP) own(op string, f func(s *shard) error) error {
	s := q.sh
	s.lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := f(s); err != nil {
		return &OpError{Op: op, QPN: q.q.QPN, Err: err}
	}
	return nil
}

// Destroy ends the queue pair. Its outstanding work requests vanish without
// completions; completions already queued stay.
func (q *QP) Destroy() error {
	s := q.sh
	s.lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	now := q.dev.now()
	s.transmit(now) // an acknowledgement that was held back
	groups := s.engine.Groups(q.q)
	s.engine.Destroy(q.q)
	for _, g := range groups {
		if len(s.engine.Attached(g)) == 0 {
			_ = s.link.Leave(g)
		}
	}
	s.after(now) // pairs that the room at the peer goes to
	return nil
}

// String describes the queue pair.
func (q *QP) String() string { return fmt.Sprintf("%v QP 0x%06x", q.q.Type, uint32(q.q.QPN)) }
