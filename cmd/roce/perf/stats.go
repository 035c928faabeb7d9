package perf

import (
	"math"
	"slices"
	"time"
)

// bestRate returns the highest rate, in messages per nanosecond, over all windows
// from the post of message i to the completion of message j ≥ i. Both slices hold
// times in nanoseconds, in order. It is 0 without messages.
//
// The window that minimises (done[j]-posted[i])/(j-i+1) is found by Dinkelbach's
// method: for a guess g of the minimum, the least done[j]-g·(j+1) - (posted[i]-g·i)
// takes one pass; the window where it lies gives the next guess, and a few passes
// are enough.
func bestRate(posted, done []int64) float64 {
	n := min(len(posted), len(done))
	if n == 0 {
		return 0
	}
	guess := float64(done[n-1]-posted[0]) / float64(n)
	for range 64 {
		from, bestFrom, bestTo := 0, 0, n-1
		least, most := math.Inf(1), math.Inf(-1)
		for i := range n {
			if v := float64(posted[i]) - guess*float64(i); v > most {
				most, from = v, i
			}
			if v := float64(done[i]) - guess*float64(i+1) - most; v < least {
				least, bestFrom, bestTo = v, from, i
			}
		}
		next := float64(done[bestTo]-posted[bestFrom]) / float64(bestTo-bestFrom+1)
		if next >= guess {
			break
		}
		guess = next
	}
	if guess <= 0 {
		return 0
	}
	return 1 / guess
}

// peakParts is how many parts of a receiver's run are looked at.
const peakParts = 10

// bestPart returns the highest rate, in messages per nanosecond, among the tenths of
// a run that ends at last. A receiver sees several messages at a time, so that
// windows of a few say nothing about the rate of their arrival.
func bestPart(arrived []int64, last int64) float64 {
	if last < peakParts {
		return 0
	}
	var parts [peakParts]int
	most := 0
	for _, at := range arrived {
		p := &parts[min(peakParts-1, at*peakParts/last)]
		*p++
		most = max(most, *p)
	}
	return float64(most) * peakParts / float64(last)
}

// latencies are sorted samples, in nanoseconds per one way (or per round trip,
// where the test has no other).
type latencies []float64

// samples returns the differences of successive times, divided by ways. They are
// in the order of the messages.
func samples(stamps []int64, ways int) []float64 {
	var s []float64
	for i := 1; i < len(stamps); i++ {
		s = append(s, float64(stamps[i]-stamps[i-1])/float64(ways))
	}
	return s
}

func sorted(s []float64) latencies {
	l := slices.Clone(s)
	slices.Sort(l)
	return l
}

// percentile returns the sample at the rank of p, 0 to 1, as perftest counts it.
func (l latencies) percentile(p float64) float64 {
	if len(l) == 0 {
		return 0
	}
	return l[min(len(l)-1, int(math.Ceil(float64(len(l))*p)))]
}

func (l latencies) median() float64 {
	n := len(l)
	switch {
	case n == 0:
		return 0
	case n%2 == 0:
		return (l[n/2-1] + l[n/2]) / 2
	}
	return l[n/2]
}

func (l latencies) mean() float64 {
	if len(l) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range l {
		sum += v
	}
	return sum / float64(len(l))
}

// deviation is the standard deviation of the samples as a whole population.
func (l latencies) deviation() float64 {
	if len(l) == 0 {
		return 0
	}
	mean, sum := l.mean(), 0.0
	for _, v := range l {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(l)))
}

// usec turns nanoseconds into microseconds.
func usec(ns float64) float64 { return ns / float64(time.Microsecond) }

// cpu is processor time of this process.
type cpu struct{ user, system time.Duration }

func (c cpu) since(was cpu) cpu { return cpu{c.user - was.user, c.system - was.system} }
