package udp

import (
	"net/netip"

	"github.com/goroce/goroce/bth"
)

// sighting is a packet as the selectors see it.
type sighting struct {
	bth  *bth.BTH
	info *bth.Info
	hdr  []byte // from the BTH on: the headers, and for received packets all
	rel  int    // PSN relative to the first of its flow
	try  int    // how many packets of its flow had this PSN, with this one; 0 unknown
}

// flow looks up what is known of the packet's flow, and adds to it.
func (p *sighting) flow(t *flowTable, peer netip.Addr, tries bool) {
	if !p.sequenced() {
		return
	}
	f := t.get(flowKey{peer, p.bth.DestQP, p.info.Request}, p.bth.PSN)
	p.rel = p.bth.PSN.Sub(f.first)
	if tries {
		p.try = f.count(p.bth.PSN)
	}
}

// sequenced reports whether the packet's PSN belongs to a run of PSNs.
func (p *sighting) sequenced() bool {
	return p.info.Transport != bth.NoService && p.info.Transport != bth.CNPClass
}

// choose reports whether the rule hits the packet, and counts it if what it is
// would do.
func (r *activeRule) choose(p *sighting) bool {
	if !r.suits(p) {
		return false
	}
	r.seen++
	switch {
	case r.seen < r.Nth.First, r.Nth.Last > 0 && r.seen > r.Nth.Last:
		return false
	case r.Every > 0 && r.seen%r.Every != 0:
		return false
	case r.Max > 0 && r.done >= r.Max:
		return false
	case r.P < 0:
		return false
	}
	return r.random == nil || r.random.Float64() < r.P
}

// suits reports whether the rule chooses the packet by what it is.
func (r *activeRule) suits(p *sighting) bool {
	switch {
	case r.QP != 0 && r.QP != p.bth.DestQP, r.Ops != OpSet{} && !r.Ops.Has(p.bth.Opcode):
		return false
	case r.Try > 0 && r.Try != p.try, !r.PSN.has(p):
		return false
	}
	if r.Fault == FaultSet {
		f, _ := r.place(p)
		return f != nil
	}
	return true
}

func (r PSNRange) has(p *sighting) bool {
	switch {
	case r.Count == 0:
		return true
	case r.Relative:
		return p.sequenced() && p.rel >= int(r.First) && p.rel-int(r.First) < int(r.Count)
	}
	return p.bth.PSN.InWindow(bth.NewPSN(r.First), int(r.Count))
}

// place returns the field that the rule changes and where its header starts in
// the packet; nil if the packet has no such field.
func (r *activeRule) place(p *sighting) (f *field, at int) {
	for i := range r.places {
		f := &r.places[i]
		at := 0
		if f.header != 0 {
			if p.info.Headers&f.header == 0 {
				continue
			}
			at = bth.BTHLen + (p.info.Headers & (f.header - 1)).Len()
		}
		if at+f.end() <= len(p.hdr) {
			return f, at
		}
	}
	return nil, 0
}

// flowKey names a flow: the packets of one direction to one queue pair,
// requests and answers apart, since each kind has its own run of PSNs.
type flowKey struct {
	peer    netip.Addr
	qp      bth.QPN
	request bool
}

type flowTable struct {
	m    map[flowKey]*flow
	uses uint64
}

// get returns the flow of a packet; psn is its first, if it is new.
func (t *flowTable) get(k flowKey, psn bth.PSN) *flow {
	t.uses++
	f := t.m[k]
	if f == nil {
		f = &flow{}
		if len(t.m) == maxFlows {
			f = t.evict()
		}
		f.first = psn
		t.m[k] = f
	}
	f.used = t.uses
	return f
}

// evict forgets the flow that was silent longest.
func (t *flowTable) evict() *flow {
	var oldest *flow
	var key flowKey
	for k, f := range t.m {
		if oldest == nil || f.used < oldest.used {
			oldest, key = f, k
		}
	}
	delete(t.m, key)
	clear(oldest.tries)
	return oldest
}

// flow is what is remembered of one flow.
type flow struct {
	first bth.PSN
	used  uint64
	tries []tryCount // by PSN modulo tryWindow; nil until needed
}

type tryCount struct {
	psn bth.PSN
	n   uint32 // 0: none yet
}

// count notes a packet and returns how many had its PSN.
func (f *flow) count(psn bth.PSN) int {
	if f.tries == nil {
		f.tries = make([]tryCount, tryWindow)
	}
	c := &f.tries[psn.Value()%tryWindow]
	if c.psn != psn {
		*c = tryCount{psn: psn}
	}
	c.n++
	return int(c.n)
}
