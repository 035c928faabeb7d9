package udp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/bth"
)

// Fault is what a rule does to a packet.
type Fault uint8

// The faults. Where several rules hit one packet, all of them happen, with two
// exceptions: what is lost is only lost, and of a packet that is both duplicated
// and held back the original goes at once and the copies come late.
const (
	FaultDrop    Fault = iota + 1 // lose it
	FaultDup                      // send Copies more of it
	FaultDelay                    // hold it back for Delay
	FaultReorder                  // let Behind later packets overtake it
	FaultCorrupt                  // send it with a wrong ICRC; received, it is lost
	FaultCE                       // mark it "congestion experienced", as a switch does
	FaultSet                      // change a header field
)

// Direction is which packets of a link a rule sees.
type Direction uint8

// The directions.
const (
	DirTX   Direction = iota // those it sends
	DirRX                    // those it receives
	DirBoth                  // both, counted together
)

// FaultRule is one fault and the choice of the packets that suffer it. The zero
// value of each selector chooses every packet. ParseFaults makes rules from
// text, String gives the text.
type FaultRule struct {
	Fault  Fault
	Copies int           // FaultDup: 1 to 8; 0 is 1
	Delay  time.Duration // FaultDelay: up to a minute
	Behind int           // FaultReorder: 1 to 255
	Set    Assignment    // FaultSet

	// These choose by what the packet is.
	Dir Direction
	Ops OpSet    // opcodes
	QP  bth.QPN  // destination queue pair
	PSN PSNRange // of the packet
	Try int      // the Try-th packet with its PSN, from 1

	// Of the packets chosen so far, which are counted from 1, these choose by
	// count and chance.
	Nth   Range   // the First-th to the Last-th
	Every int     // each Every-th
	Max   int     // no more once Max were hit
	P     float64 // with this probability; 0 is always, negative never
	Seed  uint64  // of the chance; 0 is that of FaultConfig, different for each rule
}

// Range is a range of counts, ends included. First 0 is every count, Last 0
// has no end.
type Range struct{ First, Last int }

// PSNRange is a range of Count PSNs from First on; Count 0 is every PSN. If
// Relative, First counts from the first PSN seen of the packet's flow: packets
// of one direction to one queue pair, requests and answers apart.
type PSNRange struct {
	First    uint32
	Count    uint32
	Relative bool
}

// Assignment gives a header field a value. A packet that lacks the field is not
// chosen.
type Assignment struct {
	Field string // as in the grammar, e.g. "ackreq"
	Value uint64
	Add   bool // add Value, modulo the field's width, instead
}

// FaultConfig is what WithFaults needs.
type FaultConfig struct {
	Rules []FaultRule
	// Seed is that of rules without one of their own. The same seed and the
	// same packets give the same faults.
	Seed uint64
	// Clock is the time for what is held back; nil is the system's. It is
	// called from Send, Receive and Wait.
	Clock func() time.Duration
}

// The bounds of what WithFaults keeps.
const (
	// MaxHeld is how many packets are held back in each direction. When one
	// more comes, the one that is due first goes out early.
	MaxHeld = 256
	// ReorderWait is how long a reordered packet waits for the packets that
	// should overtake it.
	ReorderWait = 10 * time.Millisecond
	// maxFlows bounds the flows whose PSNs are remembered; a new one replaces
	// the one that was silent longest.
	maxFlows = 256
	// tryWindow is how many consecutive PSNs of a flow are remembered to count
	// transmissions.
	tryWindow = 4096

	maxCopies = 8
	maxBehind = MaxHeld - 1
	maxDelay  = time.Minute
)

// WithFaults returns a link that damages its packets as the rules say: those
// sent before they are sealed, so that whatever a rule changes carries a good
// ICRC, and those received before the caller sees them. It has no goroutine:
// packets that are held back go out in Send, Receive, and after Wait, which
// returns in time. With no rules it returns l itself.
func WithFaults(l Link, c FaultConfig) (Link, error) {
	if len(c.Rules) == 0 {
		return l, nil
	}
	f := &faulty{Link: l, clock: c.Clock, rules: make([]activeRule, len(c.Rules)), out: bth.NewBurst(burstSize, 0), in: make([]bth.Datagram, 0, 2*burstSize)}
	if f.clock == nil {
		start := time.Now()
		f.clock = func() time.Duration { return time.Since(start) }
	}
	f.due.Store(int64(never))
	for i := range c.Rules {
		r := &f.rules[i]
		if err := r.init(&c.Rules[i], i, c.Seed); err != nil {
			return nil, err
		}
		if r.Fault == FaultCE && r.Dir != DirRX && l.Info().NoTrafficClass {
			return nil, &FaultError{i + 1, 1, "ce", "a " + l.Info().Kind + " cannot mark what it sends; it can with dir=rx"}
		}
		if r.Dir != DirRX {
			f.tx.add(r)
		}
		if r.Dir != DirTX {
			f.rx.add(r)
		}
	}
	return f, nil
}

// faulty is the link of WithFaults.
type faulty struct {
	Link
	clock  func() time.Duration
	rules  []activeRule
	tx, rx lane
	counts [numFaultCounters]uint64
	due    atomic.Int64 // when the first held packet goes out, as a Duration

	out   *bth.Burst
	paths [burstSize]bth.Path // of marked frames in out
	in    []bth.Datagram
}

// never is later than any time.
const never = time.Duration(math.MaxInt64)

// lane is one direction of a faulty link.
type lane struct {
	rules []*activeRule
	flows *flowTable // nil unless a rule asks for relative PSN or try
	tries bool
	held  holdQueue
	verdict
}

func (a *lane) add(r *activeRule) {
	a.rules = append(a.rules, r)
	if r.PSN.Count > 0 && r.PSN.Relative || r.Try > 0 {
		if a.flows == nil {
			a.flows = &flowTable{m: map[flowKey]*flow{}}
		}
		a.tries = a.tries || r.Try > 0
	}
}

// activeRule is a rule with its counts.
type activeRule struct {
	FaultRule
	places []field
	random *rand.Rand
	seen   int  // packets chosen by what they are
	done   int  // times the fault happened
	hit    bool // the packet at hand
	name   string
}

// init checks the rule by parsing its text, which has the good messages.
func (r *activeRule) init(rule *FaultRule, i int, seed uint64) error {
	text := rule.String()
	parsed, err := ParseFaults(text)
	if err != nil {
		e := err.(*FaultError)
		e.Rule = i + 1
		return e
	}
	*r = activeRule{FaultRule: parsed[0], name: fmt.Sprintf("fault_rule_%d", i+1)}
	r.places = fieldsNamed(r.Set.Field)
	switch {
	case r.P > 0 && r.Seed != 0:
		r.random = rand.New(rand.NewPCG(r.Seed, 0))
	case r.P > 0:
		r.random = rand.New(rand.NewPCG(seed, uint64(i)+1))
	}
	return nil
}

// verdict is what the rules do to one packet, besides changes of its headers.
type verdict struct {
	lost, corrupt, ce bool
	copies, behind    int
	delay             time.Duration
}

// split returns how often the packet goes at once and how often late.
func (v *verdict) split() (now, late int) {
	switch hold := v.delay > 0 || v.behind > 0; {
	case v.lost:
		return 0, 0
	case !hold:
		return 1 + v.copies, 0
	case v.copies == 0:
		return 0, 1
	}
	return 1, v.copies
}

// judge applies the lane's rules to a packet: it changes the headers and leaves
// the rest in the lane's verdict. All rules see the packet as it came.
func (l *faulty) judge(a *lane, hdr []byte, peer netip.Addr) {
	a.verdict = verdict{}
	h, _, err := bth.ParseBTH(hdr)
	if err != nil {
		return
	}
	p := sighting{bth: &h, info: h.Opcode.Info(), hdr: hdr}
	if a.flows != nil {
		p.flow(a.flows, peer, a.tries)
	}
	hits := false
	var loses *activeRule
	for _, r := range a.rules {
		if r.hit = r.choose(&p); !r.hit {
			continue
		}
		hits = true
		if loses == nil && (r.Fault == FaultDrop || r.Fault == FaultCorrupt && a == &l.rx) {
			loses = r
		}
	}
	if loses != nil {
		a.lost = true
		loses.done++
		l.counts[faultCounterOf[loses.Fault]]++
		return
	}
	if !hits {
		return
	}
	for _, r := range a.rules {
		if r.hit {
			r.done++
			l.counts[faultCounterOf[r.Fault]]++
			r.apply(&a.verdict, &p)
		}
	}
}

func (r *activeRule) apply(v *verdict, p *sighting) {
	switch r.Fault {
	case FaultDup:
		v.copies = min(maxCopies, v.copies+r.Copies)
	case FaultDelay:
		v.delay = max(v.delay, r.Delay)
	case FaultReorder:
		v.behind = max(v.behind, r.Behind)
	case FaultCorrupt:
		v.corrupt = true
	case FaultCE:
		v.ce = true
	case FaultSet:
		if f, at := r.place(p); f != nil {
			f.change(p.hdr[at:], r.Set)
		}
	}
}

// Send implements Link.
func (l *faulty) Send(b *bth.Burst) {
	a := &l.tx
	if len(a.rules) == 0 {
		l.Link.Send(b)
		return
	}
	l.releaseDue(a)
	frames := b.Frames()
	for i := range frames {
		f := &frames[i]
		flow := heldFlow{f.Path.Dst, destQP(f.Header())}
		l.judge(a, f.Header(), flow.peer)
		f.Corrupt = a.corrupt
		now, late := a.split()
		for range now {
			l.emit(f, a.ce)
		}
		if now > 0 {
			l.overtake(a, flow)
		}
		for range late {
			l.keep(a, flow).frameOf(f, a.ce)
		}
	}
	l.flush()
	l.announce()
}

// emit puts a copy of the frame into the burst that is going out.
func (l *faulty) emit(f *bth.Frame, ce bool) {
	g := l.out.Next()
	if g == nil {
		l.flush()
		g = l.out.Next()
	}
	*g = *f
	if ce {
		p := &l.paths[len(l.out.Frames())-1]
		*p = *f.Path
		p.TrafficClass |= ecnCE
		g.Path = p
	}
}

// ecnCE are the two bits of the traffic class that say "congestion experienced".
const ecnCE = 3

// flush sends what was emitted. The slots of released packets are free then.
func (l *faulty) flush() {
	if len(l.out.Frames()) > 0 {
		l.Link.Send(l.out)
		l.out.Reset()
	}
	l.tx.held.recycle()
}

// Receive implements Link. It also sends what is due.
func (l *faulty) Receive() []bth.Datagram {
	if l.tx.held.len() > 0 {
		l.releaseDue(&l.tx)
		l.flush()
	}
	in := l.Link.Receive()
	a := &l.rx
	if len(a.rules) == 0 {
		l.announce()
		return in
	}
	a.held.recycle()
	l.in = l.in[:0]
	l.releaseDue(a)
	for i := range in {
		d := &in[i]
		flow := heldFlow{d.Src, destQP(d.Data)}
		l.judge(a, d.Data, flow.peer)
		if a.ce {
			d.TrafficClass |= ecnCE
		}
		now, late := a.split()
		for range now {
			l.in = append(l.in, *d)
		}
		if now > 0 {
			l.overtake(a, flow)
		}
		for range late {
			l.keep(a, flow).datagramOf(d)
		}
	}
	l.announce()
	return l.in
}

// keep returns a slot for a packet that the verdict holds back.
func (l *faulty) keep(a *lane, flow heldFlow) *heldPacket {
	if a.held.len() == MaxHeld {
		l.counts[faultReleasedEarly]++
		l.release(a, a.held.take(0))
	}
	wait := a.delay
	if wait == 0 {
		wait = ReorderWait
	}
	return a.held.put(l.clock()+wait, a.behind, flow)
}

// overtake notes that a packet of the flow went ahead of those held back.
func (l *faulty) overtake(a *lane, flow heldFlow) {
	for i := 0; i < a.held.len(); {
		p := a.held.q[i]
		if p.behind == 0 || p.flow != flow {
			i++
			continue
		}
		if p.behind--; p.behind > 0 {
			i++
			continue
		}
		l.release(a, a.held.take(i))
	}
}

func (l *faulty) releaseDue(a *lane) {
	if a.held.len() == 0 {
		return
	}
	for now := l.clock(); a.held.len() > 0 && a.held.q[0].due <= now; {
		l.release(a, a.held.take(0))
	}
}

// release lets a held packet go its way.
func (l *faulty) release(a *lane, p *heldPacket) {
	if a == &l.tx {
		l.emit(&p.frame, false)
		return
	}
	l.in = append(l.in, p.datagram)
}

// announce tells Wait when the next held packet is due. A Wait that runs was
// told before and is ended, if this is earlier.
func (l *faulty) announce() {
	due := int64(min(l.tx.held.due(), l.rx.held.due()))
	if due < l.due.Swap(due) {
		l.Link.Wake()
	}
}

// Wait implements Link. It returns when a held packet is due; the next Receive
// lets that go.
func (l *faulty) Wait(who Waiter, timeout time.Duration) {
	if due := time.Duration(l.due.Load()); due != never {
		if left := max(0, due-l.clock()); timeout < 0 || left < timeout {
			timeout = left
		}
	}
	l.Link.Wait(who, timeout)
}

// faultCounter names one statistic of a faulty link.
type faultCounter uint8

const (
	faultDropped faultCounter = iota
	faultDuplicated
	faultDelayed
	faultReordered
	faultCorrupted
	faultMarked
	faultRewritten
	faultReleasedEarly
	numFaultCounters
)

var faultCounterNames = [numFaultCounters]string{
	faultDropped: "fault_dropped", faultDuplicated: "fault_duplicated", faultDelayed: "fault_delayed", faultReordered: "fault_reordered",
	faultCorrupted: "fault_corrupted", faultMarked: "fault_marked", faultRewritten: "fault_rewritten", faultReleasedEarly: "fault_released_early",
}

var faultCounterOf = [...]faultCounter{
	FaultDrop: faultDropped, FaultDup: faultDuplicated, FaultDelay: faultDelayed, FaultReorder: faultReordered,
	FaultCorrupt: faultCorrupted, FaultCE: faultMarked, FaultSet: faultRewritten,
}

// Counters implements Link: those of the link, one for each kind of fault, and
// one for each rule.
func (l *faulty) Counters(f func(string, uint64)) {
	l.Link.Counters(f)
	for i, v := range l.counts {
		f(faultCounterNames[i], v)
	}
	for i := range l.rules {
		f(l.rules[i].name, uint64(l.rules[i].done))
	}
}
