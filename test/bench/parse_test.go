package main

import (
	"math"
	"strings"
	"testing"
)

// What the tools print, recorded; the middle of iperf3's JSON is left out.
const (
	sampleRoce = `{"test":"write_bw","role":"client","connection":"RC","qps":1,"mtu":4096,"tx_depth":128,"rows":[{"size":1048576,"iterations":786,"bw_peak_mib":0,"bw_average_mib":1575.1006391616113,"bw_average_gbps":13.212901822476207,"msg_rate_mpps":0.0015751006391616113,"cpu_seconds":1.035606}],"checked":["the bytes at the peer"],"counters":{"cq_overflow":0}}`
	sampleLat  = `{"test":"send_lat","role":"client","connection":"RC","qps":1,"mtu":4096,"tx_depth":1,"rows":[{"size":8,"iterations":5000,"t_min_usec":10.2225,"t_max_usec":1683.3335,"t_typical_usec":62.769,"t_avg_usec":68.23439547909582,"t_p99_usec":166.9335,"cpu_seconds":0.290778}]}`
	sampleTCP  = `{"start":{"version":"iperf 3.12"},"intervals":[],"end":{"streams":[],
"sum_sent":{"start":0,"end":2.000212,"seconds":2.000212,"bytes":5025300480,"bits_per_second":20099071418.429649,"retransmits":14,"sender":true},
"sum_received":{"start":0,"end":2.000252,"seconds":2.000252,"bytes":5025300480,"bits_per_second":20098669487.644554,"sender":true}}}`
	sampleUCX = `iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
2000,10.203,3396.643,3162.944,294.41,316.16,294,316
`
	sampleFabric = `bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
8       5k      =5k      78k         0.06s      1.24       6.43       0.16
`
	samplePerftest = `---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rxe0
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:198:18:00:02
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      480              0.00               0.13   		   0.000238
---------------------------------------------------------------------------------------
`
)

func TestParsersReadWhatTheToolsPrint(t *testing.T) {
	for _, c := range []struct {
		name  string
		parse func([]byte) (reading, error)
		out   string
		want  reading
	}{
		{"roce perf, bandwidth", parseRows, sampleRoce, reading{Messages: 786, Gbps: 13.2129, Mpps: 0.00157510}},
		{"roce perf, latency", parseRows, sampleLat, reading{Messages: 5000, Usec: 62.769, P99: 166.9335}},
		{"iperf3", parseIperf, sampleTCP, reading{Gbps: 20.09867}},
		{"ucx_perftest", parseUCX, sampleUCX, reading{Gbps: 316.16 * 1048576 * 8 / 1e9, Mpps: 316e-6, Usec: 10.203}},
		{"fi_pingpong", parseFabric, sampleFabric, reading{Usec: 6.43}},
		{"ib_write_bw", parsePerftest, samplePerftest, reading{Gbps: 0.13, Mpps: 0.000238}},
	} {
		got, err := c.parse([]byte(c.out))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-4*math.Abs(b) }
		if got.Messages != c.want.Messages || !near(got.Gbps, c.want.Gbps) || !near(got.Mpps, c.want.Mpps) || !near(got.Usec, c.want.Usec) || !near(got.P99, c.want.P99) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A tool that fails, or prints something else in its next version, must not turn
// into a figure.
func TestParsersRefuseWhatTheyDoNotKnow(t *testing.T) {
	for _, c := range []struct {
		name  string
		parse func([]byte) (reading, error)
		out   string
	}{
		{"roce perf, nothing", parseRows, ""},
		{"roce perf, no rows", parseRows, `{"test":"write_bw","rows":[],"error":"nothing happened for 30s"}`},
		{"roce perf, two rows", parseRows, `{"rows":[{"size":2},{"size":4}]}`},
		{"iperf3, error", parseIperf, `{"start":{},"intervals":[],"end":{},"error":"unable to connect to server: Connection refused"}`},
		{"iperf3, nothing received", parseIperf, `{"end":{}}`},
		{"ucx_perftest, no values", parseUCX, "iterations,overall_bw\n"},
		{"ucx_perftest, other columns", parseUCX, "iterations,lat\n5,6\n"},
		{"ucx_perftest, fewer values", parseUCX, strings.Replace(sampleUCX, ",294,316", "", 1)},
		{"ucx_perftest, no number", parseUCX, strings.Replace(sampleUCX, "316.16", "fast", 1)},
		{"fi_pingpong, no column", parseFabric, "bytes #sent\n8 5k\n"},
		{"fi_pingpong, a zero", parseFabric, strings.Replace(sampleFabric, "6.43", "0.00", 1)},
		{"ib_write_bw, MiB/s", parsePerftest, strings.Replace(samplePerftest, "BW average[Gb/sec]", "BW average[MB/sec]", 1)},
		{"ib_write_bw, cut off", parsePerftest, samplePerftest[:strings.Index(samplePerftest, " 65536")]},
	} {
		if got, err := c.parse([]byte(c.out)); err == nil {
			t.Errorf("%s: %+v instead of an error", c.name, got)
		}
	}
}
