package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/fabric"
	"github.com/goroce/goroce/verbs"
	"github.com/spf13/cobra"
)

func TestSimListsItsScenarios(t *testing.T) {
	got := runRoce(t, nil, "sim")
	for _, sc := range fabric.Scenarios() {
		if !strings.Contains(got.out, sc.Name) || !strings.Contains(got.out, sc.Title) {
			t.Errorf("%s is missing in\n%s", sc.Name, got.out)
		}
	}
	if got.code != 0 || got.err != "" {
		t.Errorf("%+v", got)
	}
	var list []map[string]string
	if err := json.Unmarshal([]byte(runRoce(t, nil, "sim", "--json").out), &list); err != nil || len(list) != len(fabric.Scenarios()) {
		t.Errorf("%v, %v", list, err)
	}
}

func TestSimWrongUsage(t *testing.T) {
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"sim", "S99"}, `there is no scenario "S99": 'roce sim' lists them`},
		{[]string{"sim", "--cc", "cubic"}, `--cc: congestion: no controller is called "cubic"; use one of none, aimd, delay, dcqcn, dcqcn-paper`},
	} {
		if got := runRoce(t, nil, row.args...); got.code != exitUsage || got.err != "roce: "+row.want+"\nSee 'roce sim --help'.\n" {
			t.Errorf("%+v", got)
		}
	}
}

// A scenario is run, told as a table or as JSON, and drawn. Another controller
// is for looking: it does not fail.
func TestSimRunsAScenario(t *testing.T) {
	dir := t.TempDir()
	got := runRoce(t, nil, "sim", "s1", "--out", dir)
	if got.code != 0 || got.err != "" || strings.Contains(got.out, "OUTSIDE") || !strings.Contains(got.out, "mean queue") {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"S1-rate.svg", "S1-queue.svg", "S1-cnp.svg", "S1-queues.csv", "S1-flows.csv"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	got = runRoce(t, nil, "sim", "S1", "--cc", "none", "--json", "--seed", "3")
	var r simJSON
	if err := json.Unmarshal([]byte(got.out), &r); err != nil {
		t.Fatal(err)
	}
	// Two windows of 256 packets stand in the queue, which is no DCQCN.
	if got.code != 0 || r.OK || r.Seed != 3 || r.Congestion != "none" || len(r.Runs) != 1 || len(r.Runs[0].Rates) != 2 || r.Runs[0].Queue.Mean < 400_000 {
		t.Errorf("%d %s", got.code, got.out)
	}
}

func TestCongestionFlags(t *testing.T) {
	if got := runRoce(t, nil, "pingpong", "rc", "--line-rate", "fast"); got.code != exitUsage || !strings.Contains(got.err, `--line-rate: congestion: "fast" is no rate`) {
		t.Errorf("%+v", got)
	}
	var f congestionFlags
	cmd := &cobra.Command{}
	f.register(cmd)
	if err := cmd.ParseFlags([]string{"--cc", "dcqcn", "--line-rate", "2.5G"}); err != nil {
		t.Fatal(err)
	}
	var c verbs.Config
	if f.configure(&c); c.CongestionName != "dcqcn" || c.LineRate != 2.5*congestion.Gbps {
		t.Errorf("%+v", c)
	}
}
