package bth_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
)

// IBA 9.7.7.2, table of credit codes.
func TestSyndromeCreditsCodes(t *testing.T) {
	want := []int{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
		1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768}
	for code, n := range want {
		s := bth.SyndromeCredits(uint8(code))
		if got, ok := s.Credits(); got != n || !ok || s != bth.Syndrome(code) || s.Kind() != bth.KindACK {
			t.Errorf("code %d: %d credits, %v, syndrome %#02x", code, got, ok, uint8(s))
		}
	}
	for _, s := range []bth.Syndrome{bth.SyndromeACK, bth.SyndromeRNR(1), bth.NAKSequence, 0x41} {
		if n, ok := s.Credits(); ok {
			t.Errorf("%v: %d credits, want none", s, n)
		}
	}
}

// IBA 9.7.5.2.8, table of RNR NAK timer codes.
func TestSyndromeRNRTimerCodes(t *testing.T) {
	want := []string{"655.36ms", "10us", "20us", "30us", "40us", "60us", "80us", "120us", "160us", "240us", "320us",
		"480us", "640us", "960us", "1.28ms", "1.92ms", "2.56ms", "3.84ms", "5.12ms", "7.68ms", "10.24ms", "15.36ms",
		"20.48ms", "30.72ms", "40.96ms", "61.44ms", "81.92ms", "122.88ms", "163.84ms", "245.76ms", "327.68ms", "491.52ms"}
	for code, s := range want {
		w, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		syndrome := bth.SyndromeRNR(uint8(code))
		if got := syndrome.RNRDelay(); got != w || syndrome != bth.Syndrome(0x20+code) || syndrome.Kind() != bth.KindRNR {
			t.Errorf("code %d: %v, want %v; syndrome %#02x", code, got, w, uint8(syndrome))
		}
	}
}

func TestSyndromeKindOfEveryByte(t *testing.T) {
	for i := range 256 {
		want := bth.KindReserved
		switch {
		case i <= 0x1F:
			want = bth.KindACK
		case i >= 0x20 && i <= 0x3F:
			want = bth.KindRNR
		case i >= 0x60 && i <= 0x7F:
			want = bth.KindNAK
		}
		if got := bth.Syndrome(i).Kind(); got != want {
			t.Errorf("%#02x: kind %d, want %d", i, got, want)
		}
		if got := bth.Syndrome(i).Value(); int(got) != i%32 {
			t.Errorf("%#02x: value %d", i, got)
		}
	}
}

func TestSyndromeCodeOutOfRangeStaysInItsKind(t *testing.T) {
	if s := bth.SyndromeRNR(0xFF); s != 0x3F {
		t.Errorf("RNR: %#02x", uint8(s))
	}
	if s := bth.SyndromeCredits(0xE1); s != 0x01 {
		t.Errorf("credits: %#02x", uint8(s))
	}
}
