package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"time"
	"unsafe"

	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

// Host is what a test needs of the program around it.
type Host struct {
	// Dial connects to the server; nil makes this side the server.
	Dial func(ctx context.Context) (net.Conn, error)
	// Accept waits for a client. It shows each connection to greet until one is
	// taken, or greet fails with an error other than ErrEarly.
	Accept func(ctx context.Context, greet func(net.Conn) error) error
	// Open returns the device to use with the peer at the other end of the
	// connection. The caller closes it after Run.
	Open func(c net.Conn) (*verbs.Device, error)
	// Out gets the report. Progress, if not nil, is a terminal for a line that
	// tells how far a long run is.
	Out, Progress io.Writer
}

// Run runs one test. Config has to have passed Check. With Config.JSON the report
// tells of an error too.
func Run(ctx context.Context, c Config, h Host) error {
	e := &end{cfg: c, host: h, client: h.Dial != nil, text: h.Out}
	if c.JSON {
		e.text = io.Discard
	}
	err := e.run(ctx)
	if e.conn != nil {
		e.conn.close()
	}
	if c.JSON {
		return errors.Join(err, e.printJSON(err))
	}
	if err == nil && c.Verbose {
		e.printCounters()
	}
	return err
}

// end is one side of a test.
type end struct {
	cfg    Config
	host   Host
	client bool
	ctx    context.Context
	text   io.Writer

	conn        *conn
	own         bool // the peer is another roce
	seed        uint64
	peerSeed    uint64
	cycle, line int

	dev   *verbs.Device
	pd    *verbs.PD
	cq    *verbs.CQ
	srq   *verbs.SRQ
	mem   *verbs.MR
	area  int // bytes of memory per queue pair and direction
	lanes []*lane

	rows    []Row
	checked []string // what was found right
	lastPkt uint64
}

// lane is one queue pair of the test with its counts in the current run.
type lane struct {
	index  int
	qp     *verbs.QP
	remote record
	av     qp.AddressVector // UD
	wr     qp.SendWR        // what its requests have in common
	recv   qp.RecvWR        // prepared receive
	before uint64           // Atomic: what the peer's counter held
	sample []byte           // Read: what the peer's memory held

	posted, done    int // requests
	recvPosted, got int // messages
	requests        int // in all runs
	open            bool
}

// source is where lane i sends from and READs go to, target what it receives into
// and the peer may access.
func (e *end) source(i int) int { return i * e.area }
func (e *end) target(i int) int { return (len(e.lanes) + i) * e.area }

// spare is a second source for the first lane: see writeLatency.
func (e *end) spare() int { return 2 * len(e.lanes) * e.area }

func (e *end) run(ctx context.Context) error {
	e.ctx = ctx
	if err := e.meet(); err != nil {
		return err
	}
	dev, err := e.host.Open(e.conn.raw)
	if err != nil {
		return err
	}
	e.dev = dev
	if err := e.agree(); err != nil {
		return err
	}
	if err := e.create(); err != nil {
		return err
	}
	e.conn.alive, e.conn.lossy = e.peerSends, e.cfg.Connection != qp.RC
	e.printHead()
	if err := e.sequence(); err != nil {
		return err
	}
	e.printTail()
	return nil
}

// peerSends reports whether packets have come since the last call.
func (e *end) peerSends() bool {
	n := e.dev.Stats()["rcvd_pkts"]
	was := e.lastPkt
	e.lastPkt = n
	return n != was
}

// meet makes the TCP connection and exchanges the versions.
func (e *end) meet() error {
	if e.client {
		raw, err := e.host.Dial(e.ctx)
		if err != nil {
			return err
		}
		return e.greet(raw)
	}
	e.printWaiting()
	return e.host.Accept(e.ctx, e.greet)
}

func (e *end) greet(raw net.Conn) error {
	c := newConn(e.ctx, raw, e.cfg.Wait)
	theirs, err := c.exchange(e.client, formatVersion(), versionLen)
	if err == nil {
		_, e.own, err = parseVersion(theirs)
	}
	if err != nil {
		c.close()
		return err
	}
	e.conn = c
	return nil
}

// agree exchanges what both sides need to know before they allocate.
func (e *end) agree() error {
	number := func(mine int, what string, most int) (int, error) {
		b, err := e.conn.exchange(e.client, formatInt(mine), 4)
		if err != nil {
			return 0, err
		}
		theirs, err := parseInt(b, what, most)
		return max(mine, theirs), err
	}
	var err error
	if e.cycle, err = number(pageSize, "page size", maxCycle); err != nil {
		return err
	}
	if e.line, err = number(cacheLine, "cache line size", pageSize); err != nil {
		return err
	}
	if e.cfg.MTU == 0 {
		e.cfg.MTU = e.dev.ActiveMTU()
	}
	if e.cfg.MTU > e.dev.ActiveMTU() {
		return fmt.Errorf("-m is %d; the interface of %v carries at most %d", e.cfg.MTU, e.dev.Addr(), e.dev.ActiveMTU())
	}
	b, err := e.conn.exchange(e.client, formatMTU(e.cfg.MTU), 2)
	if err != nil {
		return err
	}
	theirs, err := parseMTU(b)
	if err != nil {
		return err
	}
	e.cfg.MTU = min(e.cfg.MTU, theirs)
	e.cfg.fit()
	e.seed = rand.Uint64()
	if e.own {
		return e.compareTerms()
	}
	return nil
}

func (e *end) compareTerms() error {
	c := &e.cfg
	mine := terms{
		Test: c.Test.String(), Connection: c.Connection.String(), Size: c.Size, All: c.All, Iters: c.Iters, Duration: c.Duration.String(),
		QPs: c.QPs, Bidirectional: c.Bidirectional, Atomic: c.AtomicOp.String(), Seed: e.seed,
	}
	if c.All {
		mine.Size = 0
	}
	var theirs terms
	if err := e.conn.exchangeNote(e.client, mine, &theirs); err != nil {
		return err
	}
	e.peerSeed = theirs.Seed
	return mine.differ(theirs)
}

// create makes the memory and the queue pairs.
func (e *end) create() (err error) {
	c := &e.cfg
	e.area = e.roundUp(max(c.largest()+c.grh(), e.cycle))
	areas := 2 * c.QPs
	if c.Test.Latency && c.Test.Verb == Write {
		areas++ // spare
	}
	if need := int64(areas) * int64(e.area); need > maxMemory || need > math.MaxInt {
		return fmt.Errorf("-q %d queue pairs with messages of %d bytes need %d MiB of memory, more than %d: use fewer or smaller ones",
			c.QPs, c.largest(), need>>20, int64(maxMemory)>>20)
	}
	e.pd = e.dev.AllocPD()
	access := mr.LocalWrite | mr.RemoteWrite | e.access()
	if e.mem, err = e.pd.RegisterMR(pageAligned(areas*e.area), access); err != nil {
		return err
	}
	if e.cq, err = e.dev.CreateCQ(c.QPs*(c.TxDepth+c.RxDepth) + 64); err != nil {
		return fmt.Errorf("%w; lower -q, -t or -r", err)
	}
	if c.SRQ {
		if e.srq, err = e.pd.CreateSRQ(c.QPs*c.RxDepth, 1); err != nil {
			return fmt.Errorf("%w; lower -q or -r", err)
		}
	}
	for i := range c.QPs {
		l, err := e.createLane(i)
		if err != nil {
			return err
		}
		e.lanes = append(e.lanes, l)
	}
	e.fillMemory()
	return nil
}

// roundUp rounds up to whole cache lines, at least one.
func (e *end) roundUp(n int) int { return max(e.line, (n+e.line-1)/e.line*e.line) }

// pageAligned allocates memory that starts on a page, as the one of perftest does:
// where a message lies in its cache lines shows in the results.
func pageAligned(n int) []byte {
	b := make([]byte, n+pageSize)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) % pageSize)
	return b[skip : skip+n : skip+n]
}

// access is what the peer may do.
func (e *end) access() mr.Access {
	switch e.cfg.Test.Verb {
	case Write:
		return mr.RemoteWrite
	case Read:
		return mr.RemoteRead
	case Atomic:
		return mr.RemoteAtomic
	}
	return 0
}

// spareSends is room for requests outside of a measured run.
const spareSends = 2

func (e *end) createLane(i int) (*lane, error) {
	c := &e.cfg
	inline := -1
	if c.Inline > 0 {
		inline = c.Inline
	}
	q, err := e.pd.CreateQP(verbs.QPConfig{
		Type: c.Connection, SendCQ: e.cq, RecvCQ: e.cq, SRQ: e.srq,
		MaxSendWR: max(c.TxDepth, latencyDepth) + spareSends, MaxRecvWR: c.RxDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: inline,
	})
	if err != nil {
		return nil, err
	}
	return &lane{index: i, qp: q}, nil
}

// udQKey is the Q_Key of perftest's tools.
const udQKey = 0x11111111

// local is what this side tells of a lane.
func (e *end) local(l *lane) record {
	at := l.qp.Local()
	r := record{outReads: 1, qpn: at.QPN, psn: at.PSN, rkey: e.mem.Key(), vaddr: e.mem.Addr() + uint64(e.target(l.index)), gid: at.GID}
	if v := e.cfg.Test.Verb; v == Read || v == Atomic {
		r.outReads = e.cfg.Outs
	}
	return r
}

// introduce exchanges the records of all queue pairs.
func (e *end) introduce() error {
	for _, l := range e.lanes {
		b, err := e.conn.exchange(e.client, e.local(l).format(), recordLen)
		if err != nil {
			return err
		}
		if l.remote, err = parseRecord(b); err != nil {
			return err
		}
		if l.remote.gid.Is4() != e.dev.GID().Is4() {
			return fmt.Errorf("the peer's GID %v and ours, %v, are of two address families: choose with -x at the tool, -d here", l.remote.gid, e.dev.GID())
		}
	}
	return nil
}

// barrier returns when the peer has come to the same point.
func (e *end) barrier() error {
	_, err := e.conn.exchange(e.client, e.local(e.lanes[0]).format(), recordLen)
	return err
}

// connect brings all queue pairs to RTS.
func (e *end) connect() error {
	c := &e.cfg
	for _, l := range e.lanes {
		if c.Connection == qp.UD {
			l.av = qp.AddressVector{DGID: l.remote.gid, TrafficClass: c.TrafficClass, HopLimit: c.HopLimit}
			if err := l.qp.Activate(udQKey); err != nil {
				return err
			}
			continue
		}
		err := l.qp.Connect(verbs.Endpoint{GID: l.remote.gid, QPN: l.remote.qpn, PSN: l.remote.psn}, verbs.ConnectConfig{
			PathMTU: c.MTU, Access: e.access(), TrafficClass: c.TrafficClass, HopLimit: c.HopLimit,
			MaxRDAtomic: max(1, min(l.remote.outReads, qp.MaxRDAtomicLimit)), MaxDestRDAtomic: c.Outs,
			Timeout: c.Timeout, RetryCount: c.Retry,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sequence is the test from the first record to the last.
func (e *end) sequence() (err error) {
	switch t := e.cfg.Test; {
	case t.Verb == Send:
		err = e.sendTest()
	case t.Latency:
		err = e.latencyTest()
	default:
		err = e.bandwidthTest()
	}
	return err
}

// steps runs f after f until one fails.
func steps(fs ...func() error) error {
	for _, f := range fs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// sendTest is send_bw and send_lat: both sides take part and each reports what it
// saw.
func (e *end) sendTest() error {
	c := &e.cfg
	if err := steps(e.introduce, e.connect, e.barrier, e.introduce); err != nil {
		return err
	}
	e.printPeers()
	for _, size := range c.sizes() {
		f := e.newFlow(size)
		if err := f.postReceives(); err != nil {
			return err
		}
		if err := e.barrier(); err != nil {
			return err
		}
		if err := e.measure(f); err != nil {
			return err
		}
		if err := e.sendReport(); err != nil {
			return err
		}
	}
	return steps(e.verify, e.barrier)
}

// sendReport is what follows the run of one size.
func (e *end) sendReport() error {
	c := &e.cfg
	if c.Bidirectional && c.Duration == 0 {
		if err := e.addPeer(); err != nil {
			return err
		}
	}
	e.printRow(e.lastRow())
	if c.All && !c.Test.Latency {
		return e.barrier()
	}
	return nil
}

// latencyTest is write_lat, read_lat and atomic_lat.
func (e *end) latencyTest() error {
	c := &e.cfg
	// The first record of all is a barrier.
	if err := steps(e.barrier, e.introduce, e.connect, e.introduce, e.barrier); err != nil {
		return err
	}
	e.printPeers()
	if c.requester(e.client) {
		if err := e.requestAll(nil); err != nil {
			return err
		}
	}
	if c.Test.Verb == Write {
		// The tools just go away now.
		if !e.own {
			e.linger()
			return nil
		}
		return e.verify()
	}
	return steps(e.verify, e.barrier)
}

// bandwidthTest is write_bw, read_bw and atomic_bw. Without -b the server only
// answers; what it prints is the client's.
func (e *end) bandwidthTest() error {
	c := &e.cfg
	if err := steps(e.introduce, e.connect, e.introduce, e.barrier); err != nil {
		return err
	}
	e.printPeers()
	switch {
	case c.Bidirectional:
		if err := e.requestAll(e.duplexRun); err != nil {
			return err
		}
	case e.client:
		if err := e.requestAll(nil); err != nil {
			return err
		}
		if err := steps(e.barrier, e.tellPeer); err != nil {
			return err
		}
	default:
		if err := e.serve(); err != nil {
			return err
		}
	}
	return steps(e.verify, e.barrier)
}

// requestAll runs all sizes as requester. around, if not nil, is called instead of
// the measurement, and has to make it.
func (e *end) requestAll(around func(f *flow) error) error {
	if err := e.lookBefore(); err != nil {
		return err
	}
	for _, size := range e.cfg.sizes() {
		f := e.newFlow(size)
		run := e.measure
		if around != nil {
			run = around
		}
		if err := run(f); err != nil {
			return err
		}
		e.printRow(e.lastRow())
	}
	return e.lookAfter()
}

// duplexRun runs one size with both sides as requesters.
func (e *end) duplexRun(f *flow) error {
	if err := e.barrier(); err != nil {
		return err
	}
	if err := e.measure(f); err != nil {
		return err
	}
	if e.cfg.All {
		if err := e.barrier(); err != nil {
			return err
		}
	}
	return e.addPeer()
}

// serve waits while the client runs, and takes its result for the report.
func (e *end) serve() error {
	used := cpuTime()
	if err := e.attend(e.barrier); err != nil {
		return err
	}
	spent := cpuTime().since(used)
	theirs, err := e.exchangeSummary(summary{})
	if err != nil {
		return err
	}
	e.rows = append(e.rows, e.servedRow(theirs, spent))
	e.printRow(e.lastRow())
	return e.checkAdded(theirs.iterations)
}

// attend runs f, which waits for the peer's requests to end. Without -e this side
// polls meanwhile, as the peer does: no packet has to wake anybody up.
func (e *end) attend(f func() error) error {
	if e.cfg.Events {
		return f()
	}
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	for polls := 1; ; polls++ {
		if !e.dev.Poll() && polls%spins == 0 {
			runtime.Gosched()
		}
		select {
		case err := <-ended:
			return err
		default:
		}
	}
}

// exchangeSummary tells the peer a result and returns its own.
func (e *end) exchangeSummary(mine summary) (summary, error) {
	var theirs [5][]byte
	for i, b := range mine.fields() {
		var err error
		if theirs[i], err = e.conn.exchange(e.client, b, 8); err != nil {
			return summary{}, err
		}
	}
	return parseSummary(theirs), nil
}

// tellPeer tells a passive server the result.
func (e *end) tellPeer() error {
	_, err := e.exchangeSummary(e.summary(e.lastRow()))
	return err
}

// addPeer exchanges results with the other requester and makes the row their sum.
func (e *end) addPeer() error {
	row := e.lastRow()
	theirs, err := e.exchangeSummary(e.summary(row))
	if err != nil {
		return err
	}
	served := 0.0
	if e.cfg.Test.Verb != Send {
		served = float64(theirs.iterations) // a SEND has its completion here
	}
	row.addRate(e.rateOf(theirs), served)
	return nil
}

func (e *end) lastRow() *Row { return &e.rows[len(e.rows)-1] }

// lingerTime is as long as a peer with the standard's timeout of 67 ms takes for
// its seven retries.
const lingerTime = 500 * time.Millisecond

// linger keeps acknowledging the peer's last message: if our acknowledgement of it
// was lost, the peer would otherwise find nobody and fail.
func (e *end) linger() {
	select {
	case <-e.ctx.Done():
	case <-time.After(lingerTime):
	}
}
