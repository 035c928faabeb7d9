package main

import (
	"encoding/json"
	"math"
	"testing"
)

var nan = math.NaN()

func TestSpreadLeavesFailedRoundsOut(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    spread
	}{
		{[]float64{3, 1, 2}, spread{2, 1, 3, 3}},
		{[]float64{4, 1, 2, 3}, spread{2.5, 1, 4, 4}},
		{[]float64{nan, 7, nan}, spread{7, 7, 7, 1}},
	} {
		if got := spreadOf(c.samples); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.samples, got, c.want)
		}
	}
	if s := spreadOf([]float64{nan}); s.N != 0 || !math.IsNaN(s.Median) {
		t.Errorf("no samples: %+v", s)
	}
}

func TestRatiosPairTheRounds(t *testing.T) {
	got := ratios([]float64{10, 20, nan, 5, 1}, []float64{5, 40, 1, 0})
	if len(got) != 4 || got[0] != 2 || got[1] != 0.5 || !math.IsNaN(got[2]) || !math.IsNaN(got[3]) {
		t.Errorf("%v, want [2 0.5 NaN NaN]", got)
	}
	// The ratio of medians would be 1: what slowed a round down slows both.
	if s := spreadOf(ratios([]float64{2, 20, 200}, []float64{1, 10, 100})); s.Median != 2 || s.Least != 2 || s.Most != 2 {
		t.Errorf("%+v, want 2 throughout", s)
	}
}

func TestFiguresKeepFailedRoundsInJSON(t *testing.T) {
	b, err := json.Marshal(figures{1.5, nan})
	if err != nil || string(b) != "[1.5,null]" {
		t.Fatalf("%s, %v", b, err)
	}
	var f figures
	if err := json.Unmarshal(b, &f); err != nil || len(f) != 2 || f[0] != 1.5 || !math.IsNaN(f[1]) {
		t.Errorf("%v, %v", f, err)
	}
}

func TestNumberHasThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 1234.5: "1234", 123.4: "123", 12.34: "12.3", 1.234: "1.23", 0.1234: "0.123", 0.0001234: "0.000123", -2.5: "-2.50"} {
		if got := number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func TestGreaterOfTwoModes(t *testing.T) {
	got := greater([]float64{1, nan, 5}, []float64{2, 3, nan, 4})
	if len(got) != 4 || got[0] != 2 || got[1] != 3 || got[2] != 5 || got[3] != 4 {
		t.Errorf("%v, want [2 3 5 4]", got)
	}
	if got := greater(nil, nil); len(got) != 0 {
		t.Errorf("%v of nothing", got)
	}
}
