package transport

import (
	"errors"
	"net/netip"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// Config is what an engine is given. CNP, MaxBatch, Recovery, PeerWindow, Shard, Shards and
// SrcPorts may be zero; all other fields are required.
type Config struct {
	// Local is the address that all packets leave from.
	Local netip.Addr
	// SrcPorts are the UDP source ports that the link sends from, a power of
	// two of them. A pair has one, by its destination QPN: the packets of all
	// pairs in one shard of the peer then come from one port. None means 4791.
	SrcPorts []uint16
	// Random is the source of queue pair numbers; same values, same packets.
	Random func() uint32
	// Congestion makes the controller of each queue pair.
	Congestion congestion.Factory
	// CNP says when marked packets are answered.
	CNP congestion.NotificationPoint
	// MaxBatch bounds the batches of paced pairs, in bytes, where timers are
	// fine enough for that: 1 gives single packets. 0 leaves it to the rate, see
	// congestion.BitRate.Batch.
	MaxBatch int
	// OnEvent takes asynchronous events. It must not call the engine.
	OnEvent func(Event)
	// MaxQP bounds the number of queue pairs.
	MaxQP int
	// Recovery says how losses are repaired.
	Recovery Recovery
	// PortMTU is the longest payload of a datagram, in bytes; SetPortMTU changes
	// it.
	PortMTU int
	// PeerWindow is how many packets all RC pairs together may have unanswered at
	// one peer: what fits into its socket buffer. 0 is no limit.
	PeerWindow int
	// Shard is the engine's place among Shards engines of one device, a power
	// of two: its queue pair numbers modulo Shards are Shard. The zero values
	// are one engine alone.
	Shard, Shards int
}

// What the engine refuses.
var (
	ErrTooManyQPs = errors.New("transport: the device has its maximum of queue pairs; destroy some or raise MaxQP")
	ErrType       = errors.New("transport: unknown queue pair type; use RC, UC, UD or GSI")
	ErrGSI        = errors.New("transport: the device has its GSI pair (QP1) already")
	ErrFamily     = errors.New("transport: the peer's address and the device's are not of one family; both must be IPv4 or both IPv6")
	ErrDestroyed  = errors.New("transport: the queue pair was destroyed")
)

// quota is how many packets one queue pair may send before the next gets its
// turn.
const quota = 16

// Engine runs the queue pairs of one shard. It belongs to one owner at a time.
type Engine struct {
	cfg      Config
	qps      map[bth.QPN]*QP
	nextQPN  bth.QPN
	ready    fifo // pairs that may have something to send
	timers   timers
	groups   map[netip.Addr][]*QP // multicast
	peers    map[netip.Addr]*peer
	cnpGaps  cnpGaps
	finished []*QP // UC and UD pairs with requests that the last burst took
	owing    []*QP // pairs whose ACK was held back
	Counters Counters

	// HoldACKs makes Transmit leave lone acknowledgements for a later call: the
	// caller has a request to send at once and will soon call again.
	HoldACKs bool

	store packetStore

	in   bth.Packet // the packet being received
	held bth.Packet // an earlier one, whose turn has come
	out  bth.Packet // the packet being built
	grh  [bth.GRHLen]byte
}

// New returns an engine without queue pairs.
func New(cfg Config) *Engine {
	cfg.Shards = max(1, cfg.Shards)
	if len(cfg.SrcPorts) == 0 {
		cfg.SrcPorts = []uint16{bth.Port}
	}
	first := cfg.Random()&^uint32(cfg.Shards-1) + uint32(cfg.Shard)
	return &Engine{cfg: cfg, qps: make(map[bth.QPN]*QP), peers: make(map[netip.Addr]*peer), nextQPN: bth.QPN(first)}
}

// Create makes a queue pair in RESET with a number of its own. Numbers are
// handed out in turn from a random start, so that one that was destroyed comes
// back as late as possible.
func (e *Engine) Create(pd *mr.Domain, c qp.Config) (*QP, error) {
	switch {
	case c.Type < qp.GSI || c.Type > qp.UD:
		return nil, ErrType
	case c.Type == qp.GSI && e.qps[bth.QPNGSI] != nil:
		return nil, ErrGSI
	case len(e.qps) >= e.cfg.MaxQP:
		return nil, ErrTooManyQPs
	}
	qpn := bth.QPNGSI
	if c.Type != qp.GSI {
		qpn = e.freeQPN()
	}
	q := newQP(qp.New(qpn, pd, c))
	e.qps[q.QPN] = q
	pd.Retain()
	return q, nil
}

// freeQPN returns the next number that no pair has.
func (e *Engine) freeQPN() bth.QPN {
	for {
		e.nextQPN = (e.nextQPN + bth.QPN(e.cfg.Shards)) & 0xFFFFFF
		// 0 and 1 are the management pairs, rxe's start at 16, the last is multicast.
		if e.nextQPN >= 16 && e.nextQPN != bth.QPNMulticast && e.qps[e.nextQPN] == nil {
			return e.nextQPN
		}
	}
}

// Destroy ends a queue pair. Its outstanding work requests vanish without
// completions.
func (e *Engine) Destroy(q *QP) {
	if q.destroyed {
		return
	}
	delete(e.qps, q.QPN)
	q.destroyed = true
	for _, g := range e.Groups(q) {
		_, _ = e.Detach(q, g)
	}
	e.timers.remove(q)
	e.dropAhead(q)
	e.part(q)
	q.reset()
	q.Attr.State = qp.Reset
	q.Domain.Release()
}

// RandomPSN returns a number to start a sequence with.
func (e *Engine) RandomPSN() bth.PSN { return bth.NewPSN(e.cfg.Random()) }

// SetPortMTU changes the longest payload of a datagram. Requests that were posted
// before are held to it as well.
func (e *Engine) SetPortMTU(bytes int) { e.cfg.PortMTU = bytes }

// Len returns the number of queue pairs.
func (e *Engine) Len() int { return len(e.qps) }

// PostSend posts a send work request and makes the pair ready to transmit.
func (e *Engine) PostSend(q *QP, wr *qp.SendWR) error {
	if q.destroyed {
		return ErrDestroyed
	}
	if err := q.PostSend(wr); err != nil {
		return err
	}
	switch q.Attr.State {
	case qp.Err, qp.SQE:
		e.flushSend(q)
	default:
		e.ready.push(q) // no timer begins by that
	}
	return nil
}

// PostRecv posts a receive work request.
func (e *Engine) PostRecv(q *QP, wr *qp.RecvWR) error {
	if q.destroyed {
		return ErrDestroyed
	}
	if err := q.PostRecv(wr); err != nil {
		return err
	}
	if q.Attr.State == qp.Err {
		e.flush(q)
	}
	return nil
}

// Receive handles one datagram: parse, find the pair, check, hand on. It does
// a bounded amount of work and never keeps the datagram's bytes.
func (e *Engine) Receive(now time.Duration, d *bth.Datagram) {
	p := &e.in
	if err := p.Parse(d.Data); err != nil {
		e.Counters[parseDrop(err)]++
		return
	}
	info := p.Opcode.Info()
	if p.DestQP == bth.QPNMulticast {
		e.multicast(p, info, d)
		return
	}
	q := e.qps[p.DestQP]
	if drop := e.admit(q, p, info, d); drop != admitted {
		e.Counters[drop]++
		return
	}
	e.countReceived(d)
	q.hinted = bth.OwnSrcPort(d.SrcPort)
	if d.CongestionExperienced() {
		e.marked(now, q, p, info)
	}
	switch {
	case info.Transport == bth.CNPClass:
		e.notified(now, q)
	case q.Type == qp.RC && info.Request:
		e.request(now, q, p, info, d)
	case q.Type == qp.RC:
		e.response(now, q, p, info)
	case q.Type == qp.UC:
		e.receiveUC(q, p, info)
	default:
		e.receiveUD(q, p, info, d)
	}
	e.kick(q)
}

// countReceived counts a packet that passed the checks before protocol state.
func (e *Engine) countReceived(d *bth.Datagram) {
	e.Counters[RcvdPkts]++
	e.Counters[RcvdBytes] += uint64(len(d.Data) + bth.ICRCLen)
	if d.CongestionExperienced() {
		e.Counters[CERcvd]++
	}
}

// admitted is no counter: the packet may go on.
const admitted = numCounters

// admit makes the checks that come before any protocol state (IBA 9.6.1) and
// returns the counter of the first that failed.
func (e *Engine) admit(q *QP, p *bth.Packet, info *bth.Info, d *bth.Datagram) Counter {
	switch {
	case q == nil:
		return DropQPN
	case info.Transport != q.Type.Transport() && (info.Transport != bth.CNPClass || !q.Type.Connected()):
		return DropTransport
	case info.Request && !q.Attr.State.CanReceive(), !info.Request && !q.Attr.State.CanSend():
		return DropState
	case d.Dst != e.cfg.Local, q.Type.Connected() && d.Src != q.peer:
		return DropAddress
	case !bth.PKeyDefault.Matches(p.PKey):
		return DropPKey
	}
	return admitted
}

func parseDrop(err error) Counter {
	switch err {
	case bth.ErrOpcode:
		return DropOpcode
	case bth.ErrVersion:
		return DropVersion
	case bth.ErrPad:
		return DropPad
	case bth.ErrPayload:
		return DropPayload
	}
	return DropTruncated
}

// Timers handles all deadlines up to now.
func (e *Engine) Timers(now time.Duration) {
	for len(e.timers) > 0 && e.timers[0].wakeAt <= now {
		q := e.timers.pop()
		e.expire(now, q)
		e.account(q)
		e.timers.set(q, q.deadline())
	}
}

// Deadline returns when Timers has to be called next; ok is false when no timer
// runs. It may be earlier than anything happens, never later.
func (e *Engine) Deadline() (at time.Duration, ok bool) {
	if len(e.timers) == 0 {
		return 0, false
	}
	return e.timers[0].wakeAt, true
}

// Pending reports whether Transmit may have something to send.
func (e *Engine) Pending() bool { return e.ready.n > 0 || len(e.finished) > 0 || len(e.owing) > 0 }

// Transmit fills the burst with the next packets of the ready pairs, in turn.
// When it leaves room, nothing is left to send for now. The caller has sent the
// burst of the call before: UC and UD requests complete by that.
func (e *Engine) Transmit(now time.Duration, b *bth.Burst) {
	e.finishSent()
	e.payACKs()
	for b.Free() > 0 {
		q := e.ready.pop()
		if q == nil {
			return
		}
		more := e.transmit(now, q, b)
		if more {
			e.ready.push(q)
		} else {
			e.turnOver(q)
		}
		e.account(q)
		e.timers.set(q, q.deadline())
	}
}

// payACKs makes the pairs ready whose ACK was held back.
func (e *Engine) payACKs() {
	if e.HoldACKs {
		return
	}
	for i, q := range e.owing {
		q.owing, e.owing[i] = false, nil
		e.ready.push(q)
	}
	e.owing = e.owing[:0]
}

// transmit sends up to a quota of q's packets, answers first: a peer waits for
// them. To a peer of this package an ACK alone goes last, or even later: what
// the application answers matters more. Others expect it first: perftest's
// ib_send_lat -e sleeps for ever when the answer overtakes it. transmit reports
// whether there may be more.
func (e *Engine) transmit(now time.Duration, q *QP, b *bth.Burst) (more bool) {
	last := q.agreed() && !q.np.due && q.rsp.queue.onlyACK()
	for range quota {
		switch {
		case b.Free() == 0:
			return true
		case last && e.sendRequest(now, q, b):
		case last && e.HoldACKs:
			e.owe(q)
			return false
		case last:
			e.sendResponse(now, q, b)
			return false
		case !e.sendNext(now, q, b):
			return false
		}
	}
	if last && b.Free() > 0 {
		e.sendResponse(now, q, b)
	}
	return true
}

// owe holds q's ACK back.
func (e *Engine) owe(q *QP) {
	if !q.owing {
		q.owing = true
		e.owing = append(e.owing, q)
	}
}

func (e *Engine) sendNext(now time.Duration, q *QP, b *bth.Burst) bool {
	if q.np.due && q.Attr.State.CanReceive() {
		e.sendCNP(q, b)
		return true
	}
	if q.Type != qp.RC {
		return e.sendUnreliable(now, q, b)
	}
	return e.sendResponse(now, q, b) || e.sendRequest(now, q, b)
}

// kick makes q ready to transmit, and its timer as early as it has to be.
func (e *Engine) kick(q *QP) {
	e.account(q)
	e.ready.push(q)
	e.timers.set(q, q.deadline())
}

// frame encodes the packet that was built in e.out into the burst.
func (e *Engine) frame(q *QP, f *bth.Frame, payload []byte) {
	e.out.PadCount = bth.Pad(len(payload))
	f.Path, f.Payload = &q.path, payload
	f.SetHeaders(&e.out)
	e.Counters[SentPkts]++
	e.Counters[SentBytes] += uint64(f.Len())
}

// header starts the packet in e.out.
func (e *Engine) header(q *QP, op bth.Opcode, psn bth.PSN) *bth.Packet {
	// MigReq is 1 without path migration; some NICs take 0 for a migration
	// and fall into a slow path.
	h := &e.out.BTH // field by field: a literal would be made elsewhere and copied
	h.Opcode, h.DestQP, h.PSN = op, q.Attr.DestQPN, psn
	h.MigReq, h.PKey, h.Version, h.PadCount = true, bth.PKeyDefault, 0, 0
	h.Solicited, h.FECN, h.BECN, h.AckReq = false, false, false, false
	return &e.out
}

// fifo is an intrusive queue of pairs; a pair is in it at most once.
type fifo struct {
	first, last *QP
	n           int
}

func (f *fifo) push(q *QP) {
	if q.queued {
		return
	}
	q.queued, q.nextReady = true, nil
	if f.last == nil {
		f.first = q
	} else {
		f.last.nextReady = q
	}
	f.last = q
	f.n++
}

func (f *fifo) pop() *QP {
	q := f.first
	if q == nil {
		return nil
	}
	f.first = q.nextReady
	if f.first == nil {
		f.last = nil
	}
	q.queued, q.nextReady = false, nil
	f.n--
	return q
}
