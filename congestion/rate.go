package congestion

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// BitRate is a rate in bits per second.
type BitRate float64

// Units of BitRate.
const (
	Kbps BitRate = 1e3
	Mbps BitRate = 1e6
	Gbps BitRate = 1e9
)

// Time returns how long bytes take at the rate, in nanoseconds and their
// fractions: a 1 KiB packet at 40 Gb/s takes 204.8.
func (r BitRate) Time(bytes int) float64 { return float64(bytes) * 8e9 / float64(r) }

// Bytes returns what the rate carries in d.
func (r BitRate) Bytes(d time.Duration) float64 { return float64(r) * d.Seconds() / 8 }

// String returns the rate with a unit, such as "2.5Gb/s".
func (r BitRate) String() string {
	for _, u := range rateUnits {
		if r >= u.size {
			return strconv.FormatFloat(float64(r/u.size), 'g', 4, 64) + u.name + "b/s"
		}
	}
	return strconv.FormatFloat(float64(r), 'g', 4, 64) + "b/s"
}

var rateUnits = []struct {
	name string
	size BitRate
}{{"G", Gbps}, {"M", Mbps}, {"k", Kbps}}

// ParseBitRate reads a rate such as "25G", "2.5Gb/s", "40Mbit/s" or "1000000".
func ParseBitRate(s string) (BitRate, error) {
	number := strings.TrimSpace(s)
	for _, unit := range []string{"bit/s", "b/s", "bps"} {
		number = strings.TrimSuffix(number, unit)
	}
	size := BitRate(1)
	for _, u := range rateUnits {
		if n, ok := strings.CutSuffix(strings.ToUpper(number), strings.ToUpper(u.name)); ok {
			number, size = n, u.size
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if r := BitRate(v) * size; err == nil && r >= Kbps && r <= 1e15 {
		return r, nil
	}
	return 0, fmt.Errorf("congestion: %q is no rate; write bits per second, at least 1k, as in 25G, 2.5Gb/s or 400M", s)
}

// A paced pair sends in batches: what its rate carries in batchTime, so that few
// timers are needed, but at most what a link sends in one piece, and at least
// one packet.
const (
	batchTime = 50 * time.Microsecond
	maxBatch  = 64 << 10
)

// Batch returns how many bytes a pair paced at rate r sends at a time, if its
// packets have at most that many bytes.
func (r BitRate) Batch(packet int) int {
	return min(maxBatch, max(packet, int(min(float64(maxBatch), r.Bytes(batchTime)))))
}
