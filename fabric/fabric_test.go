package fabric_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/fabric"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

func hostConfig(t testing.TB, name string, rate congestion.BitRate) fabric.HostConfig {
	t.Helper()
	f, err := congestion.ByName(name, congestion.Options{LineRate: rate})
	if err != nil {
		t.Fatal(err)
	}
	return fabric.HostConfig{Link: fabric.Link{Rate: rate, Delay: us}, Congestion: f}
}

// One flow fills its link to the last packet, whatever its controller.
func TestPairFillsTheLink(t *testing.T) {
	names, _ := congestion.Names()
	for _, name := range names {
		for _, rate := range []congestion.BitRate{1e9, 40e9, 100e9} {
			s := fabric.New(1)
			_, port := s.Pair(hostConfig(t, name, rate))
			s.AddFlow(s.Hosts[1], s.Hosts[0], 1024, 0)
			r := s.Record(10*us, 100, port)
			s.Run(2 * ms)
			r.Measure()
			s.Run(12 * ms)
			if u := r.Utilisation(0); u < .999 || u > 1.001 {
				t.Errorf("%s at %v: utilisation %v", name, rate, u)
			}
			if got := s.Flows[0].QP.Stats(); got.Retransmitted != 0 || s.Flows[0].Failed {
				t.Errorf("%s at %v: %+v", name, rate, got)
			}
		}
	}
}

// The same seed gives the same run; another seed gives another one.
func TestSameSeedSameRun(t *testing.T) {
	run := func(seed uint64) (rates []float64, q fabric.QueueStats, end time.Duration) {
		s := fabric.New(seed)
		_, port := s.Incast(4, hostConfig(t, "dcqcn-paper", 40e9))
		port.ECN = &fabric.RED{Kmin: 5000, Kmax: 200000, Pmax: .01}
		for i := range 4 {
			s.AddFlow(s.Hosts[1+i], s.Hosts[0], 1024, 0)
		}
		r := s.Record(10*us, 100, port)
		s.Run(20 * ms)
		return r.Rates(), r.Stats(0), s.Now()
	}
	r1, q1, e1 := run(7)
	r2, q2, e2 := run(7)
	if !reflect.DeepEqual(r1, r2) || q1 != q2 || e1 != e2 {
		t.Errorf("%v %v and %v %v", r1, q1, r2, q2)
	}
	if _, q3, _ := run(8); q3 == q1 {
		t.Error("another seed gives the same queue")
	}
}

// A full buffer drops; nothing is lost but by that, and flows that slow down
// recover. (Those that do not offer eight times what the link carries, for ever.)
func TestBufferDropsAndFlowsRecover(t *testing.T) {
	s := fabric.New(1)
	sw, port := s.Incast(8, hostConfig(t, congestion.DefaultName, 40e9))
	sw.Buffer = 300_000
	for i := range 8 {
		s.AddFlow(s.Hosts[1+i], s.Hosts[0], 1024, 0)
	}
	s.Run(20 * ms)
	if sw.Drops == 0 || port.Peak > sw.Buffer {
		t.Errorf("%d drops, peak %d", sw.Drops, port.Peak)
	}
	for i, f := range s.Flows {
		if f.Failed || f.Completed == 0 || f.QP.Stats().Retransmitted == 0 {
			t.Errorf("flow %d: failed %v, %d completed, %+v", i, f.Failed, f.Completed, f.QP.Stats())
		}
	}
}

// With priority flow control the same load loses nothing.
func TestPFCDropsNothing(t *testing.T) {
	s := fabric.New(1)
	sw, port := s.Incast(8, hostConfig(t, "none", 40e9))
	// 8 links may each hold Pause, and what is under way when it is told.
	sw.Buffer, sw.PFC = 300_000, &fabric.PFC{Pause: 20_000, Resume: 10_000}
	for i := range 8 {
		s.AddFlow(s.Hosts[1+i], s.Hosts[0], 1024, 0)
	}
	r := s.Record(10*us, 100, port)
	s.Run(20 * ms)
	if sw.Drops != 0 || sw.Pauses == 0 {
		t.Errorf("%d drops, %d pauses", sw.Drops, sw.Pauses)
	}
	if u := r.Utilisation(0); u < .99 {
		t.Errorf("utilisation %v", u)
	}
	if j := fabric.Jain(r.Rates()); j < .99 {
		t.Errorf("rates %v", r.Rates())
	}
	for i, f := range s.Flows {
		if f.QP.Stats().Retransmitted != 0 || f.From.Port.Paused == 0 {
			t.Errorf("flow %d: %+v, paused %v", i, f.QP.Stats(), f.From.Port.Paused)
		}
	}
}

// A dynamic threshold leaves a queue its share of what is free, no more.
func TestDynamicThresholdBoundsTheQueue(t *testing.T) {
	s := fabric.New(1)
	sw, port := s.Incast(8, hostConfig(t, "none", 40e9))
	sw.Buffer, sw.Alpha = 600_000, 1
	for i := range 8 {
		s.AddFlow(s.Hosts[1+i], s.Hosts[0], 1024, 0)
	}
	s.Run(5 * ms)
	if port.Peak > 300_000 || port.Peak < 290_000 {
		t.Errorf("peak %d, want half of the buffer", port.Peak)
	}
}

// Between switches routes are the shortest; the bottleneck of a dumbbell is its
// middle, and flows share it.
func TestDumbbellSharesTheMiddle(t *testing.T) {
	s := fabric.New(1)
	c := hostConfig(t, "dcqcn-paper", 40e9)
	c.MaxBatch = 1
	port := s.Dumbbell(2, c, c.Link)
	port.ECN = &fabric.RED{Kmin: 5000, Kmax: 200000, Pmax: .01}
	s.AddFlow(s.Hosts[0], s.Hosts[2], 1024, 0)
	s.AddFlow(s.Hosts[1], s.Hosts[3], 1024, 0)
	r := s.Record(10*us, 100, port)
	s.Run(50 * ms)
	r.Measure()
	s.Run(100 * ms)
	if u, j := r.Utilisation(0), fabric.Jain(r.Rates()); u < .99 || j < .95 {
		t.Errorf("utilisation %v, rates %v", u, r.Rates())
	}
	if port.Marked == 0 || s.Flows[0].QP.Flow(s.Now()).CNPsHandled == 0 {
		t.Error("nothing was marked")
	}
}

// A pace is kept exactly, and is not bound by the link.
func TestPaceInTheFabric(t *testing.T) {
	p := congestion.PaperDCQCN()
	p.MaxRate = 7 * congestion.Gbps
	f, err := p.Factory(congestion.Options{LineRate: 40e9})
	if err != nil {
		t.Fatal(err)
	}
	for _, batch := range []int{0, 1} {
		s := fabric.New(1)
		_, port := s.Pair(fabric.HostConfig{Link: fabric.Link{Rate: 40e9, Delay: us}, Congestion: f, MaxBatch: batch})
		s.AddFlow(s.Hosts[1], s.Hosts[0], 1024, 0)
		r := s.Record(us, 1000, port)
		s.Run(ms)
		r.Measure()
		s.Run(21 * ms)
		if got := r.Rates()[0]; math.Abs(got-7e9) > 7e9/1000 {
			t.Errorf("batch %d: %v", batch, got)
		}
		// A single packet never waits; of a batch of 43,750 bytes at 40 Gb/s,
		// nothing does either, since the host's own link is as slow.
		if port.Peak > 2*1068 {
			t.Errorf("batch %d: a queue of %d bytes", batch, port.Peak)
		}
	}
}

// Once warm the simulator allocates nothing.
func TestFabricAllocatesNothing(t *testing.T) {
	s := fabric.New(1)
	c := hostConfig(t, "dcqcn", 40e9)
	_, port := s.Incast(4, c)
	port.ECN = &fabric.RED{Kmin: 5000, Kmax: 200000, Pmax: .01}
	for i := range 4 {
		s.AddFlow(s.Hosts[1+i], s.Hosts[0], 1024, 0)
	}
	s.Run(10 * ms)
	if n := testing.AllocsPerRun(10, func() { s.Run(s.Now() + ms) }); n != 0 {
		t.Errorf("%v allocations in a millisecond", n)
	}
}

func TestScenarioByName(t *testing.T) {
	seen := map[string]bool{}
	for _, sc := range fabric.Scenarios() {
		if seen[sc.Name] || sc.Title == "" || sc.Note == "" {
			t.Errorf("%+v", sc)
		}
		seen[sc.Name] = true
		if got, err := fabric.ScenarioByName(sc.Name); err != nil || got.Title != sc.Title {
			t.Errorf("%s: %v", sc.Name, err)
		}
	}
	if _, err := fabric.ScenarioByName("s1"); err != nil {
		t.Error(err)
	}
	if _, err := fabric.ScenarioByName("S99"); err == nil {
		t.Error("S99 exists")
	}
	if _, err := fabric.Scenarios()[0].Run(t.Context(), fabric.Options{Congestion: "cubic"}); err == nil {
		t.Error("cubic exists")
	}
}
