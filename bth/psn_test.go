package bth_test

import (
	"testing"

	"github.com/goroce/goroce/bth"
)

func TestPSNAddWraps(t *testing.T) {
	for _, row := range []struct {
		psn  uint32
		n    int
		want uint32
	}{
		{0, 0, 0},
		{0, 1, 1},
		{0xFFFFFF, 1, 0},
		{0xFFFFFE, 5, 3},
		{0, -1, 0xFFFFFF},
		{3, -5, 0xFFFFFE},
		{5, 1 << 24, 5},
		{5, -1 << 24, 5},
		{0x800000, 0x7FFFFF, 0xFFFFFF},
	} {
		if got := bth.NewPSN(row.psn).Add(row.n); got.Value() != row.want {
			t.Errorf("%#x + %d = %#x, want %#x", row.psn, row.n, got.Value(), row.want)
		}
	}
}

func TestPSNNextWraps(t *testing.T) {
	if got := bth.NewPSN(0xFFFFFF).Next(); got != bth.NewPSN(0) {
		t.Errorf("after 0xFFFFFF: %v", got)
	}
	if got := bth.NewPSN(41).Next(); got != bth.NewPSN(42) {
		t.Errorf("after 41: %v", got)
	}
	if got := bth.NewMSN(0xFFFFFF).Next(); got != bth.NewMSN(0) {
		t.Errorf("MSN after 0xFFFFFF: %v", got)
	}
}

func TestPSNDistanceIsSignedAndWraps(t *testing.T) {
	for _, row := range []struct {
		p, q uint32
		want int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, 0xFFFFFF, 1},
		{0xFFFFFF, 0, -1},
		{2, 0xFFFFF0, 18},
		{0xFFFFF0, 2, -18},
		{0x7FFFFF, 0, 1<<23 - 1},
		{0x800000, 0, -1 << 23},
		{0x800001, 0, -1<<23 + 1},
	} {
		p, q := bth.NewPSN(row.p), bth.NewPSN(row.q)
		if got := p.Sub(q); got != row.want {
			t.Errorf("%#x - %#x = %d, want %d", row.p, row.q, got, row.want)
		}
		if got := p.Before(q); got != (row.want < 0) {
			t.Errorf("%#x before %#x: %v", row.p, row.q, got)
		}
		if got := q.Add(p.Sub(q)); got != p {
			t.Errorf("%#x + (%#x - %#x) = %v", row.q, row.p, row.q, got)
		}
	}
}

func TestPSNInWindowAcrossTheWrap(t *testing.T) {
	for _, row := range []struct {
		psn, first uint32
		n          int
		want       bool
	}{
		{5, 5, 0, false},
		{5, 5, 1, true},
		{4, 5, 10, false},
		{14, 5, 10, true},
		{15, 5, 10, false},
		{0xFFFFFF, 0xFFFFFE, 4, true},
		{0, 0xFFFFFE, 4, true},
		{1, 0xFFFFFE, 4, true},
		{2, 0xFFFFFE, 4, false},
		{0xFFFFFD, 0xFFFFFE, 4, false},
	} {
		if got := bth.NewPSN(row.psn).InWindow(bth.NewPSN(row.first), row.n); got != row.want {
			t.Errorf("%#x among the %d from %#x: %v, want %v", row.psn, row.n, row.first, got, row.want)
		}
	}
}

func TestNumbersKeepTheirLow24Bits(t *testing.T) {
	if got := bth.NewPSN(0xAB000001); got != bth.NewPSN(1) || got.Value() != 1 {
		t.Errorf("PSN %v", got)
	}
	if got := bth.NewMSN(0xAB000001); got != bth.NewMSN(1) || got.Value() != 1 {
		t.Errorf("MSN %v", got)
	}
}

// IBA 10.9.3: same partition, and not two limited members.
func TestPKeyMatches(t *testing.T) {
	for _, row := range []struct {
		p, q bth.PKey
		want bool
	}{
		{0xFFFF, 0xFFFF, true},
		{0xFFFF, 0x7FFF, true},
		{0x7FFF, 0xFFFF, true},
		{0x7FFF, 0x7FFF, false},
		{0x8001, 0x8002, false},
		{0x8001, 0x0001, true},
		{0x8000, 0x8000, false},
		{0x0000, 0x8000, false},
	} {
		if got := row.p.Matches(row.q); got != row.want {
			t.Errorf("%#04x and %#04x: %v, want %v", uint16(row.p), uint16(row.q), got, row.want)
		}
	}
}
