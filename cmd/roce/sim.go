package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/fabric"
	"github.com/goroce/goroce/fabric/plot"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
)

type simFlags struct {
	out  string
	cc   controllerName
	seed uint64
	json bool
}

func newSimCommand() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim [SCENARIO]",
		Short: "Simulate congestion in a fabric, and compare with what is known",
		Long: `sim runs the protocol engines in a simulated fabric: links, switches with ECN, and
flows that share them. Each scenario has a known result, which is compared with what
comes out. Without SCENARIO it lists them; "all" runs them all.

The exit status is 1 when a figure is outside its bounds, unless --cc has put another
controller in the place of the scenario's own. The same seed gives the same run.

Controllers:
` + controllerList(),
		Example: "  roce sim\n  roce sim S1 --out curves\n  roce sim S6 --cc delay",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listScenarios(cmd.OutOrStdout(), f.json)
			}
			scenarios, err := chosenScenarios(args[0])
			if err != nil {
				return usageError(cmd, "there is no scenario %q: 'roce sim' lists them", args[0])
			}
			return runSim(cmd.Context(), f, scenarios, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.out, "out", "", "write the curves of rates, queues and CNPs into this `FOLDER`, as SVG and CSV")
	fs.Var(&f.cc, "cc", "use the controller with this `NAME` instead of the scenario's own")
	fs.Uint64Var(&f.seed, "seed", 1, "where chance decides; 1 is what the tests use")
	fs.BoolVar(&f.json, "json", false, "print everything as one JSON object for each scenario")
	return cmd
}

func controllerList() string {
	var b strings.Builder
	names, what := congestion.Names()
	for i, n := range names {
		fmt.Fprintf(&b, "  %-12s %s\n", n, what[i])
	}
	return strings.TrimRight(b.String(), "\n")
}

func controllerNames() string {
	names, _ := congestion.Names()
	return strings.Join(names, ", ")
}

func chosenScenarios(name string) ([]fabric.Scenario, error) {
	if strings.EqualFold(name, "all") {
		return fabric.Scenarios(), nil
	}
	sc, err := fabric.ScenarioByName(name)
	return []fabric.Scenario{sc}, err
}

func listScenarios(out io.Writer, asJSON bool) error {
	var b bytes.Buffer
	if asJSON {
		list := []map[string]string{}
		for _, sc := range fabric.Scenarios() {
			list = append(list, map[string]string{"scenario": sc.Name, "title": sc.Title, "note": sc.Note})
		}
		_ = json.NewEncoder(&b).Encode(list) // strings always encode
	} else {
		t := newTable(&b, "", table.Row{"scenario", "what happens"})
		for _, sc := range fabric.Scenarios() {
			t.AppendRow(table.Row{sc.Name, sc.Title})
		}
		t.Render()
	}
	return write(out, &b)
}

func write(out io.Writer, b *bytes.Buffer) error {
	if _, err := out.Write(b.Bytes()); err != nil {
		return &outputError{err}
	}
	return nil
}

func runSim(ctx context.Context, f simFlags, scenarios []fabric.Scenario, out, errOut io.Writer) error {
	failed := false
	for _, sc := range scenarios {
		r, err := sc.Run(ctx, fabric.Options{Seed: f.seed, Congestion: string(f.cc), Progress: progress(sc.Name, errOut)})
		if err != nil {
			return err
		}
		var files []string
		if f.out != "" {
			if files, err = plot.Write(f.out, r); err != nil {
				return err
			}
		}
		var b bytes.Buffer
		if f.json {
			if err := json.NewEncoder(&b).Encode(simReport(r, files)); err != nil {
				return err
			}
		} else {
			printSim(&b, r, files)
		}
		if err := write(out, &b); err != nil {
			return err
		}
		for _, c := range r.Checks() {
			failed = failed || !c.OK()
		}
	}
	if failed && f.cc == "" {
		return failedSilently()
	}
	return nil
}

// progress returns what shows the progress, if errOut is a terminal.
func progress(name string, errOut io.Writer) func(float64) {
	if !isTerminal(errOut) {
		return nil
	}
	const steps = 1000
	bar := progressbar.NewOptions(steps, progressbar.OptionSetWriter(errOut), progressbar.OptionSetDescription(name),
		progressbar.OptionSetWidth(40), progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true))
	return func(done float64) { _ = bar.Set(int(done * steps)) } // a bar that cannot be drawn is no loss
}

func printSim(b *bytes.Buffer, r *fabric.Result, files []string) {
	title := r.Scenario.Name + ": " + r.Scenario.Title
	if r.Congestion != "" {
		title += ", with " + r.Congestion
	}
	fmt.Fprintln(b, title)
	t := newTable(b, "", table.Row{"figure", "got", "", "expected", ""}, 2)
	for _, c := range r.Checks() {
		t.AppendRow(table.Row{c.What, figure(c.Got), c.Unit, c.Expected, choose(c.OK(), "ok", "OUTSIDE")})
	}
	t.Render()
	fmt.Fprintf(b, "%s Seed %d.\n", r.Scenario.Note, r.Seed)
	if r.Congestion != "" {
		fmt.Fprintf(b, "What is expected is expected of the scenario's own controller.\n")
	}
	for _, f := range files {
		fmt.Fprintf(b, "written: %s\n", f)
	}
	fmt.Fprintln(b)
}

func figure(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// What roce sim --json prints.
type (
	simJSON struct {
		Scenario   string    `json:"scenario"`
		Title      string    `json:"title"`
		Note       string    `json:"note"`
		Seed       uint64    `json:"seed"`
		Congestion string    `json:"congestion,omitempty"` // that took the place of the scenario's own
		OK         bool      `json:"ok"`
		Figures    []figJSON `json:"figures"`
		Runs       []runJSON `json:"runs"`
		Files      []string  `json:"files,omitempty"`
	}
	figJSON struct {
		Figure   string   `json:"figure"`
		Got      float64  `json:"got"`
		Unit     string   `json:"unit,omitempty"`
		Expected string   `json:"expected"`
		Low      *float64 `json:"low,omitempty"`
		High     *float64 `json:"high,omitempty"`
		OK       bool     `json:"ok"`
	}
	runJSON struct {
		Name        string    `json:"name,omitempty"`
		Seconds     float64   `json:"seconds"` // virtual
		Rates       []float64 `json:"rates_bps"`
		Utilisation float64   `json:"utilisation"`
		Queue       queueJSON `json:"queue_bytes"` // of the first bottleneck
		CNPs        []uint64  `json:"cnps"`
		Resent      []uint64  `json:"retransmitted"`
	}
	queueJSON struct {
		Mean   float64 `json:"mean"`
		SD     float64 `json:"sd"`
		P1     float64 `json:"p1"`
		Median float64 `json:"median"`
		P99    float64 `json:"p99"`
		Peak   int     `json:"peak"` // from the start
	}
)

func simReport(r *fabric.Result, files []string) *simJSON {
	s := &simJSON{Scenario: r.Scenario.Name, Title: r.Scenario.Title, Note: r.Scenario.Note, Seed: r.Seed, Congestion: r.Congestion, OK: true, Files: files}
	bound := func(v float64) *float64 {
		if math.IsInf(v, 0) {
			return nil
		}
		return &v
	}
	for _, c := range r.Checks() {
		s.Figures = append(s.Figures, figJSON{c.What, c.Got, c.Unit, c.Expected, bound(c.Low), bound(c.High), c.OK()})
		s.OK = s.OK && c.OK()
	}
	for _, run := range r.Runs {
		q := run.Stats(0)
		j := runJSON{
			Name: run.Name, Seconds: run.Length.Seconds(), Rates: run.Rates(), Utilisation: run.Utilisation(0),
			Queue: queueJSON{q.Mean, q.SD, q.P1, q.Median, q.P99, run.Port.Peak},
		}
		for _, f := range run.Sim.Flows {
			j.CNPs = append(j.CNPs, f.QP.Flow(run.Sim.Now()).CNPsHandled)
			j.Resent = append(j.Resent, f.QP.Stats().Retransmitted)
		}
		s.Runs = append(s.Runs, j)
	}
	return s
}
