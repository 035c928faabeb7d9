package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/goroce/goroce/cmd/roce/perf"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
	"github.com/spf13/cobra"
)

// toolArgs puts the subcommand before the arguments when the program is called by
// the name of a tool that it stands in for, such as ib_write_bw.
func toolArgs(args []string) []string {
	if len(args) == 0 {
		return nil
	}
	name := strings.TrimSuffix(filepath.Base(args[0]), ".exe")
	for _, t := range perf.Tests() {
		if name == "ib_"+t.String() {
			return append([]string{"perf", t.String()}, args[1:]...)
		}
	}
	for _, k := range pingpongKinds {
		if name == "ibv_"+k.name+"_pingpong" {
			return append([]string{"pingpong", k.name}, args[1:]...)
		}
	}
	return args[1:]
}

func newPerfCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "perf",
		Short: "Measure bandwidth and latency, against perftest's ib_* tools or another roce",
		Long: `perf measures as perftest's tools do, with their options and their tables, as client
and as server. The other side may be such a tool or another roce; two roce also check
each other's options and bytes. Behind the table it tells the processor time that the
run has cost.

Called by the name of a tool, through a symbolic link such as ib_write_bw, roce is
that tool.`,
		Example: "  roce perf write_bw --help\n  ln -s $(which roce) ib_send_lat && ./ib_send_lat -F 192.0.2.7",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(cmd, "there is no test %q%s", args[0], suggestion(cmd, args[0]))
			}
			if err := cmd.Help(); err != nil {
				return err
			}
			return &exitError{code: exitUsage}
		},
	}
	for _, t := range perf.Tests() {
		cmd.AddCommand(newPerfTestCommand(t))
	}
	return cmd
}

// perfFlags are the options, spelled as perftest's.
type perfFlags struct {
	deviceFlags
	perf.Config
	port               int
	duration           int
	margin             float64
	timeout, retry     int
	tclass, hopLimit   int
	connection, atomic string
}

// perfWords say what a test does.
var perfWords = map[perf.Verb]string{
	perf.Send:   "SEND: the receiver takes each message from its receive queue.",
	perf.Write:  "RDMA WRITE: the client writes into the server's memory.",
	perf.Read:   "RDMA READ: the client reads the server's memory.",
	perf.Atomic: "atomics: the client adds to a counter of 8 bytes in the server's memory, or compares and swaps it.",
}

func newPerfTestCommand(t perf.Test) *cobra.Command {
	f := perfFlags{Config: perf.Config{Test: t}}
	kind := "Bandwidth"
	if t.Latency {
		kind = "Latency"
	}
	cmd := &cobra.Command{
		Use:   t.String() + " [SERVER]",
		Short: fmt.Sprintf("%s of %s: the counterpart of ib_%s", kind, strings.SplitN(perfWords[t.Verb], ":", 2)[0], t),
		Long: fmt.Sprintf(`%s of %s

Without SERVER it is the server and waits for a client; with SERVER it is the client.
The other side may be ib_%s, which may need its RoCE v2 GID (-x INDEX). Both sides
need the same options; -d, -I, -t, -e, --ring and those of the output may differ.`, kind, perfWords[t.Verb], t),
		Example: fmt.Sprintf(`  # against a Linux host with RDMA, which runs: ib_%[1]s -F
  roce perf %[1]s 192.0.2.7

  # both sides on one machine
  roce perf %[1]s -d 127.0.0.2 &
  roce perf %[1]s -d 127.0.0.1 127.0.0.2`, t),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(cmd, "%q is one argument too many: %s takes one SERVER", args[1], cmd.Name())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			server := ""
			if len(args) == 1 {
				server = args[0]
				if err := validateHost(cmd, server); err != nil {
					return err
				}
			}
			if err := f.validate(cmd); err != nil {
				return err
			}
			return runPerf(cmd, &f, server)
		},
	}
	f.register(cmd)
	return cmd
}

func (f *perfFlags) register(cmd *cobra.Command) {
	f.registerDevice(cmd, "gid-index", "x")
	fs := cmd.Flags()
	t := f.Test
	bw := !t.Latency
	fs.IntVarP(&f.port, "port", "p", 18515, "TCP `PORT` of the exchange around the test")
	fs.StringVarP(&f.connection, "connection", "c", "RC", "`SERVICE`: RC, UC (send, write) or UD (send)")
	fs.IntVarP(&f.Size, "size", "s", 0, fmt.Sprintf("`BYTES` per message (default %d)", perfSize(t)))
	fs.BoolVarP(&f.All, "all", "a", false, "all sizes: 2, 4, 8 … 2^23 bytes")
	fs.IntVarP(&f.Iters, "iters", "n", perfIters(t), "`NUMBER` of messages per queue pair, at least 5")
	fs.IntVarP(&f.duration, "duration", "D", 0, "run for so many `SECONDS` instead of -n messages")
	fs.Float64VarP(&f.margin, "margin", "f", 0, "with -D: leave out so many `SECONDS` at either end (default a quarter of -D)")
	fs.IntVarP(&f.TxDepth, "tx-depth", "t", 0, fmt.Sprintf("`NUMBER` of requests under way per queue pair (default %d)", choose(bw, 128, 1)))
	fs.IntVarP(&f.MTU, "mtu", "m", 0, "path MTU in `BYTES`: 256, 512, 1024, 2048 or 4096 (default what the interface carries; the smaller one of both sides counts)")
	fs.IntVarP(&f.timeout, "qp-timeout", "u", 14, "ACK timeout `CODE`: 4.096 µs · 2^CODE, 0 none")
	fs.IntVar(&f.retry, "retry_count", 7, "`NUMBER` of retries, 0 to 7")
	fs.BoolVarP(&f.Events, "events", "e", false, "sleep until a completion instead of polling for it")
	fs.IntVarP(&f.hopLimit, "hop_limit", "L", 64, "hop limit (TTL) `NUMBER`, 1 to 255")
	fs.IntVar(&f.tclass, "tclass", 0, "traffic class `NUMBER`: DSCP in the upper 6 bits, ECN in the lower 2")
	fs.DurationVar(&f.Wait, "wait", 30*time.Second, "give up when nothing happens for this `TIME`; the wait for a client has no end")
	fs.BoolVar(&f.JSON, "json", false, "print the result, or the error, as one JSON object")
	fs.BoolVar(&f.Verbose, "verbose", false, "print the device's counters at the end")
	if t.Verb == perf.Send || t.Verb == perf.Write {
		fs.IntVarP(&f.Inline, "inline_size", "I", choose(bw, 0, perf.LatencyInline), "copy messages of up to so many `BYTES` at the post")
	}
	if t.Verb == perf.Send {
		fs.IntVarP(&f.RxDepth, "rx-depth", "r", 0, "`NUMBER` of receives posted per queue pair (default 512; UC and UD 16000)")
		fs.BoolVar(&f.SRQ, "use-srq", false, "receive from one shared receive queue")
	}
	if t.Verb == perf.Read || t.Verb == perf.Atomic {
		fs.IntVarP(&f.Outs, "outs", "o", 16, "`NUMBER` of READs and atomics accepted at a time, per queue pair")
	}
	if t.Verb == perf.Atomic {
		fs.StringVarP(&f.atomic, "atomic_type", "A", "FETCH_AND_ADD", "`OPERATION`: FETCH_AND_ADD or CMP_AND_SWAP")
	}
	if bw {
		f.registerBandwidth(cmd)
	} else {
		f.registerLatency(cmd)
	}
	fs.BoolP("version", "V", false, "print the version")
	cmd.Version = version()
	registerIgnored(cmd)
	registerRefused(cmd)
}

func (f *perfFlags) registerBandwidth(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.IntVarP(&f.QPs, "qp", "q", 1, "`NUMBER` of queue pairs")
	fs.IntVarP(&f.PostList, "post_list", "l", 0, "post requests in lists of this `NUMBER` (default as many as there is room for, up to 16)")
	fs.IntVarP(&f.CQMod, "cq-mod", "Q", 0, "one completion for this `NUMBER` of requests (default 100; less where fewer are under way, or 1 MiB)")
	fs.BoolVarP(&f.Bidirectional, "bidirectional", "b", false, "both ways at once; the table has the sum")
	fs.BoolVarP(&f.NoPeak, "noPeak", "N", false, "no peak bandwidth; nor is there any above 20000 messages or with -D")
	fs.Float64Var(&f.RateLimit, "rate_limit", 0, "send at most so many `GBITS` (10^9 bits) per second, all queue pairs together")
	fs.BoolVar(&f.Gbits, "report_gbits", false, "Gb/sec (10^9 bits) instead of MiB/sec (2^20 bytes)")
}

func (f *perfFlags) registerLatency(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVarP(&f.Sorted, "report-histogram", "H", false, "list all results, sorted")
	fs.BoolVarP(&f.Unsorted, "report-unsorted", "U", false, "list all results in the order of the messages")
	fs.BoolVar(&f.Histogram, "histogram", false, "draw the distribution of the results")
}

// registerIgnored accepts what makes no difference here.
func registerIgnored(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolP("CPU-freq", "F", false, "accepted for compatibility")
	fs.IntP("sl", "S", 0, "service level: accepted for compatibility; Ethernet has none")
	fs.IntP("ib-port", "i", 1, "port of the device: 1, for compatibility")
	fs.Bool("disable_pcie_relaxed", false, "accepted for compatibility")
	fs.Bool("use_old_post_send", false, "accepted for compatibility")
	for _, name := range []string{"CPU-freq", "sl", "ib-port", "disable_pcie_relaxed", "use_old_post_send"} {
		fs.Lookup(name).Hidden = true
	}
}

// perfRefused are perftest's options that are not there, with the reason.
var perfRefused = []struct{ name, letter, reason string }{
	{"rdma_cm", "R", "there is no RDMA CM here yet: leave it out at both sides; the exchange then goes over TCP"},
	{"com_rdma_cm", "z", "there is no RDMA CM here yet: leave it out at both sides; the exchange then goes over TCP"},
	{"tos", "T", "it belongs to RDMA CM, which is not here yet; --tclass sets the traffic class"},
	{"dualport", "O", "a device has one port"},
	{"run_infinitely", "", "the run has an end here: use -D with a long time"},
	{"report-cycles", "C", "times are in microseconds only"},
	{"mcg", "g", "there is no multicast test here"},
	{"MGID", "M", "there is no multicast test here"},
	{"odp", "", "memory is registered as it is: there is nothing to page in on demand"},
	{"use_hugepages", "", "memory comes from the Go heap"},
	{"rate_limit_type", "", "--rate_limit is always by software"},
	{"rate_units", "", "--rate_limit is in Gb/sec"},
	{"output", "", "use --json, and take what you need"},
	{"recv_post_list", "", "receives are posted one at a time"},
	{"report-both", "", "run both sides with --json, and without -b, to see each way"},
	{"reversed", "", "the client sends: swap the two sides instead"},
	{"dont_xchg_versions", "", "the versions are always exchanged: leave it out at both sides"},
	{"limit_bw", "w", "no limit is checked: read the result with --json"},
	{"limit_msgrate", "y", "no limit is checked: read the result with --json"},
	{"cpu_util", "", "the CPU time is always there, behind the table and in --json"},
	{"out_json", "", "use --json, which prints to standard output"},
	{"ipv6", "", "the address decides: give an IPv6 one with -d"},
}

func registerRefused(cmd *cobra.Command) {
	fs := cmd.Flags()
	for _, r := range perfRefused {
		if fs.Lookup(r.name) != nil || r.letter != "" && fs.ShorthandLookup(r.letter) != nil {
			continue
		}
		f := fs.VarPF(refused(r.reason), r.name, r.letter, "")
		f.NoOptDefVal, f.Hidden = "true", true
	}
}

// refused is a pflag.Value that takes none.
type refused string

// Set implements pflag.Value.
func (r refused) Set(string) error { return errors.New(string(r)) }

// Type implements pflag.Value.
func (r refused) Type() string { return "REFUSED" }

// String implements pflag.Value.
func (r refused) String() string { return "" }

func perfSize(t perf.Test) int {
	switch {
	case t.Verb == perf.Atomic:
		return 8
	case t.Latency:
		return 2
	}
	return 65536
}

func perfIters(t perf.Test) int {
	if t == (perf.Test{Verb: perf.Write}) {
		return 5000
	}
	return 1000
}

var perfServices = map[string]qp.Type{"RC": qp.RC, "UC": qp.UC, "UD": qp.UD}

var perfAtomics = map[string]qp.Op{"": 0, "FETCH_AND_ADD": qp.FetchAdd, "CMP_AND_SWAP": qp.CmpSwap}

// validate checks the options and translates them.
func (f *perfFlags) validate(cmd *cobra.Command) error {
	var ok bool
	if f.Connection, ok = perfServices[strings.ToUpper(f.connection)]; !ok {
		return usageError(cmd, "-c is %q; it must be RC, UC or UD", f.connection)
	}
	if f.AtomicOp, ok = perfAtomics[strings.ToUpper(f.atomic)]; !ok {
		return usageError(cmd, "-A is %q; it must be FETCH_AND_ADD or CMP_AND_SWAP", f.atomic)
	}
	fs := cmd.Flags()
	for _, n := range []struct {
		name      string
		v         int
		low, high int
	}{
		{"port", f.port, 1, 65535}, {"size", f.Size, 1, qp.MaxMessage - 1}, {"duration", f.duration, 1, 1 << 24}, {"tx-depth", f.TxDepth, 1, qp.MaxWR},
		{"rx-depth", f.RxDepth, 1, qp.MaxWR}, {"qp-timeout", f.timeout, 0, 31}, {"retry_count", f.retry, 0, 7}, {"tclass", f.tclass, 0, 255}, {"hop_limit", f.hopLimit, 1, 255},
		{"iters", f.Iters, perf.MinIters, math.MaxInt32}, {"qp", f.QPs, 1, perf.MaxQPs}, {"outs", f.Outs, 1, qp.MaxRDAtomicLimit},
		{"post_list", f.PostList, 1, perf.MaxPostList}, {"cq-mod", f.CQMod, 1, qp.MaxWR},
	} {
		if fs.Changed(n.name) && (n.v < n.low || n.v > n.high) {
			return usageError(cmd, "--%s is %d; it must be %d to %d", n.name, n.v, n.low, n.high)
		}
	}
	switch {
	case !(f.RateLimit >= 0 && f.RateLimit < 1e6):
		return usageError(cmd, "--rate_limit is %v; it must be 0 to 1000000 Gb/sec", f.RateLimit)
	case f.Wait <= 0:
		return usageError(cmd, "--wait is %v; it must be positive", f.Wait)
	case f.duration > 0 && fs.Changed("iters"):
		return usageError(cmd, "-D and -n exclude each other")
	case fs.Changed("margin") && (f.duration == 0 || !(f.margin >= 0 && 2*f.margin < float64(f.duration))):
		return usageError(cmd, "-f is %v; it must be less than half of -D", f.margin)
	}
	if port, err := fs.GetInt("ib-port"); err != nil || port != 1 {
		return usageError(cmd, "--ib-port is %d; the device has port 1 only", port)
	}
	f.Duration = time.Duration(f.duration) * time.Second
	f.Margin = time.Duration(f.margin * float64(time.Second))
	if fs.Changed("margin") && f.margin == 0 {
		f.Margin = -1
	}
	f.Timeout, f.Retry, f.TrafficClass, f.HopLimit = zeroAsNone(f.timeout), zeroAsNone(f.retry), uint8(f.tclass), uint8(f.hopLimit)
	if err := f.Check(); err != nil {
		return usageError(cmd, "%w", err)
	}
	return nil
}

// zeroAsNone is how perf and verbs write a zero that is not the default.
func zeroAsNone(v int) int {
	if v == 0 {
		return -1
	}
	return v
}

// perfRun is the device of a test with what belongs to it.
type perfRun struct {
	f       *perfFlags
	server  string
	dev     *verbs.Device
	capture *packetFile
}

// runPerf runs one test as client (server given) or server.
func runPerf(cmd *cobra.Command, f *perfFlags, server string) error {
	ctx := cmd.Context()
	r := &perfRun{f: f, server: server}
	err := r.prepare(ctx)
	if err == nil {
		h := perf.Host{Open: r.open, Out: cmd.OutOrStdout()}
		if server == "" {
			h.Accept = func(ctx context.Context, greet func(net.Conn) error) error {
				return acceptTCP(ctx, f.port, cmd.ErrOrStderr(), func(c net.Conn) (bool, error) {
					err := greet(c)
					return errors.Is(err, perf.ErrEarly), err
				})
			}
		} else {
			h.Dial = func(ctx context.Context) (net.Conn, error) { return dialTCP(ctx, server, f.port, f.Wait) }
		}
		if isTerminal(cmd.ErrOrStderr()) {
			h.Progress = cmd.ErrOrStderr()
		}
		err = perf.Run(ctx, f.Config, h)
	}
	if r.dev != nil {
		if !f.JSON {
			f.reportFaults(cmd.OutOrStdout(), r.dev)
		}
		err = errors.Join(err, r.dev.Close())
	}
	if r.capture != nil {
		err = errors.Join(err, r.capture.close())
	}
	return err
}

// prepare does what needs no peer, so that it fails before anybody waits.
func (r *perfRun) prepare(ctx context.Context) (err error) {
	if r.capture, err = r.f.createCapture(); err != nil {
		return err
	}
	peer, _ := netip.ParseAddr(r.server)
	addr, certain, err := r.f.early(peer)
	if err == nil && certain {
		r.dev, err = r.f.deviceFlags.open(verbs.Config{Addr: addr}, r.capture)
	}
	if err != nil && r.server != "" && isInUse(err) {
		err = sameHost(err, hostAddr(ctx, r.server))
	}
	return err
}

// open is perf.Host.Open: unless the user chose, the address is the one that the
// TCP connection uses.
func (r *perfRun) open(c net.Conn) (*verbs.Device, error) {
	if r.dev != nil {
		return r.dev, nil
	}
	addr := localAddr(c)
	if r.f.given() {
		var err error
		if addr, err = r.f.addr(peerAddr(c)); err != nil {
			return nil, err
		}
	}
	var err error
	if r.dev, err = r.f.deviceFlags.open(verbs.Config{Addr: addr}, r.capture); err != nil {
		return nil, sameHost(err, peerAddr(c))
	}
	return r.dev, nil
}
