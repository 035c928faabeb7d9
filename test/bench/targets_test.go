package main

import (
	"strings"
	"testing"
)

// madeUp returns results in which each cell of the plan has the same sample, but
// for what change says.
func madeUp(change func(c cell) float64) *results {
	r := &results{Conditions: conditions{Rounds: 3, Tools: map[string]string{"iperf3": "iperf 3.12"}}}
	for _, place := range []string{loopback, veth} {
		for _, c := range planFor(place, false) {
			s := &series{cell: c, Unit: c.Metric.unit()}
			for range 3 {
				v := change(c)
				s.Samples = append(s.Samples, v)
				s.P99 = append(s.P99, 2*v)
				cpu := nan
				if c.Metric == bandwidth && c.Tool != "UCX" {
					cpu = 0.5
				}
				s.CPU = append(s.CPU, cpu)
			}
			r.Series = append(r.Series, s)
		}
	}
	r.Idle = []idleReading{{QPs: idleCount, Seconds: 0.5, BytesPerQP: 8192}}
	r.Guest = []guestReading{
		{Kind: rxeBandwidth, Own: reading{Gbps: 2.6}, RXE: reading{Gbps: 2}},
		{Kind: rxeRate, Own: reading{Mpps: 1}, RXE: reading{Mpps: 0.1}},
	}
	return r
}

// atTheLimit meets every target, and most by nothing.
func atTheLimit(c cell) float64 {
	switch {
	case c.Metric == latency && c.Tool == "goroce" && c.Events:
		return 15
	case c.Metric == latency && c.Tool == "goroce":
		return 2.5
	case c.Metric == latency && c.Tool == "floor":
		return 2
	case c.Metric == latency && c.Events:
		return 10
	case c.Metric == latency:
		return 2.6
	case c.Metric == rate:
		return 2.5
	case c.Metric == queues && c.QPs == 1000:
		return 85
	case c.Metric == queues:
		return 100
	case c.Tool == "goroce" && c.Size == 64<<10:
		return 26
	case c.Tool == "goroce":
		return 30
	case c.Tool == "floor":
		return 40
	}
	return 20
}

func TestTargetsAreMetAtTheirLimits(t *testing.T) {
	r := madeUp(atTheLimit)
	r.finish()
	if len(r.Verdicts) < 15 {
		t.Fatalf("%d targets", len(r.Verdicts))
	}
	for _, v := range r.Verdicts {
		if v.Met != "yes" {
			t.Errorf("%s, %s: measured %s, met: %s", v.What, v.Limit, v.Figure, v.Met)
		}
	}
}

// A little worse, and none is met: each target looks at a figure of its own.
func TestTargetsAreMissedBelowTheirLimits(t *testing.T) {
	r := madeUp(func(c cell) float64 {
		v := atTheLimit(c)
		switch {
		case c.Tool == "goroce" && c.Metric == latency:
			return v * 1.05
		case c.Tool == "goroce" && (c.Metric != queues || c.QPs == 1000):
			return v * 0.95
		}
		return v
	})
	r.Idle[0].Seconds, r.Idle[0].BytesPerQP = 2, 8200
	for i := range r.Guest {
		r.Guest[i].Own.Gbps *= 0.95
		r.Guest[i].Own.Mpps *= 0.95
	}
	r.finish()
	for _, v := range r.Verdicts {
		if v.Met != "no" {
			t.Errorf("%s, %s: measured %s, met: %s", v.What, v.Limit, v.Figure, v.Met)
		}
	}
}

// "Below" is not met by being equal.
func TestTargetBelowIsNotMetByTheSame(t *testing.T) {
	r := madeUp(func(cell) float64 { return 3 })
	r.finish()
	for _, v := range r.Verdicts {
		if strings.HasPrefix(v.Limit, "<") && strings.Contains(v.What, "latency") && v.Met != "no" {
			t.Errorf("%s, %s: measured %s, met: %s", v.What, v.Limit, v.Figure, v.Met)
		}
	}
}

func TestTargetsWithoutFiguresAreNotMeasured(t *testing.T) {
	r := madeUp(func(cell) float64 { return nan })
	r.Idle, r.Guest = nil, nil
	r.finish()
	for _, v := range r.Verdicts {
		if v.Met != "not measured" {
			t.Errorf("%s: met: %s, with nothing measured", v.What, v.Met)
		}
	}
}

// What the targets compare has to be in the plan, also in the quick one.
func TestPlanHasWhatTargetsNeed(t *testing.T) {
	for _, quick := range []bool{false, true} {
		r := &results{Idle: []idleReading{{}}, Guest: []guestReading{{Kind: rxeBandwidth, Own: reading{Gbps: 1}, RXE: reading{Gbps: 1}}, {Kind: rxeRate, Own: reading{Mpps: 1}, RXE: reading{Mpps: 1}}}}
		for _, c := range planFor(loopback, quick) {
			r.Series = append(r.Series, &series{cell: c, Samples: figures{1}})
		}
		for _, v := range judge(r) {
			if v.Met == "not measured" {
				t.Errorf("quick %v: nothing in the plan for %s", quick, v.What)
			}
		}
	}
}
