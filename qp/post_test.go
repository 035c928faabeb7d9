package qp_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

func pairIn(s qp.State, c qp.Config) *qp.Pair {
	if c.Type == 0 {
		c.Type = qp.RC
	}
	p := qp.New(17, nil, c)
	p.Attr.State = s
	return p
}

// IBA 11.2.5.2: sends from RTS on, receives from INIT on; in ERR both are taken.
func TestPostDependsOnState(t *testing.T) {
	for _, s := range states {
		p := pairIn(s, qp.Config{})
		err := p.PostSend(&qp.SendWR{Op: qp.Send})
		if refused := s == qp.Reset || s == qp.Init || s == qp.RTR; refused != errors.Is(err, qp.ErrState) || !refused && err != nil {
			t.Errorf("send in %v: %v", s, err)
		}
		err = p.PostRecv(&qp.RecvWR{})
		if refused := s == qp.Reset; refused != errors.Is(err, qp.ErrState) || !refused && err != nil {
			t.Errorf("receive in %v: %v", s, err)
		}
	}
}

// What a post is refused for, and that the limits themselves are fine. A
// refused post leaves the queue as it was.
func TestPostSendChecksItsRequest(t *testing.T) {
	ah := &qp.AddressVector{}
	sge := func(n ...uint32) (l []mr.SGE) {
		for _, n := range n {
			l = append(l, mr.SGE{Length: n})
		}
		return l
	}
	small := qp.Config{MaxSendSGE: 2, MaxInline: 10}
	none := qp.Config{MaxInline: -1}
	ud := qp.Config{Type: qp.UD}
	uc := qp.Config{Type: qp.UC}
	for _, row := range []struct {
		name string
		c    qp.Config
		wr   qp.SendWR
		want error
	}{
		{"two entries of two", small, qp.SendWR{Op: qp.Send, SGE: sge(1, 1)}, nil},
		{"three entries of two", small, qp.SendWR{Op: qp.Send, SGE: sge(1, 1, 1)}, qp.ErrSGE},
		{"32 entries", qp.Config{MaxSendSGE: 1000}, qp.SendWR{Op: qp.Send, SGE: sge(make([]uint32, 32)...)}, nil},
		{"33 entries", qp.Config{MaxSendSGE: 1000}, qp.SendWR{Op: qp.Send, SGE: sge(make([]uint32, 33)...)}, qp.ErrSGE},
		{"inline at the limit", small, qp.SendWR{Op: qp.Send, Inline: make([]byte, 10)}, nil},
		{"inline beyond the limit", small, qp.SendWR{Op: qp.RDMAWrite, Inline: make([]byte, 11)}, qp.ErrInline},
		{"inline where there is none", none, qp.SendWR{Op: qp.Send, Inline: make([]byte, 1)}, qp.ErrInline},
		{"empty inline where there is none", none, qp.SendWR{Op: qp.Send, Inline: []byte{}}, nil},
		{"inline by default", qp.Config{}, qp.SendWR{Op: qp.Send, Inline: make([]byte, 256)}, nil},
		{"inline beyond all limits", qp.Config{MaxInline: 1 << 20}, qp.SendWR{Op: qp.Send, Inline: make([]byte, 4097)}, qp.ErrInline},
		{"inline READ", small, qp.SendWR{Op: qp.RDMARead, Inline: []byte{1}}, qp.ErrInline},
		{"inline atomic", small, qp.SendWR{Op: qp.FetchAdd, Inline: make([]byte, 8)}, qp.ErrInline},
		{"inline and entries", small, qp.SendWR{Op: qp.Send, Inline: []byte{1}, SGE: sge(1)}, qp.ErrInline},
		{"atomic of 8 bytes", small, qp.SendWR{Op: qp.CmpSwap, SGE: sge(8)}, nil},
		{"atomic of 4 and 4 bytes", small, qp.SendWR{Op: qp.CmpSwap, SGE: sge(4, 4)}, nil},
		{"atomic of 7 bytes", small, qp.SendWR{Op: qp.CmpSwap, SGE: sge(7)}, qp.ErrLength},
		{"atomic of 16 bytes", small, qp.SendWR{Op: qp.FetchAdd, SGE: sge(8, 8)}, qp.ErrLength},
		{"atomic of nothing", small, qp.SendWR{Op: qp.FetchAdd}, qp.ErrLength},
		{"2^31 bytes", small, qp.SendWR{Op: qp.RDMARead, SGE: sge(1 << 31)}, nil},
		{"2^31 bytes in two", small, qp.SendWR{Op: qp.RDMAWrite, SGE: sge(1<<31-1, 1)}, nil},
		{"2^31+1 bytes", small, qp.SendWR{Op: qp.Send, SGE: sge(1<<31, 1)}, qp.ErrLength},
		{"2^33-2 bytes", small, qp.SendWR{Op: qp.Send, SGE: sge(1<<32-1, 1<<32-1)}, qp.ErrLength},
		{"unknown operation", small, qp.SendWR{Op: 200}, qp.ErrOp},
		{"READ on UC", uc, qp.SendWR{Op: qp.RDMARead}, qp.ErrOp},
		{"atomic on UC", uc, qp.SendWR{Op: qp.FetchAdd, SGE: sge(8)}, qp.ErrOp},
		{"WRITE on UC", uc, qp.SendWR{Op: qp.RDMAWriteImm}, nil},
		{"WRITE on UD", ud, qp.SendWR{Op: qp.RDMAWrite, AH: ah}, qp.ErrOp},
		{"READ on UD", ud, qp.SendWR{Op: qp.RDMARead, AH: ah}, qp.ErrOp},
		{"SEND on UD", ud, qp.SendWR{Op: qp.SendImm, AH: ah}, nil},
		{"SEND on UD without address", ud, qp.SendWR{Op: qp.Send}, qp.ErrAH},
	} {
		p := pairIn(qp.RTS, row.c)
		if err := p.PostSend(&row.wr); !errors.Is(err, row.want) || row.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", row.name, err, row.want)
		}
		if want := map[bool]int{true: 1, false: 0}[row.want == nil]; p.SQ.Len() != want {
			t.Errorf("%s: %d in the queue", row.name, p.SQ.Len())
		}
	}
	p := pairIn(qp.Init, qp.Config{MaxRecvSGE: 1})
	if err := p.PostRecv(&qp.RecvWR{SGE: sge(1, 1)}); !errors.Is(err, qp.ErrSGE) {
		t.Errorf("receive with two entries of one: %v", err)
	}
}

// The queues hold exactly their capacity; zero means the default.
func TestPostStopsAtCapacity(t *testing.T) {
	for _, row := range []struct{ ask, get int }{{1, 1}, {3, 3}, {8, 8}, {9, 9}, {100, 100}, {0, 128}, {-5, 0}} {
		p := pairIn(qp.RTS, qp.Config{MaxSendWR: row.ask, MaxRecvWR: row.ask})
		n, m := 0, 0
		for ; n < 1000 && p.PostSend(&qp.SendWR{Op: qp.Send}) == nil; n++ {
		}
		for ; m < 1000 && p.PostRecv(&qp.RecvWR{}) == nil; m++ {
		}
		if n != row.get || m != row.get {
			t.Errorf("capacity %d took %d sends and %d receives, want %d", row.ask, n, m, row.get)
		}
		if err := p.PostSend(&qp.SendWR{Op: qp.Send}); !errors.Is(err, qp.ErrQueueFull) {
			t.Errorf("full send queue: %v", err)
		}
		if err := p.PostRecv(&qp.RecvWR{}); !errors.Is(err, qp.ErrQueueFull) {
			t.Errorf("full receive queue: %v", err)
		}
	}
}

// A post copies all it is given.
func TestPostCopiesItsRequest(t *testing.T) {
	p := pairIn(qp.RTS, qp.Config{Type: qp.UD})
	sge, data, ah := []mr.SGE{{Addr: 1, Length: 2, LKey: 3}}, []byte("hello"), &qp.AddressVector{HopLimit: 7}
	if err := p.PostSend(&qp.SendWR{ID: 1, Op: qp.Send, SGE: sge, AH: ah}); err != nil {
		t.Fatal(err)
	}
	if err := p.PostSend(&qp.SendWR{ID: 2, Op: qp.Send, Inline: data, AH: ah}); err != nil {
		t.Fatal(err)
	}
	if err := p.PostRecv(&qp.RecvWR{ID: 3, SGE: sge}); err != nil {
		t.Fatal(err)
	}
	sge[0], ah.HopLimit = mr.SGE{}, 0
	clear(data)
	a, b, r := p.SQ.At(0), p.SQ.At(1), p.RQ.At(0)
	if a.ID != 1 || a.SGE[0].Addr != 1 || a.Length != 2 || a.Dest.AV.HopLimit != 7 || a.AH != nil {
		t.Errorf("first %+v", a)
	}
	if string(b.Inline) != "hello" || b.Length != 5 || b.Dest.AV.HopLimit != 7 {
		t.Errorf("second %+v", b)
	}
	if r.SGE[0].LKey != 3 {
		t.Errorf("receive %+v", r)
	}
	var c qp.RecvWQE
	c.CopyFrom(r)
	r.SGE[0].LKey = 9
	if c.ID != 3 || c.SGE[0].LKey != 3 {
		t.Errorf("copy %+v", c)
	}
}

func TestPostSignalAllSetsTheFlag(t *testing.T) {
	p := pairIn(qp.RTS, qp.Config{SignalAll: true})
	_ = p.PostSend(&qp.SendWR{Op: qp.Send, Flags: qp.Fence})
	if f := p.SQ.At(0).Flags; f != qp.Fence|qp.Signaled {
		t.Fatalf("flags %v", f)
	}
}

// Through any series of posts and retirements, growth and wrap included, the
// queue is what a slice is; a slot that is used again holds nothing of its past.
func TestQueueAgainstModel(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		capacity := 1 + r.IntN(70)
		p := pairIn(qp.RTS, qp.Config{MaxSendWR: capacity, MaxSendSGE: 3})
		type item struct {
			id     uint64
			sge    int
			inline []byte
		}
		var model []item
		next := uint64(0)
		for range 2000 {
			switch r.IntN(7) {
			case 0, 1, 2, 3:
				it := item{id: next, sge: r.IntN(4)}
				wr := qp.SendWR{ID: it.id, Op: qp.Send}
				if r.IntN(3) == 0 {
					it.sge, it.inline = 0, bytes.Repeat([]byte{byte(next)}, r.IntN(20))
					wr.Inline = it.inline
				}
				for i := range it.sge {
					wr.SGE = append(wr.SGE, mr.SGE{Addr: next, Length: uint32(i)})
				}
				err := p.PostSend(&wr)
				if full := len(model) == capacity; full != errors.Is(err, qp.ErrQueueFull) {
					t.Fatalf("seed %d: %d of %d: %v", seed, len(model), capacity, err)
				}
				if err == nil {
					model, next = append(model, it), next+1
					p.SQ.At(p.SQ.Tail() - 1).Track.Packets = 5 // the engine's mark
				}
			case 4, 5:
				if len(model) > 0 {
					p.SQ.Retire()
					model = model[1:]
				}
			case 6:
				if r.IntN(50) == 0 {
					p.ClearQueues()
					model = nil
				}
			}
			if p.SQ.Len() != len(model) || p.SQ.Full() != (len(model) == capacity) || p.SQ.Capacity() != capacity {
				t.Fatalf("seed %d: length %d, want %d", seed, p.SQ.Len(), len(model))
			}
			for i, it := range model {
				w := p.SQ.At(p.SQ.Head() + uint64(i))
				if w.ID != it.id || len(w.SGE) != it.sge || !bytes.Equal(w.Inline, it.inline) {
					t.Fatalf("seed %d: element %d is %+v, want %+v", seed, i, w, it)
				}
				for _, e := range w.SGE {
					if e.Addr != it.id {
						t.Fatalf("seed %d: element %d has an entry of another", seed, i)
					}
				}
			}
		}
		if p.SQ.Full() {
			continue
		}
		_ = p.PostSend(&qp.SendWR{Op: qp.Send})
		if w := p.SQ.At(p.SQ.Tail() - 1); w.Track != (qp.Track{}) || w.Inline != nil {
			t.Fatalf("seed %d: a new element has a past: %+v", seed, w)
		}
	}
}

// Posting into a queue that has its size allocates nothing.
func TestPostDoesNotAllocate(t *testing.T) {
	p := pairIn(qp.RTS, qp.Config{MaxSendWR: 16, MaxRecvWR: 16})
	wr := &qp.SendWR{Op: qp.Send, SGE: make([]mr.SGE, 2)}
	inline := &qp.SendWR{Op: qp.Send, Inline: make([]byte, 100)}
	recv := &qp.RecvWR{SGE: make([]mr.SGE, 3)}
	round := func() {
		_ = p.PostSend(wr)
		_ = p.PostSend(inline)
		_ = p.PostRecv(recv)
		p.SQ.Retire()
		p.SQ.Retire()
		p.RQ.Retire()
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
