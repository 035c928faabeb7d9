package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// FuzzPair takes its input for a program of operations, faults and time steps
// for two hosts, as program.step explains, and checks what always holds: no
// panic, no byte changed outside the regions, each work request completes once
// and in order, errors only where the program asks for trouble, and memory as
// the model has it when all has succeeded.
func FuzzPair(f *testing.F) {
	post := func(side, shape byte) []byte { return []byte{side, shape, shape * 3} }
	f.Add([]byte{})
	f.Add(bytes.Join([][]byte{{1, 2, 3, 4}, post(0, 1), post(1, 2), post(0, 3), post(0, 4), {iRun, 200}}, nil))
	f.Add(bytes.Join([][]byte{{0xFF, 0, 1, 1}, post(0, 9), {iDrop, 0xAA}, post(1, 8), {iDrop, 0x0F}, {iRun, 9}, {iGhost, 3}, {iGhost, 0}, {iRun, 255}}, nil))
	f.Add(bytes.Join([][]byte{{3, 3, 3, 3}, {iFaults, 40}, post(0, 5), post(0, 6), {iDrain, 0}, post(0, 7), {iRun, 3}, {iDrain, 0}, post(1, 1)}, nil))
	f.Add(bytes.Join([][]byte{{9, 1, 0, 200}, post(0, 5), post(1, 6), {iRun, 1}, {iError, 1}, post(0, 7), post(1, 3)}, nil))
	f.Add(bytes.Join([][]byte{{4, 4, 4, 4}, post(0, 1), post(0, 2), post(0, 3), {iDrop, 0xFF}, {iDrop, 0xFF}, {iDrop, 0xFF}, {iPause, 0x81}, {iRun, 255}}, nil))
	f.Fuzz(func(t *testing.T, input []byte) {
		p := newProgram(input)
		for range maxSteps {
			if !p.step() {
				break
			}
		}
		if err := p.finish(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRandomPrograms runs programs that nobody chose.
func TestRandomPrograms(t *testing.T) {
	n := 2000
	if testing.Short() {
		n = 300
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 0xF0))
		input := make([]byte, r.IntN(4*maxSteps))
		for i := range input {
			input[i] = byte(r.Uint32())
			if r.IntN(3) > 0 {
				input[i] &= 0x8F // posts are the better part of life
			}
		}
		p := newProgram(input)
		for range maxSteps {
			if !p.step() {
				break
			}
		}
		if err := p.finish(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// maxSteps bounds a program.
const maxSteps = 64

// The instructions are chosen by bits 4 to 6 of a byte; bit 7 is the side where
// that matters. Instructions below iDrop post.
const (
	iPost   = 0x00 // post the operation that follows from the next two bytes
	iDrop   = 0x10 // lose those of the next 8 packets whose bit is set
	iGhost  = 0x20 // deliver a packet of the past again
	iFaults = 0x30 // set the rates of loss, doubling, overtaking, corruption
	iRun    = 0x40 // let time pass
	iDrain  = 0x50 // to SQD, or back to RTS
	iPause  = 0x60 // let a host stand still
	iError  = 0x70 // to ERR
)

// program is a run of FuzzPair.
type program struct {
	b      []byte
	n      *Net
	s      [2]*side
	drop   []bool
	past   []ghost // the packets sent last
	failed bool    // a side went to ERR on purpose
}

type ghost struct {
	from  *Host
	bytes []byte
}

func newProgram(input []byte) *program {
	p := &program{b: input}
	c := [4]byte{p.next(), p.next(), p.next(), p.next()}
	p.n = New(uint64(c[0])|uint64(c[1])<<8, Faults{Delay: 20 * time.Microsecond, Jitter: 200 * time.Microsecond})
	for i := range p.s {
		p.s[i] = newSide(p.n, p.n.Rand(), 256<<(c[2]%5))
	}
	for i := range p.s {
		p.s[i].link.MaxRDAtomic = 1 + c[3]%p.s[1-i].link.MaxDestRDAtomic
	}
	if err := Connect(p.s[0].host, p.s[0].q, p.s[0].link, p.s[1].host, p.s[1].q, p.s[1].link); err != nil {
		panic(err)
	}
	p.n.Filter = func(from *Host, packet []byte) bool {
		p.past = append(p.past, ghost{from, bytes.Clone(packet)})
		if len(p.past) > 32 {
			p.past = p.past[1:]
		}
		if len(p.drop) == 0 {
			return true
		}
		lost := p.drop[0]
		p.drop = p.drop[1:]
		return !lost
	}
	return p
}

// next returns the next byte of the program, 0 after its end.
func (p *program) next() byte {
	if len(p.b) == 0 {
		return 0
	}
	v := p.b[0]
	p.b = p.b[1:]
	return v
}

// step executes one instruction; it returns false at the end.
func (p *program) step() bool {
	if len(p.b) == 0 {
		return false
	}
	in := p.next()
	side := in >> 7
	s, peer := p.s[side], p.s[1-side]
	switch arg := p.next(); in & 0x70 {
	case iPost:
		r := rand.New(rand.NewPCG(uint64(arg)<<8|uint64(p.next()), 0xF1))
		if len(s.sent) < maxOps {
			s.post(r, peer)
		}
	case iDrop:
		for bit := range 8 {
			p.drop = append(p.drop, arg>>bit&1 != 0)
		}
	case iGhost:
		p.haunt(int(arg))
	case iFaults:
		rate := func(shift int) float64 { return float64(arg>>shift&3) * 0.04 }
		p.n.Faults.Loss, p.n.Faults.Duplicate, p.n.Faults.Reorder, p.n.Faults.Corrupt = rate(0), rate(2), rate(4), rate(6)
	case iRun:
		if arg&1 != 0 && s.posted < maxOps {
			s.postRecv()
		}
		p.n.RunFor(time.Duration(arg) * 20 * time.Microsecond)
		p.poll()
	case iDrain:
		to := qp.SQD
		if s.q.State() == qp.SQD {
			to = qp.RTS
		}
		_ = s.host.Modify(p.n.Now(), s.q, &qp.Attr{State: to}, qp.AttrState) // refused while it drains, or in ERR
	case iPause:
		s.host.Pause(time.Duration(arg) * 50 * time.Microsecond)
	case iError:
		if arg&7 == 1 { // seldom, for it ends the good part
			p.failed = true
			_ = s.host.Modify(p.n.Now(), s.q, &qp.Attr{State: qp.Err}, qp.AttrState)
		}
	}
	return true
}

// haunt delivers a packet of the past once more.
func (p *program) haunt(i int) {
	if len(p.past) == 0 {
		return
	}
	g := p.past[i%len(p.past)]
	to := p.s[0].host
	if g.from == to {
		to = p.s[1].host
	}
	to.Receive(p.n.Now(), &bth.Datagram{Src: g.from.Addr, Dst: to.Addr, SrcPort: bth.Port, Data: bytes.Clone(g.bytes[:len(g.bytes)-bth.ICRCLen])})
}

func (p *program) poll() {
	for _, s := range p.s {
		s.poll()
	}
}

// finish runs on without faults until every request is answered and checks the
// outcome.
func (p *program) finish() error {
	p.n.Faults = Faults{Delay: 20 * time.Microsecond}
	err := p.n.Run(p.n.Now()+scheduleMs*time.Millisecond, func() bool {
		p.poll()
		done := true
		for _, s := range p.s {
			if s.q.State() == qp.SQD {
				_ = s.host.Modify(p.n.Now(), s.q, &qp.Attr{State: qp.RTS}, qp.AttrState)
			}
			for s.posted < s.want {
				s.postRecv()
			}
			done = done && s.q.SQ.Len() == 0
		}
		return done
	})
	if err != nil {
		return err
	}
	p.n.RunFor(time.Second)
	p.poll()
	good := true
	for i, s := range p.s {
		if err := s.checkQueues(); err != nil {
			return fmt.Errorf("side %d: %w", i, err)
		}
		if err := s.checkGuards(); err != nil {
			return fmt.Errorf("side %d: %w", i, err)
		}
		good = good && s.q.State() == qp.RTS
	}
	if !good {
		return p.explain()
	}
	for i, s := range p.s {
		if err := s.check(p.s[1-i]); err != nil {
			return fmt.Errorf("side %d: %w", i, err)
		}
	}
	return nil
}

// explain checks that a failure has a reason: ERR was asked for, or the network
// lost too much.
func (p *program) explain() error {
	for i, s := range p.s {
		for _, wc := range s.wcs {
			switch wc.Status {
			case cq.Success, cq.WRFlushErr, cq.RetryExcErr:
			default:
				return fmt.Errorf("side %d: work request %d completed with %v", i, wc.ID, wc.Status)
			}
		}
		for _, wc := range s.rcs {
			if wc.Status != cq.Success && wc.Status != cq.WRFlushErr {
				return fmt.Errorf("side %d: receive %d completed with %v", i, wc.ID, wc.Status)
			}
		}
	}
	return nil
}

// checkQueues checks that completions come once and in order: a request that
// fails is the first to do so, and what follows it is flushed.
func (s *side) checkQueues() error {
	next, failed := 0, false
	for _, x := range s.sent {
		have := next < len(s.wcs) && s.wcs[next].ID == x.id
		if !have {
			if x.signaled || failed {
				return fmt.Errorf("work request %d has no completion in its place: %+v", x.id, s.wcs)
			}
			continue
		}
		st := s.wcs[next].Status
		next++
		switch {
		case st == cq.Success && (failed || !x.signaled):
			return fmt.Errorf("work request %d succeeded: after a failure %v, signaled %v", x.id, failed, x.signaled)
		case st != cq.Success && failed && st != cq.WRFlushErr:
			return fmt.Errorf("work request %d completed with %v after a failure", x.id, st)
		}
		failed = failed || st != cq.Success
	}
	if next != len(s.wcs) {
		return fmt.Errorf("completion %+v belongs to nothing", s.wcs[next])
	}
	if failed && s.q.State() != qp.Err {
		return fmt.Errorf("a request failed in state %v", s.q.State())
	}
	failed = false
	for i, wc := range s.rcs {
		if wc.ID != uint64(i) || failed && wc.Status == cq.Success {
			return fmt.Errorf("receive completion %d is %+v", i, wc)
		}
		failed = failed || wc.Status != cq.Success
	}
	if s.q.State() == qp.Err && len(s.rcs) != s.posted {
		return fmt.Errorf("%d of %d receives completed in ERR", len(s.rcs), s.posted)
	}
	return nil
}

// checkGuards checks the bytes around the regions.
func (s *side) checkGuards() error {
	at := 0
	for _, l := range []int{targetLen, maxOps * slotLen, maxOps * recvLen, 0} {
		for _, b := range s.mem[at : at+guard] {
			if b != guardByte {
				return fmt.Errorf("a byte outside the regions, near %d, was changed", at)
			}
		}
		at += guard + l
	}
	return nil
}
