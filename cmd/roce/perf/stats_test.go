package perf

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// naiveBest tries all windows.
func naiveBest(posted, done []int64) float64 {
	best := 0.0
	for i := range posted {
		for j := i; j < len(done); j++ {
			best = max(best, float64(j-i+1)/float64(done[j]-posted[i]))
		}
	}
	return best
}

func TestBestRateIsThatOfTheBestWindow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n := 1 + r.IntN(60)
		var posted, done []int64
		p, d := int64(0), int64(0)
		for range n {
			p += r.Int64N(1000)
			d = max(d, p) + 1 + r.Int64N(3000)
			posted, done = append(posted, p), append(done, d)
		}
		got, want := bestRate(posted, done), naiveBest(posted, done)
		if math.Abs(got-want) > 1e-9*want {
			t.Fatalf("%v, want %v, of %v %v", got, want, posted, done)
		}
	}
	if got := bestRate(nil, nil); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	if got := bestRate([]int64{10, 20}, []int64{30, 40}); got != 2.0/30 {
		t.Errorf("%v", got)
	}
}

func TestBestPartIsTheBestTenth(t *testing.T) {
	if got := bestPart([]int64{5, 15, 16, 17, 95, 100}, 100); got != 3.0*10/100 {
		t.Errorf("%v", got)
	}
	if got := bestPart(nil, 100); got != 0 {
		t.Errorf("%v", got)
	}
}

func TestLatencies(t *testing.T) {
	stamps := []int64{0, 200, 300, 700, 1000, 1600}
	s := samples(stamps, 2)
	if want := []float64{100, 50, 200, 150, 300}; !slices.Equal(s, want) {
		t.Fatalf("%v, want %v", s, want)
	}
	l := sorted(s)
	if l.median() != 150 || l.mean() != 160 || l.percentile(.99) != 300 || l.percentile(.5) != 200 {
		t.Errorf("median %v, mean %v, 99 %% %v, 50 %% %v", l.median(), l.mean(), l.percentile(.99), l.percentile(.5))
	}
	if even := (latencies{1, 2, 4, 9}); even.median() != 3 {
		t.Errorf("median of an even number: %v", even.median())
	}
	if got := l.deviation(); math.Abs(got-math.Sqrt(7400)) > 1e-9 {
		t.Errorf("deviation %v", got)
	}
	var none latencies
	if none.median() != 0 || none.mean() != 0 || none.deviation() != 0 || none.percentile(.99) != 0 {
		t.Error("no samples")
	}
}

// A percentile is the smallest sample that at least that share lies below.
func TestPercentileAgainstCounting(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		var l latencies
		for range 1 + r.IntN(2000) {
			l = append(l, float64(r.IntN(500)))
		}
		slices.Sort(l)
		for _, p := range []float64{.5, .9, .99, .999} {
			got, below := l.percentile(p), 0
			for _, v := range l {
				if v <= got {
					below++
				}
			}
			if float64(below) < p*float64(len(l)) || got < l[0] || got > l[len(l)-1] {
				t.Fatalf("%v of %d samples: %v, which %d do not exceed", p, len(l), got, below)
			}
		}
	}
}

func TestPatternFollowsFromItsSeed(t *testing.T) {
	a, b := make([]byte, 1001), make([]byte, 1001)
	fill(a, 7)
	fill(b, 7)
	if err := compareBytes(a, b); err != nil {
		t.Error(err)
	}
	if err := compare(a[:13], 7); err != nil {
		t.Errorf("a shorter message: %v", err)
	}
	a[500] ^= 1
	if err := compare(a, 7); err == nil {
		t.Error("a wrong byte passes")
	}
	if compare(b, 8) == nil {
		t.Error("two seeds give one pattern")
	}
}
