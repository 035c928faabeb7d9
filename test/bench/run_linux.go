package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"time"
)

// runner runs pairs of processes.
type runner struct {
	port int // next to use: none is used twice
	e    extent
	said map[string]bool // kinds of commands that are noted already
	pace map[cell]int    // messages that take the time of a cell, of tools that take only a number
	note func(string)
}

// outcome is what a run of a pair yields.
type outcome struct {
	reading reading
	cpu     time.Duration // of both processes
	ran     time.Duration // how long data flowed, as far as the tool was told; else 0
}

const (
	startTime = 10 * time.Second // until the server listens
	endTime   = 5 * time.Second  // from the client's end to the server's
	extraTime = 15 * time.Second // for a client, beyond the time it was asked for
)

// measure runs a tool's pair once.
func (r *runner) measure(ctx context.Context, t *tool, c cell, s site) (outcome, error) {
	port := r.port
	r.port++
	server, client := t.pair(t, c, s, port, r.extentOf(c))
	r.mention(t, c, server, client)
	out, cpu, err := r.both(ctx, inside(server, s.serverNS), inside(client, s.clientNS), port)
	if err != nil {
		return outcome{}, err
	}
	reading, err := t.parse(out)
	if err != nil {
		return outcome{}, err
	}
	if n := int(reading.Mpps * 1e6 * r.e.time.Seconds()); c.Tool == "UCX" && c.Metric != latency && n > 0 {
		r.pace[c] = n
	}
	return outcome{reading: reading, cpu: cpu, ran: flowed(c, reading, r.e)}, nil
}

// extentOf is that of a cell: how many messages fit into its time is known once it
// has run, and cautious before.
func (r *runner) extentOf(c cell) extent {
	e := r.e
	if n, ok := r.pace[c]; ok {
		e.messages, e.bytes = max(20, n), math.MaxInt
	}
	return e
}

// flowed returns for how long data flowed at the rate of the reading, warm-up
// included; 0 if that is not known.
func flowed(c cell, r reading, e extent) time.Duration {
	switch {
	case c.Tool == "iperf3":
		return wholeSeconds(e.time)
	case c.Tool == "UCX":
		return 0 // its warm-up is not in its figure
	case c.Tool == "goroce" && c.Events: // by number
		return time.Duration(float64(r.Messages) * float64(c.Size) * 8 / r.Gbps)
	}
	return e.time
}

// mention notes the commands of a cell, one for each kind.
func (r *runner) mention(t *tool, c cell, server, client command) {
	kind := strings.Join([]string{c.Place, string(c.Metric), c.name()}, " ")
	if c.Place != loopback || r.said[kind] {
		return
	}
	r.said[kind] = true
	text := func(c command) string {
		args := join(nil, c.args...)
		args[0] = baseName(args[0])
		return strings.Join(join(c.env, args...), " ")
	}
	r.note(text(server) + " & " + text(client))
}

func baseName(p string) string { return p[strings.LastIndexByte(p, '/')+1:] }

// inside lets a command run in a network namespace.
func inside(c command, ns string) command {
	if ns == "" {
		return c
	}
	return command{args: join([]string{"ip", "netns", "exec", ns}, c.args...), env: c.env}
}

// both starts the server, waits until it listens, runs the client to its end and
// lets the server end.
func (r *runner) both(ctx context.Context, server, client command, port int) (out []byte, cpu time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime+r.e.time+extraTime+endTime)
	defer cancel()
	srv := newProcess(ctx, server)
	if err := srv.Start(); err != nil {
		return nil, 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Wait() }()
	stop := func() {
		cancel()
		<-ended
	}
	if err := waitForListener(ctx, srv.Process.Pid, port, ended); err != nil {
		stop()
		return nil, 0, fmt.Errorf("server: %w%s", err, lastWords(srv))
	}
	cl := newProcess(ctx, client)
	if err := cl.Run(); err != nil {
		stop()
		return nil, 0, fmt.Errorf("client: %w%s; server:%s", err, lastWords(cl), lastWords(srv))
	}
	select {
	case err = <-ended:
		if err != nil {
			return nil, 0, fmt.Errorf("server: %w%s", err, lastWords(srv))
		}
	case <-time.After(endTime):
		stop()
		return nil, 0, fmt.Errorf("the server goes on %v after the client's end%s", endTime, lastWords(srv))
	}
	return cl.Stdout.(*bytes.Buffer).Bytes(), cpuOf(srv) + cpuOf(cl), nil
}

func newProcess(ctx context.Context, c command) *exec.Cmd {
	p := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	p.Env = append(os.Environ(), c.env...)
	p.Stdout, p.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
	p.WaitDelay = time.Second
	return p
}

func cpuOf(p *exec.Cmd) time.Duration { return p.ProcessState.UserTime() + p.ProcessState.SystemTime() }

// maxWords is how many bytes of a failure are quoted.
const maxWords = 300

// lastWords returns the end of what a process that has ended said.
func lastWords(p *exec.Cmd) string {
	text := strings.TrimSpace(p.Stderr.(*bytes.Buffer).String())
	if text == "" {
		text = strings.TrimSpace(p.Stdout.(*bytes.Buffer).String())
	}
	if text == "" {
		return ""
	}
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if len(text) > maxWords {
		text = text[:maxWords] + "…"
	}
	return ": " + text
}

// waitForListener waits until something listens on the TCP port in the network
// namespace of the process. Connecting would use up a server that serves once.
func waitForListener(ctx context.Context, pid, port int, ended chan error) error {
	deadline := time.Now().Add(startTime)
	for time.Now().Before(deadline) {
		if listens(pid, port) {
			return nil
		}
		select {
		case err := <-ended:
			ended <- err
			return errors.New("it ended at once")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("it does not listen on TCP port %d after %v", port, startTime)
}

func listens(pid, port int) bool {
	for _, f := range []string{"tcp", "tcp6"} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, f))
		if hasListener(string(b), port) {
			return true
		}
	}
	return false
}

// hasListener looks for a port in state 0A, LISTEN.
func hasListener(table string, port int) bool {
	end := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], end) && f[3] == "0A" {
			return true
		}
	}
	return false
}
