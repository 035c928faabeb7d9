package main

import (
	"encoding/json"
	"math"
	"time"
)

// results are all figures of a run.
type results struct {
	Conditions conditions     `json:"conditions"`
	Series     []*series      `json:"series"`
	Idle       []idleReading  `json:"idle_queue_pairs"`
	Guest      []guestReading `json:"beside_rxe"`
	Skipped    []string       `json:"skipped"`
	Verdicts   []verdict      `json:"targets"`
}

// conditions are what the figures depend on.
type conditions struct {
	Date     time.Time         `json:"date"`
	Command  string            `json:"command"`
	Rounds   int               `json:"rounds"`
	Took     string            `json:"took"`
	Kernel   string            `json:"kernel"`
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Load     string            `json:"load_at_start"` // of the last 1, 5 and 15 minutes
	Go       string            `json:"go"`
	Revision string            `json:"revision"`
	TCP      string            `json:"tcp_congestion_control"`
	Tools    map[string]string `json:"tools"`    // versions
	Commands []string          `json:"commands"` // one of each kind
}

// series are the samples of a cell, one per round; NaN where a round failed.
type series struct {
	cell
	Unit     string   `json:"unit"`
	Samples  figures  `json:"samples"`
	P99      figures  `json:"p99_usec,omitempty"`
	CPU      figures  `json:"cpu_seconds_per_gigabyte,omitempty"` // of both processes
	Failures []string `json:"failures,omitempty"`
	Sum      spread   `json:"-"`
}

// figures writes NaN as null, since JSON has no such number.
type figures []float64

// MarshalJSON implements json.Marshaler.
func (f figures) MarshalJSON() ([]byte, error) {
	p := make([]*float64, len(f))
	for i := range f {
		if !math.IsNaN(f[i]) {
			p[i] = &f[i]
		}
	}
	return json.Marshal(p)
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *figures) UnmarshalJSON(b []byte) error {
	var p []*float64
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	*f = make(figures, len(p))
	for i := range p {
		(*f)[i] = math.NaN()
		if p[i] != nil {
			(*f)[i] = *p[i]
		}
	}
	return nil
}

// idleCount is how many queue pairs do nothing.
const idleCount = 10000

// idleReading is one measurement of queue pairs that do nothing.
type idleReading struct {
	QPs        int     `json:"queue_pairs"`
	Seconds    float64 `json:"open_seconds"`
	BytesPerQP float64 `json:"bytes_per_queue_pair"` // resident memory of the process
}

// The kinds of guestReading.
const (
	rxeBandwidth = "WRITE 64 KiB"
	rxeRate      = "WRITE 8 B"
)

// guestReading are two runs, one after the other, in the same guest.
type guestReading struct {
	Kind string  `json:"kind"`
	Own  reading `json:"goroce"`
	RXE  reading `json:"rxe"`
}

// samples returns those of a cell, nil if it was not measured.
func (r *results) samples(w which) []float64 {
	if w.better {
		w.better, w.events = false, false
		return greater(r.samples(w), r.samples(withEvents(w)))
	}
	for _, s := range r.Series {
		if w.is(s.cell) {
			return s.Samples
		}
	}
	return nil
}

func (r *results) idle(f func(idleReading) float64) []float64 {
	var v []float64
	for _, i := range r.Idle {
		v = append(v, f(i))
	}
	return v
}

// seriesOf returns the series of a place and metric in the order of the plan.
func (r *results) seriesOf(place string, m metric) []*series {
	var all []*series
	for _, s := range r.Series {
		if s.Place == place && s.Metric == m {
			all = append(all, s)
		}
	}
	return all
}

// take adds what a round yields for a cell.
func (s *series) take(r reading, cpu time.Duration, ran time.Duration) {
	value := r.Gbps
	switch s.Metric {
	case latency:
		value = r.Usec
	case rate:
		value = r.Mpps
	}
	perGB := math.NaN()
	if s.Metric == bandwidth && ran > 0 && r.Gbps > 0 {
		perGB = cpu.Seconds() / (r.Gbps / 8 * ran.Seconds())
	}
	s.Samples = append(s.Samples, value)
	s.P99 = append(s.P99, r.P99)
	s.CPU = append(s.CPU, perGB)
}

// fail notes that a round yields nothing.
func (s *series) fail(err error) {
	nan := math.NaN()
	s.Samples, s.P99, s.CPU = append(s.Samples, nan), append(s.P99, nan), append(s.CPU, nan)
	s.Failures = append(s.Failures, err.Error())
}
