package transport

import (
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// doLocal executes the local operations that are next in the send queue: binding
// a window, fast registration, invalidating a key. Each waits until all earlier
// work requests are complete, so that none of them loses its key (IBA 10.6.5.1).
// It returns false when nothing is left that could be sent now.
func (e *Engine) doLocal(q *QP) bool {
	r := &q.req
	for r.cur != q.SQ.Tail() {
		w := q.SQ.At(r.cur)
		if !w.Op.Local() {
			return true
		}
		if r.cur != q.SQ.Head() || q.Attr.State == qp.SQD {
			return false
		}
		if s := e.localOp(q, w); s != cq.Success {
			e.failLocalOp(q, s)
			return false
		}
		e.complete(q, w, 0)
		if q.Attr.State == qp.Err {
			return false
		}
	}
	return false
}

func (e *Engine) localOp(q *QP, w *qp.SendWQE) cq.Status {
	switch w.Op {
	case qp.LocalInv:
		if q.Domain.Invalidate(uint32(q.QPN), w.InvKey) != nil {
			return cq.LocQPOpErr
		}
	case qp.BindMW:
		b := w.Bind
		if b.Window.Domain() != q.Domain || b.Window.Bind(uint32(q.QPN), b.Region, b.Addr, b.Length, b.Access, b.Key) != nil {
			return cq.MWBindErr
		}
	case qp.RegMR:
		f := w.Reg
		if f.Region.Domain() != q.Domain || f.Region.Register(f.Mem, f.Access, f.Key) != nil {
			return cq.LocQPOpErr
		}
	}
	return cq.Success
}

// failLocalOp fails the oldest work request, which is a local operation.
func (e *Engine) failLocalOp(q *QP, s cq.Status) {
	if q.Type == qp.RC {
		e.failOldest(q, s, 0)
		return
	}
	e.failUnreliable(q, s)
}
