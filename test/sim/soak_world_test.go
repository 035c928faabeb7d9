package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// This file has the stage of the soak: hosts, connections, time.

const (
	plainLen  = 4 << 10 // of a lane: by the key of a region
	windowLen = 2 << 10 // by the key of a window
	fastLen   = 2 << 10 // by the key of a fast registration
	laneLen   = plainLen + windowLen + fastLen
	soakSlot  = 2 << 10
	slots     = 12
	sharedWRs = 24
	maxQueued = 14 // requests of an end without a completion
	words     = 8  // of a host's counters
	idBit     = 1 << 63
)

// lifetime bounds how long a packet is under way without a pause; a queue pair
// number or PSN is not used anew before (time-wait).
const lifetime = time.Millisecond

// world is one schedule.
type world struct {
	tally
	n        *Net
	r        *rand.Rand
	hosts    []*station
	conns    []*conn
	requests []*request
	receives []*receive
	harm     bool     // errors and changes of state still happen
	later    []func() // done soon, in the middle of something
	orderly  bool     // the network never reorders or duplicates
	paused   time.Duration
}

// station is a host with what its queue pairs share.
type station struct {
	*Host
	w         *world
	cq        *cq.Queue
	ends      []*end
	foreign   *mr.Region // of another domain, with all rights
	counters  *mr.Region // words that everyone adds 1 to
	added     [words]struct{ sure, doubtful int }
	seen      [words]map[uint64]bool
	srq       *qp.SharedRecv
	srqMem    *mr.Region
	shared    []*receive // posted to srq
	srqFree   []int
	armed     bool
	badRecv   bool // a bad receive was posted to srq
	areas     [][]byte
	resets    int // of pairs on the SRQ, which may take a receive with them
	lastEvent int
}

// conn is a pair of connected ends, or two UD ends that send to each other.
type conn struct {
	w         *world
	id        int
	typ       qp.Type
	mtu       int
	e         [2]*end
	down      bool // both ends are dead
	deadSince time.Duration
}

// end is one queue pair with its memory and its model.
type end struct {
	w         *world
	c         *conn
	i         int
	host      *station
	q         *transport.QP
	link      Link
	small     bool // has completion queues that overflow
	onSRQ     bool // shares the SRQ
	destroyed bool // the pair; the next life makes a new one

	sendCQ, recvCQ *cq.Queue

	lane    *lane // what the peer changes here
	base    *mr.Region
	plain   *mr.Region
	win     *mr.Window
	fast    *mr.FastRegion
	grants  [3]*grant
	local   *mr.Region
	free    []int
	recv    *mr.Region
	recvs   []int    // free receive slots
	reads   [][2]int // what READs since the last fence cover of the peer's lane
	drained uint64   // SQD: counter of the first request that must not start
	state   endState

	sendq   []*request
	recvq   []*receive
	msgs    []*request // of the peer, in this life, that take a receive
	got     int        // of msgs
	acked   int        // of the peer's msgs: known to be executed
	lastUC  int        // index in msgs of the last one received
	lastSRQ uint64
	failed  bool    // a completion with an error was seen in this life
	cause   bool    // something that explains ERR has happened
	badRecv bool    // a receive that refuses messages was posted
	fatal   bool    // QP_FATAL may be raised
	events  [32]int // of this life, by type
	arrived int     // messages since the faults ended
	drains  int     // times that SQD was entered
}

type endState uint8

const (
	alive endState = iota
	stopped
	dead // ERR or RESET by the application, or destroyed
)

func (e *end) peer() *end { return e.c.e[1-e.i] }

func (e *end) String() string { return fmt.Sprintf("%v pair %d.%d", e.c.typ, e.c.id, e.i) }

// fail ends the schedule.
func (w *world) fail(format string, args ...any) {
	panic(violation{fmt.Errorf("at %v: "+format, append([]any{w.n.now}, args...)...)})
}

func (w *world) must(err error, what string) {
	if err != nil {
		w.fail("%s: %w", what, err)
	}
}

func (w *world) oneIn(n int) bool { return w.r.IntN(n) == 0 }

func newWorld(seed uint64) *world {
	n := New(seed, Faults{Delay: 20 * time.Microsecond, Jitter: 200 * time.Microsecond})
	w := &world{n: n, r: n.Rand(), harm: true, orderly: true}
	n.Copied = w.copied
	w.changeFaults()
	for range 2 + w.r.IntN(2) {
		w.addStation()
	}
	for _, typ := range w.types() {
		w.addConn(typ)
	}
	return w
}

// types returns several RC pairs and one or two of the others.
func (w *world) types() []qp.Type {
	t := []qp.Type{qp.RC, qp.RC, qp.UC, qp.UD}
	for range w.r.IntN(3) {
		t = append(t, []qp.Type{qp.RC, qp.RC, qp.UC, qp.UD}[w.r.IntN(4)])
	}
	return t
}

func (w *world) changeFaults() {
	pick := func(limit float64) float64 {
		if w.oneIn(3) {
			return 0
		}
		return w.r.Float64() * limit
	}
	f := &w.n.Faults
	f.Loss, f.Duplicate, f.Corrupt, f.Mark = pick(.06), pick(.08), pick(.03), pick(.1)
	if f.Reorder = pick(.08); w.n.Seed%4 == 0 {
		f.Reorder, f.Duplicate = 0, 0
	}
	if f.Reorder > 0 || f.Duplicate > 0 {
		w.orderly = false
	}
	if f.Reorder > 0 {
		f.Delay = time.Duration(5+w.r.IntN(60)) * time.Microsecond
	}
}

func (w *world) addStation() {
	h := &station{w: w, cq: cq.New(1024, nil)}
	window := 4 << w.r.IntN(5)
	w.n.Recovery = []transport.Recovery{transport.Selective, transport.Selective, transport.Alone, transport.GoBackN}[w.r.IntN(4)]
	if w.oneIn(3) {
		h.Host = w.n.AddHostWith(func(int) congestion.Controller { return congestion.NewAIMD(window) })
	} else {
		h.Host = w.n.AddHost(window)
	}
	other := h.Keys.NewDomain()
	all := mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic
	h.foreign, _ = other.Register(h.area(soakSlot), all)
	h.counters, _ = h.PD.Register(h.area(8*words), all)
	clear(h.counters.Bytes())
	for i := range h.seen {
		h.seen[i] = map[uint64]bool{}
	}
	h.srq = qp.NewSharedRecv(h.PD, sharedWRs, 4)
	h.srqMem, _ = h.PD.Register(h.area(2*sharedWRs*soakSlot), mr.LocalWrite)
	for i := range 2 * sharedWRs {
		h.srqFree = append(h.srqFree, i)
	}
	w.hosts = append(w.hosts, h)
}

// area returns memory between guards.
func (h *station) area(n int) []byte {
	b := make([]byte, guard+n+guard)
	for i := range b {
		b[i] = guardByte
	}
	h.areas = append(h.areas, b)
	return b[guard : guard+n : guard+n]
}

func (w *world) addConn(typ qp.Type) {
	c := &conn{w: w, id: len(w.conns), typ: typ, mtu: 256 << w.r.IntN(3)}
	a := w.r.IntN(len(w.hosts))
	b := (a + 1 + w.r.IntN(len(w.hosts)-1)) % len(w.hosts)
	for i, h := range []*station{w.hosts[a], w.hosts[b]} {
		e := &end{w: w, c: c, i: i, host: h}
		e.onSRQ = typ == qp.RC && w.oneIn(2)
		e.small = w.oneIn(10)
		e.addMemory()
		h.ends = append(h.ends, e)
		c.e[i] = e
	}
	w.conns = append(w.conns, c)
	c.deadSince = -time.Hour
	c.down = true
	c.connect()
}

func (e *end) addMemory() {
	h := e.host
	mem := h.area(laneLen)
	for i := range mem {
		mem[i] = byte(e.w.r.Uint32())
	}
	e.lane = newLane(mem)
	at := 0
	for i, n := range []int{plainLen, windowLen, fastLen} {
		e.grants[i] = &grant{lane: e.lane, lo: at, n: n}
		at += n
	}
	e.local, _ = h.PD.Register(h.area(slots*soakSlot), mr.LocalWrite)
	e.recv, _ = h.PD.Register(h.area(slots*soakSlot), mr.LocalWrite)
	for i := range slots {
		e.free, e.recvs = append(e.free, i), append(e.recvs, i)
	}
}

// copied counts the copies of UD messages, which carry their id.
func (w *world) copied(packet []byte, copies int) {
	if bth.Transport(packet[0])&0xE0 != bth.UD {
		return
	}
	at := bth.BTHLen + 8
	if bth.Opcode(packet[0]).Info().Headers&bth.HasImmDt != 0 {
		at += 4
	}
	x := w.requests[getID(packet[at:])]
	x.copies += copies
}

// disturb is the wild part of a schedule.
func (w *world) disturb() {
	for left := 100 + w.r.IntN(400); left > 0; {
		if w.oneIn(2) {
			w.act()
			left--
		}
		w.n.transmit()
		w.advance(idleStep)
		w.watch()
		if len(w.later) > 0 && w.oneIn(3) {
			w.later[0]()
			w.later = w.later[1:]
		}
	}
	w.later = nil
}

// advance lets the next thing happen, or at most d pass.
func (w *world) advance(d time.Duration) {
	if w.n.next() > w.n.now+d {
		w.n.now += d
		return
	}
	w.n.step()
}

// act does one thing an application or a network may do.
func (w *world) act() {
	c := w.conns[w.r.IntN(len(w.conns))]
	e := c.e[w.r.IntN(2)]
	roll := w.r.IntN(totalWeight)
	for _, a := range actions {
		if roll -= a.weight; roll < 0 {
			a.do(e)
			return
		}
	}
}

type action struct {
	weight int
	do     func(e *end)
}

var actions = []action{
	{60, (*end).post},
	{20, (*end).postReceives},
	{14, (*end).pollSome},
	{4, (*end).drain},
	{6, (*end).resume},
	{1, func(e *end) { e.kill(killErr) }},
	{1, func(e *end) { e.kill(killReset) }},
	{1, func(e *end) { e.kill(killDestroy) }},
	{20, (*end).repair},
	{5, (*end).changeGrant},
	{1, (*end).reregisterLocal},
	{1, (*end).reregisterRecv},
	{3, (*end).changeSRQ},
	{2, (*end).surprise},
	{2, (*end).adjust},
	{1, func(e *end) { e.w.pause(e.host) }},
	{1, func(e *end) {
		if e.w.oneIn(10) {
			e.w.failPort(e.host)
		}
	}},
	{1, func(e *end) { e.w.changeFaults() }},
}

var totalWeight = func() (n int) {
	for _, a := range actions {
		n += a.weight
	}
	return n
}()

func (w *world) pause(h *station) {
	d := time.Duration(100+w.r.IntN(3000)) * time.Microsecond
	h.Pause(d)
	w.paused = max(w.paused, w.n.now+d)
}

// failPort moves all connected pairs of the host to ERR.
func (w *world) failPort(h *station) {
	for _, e := range h.ends {
		if e.c.typ != qp.UD {
			e.poll()
			e.cause, e.fatal = true, true
		}
	}
	h.FailConnected("the port went down")
}

// settled is how long all ends of a connection must be dead before its numbers
// are used again.
func (c *conn) settled() bool {
	now := c.w.n.now
	return now > c.deadSince+lifetime && now > c.w.paused+lifetime
}

// calmDown ends all faults and harm and lets everything complete.
func (w *world) calmDown() {
	w.harm = false
	w.n.Faults = Faults{Delay: w.n.Faults.Delay}
	for _, c := range w.conns {
		c.e[0].arrived, c.e[1].arrived = 0, 0
	}
	w.complete()
	for range 3 * sharedWRs {
		if !w.probe() {
			break
		}
		w.complete()
	}
	for _, e := range w.deaf() {
		w.fail("%s does not receive", e)
	}
	w.n.RunFor(10 * lifetime) // late duplicates must change nothing
	w.pollAll()
}

// probe sends a short message to every end that has not had one since the faults
// ended. A bad receive may be in its way and cost the pair a life.
func (w *world) probe() (any bool) {
	for _, e := range w.deaf() {
		e.postReceives()
		e.peer().postOne(qp.Send)
		any = true
	}
	w.n.RunFor(lifetime)
	w.pollAll()
	return any
}

// deaf returns the ends that have not received anything since the faults ended.
func (w *world) deaf() (ends []*end) {
	for _, c := range w.conns {
		for _, e := range c.e {
			if !e.small && !e.peer().small && e.arrived == 0 {
				ends = append(ends, e)
			}
		}
	}
	return ends
}

// complete lets time pass until all requests of living pairs are complete.
func (w *world) complete() {
	limit := w.n.now + w.paused + time.Second
	for !w.idle() {
		for _, c := range w.conns {
			for _, e := range c.e {
				e.resume()
				e.repair()
				e.postReceives()
			}
		}
		w.n.transmit()
		w.advance(idleStep)
		w.pollAll()
		if w.n.now > limit {
			w.fail("not all requests of healthy pairs have completed: %s", w.stuck())
		}
	}
}

// idle reports whether every living pair has sent all it has.
func (w *world) idle() bool { return w.stuck() == "" }

func (w *world) stuck() (s string) {
	for _, c := range w.conns {
		for _, e := range c.e {
			if e.state != alive || c.down || e.broken() || e.q.SQ.Len() > 0 {
				s += fmt.Sprintf(" %s: state %v, %d requests wait;", e, e.q.State(), e.q.SQ.Len())
			}
		}
	}
	return s
}

// allDone notes that all requests of a healthy pair have succeeded, signaled
// or not.
func (e *end) allDone() {
	if e.sendCQ.Overflowed() || e.recvCQ.Overflowed() {
		return // by what was still under way
	}
	if e.broken() || e.c.down {
		e.w.fail("%s has not recovered", e)
	}
	e.silent(0)
}

// tearDown compares all memory, destroys everything, and looks for leftovers.
func (w *world) tearDown() {
	for _, c := range w.conns {
		for _, e := range c.e {
			e.allDone()
		}
	}
	for _, c := range w.conns {
		c.killBoth()
	}
	w.n.RunFor(10 * lifetime)
	for _, c := range w.conns {
		c.settle()
	}
	for _, h := range w.hosts {
		h.checkShared()
		for _, e := range h.ends {
			h.Destroy(e.q)
		}
		h.checkEmpty()
		h.checkGuards()
	}
}
