package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/verbs"
)

// traffic is what a run sends: flows from hosts to hosts, as many messages as the
// path takes.
type traffic struct {
	name    string
	op      qp.Op // RDMAWrite, posted where data come from, or RDMARead, where they go
	flows   [][2]int
	devices verbs.Config
	pathMTU int
	ipv6    bool
	// ackTimeout is the code of the local ACK timeout, 0 the default of 67 ms.
	ackTimeout int
	// starts delays flows; a flow without entry starts at once.
	starts []time.Duration
	// Nothing counts before warm; length is what counts.
	warm, length time.Duration
	conditions   []Conditions
	seed         uint64
}

// Messages of this length, of which depth are posted at a time, each with a slot of
// memory of its own at both ends.
const (
	messageLen = 64 << 10
	depth      = 8
)

// outcome is what came of a run.
type outcome struct {
	traffic
	took   time.Duration       // that counts
	flows  []flowOutcome       // takes the place of the traffic's
	before []map[string]uint64 // statistics by host, nil without device
	stats  []map[string]uint64 // the same, what was added while it counted
	sw     *answer
	cpu    time.Duration // of this process, all hosts, while it counted
}

type flowOutcome struct {
	bits     float64 // of payload per second, while it counted
	messages uint64  // completed and verified, from the start
	trace    []tracePoint
	sender   transport.FlowStats // at the end, where data come from
	receiver transport.FlowStats
	repairs  transport.QPStats // of the requester
}

// tracePoint is what the sender of a flow may send.
type tracePoint struct {
	at     time.Duration // since the switch's Start
	rate   congestion.BitRate
	window int
}

// flow is a connection with its memory.
type flow struct {
	traffic  *traffic
	index    int
	from, to *end // data's way
	posts    *end // one of them
	done     atomic.Uint64
	trace    []tracePoint
}

// end is one end of a flow.
type end struct {
	dev *verbs.Device
	cq  *verbs.CQ
	qp  *verbs.QP
	mem *verbs.MR
}

// settle is for what is on its way when the last message is complete.
const settle = 20 * time.Millisecond

var errStopped = errors.New("stopped")

// run sends the traffic over the network. All payload is verified; an error says
// what was wrong.
func (n *network) run(t traffic) (o *outcome, err error) {
	devices := make([]*verbs.Device, len(n.hosts))
	defer func() {
		for _, d := range devices {
			if d != nil {
				_ = d.Close()
			}
		}
	}()
	flows := make([]*flow, len(t.flows))
	if err := n.set(t.seed, t.conditions...); err != nil {
		return nil, err
	}
	for i := range flows {
		if flows[i], err = n.connect(&t, i, devices); err != nil {
			return nil, err
		}
	}
	// The hosts have found each other by now, and the switch them.
	if err := n.set(t.seed, t.conditions...); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	errs := make([]error, len(flows))
	var running sync.WaitGroup
	for i, f := range flows {
		running.Go(func() {
			if errs[i] = f.drive(ctx); errs[i] != nil {
				stop(errs[i])
			}
		})
	}
	traced := make(chan struct{})
	go func() { defer close(traced); traceAll(ctx, flows) }()

	sleep(ctx, t.warm)
	o = &outcome{traffic: t, before: statsOf(devices)}
	if err := n.mark(); err != nil {
		return nil, err
	}
	start, cpu, done := time.Now(), cpuTime(), make([]uint64, len(flows))
	for i, f := range flows {
		done[i] = f.done.Load()
	}
	sleep(ctx, t.length)
	o.took = time.Since(start)
	o.cpu = cpuTime() - cpu
	for i, f := range flows {
		o.flows = append(o.flows, flowOutcome{bits: float64(f.done.Load()-done[i]) * 8 * messageLen / o.took.Seconds()})
	}
	o.sw, err = n.read()
	o.stats = statsOf(devices)
	for i := range o.stats {
		for name := range o.stats[i] {
			o.stats[i][name] -= o.before[i][name]
		}
	}
	stop(errStopped)
	running.Wait()
	<-traced
	time.Sleep(settle)
	for i, f := range flows {
		r := &o.flows[i]
		r.messages, r.trace = f.done.Load(), f.trace
		r.sender, r.receiver, r.repairs = f.from.qp.Flow(), f.to.qp.Flow(), f.posts.qp.Stats()
	}
	return o, errors.Join(append(errs, err)...)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func statsOf(devices []*verbs.Device) (all []map[string]uint64) {
	for _, d := range devices {
		var s map[string]uint64
		if d != nil {
			s = d.Stats()
		}
		all = append(all, s)
	}
	return all
}

// connect makes the ends of a flow, with devices as they are needed.
func (n *network) connect(t *traffic, i int, devices []*verbs.Device) (*flow, error) {
	var ends [2]*end
	for side, h := range t.flows[i] {
		if devices[h] == nil {
			addr := n.hosts[h].addr4
			if t.ipv6 {
				addr = n.hosts[h].addr6
			}
			d, err := n.hosts[h].open(addr, t.devices)
			if err != nil {
				return nil, err
			}
			devices[h] = d
		}
		e, err := newEnd(devices[h])
		if err != nil {
			return nil, err
		}
		ends[side] = e
	}
	f := &flow{traffic: t, index: i, from: ends[0], to: ends[1], posts: ends[0]}
	if t.op == qp.RDMARead {
		f.posts = ends[1]
	}
	c := verbs.ConnectConfig{PathMTU: t.pathMTU, Access: mr.RemoteRead | mr.RemoteWrite, Timeout: t.ackTimeout}
	if err := f.from.qp.Connect(f.to.qp.Local(), c); err != nil {
		return nil, err
	}
	return f, f.to.qp.Connect(f.from.qp.Local(), c)
}

func newEnd(d *verbs.Device) (*end, error) {
	e, pd := &end{dev: d}, d.AllocPD()
	var err error
	if e.cq, err = d.CreateCQ(2 * depth); err != nil {
		return nil, err
	}
	if e.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: depth, MaxRecvWR: 1}); err != nil {
		return nil, err
	}
	e.mem, err = pd.RegisterMR(make([]byte, depth*messageLen), mr.LocalWrite|mr.RemoteRead|mr.RemoteWrite)
	return e, err
}

// patienceAfter is how long the last messages may take.
const patienceAfter = 20 * time.Second

// drive sends messages until ctx is done, and then waits for the last ones.
func (f *flow) drive(ctx context.Context) error {
	if f.index < len(f.traffic.starts) {
		sleep(ctx, f.traffic.starts[f.index])
	}
	posted := uint64(0)
	for ; posted < depth; posted++ {
		if err := f.post(posted); err != nil {
			return err
		}
	}
	var wcs [depth]cq.WC
	patience, cancel := context.WithTimeout(context.Background(), f.traffic.warm+f.traffic.length+patienceAfter)
	defer cancel()
	for done := uint64(0); done < posted; {
		k, err := f.posts.cq.Wait(patience, wcs[:])
		if err != nil {
			st := f.posts.dev.Stats()
			return fmt.Errorf("flow %d after %d messages: %w: %+v, %+v, %d completions wait, timeouts %d early, %d late", f.index, done, err,
				f.posts.qp.Flow(), f.posts.qp.Stats(), f.posts.cq.Len(), st["early_timeout"], st["local_ack_timeout_err"])
		}
		for i := range wcs[:k] {
			if err := f.check(&wcs[i], done); err != nil {
				return err
			}
			done++
			f.done.Store(done)
			if ctx.Err() != nil {
				continue
			}
			if err := f.post(posted); err != nil {
				return err
			}
			posted++
		}
	}
	return nil
}

// post writes the pattern of a message where it comes from, and something else where
// it goes to, and posts it.
func (f *flow) post(message uint64) error {
	at := int(message%depth) * messageLen
	fill(f.from.mem.Bytes()[at:][:messageLen], f.pattern(message))
	far := f.to
	if f.posts == f.to {
		far = f.from
	}
	return f.posts.qp.PostSend(&qp.SendWR{
		ID: message, Op: f.traffic.op, Flags: qp.Signaled, SGE: []mr.SGE{f.posts.mem.SGE(at, messageLen)},
		RemoteAddr: far.mem.Addr() + uint64(at), RKey: far.mem.Key(),
	})
}

// check verifies a completion and the message's bytes where they arrived.
func (f *flow) check(wc *cq.WC, want uint64) error {
	if wc.Status != cq.Success {
		return fmt.Errorf("flow %d, message %d: %v", f.index, wc.ID, wc.Status)
	}
	if wc.ID != want {
		return fmt.Errorf("flow %d: completion of message %d, want %d", f.index, wc.ID, want)
	}
	f.to.dev.Sync()
	at := int(want%depth) * messageLen
	if bad := compare(f.to.mem.Bytes()[at:][:messageLen], f.pattern(want)); bad >= 0 {
		return fmt.Errorf("flow %d, message %d: wrong byte near %d of %d", f.index, want, bad, messageLen)
	}
	return nil
}

// pattern returns the start of what a message contains, which no other one does.
func (f *flow) pattern(message uint64) uint64 {
	return (message*64 + uint64(f.index) + 1) * 0x9e3779b97f4a7c15
}

const patternStep = 0xd1342543de82ef95

func fill(b []byte, word uint64) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, word)
		word += patternStep
	}
}

// compare returns where b differs from what fill writes, -1 if nowhere.
func compare(b []byte, word uint64) int {
	for i := 0; i+8 <= len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != word {
			return i
		}
		word += patternStep
	}
	return -1
}

// traceAll looks every rowTime at what the senders may send.
func traceAll(ctx context.Context, flows []*flow) {
	start := clock()
	tick := time.NewTicker(rowTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, f := range flows {
			s := f.from.qp.Flow()
			f.trace = append(f.trace, tracePoint{clock() - start, s.Rate, f.posts.qp.Flow().Window})
		}
	}
}
