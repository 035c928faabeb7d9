package plot_test

import (
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/fabric"
	"github.com/goroce/goroce/fabric/plot"
)

func result() *fabric.Result {
	r := &fabric.Result{Scenario: fabric.Scenario{Name: "S0", Title: "two rows"}}
	for _, name := range []string{"", "N=2 / x"} {
		r.Runs = append(r.Runs, &fabric.Run{Name: name, Recorder: &fabric.Recorder{
			Time:      []time.Duration{time.Millisecond, 2 * time.Millisecond},
			QueueTime: []time.Duration{100 * time.Microsecond, 200 * time.Microsecond, 300 * time.Microsecond},
			Queue:     [][]float64{{9000, 1000, 2500}}, Rate: [][]float64{{1e9, 2e9}, {3e9, 4e9}}, Pace: [][]float64{{5e9, 0}, {0, 0}},
			Window: [][]float64{{64, 65}, {1, 2}}, CNPs: [][]float64{{0, 7}, {8, 9}},
		}})
	}
	return r
}

// All files are there, the pictures are well-formed, the table has the values.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	files, err := plot.Write(dir, result())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	if got, want := strings.Join(names, " "), "S0-rate.svg S0-queue.svg S0-cnp.svg S0-queues.csv S0-flows.csv S0-N_2_x-rate.svg S0-N_2_x-queue.svg S0-N_2_x-cnp.svg S0-N_2_x-queues.csv S0-N_2_x-flows.csv"; got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	for _, f := range files[:3] {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		paths := 0
		for d := xml.NewDecoder(strings.NewReader(string(b))); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
				paths++
			}
		}
		if paths < 5 {
			t.Errorf("%s has %d paths", f, paths)
		}
	}
	for i, want := range []string{
		"time_ms,queue_bytes_1\n0.100,9000\n0.200,1000\n0.300,2500",
		"time_ms,arrived_bps_1,arrived_bps_2,rate_bps_1,rate_bps_2,window_packets_1,window_packets_2,cnps_1,cnps_2\n" +
			"1.000,1000000000,3000000000,5000000000,0,64,1,0,8\n2.000,2000000000,4000000000,0,0,65,2,7,9",
	} {
		if got := readTable(t, files[3+i]); got != want {
			t.Errorf("%s\n got %s\nwant %s", files[3+i], got, want)
		}
	}
}

func readTable(t *testing.T, name string) string {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range rows {
		lines = append(lines, strings.Join(r, ","))
	}
	return strings.Join(lines, "\n")
}

func TestWriteWhereNothingCanBe(t *testing.T) {
	if _, err := plot.Write("/dev/null/x", result()); err == nil {
		t.Error("no error")
	}
}
