package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPageHasEveryContestantAndVerdict(t *testing.T) {
	r := madeUp(atTheLimit)
	r.Skipped = []string{"UCX: not here"}
	r.Series[0].fail(errors.New("it broke"))
	r.finish()
	page := r.markdown(chartNames(r))
	for _, want := range []string{
		"| WRITE 1 MiB, bandwidth : the floor | ≥ 0.75 × | 0.750 [0.750 – 0.750] × | yes |",
		"| iperf3 |", "| UCX tag |", "| libfabric message |", "| floor ping-pong |", "| net.UDPConn ping-pong (events) |",
		"| 10000 | 100", "veth", "UCX: not here", "1 of 4 rounds failed, the first with: it broke", "iperf 3.12",
		"![Bandwidth by message size](benchmark/bandwidth.svg)",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "NaN") {
		t.Error("the page has NaN")
	}
	for i, line := range strings.Split(page, "\n") {
		if strings.HasPrefix(line, "|") && !strings.HasSuffix(line, "|") {
			t.Errorf("line %d: a broken table: %s", i+1, line)
		}
	}
}

func TestChartsAreDrawn(t *testing.T) {
	r := madeUp(atTheLimit)
	r.finish()
	folder := t.TempDir()
	if err := drawCharts(r, folder); err != nil {
		t.Fatal(err)
	}
	names := chartNames(r)
	if len(names) != len(chartSpecs) {
		t.Errorf("charts %v, want %d", names, len(chartSpecs))
	}
	for name, file := range names {
		b, err := os.ReadFile(filepath.Join(folder, filepath.Base(file)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if texts := textsOf(t, b); name != "queues" && !strings.Contains(texts, "goroce") || name == "bandwidth" && !strings.Contains(texts, "8 MiB") {
			t.Errorf("%s says only %q", name, texts)
		}
	}
}

// textsOf reads a drawing as XML and returns the words in it.
func textsOf(t *testing.T, b []byte) string {
	var all strings.Builder
	d := xml.NewDecoder(strings.NewReader(string(b)))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := token.(xml.CharData); ok {
			all.Write(c)
		}
	}
}

// Nothing measured: no chart, no section, no failure.
func TestPageWithoutFigures(t *testing.T) {
	r := &results{}
	r.finish()
	if names := chartNames(r); len(names) != 0 {
		t.Errorf("charts %v of nothing", names)
	}
	if page := r.markdown(nil); strings.Contains(page, "## Bandwidth") || !strings.Contains(page, "not measured") {
		t.Errorf("the page of nothing:\n%s", page)
	}
}

func TestResultsSurviveJSON(t *testing.T) {
	r := madeUp(atTheLimit)
	r.Series[0].fail(errors.New("it broke"))
	r.finish()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again results
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	again.finish()
	if a, b := r.markdown(nil), again.markdown(nil); a != b {
		t.Error("the page of the results that were read again differs")
	}
}
