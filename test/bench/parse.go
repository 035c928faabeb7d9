package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// reading is what one run of a tool says.
type reading struct {
	Messages int     // 0 if the tool does not say
	Gbps     float64 // of payload
	Mpps     float64 // million messages per second
	Usec     float64 // half a round trip: the median, or the average if that is all there is
	P99      float64 // 0 if the tool does not say
}

// parseRows reads the JSON of `roce perf` and of the floor. Two sizes in one run
// are not what was asked for.
func parseRows(out []byte) (reading, error) {
	var doc struct {
		Test string `json:"test"`
		Rows []struct {
			Messages int     `json:"iterations"`
			Gbps     float64 `json:"bw_average_gbps"`
			Mpps     float64 `json:"msg_rate_mpps"`
			Typical  float64 `json:"t_typical_usec"`
			P99      float64 `json:"t_p99_usec"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return reading{}, fmt.Errorf("not the JSON expected: %w", err)
	}
	if len(doc.Rows) != 1 {
		return reading{}, fmt.Errorf("%d rows instead of one", len(doc.Rows))
	}
	r := doc.Rows[0]
	return reading{Messages: r.Messages, Gbps: r.Gbps, Mpps: r.Mpps, Usec: r.Typical, P99: r.P99}, nil
}

// parseIperf reads iperf3's JSON: what the receiver got.
func parseIperf(out []byte) (reading, error) {
	var doc struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return reading{}, fmt.Errorf("not the JSON expected: %w", err)
	}
	if doc.Error != "" {
		return reading{}, errors.New(doc.Error)
	}
	if doc.End.Received.Bits == 0 {
		return reading{}, errors.New("nothing was received")
	}
	return reading{Gbps: doc.End.Received.Bits / 1e9}, nil
}

// parseUCX reads the CSV of `ucx_perftest -v -f`. Its bandwidth is in 2^20 bytes
// per second, its latency half a round trip.
func parseUCX(out []byte) (reading, error) {
	names, values, err := lastTwo(out, ",")
	if err != nil {
		return reading{}, err
	}
	v := map[string]float64{}
	for i, name := range names {
		if v[name], err = strconv.ParseFloat(values[i], 64); err != nil {
			return reading{}, fmt.Errorf("column %s: %w", name, err)
		}
	}
	for _, name := range []string{"50.0_percentile_lat", "overall_bw", "overall_mr"} {
		if v[name] <= 0 {
			return reading{}, fmt.Errorf("no column %s", name)
		}
	}
	return reading{Gbps: v["overall_bw"] * (1 << 20) * 8 / 1e9, Mpps: v["overall_mr"] / 1e6, Usec: v["50.0_percentile_lat"]}, nil
}

// parseFabric reads fi_pingpong's table: an average, of half a round trip.
func parseFabric(out []byte) (reading, error) {
	names, values, err := lastTwo(out, "")
	if err != nil {
		return reading{}, err
	}
	for i, name := range names {
		if name == "usec/xfer" {
			v, err := strconv.ParseFloat(values[i], 64)
			if err != nil || v <= 0 {
				return reading{}, fmt.Errorf("usec/xfer is %q", values[i])
			}
			return reading{Usec: v}, nil
		}
	}
	return reading{}, errors.New("no column usec/xfer")
}

// parsePerftest reads the table of ib_write_bw --report_gbits.
func parsePerftest(out []byte) (reading, error) {
	lines := strings.Split(string(out), "\n")
	for i, line := range lines {
		if !strings.Contains(line, "#bytes") {
			continue
		}
		if !strings.Contains(line, "BW average[Gb/sec]") || i+1 == len(lines) {
			break
		}
		f := strings.Fields(lines[i+1])
		if len(f) < 5 {
			break
		}
		gbps, err := strconv.ParseFloat(f[3], 64)
		if err != nil {
			return reading{}, err
		}
		mpps, err := strconv.ParseFloat(f[4], 64)
		if err != nil {
			return reading{}, err
		}
		if mpps <= 0 { // it could not find out the processor's frequency
			return reading{}, fmt.Errorf("perftest gives a rate of %v", mpps)
		}
		return reading{Gbps: gbps, Mpps: mpps}, nil
	}
	return reading{}, errors.New("no table of perftest with Gb/s")
}

// lastTwo returns the words of the last two lines: names and values. Without a
// separator words are parted by spaces.
func lastTwo(out []byte, sep string) (names, values []string, err error) {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) < 2 {
		return nil, nil, fmt.Errorf("no table in %q", out)
	}
	split := func(s string) []string {
		if sep == "" {
			return strings.Fields(s)
		}
		return strings.Split(strings.TrimSpace(s), sep)
	}
	names, values = split(lines[len(lines)-2]), split(lines[len(lines)-1])
	if len(names) != len(values) {
		return nil, nil, fmt.Errorf("%d names and %d values in %q", len(names), len(values), out)
	}
	return names, values, nil
}
