package fabric

import (
	"math"
	"slices"
	"time"
)

// Recorder samples ports and flows while a fabric runs.
type Recorder struct {
	// Ports are the ports whose queues are recorded.
	Ports []*Port
	// QueueTime has the end of each row of Queue, the mean queue in it, in bytes,
	// by port. Time has that of the other curves, ten times as far apart: Rate is
	// what arrived, in bits/s, by flow; Pace the rate or 0, and Window the window
	// of the flow's controller at its end; CNPs how many CNPs each flow's sender
	// has handled by then.
	QueueTime, Time []time.Duration

	Queue  [][]float64
	Rate   [][]float64
	Pace   [][]float64
	Window [][]float64
	CNPs   [][]float64

	sim     *Sim
	step    time.Duration
	perRow  int
	n       int // samples in this row
	fine    int // and in this one of Queue
	sums    []float64
	arrived []uint64

	samples [][]int32 // queues since Measure, by port
	from    time.Duration
	bytes   []uint64 // of the ports and of the flows at Measure
	flow    []uint64
	done    []uint64
}

// Record starts a recorder that looks at the queues every step, and makes a row
// of the curves of every perRow looks, a multiple of ten. Add all flows before.
func (s *Sim) Record(step time.Duration, perRow int, ports ...*Port) *Recorder {
	r := &Recorder{
		Ports: ports, sim: s, step: step, perRow: perRow, sums: make([]float64, len(ports)), arrived: make([]uint64, len(s.Flows)),
		samples: make([][]int32, len(ports)), bytes: make([]uint64, len(ports)), flow: make([]uint64, len(s.Flows)), done: make([]uint64, len(s.Flows)),
	}
	r.Queue, r.Rate, r.Pace, r.Window, r.CNPs = table(ports), table(s.Flows), table(s.Flows), table(s.Flows), table(s.Flows)
	s.at(s.now+step, r, sampling, nil)
	return r
}

func table[T any](l []T) [][]float64 { return make([][]float64, len(l)) }

func (r *Recorder) act(kind, *packet) {
	for i, p := range r.Ports {
		r.sums[i] += float64(p.Queue)
		r.samples[i] = append(r.samples[i], int32(min(p.Queue, math.MaxInt32)))
	}
	if r.fine++; r.fine*10 >= r.perRow {
		r.queueRow()
	}
	if r.n++; r.n == r.perRow {
		r.row()
	}
	r.sim.at(r.sim.now+r.step, r, sampling, nil)
}

func (r *Recorder) queueRow() {
	r.QueueTime = append(r.QueueTime, r.sim.now)
	for i := range r.Ports {
		r.Queue[i] = append(r.Queue[i], r.sums[i]/float64(r.fine))
		r.sums[i] = 0
	}
	r.fine = 0
}

func (r *Recorder) row() {
	r.Time = append(r.Time, r.sim.now)
	span := (time.Duration(r.n) * r.step).Seconds()
	for i, f := range r.sim.Flows {
		r.Rate[i] = append(r.Rate[i], float64(f.Arrived-r.arrived[i])*8/span)
		r.arrived[i] = f.Arrived
		state := f.QP.Flow(r.sim.now)
		r.Pace[i] = append(r.Pace[i], float64(state.Rate))
		r.Window[i] = append(r.Window[i], float64(state.Window))
		r.CNPs[i] = append(r.CNPs[i], float64(state.CNPsHandled))
	}
	r.n = 0
}

// Measure starts a span of measurement, which the methods below are about.
func (r *Recorder) Measure() {
	r.from = r.sim.now
	for i, p := range r.Ports {
		r.samples[i] = r.samples[i][:0]
		r.bytes[i] = p.SentBytes
	}
	for i, f := range r.sim.Flows {
		r.flow[i], r.done[i] = f.Arrived, f.Completed
	}
}

// Rates returns what arrived of each flow, in bits/s.
func (r *Recorder) Rates() (rates []float64) {
	span := (r.sim.now - r.from).Seconds()
	for i, f := range r.sim.Flows {
		rates = append(rates, float64(f.Arrived-r.flow[i])*8/span)
	}
	return rates
}

// Goodput returns what each flow completed, in bits/s of payload.
func (r *Recorder) Goodput() (rates []float64) {
	span := (r.sim.now - r.from).Seconds()
	for i, f := range r.sim.Flows {
		rates = append(rates, float64(f.Completed-r.done[i])*8/span)
	}
	return rates
}

// Utilisation returns the share of the port's rate that was used.
func (r *Recorder) Utilisation(port int) float64 {
	p := r.Ports[port]
	return float64(p.SentBytes-r.bytes[port]) * 8 / (r.sim.now - r.from).Seconds() / float64(p.Rate)
}

// QueueStats are statistics of a queue in bytes.
type QueueStats struct{ Mean, SD, P1, Median, P99 float64 }

// Stats returns those of a port's queue.
func (r *Recorder) Stats(port int) (q QueueStats) {
	l := slices.Clone(r.samples[port])
	if len(l) == 0 {
		return q
	}
	slices.Sort(l)
	var sum, squares float64
	for _, v := range l {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	n := float64(len(l))
	q.Mean = sum / n
	q.SD = math.Sqrt(max(0, squares/n-q.Mean*q.Mean))
	at := func(share float64) float64 { return float64(l[int(share*(n-1))]) }
	q.P1, q.Median, q.P99 = at(.01), at(.5), at(.99)
	return q
}

// Jain returns Jain's index of fairness: 1 if all are equal, 1/n if one has all.
func Jain(rates []float64) float64 {
	var sum, squares float64
	for _, r := range rates {
		sum += r
		squares += r * r
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(rates)) * squares)
}
