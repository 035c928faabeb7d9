package perf

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/qp"
)

// Verb is the operation that a test measures.
type Verb uint8

// The verbs.
const (
	Send Verb = iota
	Write
	Read
	Atomic
)

var verbNames = [...]string{Send: "send", Write: "write", Read: "read", Atomic: "atomic"}

// verbTitles are the names in the head of a report, which are perftest's.
var verbTitles = [...]string{Send: "Send", Write: "RDMA_Write", Read: "RDMA_Read", Atomic: "Atomic"}

// Test is one of the eight tests.
type Test struct {
	Verb    Verb
	Latency bool
}

// Tests returns all tests.
func Tests() []Test {
	var all []Test
	for _, latency := range []bool{false, true} {
		for v := range verbNames {
			all = append(all, Test{Verb(v), latency})
		}
	}
	return all
}

// String returns the name of the test, such as write_bw; the tool of perftest has
// ib_ before it.
func (t Test) String() string {
	if t.Latency {
		return verbNames[t.Verb] + "_lat"
	}
	return verbNames[t.Verb] + "_bw"
}

// Config says what to measure. A zero number means perftest's default, which may
// depend on others.
type Config struct {
	Test       Test
	Connection qp.Type // RC, UC (Send, Write) or UD (Send)
	Size       int     // bytes per message: 1 to 2^31-1; default 65536, 2 for latency, always 8 for Atomic
	All        bool    // sizes of 2, 4, 8 … 2^23 bytes instead
	Iters      int     // messages per queue pair: at least 5; default 1000, 5000 for write_bw
	// Duration, if set, ends the test instead of Iters. Margin at both ends of it
	// is left out of the result: default a quarter of the duration; negative: none.
	Duration, Margin time.Duration

	QPs              int // default 1
	TxDepth, RxDepth int // outstanding sends and posted receives per queue pair
	PostList         int // work requests per post; default as many as there is room for
	CQMod            int // one completion for this many work requests
	Bidirectional    bool
	MTU              int // bytes; default what the device's interface carries
	Inline           int // messages up to this size are copied at the post
	Events           bool
	AtomicOp         qp.Op // FetchAdd (default) or CmpSwap
	Outs             int   // READs and atomics accepted at a time: default 16
	Timeout          int   // ACK timeout code, default 14; negative: none
	Retry            int   // retries, default 7; negative: none
	TrafficClass     uint8
	HopLimit         uint8   // default 64
	RateLimit        float64 // bits per nanosecond (Gb/sec) that a requester sends at most; 0 none
	SRQ              bool

	Wait time.Duration // gives up when nothing happens for so long; default 30 s

	NoPeak, Gbits               bool
	Sorted, Unsorted, Histogram bool // list the latencies
	JSON                        bool
	Verbose                     bool // print the device's counters
}

// Limits of Config.
const (
	maxAllExponent = 23      // -a ends at 2^23 bytes
	maxMemory      = 1 << 32 // bytes
	MaxQPs         = 16384
	MinIters       = 5
	// maxPeakIters is how many messages are timed one by one, to find the peak;
	// perftest has the same limit.
	maxPeakIters = 20000
)

// Check fills in the defaults that do not depend on the device and says what is
// wrong with the rest, in words of the command line.
func (c *Config) Check() error {
	t := c.Test
	setDefault(&c.Connection, qp.RC)
	setDefault(&c.QPs, 1)
	setDefault(&c.Outs, defaultOuts)
	setDefault(&c.AtomicOp, qp.FetchAdd)
	setDefault(&c.Wait, 30*time.Second)
	switch {
	case t.Verb == Write && !t.Latency:
		setDefault(&c.Iters, 5000)
	default:
		setDefault(&c.Iters, 1000)
	}
	if err := c.checkTest(); err != nil {
		return err
	}
	if err := c.checkNumbers(); err != nil {
		return err
	}
	return c.checkDuration()
}

const defaultOuts = 16

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// checkTest checks what goes together.
func (c *Config) checkTest() error {
	t := c.Test
	switch {
	case c.Connection == qp.UC && t.Verb != Send && t.Verb != Write:
		return fmt.Errorf("-c UC has no %s: use RC", verbNames[t.Verb])
	case c.Connection == qp.UD && t.Verb == Write:
		return errors.New("-c UD has no write: use RC or UC")
	case c.Connection == qp.UD && t.Verb != Send:
		return fmt.Errorf("-c UD has no %s: use RC", verbNames[t.Verb])
	case c.Bidirectional && t.Latency:
		return errors.New("-b is for the bandwidth tests: a latency test goes both ways already")
	case t.Verb == Atomic && c.All:
		return errors.New("-a does not go with atomics: they have 8 bytes")
	case t.Verb == Atomic && c.Size != 0 && c.Size != 8:
		return fmt.Errorf("-s is %d; an atomic has 8 bytes", c.Size)
	case c.Events && t.Latency && t.Verb == Write:
		return errors.New("-e does not go with write_lat: a WRITE makes no completion at its target that could be slept for")
	case c.SRQ && t.Verb != Send:
		return errors.New("--use-srq is for the send tests: the others post no receives")
	case t.Latency && c.QPs > 1:
		return errors.New("-q is for the bandwidth tests: a latency test has one message under way")
	case t.Latency && c.PostList > 1:
		return errors.New("-l is for the bandwidth tests: a latency test has one message under way")
	case c.AtomicOp != qp.FetchAdd && c.AtomicOp != qp.CmpSwap:
		return errors.New("-A takes FETCH_AND_ADD or CMP_AND_SWAP")
	case !t.Latency && (c.Sorted || c.Unsorted || c.Histogram):
		return errors.New("-H, -U and --histogram are for the latency tests")
	case c.All && c.Size != 0:
		return errors.New("-a and -s exclude each other")
	case c.RateLimit != 0 && (c.Test.Latency || c.Events):
		return errors.New("--rate_limit is for the bandwidth tests, and without -e: it needs somebody awake")
	case c.All && c.Duration != 0:
		return errors.New("-a and -D exclude each other")
	}
	return nil
}

func (c *Config) checkNumbers() error {
	for _, n := range []struct {
		flag         string
		v, low, high int
	}{
		{"-s", c.Size, 0, qp.MaxMessage - 1},
		{"-n", c.Iters, MinIters, math.MaxInt32},
		{"-q", c.QPs, 1, MaxQPs},
		{"-t", c.TxDepth, 0, qp.MaxWR},
		{"-r", c.RxDepth, 0, qp.MaxWR},
		{"-l", c.PostList, 0, MaxPostList},
		{"-Q", c.CQMod, 0, qp.MaxWR},
		{"-I", c.Inline, 0, qp.MaxInline},
		{"-o", c.Outs, 1, qp.MaxRDAtomicLimit},
		{"-u", c.Timeout, -1, 31},
		{"--retry_count", c.Retry, -1, 7},
	} {
		if n.v < n.low || n.v > n.high {
			return fmt.Errorf("%s is %d; it must be %d to %d", n.flag, n.v, n.low, n.high)
		}
	}
	switch {
	case c.MTU != 0 && !qp.ValidMTU(c.MTU):
		return fmt.Errorf("-m is %d; it must be 256, 512, 1024, 2048 or 4096", c.MTU)
	case c.PostList > 1 && c.TxDepth != 0 && c.PostList > c.TxDepth:
		return fmt.Errorf("-l is %d; it must be at most -t, %d", c.PostList, c.TxDepth)
	case c.Wait < 0:
		return fmt.Errorf("--wait is %v; it must be positive", c.Wait)
	}
	return nil
}

func (c *Config) checkDuration() error {
	if c.Duration == 0 {
		return nil
	}
	if c.Margin == 0 {
		c.Margin = c.Duration / 4
	}
	c.Margin = max(0, c.Margin)
	if c.Duration < 0 || c.Duration <= 2*c.Margin {
		return fmt.Errorf("-D is %v; it must be more than twice the margin -f, %v", c.Duration, c.Margin)
	}
	c.NoPeak = true
	return nil
}

// fit fills in the defaults that depend on the path MTU, and on each other.
func (c *Config) fit() {
	t := c.Test
	switch {
	case t.Verb == Atomic:
		c.Size = 8
	case c.Size == 0 && t.Latency:
		c.Size = 2
	case c.Size == 0:
		c.Size = 65536
	}
	if c.Connection == qp.UD {
		c.Size = min(c.Size, c.MTU) // as perftest does
	}
	tx, rx := 128, 512
	if t.Latency {
		tx = 1
	}
	if c.Connection != qp.RC {
		rx = 16000 // nobody waits for a receive that is missing
	}
	setDefault(&c.TxDepth, tx)
	setDefault(&c.RxDepth, rx)
	if c.Duration == 0 {
		c.TxDepth, c.RxDepth = min(c.TxDepth, c.Iters), min(c.RxDepth, c.Iters)
	}
	setDefault(&c.CQMod, 100)
	// A completion has to come well before the queue has run dry.
	c.CQMod = max(1, min(c.CQMod, c.TxDepth/4))
	if t.Latency {
		c.CQMod = 1
	}
	c.PostList = min(c.PostList, c.TxDepth)
	if c.Iters > maxPeakIters {
		c.NoPeak = true
	}
}

// sizes lists the message sizes of the test.
func (c *Config) sizes() []int {
	if !c.All {
		return []int{c.Size}
	}
	var all []int
	for e := 1; e <= maxAllExponent && (c.Connection != qp.UD || 1<<e <= c.MTU); e++ {
		all = append(all, 1<<e)
	}
	return all
}

// largest is the longest message of the test.
func (c *Config) largest() int {
	all := c.sizes()
	return all[len(all)-1]
}

// signalBytes bounds what is sent between two completions.
const signalBytes = 1 << 20

// LatencyInline is Config.Inline of the latency tests unless it is given, about as
// perftest has it on network cards, and latencyMod how many such messages share one
// completion: nobody waits for it, since their memory is free after the post.
const (
	LatencyInline = 220
	latencyMod    = 16
)

// inline reports whether messages of a size are copied at the post.
func (c *Config) inline(size int) bool {
	return size <= c.Inline && (c.Test.Verb == Send || c.Test.Verb == Write)
}

// cqMod is how many messages of a size share one completion.
func (c *Config) cqMod(size int) int {
	if c.Test.Latency && c.inline(size) {
		return latencyMod
	}
	return max(1, min(c.CQMod, signalBytes/size))
}

// requester reports whether this side makes requests whose completions are
// counted.
func (c *Config) requester(client bool) bool {
	return client || c.Bidirectional || c.Test.Latency && (c.Test.Verb == Send || c.Test.Verb == Write)
}

// receives reports whether this side has to post receives.
func (c *Config) receives(client bool) bool {
	return c.Test.Verb == Send && (!client || c.Bidirectional || c.Test.Latency)
}

// grh is how many bytes precede a message in a receive buffer.
func (c *Config) grh() int {
	if c.Connection == qp.UD {
		return bth.GRHLen
	}
	return 0
}
