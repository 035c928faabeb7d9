// Package rxe_test runs goroce against the Linux rdma_rxe in the lab's guest.
//
// TestMain boots the guest if it is not up, builds the roce command and starts the
// test binary once more inside the guest's network namespace, where the tests run.
// Without GOROCE_RXE=1 all tests are skipped and nothing is started. See README.md.
package rxe_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	envEnable    = "GOROCE_RXE"           // "1" runs the tests
	envGuest     = "GOROCE_RXE_GUEST"     // the lab's name of the guest, "ci" unless given
	envArtifacts = "GOROCE_RXE_ARTIFACTS" // where failed cases leave their files
	envRoce      = "GOROCE_RXE_ROCE"      // set by TestMain for the run in the namespace: the command
)

// The addresses of the lab: see README.md.
const (
	hostIPv4, hostIPv6 = "198.18.0.1", "fd00:18::1"
	guestIPv4          = "198.18.0.2"
	guestCommands      = "198.18.1.2" // the network that loss does not touch
)

// startLimit is how long a program of the guest may take to start: it is slow when
// the machine is busy.
const startLimit = 2 * time.Minute

var full = flag.Bool("full", false, "run 1000 iterations in every case of TestPingpongRC, which takes about an hour")

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(envEnable) != "1" || os.Getenv(envRoce) != "" {
		os.Exit(m.Run())
	}
	status, err := runInLab()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rxe lab:", err)
		status = 1
	}
	os.Exit(status)
}

// runInLab runs this program again in the namespace of the guest and returns its
// exit status. A guest that it booted is taken down again.
func runInLab() (status int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New(envEnable + "=1 needs root, for network namespaces and taps")
	}
	// An interrupt is for the inner run; what follows it still has to happen.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	tmp, err := os.MkdirTemp("", "goroce-rxe-test")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	roce := filepath.Join(tmp, "roce")
	if err := buildRoce(roce); err != nil {
		return 0, err
	}
	l := theLab()
	if l.script("status", l.guest).Run() != nil {
		fmt.Printf("booting the guest %q\n", l.guest)
		up := l.script("up", l.guest)
		up.Stdout, up.Stderr = os.Stdout, os.Stderr
		if err := up.Run(); err != nil {
			return 0, fmt.Errorf("lab.sh up %s: %w (lab.sh install and lab.sh build come first)", l.guest, err)
		}
		defer func() {
			if downErr := l.script("down", l.guest).Run(); downErr != nil {
				err = errors.Join(err, fmt.Errorf("lab.sh down %s: %w", l.guest, downErr))
			}
		}()
	}
	// A run that was killed may have left it behind.
	if out, err := l.script("loss", "-n", l.guest, "0").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("lab.sh loss: %w\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	inner := l.script(append([]string{"host", "-n", l.guest, self}, os.Args[1:]...)...)
	inner.Env = append(os.Environ(), envRoce+"="+roce)
	inner.Stdout, inner.Stderr = os.Stdout, os.Stderr
	if err := inner.Start(); err != nil {
		return 0, err
	}
	go func() {
		for s := range signals {
			_ = inner.Process.Signal(s)
		}
	}()
	err = inner.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

func buildRoce(path string) error {
	build := exec.Command("go", "build", "-o", path, "../../cmd/roce")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the roce command: %w\n%s", err, out)
	}
	return nil
}

// lab is the guest with its namespace, in which the tests run.
type lab struct {
	guest, roce, artifacts string
}

func theLab() *lab {
	l := &lab{guest: os.Getenv(envGuest), roce: os.Getenv(envRoce), artifacts: os.Getenv(envArtifacts)}
	if l.guest == "" {
		l.guest = "ci"
	}
	if l.artifacts == "" {
		l.artifacts = "artifacts"
	}
	return l
}

// requireLab returns the lab, or skips the test when it is not asked for.
func requireLab(t *testing.T) *lab {
	t.Helper()
	if os.Getenv(envEnable) != "1" {
		t.Skipf("needs the rxe lab, a QEMU guest: set %s=1 as root to run it, or use test/rxe/run", envEnable)
	}
	return theLab()
}

// script is a call of lab.sh.
func (l *lab) script(args ...string) *exec.Cmd {
	return exec.Command("bash", append([]string{"lab.sh"}, args...)...)
}

// inGuest is a command line for the guest, which ends it after the limit.
func (l *lab) inGuest(limit time.Duration, line string) *exec.Cmd {
	return l.script("exec", "-n", l.guest, "-t", strconv.Itoa(int(limit.Seconds())), line)
}

// run runs a command that has to succeed and returns its standard output.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.Bytes())
	}
	return out.String()
}

// lose makes the guest lose packets in each direction until the end of the test.
func (l *lab) lose(t *testing.T, percent int) {
	t.Helper()
	run(t, l.script("loss", "-n", l.guest, strconv.Itoa(percent)))
	if percent != 0 {
		t.Cleanup(func() { run(t, l.script("loss", "-n", l.guest, "0")) })
	}
}

// record is what there is to see of a test: a directory with the packets and the
// output of the programs. It is kept when the test fails.
type record struct {
	*lab
	dir string
}

var notInFileName = regexp.MustCompile(`[^A-Za-z0-9=.-]+`)

// record starts the record of a test. What is registered for clean-up later is
// still recorded.
func (l *lab) record(t *testing.T) *record {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(l.artifacts, notInFileName.ReplaceAllString(t.Name(), "_")))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	r := &record{l, dir}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
			_ = os.Remove(l.artifacts) // if it was the only one
			return
		}
		r.keepOutput("serial.log", l.script("log", l.guest))
		t.Logf("packets, logs and output of the programs are in %s", dir)
	})
	return r
}

func (r *record) file(name string) string { return filepath.Join(r.dir, name) }

func (r *record) keepOutput(name string, cmd *exec.Cmd) {
	out, err := cmd.CombinedOutput()
	if err != nil {
		out = fmt.Appendf(out, "\n%v: %v\n", cmd.Args, err)
	}
	_ = os.WriteFile(r.file(name), out, 0o644)
}

// captureDelay is how long it may take until tcpdump has written a packet.
const captureDelay = 1500 * time.Millisecond

// capture writes the packets under test to a file until the returned function is
// called, or the test ends. The last ones are in it only if whole is set, or if the
// test has failed.
func (r *record) capture(t *testing.T, file string, whole bool, options ...string) (stop func()) {
	t.Helper()
	args := append([]string{"-Z", "root", "-n", "-i", "tap0", "-B", "16384", "-w", r.file(file)}, options...)
	cmd := exec.Command("tcpdump", append(args, "udp", "port", "4791")...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("a capture needs tcpdump: %v", err)
	}
	text := bufio.NewReader(stderr)
	if first, err := text.ReadString('\n'); err != nil || !strings.Contains(first, "listening on") {
		rest, _ := io.ReadAll(text)
		t.Fatalf("tcpdump: %s%s", first, rest)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if t.Failed() || whole {
			time.Sleep(captureDelay)
		}
		_ = cmd.Process.Signal(os.Interrupt)
		_, _ = io.Copy(io.Discard, text)
		_ = cmd.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// captureHeaders keeps the start of the last million packets or so of the test.
func (r *record) captureHeaders(t *testing.T) {
	t.Helper()
	r.capture(t, "tap0.pcap", false, "-s", "160", "-C", "64", "-W", "2")
}

// program is a program that runs while the test goes on.
type program struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
}

// start starts a program; its output goes to a file of the record. It is killed
// when the test ends before it.
func (r *record) start(t *testing.T, name string, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{name: name, log: r.file(name + ".log"), cmd: cmd, ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	fmt.Fprintln(out, "$", strings.Join(cmd.Args, " "))
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			_ = cmd.Process.Kill()
			<-p.ended
		}
	})
	return p
}

// wait waits for the end of the program and returns its output and exit status.
func (p *program) wait(t *testing.T, ctx context.Context) (output string, status int) {
	t.Helper()
	select {
	case <-p.ended:
	case <-ctx.Done():
		t.Fatalf("%s does not end; its output so far:\n%s", p.name, p.output(t))
	}
	return p.output(t), p.cmd.ProcessState.ExitCode()
}

func (p *program) output(t *testing.T) string {
	t.Helper()
	out, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
