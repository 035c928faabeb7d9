package fabric

import (
	"fmt"
	"slices"
	"time"

	"github.com/goroce/goroce/congestion"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
	kb = 1000.
)

// paperRED is the marking that the published DCQCN was evaluated with.
var paperRED = &RED{Kmin: 5_000, Kmax: 200_000, Pmax: .01}

// paper is a plan for the published parameters at 40 Gb/s. Packets are paced one
// by one, as adapters do: batches of 64 KiB alone would fill the queue to
// several times Kmin.
func paper(name string, flows int, p plan) plan {
	p.name, p.flows, p.rate, p.dcqcn = name, flows, 40*congestion.Gbps, congestion.PaperDCQCN()
	if p.rtt == 0 {
		p.rtt = 4 * us
	}
	if p.red == nil {
		p.red = paperRED
	}
	return p
}

const wideNote = "Windows are 8192 packets, so that the rate alone limits; packets are paced one by one; ECN marks as packets leave the queue, which has no end."

// Scenarios returns all scenarios.
func Scenarios() []Scenario {
	return []Scenario{
		twoFlows(), tenFlows(), longDelay(), staircase(), lateJoiner(), lineRateIncast(), parkingLot(),
		clocked("S8", 25, []int{2, 8, 16}), clocked("S9", 100, []int{2}), lossyIncast(),
	}
}

func twoFlows() Scenario {
	return Scenario{Name: "S1", Title: "two DCQCN flows at 40 Gb/s, published parameters, 4 µs", Note: wideNote, plans: []plan{
		paper("", 2, plan{length: 400 * ms, warm: 100 * ms, checks: func(r *Run) []Check {
			q := r.Stats(0)
			return append(fair(r, 20, .05),
				between("mean queue", "KB", q.Mean/kb, 15, 32, "15 to 32; fluid model 20.2"),
				atLeast("utilisation", "", r.Utilisation(0), .99), atLeast("Jain's index", "", Jain(r.Rates()), .995))
		}}),
	}}
}

func tenFlows() Scenario {
	return Scenario{Name: "S2", Title: "ten DCQCN flows at 40 Gb/s, published parameters, 4 µs", Note: wideNote, plans: []plan{
		paper("", 10, plan{length: 300 * ms, warm: 100 * ms, checks: func(r *Run) []Check {
			return append(fair(r, 4, .1),
				between("mean queue", "KB", r.Stats(0).Mean/kb, 105, 175, "105 to 175; fluid model 122.6"),
				atLeast("utilisation", "", r.Utilisation(0), .995), atLeast("Jain's index", "", Jain(r.Rates()), .99))
		}}),
	}}
}

func longDelay() Scenario {
	return Scenario{Name: "S3", Title: "a control delay of 85 µs: ten flows oscillate, two do not", Note: wideNote, plans: []plan{
		paper("N=2", 2, plan{rtt: 85 * us, length: 200 * ms, warm: 50 * ms, checks: func(r *Run) []Check {
			return []Check{atLeast("utilisation", "", r.Utilisation(0), .99), between("mean queue", "KB", r.Stats(0).Mean/kb, 12, 36, "24 ± 50 %")}
		}}),
		paper("N=10", 10, plan{rtt: 85 * us, length: 200 * ms, warm: 50 * ms, checks: func(r *Run) []Check {
			q := r.Stats(0)
			return []Check{
				atMost("utilisation", "", r.Utilisation(0), .97), atLeast("deviation of the queue", "KB", q.SD/kb, 60),
				atMost("median queue", "KB", q.Median/kb, 15),
			}
		}}),
	}}
}

func staircase() Scenario {
	const step = 100 * ms
	return Scenario{Name: "S4", Title: "four flows start one after the other, each 100 ms", Note: wideNote + " Each step is measured in its second half.", plans: []plan{
		paper("", 4, plan{length: 4 * step, warm: step / 2, starts: []time.Duration{0, step, 2 * step, 3 * step}, checks: func(r *Run) (checks []Check) {
			for n := 1; n <= 4; n++ {
				from, to := r.rows(time.Duration(n-1)*step+step/2), r.rows(time.Duration(n)*step)
				sum, slow, fast := 0., 1e12, 0.
				for _, curve := range r.Rate[:n] {
					v := mean(curve[from:to])
					sum, slow, fast = sum+v, min(slow, v), max(fast, v)
				}
				checks = append(checks,
					near(fmt.Sprintf("slowest of %d", n), "Gb/s", slow/1e9, 40/float64(n), .1),
					near(fmt.Sprintf("fastest of %d", n), "Gb/s", fast/1e9, 40/float64(n), .1),
					atLeast(fmt.Sprintf("utilisation by %d", n), "", sum/40e9, .99))
			}
			return checks
		}}),
	}}
}

// rows returns how many rows of the curves end up to t.
func (r *Run) rows(t time.Duration) int {
	n, _ := slices.BinarySearch(r.Time, t+1)
	return n
}

func mean(l []float64) (sum float64) {
	for _, v := range l {
		sum += v
	}
	return sum / float64(len(l))
}

func lateJoiner() Scenario {
	const join, hard = 50 * ms, 97 * ms
	sc := Scenario{Name: "S5", Title: "a second flow joins after 50 ms", Note: wideNote + " Fair is a mean of 10 ms within 10 % of 20 Gb/s; the time is from the join to the begin of that span. Five seeds."}
	for seed := range uint64(5) {
		sc.plans = append(sc.plans, paper(fmt.Sprintf("seed+%d", seed), 2, plan{
			seed: seed, length: join + hard + 10*ms, warm: join, starts: []time.Duration{0, join},
			checks: func(r *Run) []Check {
				return []Check{atMost("fair after", "ms", r.fairAfter(join), 97)}
			},
		}))
	}
	sc.across = func(runs []*Run) []Check {
		var l []float64
		for _, r := range runs {
			l = append(l, r.fairAfter(join))
		}
		slices.Sort(l)
		return []Check{atMost("median of the five", "ms", l[2], 25)}
	}
	return sc
}

// fairAfter returns how many milliseconds after the join the last flow's mean
// over 10 ms is within 10 % of half the link; 1000 if never.
func (r *Run) fairAfter(join time.Duration) float64 {
	curve := r.Rate[len(r.Rate)-1]
	half := float64(r.Port.Rate) / 2
	for i := r.rows(join); i+10 <= len(curve); i++ {
		if v := mean(curve[i : i+10]); v > .9*half && v < 1.1*half {
			return float64(r.Time[i]-join)/float64(ms) - 1
		}
	}
	return 1000
}

func lineRateIncast() Scenario {
	sc := Scenario{Name: "S6", Title: "N flows start at line rate into one link", Note: wideNote + " The peak is the queue before the first cuts work: a rate without a window has no other bound."}
	for _, row := range []struct {
		n           int
		queue, peak float64
	}{{8, 116, 1.36}, {16, 175, 3.3}, {32, 185, 7.6}} {
		sc.plans = append(sc.plans, paper(fmt.Sprintf("N=%d", row.n), row.n, plan{length: 250 * ms, warm: 100 * ms, checks: func(r *Run) []Check {
			return []Check{
				near("mean queue", "KB", r.Stats(0).Mean/kb, row.queue, .25), near("peak of the queue", "MB", float64(r.Port.Peak)/1e6, row.peak, .3),
				atLeast("Jain's index", "", Jain(r.Rates()), .993),
			}
		}}))
	}
	return sc
}

func parkingLot() Scenario {
	sc := Scenario{Name: "S7", Title: "one flow over several full links, one more on each", Note: wideNote + " The tolerance of 12 % is that of the rates. The fluid model's queue is 16 KB; as in S1, where it is 20 and marking by chance makes it 25, the bounds are 25 % below and 60 % above."}
	for _, row := range []struct {
		links       int
		long, short float64
	}{{2, 14.7, 25.3}, {3, 11.9, 28.1}} {
		p := paper(fmt.Sprintf("%d links", row.links), 0, plan{lots: row.links, length: 300 * ms, warm: 100 * ms, checks: func(r *Run) []Check {
			rates := r.Rates()
			checks := []Check{near("long flow", "Gb/s", rates[0]/1e9, row.long, .12)}
			for i, v := range rates[1:] {
				checks = append(checks, near(fmt.Sprintf("short flow %d", i+1), "Gb/s", v/1e9, row.short, .12))
				if row.links == 2 {
					checks = append(checks, between(fmt.Sprintf("mean queue %d", i+1), "KB", r.Stats(i).Mean/kb, 12, 25.6, "16 - 25 % + 60 %"))
				}
			}
			return checks
		}})
		sc.plans = append(sc.plans, p)
	}
	return sc
}

// clocked is DCQCN as adapters do it, with the parameters that a common
// simulator of theirs scales with the rate, in Gb/s.
func clocked(name string, gbps float64, flows []int) Scenario {
	rate := congestion.BitRate(gbps) * congestion.Gbps
	params := congestion.Mlx5DCQCN()
	params.DCETCPG, params.MinDecFac, params.CutOnLoss = 1020, 0, false
	params.AIRate, params.HAIRate = rate/25*5/1000, rate/25*50/1000
	params.MinRate = congestion.Gbps
	red := &RED{Kmin: int(gbps / 25 * 100_000), Kmax: int(gbps / 25 * 400_000), Pmax: .2}
	sc := Scenario{Name: name, Title: fmt.Sprintf("DCQCN of adapters at %.0f Gb/s, T 300 µs, steps scaled with the rate", gbps),
		Note: wideNote + " A CNP answers each marked packet; g is 1/256; the rate is at least 1 Gb/s."}
	for _, n := range flows {
		sc.plans = append(sc.plans, plan{
			name: fmt.Sprintf("N=%d", n), flows: n, rate: rate, rtt: 4 * us, red: red, dcqcn: params,
			np: congestion.NotificationPoint{MinTimeBetweenCNPs: -1}, length: 300 * ms, warm: 100 * ms,
			checks: func(r *Run) []Check { return clockedChecks(r, name, n) },
		})
	}
	return sc
}

func clockedChecks(r *Run, name string, n int) []Check {
	q := r.Stats(0).Mean / kb
	switch {
	case name == "S9":
		return append(rates(r, 48.5*.92, 51*1.08, "48.5 to 51, ± 8 %"),
			between("mean queue", "KB", q, 185*.7, 203*1.3, "185 to 203, ± 30 %"), between("utilisation", "", r.Utilisation(0), .995*.92, 1, ".995 - 8 %"))
	case n == 2:
		return append(rates(r, 12.3*.92, 12.7*1.08, "12.3 to 12.7, ± 8 %"), between("mean queue", "KB", q, 74*.7, 81*1.3, "74 to 81, ± 30 %"))
	case n == 8:
		return append(rates(r, 3*.92, 3.4*1.08, "3.0 to 3.4, ± 8 %"), near("mean queue", "KB", q, 117, .3))
	}
	return append(rates(r, 1.5*.92, 1.7*1.08, "1.5 to 1.7, ± 8 %"), near("mean queue", "KB", q, 160, .3), atLeast("utilisation", "", r.Utilisation(0), .995))
}

// lossyIncast is what the default controller is for: a fabric without PFC.
func lossyIncast() Scenario {
	sc := Scenario{Name: "S16", Title: "16 flows into one link without PFC, with the default controller",
		Note: "The switch has 2 MB of buffer, of which a queue may take half of what is free. Shares are of completed payload, of which the link carries at most .959; resent is a share of request packets, from the start. Windows are at most 256 packets, in batches of up to 64 KiB."}
	for _, row := range []struct {
		name string
		red  *RED
	}{{"ECN", paperRED}, {"no ECN", nil}} {
		sc.plans = append(sc.plans, plan{
			name: row.name, flows: 16, rate: 40 * congestion.Gbps, rtt: 8 * us, red: row.red, control: congestion.DefaultName,
			buffer: 2_000_000, alpha: 1, batch: 64 << 10, length: 200 * ms, warm: 20 * ms,
			checks: func(r *Run) []Check {
				done := r.Goodput()
				return []Check{
					atLeast("slowest flow's share of the fair one", "", slices.Min(done)/(40e9/16), .5), atMost("resent", "%", 100*r.resent(), 5),
					atLeast("all flows' share of the link", "", mean(done)*16/40e9, .9),
				}
			},
		})
	}
	return sc
}

// resent returns the share of request packets that were sent again.
func (r *Run) resent() float64 {
	again, all := uint64(0), uint64(0)
	for _, f := range r.Sim.Flows {
		n := f.QP.Stats().Retransmitted
		again += n
		all += n + f.Completed/mtu
	}
	return float64(again) / float64(all)
}
