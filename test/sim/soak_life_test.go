package sim

import (
	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// This file changes states and keys: connecting, draining, killing, binding,
// registering, invalidating.

// connect starts a new life of both ends.
func (c *conn) connect() {
	w := c.w
	for _, e := range c.e {
		e.create()
	}
	c.e[0].newLink()
	c.e[1].newLink()
	for _, e := range c.e {
		e.link.MaxRDAtomic = uint8(1 + w.r.IntN(int(e.peer().link.MaxDestRDAtomic)))
	}
	for _, e := range c.e {
		e.lane.mtu = c.mtu
		e.toRTS()
		e.openGrants()
	}
	c.down = false
	w.lives++
}

// create makes the queue pair, if there is none to use again.
func (e *end) create() {
	h := e.host
	if e.small && (e.q == nil || e.sendCQ.Overflowed() || e.recvCQ.Overflowed()) || e.sendCQ == nil {
		if e.q != nil {
			h.Destroy(e.q)
			e.q = nil
		}
		if e.sendCQ, e.recvCQ = h.cq, h.cq; e.small {
			e.sendCQ, e.recvCQ = cq.New(4, nil), cq.New(4, nil)
		}
	}
	if e.q != nil && h.find(e.q.QPN) == e && !e.destroyed {
		return
	}
	cfg := qp.Config{Type: e.c.typ, SendCQ: e.sendCQ, RecvCQ: e.recvCQ, MaxSendWR: 16, MaxRecvWR: 16}
	if e.onSRQ {
		cfg.SRQ = h.srq
	}
	q, err := h.Create(h.PD, cfg)
	e.w.must(err, "creating a pair")
	e.q, e.destroyed = q, false
}

func (e *end) newLink() {
	r := e.w.r
	l := DefaultLink()
	l.MTU = e.c.mtu
	if l.Access |= mr.FlushGlobal; e.w.oneIn(4) {
		l.Access &^= [...]mr.Access{mr.RemoteRead, mr.RemoteWrite, mr.RemoteAtomic, mr.FlushGlobal}[r.IntN(4)]
	}
	if l.PSN = bth.NewPSN(r.Uint32()); e.w.oneIn(2) {
		l.PSN = bth.NewPSN(0xFFFFFF - r.Uint32N(40))
	}
	l.MaxDestRDAtomic = uint8(1 + r.IntN(5))
	l.Timeout, l.MinRNRTimer = 8, uint8(1+r.IntN(12))
	if e.w.oneIn(6) {
		l.Retry = uint8(r.IntN(4))
	}
	if e.w.oneIn(6) {
		l.RNRRetry = uint8(r.IntN(3))
	}
	if !e.w.harm {
		l.Retry, l.RNRRetry = 7, 7
	}
	e.link = l
}

// toRTS resets the model of the end and moves the pair to RTS.
func (e *end) toRTS() {
	e.msgs, e.got, e.acked, e.lastUC, e.lastSRQ, e.reads = nil, 0, 0, -1, 0, nil
	e.failed, e.cause, e.badRecv, e.fatal, e.state = false, false, false, false, alive
	e.events, e.drains = [32]int{}, 0
	p, l := e.peer(), e.link
	a := qp.Attr{
		Port: 1, Access: l.Access, QKey: qkey,
		AV: qp.AddressVector{DGID: p.host.Addr}, PathMTU: l.MTU, DestQPN: p.q.QPN, RQPSN: p.link.PSN, SQPSN: l.PSN,
		MaxRDAtomic: l.MaxRDAtomic, MaxDestRDAtomic: l.MaxDestRDAtomic, MinRNRTimer: l.MinRNRTimer,
		Timeout: l.Timeout, RetryCount: l.Retry, RNRRetry: l.RNRRetry,
	}
	for i, mask := range steps[e.c.typ] {
		a.State = qp.Init + qp.State(i)
		e.w.must(e.modify(&a, mask), "connecting")
	}
}

func (e *end) modify(a *qp.Attr, mask qp.AttrMask) error {
	return e.host.Modify(e.w.n.now, e.q, a, mask|qp.AttrState)
}

var steps = map[qp.Type][3]qp.AttrMask{
	qp.RC: {
		qp.AttrPKeyIndex | qp.AttrPort | qp.AttrAccess,
		qp.AttrAV | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRDAtomic | qp.AttrMinRNRTimer,
		qp.AttrTimeout | qp.AttrRetryCount | qp.AttrRNRRetry | qp.AttrSQPSN | qp.AttrMaxRDAtomic,
	},
	qp.UC: {
		qp.AttrPKeyIndex | qp.AttrPort | qp.AttrAccess,
		qp.AttrAV | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN,
		qp.AttrSQPSN,
	},
	qp.UD: {qp.AttrPKeyIndex | qp.AttrPort | qp.AttrQKey, 0, qp.AttrSQPSN},
}

type killing uint8

const (
	killErr killing = iota
	killReset
	killDestroy
)

// kill ends a life of one end; its peer finds out or not.
func (e *end) kill(how killing) {
	if e.c.down || e.state == dead && (how == killErr || e.q.State() == qp.Reset) {
		return
	}
	e.host.takeEvents()
	e.poll()
	e.checkDrained()
	if !e.sendCQ.Overflowed() {
		e.silent(e.q.SQ.Len())
	}
	e.state, e.cause = dead, true
	switch how {
	case killErr:
		e.w.must(e.modify(&qp.Attr{State: qp.Err}, 0), "to ERR")
		e.poll()
		return
	case killReset:
		e.w.must(e.modify(&qp.Attr{State: qp.Reset}, 0), "to RESET")
	case killDestroy:
		e.host.Destroy(e.q)
		e.destroyed = true
	}
	e.poll() // of the time before
	e.vanish()
}

// vanish notes that all that waits is gone without completions.
func (e *end) vanish() {
	if e.onSRQ {
		e.host.resets++
	}
	for len(e.sendq) > 0 {
		e.w.vanished++
		e.pop().undone(vanished)
	}
	for _, v := range e.recvq {
		v.state = vanished
		wipe(v.buffer())
		e.recvs = append(e.recvs, v.slot)
	}
	e.recvq = nil
}

// broken reports whether the end is out of order.
func (e *end) broken() bool {
	s := e.q.State()
	return e.state == dead || s == qp.Err || s == qp.SQE
}

// repair brings a broken connection a step nearer to a new life.
func (e *end) repair() {
	c := e.c
	e.host.takeEvents()
	switch {
	case c.down && c.settled():
		c.settle()
		c.connect()
	case c.down:
	case e.q.State() == qp.SQE:
		e.poll()
		e.failed = false
		e.w.must(e.modify(&qp.Attr{State: qp.RTS}, 0), "SQE to RTS")
	case e.broken() || e.peer().broken() && c.typ != qp.UD && e.peer().q.State() != qp.SQE:
		if e.w.oneIn(3) || !e.w.harm {
			c.killBoth()
		}
	}
}

// killBoth ends a life.
func (c *conn) killBoth() {
	if c.down {
		return
	}
	for _, e := range c.e {
		e.poll()
		e.kill(killErr)
	}
	for _, e := range c.e {
		e.finalCounts()
		if e.kill(killReset + killing(c.w.r.IntN(2))); e.state != dead {
			c.w.fail("%s is not dead", e)
		}
	}
	c.down, c.deadSince = true, c.w.n.now
}

// finalCounts checks that what the peer knows to have arrived has completed a
// receive.
func (e *end) finalCounts() {
	if p := e.peer(); e.c.typ == qp.RC && p.acked > e.got && !e.recvCQ.Overflowed() {
		e.w.fail("%s has received %d messages, but the peer has had %d acknowledged", e, e.got, p.acked)
	}
}

// settle compares memory with the model after a life, and takes back keys.
func (c *conn) settle() {
	w := c.w
	for _, e := range c.e {
		if c.typ == qp.UD {
			continue
		}
		if err := e.lane.settle(c.typ == qp.RC); err != nil {
			w.fail("%s: %w", e, err)
		}
		for _, g := range e.grants {
			w.must(g.check(), e.String())
		}
		e.closeGrants()
	}
}

// drain moves the pair to SQD. What had not started then must not start.
func (e *end) drain() {
	if e.state != alive || e.q.State() != qp.RTS || e.c.down {
		return
	}
	e.state = stopped
	e.drains++
	for e.drained = e.q.SQ.Head(); e.drained < e.q.SQ.Tail() && e.q.SQ.At(e.drained).Track.Packets > 0; {
		e.drained++
	}
	e.w.must(e.modify(&qp.Attr{State: qp.SQD, EnSQDNotify: true}, qp.AttrEnSQDNotify), "to SQD")
}

// checkDrained checks that nothing has started since SQD was entered.
func (e *end) checkDrained() {
	if e.q.State() != qp.SQD {
		return
	}
	sq := &e.q.SQ
	if sq.Head() > e.drained || sq.Tail() > e.drained && sq.At(e.drained).Track.Packets > 0 {
		e.w.fail("%s: a request has started in SQD", e)
	}
}

// resume moves a drained pair back to RTS.
func (e *end) resume() {
	if e.state != stopped {
		return
	}
	if e.q.State() != qp.SQD {
		e.state = alive // it has failed meanwhile
		return
	}
	e.checkDrained()
	if e.modify(&qp.Attr{State: qp.RTS}, 0) == nil {
		if e.q.SQ.Head() != e.drained {
			e.w.fail("%s: resumed from SQD before it was drained", e)
		}
		e.state = alive
	}
}

// adjust changes attributes of a drained pair, within what the peer relies on.
func (e *end) adjust() {
	if e.state != stopped || e.q.State() != qp.SQD || e.c.typ != qp.RC || e.c.down {
		return
	}
	r, l, p := e.w.r, e.link, e.peer().link
	l.MaxDestRDAtomic = p.MaxRDAtomic + uint8(r.IntN(4))
	l.MaxRDAtomic = uint8(1 + r.IntN(int(p.MaxDestRDAtomic)))
	l.MinRNRTimer, l.Retry = uint8(1+r.IntN(12)), 7
	a := qp.Attr{State: qp.SQD, MaxDestRDAtomic: l.MaxDestRDAtomic, MaxRDAtomic: l.MaxRDAtomic, MinRNRTimer: l.MinRNRTimer, RetryCount: l.Retry}
	if e.modify(&a, qp.AttrMaxDestRDAtomic|qp.AttrMaxRDAtomic|qp.AttrMinRNRTimer|qp.AttrRetryCount) == nil {
		e.link = l
	}
}

// openGrants offers memory to the peer at the start of a life.
func (e *end) openGrants() {
	if e.c.typ == qp.UD {
		return
	}
	pd := e.host.PD
	var err error
	e.base, err = pd.Register(e.grants[1].part(), mr.LocalWrite|mr.MWBind)
	e.w.must(err, "registering")
	e.win, err = pd.AllocWindow(mr.Type1 + mr.WindowType(e.w.r.IntN(2)))
	e.w.must(err, "allocating a window")
	e.fast, err = pd.AllocFastRegion(fastLen)
	e.w.must(err, "allocating a fast registration")
	e.registerPlain()
	for _, g := range e.grants[1:] {
		g.state, g.key = closed, 0
	}
	e.bind()
	e.registerFast()
}

// laneRights are those of the keys of a lane.
const laneRights = mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic | mr.FlushGlobal

func (e *end) registerPlain() {
	access := laneRights
	if e.w.oneIn(3) {
		access |= mr.ZeroBased
	}
	g := e.grants[0]
	reg, err := e.host.PD.Register(g.part(), access)
	e.w.must(err, "registering")
	e.plain = reg
	e.w.must(g.begin(reg.Key(), reg.Addr()), e.String())
}

// closeGrants ends all keys at the end of a life, bound or not.
func (e *end) closeGrants() {
	e.deregisterPlain()
	bound := e.host.PD.Deregister(e.base) // with a window bound to it, an error
	e.w.must(e.win.Dealloc(), "deallocating a window")
	if bound != nil {
		e.w.must(e.host.PD.Deregister(e.base), "deregistering")
	}
	e.w.must(e.fast.Dealloc(), "deallocating a fast registration")
	for _, g := range e.grants {
		g.users, g.state = nil, closed
		if g.key != 0 {
			g.end()
		}
	}
}

// takeAway deregisters the plain part in the middle of a life.
func (e *end) takeAway() {
	e.cause = true
	e.deregisterPlain()
}

func (e *end) deregisterPlain() {
	if g := e.grants[0]; g.state == open {
		e.w.must(e.host.PD.Deregister(e.plain), "deregistering")
		g.ending()
		g.end()
	}
}

// changeGrant opens or closes one way to the end's memory.
func (e *end) changeGrant() {
	if e.c.typ == qp.UD || e.c.down || e.state == dead {
		return
	}
	switch i := e.w.r.IntN(3); {
	case i == 0 && e.grants[0].state == open:
		e.takeAway()
	case i == 0:
		e.registerPlain()
	case e.grants[i].state == closed && i == 1, e.grants[i].state == open && i == 1 && e.win.Type() == mr.Type1:
		e.bind()
	case e.grants[i].state == closed:
		e.registerFast()
	case e.grants[i].state == open:
		e.invalidate(e.grants[i])
	}
}

// local posts a local operation.
func (e *end) localOp(op qp.Op, fill func(s *qp.SendWR), g *grant, then func(ok bool)) {
	if !e.canPost() || e.state == dead || e.q.State() == qp.Err {
		return
	}
	x, s := e.newRequest(op, 0)
	x.signaled, s.Flags = true, s.Flags|qp.Signaled
	fill(s)
	x.then = then
	if g.state == open {
		g.ending()
		e.cause = true
	}
	g.state = changing
	if e.w.harm && e.w.oneIn(20) {
		e.spoilLocal(x, s)
	}
	e.give(x, s)
}

func (e *end) spoilLocal(x *request, s *qp.SendWR) {
	switch x.op {
	case qp.LocalInv:
		s.InvKey = e.host.counters.Key()
		x.must = cq.LocQPOpErr
	case qp.RegMR:
		s.Reg.Key ^= 0x100
		x.must = cq.LocQPOpErr
	case qp.BindMW:
		if s.Bind.Length > 0 {
			s.Bind.Addr++
		} else {
			s.Bind.Region, s.Bind.Length = e.plain, 8
		}
		x.must = cq.MWBindErr
	}
}

// bind binds the window; a type 1 window that is bound is closed or bound anew.
func (e *end) bind() {
	g := e.grants[1]
	b := &qp.Bind{Window: e.win, Region: e.base, Addr: e.base.Addr(), Length: windowLen, Key: uint8(e.win.Key()) + 1,
		Access: laneRights &^ mr.LocalWrite}
	was := g.state
	if was == open && e.w.oneIn(2) {
		b.Length = 0
	}
	e.localOp(qp.BindMW, func(s *qp.SendWR) { s.Bind = b }, g, func(ok bool) {
		switch {
		case !ok:
			g.state = was
		case b.Length == 0:
			g.end()
		default:
			if was == open {
				g.dead = append(g.dead, g.key)
			}
			e.w.must(g.begin(e.win.Key(), e.base.Addr()), e.String())
		}
	})
}

func (e *end) registerFast() {
	g := e.grants[2]
	key := e.fast.Key()&^0xFF | uint32(uint8(e.fast.Key())+1)
	reg := &qp.FastReg{Region: e.fast, Mem: g.part(), Access: laneRights, Key: key}
	e.localOp(qp.RegMR, func(s *qp.SendWR) { s.Reg = reg }, g, func(ok bool) {
		if !ok {
			g.state = closed
			return
		}
		e.w.must(g.begin(key, e.fast.Addr()), e.String())
	})
}

func (e *end) invalidate(g *grant) {
	e.localOp(qp.LocalInv, func(s *qp.SendWR) { s.InvKey = g.key }, g, func(ok bool) {
		if g.state = open; ok {
			g.end()
		}
	})
}

// reregisterLocal takes the memory that requests are using away from them.
func (e *end) reregisterLocal() {
	e.w.must(e.host.PD.Deregister(e.local), "deregistering")
	for _, x := range e.sendq {
		x.mayFail(cq.LocProtErr)
	}
	var err error
	e.local, err = e.host.PD.Register(e.local.Bytes(), mr.LocalWrite)
	e.w.must(err, "registering")
}

// reregisterRecv takes the memory of posted receives away.
func (e *end) reregisterRecv() {
	if e.onSRQ {
		return
	}
	e.w.must(e.host.PD.Deregister(e.recv), "deregistering")
	for _, v := range e.recvq {
		v.doubtful, e.badRecv = true, true
	}
	var err error
	e.recv, err = e.host.PD.Register(e.recv.Bytes(), mr.LocalWrite)
	e.w.must(err, "registering")
}

// changeSRQ arms or resizes the shared receive queue.
func (e *end) changeSRQ() {
	h, n := e.host, 1+e.w.r.IntN(sharedWRs)
	if e.w.oneIn(2) {
		e.w.watch() // events so far belong to the old limit
		if h.srq.SetLimit(n) == nil {
			h.armed = n > 0
		}
		return
	}
	err := h.srq.Resize(n)
	if fits := n >= max(1, h.srq.Len(), h.srq.Limit()); fits != (err == nil) {
		e.w.fail("resizing an SRQ of %d to %d: %v", h.srq.Len(), n, err)
	}
}
