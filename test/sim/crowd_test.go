package sim_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/test/sim"
	"github.com/goroce/goroce/transport"
)

// crowd is many pairs of one host that face pairs of another, with less room
// there than all of them would take.
type crowd struct {
	n           *sim.Net
	a, b        *sim.Host
	from, to    *mr.Region
	near, far   []*transport.QP
	open        []int  // signaled requests without a completion, by pair
	over        []bool // the test is done with the pair
	completions int
}

const crowdMem = 1 << 18

func newCrowd(t *testing.T, n *sim.Net, pairs, window, peerWindow int, l sim.Link) *crowd {
	t.Helper()
	n.PeerWindow = peerWindow
	c := &crowd{n: n, a: n.AddHost(window), b: n.AddHost(window), open: make([]int, pairs), over: make([]bool, pairs)}
	var err error
	if c.from, err = c.a.PD.Register(make([]byte, crowdMem), mr.LocalWrite); err != nil {
		t.Fatal(err)
	}
	if c.to, err = c.b.PD.Register(make([]byte, crowdMem), mr.LocalWrite|mr.RemoteRead|mr.RemoteWrite|mr.RemoteAtomic); err != nil {
		t.Fatal(err)
	}
	for range pairs {
		qa, qb := c.a.NewQP(qp.Config{MaxSendWR: 64}), c.b.NewQP(qp.Config{MaxRecvWR: 64})
		if err := sim.Connect(c.a, qa, l, c.b, qb, l); err != nil {
			t.Fatal(err)
		}
		c.near, c.far = append(c.near, qa), append(c.far, qb)
	}
	return c
}

func (c *crowd) post(t *testing.T, i int, op qp.Op, length int) {
	t.Helper()
	wr := &qp.SendWR{Op: op, Flags: qp.Signaled, SGE: []mr.SGE{c.from.SGE(0, length)}, RemoteAddr: c.to.Addr(), RKey: c.to.Key()}
	if err := c.a.Post(c.near[i], wr); err != nil {
		t.Fatal(err)
	}
	c.open[i]++
}

// take takes completions and returns how many signaled requests are open.
func (c *crowd) take(t *testing.T, want func(i int, s cq.Status) bool) (open int) {
	t.Helper()
	var wcs [64]cq.WC
	for i, q := range c.near {
		if c.over[i] {
			continue
		}
		k := q.SendCQ.Poll(wcs[:])
		for _, wc := range wcs[:k] {
			if !want(i, wc.Status) {
				t.Fatalf("pair %d: %v", i, wc.Status)
			}
		}
		c.completions += k
		if c.open[i] -= k; c.open[i] < 0 {
			t.Fatalf("pair %d: more completions than requests", i)
		}
		open += c.open[i]
	}
	return open
}

func onlySuccess(_ int, s cq.Status) bool { return s == cq.Success }

// Pairs that wait for room at a peer all get their turn, when others are in the
// way that cannot use theirs: destroyed, in ERR, reset and connected anew,
// draining, or told to wait by an RNR NAK.
func TestCrowdGoesOnPastPairsThatCannotUseTheirTurn(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(t *testing.T, c *crowd, i int)
	}{
		{"destroyed", func(t *testing.T, c *crowd, i int) { c.a.Destroy(c.near[i]); c.over[i] = true }},
		{"failed", func(t *testing.T, c *crowd, i int) { c.modify(t, i, qp.Err) }},
		{"reset", func(t *testing.T, c *crowd, i int) { c.modify(t, i, qp.Reset); c.over[i] = true }},
		{"draining", func(t *testing.T, c *crowd, i int) { c.modify(t, i, qp.SQD); c.over[i] = true }},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := sim.New(1, sim.Faults{Delay: 10 * time.Microsecond})
			// Room for one turn: the first pair has it, the others wait.
			c := newCrowd(t, n, 40, 16, 16, sim.DefaultLink())
			for i := range c.near {
				c.post(t, i, qp.RDMAWrite, 64<<10)
			}
			n.RunFor(5 * time.Microsecond)
			for i := 0; i < len(c.near)-1; i++ {
				row.do(t, c, i)
			}
			last := len(c.near) - 1
			err := n.Run(time.Second, func() bool {
				c.take(t, func(i int, s cq.Status) bool { return i != last || s == cq.Success })
				return c.open[last] == 0
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func (c *crowd) modify(t *testing.T, i int, to qp.State) {
	t.Helper()
	if err := c.a.Modify(c.n.Now(), c.near[i], &qp.Attr{State: to}, qp.AttrState); err != nil {
		t.Fatal(err)
	}
}

// A READ whose answers need more room than one turn is served while WRITEs of
// other pairs would take every turn.
func TestCrowdOfWritersDoesNotStarveReads(t *testing.T) {
	n := sim.New(1, sim.Faults{Delay: 10 * time.Microsecond, Rate: 10e9})
	c := newCrowd(t, n, 20, 64, 128, sim.DefaultLink())
	for i := range c.near[1:] {
		for range 4 {
			c.post(t, i+1, qp.RDMAWrite, 64<<10)
		}
	}
	n.RunFor(time.Millisecond)
	c.post(t, 0, qp.RDMARead, 64<<10)
	began := n.Now()
	err := n.Run(time.Second, func() bool {
		c.take(t, onlySuccess)
		for i := range c.near[1:] {
			for c.open[i+1] < 4 {
				c.post(t, i+1, qp.RDMAWrite, 64<<10)
			}
		}
		return c.open[0] == 0
	})
	if err != nil {
		t.Fatal(err)
	}
	// 64 packets are a 20th of what the wire carries for 20 pairs.
	t.Logf("READ of 64 packets: %v, %d WRITEs of 64 meanwhile", n.Now()-began, c.completions)
	if c.completions > 200 {
		t.Errorf("%d WRITEs went ahead of one READ", c.completions)
	}
}

// Whatever is lost, however little room there is, and whatever becomes of some
// pairs: every request of the others completes once.
func TestCrowdCompletesEverythingOverLoss(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 6
	}
	for seed := range uint64(seeds) {
		for _, how := range []transport.Recovery{transport.Selective, transport.GoBackN} {
			t.Run(fmt.Sprintf("seed %d %v", seed, how), func(t *testing.T) { crowdOverLoss(t, seed, how) })
		}
	}
}

func crowdOverLoss(t *testing.T, seed uint64, how transport.Recovery) {
	r := rand.New(rand.NewPCG(seed, 7))
	loss := []float64{0, 0.01, 0.04}[r.IntN(3)]
	n := sim.New(seed, sim.Faults{Delay: 10 * time.Microsecond, Loss: loss, Reorder: 0.02, Jitter: 20 * time.Microsecond, Rate: 10e9})
	n.Recovery = how
	l := sim.DefaultLink()
	l.Timeout, l.Retry = 8, 7
	window := 1 << r.IntN(8)
	c := newCrowd(t, n, 60, window, 1<<(r.IntN(6)+1), l)
	gone := make([]bool, len(c.near))
	left := 600
	var late []int // pairs whose receive is yet to be posted
	err := n.Run(20*time.Second, func() bool {
		open := c.take(t, func(i int, s cq.Status) bool { return s == cq.Success || gone[i] })
		for k := r.IntN(4); k > 0 && left > 0; k-- {
			i := r.IntN(len(c.near))
			if gone[i] || c.open[i] > 30 {
				continue
			}
			left--
			switch op := []qp.Op{qp.RDMAWrite, qp.RDMARead, qp.Send, qp.FetchAdd}[r.IntN(4)]; op {
			case qp.FetchAdd:
				c.post(t, i, op, 8)
			case qp.Send:
				c.post(t, i, op, r.IntN(20<<10))
				late = append(late, i)
			default:
				c.post(t, i, op, r.IntN(crowdMem))
			}
		}
		if len(late) > 0 && (r.IntN(20) == 0 || left == 0) {
			i := late[0]
			late = late[1:]
			if err := c.b.PostRecv(c.far[i], &qp.RecvWR{SGE: []mr.SGE{c.to.SGE(0, crowdMem)}}); err != nil && !gone[i] {
				t.Fatal(err)
			}
		}
		if i := r.IntN(2000); i < len(c.near)/2 && !gone[i] {
			gone[i] = true
			switch r.IntN(4) {
			case 0:
				c.a.Destroy(c.near[i])
				c.over[i] = true
			case 1:
				c.modify(t, i, qp.Err)
			case 2:
				c.modify(t, i, qp.Reset)
				c.over[i] = true
			case 3:
				c.b.Destroy(c.far[i]) // the peer's end: retries run out here
			}
		}
		return left == 0 && open == 0 && len(late) == 0
	})
	if err != nil {
		for i, q := range c.near {
			if c.open[i] > 0 {
				t.Logf("pair %d: %d open, %v, in flight %d", i, c.open[i], q.Attr.State, q.InFlight())
			}
		}
		t.Fatalf("window %d, loss %v: %v", window, loss, err)
	}
}
