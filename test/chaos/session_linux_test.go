package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

const rcPairs = 4

// session is everything between two workers from one connect to the next.
type session struct {
	w       *worker
	nonce   uint64
	mem     *block
	pd      *verbs.PD
	rc      []*rcPair
	uc, ud  *unreliable
	probe   *verbs.QP // is sent to ERR on purpose
	probeCQ *verbs.CQ
	secret  []byte // exposed with all rights, under a key that nobody is told
	qps     []*verbs.QP
	mrs     []*verbs.MR
	peer    offer

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	err    error
}

func newSession(w *worker, mem *block) (*session, *offer, error) {
	s := &session{w: w, nonce: w.nonce, mem: mem, pd: w.dev.AllocPD()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	mem.clear()
	o := &offer{Nonce: w.nonce, Addr: w.dev.GID().String(), File: w.files.file}
	for i := range rcPairs {
		p, err := newRCPair(s, i)
		if err != nil {
			return nil, nil, err
		}
		s.rc = append(s.rc, p)
		o.RC = append(o.RC, p.offer)
	}
	var err error
	if s.uc, o.UC, err = newUnreliable(s, qp.UC, kindUCSend); err != nil {
		return nil, nil, err
	}
	if o.UCWrite, err = s.uc.exposeUC(); err != nil {
		return nil, nil, err
	}
	if s.ud, o.UD, err = newUnreliable(s, qp.UD, kindUD); err != nil {
		return nil, nil, err
	}
	if s.probeCQ, err = w.dev.CreateCQ(4); err != nil {
		return nil, nil, err
	}
	if s.probe, o.Probe, err = s.pair(verbs.QPConfig{SendCQ: s.probeCQ, RecvCQ: s.probeCQ}); err != nil {
		return nil, nil, err
	}
	s.secret, _ = mem.take(4096)
	_, err = s.register(s.secret, mr.LocalWrite|mr.RemoteWrite|mr.RemoteRead|mr.RemoteAtomic)
	return s, o, err
}

func (s *session) register(mem []byte, access mr.Access) (*verbs.MR, error) {
	m, err := s.pd.RegisterMR(mem, access)
	if err == nil {
		s.mrs = append(s.mrs, m)
	}
	return m, err
}

func (s *session) queues(send, recv int) (a, b *verbs.CQ, err error) {
	if a, err = s.w.dev.CreateCQ(send); err == nil {
		b, err = s.w.dev.CreateCQ(recv)
	}
	return a, b, err
}

func (s *session) pair(c verbs.QPConfig) (*verbs.QP, endpoint, error) {
	q, err := s.pd.CreateQP(c)
	if err != nil {
		return nil, endpoint{}, err
	}
	s.qps = append(s.qps, q)
	l := q.Local()
	return q, endpoint{uint32(l.QPN), l.PSN.Value()}, nil
}

// face connects a pair to one of the peer's.
func (s *session) face(q *verbs.QP, peer *offer, e endpoint) error {
	remote := verbs.Endpoint{GID: netip.MustParseAddr(peer.Addr), QPN: bth.QPN(e.QPN), PSN: bth.NewPSN(e.PSN)}
	return q.Connect(remote, verbs.ConnectConfig{
		Access: mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic, Timeout: ackTimeout, RetryCount: retryCount,
	})
}

func (s *session) connect(peer *offer) error {
	s.peer = *peer
	for _, p := range s.rc {
		if err := p.connect(peer); err != nil {
			return err
		}
	}
	return errors.Join(s.uc.connect(peer), s.ud.connect(peer), s.face(s.probe, peer, peer.Probe))
}

// start begins the load.
func (s *session) start() {
	for _, p := range s.rc {
		s.wg.Go(p.run)
	}
	for _, u := range []*unreliable{s.uc, s.ud} {
		s.wg.Go(func() { s.note(u.sendAll()) })
		s.wg.Go(func() { s.note(u.receiveAll()) })
	}
}

// note keeps the first error that is one.
func (s *session) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && err != nil && !over(err) {
		s.err = err
	}
}

func (s *session) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// progress returns the counters of the pairs; none may have failed.
func (s *session) progress() (done []uint64, err error) {
	for _, p := range s.rc {
		select {
		case <-p.ended:
			return nil, errors.Join(fmt.Errorf("RC pair %d has failed, its peer lives: %v, %v", p.index, p.statuses, s.w.dev.Stats()), s.failure())
		default:
			done = append(done, p.completed.Load(), p.received.Load())
		}
	}
	return done, s.failure()
}

// intrude tries keys that this process was never given, or given in an earlier
// life: the peer has to refuse.
func (s *session) intrude(target *region) error {
	wr := &qp.SendWR{Op: qp.RDMAWrite, Inline: []byte("intruder"), RemoteAddr: target.Addr, RKey: target.Key, Flags: qp.Signaled}
	if err := s.probe.PostSend(wr); err != nil {
		return err
	}
	var wc [1]cq.WC
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	if _, err := s.probeCQ.Wait(ctx, wc[:]); err != nil {
		return fmt.Errorf("an intruding WRITE: %w", err)
	}
	if wc[0].Status != cq.RemAccessErr {
		return fmt.Errorf("an intruding WRITE ended with %v", wc[0].Status)
	}
	return nil
}

// peerGone waits until all requests to the silent peer are complete, and checks
// what they were told.
func (s *session) peerGone() (*outcome, error) {
	o := &outcome{Statuses: map[string]int{}}
	since := time.Now()
	limit := time.After(failWithin() + hangAfter)
	for _, p := range s.rc {
		select {
		case <-p.ended:
		case <-limit:
			return nil, fmt.Errorf("RC pair %d hangs %v after its peer fell silent: %v; %v", p.index, time.Since(since), p.qp.Query(), s.w.dev.Stats())
		}
	}
	if err := s.failure(); err != nil {
		return nil, err
	}
	for _, p := range s.rc {
		if p.statuses["RETRY_EXC_ERR"] != 1 || p.qp.State() != qp.Err {
			return nil, fmt.Errorf("RC pair %d in %v with %v", p.index, p.qp.State(), p.statuses)
		}
		for name, n := range p.statuses {
			o.Statuses[name] += n
		}
		o.Last = max(o.Last, p.lastCompleted.Sub(since))
	}
	o.UC, o.UD = s.uc.received.Load(), s.ud.received.Load()
	return o, s.checkPeerFile()
}

func (s *session) checkPeerFile() error {
	f, err := os.Open(s.peer.File)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range s.rc {
		if err := p.checkPeerFile(f); err != nil {
			return fmt.Errorf("RC pair %d: %w", p.index, err)
		}
	}
	return nil
}

// end destroys everything and checks the memory.
func (s *session) end() error {
	s.cancel()
	s.wg.Wait()
	var errs []error
	for _, q := range s.qps {
		errs = append(errs, q.Destroy())
	}
	for _, m := range s.mrs {
		errs = append(errs, m.Deregister())
	}
	errs = append(errs, s.pd.Dealloc(), s.checkMemory(), s.failure())
	return errors.Join(errs...)
}

func (s *session) checkMemory() error {
	errs := []error{s.mem.checkGaps()}
	if !bytes.Equal(s.secret, make([]byte, len(s.secret))) {
		errs = append(errs, errors.New("memory was changed whose key nobody was told"))
	}
	for _, p := range s.rc {
		errs = append(errs, p.checkOwn())
	}
	return errors.Join(errs...)
}
