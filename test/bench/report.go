package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// finish computes what the report shows.
func (r *results) finish() {
	for _, s := range r.Series {
		s.Sum = spreadOf(s.Samples)
	}
	r.Verdicts = judge(r)
}

// markdown returns the page; charts are the names of the drawings.
func (r *results) markdown(charts map[string]string) string {
	p := &page{}
	p.line("# Benchmark\n")
	p.line("Written by `%s`. Median of %d rounds [least – most]; a ratio is that of one round, and then its median. `go run ./test/bench -h` shows the flags.\n", r.Conditions.Command, r.Conditions.Rounds)
	r.writeTargets(p)
	r.writeBandwidth(p, charts)
	r.writeLatency(p, charts)
	r.writeRate(p, charts)
	r.writeCPU(p, charts)
	r.writeQueues(p, charts)
	r.writeVeth(p)
	r.writeGuest(p)
	r.writeConditions(p)
	return p.b.String()
}

// page is Markdown in the making.
type page struct{ b strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

func (p *page) table(head []string, rows [][]string) {
	p.line("| %s |", strings.Join(head, " | "))
	p.line("|%s", strings.Repeat("---|", len(head)))
	for _, row := range rows {
		p.line("| %s |", strings.Join(row, " | "))
	}
	p.line("")
}

func (p *page) chart(charts map[string]string, name, what string) {
	if file, ok := charts[name]; ok {
		p.line("![%s](%s)\n", what, file)
	}
}

func (r *results) writeTargets(p *page) {
	var rows [][]string
	for _, v := range r.Verdicts {
		rows = append(rows, []string{v.What, v.Limit, v.Figure, v.Met})
	}
	p.line("## Targets\n")
	p.table([]string{"what", "target", "measured", "met"}, rows)
}

func (r *results) writeBandwidth(p *page, charts map[string]string) {
	all := r.seriesOf(loopback, bandwidth)
	if len(all) == 0 {
		return
	}
	p.line("## Bandwidth between two processes, loopback\n")
	p.line("Gb/s of payload, 10^9 bits. One queue pair, path MTU 4096. iperf3 sends a TCP stream, in which sizes mean nothing. The targets take the better of the floor's two modes.\n")
	p.bySize(all, func(s *series) string { return spreadText(s.Sum) })
	p.chart(charts, "bandwidth", "Bandwidth by message size")
}

func (r *results) writeLatency(p *page, charts map[string]string) {
	all := r.seriesOf(loopback, latency)
	if len(all) == 0 {
		return
	}
	p.line("## Latency, loopback\n")
	p.line("µs, half a round trip: the median of a run, except libfabric's, whose tool gives an average. Both sides poll unless it says events, where they sleep. The floor's packet is as long as a WRITE's, and it uses UDP sockets; a packet ring (`--ring`) is memory that the kernel receives into, and needs CAP_NET_RAW. goroce posts up to 220 bytes inline, as perftest does on network cards, and 15 of 16 such messages without a completion.\n")
	p.bySize(all, func(s *series) string { return spreadText(s.Sum) })
	p.chart(charts, "latency", "Latency by message size")
}

// bySize writes a row for each contestant and a column for each size.
func (p *page) bySize(all []*series, text func(*series) string) {
	var names []string
	var sizes []int
	cells := map[string]map[int]string{}
	for _, s := range all {
		if cells[s.name()] == nil {
			cells[s.name()] = map[int]string{}
			names = append(names, s.name())
		}
		if !slices.Contains(sizes, s.Size) {
			sizes = append(sizes, s.Size)
		}
		cells[s.name()][s.Size] = text(s)
	}
	slices.Sort(sizes)
	head := []string{""}
	for _, n := range sizes {
		head = append(head, bytesText(n))
	}
	var rows [][]string
	for _, name := range names {
		row := []string{name}
		for _, n := range sizes {
			row = append(row, cells[name][n])
		}
		rows = append(rows, row)
	}
	p.table(head, rows)
}

func (r *results) writeRate(p *page, charts map[string]string) {
	all := r.seriesOf(loopback, rate)
	if len(all) == 0 {
		return
	}
	p.line("## Messages of 8 bytes, loopback\n")
	p.line("Million per second, one queue pair.\n")
	var rows [][]string
	for _, s := range all {
		rows = append(rows, []string{s.name(), spreadText(s.Sum)})
	}
	p.table([]string{"", "M/s"}, rows)
	p.chart(charts, "rate", "Messages per second")
}

// withCPU returns the series whose CPU time is known, of 1 MiB.
func (r *results) withCPU(place string) []*series {
	var all []*series
	for _, s := range r.seriesOf(place, bandwidth) {
		if s.Size == mib && spreadOf(s.CPU).N > 0 {
			all = append(all, s)
		}
	}
	return all
}

func (r *results) writeCPU(p *page, charts map[string]string) {
	all := r.withCPU(loopback)
	if len(all) == 0 {
		return
	}
	p.line("## CPU time, loopback\n")
	p.line("Seconds of both processes together per gigabyte (10^9 bytes) moved, messages of 1 MiB. Who polls uses a core even while it waits.\n")
	var rows [][]string
	for _, s := range all {
		rows = append(rows, []string{s.name(), spreadText(spreadOf(s.CPU)), spreadText(s.Sum)})
	}
	p.table([]string{"", "s/GB", "at Gb/s"}, rows)
	p.chart(charts, "cpu", "CPU seconds per gigabyte")
}

func (r *results) writeQueues(p *page, charts map[string]string) {
	all := r.seriesOf(loopback, queues)
	if len(all) > 0 {
		p.line("## Many queue pairs, loopback\n")
		p.line("All of them busy with WRITEs of %s, each with 128 under way, but all together no more than 16384; Gb/s together. Each has memory of its own, so 1000 of them move 8 MB through the caches that one leaves alone.\n", bytesText(queueSize))
		var rows [][]string
		for _, s := range all {
			rows = append(rows, []string{fmt.Sprint(s.QPs), spreadText(s.Sum)})
		}
		p.table([]string{"queue pairs", "Gb/s"}, rows)
		p.chart(charts, "queues", "Bandwidth by number of queue pairs")
	}
	if len(r.Idle) > 0 {
		p.line("%d idle ones, connected, with room for 16 requests each way, open in %s s and take %s KiB of resident memory each.\n", r.Idle[0].QPs,
			spreadText(spreadOf(r.idle(func(i idleReading) float64 { return i.Seconds }))),
			spreadText(spreadOf(r.idle(func(i idleReading) float64 { return i.BytesPerQP / 1024 }))))
	}
}

func (r *results) writeVeth(p *page) {
	var rows [][]string
	for _, s := range r.Series {
		if s.Place != veth {
			continue
		}
		cpu := ""
		if c := spreadOf(s.CPU); c.N > 0 {
			cpu = spreadText(c)
		}
		rows = append(rows, []string{string(s.Metric), bytesText(s.Size), s.name(), spreadText(s.Sum) + " " + s.Unit, cpu})
	}
	if len(rows) == 0 {
		return
	}
	p.line("## Across a veth pair without offload\n")
	p.line("Loopback hands a whole run of packets over as one. Here two network namespaces are joined by a veth pair of MTU 9000 whose ends compute no checksum and cut no segments, so the kernel does both and each packet crosses by itself. Its work in the receiving interface may count for neither process.\n")
	p.table([]string{"what", "size", "", "", "CPU s/GB"}, rows)
}

func (r *results) writeGuest(p *page) {
	if len(r.Guest) == 0 {
		return
	}
	p.line("## Beside rdma_rxe in one guest\n")
	p.line("%s\n", guestText)
	var rows [][]string
	for _, kind := range []string{rxeBandwidth, rxeRate} {
		var own, rxe, of []float64
		unit := "Gb/s"
		for _, g := range r.Guest {
			if g.Kind != kind {
				continue
			}
			a, b := g.Own.Gbps, g.RXE.Gbps
			if kind == rxeRate {
				a, b, unit = g.Own.Mpps, g.RXE.Mpps, "M/s"
			}
			own, rxe = append(own, a), append(rxe, b)
		}
		of = ratios(own, rxe)
		if len(of) > 0 {
			rows = append(rows, []string{kind, spreadText(spreadOf(own)) + " " + unit, spreadText(spreadOf(rxe)) + " " + unit, spreadText(spreadOf(of))})
		}
	}
	p.table([]string{"", "goroce", "rxe", "ratio"}, rows)
}

const guestText = "An emulated Debian 12 with two CPUs, otherwise as `test/rxe` boots it; two processes over a veth pair of MTU 4500 with the kernel's usual offloads. " +
	"rxe: `ib_write_bw` between two rxe devices in the initial namespace. goroce: between two namespaces, where port 4791 is free. The two take turns. " +
	"Emulation has its own costs: of these figures only the ratios mean something."

func (r *results) writeConditions(p *page) {
	c := r.Conditions
	p.line("## Conditions\n")
	p.line("- %s, %d rounds, %s", c.Date.Format("2006-01-02 15:04 UTC"), c.Rounds, c.Took)
	p.line("- Linux %s, %d × %s, load at the start %s", c.Kernel, c.Cores, c.CPU, c.Load)
	p.line("- %s, revision %s", c.Go, c.Revision)
	var names []string
	for name := range c.Tools {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p.line("- %s: %s", name, c.Tools[name])
	}
	if c.TCP != "" {
		p.line("- TCP congestion control: %s", c.TCP)
	}
	p.line("- no process is bound to a core; both processes of a pair run on this machine")
	for _, s := range r.Skipped {
		p.line("- skipped: %s", s)
	}
	for _, s := range r.Series {
		if n := len(s.Failures); n > 0 {
			p.line("- %v: %d of %d rounds failed, the first with: %s", s.cell, n, len(s.Samples), strings.ReplaceAll(s.Failures[0], "\n", " "))
		}
	}
	if len(c.Commands) > 0 {
		p.line("\nThe commands, one pair of each kind, with ports that differ from run to run:\n")
		for _, s := range c.Commands {
			p.line("    %s", s)
		}
	}
}

// known tells the samples that are numbers.
func known(v float64) bool { return !math.IsNaN(v) }
