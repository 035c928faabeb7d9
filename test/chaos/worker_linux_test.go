package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/verbs"
)

const workerEnv = "GOROCE_CHAOS_WORKER"

// TestMain makes the test's own binary the worker as well.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) == "" {
		os.Exit(m.Run())
	}
	w := &worker{}
	if err := serve(os.Stdin, os.Stdout, w.do); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// worker is one of the two processes.
type worker struct {
	dev    *verbs.Device
	nonce  uint64
	files  *mapping
	round  int
	s      *session
	events sync.WaitGroup
	before *usage // open
}

func (w *worker) do(c *command) (r reply) {
	var err error
	switch c.Do {
	case "open":
		err = w.open(c)
	case "prepare":
		r.Offer, err = w.prepare()
	case "connect":
		err = w.s.connect(c.Peer)
	case "intrude":
		err = w.s.intrude(c.Target)
	case "start":
		w.s.start()
	case "progress":
		r.Done, err = w.s.progress()
	case "gone":
		r.Outcome, err = w.s.peerGone()
	case "end":
		err = w.end()
	case "usage":
		r.Usage, err = measure()
	case "stats":
		r.Stats = w.dev.Stats()
	case "close":
		err = w.close()
	default:
		err = fmt.Errorf("unknown command %q", c.Do)
	}
	if err != nil {
		r.Err = fmt.Sprintf("%s: %v", c.Do, err)
	}
	return r
}

func (w *worker) open(c *command) (err error) {
	if w.before, err = measure(); err != nil {
		return err
	}
	if w.files, err = mapFile(c.File); err != nil {
		return err
	}
	w.nonce = c.Nonce
	if w.dev, err = verbs.Open(verbs.Config{Addr: netip.MustParseAddr(c.Addr)}); err != nil {
		return err
	}
	w.events.Go(func() {
		for {
			if _, err := w.dev.Event(context.Background()); err != nil {
				return
			}
		}
	})
	return nil
}

// prepare makes the objects of the next session, in the block that the last one
// did not use.
func (w *worker) prepare() (o *offer, err error) {
	b := &w.files.blocks[w.round%2]
	if err := b.checkSeal(); err != nil {
		return nil, err
	}
	w.round++
	w.s, o, err = newSession(w, b)
	return o, err
}

// end ends the session; its memory is watched from here on.
func (w *worker) end() error {
	err := w.s.end()
	w.s.mem.seal()
	w.s = nil
	return errors.Join(err, w.files.blocks[w.round%2].checkSeal())
}

// close closes the device under load: every waiting call has to return, and
// nothing of the device may be left.
func (w *worker) close() error {
	if err := w.dev.Close(); err != nil {
		return err
	}
	w.s.wg.Wait()
	w.events.Wait()
	for _, p := range w.s.rc {
		if p.failed {
			return fmt.Errorf("RC pair %d failed before Close: %v", p.index, p.statuses)
		}
	}
	err := errors.Join(w.s.failure(), w.s.checkMemory(), w.files.blocks[w.round%2].checkSeal(), w.files.close())
	w.s, w.files = nil, nil
	now, uerr := measure()
	if err = errors.Join(err, uerr); err != nil {
		return err
	}
	if now.Goroutines > w.before.Goroutines || now.Files > w.before.Files {
		stacks := make([]byte, 64<<10)
		return fmt.Errorf("Close left %+v, before Open %+v\n%s", *now, *w.before, stacks[:runtime.Stack(stacks, true)])
	}
	return nil
}

// hangAfter is what a busy machine may add to any deadline.
const hangAfter = 5 * time.Second
