package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

// demoFlags are the options of roce demo.
type demoFlags struct {
	faultFlags
	loss  float64
	size  int
	mtu   int
	seed  uint64
	addrs []string
	pcap  string
	json  bool
}

func newDemoCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show every RDMA operation between two devices in this process",
		Long: `demo opens two RoCE devices on loopback addresses, connects a queue pair of each
and runs every operation of a reliable connection, with its bytes checked: first
on a clean network, then with some packets lost on purpose. With --fault, device A
damages what it sends and receives in the second pass, and nothing is lost besides
unless --loss is given too. It needs no privilege, no RDMA hardware and no other
program.`,
		Example: `  roce demo
  roce demo --loss 5 --pcap demo.pcap && roce decode -v demo.pcap
  roce demo --fault 'corrupt op=write_middle n=3; drop dir=rx op=ack n=2'`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(cmd); err != nil {
				return err
			}
			if len(f.faults) > 0 && !cmd.Flags().Changed("loss") {
				f.loss = 0
			}
			return runDemo(cmd.Context(), &f, cmd.OutOrStdout())
		},
	}
	f.register(cmd)
	fs := cmd.Flags()
	fs.Float64Var(&f.loss, "loss", 1, "`PERCENT` of packets to lose in the second pass, each way")
	fs.IntVarP(&f.size, "size", "s", 1<<20, "`BYTES` per message")
	fs.IntVarP(&f.mtu, "mtu", "m", 1024, "path MTU in `BYTES`: 256, 512, 1024, 2048 or 4096")
	fs.Uint64Var(&f.seed, "seed", 1, "`SEED` that decides which packets are lost or damaged")
	fs.StringSliceVar(&f.addrs, "addrs", []string{"127.0.0.1", "127.0.0.2"}, "the two local `ADDRESSES` to use")
	fs.StringVar(&f.pcap, "pcap", "", "write all packets of the first device to `FILE`, for Wireshark or 'roce decode'")
	fs.BoolVar(&f.json, "json", false, "print the results as one JSON object")
	return cmd
}

func (f *demoFlags) validate(cmd *cobra.Command) error {
	switch {
	case !(f.loss >= 0 && f.loss <= 20): // also if it is not a number
		return usageError(cmd, "--loss is %v; it must be 0 to 20 percent", f.loss)
	case f.size < 8 || f.size > 64<<20:
		return usageError(cmd, "--size is %d; it must be 8 to %d bytes", f.size, 64<<20)
	case !qp.ValidMTU(f.mtu):
		return usageError(cmd, "--mtu is %d; it must be 256, 512, 1024, 2048 or 4096", f.mtu)
	case len(f.addrs) != 2:
		return usageError(cmd, "--addrs names %d %s; it takes two, separated by a comma", len(f.addrs), choose(len(f.addrs) == 1, "address", "addresses"))
	}
	var addrs [2]netip.Addr
	for i, a := range f.addrs {
		parsed, err := netip.ParseAddr(a)
		if err != nil {
			return usageError(cmd, "--addrs: %q is not an IP address", a)
		}
		addrs[i] = parsed.Unmap()
	}
	if addrs[0] == addrs[1] {
		return usageError(cmd, "--addrs names one address twice: two devices on one host need two addresses")
	}
	return nil
}

// demoRow is the result of one operation in one pass.
type demoRow struct {
	Pass          string  `json:"pass"`
	Operation     string  `json:"operation"`
	Bytes         int     `json:"bytes"`
	Packets       uint64  `json:"packets"`
	Lost          uint64  `json:"lost"`
	Faults        uint64  `json:"faults"`
	Retransmitted uint64  `json:"retransmitted"`
	Seconds       float64 `json:"seconds"`
	Verified      bool    `json:"verified"`
}

func runDemo(ctx context.Context, f *demoFlags, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	text := out
	if f.json {
		text = io.Discard
	}
	var capture *packetFile
	if f.pcap != "" {
		if capture, err = createPacketFile(f.pcap); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, capture.close()) }()
	}
	fmt.Fprintf(text, "Two RoCEv2 devices in this process: A on %s, B on %s. They talk through UDP port\n"+
		"4791 like two hosts; the kernel knows nothing of RDMA.\n", f.addrs[0], f.addrs[1])
	var rows []demoRow
	for _, pass := range []demoPass{{name: "clean", title: "on a clean network", ladder: true}, f.secondPass()} {
		got, err := pass.run(ctx, f, capture, text)
		rows = append(rows, got...)
		if err != nil {
			return err
		}
	}
	if f.json {
		return json.NewEncoder(out).Encode(map[string]any{"operations": rows})
	}
	printDemoTable(out, rows)
	fmt.Fprintln(out, "\nThe devices wait only 8 ms for an acknowledgement: on a busy machine something may be\n"+
		"sent again although nothing was lost.")
	_, err = fmt.Fprintln(out, "\nEvery byte arrived as it was sent. Next: 'roce demo --pcap demo.pcap' and 'roce decode -v demo.pcap'\n"+
		"show the packets; 'roce pingpong rc --help' talks to a real RDMA host.")
	return err
}

func printDemoTable(out io.Writer, rows []demoRow) {
	t := newTable(out, "", table.Row{"pass", "operation", "bytes", "packets", "lost", "sent again", "time", "bytes verified"}, 3, 4, 5, 6, 7)
	for i, r := range rows {
		if i > 0 && rows[i-1].Pass != r.Pass {
			t.AppendSeparator()
		}
		t.AppendRow(table.Row{r.Pass, r.Operation, r.Bytes, r.Packets, r.Lost, r.Retransmitted,
			time.Duration(r.Seconds * 1e9).Round(10 * time.Microsecond), map[bool]string{true: "yes", false: "NO"}[r.Verified]})
	}
	fmt.Fprintln(out)
	t.Render()
}

// demoPass runs all operations once.
type demoPass struct {
	name, title string
	faults      [2]faultRules // of devices A and B
	ladder      bool
}

// secondPass is the one in which packets are damaged: lost by both devices, and
// by the user's rules at A.
func (f *demoFlags) secondPass() demoPass {
	p := demoPass{name: fmt.Sprintf("%v %% lost", f.loss), title: fmt.Sprintf("the same with %v %% of the packets lost, each way", f.loss)}
	if f.loss > 0 {
		lose := udp.FaultRule{Fault: udp.FaultDrop, P: f.loss / 100}
		p.faults = [2]faultRules{{lose}, {lose}}
	}
	if len(f.faults) > 0 {
		p.name = "faults"
		p.title = fmt.Sprintf("the same with faults at A: %v", f.faults.String())
		p.faults[0] = append(p.faults[0], f.faults...)
	}
	return p
}

// demoEnd is one device with its connected queue pair.
type demoEnd struct {
	dev *verbs.Device
	cq  *verbs.CQ
	qp  *verbs.QP
	mem *verbs.MR
}

// demoPair is two connected ends; A starts every operation.
type demoPair struct {
	f    *demoFlags
	a, b *demoEnd
	lad  *ladder
}

func (p demoPass) run(ctx context.Context, f *demoFlags, capture *packetFile, out io.Writer) (rows []demoRow, err error) {
	fmt.Fprintf(out, "\n— %s —\n", p.title)
	d, err := p.open(f, capture)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if len(p.faults[0]) > 0 && len(f.faults) > 0 {
		defer func() { fmt.Fprintln(out, "A:", p.faults[0].report(d.a.dev.Stats())) }()
	}
	for _, step := range demoSteps {
		row, err := d.measure(ctx, step)
		row.Pass = p.name
		rows = append(rows, row)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", step.name, err)
		}
		mark := "✓"
		if p.ladder {
			fmt.Fprintf(out, "%s %s\n    %s\n", mark, step.name, step.tells)
		} else {
			n, what := row.Lost, "packets lost"
			if len(f.faults) > 0 {
				n, what = row.Faults, "faults"
			}
			fmt.Fprintf(out, "%s %-22s %4d %s, %4d sent again\n", mark, step.name, n, what, row.Retransmitted)
		}
	}
	if p.ladder {
		return rows, d.showLadder(ctx, out)
	}
	return rows, nil
}

// open opens and connects both devices.
func (p demoPass) open(f *demoFlags, capture *packetFile) (*demoPair, error) {
	d := &demoPair{f: f, lad: &ladder{}}
	var ends [2]*demoEnd
	for i := range ends {
		c := verbs.Config{Addr: netip.MustParseAddr(f.addrs[i]), Faults: p.faults[i], FaultSeed: 2*f.seed + uint64(i)}
		if i == 0 {
			c.Tap = d.lad.tap(capture)
		}
		e, err := openDemoEnd(c, f)
		if err != nil {
			return nil, errors.Join(demoHint(err), d.close())
		}
		ends[i] = e
		d.a, d.b = ends[0], ends[1]
	}
	// A short timeout, so that the lossy pass repairs what no NAK reports soon.
	cc := verbs.ConnectConfig{PathMTU: f.mtu, Access: mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic, Timeout: 11}
	for i, e := range ends {
		if err := e.qp.Connect(ends[1-i].qp.Local(), cc); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, nil
}

// demoHint adds what to do where the second loopback address does not exist.
func demoHint(err error) error {
	var inUse *udp.InUseError
	if errors.As(err, &inUse) {
		return err
	}
	return fmt.Errorf("%w (macOS: `sudo ifconfig lo0 alias 127.0.0.2` adds the second loopback address; --addrs chooses others)", err)
}

func openDemoEnd(c verbs.Config, f *demoFlags) (*demoEnd, error) {
	dev, err := verbs.Open(c)
	if err != nil {
		return nil, err
	}
	e := &demoEnd{dev: dev}
	pd := dev.AllocPD()
	if e.cq, err = dev.CreateCQ(64); err == nil {
		e.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq})
	}
	if err == nil {
		e.mem, err = pd.RegisterMR(make([]byte, 2*f.size+8), mr.LocalWrite|mr.RemoteWrite|mr.RemoteRead|mr.RemoteAtomic)
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return e, nil
}

func (d *demoPair) close() (err error) {
	for _, e := range []*demoEnd{d.a, d.b} {
		if e != nil {
			err = errors.Join(err, e.dev.Close())
		}
	}
	return err
}

// demoStep is one operation with what a learner should know of it.
type demoStep struct {
	name, tells string
	run         func(ctx context.Context, d *demoPair) (bytes int, err error)
}

var demoSteps = []demoStep{
	{"SEND / RECV", "B posted a receive buffer; A's message landed in it and both got a completion.", demoSend},
	{"RDMA WRITE", "A wrote into B's memory with B's key. B's program did nothing and was not told.", demoWrite},
	{"RDMA READ", "A fetched B's memory. Again B's program did nothing.", demoRead},
	{"WRITE with immediate", "As WRITE, but B gets a completion with 32 bits of A's choice: \"it is there\".", demoWriteImm},
	{"FETCH ADD", "A added to a 64-bit word in B's memory and got the old value, atomically.", demoFetchAdd},
	{"COMPARE SWAP", "A replaced the word because it held what A expected; a second try was refused.", demoCompareSwap},
}

// measure runs one step and counts its packets.
func (d *demoPair) measure(ctx context.Context, s demoStep) (demoRow, error) {
	before := d.count()
	start := time.Now()
	n, err := s.run(ctx, d)
	row := demoRow{Operation: s.name, Bytes: n, Seconds: time.Since(start).Seconds(), Verified: err == nil}
	after := d.count()
	row.Packets, row.Lost, row.Retransmitted, row.Faults = after[0]-before[0], after[1]-before[1], after[2]-before[2], after[3]-before[3]
	return row, err
}

// count sums over both devices what was sent, lost on purpose, sent again, and
// the faults of all kinds.
func (d *demoPair) count() (c [4]uint64) {
	for _, e := range []*demoEnd{d.a, d.b} {
		s := e.dev.Stats()
		c[0] += s["sent_pkts"]
		c[1] += s["fault_dropped"]
		c[2] += s["retransmitted_pkts"]
		for _, w := range faultWords {
			c[3] += s[w.counter]
		}
	}
	return c
}

// do posts a work request at A and waits for its completion.
func (d *demoPair) do(ctx context.Context, wr *qp.SendWR) error {
	wr.Flags |= qp.Signaled
	if err := d.a.qp.PostSend(wr); err != nil {
		return err
	}
	_, err := d.a.wait(ctx)
	return err
}

func (e *demoEnd) wait(ctx context.Context) (cq.WC, error) {
	var wc [1]cq.WC
	if _, err := e.cq.Wait(ctx, wc[:]); err != nil {
		return wc[0], fmt.Errorf("no completion: %w", err)
	}
	if wc[0].Status != cq.Success {
		return wc[0], fmt.Errorf("work request failed: %v", wc[0].Status)
	}
	return wc[0], nil
}

// prepare fills A's first half with new bytes and clears B's, and returns both.
func (d *demoPair) prepare(seed byte) (src, dst []byte) {
	src, dst = d.a.mem.Bytes()[:d.f.size], d.b.mem.Bytes()[:d.f.size]
	for i := range src {
		src[i] = byte(i*7) + byte(i>>8)*13 + seed
	}
	clear(dst)
	return src, dst
}

func same(what string, got, want []byte) error {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%s: byte %d is 0x%02x, not 0x%02x", what, i, got[i], want[i])
		}
	}
	return nil
}

func demoSend(ctx context.Context, d *demoPair) (int, error) {
	src, dst := d.prepare(1)
	if err := d.b.qp.PostRecv(&qp.RecvWR{ID: 1, SGE: []mr.SGE{d.b.mem.SGE(0, len(dst))}}); err != nil {
		return 0, err
	}
	if err := d.do(ctx, &qp.SendWR{Op: qp.Send, SGE: []mr.SGE{d.a.mem.SGE(0, len(src))}}); err != nil {
		return 0, err
	}
	wc, err := d.b.wait(ctx)
	if err == nil && int(wc.ByteLen) != len(src) {
		err = fmt.Errorf("device B received %d bytes, not %d", wc.ByteLen, len(src))
	}
	if err != nil {
		return 0, err
	}
	return len(src), same("received", dst, src)
}

func demoWrite(ctx context.Context, d *demoPair) (int, error) {
	src, dst := d.prepare(2)
	err := d.do(ctx, &qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{d.a.mem.SGE(0, len(src))}, RemoteAddr: d.b.mem.Addr(), RKey: d.b.mem.Key()})
	if err != nil {
		return 0, err
	}
	d.b.dev.Sync()
	return len(src), same("written", dst, src)
}

func demoRead(ctx context.Context, d *demoPair) (int, error) {
	src, dst := d.prepare(3)
	for i := range dst {
		dst[i] = ^src[i]
	}
	half := d.a.mem.Bytes()[len(src) : 2*len(src)]
	err := d.do(ctx, &qp.SendWR{Op: qp.RDMARead, SGE: []mr.SGE{d.a.mem.SGE(len(src), len(src))}, RemoteAddr: d.b.mem.Addr(), RKey: d.b.mem.Key()})
	if err != nil {
		return 0, err
	}
	return len(src), same("read", half, dst)
}

func demoWriteImm(ctx context.Context, d *demoPair) (int, error) {
	const imm = 0x601DCAFE
	src, dst := d.prepare(4)
	if err := d.b.qp.PostRecv(&qp.RecvWR{ID: 2}); err != nil {
		return 0, err
	}
	err := d.do(ctx, &qp.SendWR{Op: qp.RDMAWriteImm, Imm: imm, SGE: []mr.SGE{d.a.mem.SGE(0, len(src))}, RemoteAddr: d.b.mem.Addr(), RKey: d.b.mem.Key()})
	if err != nil {
		return 0, err
	}
	wc, err := d.b.wait(ctx)
	if err == nil && (wc.Flags&cq.WithImm == 0 || wc.Imm != imm) {
		err = fmt.Errorf("the immediate data is 0x%08x, not 0x%08x", wc.Imm, uint32(imm))
	}
	if err != nil {
		return 0, err
	}
	return len(src), same("written", dst, src)
}

// atomic runs one atomic on B's first word, which holds before, and returns
// what A fetched and what the word holds then.
func (d *demoPair) atomic(ctx context.Context, op qp.Op, before, compareAdd, swap uint64) (fetched, now uint64, err error) {
	word := d.b.mem.Bytes()[:8]
	binary.NativeEndian.PutUint64(word, before)
	err = d.do(ctx, &qp.SendWR{Op: op, CompareAdd: compareAdd, Swap: swap, SGE: []mr.SGE{d.a.mem.SGE(0, 8)}, RemoteAddr: d.b.mem.Addr(), RKey: d.b.mem.Key()})
	d.b.dev.Sync()
	return binary.NativeEndian.Uint64(d.a.mem.Bytes()), binary.NativeEndian.Uint64(word), err
}

func demoFetchAdd(ctx context.Context, d *demoPair) (int, error) {
	d.b.dev.Sync()
	fetched, now, err := d.atomic(ctx, qp.FetchAdd, 40, 2, 0)
	if err == nil && (fetched != 40 || now != 42) {
		err = fmt.Errorf("fetched %d and left %d, not 40 and 42", fetched, now)
	}
	return 8, err
}

func demoCompareSwap(ctx context.Context, d *demoPair) (int, error) {
	d.b.dev.Sync()
	fetched, now, err := d.atomic(ctx, qp.CmpSwap, 42, 42, 7)
	if err == nil && (fetched != 42 || now != 7) {
		err = fmt.Errorf("fetched %d and left %d, not 42 and 7", fetched, now)
	}
	if err != nil {
		return 0, err
	}
	fetched, now, err = d.atomic(ctx, qp.CmpSwap, 7, 42, 99)
	if err == nil && (fetched != 7 || now != 7) {
		err = fmt.Errorf("a refused swap fetched %d and left %d, not 7 and 7", fetched, now)
	}
	return 16, err
}
