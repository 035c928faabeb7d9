package sim

import (
	"encoding/binary"
	"reflect"

	"github.com/goroce/goroce/qp"
)

// This file checks that the engine holds no more than it is documented to. It
// looks at its insides by reflection, so that the engine needs no doors for it.

func inside(v any, path ...string) reflect.Value {
	f := reflect.ValueOf(v).Elem()
	for _, name := range path {
		f = f.FieldByName(name)
	}
	return f
}

// checkBounds checks all engines and pairs.
func (w *world) checkBounds() {
	for _, h := range w.hosts {
		pairs := h.Len()
		for _, list := range []string{"timers", "finished"} {
			if n := inside(h.Engine, list).Len(); n > pairs {
				w.fail("%s holds %d of %d pairs", list, n, pairs)
			}
		}
		if n, limit := h.srq.Len(), h.srq.Capacity(); n > limit {
			w.fail("an SRQ holds %d receives of %d", n, limit)
		}
		for _, e := range h.ends {
			e.checkBounds()
		}
	}
}

func (e *end) checkBounds() {
	limit := int(e.link.MaxDestRDAtomic)
	if e.c.typ != qp.RC || e.q.State() < qp.RTR {
		return
	}
	answers := int(inside(e.q, "rsp", "queue", "n").Int())
	ring := inside(e.q, "rsp", "queue", "ring").Len()
	replay := inside(e.q, "rsp", "replay", "ring").Len()
	if answers > 6*limit+2 || ring > 2*(6*qp.MaxRDAtomicLimit+2) || e.drains == 0 && ring > 6*limit+2 || replay > limit {
		e.w.fail("%s holds %d answers in room for %d, and remembers %d, with %d allowed", e, answers, ring, replay, limit)
	}
	if u := inside(e.q, "rsp", "ahead"); !u.IsNil() && (u.Elem().FieldByName("n").Int() > 255 || e.q.State() == qp.Err) {
		e.w.fail("%s keeps %d early packets in state %v", e, u.Elem().FieldByName("n").Int(), e.q.State())
	}
	if n := e.q.SQ.Len(); n > 16 {
		e.w.fail("%s has %d requests queued", e, n)
	}
}

// checkEmpty checks that nothing is left of an engine's pairs.
func (h *station) checkEmpty() {
	h.w.n.RunFor(lifetime)
	if h.Len() != 0 || h.Pending() || inside(h.Engine, "timers").Len() != 0 || inside(h.Engine, "finished").Len() != 0 {
		h.w.fail("something is left of destroyed pairs")
	}
	if n := inside(h.Engine, "store", "lent").Int(); n != 0 {
		h.w.fail("%d early packets of destroyed pairs are kept", n)
	}
	if _, ok := h.Deadline(); ok {
		h.w.fail("a timer runs without a pair")
	}
}

// checkGuards checks the bytes between the regions, and that the foreign region
// is as it was.
func (h *station) checkGuards() {
	for _, a := range h.areas {
		if !restIs(a[:guard], 0, nothing) || !restIs(a[len(a)-guard:], 0, nothing) {
			h.w.fail("a byte outside the regions was changed")
		}
	}
	if !restIs(h.foreign.Bytes(), 0, nothing) {
		h.w.fail("memory of another domain was changed")
	}
}

// checkShared checks the counters and the SRQ at the end.
func (h *station) checkShared() {
	for i, a := range h.added {
		v := int(binary.NativeEndian.Uint64(h.counters.Bytes()[8*i:]))
		if v < a.sure || v > a.sure+a.doubtful {
			h.w.fail("a counter is %d after %d additions and %d in doubt", v, a.sure, a.doubtful)
		}
	}
	taken, lost := len(h.shared)-h.srq.Len(), 0
	for i, v := range h.shared {
		switch {
		case i >= taken && v.state != waiting:
			h.w.fail("receive %d of an SRQ completed before its turn", v.id)
		case i < taken && v.state == waiting:
			lost++
		}
	}
	if lost > h.resets {
		h.w.fail("%d receives of an SRQ are lost", lost)
	}
}
