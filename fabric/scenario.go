package fabric

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/goroce/goroce/congestion"
)

// Scenario is an experiment with known results. It has one or several runs, each
// in a fabric of its own.
type Scenario struct {
	// Name is short, such as "S1"; Title says what happens, Note how the
	// scenario is set up so that what is expected can be compared.
	Name, Title, Note string

	plans []plan
	// across checks what follows from all runs together.
	across func(runs []*Run) []Check
}

// Options say how a scenario is run.
type Options struct {
	// Seed decides where chance does. The tests use 1; another seed may come out
	// a little beyond a bound now and then.
	Seed uint64
	// Congestion, if set, names a controller of congestion.ByName that takes the
	// place of the scenario's own. The checks then show what differs.
	Congestion string
	// Progress, if set, is told the share that is done, 0 to 1.
	Progress func(done float64)
}

// Result is what came of a scenario.
type Result struct {
	Scenario   Scenario
	Seed       uint64
	Congestion string // of all flows
	Runs       []*Run
	Across     []Check
}

// Run is one run of a scenario.
type Run struct {
	Name   string
	Length time.Duration // virtual
	Events uint64
	*Recorder
	Sim    *Sim
	Port   *Port // the bottleneck, the first if there are several
	Checks []Check
}

// Check compares a figure with what is expected of it.
type Check struct {
	What, Unit     string
	Expected       string // from where the bounds come, in words
	Low, High, Got float64
}

// OK reports whether the figure is inside its bounds.
func (c Check) OK() bool { return c.Got >= c.Low && c.Got <= c.High }

// Checks returns all checks with the names of their runs.
func (r *Result) Checks() (checks []Check) {
	for _, run := range r.Runs {
		for _, c := range run.Checks {
			if run.Name != "" {
				c.What = run.Name + ": " + c.What
			}
			checks = append(checks, c)
		}
	}
	return append(checks, r.Across...)
}

// plan describes one run.
type plan struct {
	name string
	// An incast of flows, or a parking lot of lots links.
	flows, lots int
	rate        congestion.BitRate
	rtt         time.Duration // without queues
	red         *RED
	dcqcn       congestion.DCQCNParams
	control     string // a named controller instead
	np          congestion.NotificationPoint
	starts      []time.Duration // of the flows; default within 1 µs of 0
	seed        uint64          // added to that of the scenario
	buffer      int
	alpha       float64
	batch       int // bytes
	length      time.Duration
	warm        time.Duration // before the measurement
	checks      func(r *Run) []Check
}

const (
	mtu = 1024
	// longest is an IP packet of a flow: BTH, payload, ICRC, UDP and IPv4.
	longest = mtu + 12 + 4 + 28
	// wide is a window that never limits a paced flow.
	wide = 8192
	// lookAt and perRow give 10 µs between looks at the queues and a row of the
	// curves each millisecond.
	lookAt = 10 * time.Microsecond
	perRow = 100
)

// ScenarioByName finds a scenario. Case does not matter.
func ScenarioByName(name string) (Scenario, error) {
	var names []string
	for _, s := range Scenarios() {
		if strings.EqualFold(s.Name, name) {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Scenario{}, fmt.Errorf("fabric: no scenario is called %q; there are %s", name, strings.Join(names, ", "))
}

// Run runs the scenario. It ends early with the context's error.
func (sc Scenario) Run(ctx context.Context, o Options) (*Result, error) {
	r := &Result{Scenario: sc, Seed: o.Seed, Congestion: o.Congestion}
	for i, p := range sc.plans {
		run, err := p.run(ctx, o, func(done float64) {
			if o.Progress != nil {
				o.Progress((float64(i) + done) / float64(len(sc.plans)))
			}
		})
		if err != nil {
			return nil, err
		}
		r.Runs = append(r.Runs, run)
	}
	if sc.across != nil {
		r.Across = sc.across(r.Runs)
	}
	return r, nil
}

func (p *plan) run(ctx context.Context, o Options, progress func(float64)) (*Run, error) {
	s := New(o.Seed + p.seed)
	host := HostConfig{Link: Link{Rate: p.rate}.RoundTrip(p.rtt, 2, longest), CNP: p.np, MaxBatch: max(1, p.batch)}
	var err error
	if o.Congestion != "" {
		host.CNP = congestion.NotificationFor(o.Congestion)
	}
	if host.Congestion, err = p.controller(o.Congestion); err != nil {
		return nil, err
	}
	run := &Run{Name: p.name, Length: p.length, Sim: s}
	ports := p.build(s, host)
	run.Port = ports[0]
	run.Recorder = s.Record(lookAt, perRow, ports...)
	s.Run(p.warm)
	run.Measure()
	const steps = 100
	for i := range steps {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.Run(p.warm + (p.length-p.warm)*time.Duration(i+1)/steps)
		progress(s.Now().Seconds() / p.length.Seconds())
	}
	run.Events = s.serial
	run.Checks = p.checks(run)
	return run, nil
}

// controller returns what makes the flows' controllers.
func (p *plan) controller(override string) (congestion.Factory, error) {
	switch {
	case override != "":
		return congestion.ByName(override, congestion.Options{LineRate: p.rate})
	case p.control != "":
		return congestion.ByName(p.control, congestion.Options{LineRate: p.rate})
	}
	return p.dcqcn.Factory(congestion.Options{LineRate: p.rate, Window: wide})
}

// build makes hosts, switches and flows, and returns the bottlenecks.
func (p *plan) build(s *Sim, c HostConfig) (ports []*Port) {
	if p.lots > 0 {
		ports = s.ParkingLot(p.lots, c, c.Link)
		for i := range p.lots + 1 { // the long one, then those that cross one link
			s.AddFlow(s.Hosts[2*i], s.Hosts[2*i+1], mtu, s.jitter())
		}
	} else {
		sw, port := s.Incast(p.flows, c)
		sw.Buffer, sw.Alpha = p.buffer, p.alpha
		ports = []*Port{port}
		for i := range p.flows {
			at := s.jitter()
			if p.starts != nil {
				at += p.starts[i]
			}
			s.AddFlow(s.Hosts[1+i], s.Hosts[0], mtu, at)
		}
	}
	for _, port := range ports {
		port.ECN = p.red
	}
	return ports
}

// jitter spreads the starts of flows over a microsecond.
func (s *Sim) jitter() time.Duration { return time.Duration(s.rng.IntN(1000)) }

// between makes a check with bounds.
func between(what, unit string, got, low, high float64, expected string) Check {
	return Check{What: what, Unit: unit, Got: got, Low: low, High: high, Expected: expected}
}

// near makes a check for a value with a relative tolerance.
func near(what, unit string, got, want, tolerance float64) Check {
	return between(what, unit, got, want*(1-tolerance), want*(1+tolerance), fmt.Sprintf("%.4g ± %.0f %%", want, 100*tolerance))
}

func atLeast(what, unit string, got, low float64) Check {
	return between(what, unit, got, low, math.Inf(1), fmt.Sprintf("≥ %.4g", low))
}

func atMost(what, unit string, got, high float64) Check {
	return between(what, unit, got, math.Inf(-1), high, fmt.Sprintf("≤ %.4g", high))
}

// rates checks the slowest and the fastest flow.
func rates(r *Run, low, high float64, expected string) []Check {
	slow, fast := math.Inf(1), 0.
	for _, v := range r.Rates() {
		slow, fast = min(slow, v/1e9), max(fast, v/1e9)
	}
	return []Check{
		between("slowest flow", "Gb/s", slow, low, high, expected),
		between("fastest flow", "Gb/s", fast, low, high, expected),
	}
}

// fair checks that every flow has want, in Gb/s, with a relative tolerance.
func fair(r *Run, want, tolerance float64) []Check {
	return rates(r, want*(1-tolerance), want*(1+tolerance), fmt.Sprintf("%.4g ± %.0f %%", want, 100*tolerance))
}
