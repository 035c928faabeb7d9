package main

import (
	"fmt"
	"time"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/verbs"
)

// linkRate is that of all links. A packet with 1024 bytes takes 43 µs: a shared
// machine keeps up with that, so that the link is what limits, and 100 µs, the
// round of the switch, are few packets.
const linkRate = 200 * congestion.Mbps

// pathMTU and the MTU of the interfaces that it fits.
const (
	pathMTU  = 1024
	etherMTU = 1500
)

// The conditions of the bottleneck. Kmin is 0.8 ms of the link and Kmax 4 ms: hosts
// that share processors are away for about a millisecond now and then, and what they
// send at once when they come back is no congestion. The limit is 16 ms.
const (
	kmin  = 20_000
	kmax  = 100_000
	pmax  = .1
	limit = 400_000
)

// path is a path with room for a whole window, which loses packets or holds them
// back, both ways.
func path(loss, reorder float64, by int) []Conditions {
	c := Conditions{In: linkRate, Rate: linkRate, Limit: 1 << 20, Loss: loss, Reorder: reorder, ReorderBy: by}
	return []Conditions{c, c}
}

// overLoss is one flow with chance losses.
func overLoss(op qp.Op, loss float64, how transport.Recovery, length time.Duration) traffic {
	return traffic{
		name: fmt.Sprintf("%v, loss %g, %s", op, loss, recoveryNames[how]), op: op, flows: [][2]int{{0, 1}}, pathMTU: pathMTU, seed: 1,
		devices: verbs.Config{Recovery: how}, warm: length / 4, length: length, conditions: path(loss, 0, 0),
	}
}

var recoveryNames = [...]string{transport.Selective: "selective", transport.Alone: "alone", transport.GoBackN: "go-back-N"}

// reordered is one flow of whose packets one in twenty is overtaken by others.
func reordered(op qp.Op, by int, length time.Duration) traffic {
	return traffic{
		name: fmt.Sprintf("%v, reordered by %d", op, by), op: op, flows: [][2]int{{0, 1}}, pathMTU: pathMTU, seed: 1,
		warm: length / 4, length: length, conditions: path(0, .05, by),
	}
}

// A control is how the flows of an incast are controlled.
type control struct {
	name string // that the table has
	verbs.Config
}

// The controls. Those of adapters and of the paper are for 25 and 40 Gb/s: their
// clocks tick in microseconds, a hundredth of what a packet takes here, and a step of
// their rates is a good part of the line.
var (
	byDefault    = named(congestion.DefaultName)
	uncontrolled = named("none")
	adapters     = named("dcqcn")
	slowDCQCN    = control{"dcqcn, slowed", verbs.Config{Congestion: slowed(), CNP: congestion.NotificationPoint{MinTimeBetweenCNPs: slowness * 50 * time.Microsecond}}}
)

func named(name string) control {
	return control{name, verbs.Config{CongestionName: name, LineRate: linkRate}}
}

// slowness is how much longer the loop of the control takes here than where the
// published parameters are from, as the time that a queue of Kmax bytes takes: 4 ms
// instead of 40 µs, which is 200 KB at 40 Gb/s, and rather less than more.
const slowness = 80

// slowed returns DCQCN with the published parameters, but all times as many times
// longer. The step is the least that there is, 1/200 of the line.
func slowed() congestion.Factory {
	p := congestion.PaperDCQCN()
	p.DCETCPRTT *= slowness
	p.TimeReset *= slowness
	p.ByteReset = 0 // 10 MB are half a second here
	p.MinRate, p.AIRate = congestion.Mbps, congestion.Mbps
	f, err := p.Factory(congestion.Options{LineRate: linkRate})
	if err != nil {
		panic(err) // the parameters are constants
	}
	return f
}

// patient is a local ACK timeout of 0.5 s: flows without control can lock each other
// out for longer than seven timeouts of the usual 67 ms take.
const patient = 17

// incast is a number of hosts that send to the first one, whose port marks.
func incast(op qp.Op, flows int, c control, length time.Duration) traffic {
	t := traffic{
		name: fmt.Sprintf("%d flows, %s", flows, c.name), op: op, pathMTU: pathMTU, seed: 1, ackTimeout: patient,
		devices: c.Config, warm: length / 2, length: length,
	}
	for i := range flows + 1 {
		t.conditions = append(t.conditions, Conditions{In: linkRate, Rate: linkRate, Limit: limit, Kmin: kmin, Kmax: kmax, Pmax: pmax})
		if i > 0 {
			t.flows = append(t.flows, [2]int{i, 0})
		}
	}
	return t
}

// lossTargets are the shares of the goodput without loss to be reached, and those that
// are reached on a host that other work keeps busy as well: each loss then costs time
// in which one of the ends waits for a processor.
var lossTargets = []struct{ loss, share, busy float64 }{{1e-4, .99, .85}, {1e-3, .95, .75}, {1e-2, .80, .55}}

// The other targets.
const (
	reorderTarget     = .8
	jainTarget        = .95
	utilisationTarget = .9
	// queueTarget bounds the mean queue: Kmax, beyond which there is no grading.
	queueTarget = kmax
)

// payloadShare is the part of a link's bytes that is payload of RDMA WRITE: headers
// of Ethernet, IPv4, UDP and BTH, and the ICRC.
const payloadShare = pathMTU / (pathMTU + 14. + 20 + 8 + 12 + 4)

// share returns the payload of all flows as a part of the link's rate.
func (o *outcome) share() float64 { return o.bits() / float64(linkRate) }

func (o *outcome) atLeast(share float64) error {
	if o.share() < share {
		return fmt.Errorf("the payload is %.3f of the link, want %.3f", o.share(), share)
	}
	return nil
}

func (o *outcome) utilised(least float64) error {
	if u := o.utilisation(o.traffic.flows[0][1]); u < least {
		return fmt.Errorf("the link is used to %.3f, want %.3f", u, least)
	}
	return nil
}

// fair checks flows that meet, against Jain's index and the use of the link.
func (o *outcome) fair(jain, used float64) error {
	if j := o.jain(); j < jain {
		return fmt.Errorf("fairness by Jain's index is %.3f, want %.2f", j, jain)
	}
	if q := o.sw.Ports[0].Queue.Mean; q > queueTarget {
		return fmt.Errorf("the queue has %.0f bytes in the mean, want at most %d", q, queueTarget)
	}
	return o.utilised(used)
}

// valid says what makes the figures of a run worthless.
func (o *outcome) valid() error {
	if s := o.sw; s.Overrun+s.NoFrame+s.SendErrors+s.TooLong > 0 {
		return fmt.Errorf("the switch did not keep up: %d frames overran its sockets, %d found no room, %d could not be sent, %d were several in one", s.Overrun, s.NoFrame, s.SendErrors, s.TooLong)
	}
	return nil
}

// String sums the run up in a line.
func (o *outcome) String() string {
	p := &o.sw.Ports[o.traffic.flows[0][1]]
	s := fmt.Sprintf("%s: %.1f Mb/s payload, link used to %.3f; queue mean %.0f, p99 %d, max %d bytes; lost %d, dropped %d, marked %d, CNPs %d",
		o.name, o.bits()/1e6, o.utilisation(o.traffic.flows[0][1]), p.Queue.Mean, p.Queue.P99, p.Queue.Max, p.Lost, p.DroppedFull+p.DroppedRED, p.Marked, o.stat("rp_cnp_handled"))
	if len(o.flows) > 1 {
		s += fmt.Sprintf(", Jain's index %.4f", o.jain())
	}
	return s + fmt.Sprintf("; resent %d, verified %d messages", o.stat("retransmitted_pkts"), o.messages())
}

// messages returns how many messages were verified.
func (o *outcome) messages() (n uint64) {
	for _, f := range o.flows {
		n += f.messages
	}
	return n
}

// utilisation returns which part of a port's rate was used while it counted.
func (o *outcome) utilisation(port int) float64 {
	return float64(o.sw.Ports[port].Bytes) * 8 / (o.sw.Now - o.sw.Mark).Seconds() / float64(o.conditions[port].Rate)
}

// jain returns Jain's index of the flows' payload.
func (o *outcome) jain() float64 {
	sum, squares := 0., 0.
	for _, f := range o.flows {
		sum += f.bits
		squares += f.bits * f.bits
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(o.flows)) * squares)
}

// bits returns the payload of all flows per second.
func (o *outcome) bits() (sum float64) {
	for _, f := range o.flows {
		sum += f.bits
	}
	return sum
}

// stat returns a statistic of all hosts together.
func (o *outcome) stat(name string) (sum uint64) {
	for _, s := range o.stats {
		sum += s[name]
	}
	return sum
}
