package transport_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// forgetful is a READ responder as rxe has been seen to be. It answers one request
// after the other, in no hurry, and stands still now and then; it reports a gap
// once; and of a READ that is asked for again it forgets what lies before the start
// of that, and drops requests for more than it remembers without a word.
type forgetful struct {
	s   *script
	rng *rand.Rand
	forgetfulCase
	expect  bth.PSN
	told    bool // of the gap
	kept    []keptRead
	busy    time.Duration // until then
	under   []underWay
	refused int // requests dropped without a word
	answers int // packets
}

type forgetfulCase struct {
	loss   float64       // each way
	packet time.Duration // to make an answer
	stalls float64       // share of the requests before which it stands still
	stall  time.Duration
}

type keptRead struct {
	first    bth.PSN
	psns     int
	from, to uint64
}

// underWay is a packet on its way, to the engine or to the peer.
type underWay struct {
	at     time.Duration
	engine bool
	p      bth.Packet
}

const (
	forgetfulDelay   = 50 * time.Microsecond // one way
	forgetfulPackets = 16                    // of a message
)

func (f *forgetful) send(at time.Duration, engine bool, p bth.Packet) {
	if f.rng.Float64() >= f.loss {
		f.under = append(f.under, underWay{at + forgetfulDelay, engine, p})
	}
}

// take answers a request.
func (f *forgetful) take(p *bth.Packet) {
	if f.busy = max(f.busy, f.s.now); f.rng.Float64() < f.stalls {
		f.busy += f.stall
	}
	n := (int(p.RETH.Length) + f.s.mtu - 1) / f.s.mtu
	switch ahead := p.PSN.Sub(f.expect); {
	case ahead > 0 && !f.told:
		f.told = true
		f.send(f.busy, true, f.s.nak(f.expect.Sub(f.s.psn(0)), bth.NAKSequence))
	case ahead > 0:
	case ahead == 0:
		f.told = false
		f.expect = f.expect.Add(n)
		f.kept = append(f.kept, keptRead{p.PSN, n, p.RETH.VA, p.RETH.VA + uint64(p.RETH.Length)})
		f.answer(p, n, p.PSN)
	default:
		f.again(p, n)
	}
}

// again answers a request that has come before.
func (f *forgetful) again(p *bth.Packet, n int) {
	for i := range f.kept {
		k := &f.kept[len(f.kept)-1-i]
		if !p.PSN.InWindow(k.first, k.psns) {
			continue
		}
		if p.RETH.VA < k.from || p.RETH.VA+uint64(p.RETH.Length) > k.to {
			break
		}
		k.from = p.RETH.VA
		f.answer(p, n, k.first)
		return
	}
	f.refused++
}

func (f *forgetful) answer(p *bth.Packet, n int, first bth.PSN) {
	off := int(p.RETH.VA - remoteVA)
	l := f.s.respond(p.PSN.Sub(f.s.psn(0)), f.s.data(memLen/2+off, int(p.RETH.Length)))
	for i := range l {
		if i == 0 && p.PSN != first { // as rxe does
			l[i].Opcode = map[bool]bth.Opcode{true: bth.ReadRespLast, false: bth.ReadRespMiddle}[n == 1]
		}
		f.busy += f.packet
		f.answers++
		f.send(f.busy, true, l[i])
	}
}

// step moves on to the next thing that happens.
func (f *forgetful) step() {
	s := f.s
	s.drain()
	for _, p := range s.sent {
		f.send(s.now, false, p)
	}
	s.sent = nil
	next := -1
	for i, u := range f.under {
		if next < 0 || u.at < f.under[next].at {
			next = i
		}
	}
	if at, ok := s.e.Deadline(); ok && (next < 0 || at < f.under[next].at) {
		s.now = max(s.now, at)
		s.e.Timers(s.now)
		return
	}
	if next < 0 {
		s.Fatal("nothing moves any more")
	}
	u := f.under[next]
	f.under = append(f.under[:next], f.under[next+1:]...)
	if s.now = max(s.now, u.at); u.engine {
		s.hear(u.p)
	} else {
		f.take(&u.p)
	}
}

// read reads n messages, 6 at a time, and returns how long that took.
func (f *forgetful) read(n int) time.Duration {
	const message, queued = forgetfulPackets * 256, 6
	s := f.s
	start := s.now
	for posted, done := 0, 0; done < n; f.step() {
		for ; posted < min(n, done+queued); posted++ {
			off := posted % queued * message
			s.postRead(uint64(posted), off, message, func(wr *qp.SendWR) { wr.RemoteAddr += uint64(off) })
		}
		for s.poll(); len(s.sendDone) > 0; done++ {
			s.wantSent(uint64(done), cq.Success)
			off := done % queued * message
			if string(s.data(off, message)) != string(s.data(memLen/2+off, message)) {
				s.Fatalf("message %d has wrong bytes", done)
			}
			clear(s.data(off, message))
		}
	}
	return s.now - start
}

// forgetfulCases are what the guests of test/rxe have shown: a fast peer, an emulated
// one, and one that stands still for longer than the local ACK timeout.
var forgetfulCases = []forgetfulCase{
	{0, 20 * time.Microsecond, .01, 12 * time.Millisecond},
	{.03, 20 * time.Microsecond, .01, 12 * time.Millisecond},
	{.001, 150 * time.Microsecond, .1, 8 * time.Millisecond},
	{.01, 150 * time.Microsecond, .1, 8 * time.Millisecond},
	{.03, 150 * time.Microsecond, .1, 8 * time.Millisecond},
	{0, 150 * time.Microsecond, .05, 20 * time.Millisecond},
	{.03, 150 * time.Microsecond, .05, 80 * time.Millisecond},
}

// Whatever such a peer and the network do, READs succeed; nothing is asked for that
// the peer has forgotten, little that it need not send, and no loss takes a local ACK
// timeout.
func TestRequesterReadsFromAForgetfulPeer(t *testing.T) {
	const messages = 400
	for _, c := range forgetfulCases {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("loss=%v/packet=%v/stall=%v/seed=%d", c.loss, c.packet, c.stall, seed), func(t *testing.T) {
				s := newScript(t, setup{attr: func(a *qp.Attr) { a.MaxRDAtomic = 16 }}, 0xFFF000)
				f := &forgetful{s: s, rng: rand.New(rand.NewPCG(seed, 1)), forgetfulCase: c, expect: s.psn(0)}
				took := f.read(messages)
				n := &s.e.Counters
				t.Logf("%v, %d answers, %d requests refused, %d early timeouts, %d local ACK timeouts, %d requests repeated",
					took, f.answers, f.refused, n[transport.EarlyTimeout], n[transport.LocalAckTimeout], n[transport.RetransmittedPkts])
				if f.refused != 0 {
					t.Errorf("%d requests for what the peer has forgotten", f.refused)
				}
				if most := messages * forgetfulPackets * 115 / 100; f.answers > most {
					t.Errorf("the peer had to send %d packets, want at most %d", f.answers, most)
				}
				if c.stall < s.timeout() && n[transport.LocalAckTimeout] != 0 {
					t.Errorf("%d local ACK timeouts", n[transport.LocalAckTimeout])
				}
			})
		}
	}
}
