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
	// Ring receives without system calls, with the right to; see udp.Config.
	Ring bool
	// NoGSO and NoGRO leave the kernel's segmentation offload unused; see
	// udp.Config.
	NoGSO, NoGRO bool
	// SrcPorts is how many UDP source ports the queue pairs are spread over;
	// see udp.Config.
	SrcPorts int
	// Shards is over how many sockets and event loops the queue pairs are
	// spread, rounded up to a power of two; default 1, at most 64. Queue
	// pairs with one completion queue are in one shard. On Linux only.
	Shards int
	// Spin is how long an event loop or a waiting caller that has run dry looks
	// for packets before it goes to sleep, as long as the gaps between them are
	// shorter than that. It saves the time of waking up and costs a processor
	// that may have something else to do; default DefaultSpin, none if negative
	// or where there is only one processor. Callers that poll spin anyway.
	Spin time.Duration
	// NoWatch leaves changes of the interface and the address unnoticed: see
	// Device.QueryPort.
	NoWatch bool
	// Congestion makes the controller of each queue pair; nil is the one that
	// CongestionName names, fitted to the receive buffer. A queue pair may have
	// its own: see QPConfig.
	Congestion congestion.Factory
	// CongestionName is a name that congestion.ByName takes; "" is the default
	// there. LineRate is the rate of the port for it, if it has to know.
	CongestionName string
	LineRate       congestion.BitRate
	// CNP says when packets with the congestion mark are answered; the zero value
	// is what goes with CongestionName, see congestion.NotificationFor.
	CNP congestion.NotificationPoint
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

	shards []*shard // a power of two of them; QPN modulo their number is the place
	nextCQ atomic.Uint32

	keys *mr.Table
	stop chan struct{}

	// The port; all but the first and the last belong to the owner of all
	// shards.
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
	// A wrong name is found before anything is opened.
	if _, err := congestion.ByName(c.CongestionName, congestion.Options{}); err != nil {
		return nil, err
	}
	links, err := c.open()
	if err != nil {
		return nil, err
	}
	info := links[0].Info()
	d := &Device{
		cfg: c, info: info, gid: info.Addr.WithZone(""), start: time.Now(),
		stop: make(chan struct{}), eventReady: make(chan struct{}, 1), watchEnded: make(chan struct{}),
	}
	for i, l := range links {
		d.shards = append(d.shards, newShard(d, i, l))
	}
	d.startWatch()
	if c.Polled || d.watch == nil {
		close(d.watchEnded)
	}
	random := newRandom()
	d.keys = mr.NewTable(c.MaxMR, random)
	if c.CNP == (congestion.NotificationPoint{}) {
		d.cfg.CNP = congestion.NotificationFor(c.CongestionName)
	}
	if d.cfg.Congestion == nil {
		d.cfg.Congestion, _ = d.CongestionByName(c.CongestionName)
	}
	for _, s := range d.shards {
		if err := d.startShard(s, random); err != nil {
			if !c.Polled && d.watch != nil {
				close(d.watchEnded) // it has not begun
			}
			_ = d.Close()
			return nil, err
		}
	}
	if !c.Polled && d.watch != nil {
		go d.watchLoop(d.watch)
	}
	return d, nil
}

// open opens the links of the shards, with what taps and damages them.
func (c *Config) open() ([]udp.Link, error) {
	links := []udp.Link{c.Link}
	if c.Link == nil {
		var err error
		links, err = udp.OpenShards(udp.Config{
			Addr: c.Addr, RecvBuffer: c.RecvBuffer, SendBuffer: c.SendBuffer, Portable: c.Portable,
			Ring: c.Ring, NoGSO: c.NoGSO, NoGRO: c.NoGRO, SrcPorts: c.SrcPorts,
		}, c.Shards)
		if err != nil {
			return nil, err
		}
	}
	tap := c.Tap
	if tap != nil && len(links) > 1 {
		tap = oneAtATime(tap)
	}
	for i, l := range links {
		if tap != nil {
			l = udp.WithTap(l, tap)
		}
		faulty, err := udp.WithFaults(l, udp.FaultConfig{Rules: c.Faults, Seed: c.FaultSeed + uint64(i)})
		if err != nil {
			for _, l := range links {
				if c.Link == nil {
					_ = l.Close()
				}
			}
			return nil, err
		}
		links[i] = faulty
	}
	return links, nil
}

// oneAtATime makes a tap safe for several links.
func oneAtATime(tap udp.Tap) udp.Tap {
	var mu sync.Mutex
	return func(at time.Time, sent bool, datagram []byte) {
		mu.Lock()
		defer mu.Unlock()
		tap(at, sent, datagram)
	}
}

func (d *Device) startShard(s *shard, random func() uint32) (err error) {
	s.strays.shards = len(d.shards)
	s.engine = transport.New(transport.Config{
		Local: d.gid, SrcPorts: s.link.Info().SrcPorts, Random: random, Congestion: d.cfg.Congestion, CNP: d.cfg.CNP,
		OnEvent: d.raise, MaxQP: d.cfg.MaxQP, PortMTU: d.ActiveMTU(), Recovery: d.cfg.Recovery, PeerWindow: peerWindow(s.link.Info()), Shard: s.index, Shards: len(d.shards),
	})
	if d.cfg.Polled {
		return nil
	}
	if s.guard, err = newGuard(); err != nil {
		return fmt.Errorf("verbs: cannot create a timer: %w", err)
	}
	s.loopEnded = make(chan struct{})
	go s.loop()
	return nil
}

// peerWindow returns how many packets a peer's socket buffer takes, if it is as
// large as our own: a kernel accounts for about twice the payload of a datagram
// and 1 KiB more. 0 is no limit.
func peerWindow(i udp.Info) int { return i.RecvBuffer / (2*4096 + 1024) }

// CongestionByName returns the congestion controller with a name, fitted to the
// device's receive buffer and line rate, for QPConfig.Congestion. A wrong name's
// error tells the right ones.
func (d *Device) CongestionByName(name string) (congestion.Factory, error) {
	// A link that does not tell its buffer gets the smallest windows.
	return congestion.ByName(name, congestion.Options{Buffer: max(1, d.info.RecvBuffer), LineRate: d.cfg.LineRate})
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
	if err := d.own(d.shut); err != nil {
		return err
	}
	for _, s := range d.shards {
		s.endLoop()
	}
	d.stopWatch()
	var err error
	for _, s := range d.shards {
		for !s.hold() { // until a caller that waits has left
			s.link.Wake()
			time.Sleep(closeStep)
		}
		s.lock() // let a poller that is inside finish
		err = errors.Join(err, s.link.Close())
		s.mu.Unlock()
	}
	return err
}

// endLoop wakes the loop until it has ended.
func (s *shard) endLoop() {
	for s.loopEnded != nil {
		s.link.Wake()
		select {
		case <-s.loopEnded:
			return
		case <-time.After(closeStep):
		}
	}
}

// closeStep is how long Close waits before it looks again.
const closeStep = 50 * time.Microsecond

// shut marks the device closed; the caller owns all shards.
func (d *Device) shut() {
	close(d.stop) // before a loop wakes: see takeOver
	for _, s := range d.shards {
		s.transmit(d.now()) // acknowledgements that were held back
		s.closed = true
		if s.guard != nil {
			s.guard.arm(1)
		}
	}
}

// closing reports whether Close was called.
func (d *Device) closing() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}

// now returns the device's time.
func (d *Device) now() time.Duration { return time.Since(d.start) }

// Poll does one round of a polled device's work: receive, timers, send. It is
// for a peer that has nothing to poll, such as the target of RDMA WRITEs. It
// reports whether it found anything to do, and never blocks. Every 100 ms it
// also looks for news of the interface and the address.
func (d *Device) Poll() bool {
	busy := false
	for _, s := range d.shards {
		busy = s.poll(nil) || busy
	}
	return busy
}

// Sync returns when all packets handled before the call have taken effect: the
// caller sees what they wrote to registered memory.
func (d *Device) Sync() { d.own(func() {}) }

// own runs f as the owner of all shards, unless the device is closed.
func (d *Device) own(f func()) (err error) {
	d.ownAlways(func() {
		if d.shards[0].closed {
			err = ErrClosed
			return
		}
		f()
	})
	return err
}

// ownAlways is own on a closed device, too.
func (d *Device) ownAlways(f func()) {
	for _, s := range d.shards {
		s.lock()
		defer s.mu.Unlock()
	}
	f()
}

// shardOf returns the shard that a queue pair number belongs to; nil for
// multicast, which every shard gets.
func (d *Device) shardOf(n bth.QPN) *shard {
	if n == bth.QPNMulticast {
		return nil
	}
	return d.shards[int(n)&(len(d.shards)-1)]
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
	signal(d.eventReady)
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

// block waits for a signal, ctx or Close; a polled device is driven meanwhile.
func (d *Device) block(ctx context.Context, ready <-chan struct{}) error {
	if d.cfg.Polled && len(d.shards) == 1 {
		return d.shards[0].wait(ctx, ready)
	}
	for d.cfg.Polled && len(ready) == 0 && ctx.Err() == nil && !d.isClosed() {
		if !d.Poll() {
			time.Sleep(pollPause)
		}
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-d.stop:
		return ErrClosed
	}
}

// pollPause is how long a wait on several shards that have nothing to do rests.
const pollPause = 20 * time.Microsecond

func (d *Device) isClosed() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}

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
	m := make(map[string]uint64)
	add := func(name string, v uint64) { m[name] += v }
	_ = d.own(func() {
		for _, s := range d.shards {
			s.engine.Counters.Each(add)
			s.link.Counters(add)
			add("drop_stray_queue_full", s.strays.lost)
			add("link_rx_strays", s.strays.moved)
		}
		d.portStats(add)
	})
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
