package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"
)

// settings are what both sides run with. The client decides; the server learns
// them from it.
type settings struct {
	Test    string
	Size    int           // bytes of a message
	MTU     int           // most payload bytes of a packet
	Count   int           // messages, if no time is given
	Time    time.Duration // how long
	Window  int           // packets that may be unacknowledged
	Events  bool          // sleep when there is nothing to do, instead of spinning
	Local   netip.AddrPort
	Remote  netip.AddrPort
	ForJSON bool `json:"-"`
}

// row is the result, with the names that `roce perf` uses.
type row struct {
	Size       int     `json:"size"`
	Iterations int     `json:"iterations"`
	MiB        float64 `json:"bw_average_mib,omitempty"`
	Gbps       float64 `json:"bw_average_gbps,omitempty"`
	Mpps       float64 `json:"msg_rate_mpps,omitempty"`
	Typical    float64 `json:"t_typical_usec,omitempty"`
	Average    float64 `json:"t_avg_usec,omitempty"`
	P99        float64 `json:"t_p99_usec,omitempty"`
}

// test has the two sides of a measurement. The server is ready once serve has
// called ready; both give up after limit.
type test struct {
	serve  func(s settings, ready func() error) error
	client func(s settings) (row, error)
}

var tests = map[string]test{
	"stream":   {receiveStream, sendStream},
	"pingpong": {echoPolled, pingPolled},
	"udpconn":  {echoConn, pingConn},
}

// limit bounds every wait for the other side beyond the time that was asked for.
const limit = 10 * time.Second

func main() {
	err := run(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "floor: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	s, server, err := parse(args)
	if err != nil {
		return err
	}
	if !server.IsValid() {
		return serveOne(s.Local)
	}
	s.Remote = server
	r, err := runClient(s)
	if err != nil {
		return err
	}
	return print(out, s, r)
}

func parse(args []string) (s settings, server netip.AddrPort, err error) {
	f := flag.NewFlagSet("floor", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "usage: floor stream|pingpong|udpconn [flags] [SERVER ADDRESS]")
		f.PrintDefaults()
	}
	local := f.String("d", "127.0.0.1", "local `address`")
	port := f.Uint("p", 18515, "`port`, TCP and UDP, of both sides")
	f.IntVar(&s.Size, "s", 0, "message size in `bytes`: 65536, or 8 for a ping-pong (where it is 4096 at most)")
	f.IntVar(&s.MTU, "m", 4096, "most payload `bytes` of a packet")
	f.IntVar(&s.Count, "n", 5000, "`messages` to send, unless -D is given")
	seconds := f.Float64("D", 0, "`seconds` to run")
	f.IntVar(&s.Window, "w", 0, "`packets` that may be unacknowledged; 0: what was found to be fast")
	f.BoolVar(&s.Events, "e", false, "sleep when there is nothing to do, instead of spinning")
	f.BoolVar(&s.ForJSON, "json", false, "print the result as JSON")
	if len(args) == 0 {
		f.Usage()
		return s, server, flag.ErrHelp
	}
	s.Test = args[0]
	if _, ok := tests[s.Test]; !ok {
		f.Usage()
		return s, server, fmt.Errorf("there is no test %q", s.Test)
	}
	if err := f.Parse(args[1:]); err != nil {
		return s, server, flag.ErrHelp
	}
	addr, err := netip.ParseAddr(*local)
	if err != nil || *port == 0 || *port > 65535 {
		return s, server, fmt.Errorf("-d wants an IP address and -p a port from 1 to 65535, not %q and %d", *local, *port)
	}
	s.Local = netip.AddrPortFrom(addr, uint16(*port))
	s.Time = time.Duration(*seconds * float64(time.Second))
	if f.NArg() > 0 {
		remote, err := netip.ParseAddr(f.Arg(0))
		if err != nil {
			return s, server, fmt.Errorf("the server's address: %w", err)
		}
		server = netip.AddrPortFrom(remote, s.Local.Port())
	}
	return s, server, s.complete()
}

// complete fills in defaults that depend on the test, and checks.
func (s *settings) complete() error {
	if s.Size == 0 {
		s.Size = 8
		if s.Test == "stream" {
			s.Size = 64 << 10
		}
	}
	if s.Window == 0 {
		s.Window = defaultWindow
	}
	switch {
	case !s.Local.Addr().Is4():
		return fmt.Errorf("-d wants an IPv4 address, not %v", s.Local.Addr())
	case s.Size < 1 || s.Size > 1<<30:
		return fmt.Errorf("-s wants 1 to 2^30 bytes, not %d", s.Size)
	case s.Test != "stream" && s.Size > 4096:
		return fmt.Errorf("-s wants at most 4096 bytes for a ping-pong, not %d", s.Size)
	case s.MTU < 1 || s.MTU > 4096:
		return fmt.Errorf("-m wants 1 to 4096 bytes, not %d", s.MTU)
	case s.Count < 1 && s.Time <= 0:
		return errors.New("-n or -D has to be positive")
	case s.Window < 2*maxBatch || s.Window > 1024:
		return fmt.Errorf("-w wants %d to 1024 packets, not %d", 2*maxBatch, s.Window)
	case s.Time < 0 || s.Time > time.Hour:
		return fmt.Errorf("-D wants at most an hour, not %v", s.Time)
	}
	return nil
}

func print(out io.Writer, s settings, r row) error {
	if s.ForJSON {
		return json.NewEncoder(out).Encode(struct {
			Test string `json:"test"`
			Rows []row  `json:"rows"`
		}{"floor_" + s.Test, []row{r}})
	}
	var err error
	if s.Test == "stream" {
		_, err = fmt.Fprintf(out, "%d bytes: %d messages, %.2f Gb/s, %.3f million messages/s\n", r.Size, r.Iterations, r.Gbps, r.Mpps)
	} else {
		_, err = fmt.Fprintf(out, "%d bytes: %d round trips; half of one: median %.2f µs, average %.2f µs, 99 %% below %.2f µs\n",
			r.Size, r.Iterations, r.Typical, r.Average, r.P99)
	}
	return err
}
