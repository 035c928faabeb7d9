//go:build linux

package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
)

// TestSurvivorOfKillsAndStops holds what an application may rely on when its
// peer dies, hangs or comes back under the same address: see doc.go.
func TestSurvivorOfKillsAndStops(t *testing.T) {
	d := newDirector(t)
	defer func() { t.Logf("seed %d: %v", d.seed, d.tally) }()
	end := time.Now().Add(duration())
	for i := range d.peers {
		d.launch(i)
	}
	d.reconnect()
	for n := 0; n < 2 || time.Now().Before(end); n++ {
		d.load()
		d.event(n)
	}
	d.finish()
}

func duration() time.Duration {
	switch {
	case *chaosFor > 0:
		return *chaosFor
	case testing.Short():
		return 2 * time.Second
	}
	return 10 * time.Second
}

// director kills and restarts the workers, and asks the survivor.
type director struct {
	t      *testing.T
	seed   uint64
	r      *rand.Rand
	dir    string
	peers  [2]*peer
	victim int
	streak int // events left until the victim is chosen anew
	tally  *tally
}

// tally is what the run saw.
type tally struct {
	Kills, ShortStops, LongStops, Closes, Reopens, Connects int
	Statuses                                                map[string]int
	UC, UD                                                  uint64 // messages received whole
	UnknownQPN                                              uint64 // packets dropped after a restart or a long stop
	Slowest                                                 time.Duration
	Usage                                                   string
}

func (t *tally) String() string {
	b, _ := json.Marshal(t)
	return string(b)
}

// peer is an address with the process that has it now.
type peer struct {
	addr    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	replies chan reply
	stderr  *output
	file    string
	offer   *offer
	old     *region // a key of the session before
	usages  int     // measured in this life
	warm    *usage
}

// output collects what a process writes.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func newDirector(t *testing.T) *director {
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("go test ./test/chaos -chaos %v -chaos-seed %d", duration(), seed)
	d := &director{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), tally: &tally{Statuses: map[string]int{}}}
	for i, addr := range []string{"127.0.5.1", "127.0.5.2"} {
		d.peers[i] = &peer{addr: addr}
		if err := portFree(addr); err != nil {
			t.Skipf("needs UDP port 4791 on %s: %v", addr, err)
		}
	}
	t.Cleanup(func() {
		for _, p := range d.peers {
			if p.cmd != nil {
				_ = p.cmd.Process.Kill()
				_ = p.cmd.Wait()
			}
		}
	})
	return d
}

// portFree opens and closes a device at the address.
func portFree(addr string) error {
	dev, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(addr)})
	var inUse *udp.InUseError
	if errors.As(err, &inUse) {
		return err
	}
	if err != nil {
		return fmt.Errorf("cannot bind: %w", err)
	}
	return dev.Close()
}

// launch starts a worker process and opens its device.
func (d *director) launch(i int) {
	p := d.peers[i]
	self, err := os.Executable()
	d.must(err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	p.stderr = &output{}
	cmd.Stderr = p.stderr
	in, err := cmd.StdinPipe()
	d.must(err)
	out, err := cmd.StdoutPipe()
	d.must(err)
	d.must(cmd.Start())
	p.cmd, p.in, p.replies = cmd, in, make(chan reply)
	go func(replies chan<- reply) {
		defer close(replies)
		for dec := json.NewDecoder(out); ; {
			var r reply
			if dec.Decode(&r) != nil {
				return
			}
			replies <- r
		}
	}(p.replies)
	p.usages, p.warm = 0, nil
	d.open(i)
}

// open opens the device of a worker under a new identity.
func (d *director) open(i int) {
	p, nonce := d.peers[i], d.r.Uint64()
	p.file = filepath.Join(d.dir, fmt.Sprintf("%016x", nonce))
	d.ask(i, command{Do: "open", Addr: p.addr, File: p.file, Nonce: nonce})
}

// ask has a worker do something. A worker that does not answer has hung.
func (d *director) ask(i int, c command) reply {
	d.send(i, c)
	return d.answer(i, c.Do)
}

func (d *director) send(i int, c command) { d.must(json.NewEncoder(d.peers[i].in).Encode(c)) }

func (d *director) answer(i int, what string) reply {
	d.t.Helper()
	p := d.peers[i]
	select {
	case r, ok := <-p.replies:
		if !ok {
			d.t.Fatalf("seed %d: worker %s ended at %q: %v", d.seed, p.addr, what, p.stderr)
		}
		if r.Err != "" {
			d.t.Fatalf("seed %d: worker %s: %s\n%v", d.seed, p.addr, r.Err, p.stderr)
		}
		return r
	case <-time.After(failWithin() + 4*hangAfter):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // prints the stacks
		time.Sleep(time.Second)
		d.t.Fatalf("seed %d: worker %s hangs at %q: %v", d.seed, p.addr, what, p.stderr)
	}
	panic("not reached")
}

func (d *director) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatalf("seed %d: %v", d.seed, err)
	}
}

// reconnect builds a session between the two workers and starts the load.
func (d *director) reconnect() {
	for i, p := range d.peers {
		p.offer = d.ask(i, command{Do: "prepare"}).Offer
	}
	for i := range d.peers {
		d.ask(i, command{Do: "connect", Peer: d.peers[1-i].offer})
	}
	d.intrude(d.r.IntN(2))
	for i, p := range d.peers {
		d.ask(i, command{Do: "start"})
		p.old = &p.offer.RC[0].Write
	}
	d.tally.Connects++
}

// intrude lets worker i use a key of the peer's last session, or of none.
func (d *director) intrude(i int) {
	target := d.peers[1-i].old
	if target == nil {
		target = &region{Addr: d.peers[1-i].offer.RC[0].Write.Addr, Key: d.r.Uint32()}
	}
	d.ask(i, command{Do: "intrude", Target: target})
}

// load lets the workers run for a while and checks that all pairs move.
func (d *director) load() {
	before := [2][]uint64{d.ask(0, command{Do: "progress"}).Done, d.ask(1, command{Do: "progress"}).Done}
	time.Sleep(d.between(50*time.Millisecond, 500*time.Millisecond))
	for i := range d.peers {
		d.awaitProgress(i, before[i])
	}
}

func (d *director) awaitProgress(i int, before []uint64) {
	for end := time.Now().Add(2 * hangAfter); ; time.Sleep(5 * time.Millisecond) {
		done, stuck := d.ask(i, command{Do: "progress"}).Done, -1
		for k := range done {
			if done[k] == before[k] {
				stuck = k
			}
		}
		if stuck < 0 {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("seed %d: worker %s: pair %d stands still: %v", d.seed, d.peers[i].addr, stuck/2, d.ask(i, command{Do: "stats"}).Stats)
		}
	}
}

func (d *director) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(d.r.Int64N(int64(hi-lo)))
}

// event does something to a worker. The same one is hit several times in a
// row, so that the other lives long enough for a leak to show.
func (d *director) event(n int) {
	if d.streak == 0 {
		d.victim, d.streak = d.r.IntN(2), 5+d.r.IntN(60)
	}
	d.streak--
	switch k := d.r.IntN(20); {
	case n == 0 || k < 9:
		d.kill()
	case k < 14:
		d.stopShort()
	case k < 16:
		d.stopLong()
	default:
		d.close(d.r.IntN(2) == 0)
	}
}

// kill ends the victim at once; the next process is there while the survivor
// still repeats its requests to the old one, or later.
func (d *director) kill() {
	d.tally.Kills++
	d.reap(syscall.SIGKILL)
	d.must(portFree(d.peers[d.victim].addr))
	d.replace(d.launch)
}

// reap ends the victim's process and looks at what it printed.
func (d *director) reap(sig syscall.Signal) {
	p := d.peers[d.victim]
	d.must(p.cmd.Process.Signal(sig))
	for range p.replies { // until its output ends
	}
	_ = p.cmd.Wait()
	_ = p.in.Close()
	p.cmd = nil
	if s := p.stderr.String(); strings.Contains(s, "DATA RACE") || strings.Contains(s, "panic") {
		d.t.Fatalf("seed %d: worker %s: %s", d.seed, p.addr, s)
	}
}

// close closes the victim's device, in order, and opens it again in the same
// process or another.
func (d *director) close(reopen bool) {
	d.tally.Closes++
	d.ask(d.victim, command{Do: "close"})
	d.must(portFree(d.peers[d.victim].addr)) // the process still lives
	if reopen {
		d.tally.Reopens++
		d.replace(d.open)
		return
	}
	d.must(d.peers[d.victim].in.Close())
	d.reap(syscall.Signal(0))
	d.replace(d.launch)
}

// replace brings the victim back and checks the survivor meanwhile.
func (d *director) replace(back func(int)) {
	survivor, old := 1-d.victim, d.peers[d.victim].file
	d.send(survivor, command{Do: "gone"})
	since := time.Now()
	if at := d.r.IntN(3); at > 0 {
		back(d.victim)
		took := time.Since(since)
		d.gone(survivor)
		n := d.ask(d.victim, command{Do: "stats"}).Stats["drop_unknown_qpn"]
		if d.tally.UnknownQPN += n; took < retryBudget()/2 && n == 0 {
			d.t.Fatalf("seed %d: the new process was there after %v and dropped no stale packet", d.seed, took)
		}
	} else {
		d.gone(survivor)
		back(d.victim)
	}
	d.must(os.Remove(old))
	d.rest(survivor)
	d.reconnect()
}

// gone takes the survivor's outcome.
func (d *director) gone(i int) {
	o := d.answer(i, "gone").Outcome
	if o.Last > failWithin()+time.Second {
		d.t.Fatalf("seed %d: the last request ended %v after the peer was gone; four times the timeouts are %v", d.seed, o.Last, failWithin())
	}
	for name, n := range o.Statuses {
		d.tally.Statuses[name] += n
	}
	d.tally.UC += o.UC
	d.tally.UD += o.UD
	d.tally.Slowest = max(d.tally.Slowest, o.Last)
}

// rest ends a worker's session and measures what it holds then.
func (d *director) rest(i int) {
	d.ask(i, command{Do: "end"})
	p, u := d.peers[i], d.ask(i, command{Do: "usage"}).Usage
	p.usages++
	switch {
	case p.usages < 3: // warming up
	case p.warm == nil:
		p.warm = u
	default:
		if err := u.grown(p.warm); err != nil {
			d.t.Fatalf("seed %d: worker %s grew in %d sessions: %v\nwarm %+v\nnow  %+v", d.seed, p.addr, p.usages, err, *p.warm, *u)
		}
		d.tally.Usage = fmt.Sprintf("after %d sessions warm %+v, now %+v", p.usages, *p.warm, *u)
	}
}

// stopShort stops the victim for less than the retry budget: all connections
// live on.
func (d *director) stopShort() {
	d.tally.ShortStops++
	survivor := 1 - d.victim
	before := d.ask(d.victim, command{Do: "progress"}).Done
	d.signal(syscall.SIGSTOP)
	time.Sleep(d.between(10*time.Millisecond, retryBudget()*6/10))
	d.signal(syscall.SIGCONT)
	d.awaitProgress(d.victim, before)
	d.awaitProgress(survivor, d.ask(survivor, command{Do: "progress"}).Done)
}

// stopLong stops the victim until the survivor has given up. Continued, it
// talks to pairs that no longer exist, and has to give up as well.
func (d *director) stopLong() {
	d.tally.LongStops++
	survivor := 1 - d.victim
	d.signal(syscall.SIGSTOP)
	d.send(survivor, command{Do: "gone"})
	d.gone(survivor)
	d.rest(survivor)
	before := d.ask(survivor, command{Do: "stats"}).Stats["drop_unknown_qpn"]
	d.signal(syscall.SIGCONT)
	d.send(d.victim, command{Do: "gone"})
	d.gone(d.victim)
	dropped := d.ask(survivor, command{Do: "stats"}).Stats["drop_unknown_qpn"] - before
	if d.tally.UnknownQPN += dropped; dropped == 0 {
		d.t.Fatalf("seed %d: no packet to a destroyed pair was counted", d.seed)
	}
	d.rest(d.victim)
	d.reconnect()
}

func (d *director) signal(s syscall.Signal) { d.must(d.peers[d.victim].cmd.Process.Signal(s)) }

// finish closes both devices and waits for the processes.
func (d *director) finish() {
	for i := range d.peers { // both before either is missed
		d.send(i, command{Do: "close"})
	}
	for i, p := range d.peers {
		d.victim = i
		d.answer(i, "close")
		d.must(p.in.Close())
		d.reap(syscall.Signal(0))
		d.must(portFree(p.addr))
	}
}
