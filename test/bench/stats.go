package main

import (
	"math"
	"slices"
)

// spread sums up the samples of a cell.
type spread struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	N      int     `json:"samples"`
}

// spreadOf leaves out what is not a number: rounds that failed.
func spreadOf(samples []float64) spread {
	var s []float64
	for _, v := range samples {
		if !math.IsNaN(v) {
			s = append(s, v)
		}
	}
	n := len(s)
	if n == 0 {
		return spread{Median: math.NaN(), Least: math.NaN(), Most: math.NaN()}
	}
	slices.Sort(s)
	m := s[n/2]
	if n%2 == 0 {
		m = (s[n/2-1] + s[n/2]) / 2
	}
	return spread{Median: m, Least: s[0], Most: s[n-1], N: n}
}

// ratios divides round by round, so that what slowed a whole round cancels out.
func ratios(a, b []float64) []float64 {
	r := make([]float64, min(len(a), len(b)))
	for i := range r {
		r[i] = a[i] / b[i]
		if math.IsInf(r[i], 0) {
			r[i] = math.NaN()
		}
	}
	return r
}

// greater takes the greater one of each pair; a failed round leaves the other.
func greater(a, b []float64) []float64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	g := slices.Clone(a)
	for i, v := range b {
		if math.IsNaN(g[i]) || v > g[i] {
			g[i] = v
		}
	}
	return g
}
