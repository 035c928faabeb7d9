package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func newDecodeCommand() *cobra.Command {
	var o decodeOptions
	cmd := &cobra.Command{
		Use:   "decode FILE",
		Short: "Print the RoCE packets of a capture and check their ICRCs",
		Long: `Prints the RoCE packets of a pcap or pcapng file, one per line: number, seconds
since the first packet, addresses, opcode, destination queue pair, PSN, the
fields of the extended headers, payload length. RoCEv2 (UDP port 4791) and RoCEv1
(EtherType 0x8915) are known, on Ethernet with or without VLAN tags, in VXLAN,
and in captures of Linux 'any', loopback and raw IP interfaces.

Each packet's ICRC, the checksum from end to end, is computed and compared; a
packet whose ICRC is wrong is marked "ICRC bad". A packet that the capture holds
only in part cannot be checked. A summary follows: packets by opcode and queue
pair, good and bad ICRCs, and what was no RoCE packet and why.

Exit status: 0, or 1 if an ICRC is bad or the file cannot be read to its end.

` + decodeJSONHelp,
		Example: `  roce decode capture.pcap
  roce decode --summary capture.pcapng
  roce decode -v capture.pcap | less
  roce decode --json capture.pcap | jq 'select(.icrc == "bad")'
  tcpdump -i eth0 -U -w - udp port 4791 | roce decode -`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.json && o.verbose {
				return usageError(cmd, "--json and --verbose exclude each other: --json has every field already")
			}
			return decodeFile(cmd, args[0], o)
		},
	}
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "print every header field and what it means")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, one object per line")
	cmd.Flags().BoolVarP(&o.summaryOnly, "summary", "s", false, "print only the summary")
	return cmd
}

type decodeOptions struct {
	verbose, json, summaryOnly bool
}

// decodeFile decodes the file or, if its name is -, standard input.
func decodeFile(cmd *cobra.Command, name string, o decodeOptions) error {
	in := cmd.InOrStdin()
	if name == "-" {
		name = "standard input"
		if isTerminal(in) {
			return usageError(cmd, "standard input is a terminal: pipe a capture into it, as in 'tcpdump -w - | roce decode -'")
		}
	} else {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	var progress io.Writer
	if isTerminal(cmd.ErrOrStderr()) && (o.summaryOnly || !isTerminal(cmd.OutOrStdout())) {
		progress = cmd.ErrOrStderr()
	}
	s, err := decode(cmd.Context(), in, cmd.OutOrStdout(), progress, o)
	var failed *outputError
	switch {
	case errors.As(err, &failed):
		return err
	case err != nil:
		return fmt.Errorf("%s: %w%s", name, err, decodedBefore(s))
	case s.ICRC["bad"] > 0:
		return fmt.Errorf("%s: %d of %d RoCE packets have a bad ICRC: something between the sender and the capture changed them, such as address translation or a faulty link",
			name, s.ICRC["bad"], s.RoCE)
	}
	return nil
}

func decodedBefore(s *summary) string {
	if s == nil || s.Packets == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d packets before it were decoded, %d of them RoCE)", s.Packets, s.RoCE)
}

// decode prints the capture that r holds to w. It returns the summary, also of a
// capture that ends in an error, but nil if there was nothing to count.
func decode(ctx context.Context, r io.Reader, w, progress io.Writer, o decodeOptions) (*summary, error) {
	out := bufio.NewWriterSize(w, 64<<10)
	p := &printer{out: out, json: json.NewEncoder(out), options: o, summary: newSummary()}
	file, err := openCapture(flushFirst{r, out})
	if err != nil {
		return nil, err
	}
	err = p.printAll(ctx, file, newMeter(progress))
	p.printSummary(err)
	if failed := out.Flush(); failed != nil {
		return p.summary, &outputError{failed}
	}
	return p.summary, err
}

// outputError says that the output, not the input, is the trouble.
type outputError struct{ err error }

func (e *outputError) Error() string { return "cannot write the output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// printer prints packets in the form that the options ask for.
type printer struct {
	out     *bufio.Writer
	json    *json.Encoder
	options decodeOptions
	summary *summary
}

// printAll prints packets until the file ends or the context does: whoever
// stops a live capture wants its summary.
func (p *printer) printAll(ctx context.Context, file *captureFile, m *meter) error {
	defer m.clear()
	d := newDissector()
	for ctx.Err() == nil {
		rec, err := file.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		since := p.summary.record(&rec)
		d.dissect(rec, func(o *dissected) {
			p.summary.add(o)
			p.print(o, since)
		})
		m.update(p.summary.Packets, file.offset)
	}
	return nil
}

// print prints one packet. An error of writing stays in p.out.
func (p *printer) print(o *dissected, since time.Duration) {
	switch {
	case p.options.summaryOnly:
	case p.options.json:
		_ = printJSON(p.json, o, since)
	case o.skip != "" && !worthALine(o.skip):
	case p.options.verbose:
		printVerbose(p.out, o, since)
	default:
		printLine(p.out, o, since)
	}
}

// printSummary prints what was counted and, in JSON, why that is not all.
func (p *printer) printSummary(err error) {
	p.summary.finish()
	if err != nil {
		p.summary.Error = err.Error()
	}
	if p.options.json {
		_ = p.json.Encode(p.summary)
		return
	}
	p.summary.print(p.out)
}

// worthALine reports whether a packet that is no RoCE packet is shown all the
// same: the sender may have meant it to be one.
func worthALine(skip string) bool {
	switch skip {
	case skipFragment, skipOptions, skipExtension, skipBroken, skipCut, skipOtherGRH:
		return true
	}
	return false
}

// flushFirst shows what is decoded before it waits for more.
type flushFirst struct {
	r   io.Reader
	out *bufio.Writer
}

func (f flushFirst) Read(b []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.r.Read(b)
}

// meter shows progress on a terminal when decoding takes long.
type meter struct {
	w           io.Writer // nil: show nothing
	start, last time.Time
	shown       bool
}

func newMeter(w io.Writer) *meter { return &meter{w: w, start: time.Now()} }

func (m *meter) update(packets int, bytes int64) {
	const every, patience, interval = 1024, 2 * time.Second, 200 * time.Millisecond
	if m.w == nil || packets%every != 0 {
		return
	}
	now := time.Now()
	if now.Sub(m.start) < patience || now.Sub(m.last) < interval {
		return
	}
	m.last, m.shown = now, true
	fmt.Fprintf(m.w, "\r%d packets, %d MB", packets, bytes>>20)
}

func (m *meter) clear() {
	if m.shown {
		fmt.Fprintf(m.w, "\r%40s\r", "")
	}
}
