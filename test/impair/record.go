package main

import "time"

// record keeps a port's queue over time, and who its bytes came from.
type record struct {
	last time.Duration // up to here all is accounted for
	hist []int64       // ns by queue length, in steps of histStep
	most int

	start time.Duration // of the present row
	area  float64       // byte·ns of the present row
	peak  int
	bytes []int // by port
	rows  []Row
}

// Row is a span of rowTime.
type Row struct {
	Mean  float64 // bytes in the queue
	Peak  int
	Bytes []int // that left the queue, by the port they came from
}

const (
	histStep = 512
	rowTime  = 10 * time.Millisecond
	maxRows  = 100 * 60 // a minute
)

func newRecord(now time.Duration, ports int) record {
	return record{last: now, start: now, bytes: make([]int, ports)}
}

// until accounts for a queue that had so many bytes until now.
func (r *record) until(now time.Duration, queue int) {
	r.most = max(r.most, queue)
	for now >= r.start+rowTime {
		r.span(r.start+rowTime, queue)
		if len(r.rows) < maxRows {
			r.rows = append(r.rows, Row{r.area / float64(rowTime), r.peak, r.bytes})
		}
		r.start += rowTime
		r.area, r.peak, r.bytes = 0, 0, make([]int, len(r.bytes))
	}
	r.span(now, queue)
}

func (r *record) span(now time.Duration, queue int) {
	d := now - r.last
	if d <= 0 {
		return
	}
	r.last = now
	r.area += float64(d) * float64(queue)
	r.peak = max(r.peak, queue)
	bin := queue / histStep
	for len(r.hist) <= bin {
		r.hist = append(r.hist, 0)
	}
	r.hist[bin] += int64(d)
}

// sent notes a frame that has left the queue.
func (r *record) sent(f *frame) {
	if f.in < len(r.bytes) {
		r.bytes[f.in] += len(f.data)
	}
}

// Queue sums up a queue's length, in bytes.
type Queue struct {
	Mean     float64
	P99, Max int
}

// queue sums up; mean and 99th percentile are over time.
func (r *record) queue() (q Queue) {
	q.Max = r.most
	total := int64(0)
	for bin, ns := range r.hist {
		total += ns
		q.Mean += float64(ns) * (float64(bin) + .5) * histStep
	}
	if total == 0 {
		return Queue{Max: q.Max}
	}
	if len(r.hist) > 0 {
		q.Mean -= float64(r.hist[0]) * .5 * histStep // mostly empty
	}
	q.Mean /= float64(total)
	left := total - total/100
	for bin, ns := range r.hist {
		if left -= ns; left <= 0 {
			q.P99 = (bin + 1) * histStep
			break
		}
	}
	return q
}
