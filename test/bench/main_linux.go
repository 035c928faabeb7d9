package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// options are the command line.
type options struct {
	quick  bool
	rxe    bool
	write  string // folder for benchmark.md, charts and JSON
	roce   string // program to measure
	rounds int
	only   string
	idle   bool // this process is the one with the idle queue pairs
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if o.idle {
		return measureIdle(os.Stdout)
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "goroce-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	b := &bench{o: o, root: root, work: work, e: fullExtent}
	if o.quick {
		b.e = quickExtent
	}
	if o.rounds > 0 {
		b.e.rounds = o.rounds
	}
	if err := b.build(ctx); err != nil {
		return err
	}
	start := time.Now()
	b.results.Conditions = conditionsNow(root, args, b.e.rounds)
	if err := b.measureAll(ctx); err != nil {
		return err
	}
	if o.rxe {
		if err := b.measureGuest(ctx); err != nil {
			b.skip("guest: %v", err)
		}
	}
	b.results.Conditions.Took = time.Since(start).Round(time.Second).String()
	b.results.finish()
	return b.report()
}

func parseOptions(args []string) (o options, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.BoolVar(&o.quick, "quick", false, "only what the targets need, twice: a minute instead of ten")
	f.BoolVar(&o.rxe, "rxe", false, "also inside a guest (test/rxe; root), beside the kernel's rdma_rxe: two minutes more")
	f.StringVar(&o.write, "write", "", "`folder`, such as docs, for benchmark.md, benchmark/*.svg and benchmark/results.json")
	f.StringVar(&o.roce, "roce", "", "`program` to measure instead of cmd/roce as it is")
	f.IntVar(&o.rounds, "rounds", 0, "`times` that everything is measured")
	f.StringVar(&o.only, "only", "", "only cells whose name has this `text`, such as \"latency goroce\"; \"guest\" leaves only what -rxe adds")
	f.BoolVar(&o.idle, "idle", false, "open idle queue pairs in this process and print what they took, as JSON")
	if err := f.Parse(args); err != nil {
		return o, flag.ErrHelp
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is not understood; -h shows the flags", f.Arg(0))
	}
	return o, nil
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	mod := strings.TrimSpace(string(out))
	if err != nil || filepath.Base(mod) != "go.mod" {
		return "", errors.New("it builds the programs that it measures: run it in the repository, with go installed")
	}
	return filepath.Dir(mod), nil
}

// bench is a run of the whole.
type bench struct {
	o       options
	root    string
	work    string // for programs
	e       extent
	tools   map[string]*tool
	results results
}

// build builds the two programs of our own.
func (b *bench) build(ctx context.Context) error {
	floor := filepath.Join(b.work, "floor")
	if err := b.goBuild(ctx, floor, "./test/bench/floor"); err != nil {
		return err
	}
	if b.o.roce == "" {
		b.o.roce = filepath.Join(b.work, "roce")
		if err := b.goBuild(ctx, b.o.roce, "./cmd/roce"); err != nil {
			return err
		}
	}
	b.tools = map[string]*tool{}
	for _, t := range newTools(b.o.roce, floor) {
		b.tools[t.name] = t
	}
	return nil
}

// goBuild builds without cgo: the guest has other libraries.
func (b *bench) goBuild(ctx context.Context, out, pkg string) error {
	progress("building %s", pkg)
	c := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
	c.Dir = b.root
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, text)
	}
	return nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// measureAll measures every cell once per round, and the idle queue pairs.
func (b *bench) measureAll(ctx context.Context) error {
	top := newTopology(ctx, b.skip)
	defer top.remove()
	host := hostTCP()
	b.results.Conditions.TCP = host.own
	b.checkTools()
	for _, place := range top.places {
		for _, c := range planFor(place, b.o.quick) {
			if c.Tool == "iperf3" && c.Op != "" && !host.hasUsualToo() {
				continue
			}
			if b.tools[c.Tool] != nil && strings.Contains(c.String(), b.o.only) {
				b.results.Series = append(b.results.Series, &series{cell: c, Unit: c.Metric.unit()})
			}
		}
	}
	r := &runner{port: 21000, e: b.e, said: map[string]bool{}, pace: map[cell]int{}, note: func(s string) {
		b.results.Conditions.Commands = append(b.results.Conditions.Commands, s)
	}}
	start := time.Now()
	for round := range b.e.rounds {
		if took := time.Since(start); round >= 2 && took+took/time.Duration(round) > b.e.most {
			b.skip("rounds %d to %d: %d took %v", round+1, b.e.rounds, round, took.Round(time.Second))
			break
		}
		b.results.Conditions.Rounds = round + 1
		for i, s := range b.results.Series {
			b.measureCell(ctx, r, s, top.sites[s.Place])
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			progress("round %d of %d, %d of %d: %v: %s", round+1, b.e.rounds, i+1, len(b.results.Series), s.cell, s.lastText())
		}
		if b.o.only == "" {
			b.idleRound(ctx)
		}
	}
	return nil
}

// checkTools forgets the tools that are not installed.
func (b *bench) checkTools() {
	for _, t := range newTools("", "") {
		if t.apt == "" {
			continue
		}
		if _, err := exec.LookPath(t.program); err != nil {
			b.skip("%s: %s is not installed: apt-get install %s", t.name, t.program, t.apt)
			delete(b.tools, t.name)
		}
	}
	b.results.Conditions.Tools = map[string]string{}
	for name, t := range b.tools {
		if v := t.versionText(); v != "" {
			b.results.Conditions.Tools[name] = v
		}
	}
}

// skip notes that something is not measured.
func (b *bench) skip(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	progress("skipped: %s", s)
	b.results.Skipped = append(b.results.Skipped, s)
}

// versionText asks a tool for its version: the first line with a digit.
func (t *tool) versionText() string {
	args := t.version
	if len(args) == 0 {
		return ""
	}
	if strings.HasPrefix(args[0], "-") {
		args = join([]string{t.program}, args...)
	}
	out, _ := exec.Command(args[0], args[1:]...).Output()
	for line := range strings.Lines(string(out)) {
		if strings.ContainsAny(line, "0123456789") {
			return strings.Trim(line, "# \n")
		}
	}
	return ""
}

// maxFailures is after how many rounds without success a cell is given up.
const maxFailures = 2

func (b *bench) measureCell(ctx context.Context, r *runner, s *series, at site) {
	if len(s.Failures) >= maxFailures && len(s.Failures) == len(s.Samples) {
		s.fail(errors.New("not tried again"))
		return
	}
	o, err := r.measure(ctx, b.tools[s.Tool], s.cell, at)
	if err != nil {
		s.fail(err)
		return
	}
	s.take(o.reading, o.cpu, o.ran)
}

// lastText is the outcome of the last round.
func (s *series) lastText() string {
	if n := len(s.Samples); s.Samples[n-1] == s.Samples[n-1] {
		return number(s.Samples[n-1]) + " " + s.Unit
	}
	return "failed: " + s.Failures[len(s.Failures)-1]
}

// idleRound opens idle queue pairs in a process of its own.
func (b *bench) idleRound(ctx context.Context) {
	self, err := os.Executable()
	if err != nil {
		b.skip("idle queue pairs: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, self, "-idle")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	var i idleReading
	if err == nil {
		err = json.Unmarshal(out, &i)
	}
	if err != nil {
		b.skip("idle queue pairs: %v: %s", err, strings.TrimSpace(stderr.String()))
		return
	}
	b.results.Idle = append(b.results.Idle, i)
	progress("%d idle queue pairs: %s s, %s KiB each", i.QPs, number(i.Seconds), number(i.BytesPerQP/1024))
}

// report prints the page and writes the files, if asked to.
func (b *bench) report() error {
	page := b.results.markdown(chartNames(&b.results))
	if b.o.write == "" {
		fmt.Print(page)
		return nil
	}
	folder := filepath.Join(b.o.write, "benchmark")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := drawCharts(&b.results, folder); err != nil {
		return err
	}
	doc, err := json.MarshalIndent(&b.results, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "results.json"), append(doc, '\n'), 0o644); err != nil {
		return err
	}
	name := filepath.Join(b.o.write, "benchmark.md")
	progress("writing %s, with charts and results.json in %s", name, folder)
	return os.WriteFile(name, []byte(page), 0o644)
}

// conditionsNow looks at the machine.
func conditionsNow(root string, args []string, rounds int) conditions {
	c := conditions{
		Date: time.Now().UTC().Truncate(time.Second), Rounds: rounds, Cores: runtime.NumCPU(), Go: runtime.Version(),
		Command: strings.Join(join([]string{"go run ./test/bench"}, args...), " "),
		CPU:     cpuModel(), Load: loadNow(),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		c.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	git := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=10")
	git.Dir = root
	if out, err := git.Output(); err == nil {
		c.Revision = strings.TrimSpace(string(out))
	}
	return c
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func loadNow() string {
	b, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	return strings.Join(f[:min(3, len(f))], " ")
}
