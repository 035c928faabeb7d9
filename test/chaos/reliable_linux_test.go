package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

const (
	depth      = 8  // outstanding work requests per pair and side
	writeSlots = 16 // more than depth: what is complete is not being overwritten
	recvSlots  = 32
	slotSize   = 8192
	staticSize = 16384
	addWord    = writeSlots * slotSize
	swapWord   = addWord + 8
)

// rcPair is one side of a reliable connection: it sends requests of all kinds
// and checks what the peer's do.
type rcPair struct {
	s              *session
	index          int
	qp             *verbs.QP
	sendCQ, recvCQ *verbs.CQ
	write, static  []byte // exposed: the peer may write, may only read
	recv           []byte
	mem            [4]*verbs.MR // write, static, recv, local
	local          []byte       // depth slots: sources and sinks
	offer          pairOffer
	toPeer, here   [3]stream // by kind: of our messages, of the peer's
	peerStatic     []byte
	r              *rand.Rand

	out                 []request
	nextID              uint64
	posted, done        counts
	sends               [recvSlots]uint64 // which message a receive of the peer got, plus 1
	failed              bool
	statuses            map[string]int
	completed, received atomic.Uint64
	lastCompleted       time.Time
	ended               chan struct{} // both loops
}

// request is an outstanding work request.
type request struct {
	id, seq uint64
	op      qp.Op
	static  int // offset of a READ of the static area, or -1
	n       int
}

// counts are how many of each kind; recvs are those that take a receive.
type counts struct{ writes, sends, recvs, adds, swaps uint64 }

func newRCPair(s *session, index int) (*rcPair, error) {
	p := &rcPair{s: s, index: index, r: rand.New(rand.NewPCG(s.nonce, uint64(index))), statuses: map[string]int{}, ended: make(chan struct{})}
	var writeOff, staticOff int64
	p.write, writeOff = s.mem.take(swapWord + 8)
	p.static, staticOff = s.mem.take(staticSize)
	p.recv, p.offer.RecvOff = s.mem.take(recvSlots * slotSize)
	p.local = make([]byte, depth*slotSize)
	streamOf(s.nonce, index, kindStatic).fill(p.static, 0)
	var err error
	for i, m := range []struct {
		mem    []byte
		access mr.Access
	}{
		{p.write, mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic}, {p.static, mr.RemoteRead},
		{p.recv, mr.LocalWrite}, {p.local, mr.LocalWrite},
	} {
		if p.mem[i], err = s.register(m.mem, m.access); err != nil {
			return nil, err
		}
	}
	p.offer.Write = region{p.mem[0].Addr(), p.mem[0].Key(), writeOff}
	p.offer.Read = region{p.mem[1].Addr(), p.mem[1].Key(), staticOff}
	p.sendCQ, p.recvCQ, err = s.queues(2*depth, 2*recvSlots)
	if err != nil {
		return nil, err
	}
	p.qp, p.offer.endpoint, err = s.pair(verbs.QPConfig{Type: qp.RC, SendCQ: p.sendCQ, RecvCQ: p.recvCQ, SignalAll: true})
	return p, err
}

func (p *rcPair) connect(peer *offer) error {
	for k := range p.toPeer {
		p.toPeer[k], p.here[k] = streamOf(p.s.nonce, p.index, k), streamOf(peer.Nonce, p.index, k)
	}
	p.peerStatic = make([]byte, staticSize)
	p.here[kindStatic].fill(p.peerStatic, 0)
	if err := p.s.face(p.qp, peer, peer.RC[p.index].endpoint); err != nil {
		return err
	}
	for i := range uint64(recvSlots) {
		if err := p.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

// run drives the pair until it has failed or the session ends.
func (p *rcPair) run() {
	recvEnded := make(chan struct{})
	go func() {
		defer close(recvEnded)
		p.s.note(p.receiveAll())
	}()
	p.s.note(p.sendAll())
	<-recvEnded
	close(p.ended)
}

func (p *rcPair) sendAll() error {
	var wcs [depth]cq.WC
	for !p.failed || len(p.out) > 0 {
		for len(p.out) < depth && !p.failed {
			if err := p.post(); err != nil {
				return err
			}
		}
		n, err := p.sendCQ.Wait(p.s.ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := p.complete(&wcs[i]); err != nil {
				return fmt.Errorf("RC pair %d: %w", p.index, err)
			}
		}
		// The first pair runs as fast as it can, the others leave gaps.
		if p.index > 0 && p.r.IntN(4) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return p.postInError()
}

// mixture has each operation as often as it is to be drawn.
var mixture = []qp.Op{
	qp.Send, qp.Send, qp.Send, qp.RDMAWrite, qp.RDMAWrite, qp.RDMAWriteImm,
	qp.RDMARead, qp.RDMARead, qp.RDMARead, qp.FetchAdd, qp.CmpSwap,
}

// post sends a request of a random kind.
func (p *rcPair) post() error {
	rq := request{id: p.nextID, op: mixture[p.r.IntN(len(mixture))], static: -1}
	slot := int(rq.id%depth) * slotSize
	wr := qp.SendWR{ID: rq.id, Op: rq.op}
	switch rq.op {
	case qp.Send:
		p.fillSend(&rq, p.local[slot:])
	case qp.RDMAWrite, qp.RDMAWriteImm:
		p.fillWrite(&rq, &wr, p.local[slot:])
	case qp.RDMARead:
		p.chooseRead(&rq, &wr)
	case qp.FetchAdd:
		rq.seq, rq.n = p.posted.adds, 8
		wr.RemoteAddr, wr.CompareAdd = addWord, 1
		p.posted.adds++
	case qp.CmpSwap:
		rq.seq, rq.n = p.posted.swaps, 8
		wr.RemoteAddr, wr.CompareAdd, wr.Swap = swapWord, rq.seq, rq.seq+1
		p.posted.swaps++
	}
	remote := p.s.peer.RC[p.index].Write
	if rq.static >= 0 {
		remote = p.s.peer.RC[p.index].Read
	}
	wr.RemoteAddr, wr.RKey = wr.RemoteAddr+remote.Addr, remote.Key
	wr.SGE = []mr.SGE{p.mem[3].SGE(slot, rq.n)}
	p.nextID++
	p.out = append(p.out, rq)
	return p.qp.PostSend(&wr)
}

func (p *rcPair) fillSend(rq *request, slot []byte) {
	rq.seq, rq.n = p.posted.sends, p.toPeer[kindSend].length(p.posted.sends, slotSize)
	p.toPeer[kindSend].fill(slot[:rq.n], rq.seq)
	p.sends[p.posted.recvs%recvSlots] = rq.seq + 1
	p.posted.sends++
	p.posted.recvs++
}

func (p *rcPair) fillWrite(rq *request, wr *qp.SendWR, slot []byte) {
	rq.seq, rq.n = p.posted.writes, p.toPeer[kindWrite].length(p.posted.writes, slotSize)
	p.toPeer[kindWrite].fill(slot[:rq.n], rq.seq)
	wr.RemoteAddr, wr.Imm = rq.seq%writeSlots*slotSize, uint32(rq.seq)
	p.posted.writes++
	if rq.op == qp.RDMAWriteImm {
		p.sends[p.posted.recvs%recvSlots] = 0
		p.posted.recvs++
	}
}

// chooseRead reads back the last WRITE, which is before it in the send queue,
// or a piece of the static area.
func (p *rcPair) chooseRead(rq *request, wr *qp.SendWR) {
	if p.posted.writes > 0 && p.r.IntN(2) == 0 {
		rq.seq = p.posted.writes - 1
		rq.n = p.toPeer[kindWrite].length(rq.seq, slotSize)
		wr.RemoteAddr = rq.seq % writeSlots * slotSize
		return
	}
	rq.static, rq.n = p.r.IntN(staticSize-slotSize), 1+p.r.IntN(slotSize)
	wr.RemoteAddr = uint64(rq.static)
}

// complete checks a completion: in order, successes first, then RETRY_EXC_ERR
// for the oldest and WR_FLUSH_ERR for the rest.
func (p *rcPair) complete(wc *cq.WC) error {
	if len(p.out) == 0 || wc.ID != p.out[0].id {
		return fmt.Errorf("completion %+v out of order; outstanding %+v", *wc, p.out)
	}
	rq := p.out[0]
	p.out = append(p.out[:0], p.out[1:]...)
	p.statuses[statusName(wc.Status)]++
	p.lastCompleted = time.Now()
	switch {
	case wc.Status == cq.Success && !p.failed:
		p.completed.Add(1)
		return p.checkAnswer(rq)
	case wc.Status == cq.RetryExcErr && !p.failed:
		p.failed = true
		return nil
	case wc.Status == cq.WRFlushErr && p.failed:
		return nil
	}
	return fmt.Errorf("%v of %+v, after a failure: %v", wc.Status, rq, p.failed)
}

// checkAnswer checks what a successful request brought.
func (p *rcPair) checkAnswer(rq request) error {
	got := p.local[int(rq.id%depth)*slotSize:][:rq.n]
	switch rq.op {
	case qp.Send:
		p.done.sends++
		p.done.recvs++
	case qp.RDMAWrite:
		p.done.writes++
	case qp.RDMAWriteImm:
		p.done.writes++
		p.done.recvs++
	case qp.RDMARead:
		if rq.static < 0 {
			return p.toPeer[kindWrite].check(got, rq.seq, "READ of what was written")
		}
		if string(got) != string(p.peerStatic[rq.static:][:rq.n]) {
			return fmt.Errorf("READ of %d static bytes at %d: wrong bytes", rq.n, rq.static)
		}
	case qp.FetchAdd:
		p.done.adds++
		return p.checkWord(got, rq)
	case qp.CmpSwap:
		p.done.swaps++
		return p.checkWord(got, rq)
	}
	return nil
}

// checkWord: each atomic is executed once, so it finds what the one before left.
func (p *rcPair) checkWord(got []byte, rq request) error {
	if v := binary.NativeEndian.Uint64(got); v != rq.seq {
		return fmt.Errorf("%v number %d found %d", rq.op, rq.seq, v)
	}
	return nil
}

// postInError: a pair in ERR takes a work request and flushes it.
func (p *rcPair) postInError() error {
	if err := p.qp.PostSend(&qp.SendWR{ID: p.nextID, Op: qp.Send, Inline: []byte("late")}); err != nil {
		return err
	}
	var wc [1]cq.WC
	if _, err := p.sendCQ.Wait(p.s.ctx, wc[:]); err != nil {
		return err
	}
	if wc[0].ID != p.nextID || wc[0].Status != cq.WRFlushErr {
		return fmt.Errorf("a post in ERR ended with %+v", wc[0])
	}
	return nil
}

func (p *rcPair) postRecv(i uint64) error {
	return p.qp.PostRecv(&qp.RecvWR{ID: i, SGE: []mr.SGE{p.mem[2].SGE(int(i%recvSlots)*slotSize, slotSize)}})
}

// receiveAll checks what arrives until all receives are flushed.
func (p *rcPair) receiveAll() error {
	var wcs [recvSlots]cq.WC
	var sends, writes uint64 // seen; writes is the lowest possible next
	flushing := false
	for next, posted := uint64(0), uint64(recvSlots); next < posted; {
		n, err := p.recvCQ.Wait(p.s.ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if wc.ID != next || flushing && wc.Status != cq.WRFlushErr {
				return fmt.Errorf("RC pair %d: receive %+v, want ID %d", p.index, *wc, next)
			}
			next++
			if flushing = wc.Status == cq.WRFlushErr; flushing {
				continue
			}
			if err := p.checkReceived(wc, &sends, &writes); err != nil {
				return fmt.Errorf("RC pair %d: %w", p.index, err)
			}
			p.received.Add(1)
			if err := p.postRecv(posted); err != nil {
				return err
			}
			posted++
		}
	}
	return nil
}

func (p *rcPair) checkReceived(wc *cq.WC, sends, writes *uint64) error {
	switch {
	case wc.Status != cq.Success:
		return fmt.Errorf("receive: %v", wc.Status)
	case wc.Opcode == cq.OpRecvRDMAWithImm:
		if wc.Imm < uint32(*writes) {
			return fmt.Errorf("WRITE with immediate %d after %d", wc.Imm, *writes)
		}
		*writes = uint64(wc.Imm) + 1
		return nil
	}
	want := p.here[kindSend].length(*sends, slotSize)
	if int(wc.ByteLen) != want {
		return fmt.Errorf("SEND %d has %d bytes, want %d", *sends, wc.ByteLen, want)
	}
	err := p.here[kindSend].check(p.recv[wc.ID%recvSlots*slotSize:][:want], *sends, "SEND")
	*sends++
	return err
}

// checkPeerFile looks in the peer's memory for what the peer acknowledged: the
// last of it, which nothing posted later can have replaced.
func (p *rcPair) checkPeerFile(f io.ReaderAt) error {
	remote := p.s.peer.RC[p.index]
	for seq := p.posted.writes - min(p.posted.writes, writeSlots); seq < p.done.writes; seq++ {
		if err := checkAt(f, remote.Write.Off+int64(seq%writeSlots*slotSize), p.toPeer[kindWrite], seq); err != nil {
			return err
		}
	}
	for i := p.posted.recvs - min(p.posted.recvs, recvSlots); i < p.done.recvs; i++ {
		if p.sends[i%recvSlots] == 0 {
			continue // a WRITE with immediate
		}
		if err := checkAt(f, remote.RecvOff+int64(i%recvSlots*slotSize), p.toPeer[kindSend], p.sends[i%recvSlots]-1); err != nil {
			return err
		}
	}
	var words [16]byte
	if _, err := f.ReadAt(words[:], remote.Write.Off+addWord); err != nil {
		return err
	}
	adds, swaps := binary.NativeEndian.Uint64(words[:]), binary.NativeEndian.Uint64(words[8:])
	if adds < p.done.adds || adds > p.posted.adds || swaps < p.done.swaps || swaps > p.posted.swaps {
		return fmt.Errorf("the peer executed %d and %d atomics, acknowledged %+v, posted %+v", adds, swaps, p.done, p.posted)
	}
	return nil
}

// checkAt looks for an acknowledged message at a place in the peer's memory.
func checkAt(f io.ReaderAt, off int64, s stream, seq uint64) error {
	got := make([]byte, s.length(seq, slotSize))
	if _, err := f.ReadAt(got, off); err != nil {
		return err
	}
	return s.check(got, seq, "acknowledged")
}

// checkOwn: what was exposed holds the peer's messages, at most one of them
// unfinished, and what was only readable is as it was.
func (p *rcPair) checkOwn() error {
	torn := 0
	for i := range uint64(writeSlots) {
		slot := p.write[i*slotSize:][:slotSize]
		seq, ok := sequence(slot)
		if !ok {
			continue
		}
		if seq%writeSlots != i {
			return fmt.Errorf("RC pair %d: message %d in slot %d", p.index, seq, i)
		}
		if p.here[kindWrite].check(slot[:p.here[kindWrite].length(seq, slotSize)], seq, "") != nil {
			torn++
		}
	}
	if torn > 1 {
		return fmt.Errorf("RC pair %d: %d of the WRITEs received are damaged", p.index, torn)
	}
	return streamOf(p.s.nonce, p.index, kindStatic).check(p.static, 0, "memory exposed for READ only")
}

// statusName is the name of a status without the explanation.
func statusName(s cq.Status) string {
	switch s {
	case cq.Success:
		return "SUCCESS"
	case cq.RetryExcErr:
		return "RETRY_EXC_ERR"
	case cq.WRFlushErr:
		return "WR_FLUSH_ERR"
	}
	return s.String()
}

// over reports that an error is only the end of the session.
func over(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, verbs.ErrClosed)
}
