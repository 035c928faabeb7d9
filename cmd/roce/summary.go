package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/goroce/goroce/bth"
)

// summary counts what a capture holds.
type summary struct {
	Type      string         `json:"type"`
	Packets   int            `json:"packets"`
	RoCE      int            `json:"roce"`
	Segments  int            `json:"segments,omitempty"`
	ICRC      map[string]int `json:"icrc"`
	Malformed map[string]int `json:"malformed,omitempty"`
	Truncated int            `json:"truncated"`
	NotRoCE   map[string]int `json:"not_roce,omitempty"`
	Opcodes   map[string]int `json:"opcodes,omitempty"`
	QPs       []*qpSummary   `json:"qps,omitempty"`
	OtherQPs  int            `json:"other_qp_packets,omitempty"`
	Notes     int            `json:"notes"`
	Duration  float64        `json:"duration"`
	Error     string         `json:"error,omitempty"`

	qps         map[qpKey]*qpSummary
	first, last time.Time
}

// maxQPs bounds the memory for a capture of many queue pairs.
const maxQPs = 10000

type qpKey struct {
	dst netip.Addr
	qp  bth.QPN
}

// qpSummary is about the packets to one queue pair.
type qpSummary struct {
	Dst     string `json:"dst"`
	QP      uint32 `json:"qp"`
	Packets int    `json:"packets"`
	Payload int64  `json:"payload"`
	// FirstPSN and LastPSN are of requests: answers have the PSNs of the other
	// direction. Without requests they mean nothing.
	Requests int    `json:"requests"`
	FirstPSN uint32 `json:"first_psn"`
	LastPSN  uint32 `json:"last_psn"`
	// Repeated counts requests whose PSN is not beyond all earlier ones:
	// retransmitted or late.
	Repeated int `json:"repeated"`
	NAKs     int `json:"naks"`

	requested bool
	highest   bth.PSN
}

func newSummary() *summary {
	return &summary{
		Type: "summary", ICRC: map[string]int{"good": 0, "bad": 0, "unchecked": 0},
		Malformed: map[string]int{}, NotRoCE: map[string]int{}, Opcodes: map[string]int{},
		qps: map[qpKey]*qpSummary{},
	}
}

// record notes that the capture holds a record and returns its time since the
// first one.
func (s *summary) record(r *record) time.Duration {
	s.Packets++
	if r.time.IsZero() {
		return 0
	}
	if s.first.IsZero() {
		s.first, s.last = r.time, r.time
	}
	if r.time.After(s.last) { // files that were joined may go back in time
		s.last = r.time
	}
	s.Duration = s.last.Sub(s.first).Seconds()
	return r.time.Sub(s.first)
}

// add counts a packet and marks it if it repeats an earlier one.
func (s *summary) add(o *dissected) {
	if o.skip != "" {
		s.NotRoCE[o.skip]++
		return
	}
	s.RoCE++
	s.ICRC[o.icrc.String()]++
	s.Notes += len(o.notes)
	if o.segment > 0 {
		s.Segments++
	}
	switch {
	case o.truncated:
		s.Truncated++
	case o.malformed != nil:
		s.Malformed[malformedText(o)]++
	}
	if o.haveBTH {
		s.Opcodes[o.p.Opcode.String()]++
		s.addQP(o)
	}
}

func (s *summary) addQP(o *dissected) {
	k := qpKey{o.dst, o.p.DestQP}
	q := s.qps[k]
	if q == nil {
		if len(s.qps) == maxQPs {
			s.OtherQPs++
			return
		}
		q = &qpSummary{Dst: o.dst.String(), QP: uint32(o.p.DestQP)}
		s.qps[k] = q
	}
	q.Packets++
	q.Payload += int64(len(o.p.Payload))
	info := o.p.Opcode.Info()
	if info.Request {
		if q.Requests == 0 {
			q.FirstPSN = o.p.PSN.Value()
		}
		q.Requests++
		q.LastPSN = o.p.PSN.Value()
	}
	if o.malformed != nil {
		return
	}
	if info.Headers&bth.HasAETH != 0 && o.p.AETH.Syndrome.Kind() != bth.KindACK {
		q.NAKs++
	}
	if info.Request && info.Transport != bth.UD {
		o.repeated = q.request(o.p.PSN)
	}
}

func (q *qpSummary) request(psn bth.PSN) (repeated bool) {
	if q.requested && !q.highest.Before(psn) {
		q.Repeated++
		return true
	}
	q.requested, q.highest = true, psn
	return false
}

// finish sorts what is printed.
func (s *summary) finish() {
	s.QPs = slices.SortedFunc(maps.Values(s.qps), func(a, b *qpSummary) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Dst, b.Dst), cmp.Compare(a.QP, b.QP))
	})
}

// print writes the summary as tables.
func (s *summary) print(w io.Writer) {
	s.printCounts(w)
	s.printOpcodes(w)
	s.printQPs(w)
}

func (s *summary) printCounts(w io.Writer) {
	t := newTable(w, fmt.Sprintf("%d packets in %.6f s", s.Packets, s.Duration), table.Row{"what", "packets"}, 2)
	t.AppendRow(table.Row{"RoCE", s.RoCE})
	for _, state := range []icrcState{icrcGood, icrcBad, icrcUnchecked} {
		t.AppendRow(table.Row{"  ICRC " + state.String(), s.ICRC[state.String()]})
	}
	t.AppendRow(table.Row{"  cut off by the capture", s.Truncated})
	for _, reason := range slices.Sorted(maps.Keys(s.Malformed)) {
		t.AppendRow(table.Row{"  " + reason, s.Malformed[reason]})
	}
	if s.Segments > 0 {
		t.AppendRow(table.Row{"  captured before segmentation", s.Segments})
	}
	t.AppendRow(table.Row{"not RoCE", s.skipped()})
	for _, reason := range slices.Sorted(maps.Keys(s.NotRoCE)) {
		t.AppendRow(table.Row{"  " + reason, s.NotRoCE[reason]})
	}
	t.Render()
}

func (s *summary) skipped() (n int) {
	for _, c := range s.NotRoCE {
		n += c
	}
	return n
}

func (s *summary) printOpcodes(w io.Writer) {
	if len(s.Opcodes) == 0 {
		return
	}
	t := newTable(w, "Opcodes", table.Row{"opcode", "packets"}, 2)
	names := slices.SortedFunc(maps.Keys(s.Opcodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Opcodes[b], s.Opcodes[a]), cmp.Compare(a, b))
	})
	for _, n := range names {
		t.AppendRow(table.Row{n, s.Opcodes[n]})
	}
	t.Render()
}

func (s *summary) printQPs(w io.Writer) {
	const most = 50
	if len(s.QPs) == 0 {
		return
	}
	t := newTable(w, "Queue pairs", table.Row{"to", "QP", "packets", "payload bytes", "requests", "first PSN", "last PSN", "repeated", "NAKs"}, 3, 4, 5, 6, 7, 8, 9)
	for _, q := range s.QPs[:min(most, len(s.QPs))] {
		var first, last any = "-", "-" // only answers came
		if q.Requests > 0 {
			first, last = q.FirstPSN, q.LastPSN
		}
		t.AppendRow(table.Row{q.Dst, hexNumber(uint64(q.QP), 6), q.Packets, q.Payload, q.Requests, first, last, q.Repeated, q.NAKs})
	}
	if rest := len(s.QPs) - most; rest > 0 {
		t.AppendFooter(table.Row{fmt.Sprintf("and %d more", rest)})
	}
	t.Render()
}
