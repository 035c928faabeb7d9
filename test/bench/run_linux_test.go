package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const sampleSockets = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1060 1 00000000274bbf23 100 0 0 10 0
   1: 0106007F:4E1F 0100007F:B8E0 06 00000000:00000000 03:0000135F 00000000     0        0 0 3 0000000024b6a4fb
`

func TestListenerIsFoundByStateAndPort(t *testing.T) {
	for port, want := range map[int]bool{0x07e8: true, 0x4e1f: false, 0x07e9: false} {
		if got := hasListener(sampleSockets, port); got != want {
			t.Errorf("port %d listens: %v, want %v", port, got, want)
		}
	}
}

// The two processes of the floor, started, waited for and paid for.
func TestPairOfProcessesIsMeasured(t *testing.T) {
	floor := buildFloor(t)
	r := testRunner()
	tools := newTools("", floor)
	tool := tools[slices.IndexFunc(tools, func(t *tool) bool { return t.name == "floor" })]
	c := cell{Place: loopback, Metric: bandwidth, Tool: "floor", Size: 1 << 20, QPs: 1}
	o, err := r.measure(t.Context(), tool, c, loopbackSite)
	if err != nil {
		t.Fatal(err)
	}
	if o.reading.Gbps <= 0 || o.cpu <= 0 || o.cpu > 2*(o.ran+5*time.Second) {
		t.Errorf("%+v", o)
	}
}

func TestFailingPairTellsWhy(t *testing.T) {
	r := testRunner()
	sh := func(script string) command { return command{args: []string{"sh", "-c", script}} }
	for _, c := range []struct {
		name           string
		server, client command
		want           string
	}{
		{"server ends", sh("echo no device >&2; exit 1"), sh("exit 0"), "no device"},
		{"no program", command{args: []string{"/nowhere/server"}}, sh("exit 0"), "/nowhere/server"},
	} {
		_, _, err := r.both(t.Context(), c.server, c.client, 20999)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
		}
	}
}

// A client that fails ends the server, which would wait for ever.
func TestFailingClientEndsServer(t *testing.T) {
	floor := buildFloor(t)
	r := testRunner()
	server := command{args: []string{floor, "stream", "-d", "127.0.10.1", "-p", "20998"}}
	client := command{args: []string{"sh", "-c", "echo broken >&2; exit 3"}}
	start := time.Now()
	_, _, err := r.both(t.Context(), server, client, 20998)
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("%v, want the client's words", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func testRunner() *runner {
	return &runner{port: 20990, e: extent{time: 100 * time.Millisecond}, said: map[string]bool{}, pace: map[cell]int{}, note: func(string) {}}
}

func buildFloor(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short: builds a program")
	}
	out := filepath.Join(t.TempDir(), "floor")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", out, "./floor").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

func TestUsualCongestionControlIsMeasuredWhereItIsAnother(t *testing.T) {
	for _, c := range []struct {
		host tcp
		want bool
	}{
		{tcp{"cubic", []string{"reno", "cubic"}}, false},
		{tcp{"bbr", []string{"reno", "bbr", "cubic"}}, true},
		{tcp{"bbr", []string{"reno", "bbr"}}, false}, // not allowed, or not there
	} {
		if got := c.host.hasUsualToo(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.host, got, c.want)
		}
	}
}
