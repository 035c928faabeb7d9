package qp

import "github.com/goroce/goroce/mr"

// SharedRecv is a shared receive queue (SRQ, IBA 10.2.9): receive work requests
// that any of its queue pairs takes when a message arrives, oldest first. It
// belongs to the owner of the shard, as queue pairs do.
type SharedRecv struct {
	RecvQueue
	Domain *mr.Domain
	maxSGE int
	limit  int
}

// NewSharedRecv returns an empty queue for maxWR work requests with maxSGE
// entries each; zero values mean 1024 and 4.
func NewSharedRecv(pd *mr.Domain, maxWR, maxSGE int) *SharedRecv {
	if maxWR <= 0 {
		maxWR = 1024
	}
	if maxSGE <= 0 {
		maxSGE = 4
	}
	s := &SharedRecv{Domain: pd, maxSGE: min(maxSGE, MaxSGE)}
	s.capacity = min(maxWR, MaxWR)
	return s
}

// PostRecv appends a receive work request, copying it.
func (s *SharedRecv) PostRecv(wr *RecvWR) error {
	switch {
	case s.Full():
		return ErrQueueFull
	case len(wr.SGE) > s.maxSGE:
		return ErrSGE
	}
	w := s.push()
	w.ID, w.SGE = wr.ID, append(w.SGE[:0], wr.SGE...)
	return nil
}

// Limit returns the armed limit, 0 when none is.
func (s *SharedRecv) Limit() int { return s.limit }

// SetLimit arms the limit: once fewer than n work requests are left, the limit
// event is raised and the limit is 0 again. 0 disarms.
func (s *SharedRecv) SetLimit(n int) error {
	if n < 0 || n > s.capacity {
		return ErrLimit
	}
	s.limit = n
	return nil
}

// Resize changes the capacity, which may not fall below what is posted.
func (s *SharedRecv) Resize(maxWR int) error {
	if maxWR < max(1, s.Len(), s.limit) || maxWR > MaxWR {
		return ErrLimit
	}
	s.capacity = maxWR
	return nil
}

// Take moves the oldest work request into w. limitReached tells that this took
// the queue below its limit, which is disarmed by it.
func (s *SharedRecv) Take(w *RecvWQE) (ok, limitReached bool) {
	if s.Len() == 0 {
		return false, false
	}
	w.CopyFrom(s.At(s.Head()))
	s.Retire()
	if s.limit > 0 && s.Len() < s.limit {
		s.limit = 0
		return true, true
	}
	return true, false
}
