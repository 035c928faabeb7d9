package fabric

import (
	"math"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
)

// sink is a node that counts what it gets, by the queue that the packet left
// behind.
type sink struct{ got func(p *packet) }

func (*sink) attach(*Port)        {}
func (s *sink) receive(p *packet) { s.got(p) }
func (*sink) left(*Port, *packet) {}
func (*sink) act(kind, *packet)   {}
func ect(serial uint16, class uint8) *packet {
	return &packet{path: bth.Path{SrcPort: serial, TrafficClass: class}, length: 1000}
}

// 2100 packets of 1 KB drain 200 times through a marker with Kmin 500 KB, Kmax
// 2000 KB, Pmax 5 %: the share of marks lies on the line, within three standard
// deviations, and is 1 above Kmax. Packets that are not ECN-capable keep their
// bits.
func TestREDMarksOnTheLine(t *testing.T) {
	for _, enqueue := range []bool{false, true} {
		const packets, rounds, bucket = 2100, 200, 100
		var marked, all [packets/bucket + 1]int
		s := New(3)
		in, out := &sink{}, &sink{}
		p := &Port{sim: s, owner: in, peer: out, Link: Link{Rate: 1e9}, ECN: &RED{Kmin: 500_000, Kmax: 2_000_000, Pmax: .05, Enqueue: enqueue}}
		out.got = func(k *packet) {
			serial := int(k.path.SrcPort)
			queue := packets - 1 - serial // behind it when it left
			if enqueue {
				queue = serial // before it when it came
			}
			if all[queue/bucket]++; k.path.TrafficClass&3 == 3 {
				marked[queue/bucket]++
			}
		}
		for range rounds {
			p.act(pause, nil)
			for i := range packets {
				p.enqueue(ect(uint16(i), 2))
			}
			p.act(resume, nil)
			s.Run(s.now + time.Second)
		}
		for b := range marked[:packets/bucket] {
			want := 0.
			for q := b * bucket; q < (b+1)*bucket; q++ {
				want += p.ECN.probability(q*1000) / bucket
			}
			got, sigma := float64(marked[b])/float64(all[b]), math.Sqrt(want*(1-want)/float64(all[b]))
			if all[b] != bucket*rounds || math.Abs(got-want) > 3*sigma+1e-12 {
				t.Errorf("enqueue=%v, %d KB: %v of %d marked, want %v ± %v", enqueue, b*bucket, got, all[b], want, 3*sigma)
			}
		}
	}
}

func TestREDLeavesOthersAlone(t *testing.T) {
	s := New(1)
	out := &sink{}
	p := &Port{sim: s, owner: &sink{}, peer: out, Link: Link{Rate: 1e9}, ECN: &RED{Kmax: 1}}
	var got []uint8
	out.got = func(k *packet) { got = append(got, k.path.TrafficClass) }
	for _, class := range []uint8{0, 1, 2, 3, 0x68, 0x6A} {
		p.enqueue(ect(0, class))
	}
	p.enqueue(ect(0, 0)) // so that each of them leaves a queue
	p.enqueue(ect(0, 0))
	s.Run(time.Second)
	want := []uint8{0, 3, 3, 3, 0x68, 0x6B, 0, 0}
	if string(got) != string(want) {
		t.Errorf("%#x, want %#x", got, want)
	}
}

// CNPs overtake data and pass a pause.
func TestPortPriorityOfCNPs(t *testing.T) {
	s := New(1)
	out := &sink{}
	p := &Port{sim: s, owner: &sink{}, peer: out, Link: Link{Rate: 8e9, Delay: 5 * time.Microsecond}}
	var got []uint16
	var at []time.Duration
	out.got = func(k *packet) { got, at = append(got, k.path.SrcPort), append(at, s.now) }
	for i := range uint16(3) {
		p.enqueue(ect(i, 2))
	}
	cnp := ect(9, 2)
	cnp.control = true
	p.enqueue(cnp)
	p.act(pause, nil)
	s.Run(100 * time.Microsecond)
	if len(got) != 2 || got[0] != 0 || got[1] != 9 || at[0] != 6*time.Microsecond || at[1] != 7*time.Microsecond {
		t.Fatalf("%v at %v", got, at)
	}
	p.act(resume, nil)
	s.Run(200 * time.Microsecond)
	if len(got) != 4 || got[3] != 2 || at[3] != 107*time.Microsecond || p.Paused != 100*time.Microsecond || p.Queue != 0 {
		t.Fatalf("%v at %v, paused %v", got, at, p.Paused)
	}
}

// The heap gives events in the order of their times, then of their making.
func TestEventsKeepTheirOrder(t *testing.T) {
	s := New(5)
	for round := range 1000 {
		for range s.rng.IntN(20) {
			s.at(s.now+time.Duration(s.rng.IntN(10)), nil, kind(0), nil)
		}
		var last event
		for range s.rng.IntN(len(s.events) + 1) {
			e := s.events.pop()
			if e.at < last.at || e.at == last.at && e.serial < last.serial {
				t.Fatalf("round %d: %v after %v", round, e, last)
			}
			last = e
			s.now = max(s.now, e.at)
		}
	}
}
