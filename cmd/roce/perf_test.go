package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/cmd/roce/perf"
)

const perfServer, perfClient = "127.0.7.1", "127.0.7.2"

// bothPerf runs a test with a server and a client in this process.
func bothPerf(t *testing.T, test string, server, client []string) (s, c result) {
	t.Helper()
	port := freePort(t)
	base := []string{"perf", test, "-p", port, "--wait", "5s"}
	done := startRoce(t.Context(), append(append(append([]string{}, base...), "-d", perfServer), server...)...)
	c = runRoce(t, nil, append(append(append([]string{}, base...), "-d", perfClient, perfServer), client...)...)
	s = await(t, done)
	skipWithoutPort(t, s)
	skipWithoutPort(t, c)
	return s, c
}

// perfOutput is what others read of --json.
type perfOutput struct {
	perf.Result
	Raw struct {
		Rows []map[string]any `json:"rows"`
	} `json:"-"`
}

func parsePerf(t *testing.T, r result) (o perfOutput) {
	t.Helper()
	if r.code != 0 || r.err != "" {
		t.Fatalf("%+v", r)
	}
	for _, v := range []any{&o.Result, &o.Raw} {
		if err := json.Unmarshal([]byte(r.out), v); err != nil {
			t.Fatalf("%v: %s", err, r.out)
		}
	}
	return o
}

func TestPerfBothRoles(t *testing.T) {
	for _, row := range []struct {
		test, options      string
		rows, servers      int // rows of the client and of the server
		iters              uint64
		clientOK, serverOK string // what has been validated
	}{
		{"send_bw", "-n 200", 1, 1, 200, "by the peer: the bytes received", "the bytes received"},
		{"write_bw", "-n 200", 1, 1, 200, "by the peer: the bytes received", "the bytes received"},
		{"read_bw", "-n 200", 1, 1, 200, "the bytes read", "by the peer: the bytes read"},
		{"atomic_bw", "-n 200", 1, 1, 200, "the peer's counters", "by the peer: the peer's counters"},
		{"send_lat", "-n 50 -e", 1, 1, 50, "by the peer: the bytes received", "the bytes received"},
		{"write_lat", "-n 50", 1, 1, 50, "by the peer: the bytes received", "the bytes received"},
		{"read_lat", "-n 50", 1, 0, 50, "the bytes read", "by the peer: the bytes read"},
		{"atomic_lat", "-n 50", 1, 0, 50, "the peer's counters", "by the peer: the peer's counters"},

		{"send_bw", "-c UC -n 50 -s 1000", 1, 1, 50, "", ""},
		{"send_bw", "-c UD -n 50", 1, 1, 50, "", ""},
		{"write_bw", "-c UC -n 50 -s 1000", 1, 1, 50, "", ""},
		{"send_lat", "-c UC -n 20 -e", 1, 1, 20, "", ""},
		{"send_lat", "-c UD -n 20 -e", 1, 1, 20, "", ""},
		{"write_lat", "-c UC -n 20", 1, 1, 20, "", ""},

		{"send_bw", "-b -n 100", 1, 1, 100, "the bytes received", "the bytes received"},
		{"write_bw", "-b -n 100", 1, 1, 100, "the bytes received", "the bytes received"},
		{"read_bw", "-b -n 100", 1, 1, 100, "the bytes read", "the bytes read"},
		{"atomic_bw", "-b -n 100", 1, 1, 100, "the peer's counters", "the peer's counters"},
		{"send_bw", "-q 4 -n 50", 1, 1, 200, "", "the bytes received"},
		{"write_bw", "-q 4 -n 50 -l 4", 1, 1, 200, "", "the bytes received"},
		{"send_bw", "-q 4 -n 50 --use-srq", 1, 1, 200, "", "the bytes received"},
		{"read_bw", "-q 4 -b -n 50", 1, 1, 200, "the bytes read", "the bytes read"},
		{"send_bw", "-a -n 5", 23, 23, 5, "", "the bytes received"},
		{"write_bw", "-a -n 5", 23, 1, 5, "", "the bytes received"},
		{"read_bw", "-a -b -n 5", 23, 23, 5, "the bytes read", "the bytes read"},
		{"send_lat", "-a -n 5 -e", 23, 23, 5, "", "the bytes received"},
		{"read_lat", "-a -n 5 -e", 23, 0, 5, "the bytes read", ""},
		{"send_bw", "-c UD -a -n 5", 12, 12, 5, "", ""},
		{"send_bw", "-e -n 100", 1, 1, 100, "", "the bytes received"},
		{"write_bw", "-b -e -n 100", 1, 1, 100, "", "the bytes received"},
		{"atomic_bw", "-A CMP_AND_SWAP -n 100", 1, 1, 100, "the peer's counters", ""},
		{"write_bw", "-s 64 -I 64 -n 100", 1, 1, 100, "", "the bytes received"},
		{"write_bw", "-s 1 -n 30000 -t 64 -Q 7", 1, 1, 30000, "", "the bytes received"},
	} {
		t.Run(row.test+" "+row.options, func(t *testing.T) {
			options := append(strings.Fields(row.options), "--json")
			s, c := bothPerf(t, row.test, options, options)
			server, client := parsePerf(t, s), parsePerf(t, c)
			if server.Role != "server" || client.Role != "client" || client.Test != row.test {
				t.Errorf("%s %s, %s %s", client.Test, client.Role, server.Test, server.Role)
			}
			if len(client.Rows) != row.rows || len(server.Rows) != row.servers {
				t.Fatalf("%d rows at the client and %d at the server, want %d and %d", len(client.Rows), len(server.Rows), row.rows, row.servers)
			}
			for _, o := range []perfOutput{client, server} {
				checkPerfRows(t, o, row.iters, strings.HasSuffix(row.test, "_lat"))
			}
			if got := strings.Join(client.Checked, ", "); !strings.Contains(got, row.clientOK) {
				t.Errorf("the client validated %q", got)
			}
			if got := strings.Join(server.Checked, ", "); !strings.Contains(got, row.serverOK) {
				t.Errorf("the server validated %q", got)
			}
		})
	}
}

// checkPerfRows checks the fields of all rows.
func checkPerfRows(t *testing.T, o perfOutput, iters uint64, latency bool) {
	t.Helper()
	for i, r := range o.Rows {
		raw := o.Raw.Rows[i]
		_, hasRate := raw["bw_average_mib"]
		_, hasTimes := raw["t_p99_usec"]
		_, hasCPU := raw["cpu_seconds_per_gigabyte"]
		lossy := o.Connection != "RC" && r.Lost > 0
		switch {
		case hasRate == latency || hasTimes != latency || !hasCPU:
			t.Errorf("%s: fields %v", o.Role, raw)
		case r.Iterations != iters && !lossy:
			t.Errorf("%s: %d iterations of %d bytes, want %d", o.Role, r.Iterations, r.Size, iters)
		case latency && (r.Min <= 0 || r.Min > r.Typical || r.Typical > r.Max || r.P99 > r.Max):
			t.Errorf("%s: %+v", o.Role, r.Times)
		case !latency && (r.Rate.Average <= 0 || r.MsgRate <= 0 || r.Peak != 0 && r.Peak < r.Rate.Average*.999):
			t.Errorf("%s: %+v", o.Role, r.Rate)
		}
	}
}

func TestPerfDuration(t *testing.T) {
	for _, row := range []struct{ test, options string }{
		{"write_bw", "-D 1"}, {"send_lat", "-D 1 -f 0.1 -e"}, {"send_bw", "-D 1 -f 0 -e -q 4 -b"},
	} {
		t.Run(row.test+row.options, func(t *testing.T) {
			options := append(strings.Fields(row.options), "--json")
			s, c := bothPerf(t, row.test, options, options)
			for _, o := range []perfOutput{parsePerf(t, s), parsePerf(t, c)} {
				if len(o.Rows) != 1 || o.Rows[0].Iterations == 0 || o.Rows[0].Rate != nil && (o.Rows[0].Peak != 0 || o.Rows[0].Rate.Average <= 0) {
					t.Errorf("%s: %+v", o.Role, o.Rows)
				}
			}
		})
	}
}

var (
	perfBWRow  = regexp.MustCompile(`(?m)^ 4096\s+50\s+\d+\.\d\d\s+\d+\.\d\d\s+\d+\.\d{6}\s*$`)
	perfLatRow = regexp.MustCompile(`(?m)^ 4096\s+50(\s+\d+\.\d\d){7}\s*$`)
	perfHead   = regexp.MustCompile(`(?m)^ local address: LID 0000 QPN 0x[0-9a-f]{4,6} PSN 0x[0-9a-f]+ RKey 0x[0-9a-f]{8} VAddr 0x[0-9a-f]{16}\n GID: (\d\d:){10}255:255:127:00:07:0[12]$`)
)

// Scripts read the columns of perftest's tables.
func TestPerfTables(t *testing.T) {
	options := []string{"-n", "50", "-s", "4096"}
	s, c := bothPerf(t, "write_bw", options, append([]string{"--verbose"}, options...))
	for _, r := range []result{s, c} {
		if r.code != 0 || r.err != "" || !perfHead.MatchString(r.out) || !perfBWRow.MatchString(r.out) || !strings.Contains(r.out, " CPU time of this process\n") {
			t.Errorf("%+v", r)
		}
	}
	if !strings.Contains(c.out, "\n sent_pkts ") || strings.Contains(s.out, "sent_pkts") {
		t.Errorf("counters without --verbose, or none with it:\n%s\n%s", s.out, c.out)
	}
	s, c = bothPerf(t, "write_lat", options, append([]string{"-U", "--histogram"}, options...))
	for _, r := range []result{s, c} {
		if r.code != 0 || !perfLatRow.MatchString(r.out) {
			t.Errorf("%+v", r)
		}
	}
	if !strings.Contains(c.out, "\n49, ") || !strings.Contains(c.out, " usec ") {
		t.Errorf("no list or no histogram:\n%s", c.out)
	}
}

func TestPerfInlineAndGbitsAreOfOneSideOnly(t *testing.T) {
	_, c := bothPerf(t, "write_bw", []string{"-n", "50", "-s", "64", "--json"}, []string{"-n", "50", "-s", "64", "-I", "64", "--json"})
	r := parsePerf(t, c).Rows[0]
	if want := r.Rate.Average * 8 * (1 << 20) / 1e9; r.Gbps < want*.999 || r.Gbps > want*1.001 {
		t.Errorf("%v MiB/s are %v Gb/s", r.Rate.Average, r.Gbps)
	}
}

// 50 messages of 100000 bits at 0.1 Gb/sec take 49 ms after the first.
func TestPerfRateLimit(t *testing.T) {
	start := time.Now()
	options := []string{"-n", "50", "-s", "12500", "-c", "UC", "--rate_limit", "0.1", "--json"}
	_, c := bothPerf(t, "send_bw", options, options)
	r := parsePerf(t, c).Rows[0]
	if took := time.Since(start); took < 49*time.Millisecond || r.Gbps > .1*50/49 {
		t.Errorf("%v, %v Gb/s", took, r.Gbps)
	}
}

func TestPerfEndsThatDifferSayInWhat(t *testing.T) {
	s, c := bothPerf(t, "write_bw", []string{"-n", "50"}, []string{"-n", "60"})
	if s.code != 1 || c.code != 1 || !strings.Contains(c.err, "-n is 60 here and 50 at the peer") || !strings.Contains(s.err, "-n is 50 here and 60 at the peer") {
		t.Errorf("%+v\n%+v", s, c)
	}
}

// A byte that changes on the way behind the ICRC's back must fail both sides: here
// the server's first packets have another address, so that something stays unwritten.
func TestPerfInvalidDataFailsBothSides(t *testing.T) {
	s, c := bothPerf(t, "write_bw", []string{"-n", "5", "-s", "1000"}, []string{"-n", "5", "-s", "1000", "--fault", "set va=+8 op=write_only"})
	const want = "data validation failed"
	if s.code != 1 || c.code != 1 || !strings.Contains(s.err, want) || !strings.Contains(c.err, want+" at the peer") {
		t.Errorf("%+v\n%+v", s, c)
	}
}

func TestPerfSurvivesLoss(t *testing.T) {
	s, c := bothPerf(t, "send_bw", []string{"-n", "50"}, []string{"-n", "50", "--fault", "drop p=2%"})
	if s.code != 0 || c.code != 0 || !strings.Contains(c.out, "Faults injected: ") {
		t.Errorf("%+v\n%+v", s, c)
	}
}

// What an unreliable service loses is counted and no failure.
func TestPerfCountsWhatIsLost(t *testing.T) {
	s, c := bothPerf(t, "send_bw", []string{"-c", "UD", "-n", "50"}, []string{"-c", "UD", "-n", "50", "--fault", "drop n=3-5"})
	if s.code != 0 || c.code != 0 || !strings.Contains(s.out, " Lost: 3 of 50 messages of 4096 bytes\n") {
		t.Errorf("%+v\n%+v", s, c)
	}
}

// The status of a failed request is told by its name, with a cure.
func TestPerfNamesTheStatus(t *testing.T) {
	s, c := bothPerf(t, "read_bw", []string{"-n", "5"}, []string{"-n", "5", "-u", "8", "--retry_count", "1", "--fault", "drop op=read_request n=3-"})
	if c.code != 1 || !strings.Contains(c.err, "transport retry counter exceeded (12)") || s.code != 1 || !strings.Contains(s.err, "the peer ended the TCP exchange early") {
		t.Errorf("%+v\n%+v", s, c)
	}
}

// perfProcess is the command line of a peer in another process: see startPeer.
const perfProcess = "GOROCE_PERF_PEER"

func TestMain(m *testing.M) {
	if line := os.Getenv(perfProcess); line != "" {
		os.Exit(run(context.Background(), strings.Fields(line), strings.NewReader(""), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func startPeer(t *testing.T, line string) *exec.Cmd {
	t.Helper()
	peer := exec.Command(os.Args[0])
	peer.Env = append(os.Environ(), perfProcess+"="+line)
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	return peer
}

func TestPerfPeerThatDiesEndsTheRun(t *testing.T) {
	for _, row := range []struct {
		test      string
		diesFirst string // the side that is killed
	}{
		{"send_lat", "server"}, {"send_bw", "server"}, {"write_bw", "server"}, {"write_lat", "client"}, {"send_bw", "client"}, {"read_bw", "client"},
	} {
		t.Run(row.test+" "+row.diesFirst, func(t *testing.T) {
			port := freePort(t)
			line := func(addr string) string { return fmt.Sprintf("perf %s -p %s -D 60 -u 10 -d %s", row.test, port, addr) }
			server, client := line(perfServer), line(perfClient)+" "+perfServer
			here, there := client, server
			if row.diesFirst == "client" {
				here, there = server, client
			}
			peer := startPeer(t, there)
			done := startRoce(t.Context(), strings.Fields(here)...)
			time.Sleep(400 * time.Millisecond)
			_ = peer.Process.Kill()
			_ = peer.Wait()
			r := await(t, done)
			skipWithoutPort(t, r)
			if r.code != 1 || !strings.Contains(r.err, "the peer ended the TCP exchange early") && !strings.Contains(r.err, "transport retry counter exceeded (12)") {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestPerfEndsWithTheContext(t *testing.T) {
	for _, options := range []string{"", " -e"} {
		port := freePort(t)
		ctx, cancel := context.WithCancel(t.Context())
		server := startRoce(t.Context(), strings.Fields("perf send_bw -p "+port+" -D 60 -d "+perfServer+options)...)
		client := startRoce(ctx, strings.Fields("perf send_bw -p "+port+" -D 60 -d "+perfClient+options+" "+perfServer)...)
		time.Sleep(300 * time.Millisecond)
		cancel()
		c, s := await(t, client), await(t, server)
		skipWithoutPort(t, c)
		if c.code != 1 || !strings.Contains(c.err, "interrupted after ") || s.code != 1 || !strings.Contains(s.err, "the peer ended the TCP exchange early") {
			t.Errorf("%s: %+v\n%+v", options, s, c)
		}
	}
}

func TestPerfStrayConnectionDoesNotEndAServer(t *testing.T) {
	port := freePort(t)
	server := startRoce(t.Context(), "perf", "write_bw", "-d", perfServer, "-p", port, "-n", "5")
	stray := dialPerf(t, port, server)
	_, _ = stray.Write([]byte("GET /"))
	stray.Close()
	c := runRoce(t, nil, "perf", "write_bw", "-d", perfClient, "-p", port, "-n", "5", perfServer)
	skipWithoutPort(t, c)
	s := await(t, server)
	if c.code != 0 || s.code != 0 || !strings.Contains(s.err, "sent no record; still waiting for a client") {
		t.Errorf("%+v\n%+v", s, c)
	}
}

// dialPerf connects to a perf server that may still be starting.
func dialPerf(t *testing.T, port string, server <-chan result) net.Conn {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", net.JoinHostPort(perfServer, port))
		if err == nil {
			return c
		}
		select {
		case r := <-server:
			skipWithoutPort(t, r)
			t.Fatalf("the server has ended: %+v", r)
		default:
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestPerfWrongUsage(t *testing.T) {
	for _, row := range []struct {
		test, options, want string
	}{
		{"write_bw", "-R", "--rdma_cm: there is no RDMA CM here yet"},
		{"send_lat", "-C", "--report-cycles: times are in microseconds only"},
		{"send_bw", "-g 2", "--mcg: there is no multicast test here"},
		{"write_bw", "--frobnicate", "unknown flag: --frobnicate"},
		{"write_bw", "-c XRC", `-c is "XRC"; it must be RC, UC or UD`},
		{"write_bw", "-c UD", "-c UD has no write: use RC or UC"},
		{"read_bw", "-c UC", "-c UC has no read: use RC"},
		{"atomic_bw", "-A SWAP", `-A is "SWAP"`},
		{"atomic_bw", "-s 16", "an atomic has 8 bytes"},
		{"write_lat", "-e", "-e does not go with write_lat"},
		{"write_bw", "-n 4", "--iters is 4; it must be 5 to"},
		{"write_bw", "-s 0", "--size is 0; it must be 1 to"},
		{"write_bw", "-m 1500", "-m is 1500; it must be 256, 512, 1024, 2048 or 4096"},
		{"write_bw", "-D 4 -f 2", "-f is 2; it must be less than half of -D"},
		{"write_bw", "-D 4 -n 10", "-D and -n exclude each other"},
		{"write_bw", "-a -s 4", "-a and -s exclude each other"},
		{"write_bw", "-l 65", "--post_list is 65; it must be 1 to 64"},
		{"write_bw", "-q 0", "--qp is 0; it must be 1 to 16384"},
		{"write_bw", "a b", `"b" is one argument too many: write_bw takes one SERVER`},
		{"write_bw", "host:1", "HOST takes no port"},
	} {
		got := runRoce(t, nil, append([]string{"perf", row.test}, strings.Fields(row.options)...)...)
		hint := "\nSee 'roce perf " + row.test + " --help'.\n"
		if got.code != 2 || got.out != "" || !strings.Contains(got.err, row.want) || !strings.HasSuffix(got.err, hint) {
			t.Errorf("%s %s: %+v, want %q", row.test, row.options, got, row.want)
		}
	}
	if got := runRoce(t, nil, "perf", "write_bx"); got.code != 2 || !strings.Contains(got.err, `there is no test "write_bx": is it write_bw`) {
		t.Errorf("%+v", got)
	}
}

func TestNamesOfToolsAreSubcommands(t *testing.T) {
	for _, row := range []struct{ args, want string }{
		{"roce perf write_bw -s 4", "perf write_bw -s 4"},
		{"/usr/bin/ib_write_bw -s 4 host", "perf write_bw -s 4 host"},
		{"ib_atomic_lat", "perf atomic_lat"},
		{"./ib_send_lat -a", "perf send_lat -a"},
		{"ibv_rc_pingpong -g 1", "pingpong rc -g 1"},
		{"ibv_srq_pingpong", "pingpong srq"},
		{"ib_nothing x", "x"},
	} {
		if got := strings.Join(toolArgs(strings.Fields(row.args)), " "); got != row.want {
			t.Errorf("%s: %q, want %q", row.args, got, row.want)
		}
	}
	if len(perf.Tests()) != 8 || filepath.Base(perf.Tests()[0].String()) != "send_bw" {
		t.Errorf("%v", perf.Tests())
	}
}
