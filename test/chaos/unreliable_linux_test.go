package chaos

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

const (
	datagramSlot = 4096
	ucLimit      = 3000
	udLimit      = 1000
	qKey         = bth.QKey(0x1234)
	pace         = time.Millisecond // between two messages: nothing else holds them back
)

// unreliable is a UC or UD pair. Its messages may get lost but not be damaged,
// and it does not notice that the peer is gone.
type unreliable struct {
	s              *session
	qp             *verbs.QP
	sendCQ, recvCQ *verbs.CQ
	recv, local    *verbs.MR
	write          *verbs.MR // UC only
	kind           int       // of the SENDs
	toPeer, here   [2]stream // SENDs, UC WRITEs
	received       atomic.Uint64
}

func newUnreliable(s *session, t qp.Type, kind int) (u *unreliable, e endpoint, err error) {
	u = &unreliable{s: s, kind: kind}
	mem, _ := s.mem.take(recvSlots * datagramSlot)
	if u.recv, err = s.register(mem, mr.LocalWrite); err != nil {
		return nil, e, err
	}
	if u.local, err = s.register(make([]byte, datagramSlot), 0); err != nil {
		return nil, e, err
	}
	if u.sendCQ, u.recvCQ, err = s.queues(depth, 2*recvSlots); err != nil {
		return nil, e, err
	}
	u.qp, e, err = s.pair(verbs.QPConfig{Type: t, SendCQ: u.sendCQ, RecvCQ: u.recvCQ, SignalAll: true})
	return u, e, err
}

// exposeUC registers the memory that the peer's UC WRITEs go to.
func (u *unreliable) exposeUC() (r region, err error) {
	mem, off := u.s.mem.take(writeSlots * datagramSlot)
	u.write, err = u.s.register(mem, mr.LocalWrite|mr.RemoteWrite)
	if err != nil {
		return r, err
	}
	return region{u.write.Addr(), u.write.Key(), off}, nil
}

func (u *unreliable) connect(peer *offer) error {
	for i, kind := range []int{u.kind, kindUCWrite} {
		u.toPeer[i], u.here[i] = streamOf(u.s.nonce, 0, kind), streamOf(peer.Nonce, 0, kind)
	}
	if u.kind == kindUD {
		if err := u.qp.Activate(qKey); err != nil {
			return err
		}
	} else if err := u.s.face(u.qp, peer, peer.UC); err != nil {
		return err
	}
	for i := range uint64(recvSlots) {
		if err := u.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

func (u *unreliable) postRecv(i uint64) error {
	return u.qp.PostRecv(&qp.RecvWR{ID: i, SGE: []mr.SGE{u.recv.SGE(int(i%recvSlots)*datagramSlot, datagramSlot)}})
}

// sendAll sends at a steady pace; each request succeeds, for it has been sent.
func (u *unreliable) sendAll() error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var seqs [2]uint64
	for id := uint64(0); ; id++ {
		wr := u.message(id, &seqs)
		if err := u.qp.PostSend(wr); err != nil {
			return err
		}
		var wc [1]cq.WC
		if _, err := u.sendCQ.Wait(u.s.ctx, wc[:]); err != nil {
			return err
		}
		if wc[0].ID != id || wc[0].Status != cq.Success {
			return fmt.Errorf("%v: request %d ended with %+v", u.qp, id, wc[0])
		}
		select {
		case <-tick.C:
		case <-u.s.ctx.Done():
			return u.s.ctx.Err()
		}
	}
}

// message returns the next work request: datagrams, or SENDs and WRITEs in turn.
func (u *unreliable) message(id uint64, seqs *[2]uint64) *qp.SendWR {
	wr, which, limit := &qp.SendWR{ID: id, Op: qp.Send}, 0, ucLimit
	if u.kind == kindUD {
		limit = udLimit
		wr.AH = &qp.AddressVector{DGID: netip.MustParseAddr(u.s.peer.Addr)}
		wr.RemoteQPN, wr.RemoteQKey = bth.QPN(u.s.peer.UD.QPN), qKey
	} else if which = int(id % 2); which == 1 {
		wr.Op, wr.Imm = qp.RDMAWriteImm, uint32(seqs[1])
		wr.RemoteAddr, wr.RKey = u.s.peer.UCWrite.Addr+seqs[1]%writeSlots*datagramSlot, u.s.peer.UCWrite.Key
	}
	seq := seqs[which]
	n := u.toPeer[which].length(seq, limit)
	u.toPeer[which].fill(u.local.Bytes()[:n], seq)
	wr.SGE = []mr.SGE{u.local.SGE(0, n)}
	seqs[which]++
	return wr
}

func (u *unreliable) receiveAll() error {
	var wcs [recvSlots]cq.WC
	for posted := uint64(recvSlots); ; {
		n, err := u.recvCQ.Wait(u.s.ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := u.check(&wcs[i]); err != nil {
				return fmt.Errorf("%v: %w", u.qp, err)
			}
			u.received.Add(1)
			if err := u.postRecv(posted); err != nil {
				return err
			}
			posted++
		}
	}
}

func (u *unreliable) check(wc *cq.WC) error {
	if wc.Status != cq.Success {
		return fmt.Errorf("receive: %+v", *wc)
	}
	if wc.Opcode == cq.OpRecvRDMAWithImm {
		return u.checkWritten(uint64(wc.Imm))
	}
	b, limit := u.recv.Bytes()[wc.ID%recvSlots*datagramSlot:][:wc.ByteLen], ucLimit
	if u.kind == kindUD {
		limit = udLimit
		if wc.Flags&cq.WithGRH == 0 || uint32(wc.SrcQP) != u.s.peer.UD.QPN {
			return fmt.Errorf("datagram from a stranger: %+v", *wc)
		}
		b = b[bth.GRHLen:]
	}
	if len(b) < minMessage {
		return fmt.Errorf("%d bytes received", len(b))
	}
	seq, _ := sequence(b)
	if want := u.here[0].length(seq, limit); want != len(b) {
		return fmt.Errorf("message %d has %d bytes, want %d", seq, len(b), want)
	}
	return u.here[0].check(b, seq, "SEND")
}

// checkWritten checks a WRITE whose immediate arrived: all of it is there,
// unless a later one has begun to replace it.
func (u *unreliable) checkWritten(seq uint64) error {
	u.s.w.dev.Sync()
	slot := u.write.Bytes()[seq%writeSlots*datagramSlot:][:datagramSlot]
	err := u.here[1].check(slot[:u.here[1].length(seq, ucLimit)], seq, "WRITE")
	if now, _ := sequence(slot); err != nil && now > seq && now%writeSlots == seq%writeSlots {
		return nil
	}
	return err
}
