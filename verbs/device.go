package verbs

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/udp"
)

// Config describes a device. The zero value opens the host's first usable
// address.
type Config struct {
	// Addr is the local address, which is the device's GID. The zero value
	// takes the first address that `roce info` lists: not loopback if possible.
	Addr netip.Addr
	// Link, if set, is used instead of a socket. The device closes it.
	Link udp.Link
	// Polled starts no goroutine: see the package comment.
	Polled bool
	// MaxQP, MaxMR and MaxCQE bound what can be created: 65536 queue pairs,
	// 2^20 memory regions, 2^22 completions per queue.
	MaxQP, MaxMR, MaxCQE int
	// RecvBuffer and SendBuffer are the socket buffers to ask for, in bytes;
	// see udp.Config.
	RecvBuffer, SendBuffer int
	// Portable uses the portable socket even where a faster one exists.
	Portable bool
	// NoWatch leaves changes of the interface and the address unnoticed: see
	// Device.QueryPort.
	NoWatch bool
	// Congestion makes the controller of each queue pair; nil is a window
	// that fits the receive buffer and shrinks under loss (congestion.AIMD).
	Congestion congestion.Factory
	// Recovery says how lost packets are repaired; the zero value does
	// everything, also what only another device of this package understands.
	Recovery transport.Recovery
	// Tap, if set, is shown every packet sent and received.
	Tap udp.Tap
	// Faults damage packets on purpose, sent and received, to see how a peer
	// or an application takes it; see udp.ParseFaults. FaultSeed decides
	// where chance does.
	Faults    []udp.FaultRule
	FaultSeed uint64
}

// The limits of Config.
const (
	DefaultMaxQP = 1 << 16
	DefaultMaxMR = 1 << 20
)

// ErrClosed is returned by calls on a closed device; it is net.ErrClosed's
// counterpart for verbs.
var ErrClosed = errors.New("verbs: the device is closed")

// Device is an open RoCEv2 device with one port and one GID.
type Device struct {
	cfg   Config
	gid   netip.Addr
	info  udp.Info
	start time.Time

	mu     sync.Mutex // whoever holds it owns link, engine and burst
	link   udp.Link
	engine *transport.Engine
	burst  *bth.Burst
	closed bool

	keys      *mr.Table
	sleeping  atomic.Int64 // until when the loop sleeps, as a Duration; 0 awake
	loopEnded chan struct{}
	stop      chan struct{}

	// The port; all but the first and the last belong to the device's owner.
	activeMTU   atomic.Int64
	port        *port                                // nil if never watched
	watch       *watch                               // nil if not watched
	unwatched   string                               // why not
	watchAt     time.Duration                        // when a polled device looks next
	portChanges [transport.EventGIDChange + 1]uint64 // by event
	lost        *AddressError
	watchEnded  chan struct{}

	evMu       sync.Mutex
	events     []transport.Event
	eventReady chan struct{}
	eventsLost uint64
}

// maxEvents bounds the queue of asynchronous events that nobody reads.
const maxEvents = 1024

// sendBurst is how many packets are sent at a time.
const sendBurst = 64

// Open opens a device. Close it to release the port.
func Open(c Config) (*Device, error) {
	c.fill()
	if c.Link == nil && !c.Addr.IsValid() {
		a, err := DefaultAddr()
		if err != nil {
			return nil, err
		}
		c.Addr = a
	}
	link := c.Link
	if link == nil {
		var err error
		link, err = udp.Open(udp.Config{Addr: c.Addr, RecvBuffer: c.RecvBuffer, SendBuffer: c.SendBuffer, Portable: c.Portable})
		if err != nil {
			return nil, err
		}
	}
	info := link.Info()
	if c.Tap != nil {
		link = udp.WithTap(link, c.Tap)
	}
	faulty, err := udp.WithFaults(link, udp.FaultConfig{Rules: c.Faults, Seed: c.FaultSeed})
	if err != nil {
		if c.Link == nil {
			_ = link.Close()
		}
		return nil, err
	}
	link = faulty
	d := &Device{
		cfg: c, info: info, gid: info.Addr.WithZone(""), start: time.Now(),
		link: link, burst: bth.NewBurst(sendBurst, 4096),
		stop: make(chan struct{}), loopEnded: make(chan struct{}), eventReady: make(chan struct{}, 1),
		watchEnded: make(chan struct{}),
	}
	d.startWatch()
	random := newRandom()
	d.keys = mr.NewTable(c.MaxMR, random)
	congest := c.Congestion
	if congest == nil {
		congest = congestion.ForBuffer(info.RecvBuffer)
	}
	d.engine = transport.New(transport.Config{
		Local: d.gid, SrcPort: info.SrcPort, Random: random, Congestion: congest, OnEvent: d.raise, MaxQP: c.MaxQP, PortMTU: d.ActiveMTU(), Recovery: c.Recovery,
	})
	if c.Polled {
		close(d.loopEnded)
	} else {
		go d.loop()
	}
	if c.Polled || d.watch == nil {
		close(d.watchEnded)
	} else {
		go d.watchLoop(d.watch)
	}
	return d, nil
}

func (c *Config) fill() {
	def := func(v *int, d int) {
		if *v <= 0 || *v > d {
			*v = d
		}
	}
	def(&c.MaxQP, DefaultMaxQP)
	def(&c.MaxMR, DefaultMaxMR)
	def(&c.MaxCQE, cq.MaxCapacity)
}

// newRandom returns a cryptographic source for keys, queue pair numbers and
// PSNs: a peer that could predict them could forge packets.
func newRandom() func() uint32 {
	var seed [32]byte
	if _, err := crand.Read(seed[:]); err != nil {
		panic(err) // crypto/rand never fails
	}
	var mu sync.Mutex
	r := rand.NewChaCha8(seed)
	return func() uint32 {
		mu.Lock()
		defer mu.Unlock()
		return uint32(r.Uint64())
	}
}

// Close stops the device: queue pairs vanish without completions, waiting calls
// return ErrClosed, the port is free afterwards. Memory registered with the
// device stays the caller's.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return ErrClosed
	}
	d.closed = true
	close(d.stop)
	d.mu.Unlock()
	d.link.Wake()
	<-d.loopEnded
	d.stopWatch()
	d.mu.Lock() // let a poller that is inside finish
	defer d.mu.Unlock()
	return d.link.Close()
}

// now returns the device's time.
func (d *Device) now() time.Duration { return time.Since(d.start) }

// loop drives the device until Close.
func (d *Device) loop() {
	defer close(d.loopEnded)
	for {
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			return
		}
		busy := d.drive()
		timeout := d.idleFor()
		if !busy {
			d.sleeping.Store(int64(d.now() + timeout))
		}
		d.mu.Unlock()
		if !busy {
			d.link.Wait(timeout)
			d.sleeping.Store(0)
		}
	}
}

// maxIdle bounds one sleep of the loop, to have one kind of timeout only.
const maxIdle = time.Hour

// idleFor returns how long nothing has to be done unless packets arrive.
func (d *Device) idleFor() time.Duration {
	if d.engine.Pending() {
		return 0
	}
	at, ok := d.engine.Deadline()
	if !ok {
		return maxIdle
	}
	return max(0, min(maxIdle, at-d.now()))
}

// drive does one round of work: a burst received, due timers, bursts sent. It
// reports whether there was anything to receive or more is to be sent. The
// caller owns the device.
func (d *Device) drive() (busy bool) {
	now := d.now()
	in := d.link.Receive()
	for i := range in {
		d.engine.Receive(now, &in[i])
	}
	if at, ok := d.engine.Deadline(); ok && at <= now {
		d.engine.Timers(now)
	}
	return !d.transmit(now) || len(in) > 0
}

// transmitRounds bounds the bursts sent without looking at what arrives.
const transmitRounds = 4

// transmit sends what the engine has; it returns false when more is left.
func (d *Device) transmit(now time.Duration) (drained bool) {
	for range transmitRounds {
		if !d.engine.Pending() {
			return true
		}
		d.burst.Reset()
		d.engine.Transmit(now, d.burst)
		if len(d.burst.Frames()) > 0 {
			d.link.Send(d.burst)
		}
	}
	return !d.engine.Pending()
}

// after finishes a call that gave the engine work: send it now, and wake the
// loop if it would sleep too long. The caller owns the device.
func (d *Device) after(now time.Duration) {
	drained := d.transmit(now)
	if d.cfg.Polled {
		return
	}
	until := time.Duration(d.sleeping.Load())
	if until == 0 {
		return
	}
	if at, ok := d.engine.Deadline(); !drained || ok && at < until {
		d.sleeping.Store(0)
		d.link.Wake()
	}
}

// Poll does one round of a polled device's work: receive, timers, send. It is
// for a peer that has nothing to poll, such as the target of RDMA WRITEs. It
// reports whether it found anything to do, and never blocks. Every 100 ms it
// also looks for news of the interface and the address.
func (d *Device) Poll() bool {
	if !d.mu.TryLock() {
		return true // somebody else is at it
	}
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.pollWatch()
	return d.drive()
}

// waitPolled blocks until packets arrive or a timer is due, at most for limit.
func (d *Device) waitPolled(limit time.Duration) {
	d.mu.Lock()
	timeout, closed := min(limit, d.idleFor()), d.closed
	d.mu.Unlock()
	if !closed && timeout > 0 {
		d.link.Wait(timeout)
	}
}

// Sync returns when all packets handled before the call have taken effect: the
// caller sees what they wrote to registered memory.
func (d *Device) Sync() {
	d.mu.Lock()
	defer d.mu.Unlock()
}

// raise queues an asynchronous event. The engine calls it.
func (d *Device) raise(e transport.Event) {
	d.evMu.Lock()
	if len(d.events) < maxEvents {
		d.events = append(d.events, e)
	} else {
		d.eventsLost++
	}
	d.evMu.Unlock()
	select {
	case d.eventReady <- struct{}{}:
	default:
	}
}

// Event returns the next asynchronous event. It blocks until there is one, ctx
// is done, or the device is closed. At most 1024 wait; more are counted as lost.
func (d *Device) Event(ctx context.Context) (transport.Event, error) {
	for {
		d.evMu.Lock()
		if len(d.events) > 0 {
			e := d.events[0]
			d.events = d.events[1:]
			more := len(d.events) > 0
			d.evMu.Unlock()
			if more {
				signal(d.eventReady)
			}
			return e, nil
		}
		d.evMu.Unlock()
		if err := d.block(ctx, d.eventReady); err != nil {
			return transport.Event{}, err
		}
	}
}

// block waits for a signal; a polled device is driven meanwhile.
func (d *Device) block(ctx context.Context, ready <-chan struct{}) error {
	if !d.cfg.Polled {
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.stop:
			return ErrClosed
		}
	}
	for {
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.stop:
			return ErrClosed
		default:
		}
		if !d.Poll() {
			d.waitPolled(pollSlice)
		}
	}
}

// pollSlice bounds how long a polled wait ignores its context.
const pollSlice = time.Millisecond

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Addr returns the device's address, with zone if it is link-local.
func (d *Device) Addr() netip.Addr { return d.info.Addr }

// GID returns the device's GID, which is its IP address.
func (d *Device) GID() netip.Addr { return d.gid }

// LinkInfo describes the link: buffers and the kind of I/O.
func (d *Device) LinkInfo() udp.Info { return d.info }

// ActiveMTU returns the largest path MTU that the device's interface carries,
// in bytes of payload.
func (d *Device) ActiveMTU() int { return int(d.activeMTU.Load()) }

// Stats returns all counters by name.
func (d *Device) Stats() map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := make(map[string]uint64)
	put := func(name string, v uint64) { m[name] = v }
	d.engine.Counters.Each(put)
	d.link.Counters(put)
	d.portStats(put)
	d.evMu.Lock()
	m["events_lost"] = d.eventsLost
	d.evMu.Unlock()
	return m
}

// OpError is an error of a call on an object of the device.
type OpError struct {
	Op  string  // the verb, e.g. "post send"
	QPN bth.QPN // of the queue pair, 0 if none
	Err error
}

// Error implements error.
func (e *OpError) Error() string {
	if e.QPN == 0 {
		return fmt.Sprintf("verbs: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("verbs: %s on QP 0x%06x: %v", e.Op, uint32(e.QPN), e.Err)
}

// Unwrap returns the cause, to be compared with the errors of qp and mr.
func (e *OpError) Unwrap() error { return e.Err }
