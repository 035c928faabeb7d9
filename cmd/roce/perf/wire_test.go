package perf

import (
	"bytes"
	"encoding/hex"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/goroce/goroce/bth"
)

func TestVersionIsA16ByteRecordThatNamesUs(t *testing.T) {
	b := formatVersion()
	if want := "6.06\x00roce/1\x00\x00\x00\x00\x00"; string(b) != want {
		t.Fatalf("%q, want %q", b, want)
	}
	for _, row := range []struct {
		in, version string
		own, ok     bool
	}{
		{string(b), "6.06", true, true},
		{"6.06" + strings.Repeat("\x00", 12), "6.06", false, true},
		{"6.29" + strings.Repeat("\x00", 12), "6.29", false, true},
		{"5.70" + strings.Repeat("\x00", 12), "5.70", false, true},
		{"5.33" + strings.Repeat("\x00", 12), "", false, false},
		{"GET / HTTP/1.1\r\n", "", false, false},
		{"Inf" + strings.Repeat("\x00", 13), "", false, false},
		{"NaN" + strings.Repeat("\x00", 13), "", false, false},
		{strings.Repeat("\x00", 16), "", false, false},
		{strings.Repeat("6", 16), "", false, false},
	} {
		version, own, err := parseVersion([]byte(row.in))
		if version != row.version || own != row.own || (err == nil) != row.ok {
			t.Errorf("%q: %q, %v, %v", row.in, version, own, err)
		}
	}
}

// The bytes of a record as perftest 4.5 writes and reads them.
const goldenRecord = "0000:0010:00004a:1a2b3c:0000041c:00007f55555ac000:" +
	"00:00:00:00:00:00:00:00:00:00:ff:ff:c6:12:00:02:00000000:\x00"

func TestRecordBytes(t *testing.T) {
	r := record{outReads: 16, qpn: 0x4a, psn: bth.NewPSN(0x1a2b3c), rkey: 0x41c, vaddr: 0x7f55555ac000, gid: netip.MustParseAddr("198.18.0.2")}
	if got := string(r.format()); got != goldenRecord || len(got) != recordLen {
		t.Errorf("%d bytes\n%q, want\n%q", len(got), got, goldenRecord)
	}
	back, err := parseRecord([]byte(goldenRecord))
	if err != nil || back != r {
		t.Errorf("%+v, %v", back, err)
	}
	r.gid = netip.MustParseAddr("fd00:18::1")
	if back, err := parseRecord(r.format()); err != nil || back != r {
		t.Errorf("IPv6: %+v, %v", back, err)
	}
}

func TestRecordThatIsNoneIsRefused(t *testing.T) {
	good := goldenRecord
	for name, bad := range map[string]string{
		"nothing":           "",
		"an older record":   good[:50] + "00000000:\x00",
		"other separators":  strings.ReplaceAll(good, ":", ";"),
		"a letter":          strings.Replace(good, "1a2b3c", "1a2b3g", 1),
		"a sign":            strings.Replace(good, "1a2b3c", "-a2b3c", 1),
		"without GID":       good[:50] + strings.Repeat("00:", 16) + "00000000:\x00",
		"without QPN":       strings.Replace(good, "00004a", "000000", 1),
		"cut":               good[:80],
		"with more in it":   good[:50] + "0000000000000000:" + good[50:],
		"digits grown long": strings.Replace(good, "0010", "00100", 1),
	} {
		if r, err := parseRecord([]byte(bad)); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestNumbersAndMTU(t *testing.T) {
	if got := hex.EncodeToString(formatInt(4096)); got != "00001000" {
		t.Error(got)
	}
	for _, row := range []struct {
		in string
		ok bool
	}{{"00001000", true}, {"00010000", true}, {"00000000", false}, {"00001001", false}, {"80000000", false}, {"ffffffff", false}} {
		b, _ := hex.DecodeString(row.in)
		if _, err := parseInt(b, "page size", maxCycle); (err == nil) != row.ok {
			t.Errorf("%s: %v", row.in, err)
		}
	}
	for i, mtu := range []int{256, 512, 1024, 2048, 4096} {
		b := formatMTU(mtu)
		if want := []byte{byte('1' + i), 0}; !bytes.Equal(b, want) {
			t.Errorf("%d: %q", mtu, b)
		}
		if back, err := parseMTU(b); err != nil || back != mtu {
			t.Errorf("%q: %d, %v", b, back, err)
		}
	}
	for _, bad := range []string{"0\x00", "6\x00", "\x00\x00"} {
		if _, err := parseMTU([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestSummaryIsFiveNumbersBigEndian(t *testing.T) {
	s := summary{65536, 5000, 812.5, 800.25, 0.5}
	var got []string
	for _, b := range s.fields() {
		got = append(got, hex.EncodeToString(b))
	}
	want := "0000000000010000 0000000000001388 4089640000000000 4089020000000000 3fe0000000000000"
	if strings.Join(got, " ") != want {
		t.Errorf("%v, want %v", got, want)
	}
	if back := parseSummary(s.fields()); back != s {
		t.Errorf("%+v", back)
	}
	// A passive tool sends what was in its memory.
	odd := summary{1, 1, math.NaN(), math.Inf(1), -3}
	if back := parseSummary(odd.fields()); back != (summary{1, 1, 0, 0, 0}) {
		t.Errorf("%+v", back)
	}
}

func TestTermsThatDifferAreNamed(t *testing.T) {
	a := terms{Test: "write_bw", Size: 64, Iters: 5, QPs: 1, Seed: 1}
	b := a
	b.Seed = 2
	if err := a.differ(b); err != nil {
		t.Error(err)
	}
	b.QPs = 4
	if err := a.differ(b); err == nil || !strings.Contains(err.Error(), "-q is 1 here and 4 at the peer") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(goldenRecord))
	f.Add(formatVersion())
	f.Add(formatNote(verdict{Checked: "x"})[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRecord(b); err == nil {
			if back, err := parseRecord(r.format()); err != nil || back != r {
				t.Fatalf("%+v became %+v, %v", r, back, err)
			}
		}
		_, _, _ = parseVersion(b)
		_ = parseNote(b, &terms{})
		if len(b) >= 4 {
			_, _ = noteLen(b)
			_, _ = parseMTU(b)
			if v, err := parseInt(b, "x", maxCycle); err == nil && (v < 1 || v > maxCycle) {
				t.Fatalf("%d", v)
			}
		}
	})
}
