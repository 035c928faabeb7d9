package verbs

import "time"

// spinner decides whether who has nothing to do looks for packets a while longer
// before it sleeps. Waking up takes longer than a short gap between packets, and
// a processor spent on a long one is wasted: so it is worth while as long as
// gaps have been short of late.
type spinner struct {
	most time.Duration // to spin; 0 never
	gap  time.Duration // mean of the last gaps, each taken for at most 8·most
}

// DefaultSpin is Config.Spin where there are processors to spare.
const DefaultSpin = 50 * time.Microsecond

func newSpinner(configured time.Duration) spinner {
	switch {
	case configured < 0 || oneProcessor:
		configured = 0
	case configured == 0:
		configured = DefaultSpin
	}
	return spinner{most: configured}
}

// budget returns for how long to spin now. Gaps of up to twice that still count
// as short: two ends that both sleep make them that long for each other.
func (s *spinner) budget() time.Duration {
	if s.gap > 2*s.most {
		return 0
	}
	return s.most
}

// met notes that something came after a gap.
func (s *spinner) met(gap time.Duration) {
	s.gap += (min(gap, 8*s.most) - s.gap) / 4
}
